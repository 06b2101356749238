"""Packing: which documents share a row (folds, plans) and how a row is built."""

from __future__ import annotations

import copy
import json
from collections import UserDict, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from helpers import through_json
from penstock.arrays.trees import collate
from penstock.engine.packing import (
    BestFit,
    ConcatSplit,
    FirstFit,
    Packing,
    Rebatch,
    adjust_group_count,
    join_parts,
    plan_groups,
)
from penstock.errors import ConfigError, DataError
from penstock.types import Fold, Item, Part

Span = tuple[int, int, int]

counts = st.none() | st.integers(1, 4)
longs = st.sampled_from(["split", "truncate"])
lengths_of_rows = st.integers(1, 16)
concat_folds = st.builds(ConcatSplit, lengths_of_rows, counts)
fit_folds = st.one_of(
    st.builds(FirstFit, lengths_of_rows, st.integers(1, 5), counts, longs),
    st.builds(BestFit, lengths_of_rows, st.integers(1, 5), counts, longs, st.integers(1, 9)),
)
folds = st.one_of(concat_folds, fit_folds, st.builds(Rebatch, lengths_of_rows))
documents = st.lists(st.integers(0, 40), max_size=40)


def limit(fold: Any) -> int:
    return fold.n if isinstance(fold, Rebatch) else fold.length


def stepped(fold: Fold, sizes: Sequence[int]) -> Iterator[list[Span]]:
    """The rows of one pass, item by item, as (number, start, stop)."""
    carry = fold.init(1)
    for number, size in enumerate(sizes):
        carry, groups = fold.step(carry, Item(number, size, None))
        yield from map(spans, groups)
    yield from map(spans, fold.flush(carry))


def spans(group: Any) -> list[Span]:
    return [
        (p.item.number, p.start, p.stop) if isinstance(p, Part) else (p.number, 0, p.size)
        for p in group
    ]


def planned(fold: Fold, sizes: Sequence[int]) -> list[list[Span]]:
    made = plan_groups(fold, np.asarray(sizes, np.int64))
    assert all(
        column.dtype == np.int64 for column in (made.bounds, made.item, made.start, made.stop)
    )
    flat = list(zip(made.item.tolist(), made.start.tolist(), made.stop.tolist(), strict=True))
    assert len(made) == len(made.bounds) - 1 and made.bounds[-1] == len(flat)
    return [flat[a:b] for a, b in pairwise(made.bounds.tolist())]


def saved(tree: Any) -> Any:
    """A carry as plain JSON, items as their numbers."""
    if isinstance(tree, Item):
        return {"@": tree.number}
    if isinstance(tree, Part):
        return {"@@": [tree.item.number, tree.start, tree.stop]}
    if isinstance(tree, dict):
        return {key: saved(value) for key, value in tree.items()}
    return [saved(value) for value in tree] if isinstance(tree, list) else tree


def loaded(tree: Any, items: Sequence[Item]) -> Any:
    match tree:
        case {"@": number}:
            return items[number]
        case {"@@": [number, start, stop]}:
            return Part(items[number], start, stop)
        case dict():
            return {key: loaded(value, items) for key, value in tree.items()}
        case list():
            return [loaded(value, items) for value in tree]
    return tree


def rows_of(fold: Fold, docs: Sequence[Any], packing: Packing) -> list[dict[str, Any]]:
    """The rows of one pass over documents, built."""
    carry, out = fold.init(1), list[dict[str, Any]]()
    for number, doc in enumerate(docs):
        carry, groups = fold.step(carry, Item(number, packing.size(doc) + packing.extra, doc))
        out += map(packing.build, groups)
    return out + [packing.build(group) for group in fold.flush(carry)]


def packed(
    docs: Sequence[Any], length: int, method: Any = "concat_split", **options: Any
) -> list[dict[str, Any]]:
    packing = Packing(length, method, **options)
    return rows_of(packing.fold(), docs, packing)


def lognormal(n: int) -> Any:
    """Lengths of documents: mean 600, sigma 1, between 8 and 8,192."""
    return np.clip(np.random.default_rng(7).lognormal(np.log(600) - 0.5, 1, n), 8, 8192).astype(
        np.int64
    )


# ---------------------------------------------------------------- laws of all folds


@given(folds, documents)
def test_every_token_once_and_in_order_within_its_document(fold: Any, sizes: list[int]) -> None:
    cut = getattr(fold, "long", "split") == "truncate"
    reached = defaultdict[int, int](int)
    for row in stepped(fold, sizes):
        for number, start, stop in row:
            assert start == reached[number] and stop > start
            reached[number] = stop
    assert [reached[number] for number in range(len(sizes))] == [
        min(s, limit(fold)) if cut else s for s in sizes
    ]


@given(folds, documents)
def test_rows_keep_their_limits(fold: Any, sizes: list[int]) -> None:
    most = getattr(fold, "max_segments", None)
    for row in stepped(fold, sizes):
        assert 0 < sum(stop - start for _, start, stop in row) <= limit(fold)
        assert most is None or len(row) <= most
        assert len({number for number, _, _ in row}) == len(row), (
            "two pieces of one document in a row"
        )
        assert row == sorted(row), "documents of a row come in order of arrival"


@given(folds, documents)
def test_a_plan_is_what_the_fold_gives(fold: Any, sizes: list[int]) -> None:
    assert planned(fold, sizes) == list(stepped(fold, sizes))


