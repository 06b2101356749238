"""Every option of `pack` with every other, over rows of a few tokens and documents around their length."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.errors import ConfigError, DataError
from trees import assert_plan_tells_packs

BOS, EOS, PAD = 90_001, 90_002, 90_003


def store(sizes: list[int], name: str = "some") -> ps.Dataset:
    """Documents of these sizes; every token is a number of its own, from 1."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])
    return ps.from_tokens(np.arange(1, offsets[-1] + 1), offsets, name=name)


@st.composite
def settings_of_pack(draw: st.DrawFn) -> tuple[int, dict[str, Any]]:
    """A length of rows, and options that go with it."""
    multiple = draw(st.sampled_from([1, 1, 2, 3]))
    length = multiple * draw(st.integers(1, 6))
    options: dict[str, Any] = {"pad": PAD, "pad_to_multiple": multiple}
    options["method"] = method = draw(
        st.sampled_from(["concat_split", "first_fit", "best_fit", "best_fit"])
    )
    for name, value in (("bos", BOS), ("eos", EOS)):
        if draw(st.booleans()):
            options[name] = value
    if draw(st.integers(0, 3)) == 0:
        options["max_segments"] = draw(st.integers(1, 3))
    if method != "concat_split":
        options["long"] = draw(st.sampled_from(["split", "split", "truncate", "error"]))
        if draw(st.integers(0, 3)) == 0:
            options["open_rows"] = draw(st.integers(1, 3))
    if method == "best_fit":
        if "max_segments" not in options and "open_rows" not in options:
            options |= draw(
                st.sampled_from(
                    [{}, {"rows": 4}, {"rows": 5}, {"overflow": "never"}, {"overflow": "split"}]
                )
            )
        if "rows" not in options and options.get("overflow") != "split" and draw(st.booleans()):
            options["window"] = draw(st.integers(1, 5))
    return length, options


def sizes_around(length: int) -> st.SearchStrategy[list[int]]:
    near = [0, 1, 1, 2, length - 1, length, length + 1, 2 * length, 2 * length + 1, 5]
    return st.lists(st.sampled_from(near), max_size=14)


def segments(row: dict[str, Any], multiple: int) -> list[tuple[int, list[int]]]:
    """The documents of a row: where each goes on, and its tokens."""
    found, ids = list[tuple[int, list[int]]](), row["segment_ids"]
    assert (ids[1:][ids[1:] > 0] >= ids[:-1][ids[1:] > 0]).all()
    for number in range(1, ids.max(initial=0) + 1):
        (where,) = np.nonzero(ids == number)
        places = row["positions"][where]
        assert (
            where[0] % multiple == 0
            and (np.diff(where) == 1).all()
            and (np.diff(places) == 1).all()
        )
        found.append((int(places[0]), row["tokens"][where].tolist()))
    padding = ids == 0
    assert (row["tokens"][padding] == PAD).all() and not row["positions"][padding].any()
    return found


def whole(size: int, first: int, options: dict[str, Any]) -> list[int]:
    """A document as it is packed."""
    begin, end = ([BOS] if "bos" in options else []), ([EOS] if "eos" in options else [])
    return [*begin, *range(first, first + size), *end]


