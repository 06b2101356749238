"""Documents of several features, each with rows of a length of its own."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.errors import ConfigError, DataError
from penstock.testing import assert_resumes
from penstock.text import Padded
from penstock.types import Item

sizes_of_pairs = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=14)


def pairs(sizes: list[tuple[int, int]]) -> ps.Dataset:
    """Documents of two features of these sizes; every entry is a number of its own."""
    ends = np.cumsum([(0, 0), *sizes], axis=0).tolist()
    return ps.from_sequence(
        [
            {"a": np.arange(p + 1, q + 1), "b": -np.arange(r + 1, s + 1)}
            for (p, r), (q, s) in pairwise(ends)
        ]
    )


def end_to_end(
    sizes: list[tuple[int, int]], room: tuple[int, int]
) -> list[list[tuple[int, int, int]]]:
    """Rows as (document, entries of a, entries of b), piece by piece: until a feature is full."""
    rows, row, left = list[list[tuple[int, int, int]]](), list[tuple[int, int, int]](), [*room]
    for number, size in enumerate(sizes):
        todo = [*size]
        while True:
            take = [min(want, free) for want, free in zip(todo, left, strict=True)]
            done = take == todo
            if done or any(take):
                row.append((number, *take))  # type: ignore[arg-type]
                todo = [want - took for want, took in zip(todo, take, strict=True)]
                left = [free - took for free, took in zip(left, take, strict=True)]
            if done:
                break
            rows, row, left = [*rows, row], [], [*room]
    return [*rows, row] if row else rows


def together(
    sizes: list[tuple[int, int]], room: tuple[int, int], n: int, best: bool
) -> list[list[int]]:
    """Rows of whole documents: into the first open row, or the fullest, that has room; else all are given out."""
    out, rows = list[list[int]](), list[list[int]]()

    def left(row: list[int]) -> list[int]:
        return [free - sum(sizes[number][i] for number in row) for i, free in enumerate(room)]

    for number, size in enumerate(sizes):
        fits = [
            row
            for row in rows
            if all(want <= free for want, free in zip(size, left(row), strict=True))
        ]
        if not fits and len(rows) == n:
            out, rows = [*out, *rows], []
        if not fits:
            fits = [[]]
            rows.append(fits[0])
        (min(fits, key=lambda row: sum(left(row))) if best else fits[0]).append(number)
    return [*out, *rows]


def columns(row: dict[str, Any], name: str) -> list[list[int]]:
    return [row[part].tolist() for part in (name, f"{name}_segment_ids", f"{name}_positions")]


def built(pieces: list[list[int]], length: int, pad: int) -> list[list[int]]:
    """The columns of a feature, from its piece of every document of the row."""
    rest = length - sum(map(len, pieces))
    values = [value for piece in pieces for value in piece]
    ids = [segment for segment, piece in enumerate(pieces, 1) for _ in piece]
    places = [place for piece in pieces for place in range(len(piece))]
    return [values + [pad] * rest, ids + [0] * rest, places + [0] * rest]


@examples(100)
@given(sizes_of_pairs)
def test_end_to_end_until_a_feature_is_full(sizes: list[tuple[int, int]]) -> None:
    ds = pairs(sizes)
    docs, at = list(ds), [[0, 0] for _ in sizes]
    rows = list(ds.pack_features({"a": 5, "b": 3}, pad={"b": 7}))
    wanted = end_to_end(sizes, (5, 3))
    assert len(rows) == len(wanted)
    for row, pieces in zip(rows, wanted, strict=True):
        cut = {"a": list[list[int]](), "b": list[list[int]]()}
        for number, *takes in pieces:
            for i, (name, take) in enumerate(zip("ab", takes, strict=True)):
                cut[name].append(docs[number][name][at[number][i] : at[number][i] + take].tolist())
                at[number][i] += take
        assert columns(row, "a") == built(cut["a"], 5, 0) and columns(row, "b") == built(
            cut["b"], 3, 7
        )


@examples(100)
@given(sizes_of_pairs, st.integers(1, 4), st.booleans())
def test_whole_documents_go_where_all_features_fit(
    sizes: list[tuple[int, int]], n: int, best: bool
) -> None:
    ds = pairs(sizes)
    docs = list(ds)
    rows = list(
        ds.pack_features({"a": 8, "b": 5}, "best_fit" if best else "first_fit", open_rows=n)
    )
    wanted = together(sizes, (8, 5), n, best)
    assert len(rows) == len(wanted)
    for row, numbers in zip(rows, wanted, strict=True):
        for name, length in (("a", 8), ("b", 5)):
            assert columns(row, name) == built(
                [docs[number][name].tolist() for number in numbers], length, 0
            )


def test_alignment_lists_and_most_documents() -> None:
    docs = [
        {"a": [1, 2, 3], "b": [9], "name": "x"},
        {"a": [4], "b": [8], "name": "y"},
        {"a": [5], "b": [7], "name": "z"},
    ]
    ds = ps.from_sequence(docs, name="docs").with_source()
    rows = list(
        ds.pack_features(
            {"a": 8, "b": 2},
            "first_fit",
            align={"a": 4},
            unpacked=("name",),
            max_segments=2,
            pad=-1,
        )
    )
    assert rows[0]["a"].tolist() == [1, 2, 3, -1, 4, -1, -1, -1] and rows[0]["b"].tolist() == [9, 8]
    assert rows[0]["a_segment_ids"].tolist() == [1, 1, 1, 0, 2, 0, 0, 0]
    assert [row["name"] for row in rows] == [["x", "y"], ["z"]]
    assert rows[0]["__source__"] == ["docs", "docs"] and rows[1]["__index__"] == [2]


def test_it_resumes_batches_and_runs_in_lanes() -> None:
    ds = pairs([(i * 5 % 7, i * 3 % 5) for i in range(60)]).shuffle(seed=1)
    for method in ("concat_split", "first_fit", "best_fit"):
        batches = ds.pack_features({"a": 8, "b": 6}, method).batch(2)
        assert_resumes(lambda batches=batches: batches, steps=6, every=2)
        seen = [row["a"][row["a_segment_ids"] > 0].tolist() for row in ps.Loader(batches, lanes=4)]
        assert sorted(x for row in seen for x in row) == list(
            range(1, 1 + sum(i * 5 % 7 for i in range(60)))
        )


def test_settings_tell_pipelines_apart() -> None:
    ds = pairs([(1, 1)] * 9)
    given: Any = (
        (0, (), "first_fit", 1), (1, (), "first_fit", 1), (0, ("c",), "first_fit", 1), (0, (), "best_fit", 1),
        (0, (), "first_fit", 2), (0, (), "concat_split", 1),
    )  # fmt: skip
    made = [
        ds.pack_features({"a": 4, "b": 4}, pad=pad, unpacked=unpacked, method=method, align=align)
        for pad, unpacked, method, align in given
    ]
    assert len({str(each.tree.description()) for each in made}) == len(made)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": {}}, "give a length for each feature"),
        ({"lengths": 8}, "give a length for each feature"),
        ({"lengths": {"a": 0}}, r"pack_features\('a': 0\)"),
        ({"lengths": {"a": {"x": 1}}}, "whole number"),
        ({"method": "greedy"}, "choose 'concat_split', 'first_fit' or 'best_fit'"),
        ({"unpacked": "b"}, "must be a tuple of names"),
        ({"unpacked": ("a",)}, r"none of them in \['a'\]"),
        ({"pad": {"c": 1}}, r"pad names \['c'\], and the features are \['a'\]"),
        ({"align": {"a": 0}, "method": "best_fit"}, r"align=0"),
        ({"align": 2}, "for first_fit and best_fit"),
        ({"open_rows": 2}, "for first_fit and best_fit"),
        ({"open_rows": 0, "method": "first_fit"}, r"open_rows=0"),
        ({"max_segments": 0, "method": "first_fit"}, r"max_segments=0"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        pairs([(1, 1)]).pack_features(**{"lengths": {"a": 4}, **options})


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([{"a": [1, 2, 3, 4, 5]}], r"'a' has 5 entries, a row has room for 4"),
        ([{"b": [1]}], r"lacks \['a'\], it has \['b'\]"),
        ([{"a": [1], "b": [2]}], r"features \['b'\] have no length"),
        ([{"a": [1]}, {"a": [[1.5]]}], r"'a' is float64\[1, 1\]"),
        (
            [{"a": [2**53 + 1]}, {"a": [1.5]}],
            r"segment 1 of a row: feature 'a': 9007199254740993 .* is no float64",
        ),
        ([{"a": [True]}], "'a' cannot hold its padding -1"),
        (
            [{"a": [1]}, {"a": [2**31]}],
            "segment 2 of a row: feature 'a': 2147483648 does not fit into int32; pass dtype='",
        ),
        ([[1, 2]], "dicts of features, not a list"),
    ],
)
def test_documents_that_cannot_be_packed_are_named(documents: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(ps.from_sequence(documents).pack_features({"a": 4}, "first_fit", pad=-1))


def test_padding_of_numpy_is_held_to_the_dtype_too() -> None:
    wrong: list[Any] = [np.int64(-1), np.int64(300), 0.5]
    for pad in wrong:
        with pytest.raises(DataError, match=f"'a' cannot hold its padding {pad}"):
            list(
                ps.from_sequence([{"a": [1, 1]}]).pack_features(
                    {"a": 4}, "first_fit", pad=pad, dtype="uint8"
                )
            )


def test_single_integers_become_tokens_as_vectors_do() -> None:
    rows = list(
        ps.from_sequence([{"a": 3}, {"a": np.int64(4)}, {"a": np.array(5)}]).pack_features(
            {"a": 4}, "first_fit"
        )
    )
    assert [(row["a"].tolist(), row["a"].dtype) for row in rows] == [
        ([3, 4, 5, 0], np.dtype(np.int32))
    ]


TENSORS: dict[str, Any] = {
    "bfloat16": lambda torch: torch.ones(2).bfloat16(),
    "grad": lambda torch: torch.ones(2, requires_grad=True),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_that_numpy_cannot_read_are_named_with_their_source(kind: str) -> None:
    torch = pytest.importorskip("torch")
    samples: list[Any] = [
        {"ids": [1, 2], "x": torch.ones(2)},
        {"ids": [1, 2], "x": TENSORS[kind](torch)},
    ]
    data = ps.from_sequence(samples, name="docs")
    message = r"segment 2 of a row: feature 'x': a Tensor of torch.\w+ does not become a NumPy array .* in a map before"
    with pytest.raises(DataError, match=message) as caught:
        list(data.pack_features({"ids": 4, "x": 4}, "first_fit"))
    assert "docs[1]" in "".join(caught.value.__notes__)
    with pytest.raises(DataError, match="'x': a Tensor of torch"):
        list(data.pack(4, features=("ids", "x")))
    with pytest.raises(DataError, match="field 'x' of sample 1 in the batch: a Tensor of torch"):
        list(data.batch(2, collate=Padded()))
    [stacked] = data.map(lambda row: {"ids": [1], "x": row["x"].reshape(1, 2)}).batch(
        2, collate=Padded()
    )
    assert stacked["x"].shape == (2, 1, 2)  # what is not padded is left to torch


def test_features_of_files_whose_lengths_are_known_are_packed_as_they_are_read(
    tmp_path: Path,
) -> None:
    lists = [[*range(n)] for n in (3, 5, 2, 7, 4)]
    pq.write_table(pa.table({"ids": lists, "labels": lists}), tmp_path / "a.parquet")
    files = ps.read(tmp_path / "a.parquet", lengths="ids"), ps.read(tmp_path / "a.parquet")
    made = [ds.pack_features({"ids": 8, "labels": 8}) for ds in files]
    found, want = (
        [{name: column.tolist() for name, column in row.items()} for row in ds] for ds in made
    )
    assert found == want and sum(np.count_nonzero(row["ids_segment_ids"]) for row in want) == 21


def test_a_fold_that_reads_values_is_given_them(tmp_path: Path) -> None:
    class UpToEven:
        reads_values = True

        def init(self, key: int, /) -> Any:
            return []

        def step(self, carry: Any, item: Item, /) -> Any:
            return (
                ([], [[*carry, item]]) if len(item.value["ids"]) % 2 == 0 else ([*carry, item], [])
            )

        def flush(self, carry: Any, /) -> Any:
            return [carry] if carry else []

        def describe(self) -> Any:
            return "up to even"

    pq.write_table(pa.table({"ids": [[1], [1, 2], [3], [4, 5, 6]]}), tmp_path / "a.parquet")
    ds = ps.read(tmp_path / "a.parquet", lengths="ids").fold(
        UpToEven(), build=lambda rows: [len(x["ids"]) for x in rows]
    )
    assert list(ds) == [[1, 2], [1, 3]]