@given(folds, documents)
def test_step_changes_no_carry_and_a_saved_one_goes_on(fold: Any, sizes: list[int]) -> None:
    items = [Item(number, size, None) for number, size in enumerate(sizes)]
    live = back = fold.init(1)
    for item in items:
        before = copy.deepcopy(live)
        after, groups = fold.step(live, item)
        fold.flush(live)
        assert live == before
        back, again = fold.step(loaded(through_json(saved(back)), items), item)
        assert again == groups and back == after
        live = after
    assert fold.flush(back) == fold.flush(live)


@given(folds)
def test_describe_is_json(fold: Fold) -> None:
    assert through_json(fold.describe()) == fold.describe()


@pytest.mark.parametrize("fold", [ConcatSplit(4), FirstFit(4), BestFit(4), Rebatch(4)], ids=repr)
def test_no_documents_no_rows(fold: Any) -> None:
    assert planned(fold, []) == planned(fold, [0, 0]) == list(stepped(fold, [0])) == []


@pytest.mark.parametrize(
    "fold", [ConcatSplit(4), ConcatSplit(4, 2), FirstFit(4), BestFit(4)], ids=repr
)
def test_a_negative_length_names_its_item(fold: Any) -> None:
    with pytest.raises(DataError, match="item 1: a size of -3"):
        plan_groups(fold, [1, -3])


def test_numpy_sizes_leave_plain_numbers_in_the_carry() -> None:
    for fold in (ConcatSplit(9), FirstFit(9), BestFit(9, window=1)):
        carry, _ = fold.step(fold.init(0), Item(0, np.int64(4), None))  # pyright: ignore[reportArgumentType]
        json.dumps(saved(carry))


# ---------------------------------------------------------------- concat_split


@given(st.integers(1, 16), documents)
def test_concat_split_fills_every_row_but_the_last(length: int, sizes: list[int]) -> None:
    rows = planned(ConcatSplit(length), sizes)
    taken = [sum(stop - start for _, start, stop in row) for row in rows]
    assert taken[:-1] == [length] * (len(taken) - 1)
    flat = [
        (number, place)
        for row in rows
        for number, start, stop in row
        for place in range(start, stop)
    ]
    assert flat == [(number, place) for number, size in enumerate(sizes) for place in range(size)]


def test_concat_split_gives_documents_without_tokens_no_segment() -> None:
    sizes = [0, 1, 0, 0, 3, 0, 2, 0]
    assert (
        planned(ConcatSplit(4), sizes)
        == list(stepped(ConcatSplit(4), sizes))
        == [[(1, 0, 1), (4, 0, 3)], [(6, 0, 2)]]
    )


def test_concat_split_cuts_a_document_many_times() -> None:
    assert planned(ConcatSplit(3), [8, 2]) == [
        [(0, 0, 3)],
        [(0, 3, 6)],
        [(0, 6, 8), (1, 0, 1)],
        [(1, 1, 2)],
    ]


def test_concat_split_closes_a_row_at_max_segments() -> None:
    assert planned(ConcatSplit(10, max_segments=2), [1, 1, 1, 20]) == [
        [(0, 0, 1), (1, 0, 1)],
        [(2, 0, 1), (3, 0, 9)],
        [(3, 9, 19)],
        [(3, 19, 20)],
    ]


def test_concat_split_plans_many_documents_at_once() -> None:
    sizes = lognormal(200_000)
    made = plan_groups(ConcatSplit(2048), sizes)
    assert np.array_equal(np.bincount(made.item, made.stop - made.start, len(sizes)), sizes)
    assert (np.add.reduceat(made.stop - made.start, made.bounds[:-1])[:-1] == 2048).all()


# ---------------------------------------------------------------- fits


@given(fit_folds, documents)
def test_fits_keep_documents_whole(fold: Any, sizes: list[int]) -> None:
    for row in stepped(fold, sizes):
        for number, start, stop in row:
            if sizes[number] <= fold.length:
                assert (start, stop) == (0, sizes[number])
            elif fold.long == "split":
                assert stop - start == fold.length or stop == sizes[number]


def naive_first_fit(sizes: list[int], length: int, open_rows: int) -> list[list[int]]:
    done, rows = list[list[int]](), list[list[int]]()
    for number, size in enumerate(sizes):
        for row in rows:
            if sum(sizes[i] for i in row) + size <= length:
                row.append(number)
                break
        else:
            rows.append([number])
        done += [row for row in rows if sum(sizes[i] for i in row) == length]
        rows = [row for row in rows if sum(sizes[i] for i in row) < length]
        while len(rows) > open_rows:
            done.append(rows.pop(0))
    return done + rows


@given(st.lists(st.integers(1, 12), max_size=50), st.integers(1, 5))
def test_first_fit_is_first_fit(sizes: list[int], open_rows: int) -> None:
    rows = [[number for number, _, _ in row] for row in stepped(FirstFit(12, open_rows), sizes)]
    assert rows == naive_first_fit(sizes, 12, open_rows)


@given(st.lists(st.integers(1, 12), max_size=50))
def test_best_fit_takes_the_row_with_the_least_room(sizes: list[int]) -> None:
    rows = list[list[int]]()
    for number, size in enumerate(sizes):
        fitting = [row for row in rows if sum(sizes[i] for i in row) + size <= 12]
        if fitting:
            max(fitting, key=lambda row: sum(sizes[i] for i in row)).append(number)
        else:
            rows.append([number])
    found = stepped(BestFit(12, open_rows=50, window=1), sizes)
    room = sorted(sum(sizes[number] for number, _, _ in row) for row in found)
    assert room == sorted(sum(sizes[i] for i in row) for row in rows)


