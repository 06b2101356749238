"""Grain's packing on Penstock: several features with lengths of their own, which rows come when, and resuming."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock.compat.grain as grain
from example_counts import examples
from penstock.errors import ConfigError, DataError
from penstock.testing import assert_resumes

ex = grain.experimental


def docs(sizes: list[tuple[int, int]], order: Any = "penstock") -> grain.IterDataset:
    """Pairs of sequences of these sizes; every value says which element it belongs to."""
    elements = [{"a": np.full(m, i + 1), "b": np.full(n, -i - 1)} for i, (m, n) in enumerate(sizes)]
    return grain.MapDataset.source(elements, order=order).to_iter_dataset()


def lists(row: dict[str, Any], *names: str) -> list[list[int]]:
    return [row[name].tolist() for name in names]


def whole(kind: Any, ds: grain.IterDataset, **options: Any) -> list[dict[str, Any]]:
    given: dict[str, Any] = {
        "length_struct": {"a": 6, "b": 4},
        "num_packing_bins": 2,
        "shuffle_bins": False,
    }
    return list(kind(ds, **{**given, **options}))


def test_each_feature_has_a_length_of_its_own() -> None:
    rows = whole(ex.FirstFitPackIterDataset, docs([(2, 3), (3, 1), (1, 1)]))
    assert [lists(row, "a", "b") for row in rows] == [
        [[1, 1, 2, 2, 2, 0], [-1, -1, -1, -2]],
        [[3, 0, 0, 0, 0, 0], [-3, 0, 0, 0]],
    ]
    assert lists(rows[0], "a_segment_ids", "a_positions", "b_segment_ids", "b_positions") == [
        [1, 1, 2, 2, 2, 0], [0, 1, 0, 1, 2, 0], [1, 1, 1, 2], [0, 1, 2, 0]]  # fmt: skip


def test_where_an_element_goes() -> None:
    sizes = [(2, 1), (5, 1), (1, 1), (6, 4), (1, 1)]
    first = whole(ex.FirstFitPackIterDataset, docs(sizes))
    best = whole(ex.BestFitPackIterDataset, docs(sizes))
    assert [row["a"].max() for row in first] == [3, 2, 4, 5] and [
        row["a"].max() for row in best
    ] == [1, 3, 4, 5]
    few = whole(ex.FirstFitPackIterDataset, docs([(1, 1)] * 5), max_sequences_per_bin=1)
    assert [row["a"][0] for row in few] == [1, 2, 3, 4, 5]


def test_alignment_padding_and_lists() -> None:
    ds = grain.MapDataset.source(
        [{"a": [1, 2, 3], "n": 7, "name": "x"}, {"a": [4], "n": 8, "name": "y"}]
    )
    [row] = ex.FirstFitPackIterDataset(
        ds.to_iter_dataset(), length_struct={"a": 6, "n": 3}, num_packing_bins=1, meta_features=["n", "name"],
        pack_alignment_struct={"a": 4, "n": 1}, padding_struct={"a": -1, "n": 0})  # fmt: skip
    assert list(row) == ["a", "a_segment_ids", "a_positions", "n", "name"] and row["name"] == [
        "x",
        "y",
    ]
    assert lists(row, "a", "a_segment_ids", "n") == [
        [1, 2, 3, -1, 4, -1],
        [1, 1, 1, 0, 2, 0],
        [7, 8, 0],
    ]


def test_features_with_more_axes() -> None:
    ds = grain.MapDataset.source([{"v": np.ones((2, 3), np.float32)}] * 2).to_iter_dataset()
    [row] = ex.FirstFitPackIterDataset(ds, length_struct={"v": 5}, num_packing_bins=1)
    assert row["v"].shape == (5, 3) and row["v"].dtype == np.float32 and row["v"].sum() == 12


@pytest.mark.parametrize("order", ["penstock", "grain"])
def test_rows_are_shuffled_among_those_that_come_together(order: Any) -> None:
    ds = docs([(6, 1)] * 40, order)
    given: dict[str, Any] = {"length_struct": {"a": 6, "b": 4}, "num_packing_bins": 8}
    plain = [row["a"][0] for row in ex.FirstFitPackIterDataset(ds, seed=3, **given)]
    assert (
        plain
        != list(range(1, 41))
        != [row["a"][0] for row in ex.FirstFitPackIterDataset(ds, seed=4, **given)]
    )
    groups = [plain[i : i + 8] for i in range(0, 40, 8)]
    assert [sorted(group) for group in groups] == [list(range(i, i + 8)) for i in range(1, 41, 8)]
    assert (
        len({tuple(value - group[0] for value in group) for group in groups}) > 1
    )  # a new order every time
    grouped = ex.FirstFitPackIterDataset(ds, shuffle_bins_group_by_feature="a", **given)
    assert [row["a"][0] for row in grouped] == list(range(1, 41))


def test_shuffled_rows_in_grains_order() -> None:
    ds = docs([(6, 1)] * 5, "grain")
    rows = ex.FirstFitPackIterDataset(
        ds, length_struct={"a": 6, "b": 4}, num_packing_bins=5, seed=7
    )
    assert [row["a"][0] - 1 for row in rows] == np.random.default_rng(7).permuted(range(5)).tolist()


# ---------------------------------------------------------------- end to end


def split(ds: grain.IterDataset, **options: Any) -> list[dict[str, Any]]:
    return list(ex.ConcatThenSplitIterDataset(ds, **{"length_struct": {"a": 4, "b": 4}, **options}))


def test_the_feature_that_is_full_ends_the_row() -> None:
    rows = split(docs([(3, 1), (3, 2), (1, 1)]))
    assert [lists(row, "a", "b") for row in rows] == [
        [[1, 1, 1, 2], [-1, -2, -2, 0]],
        [[2, 2, 3, 0], [-3, 0, 0, 0]],
    ]
    assert rows[1]["a_segment_ids"].tolist() == [1, 1, 2, 0] and rows[1][
        "b_segment_ids"
    ].tolist() == [2, 0, 0, 0]


def test_meta_features_are_whole_in_every_piece() -> None:
    rows = split(docs([(3, 1), (9, 2)]), meta_features=["b"])
    assert [row["b"].tolist() for row in rows] == [[-1, -2, -2, 0], [-2, -2, 0, 0], [-2, -2, 0, 0]]
    assert "b_positions" not in rows[0]
    rows = split(
        docs([(1, 3), (1, 3)]), meta_features=["b"]
    )  # a full meta feature ends a row as well
    assert [lists(row, "a", "b") for row in rows] == [
        [[i, 0, 0, 0], [-i, -i, -i, 0]] for i in (1, 2)
    ]
    with pytest.raises(DataError, match=r"'b' has 5 entries.*room for 4"):
        split(docs([(1, 5)]), meta_features=["b"])


def test_full_sequences_keep_a_row_of_their_own() -> None:
    ds = docs([(3, 1), (4, 1), (2, 1)])
    kept = split(ds, split_full_length_features=False)
    assert [row["a"].tolist() for row in kept] == [[1, 1, 1, 3], [2, 2, 2, 2], [3, 0, 0, 0]]
    assert [row["a"].tolist() for row in split(ds)] == [[1, 1, 1, 2], [2, 2, 2, 3], [3, 0, 0, 0]]


@examples(60)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12),
    st.booleans(),
)
def test_every_token_once_and_in_order(sizes: list[tuple[int, int]], keep: bool) -> None:
    rows = split(docs(sizes), length_struct={"a": 5, "b": 3}, split_full_length_features=not keep)
    for name, sign, at in (("a", 1, 0), ("b", -1, 1)):
        tokens = [int(v) for row in rows for v in row[name][row[f"{name}_segment_ids"] > 0]]
        want = [sign * (i + 1) for i, size in enumerate(sizes) for _ in range(size[at])]
        assert sorted(tokens) == sorted(want)
        if not keep:
            assert tokens == want
        for row in rows:
            pieces = row[f"{name}_segment_ids"].tolist()
            places = row[f"{name}_positions"].tolist()
            assert all(p == 0 for p, s in zip(places, pieces, strict=True) if s == 0)
            assert all(
                q == p + 1
                for (s, p), (t, q) in pairwise(zip(pieces, places, strict=True))
                if s == t != 0
            )


# ---------------------------------------------------------------- resuming, failures


def kinds(sizes: list[tuple[int, int]]) -> Iterator[Any]:
    lengths: Any = {"length_struct": {"a": 6, "b": 5}}
    for order in ("penstock", "grain"):
        yield lambda o=order: ex.FirstFitPackIterDataset(
            docs(sizes, o), num_packing_bins=3, **lengths
        )
        yield lambda o=order: ex.BestFitPackIterDataset(
            docs(sizes, o), num_packing_bins=4, **lengths
        )
    yield lambda: ex.ConcatThenSplitIterDataset(docs(sizes), **lengths)
    yield lambda: ex.ConcatThenSplitIterDataset(
        docs(sizes), meta_features=["b"], split_full_length_features=False, **lengths
    )


@pytest.mark.slow
@pytest.mark.parametrize("which", range(6))
def test_resumes_in_the_middle_of_rows(which: int) -> None:
    sizes = [(i * 5 % 7, i * 3 % 6) for i in range(40)]
    if which < 4:
        sizes = [(min(a, 6), b) for a, b in sizes]
    assert_resumes([*kinds(sizes)][which], at_most=4)


def test_what_cannot_be_packed() -> None:
    ds = docs([(2, 2)])
    for wrong in (
        {"length_struct": {}}, {"length_struct": {"a": 0}}, {"length_struct": {"a": {"x": 3}}}, {"num_packing_bins": 0},
        {"max_sequences_per_bin": 0}, {"pack_alignment_struct": {"a": 2}}, {"padding_struct": {"c": 1}},
        {"shuffle_bins_group_by_feature": "c"}, {"pack_alignment_struct": {"a": 2, "b": 0}},
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            whole(ex.FirstFitPackIterDataset, ds, **wrong)
    with pytest.raises(DataError, match=r"'a' has 7 entries, a row has room for 6"):
        whole(ex.FirstFitPackIterDataset, docs([(7, 1)]))
    with pytest.raises(DataError, match=r"lacks \['c'\]"):
        whole(ex.FirstFitPackIterDataset, ds, length_struct={"a": 6, "c": 4})
    with pytest.raises(DataError, match=r"features \['b'\] have no length"):
        split(ds, length_struct={"a": 4})
    with pytest.raises(ConfigError, match="leave out at least one"):
        split(ds, meta_features=["a", "b"])
    mixed = grain.MapDataset.source(
        [{"a": np.ones(2, np.int64)}, {"a": np.ones(2)}]
    ).to_iter_dataset()
    with pytest.raises(DataError, match=r"'a' is float64\[2\].*int64"):
        whole(ex.FirstFitPackIterDataset, mixed, length_struct={"a": 6})
    with pytest.raises(DataError, match="dicts of features"):
        whole(ex.FirstFitPackIterDataset, grain.MapDataset.range(3).to_iter_dataset())