def assert_rows_hold(
    rows: list[dict[str, Any]], sizes: list[int], length: int, options: dict[str, Any]
) -> None:
    """That the rows are these documents, in whatever order, each of them in pieces that go on where one ended."""
    firsts = (np.cumsum([0, *sizes[:-1]]) + 1).tolist() if sizes else []
    wanted = [whole(size, first, options) for size, first in zip(sizes, firsts, strict=True)]
    if options.get("long") == "truncate":
        wanted = [document[:length] for document in wanted]
    want = Counter((place, token) for document in wanted for place, token in enumerate(document))
    have, multiple = Counter[tuple[int, int]](), options["pad_to_multiple"]
    for row in rows:
        assert all(len(column) == length for column in row.values())
        pieces = segments(row, multiple)
        assert 0 < len(pieces) <= options.get("max_segments", length)
        have.update(
            (start + i, token) for start, tokens in pieces for i, token in enumerate(tokens)
        )
        assert sum(-(-len(tokens) // multiple) * multiple for _, tokens in pieces) <= length
    assert have == want


@examples(300)
@given(settings_of_pack(), st.data())
def test_any_options_over_documents_around_a_row(
    drawn: tuple[int, dict[str, Any]], data: Any
) -> None:
    length, options = drawn
    sizes = data.draw(sizes_around(length))
    note(f"sizes {sizes}, pack({length}, **{options})")
    extra = ("bos" in options) + ("eos" in options)
    known = store(sizes)
    if options.get("long") == "truncate" and length <= extra:
        with pytest.raises(ConfigError, match=f"a row of {length} has no room for a token"):
            known.pack(length, **options)
        return
    rows = known.pack(length, **options)
    streamed = known.map(np.array).pack(length, **options)
    longest = max(
        (
            -(-(size + extra) // options["pad_to_multiple"]) * options["pad_to_multiple"]
            for size in sizes
        ),
        default=0,
    )
    if options.get("long") == "error" and longest > length:
        for ds in (rows, streamed):
            with pytest.raises(DataError, match=f"tokens, more than a row of {length}"):
                list(ps.Loader(ds, lanes=1))
        return
    found = list(rows)
    assert len(rows) == len(found)
    assert_rows_hold(found, sizes, length, options)
    assert_plan_tells_packs(rows.plan, len(rows))
    assert_rows_hold(list(ps.Loader(streamed, lanes=1)), sizes, length, options)
    if found:
        shuffled = known.shuffle(seed=3).pack(length, **options)
        second = list(islice(shuffled.repeat(), len(shuffled), 2 * len(shuffled)))
        assert_rows_hold(second, sizes, length, options)


@examples(100)
@given(settings_of_pack(), st.data())
def test_any_options_over_documents_without_end(
    drawn: tuple[int, dict[str, Any]], data: Any
) -> None:
    length, options = drawn
    sizes = data.draw(sizes_around(length))
    extra = ("bos" in options) + ("eos" in options)
    planned = {"max_segments", "open_rows", "window"} & set(options) or options.get(
        "overflow"
    ) == "never"
    cannot = (
        options.get("long") in ("truncate", "error") or planned or options["method"] == "first_fit"
    )
    if cannot or not sum(sizes) + extra * len(sizes):
        return
    note(f"sizes {sizes}, pack({length}, **{options})")
    rows = store(sizes).shuffle(seed=1).repeat().pack(length, **options)
    many = 12
    run = list(islice(rows, many))
    assert all(segments(row, options["pad_to_multiple"]) for row in run)
    for number in reversed(range(many)):
        assert {name: column.tolist() for name, column in rows[number].items()} == {
            name: column.tolist() for name, column in run[number].items()
        }
    assert_plan_tells_packs(rows.plan, many)


@pytest.mark.parametrize("method", ["concat_split", "first_fit", "best_fit"])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_last_rows_are_kept_or_dropped(method: Any, n: int) -> None:
    rows = store([3, 5, 4, 9, 2]).pack(4, method)
    full = rows.batch(n, drop_remainder=True)
    assert len(full) == len(rows) // n and len(rows.batch(n)) == -(-len(rows) // n)
    assert {batch["tokens"].shape for batch in full} == {(n, 4)}


@pytest.mark.parametrize(
    ("length", "options", "why"),
    [
        (6, {"pad_to_multiple": 4}, "must be a multiple of 4, such as 8"),
        (8, {"pad_to_multiple": 0}, "pad_to_multiple=0.*a whole number of at least 1"),
        (
            2,
            {"method": "best_fit", "long": "truncate", "bos": 1, "eos": 2},
            "has no room for a token of a document",
        ),
        (
            1,
            {"method": "first_fit", "long": "truncate", "eos": 2},
            "has no room for a token of a document",
        ),
    ],
)
def test_rows_too_small_are_refused(length: int, options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        store([3]).pack(length, **options)


def test_what_a_row_has_of_a_document_is_a_multiple() -> None:
    rows = store([3, 5, 1]).pack(8, pad_to_multiple=4, pad=PAD)
    assert [row["tokens"].tolist() for row in rows] == [
        [1, 2, 3, PAD, 4, 5, 6, 7],
        [8, PAD, PAD, PAD, 9, PAD, PAD, PAD],
    ]
    assert [row["segment_ids"].tolist() for row in rows] == [
        [1, 1, 1, 0, 2, 2, 2, 2],
        [1, 0, 0, 0, 2, 0, 0, 0],
    ]
    assert [row["positions"].tolist() for row in rows] == [
        [0, 1, 2, 0, 0, 1, 2, 3],
        [4, 0, 0, 0, 0, 0, 0, 0],
    ]
    assert rows.plan.counts(2, unit="tokens") == {"some": 16} and len(rows) == 2
    batch = rows.batch(2)[0]
    assert batch["tokens"].tolist() == [row["tokens"].tolist() for row in rows]