def test_best_fit_places_the_longest_of_a_window_first() -> None:
    sizes = [2, 3, 7, 8]
    assert planned(BestFit(10, window=4), sizes) == [[(1, 0, 3), (2, 0, 7)], [(0, 0, 2), (3, 0, 8)]]
    assert len(planned(BestFit(10, window=1), sizes)) == 3


def test_best_fit_holds_no_row_for_ever() -> None:
    # The first row has room for nothing that follows, and is never among the fullest.
    fold = BestFit(2048, open_rows=2, window=1)
    carry, _ = fold.step(fold.init(0), Item(0, 1500, None))
    held = list[int]()
    for number in range(1, 200):
        carry, _ = fold.step(carry, Item(number, 600, None))
        held.append(min(row[0].number for row in carry["rows"]))
    assert held[0] == 0 and held[-1] > 100


def test_best_fit_holds_no_row_for_ever_while_others_fill_up() -> None:
    fold = BestFit(10, open_rows=4, window=1)
    carry, closed = fold.init(0), list[int]()
    for number, size in enumerate([7, *[10] * 50]):
        carry, groups = fold.step(carry, Item(number, size, None))
        closed += [number for row in groups if spans(row)[0][0] == 0]
    assert closed == [32], "once 8 * open_rows rows were opened after it"


@pytest.mark.parametrize("method", ["first_fit", "best_fit"])
def test_a_document_longer_than_a_row(method: Any) -> None:
    sizes = [20, 3]
    assert sorted(planned(Packing(8, method).fold(), sizes)) == [
        [(0, 0, 8)],
        [(0, 8, 16)],
        [(0, 16, 20), (1, 0, 3)],
    ]
    assert sorted(planned(Packing(8, method, long="truncate").fold(), sizes)) == [
        [(0, 0, 8)],
        [(1, 0, 3)],
    ]
    with pytest.raises(DataError, match=r"item 0: 20 tokens, more than a row of 8.*long='split'"):
        planned(Packing(8, method, long="error").fold(), sizes)


@pytest.mark.parametrize(
    ("fold", "fill"),
    [
        (FirstFit(2048), 0.985),
        (BestFit(2048), 0.998),
        (FirstFit(8192), 0.985),
        (BestFit(8192, window=1000), 0.99),
        (BestFit(8192, open_rows=64, window=1), 0.99),
    ],
    ids=repr,
)
def test_rows_are_full_and_nothing_is_lost(fold: Any, fill: float) -> None:
    sizes = lognormal(20_000)
    made = plan_groups(fold, sizes)
    taken = made.stop - made.start
    assert np.array_equal(np.bincount(made.item, taken, len(sizes)), sizes)
    in_row = np.add.reduceat(taken, made.bounds[:-1])
    assert in_row.max() <= fold.length
    assert in_row.sum() / (len(made) * fold.length) >= fill


# ---------------------------------------------------------------- rows


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=20),
    st.integers(1, 16),
    st.sampled_from(["concat_split", "first_fit", "best_fit"]),
    counts,
    st.none() | st.just(98),
    st.none() | st.just(99),
)
def test_rows_give_the_documents_back(
    sizes: list[int], length: int, method: Any, most: int | None, bos: int | None, eos: int | None
) -> None:
    docs = [np.arange(size) + 100 * (number + 1) for number, size in enumerate(sizes)]
    options: Any = {"window": 4} if method == "best_fit" else {}
    packing = Packing(length, method, max_segments=most, bos=bos, eos=eos, pad=-1, **options)
    made = list(stepped(packing.fold(), [size + packing.extra for size in sizes]))
    rows = rows_of(packing.fold(), docs, packing)
    assert len(rows) == len(made)
    back = defaultdict[int, list[int]](list)
    for row, parts in zip(rows, made, strict=True):
        assert {name: (column.shape, column.dtype) for name, column in row.items()} == {
            "tokens": ((length,), np.dtype(np.int32)),
            "segment_ids": ((length,), np.dtype(np.int32)),
            "positions": ((length,), np.dtype(np.int32)),
        }
        ids = row["segment_ids"]
        used = sum(stop - start for _, start, stop in parts)
        assert ids[:used].tolist() == [
            i + 1 for i, (_, a, b) in enumerate(parts) for _ in range(a, b)
        ]
        assert row["positions"][:used].tolist() == [
            place for _, a, b in parts for place in range(a, b)
        ]
        assert (
            not ids[used:].any()
            and not row["positions"][used:].any()
            and (row["tokens"][used:] == -1).all()
        )
        for segment, (number, _, _) in enumerate(parts, 1):
            back[number] += row["tokens"][ids == segment].tolist()
    ends = [] if bos is None else [bos], [] if eos is None else [eos]
    assert [back[number] for number in range(len(docs))] == [
        [*ends[0], *doc.tolist(), *ends[1]] for doc in docs
    ]


def test_documents_may_be_lists_arrays_of_any_kind_or_memmaps(tmp_path: Any) -> None:
    np.arange(5, dtype=np.uint16).tofile(tmp_path / "tokens")
    disk = np.memmap(tmp_path / "tokens", np.uint16, "r")
    assert packed([disk, disk], 6, dtype="uint16")[0]["tokens"].dtype == np.uint16
    assert packed([disk, disk], 6)[0]["tokens"].dtype == np.int32
    assert packed([disk, disk], 6, dtype="int32")[1]["tokens"].tolist() == [1, 2, 3, 4, 0, 0]
    assert packed([[1, 2], [3]], 4)[0]["tokens"].dtype == np.int32
    assert packed([np.array([0.5]), np.array([1.5])], 2)[0]["tokens"].tolist() == [0.5, 1.5]
    assert packed([np.array([[1, 2], [3, 4]])], 3, pad=9)[0]["tokens"].tolist() == [
        [1, 2],
        [3, 4],
        [9, 9],
    ]


def test_a_row_does_not_share_memory_with_its_documents() -> None:
    doc = np.arange(4)
    packed([doc], 4)[0]["tokens"][:] = 7
    assert doc.tolist() == [0, 1, 2, 3]


def test_positions_of_very_long_documents() -> None:
    rows = packed([np.zeros(70_000, np.uint8)], 35_000)
    assert np.array_equal(np.concatenate([row["positions"] for row in rows]), np.arange(70_000))


def test_features_are_packed_side_by_side() -> None:
    docs = [
        {
            "input_ids": [1, 2, 3],
            "labels": [-100, 2, 3],
            "image": np.ones((3, 2), np.float32),
            "id": "a",
        },
        {"input_ids": [4, 5], "labels": [4, 5], "image": np.zeros((2, 2), np.float32), "id": "b"},
    ]
    first, second = packed(docs, 4, unpacked=("id",), pad={"labels": -100})
    assert first["input_ids"].tolist() == [1, 2, 3, 4] and second["input_ids"].tolist() == [
        5,
        0,
        0,
        0,
    ]
    assert first["labels"].tolist() == [-100, 2, 3, 4] and second["labels"].tolist() == [
        5,
        -100,
        -100,
        -100,
    ]
    assert first["image"].shape == (4, 2) and first["image"].dtype == np.float32
    assert first["id"] == ["a", "b"] and second["id"] == ["b"]
    assert first["segment_ids"].tolist() == [1, 1, 1, 2] and second["positions"].tolist() == [
        1,
        0,
        0,
        0,
    ]


def test_features_can_be_named_and_cast_one_by_one() -> None:
    docs: list[Any] = [
        {"n": 7, "mask": [True, False], "ids": [1, 2]},
        UserDict(n=8, ids=[3], mask=[True]),
    ]
    [row] = packed(docs, 4, features=("ids", "mask"), unpacked=("n",), dtype={"ids": "int16"})
    assert row["ids"].dtype == np.int16 and row["mask"].tolist() == [True, False, True, False]
    assert row["n"] == [7, 8]


def test_bos_and_eos_come_once_and_the_loss_skips_them() -> None:
    docs = [{"ids": [1, 2, 3], "labels": [1, 2, 3]}, {"ids": [4], "labels": [4]}]
    rows = packed(docs, 4, bos=98, eos=99, pad={"labels": -100})
    assert [row["ids"].tolist() for row in rows] == [[98, 1, 2, 3], [99, 98, 4, 99]]
    assert [row["labels"].tolist() for row in rows] == [[-100, 1, 2, 3], [-100, -100, 4, -100]]
    assert [row["positions"].tolist() for row in rows] == [[0, 1, 2, 3], [4, 0, 1, 2]]
    rows = packed(docs, 8, eos={"ids": 99, "labels": 99}, pad={"labels": -100})
    assert rows[0]["labels"].tolist() == [1, 2, 3, 99, 4, 99, -100, -100]


def test_an_empty_document_with_eos_is_one_token() -> None:
    assert packed([[], [5]], 3, eos=9)[0]["segment_ids"].tolist() == [1, 2, 2]


@pytest.mark.parametrize(
    ("docs", "options", "message"),
    [
        (
            [{"ids": [1, 2], "url": "ab"}],
            {},
            r"segment 1 of a row: feature 'url' is a str, not a sequence of numbers.*unpacked=",
        ),
        ([{"ids": [1, 2], "n": 3}], {}, r"feature 'n' is a int, not a sequence.*unpacked="),
        ([{"ids": [1, 2], "n": None}], {}, r"feature 'n' is a NoneType"),
        ([{"ids": [1, 2], "words": ["a", "b"]}], {}, r"feature 'words' is a list of <U1"),
        ([{"ids": [1, 2], "x": np.array(3)}], {}, r"feature 'x' is a ndarray, not"),
        ([{"ids": [1, 2], "x": [[1], [2, 3]]}], {}, r"feature 'x' is a ragged list"),
        (
            [{"ids": [1, 2], "spans": [5]}],
            {},
            r"feature 'spans' has 1 entries, 'ids' has 2.*unpacked=",
        ),
        (
            [{"ids": [1, 2]}, {"x": [1]}],
            {},
            r"segment 2 of a row: the document lacks 'ids', it has 'x': give every",
        ),
        (
            [{"ids": [1]}, {"ids": [1], "x": [1]}],
            {},
            r"segment 2 of a row: the document has 'x': the first document of its row has none",
        ),
        (
            [{"ids": [1], "x": [1]}],
            {"features": ("ids",)},
            r"has also 'x': name them in features= or unpacked=",
        ),
        ([{"ids": [1]}, [2]], {}, r"segment 2 of a row: a list among mappings with 'ids': let all"),
        (
            [[2], {"ids": [1]}],
            {},
            r"segment 2 of a row: a mapping with 'ids' among arrays of tokens",
        ),
        ([{"ids": [1], "positions": [1]}], {}, r"packing adds columns of that name"),
        ([[1], [2]], {"features": ("ids",)}, r"a document is a list"),
        (
            [[1], [2**31]],
            {},
            r"segment 2 of a row: feature 'tokens': 2147483648 does not fit into int32; pass dtype='int64'",
        ),
        (
            [[1], [2**63]],
            {},
            r"segment 2 of a row: .* 9223372036854775808 does not fit into int32; pass dtype='uint64'",
        ),
        (
            [[0.5], [2**53 + 1]],
            {},
            r"segment 2 of a row: feature 'tokens': 9007199254740993 .* is no float64",
        ),
        (
            [[2**24 + 1]],
            {"dtype": "float32"},
            r"segment 1 of a row: feature 'tokens': 16777217 .* is no float32",
        ),
        (
            [[1]],
            {"pad": -1, "dtype": "uint16"},
            r"feature 'tokens' does not fit into one row \(see dtype= and pad=",
        ),
        ([[1]], {"pad": np.int32(-100), "dtype": "uint16"}, "-100 does not fit into uint16"),
        ([np.array([1])], {"bos": 1.5}, "1.5 does not fit into int32"),
        ([np.array([1])], {"pad": float("nan")}, "nan does not fit into int32"),
        ([np.array([True])], {"pad": 2}, "2 does not fit into bool"),
        ([np.array([70_000])], {"dtype": "int16"}, "70000 does not fit into int16"),
        ([np.array([70_000], np.uint32)], {"dtype": "uint16"}, "70000 does not fit into uint16"),
        ([[5], [-1]], {"dtype": "uint16"}, "-1 does not fit into uint16"),
        ([np.array([1.5])], {"dtype": "int32"}, r"feature 'tokens' does not fit into one row"),
        ([np.zeros((1, 2)), np.zeros((1, 3))], {}, r"feature 'tokens' does not fit into one row"),
    ],
    ids=repr,
)
def test_what_cannot_be_packed_is_named(docs: list[Any], options: Any, message: str) -> None:
    packing = Packing(8, **options)
    items = [
        Item(i, len(doc["ids"] if "ids" in doc else doc) + packing.extra, doc)
        for i, doc in enumerate(docs)
    ]
    if isinstance(docs[-1], dict) and "ids" not in docs[-1]:
        items[-1] = Item(1, 1, docs[-1])
    with pytest.raises(DataError, match=message):
        packing.build(items)


@pytest.mark.parametrize("method", ["concat_split", "best_fit", "first_fit"])
def test_mappings_of_tokens_alone_are_packed_beside_arrays(method: Any) -> None:
    arrays = [np.full(size, size) for size in (3, 5, 4, 2)]
    mappings = [{"tokens": array} for array in arrays]
    expected = list(ps.from_sequence(arrays).pack(8, method))
    for docs in ([arrays[0], *mappings[1:]], [mappings[0], *arrays[1:3], mappings[3]]):
        rows = list(ps.from_sequence(docs).pack(8, method))
        assert [list(row) for row in rows] == [list(row) for row in expected]
        for row, right in zip(rows, expected, strict=True):
            assert all(np.array_equal(row[name], right[name]) for name in right)


def test_lengths_of_other_data_are_noticed() -> None:
    with pytest.raises(
        DataError,
        match=r"segment 2 of a row: the document has 2 tokens, but was measured as 4.*lengths",
    ):
        Packing(8).build([Item(0, 1, [1]), Part(Item(0, 0, [1, 2]), 0, 4)])
    with pytest.raises(DataError, match="has 3 tokens, but was measured as 2"):
        Packing(8).build([Item(0, 2, [1, 2, 3])])
    with pytest.raises(DataError, match="have 9 tokens, a row has room for 8"):
        Packing(8).build([Item(0, 9, [0] * 9)])


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ("text", "feature 'tokens' has type str"),
        (3, "feature 'tokens' has type int"),
        ({"text": "abc", "ids": [1]}, "feature 'text' has type str.*Tokenize.*unpacked="),
        ({}, "an empty document"),
        (np.array(3), "feature 'tokens' has type ndarray"),
    ],
    ids=repr,
)
def test_size_needs_a_sequence(sample: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Packing(8).size(sample)


def test_size_is_that_of_the_first_feature() -> None:
    doc = {"id": "abc", "ids": [1, 2], "mask": [1, 1]}
    assert (
        Packing(8, unpacked=("id",)).size(doc)
        == Packing(8, features=("mask", "ids"), unpacked=("id",)).size(doc)
        == 2
    )
    assert Packing(8, bos=1, eos=2).size([1, 2, 3]) == 3 and Packing(8, bos=1, eos=2).extra == 2
    with pytest.raises(DataError, match="no feature 'labels'"):
        Packing(8, features=("labels",)).size(doc)


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length must be a whole number of at least 1, not 0"),
        ({"length": 2.5}, "length must be"),
        (
            {"method": "greedy"},
            r"pack\(method='greedy'\): choose 'concat_split', 'first_fit' or 'best_fit'",
        ),
        (
            {"method": "first_fit", "long": "drop"},
            r"pack\(long='drop'\): choose 'split', 'error' or 'truncate'",
        ),
        ({"long": "truncate"}, "long='truncate' is for first_fit and best_fit"),
        ({"max_segments": 0}, "max_segments must be"),
        ({"method": "first_fit", "open_rows": 0}, "open_rows must be"),
        ({"open_rows": 4}, "open_rows is for first_fit and best_fit"),
        ({"method": "first_fit", "window": 9}, "window is for best_fit"),
        ({"method": "best_fit", "window": 0}, "window must be"),
        ({"features": "input_ids"}, "tuples of names"),
        ({"unpacked": "id"}, "tuples of names"),
        ({"features": ()}, "at least one feature"),
        ({"features": ("a",), "unpacked": ("a",)}, r"none of unpacked=\['a'\]"),
        ({"features": ("positions",)}, "which packing adds"),
        ({"features": ("a",), "pad": {"b": 0}}, "pad names 'b', which is not in features"),
        ({"eos": "</s>"}, "eos must be a number"),
        ({"pad": None}, "pad must be a number"),
        ({"bos": {"a": None}}, "bos must be a number"),
        ({"dtype": "int33"}, "dtype 'int33' is no NumPy dtype"),
        ({"dtype": {"a": "int33"}}, "dtype 'int33' is no NumPy dtype"),
    ],
    ids=repr,
)
def test_options_that_cannot_work_are_refused_by_name(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Packing(**{"length": 8, **options})


def test_packing_chooses_the_fold() -> None:
    assert Packing(8, max_segments=2).fold() == ConcatSplit(8, 2)
    assert Packing(8, "first_fit", long="truncate").fold() == FirstFit(8, 64, None, "truncate")
    assert Packing(8, "best_fit", open_rows=2, window=5).fold() == BestFit(8, 2, None, "split", 5)
    assert Packing(8, "best_fit").fold() == BestFit(8, overflow="split")
    assert Packing(8, "best_fit", rows=9).fold() == BestFit(8, overflow="split", rows=9)


def test_describe_tells_every_option_as_json() -> None:
    pad: Any = {"labels": np.int64(-100)}
    packing = Packing(8, features=("ids", "labels"), pad=pad, dtype=np.int32, eos=2)
    shown = packing.describe()
    assert through_json(shown) == shown
    assert isinstance(shown, dict)
    assert (shown["dtype"], shown["pad"], shown["features"]) == (
        "int32",
        {"labels": -100},
        ["ids", "labels"],
    )
    assert (
        Packing(8, dtype={"b": np.int16, "a": "<i4"}).describe()
        != Packing(8, dtype={"a": "<i4"}).describe()
    )


# ---------------------------------------------------------------- rebatch


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(1, 6), st.booleans())
def test_rebatch_cuts_rows_from_batches(sizes: list[int], n: int, drop: bool) -> None:
    total = sum(sizes)
    edges = np.cumsum([0, *sizes]).tolist()
    batches = [
        {"x": np.arange(a, b), "name": [str(i) for i in range(a, b)]} for a, b in pairwise(edges)
    ]
    fold = Rebatch(n, drop)
    carry, out = fold.init(0), list[Any]()
    for number, (size, batch) in enumerate(zip(sizes, batches, strict=True)):
        carry, groups = fold.step(carry, Item(number, size, batch))
        out += map(join_parts, groups)
    out += map(join_parts, fold.flush(carry))
    want = [
        list(range(a, min(a + n, total))) for a in range(0, total, n) if not drop or a + n <= total
    ]
    assert [batch["x"].tolist() for batch in out] == want
    assert [batch["name"] for batch in out] == [[str(i) for i in row] for row in want]


# ---------------------------------------------------------------- defects of other libraries


@pytest.mark.parametrize("method", ["concat_split", "first_fit", "best_fit"])
def test_easydata_greedy_packer_lost_all_but_the_last_pack(method: Any) -> None:
    # 30 tokens and EOS in rows of 8: 16 tokens were lost.
    rows = packed([np.arange(1, 31)], 8, method, eos=99)
    tokens = [token for row in rows for token in row["tokens"][row["segment_ids"] > 0].tolist()]
    assert tokens == [*range(1, 31), 99] and len(rows) == 4


@pytest.mark.parametrize("method", ["first_fit", "best_fit"])
@pytest.mark.parametrize("long", ["split", "truncate"])
def test_easydata_first_fit_packer_made_rows_longer_than_asked(method: Any, long: Any) -> None:
    # A document of 20 tokens in rows of 8 gave input_ids of 21 beside a mask of 8.
    for row in packed([np.arange(20)], 8, method, long=long, eos=99):
        assert {column.shape for column in row.values()} == {(8,)}


@pytest.mark.parametrize("method", ["concat_split", "first_fit", "best_fit"])
@pytest.mark.parametrize("factor", [1, 2, 3.5])
def test_easydata_tokens_are_conserved_around_multiples_of_a_row(
    method: Any, factor: float
) -> None:
    sizes = [int(8 * factor) + extra for extra in (-1, 0, 1)]
    rows = packed([np.full(size, i + 1) for i, size in enumerate(sizes)], 8, method)
    tokens = np.concatenate([row["tokens"] for row in rows])
    assert np.bincount(tokens, minlength=4)[1:].tolist() == sizes


@pytest.mark.parametrize("method", ["concat_split", "first_fit", "best_fit"])
def test_easydata_padding_got_a_segment_id(method: Any) -> None:
    for row in packed([[1, 2, 3], [4, 5, 6], [7, 8, 9]], 8, method, pad=0):
        assert ((row["segment_ids"] == 0) == (row["tokens"] == 0)).all()


@pytest.mark.parametrize("method", ["concat_split", "first_fit", "best_fit"])
def test_easydata_only_the_last_pack_had_a_mask(method: Any) -> None:
    rows = packed([np.arange(1, 6)] * 9, 8, method)
    assert (
        len(
            {
                tuple((name, column.shape, column.dtype) for name, column in row.items())
                for row in rows
            }
        )
        == 1
    )
    batch = collate(rows)
    assert batch["segment_ids"].shape == (len(rows), 8) and (batch["segment_ids"] > 0).sum() == 45


def test_easydata_segment_ids_start_again_in_every_row() -> None:
    for row in packed([np.arange(1, 6)] * 9, 8):
        assert sorted(set(row["segment_ids"].tolist()) - {0}) == list(
            range(1, row["segment_ids"].max() + 1)
        )


@pytest.mark.parametrize("method", ["first_fit", "best_fit"])
def test_grain_1000_attention_kernels_need_a_limit_of_segments(method: Any) -> None:
    for row in packed([[1]] * 20, 16, method, max_segments=3):
        assert row["segment_ids"].max() <= 3


@pytest.mark.parametrize("method", ["concat_split", "first_fit", "best_fit"])
def test_grain_the_last_rows_are_not_lost(method: Any) -> None:
    assert (
        sum(int((row["segment_ids"] > 0).sum()) for row in packed([[1, 2], [3]], 100, method)) == 3
    )


def test_grain_a_scalar_feature_is_named_not_broadcast() -> None:
    with pytest.raises(DataError, match="'weight' is a float"):
        packed([{"ids": [1, 2], "weight": 0.5}], 4)


def test_planned_rows_that_are_no_neighbours_are_built_together() -> None:
    """Behind a change of weights the next row may come from an earlier place of the plan, or from another plan."""
    from penstock.engine.packing.plan import PieceColumns, PlannedPieces

    def columns(first: int) -> PieceColumns:
        documents = [np.arange(4) + 10 * i for i in range(first, first + 3)]
        return PieceColumns(documents, np.zeros(3, np.int64), np.full(3, 4))

    one, other = columns(0), columns(3)
    for rows in (
        [PlannedPieces(one, 0, 1), PlannedPieces(one, 1, 2)],
        [PlannedPieces(one, 2, 3), PlannedPieces(one, 0, 1)],
        [PlannedPieces(one, 0, 1), PlannedPieces(other, 1, 2)],
    ):
        found = Packing(4).many(list(rows))
        assert [row["tokens"].tolist() for row in found] == [
            row[0].item.value.tolist() for row in rows
        ]


# ---------------------------------------------------------------- packs over several passes


@pytest.mark.parametrize("method", ["concat_split", "first_fit", "best_fit"])
def test_a3_packs_have_their_own_rows_in_every_pass(method: Any) -> None:
    sizes = np.random.default_rng(3).integers(1, 30, 90)
    store = ps.from_tokens(
        np.arange(sizes.sum()), np.concatenate([[0], np.cumsum(sizes)]), name="store"
    )
    ds = store.shuffle(seed=1).pack(64, method=method)
    passes, keys = list[list[bytes]](), list[list[tuple[str, int, int]]]()
    with ps.Loader(ds) as loader:
        for _ in range(5):
            passes.append([])
            for row in loader:
                passes[-1].append(row["tokens"].tobytes())
                keys.append(loader.keys())
    assert {len(rows) for rows in passes} == {len(ds)}
    assert len(set(map(tuple, passes))) == 5
    assert [row for rows in passes for row in rows] == [
        ds.repeat()[p]["tokens"].tobytes() for p in range(len(ds) * len(passes))
    ]
    assert keys == [[sample.key for sample in ds.plan.at(p)] for p in range(len(ds) * len(passes))]
    for epoch in range(5):
        mine = keys[epoch * len(ds) : (epoch + 1) * len(ds)]
        assert {key for row in mine for key in row} == {("store", epoch, i) for i in range(90)}
    assert ds.plan.find("store", 7, within=range(4 * len(ds), 5 * len(ds))) == [
        p for p in range(4 * len(ds), 5 * len(ds)) if ("store", 4, 7) in keys[p]
    ]


@examples(60)
@given(folds, st.lists(st.integers(0, 9), min_size=1, max_size=30), st.randoms())
def test_a_later_pass_is_made_to_have_as_many_rows(
    fold: Any, sizes: list[int], random: Any
) -> None:
    before = np.array(sizes)
    order = np.array(random.sample(range(len(sizes)), len(sizes)))
    first, own = plan_groups(fold, before, 3), plan_groups(fold, before[order], 3)
    made = adjust_group_count(own, before[order], first, before, fold)
    assert len(made) == len(first)
    for item in range(len(sizes)):
        mine = made.item == item
        assert int((made.stop - made.start)[mine].sum()) == int(
            (own.stop - own.start)[own.item == item].sum()
        )
    assert all(made.stop - made.start <= before[order][made.item])
    taken = np.add.reduceat(made.stop - made.start, made.bounds[:-1]) if len(made) else np.zeros(0)
    assert (taken <= limit(fold)).all()


def test_a_pass_of_other_lengths_gives_up_its_last_rows() -> None:
    first, own, fold = (
        plan_groups(FirstFit(4), [2, 2, 2]),
        plan_groups(FirstFit(4), [3, 3, 3]),
        FirstFit(4),
    )
    made = adjust_group_count(own, np.array([3, 3, 3]), first, np.array([2, 2, 2]), fold)
    assert made.item.tolist() == [0, 1] and made.bounds.tolist() == [0, 1, 2]
    with pytest.raises(
        ps.DataError, match="the first pass fills 3 rows, a later one of 1 documents cannot"
    ):
        adjust_group_count(
            plan_groups(FirstFit(4), [1]), np.array([1]), own, np.array([3, 3, 3]), fold
        )


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 5), st.integers(1, 60))
def test_a_pass_of_fewer_tokens_is_cut_into_as_many_rows(
    sizes: list[int], length: int, rows: int
) -> None:
    fold, lengths = ConcatSplit(length), np.array(sizes)
    own, first = plan_groups(fold, lengths), plan_groups(fold, [length] * rows)
    assume(len(own) < rows <= sum(sizes))
    made = adjust_group_count(own, lengths, first, np.full(rows, length), fold)
    assert len(made) == rows and (made.stop > made.start).all()
    given = [
        (i, t)
        for i, a, b in zip(made.item, made.start, made.stop, strict=True)
        for t in range(a, b)
    ]
    assert sorted(given) == [(i, t) for i, size in enumerate(sizes) for t in range(size)]


@pytest.mark.parametrize("method", ["first_fit", "best_fit"])
def test_rows_of_a_token_store_are_narrowed_where_they_fit(method: Any, tmp_path: Path) -> None:
    """Many rows at once are made elsewhere than one."""
    path = tmp_path / "tokens.npy"
    tokens, offsets = np.arange(69_990, 70_040, dtype=np.uint32), np.arange(0, 51, 5)
    np.save(path, tokens)
    mapped = np.load(path, mmap_mode="r")
    rows = ps.from_tokens(mapped, offsets).pack(10, method, dtype="int32").batch(5)
    assert sorted(np.concatenate([row["tokens"].reshape(-1) for row in rows])) == tokens.tolist()
    with pytest.raises(DataError, match="does not fit into uint16"):
        list(ps.from_tokens(mapped, offsets).pack(10, method, dtype="uint16").batch(5))
    with pytest.raises(
        ConfigError, match="the source 'data' holds the id 70039, which does not fit into uint16"
    ):
        ps.from_tokens(tokens, offsets).pack(10, method, dtype="uint16")
    low = ps.from_tokens(tokens - 69_990, offsets).pack(10, method, dtype="uint16").batch(5)
    found = np.concatenate([row["tokens"].reshape(-1) for row in low])
    assert found.dtype == np.uint16 and sorted(found) == list(range(50))


def test_documents_that_are_read_the_slower_way_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Documents whose places were unknown were read without a line in the log."""

    def broken(tokens: Any, indices: Any) -> Any:
        raise AttributeError("no concat_arrays")

    ds = ps.from_tokens(np.arange(400), np.arange(0, 401, 4)).shuffle(seed=1).pack(16)
    wanted = [row["tokens"].tolist() for row in ds]
    monkeypatch.setattr("penstock.sources.memory.Tokens.spans", broken)
    assert [row["tokens"].tolist() for row in ds] == wanted
    assert "no concat_arrays" in caplog.text


def test_a_text_before_the_tokens_is_named_not_measured(tmp_path: Path) -> None:
    pq.write_table(pa.table({"lang": ["de"] * 2, "ids": [[1, 2, 3], [4]]}), tmp_path / "a.parquet")
    for ds in (ps.read(tmp_path / "a.parquet"), ps.read(tmp_path / "a.parquet", lengths="ids")):
        with pytest.raises(
            ps.DataError, match="feature 'lang' (is a|has type) str.*name it in unpacked="
        ):
            next(iter(ds.pack(8)))


@pytest.mark.parametrize("method", ["concat_split", "first_fit", "best_fit"])
@pytest.mark.parametrize("bad", ["hello", 5, [[1, 2]]], ids=["text", "number", "two axes"])
def test_a_bad_document_is_named(method: Any, bad: Any) -> None:
    """The note named the first sample of the row, or none."""
    good = [{"ids": [1, 2, 3]} for _ in range(7)]
    ds = ps.from_sequence([*good, {"ids": bad}, *good], name="odd").pack(8, method=method)
    with pytest.raises(ps.DataError, match="feature 'ids' has") as caught:
        list(ps.Loader(ds, on_error="quarantine"))
    sample = "[7] (pass 0)" in caught.value.__notes__[-1]
    segment = (
        "segment" in str(caught.value) and "packed row that begins" in caught.value.__notes__[-1]
    )
    assert sample or segment


def test_the_first_sample_of_a_bad_batch_is_not_blamed() -> None:
    ds = ps.from_sequence([[1]] * 7 + [[1, 2]] + [[1]] * 8, name="odd").batch(4)
    with pytest.raises(ps.DataError, match="do not stack") as caught:
        list(ps.Loader(ds))
    (note,) = caught.value.__notes__
    assert "the batch or packed row that begins with sample odd[4] (pass 0);" in note
