"""Trees of arrays: leaves, rows of batches, collate."""

from __future__ import annotations

import re
import sys
import types
from collections import UserDict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.arrays.trees import (
    append_chunked,
    collate,
    iter_leaves,
    join_batches,
    leading_size,
    map_leaves,
    slice_batch,
)
from penstock.errors import DataError


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True)
class Sample:
    tokens: Any
    name: Any


def equal(a: Any, b: Any) -> bool:
    """Equal trees: same types, dtypes, shapes and values."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, Sample):
        return equal(a.tokens, b.tokens) and equal(a.name, b.name)
    return bool(a == b)


# ---------------------------------------------------------------- leaves


def test_map_leaves_keeps_the_shape() -> None:
    tree = {"a": 1, "b": (2, [3, Point(4, 5)]), "c": Sample(6, 7)}
    assert map_leaves(lambda x: x * 10, tree) == {
        "a": 10,
        "b": (20, [30, Point(40, 50)]),
        "c": Sample(60, 70),
    }
    assert tree["a"] == 1


def test_map_leaves_takes_strings_and_none_as_leaves() -> None:
    assert map_leaves(lambda x: [x], {"a": "text", "b": None}) == {"a": ["text"], "b": [None]}


def test_leaves_have_paths() -> None:
    found = dict(iter_leaves({"a": Sample(1, Point(2, 3)), "b": [4]}))
    assert found == {"a.tokens": 1, "a.name.x": 2, "a.name.y": 3, "b[0]": 4}


# ---------------------------------------------------------------- rows of batches


def test_leading_is_the_number_of_rows() -> None:
    assert (
        leading_size((np.zeros((3, 2)), {"name": ["a", "b", "c"]}, Point(np.zeros(3), np.zeros(3))))
        == 3
    )


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": np.zeros(3), "b": {"c": np.zeros(4)}}, r"'b\.c' has 4 rows, .*'a' has 3"),
        ({"a": np.zeros(3), "b": 7}, r"'b' is a int without a leading axis"),
        ({"a": np.zeros(())}, r"'a' is a ndarray without a leading axis"),
        ({"a": "text"}, r"'a' is a str without"),
        ({}, "without a single leaf"),
    ],
)
def test_leading_names_the_leaf_that_does_not_fit(tree: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        leading_size(tree)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.integers(1, 4))
def test_cut_and_join_are_inverse(counts: list[int], step: int) -> None:
    total = sum(counts)
    whole = {
        "x": np.arange(total * 2).reshape(total, 2),
        "y": Point([str(i) for i in range(total)], np.arange(total)),
    }
    bounds = np.cumsum([0, *counts]).tolist()
    pieces = [slice_batch(whole, a, b) for a, b in pairwise(bounds)]
    assert [leading_size(piece) for piece in pieces] == counts
    assert equal(join_batches(pieces), whole)
    assert equal(
        join_batches([slice_batch(whole, i, i + step) for i in range(0, max(total, 1), step)]),
        whole,
    )


def test_cut_copies_nothing() -> None:
    batch = {"x": np.arange(6)}
    assert np.shares_memory(slice_batch(batch, 1, 3)["x"], batch["x"])


def test_join_takes_keys_in_any_order() -> None:
    a, b = {"x": np.ones(1), "y": np.zeros(1)}, {"y": np.zeros(1), "x": np.ones(1)}
    assert join_batches([a, b])["x"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("trees", "message"),
    [
        (
            [{"a": {"x": np.ones(1)}}, {"a": {"y": np.ones(1)}}],
            r"'a' has the fields x in one batch, the fields y",
        ),
        (
            [{"a": {"x": np.ones(1)}}, {"a": np.ones(1)}],
            r"'a' has the fields x in one batch, no container in another",
        ),
        ([{"a": np.ones((1, 2))}, {"a": np.ones((1, 3))}], r"'a' cannot be joined"),
    ],
)
def test_join_names_what_differs(trees: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        join_batches(trees)


# ---------------------------------------------------------------- collate


@pytest.mark.parametrize(
    ("samples", "batch"),
    [
        ([1, 2], np.array([1, 2], np.int64)),
        ([1.5, 2.0], np.array([1.5, 2.0])),
        ([1, 2.5], np.array([1.0, 2.5])),
        ([True, False], np.array([True, False])),
        ([np.float32(1), np.float32(2)], np.array([1, 2], np.float32)),
        ([np.zeros((2, 3), np.uint8)] * 4, np.zeros((4, 2, 3), np.uint8)),
        ([np.array(1), np.array(2)], np.array([1, 2])),
        ([np.zeros(0), np.zeros(0)], np.zeros((2, 0))),
        ([[1, 2], [3, 4]], np.array([[1, 2], [3, 4]])),
        ([[[1], [2]], [[3], [4]]], np.array([[[1], [2]], [[3], [4]]])),
        ([[np.ones(2)], [np.ones(2)]], np.ones((2, 1, 2))),
        (["a", "bcd"], ["a", "bcd"]),
        ([b"a", b"b"], [b"a", b"b"]),
        ([None, None], [None, None]),
        ([None, "a"], [None, "a"]),
        ([["a"], ["b", "c"]], [["a"], ["b", "c"]]),
        ([[1, "a"], [2, "b"]], [[1, "a"], [2, "b"]]),
        ([[{"role": "user"}], []], [[{"role": "user"}], []]),
        ([2**70, 1], [2**70, 1]),
        ([np.str_("a"), np.str_("b")], [np.str_("a"), np.str_("b")]),
        ([(1, "a"), (2, "b")], (np.array([1, 2]), ["a", "b"])),
        ([Point(1, [2]), Point(3, [4])], Point(np.array([1, 3]), np.array([[2], [4]]))),
        ([Sample(np.ones(2), "a")] * 2, Sample(np.ones((2, 2)), ["a", "a"])),
        ([{"a": {"b": 1}}, {"a": {"b": 2}}], {"a": {"b": np.array([1, 2])}}),
        ([{"a": 1, "b": 2}, {"b": 4, "a": 3}], {"a": np.array([1, 3]), "b": np.array([2, 4])}),
        ([UserDict(a=1), {"a": 2}], {"a": np.array([1, 2])}),
        ([{}, {}], {}),
        ([(), ()], ()),
    ],
    ids=repr,
)
def test_collate(samples: list[Any], batch: Any) -> None:
    assert equal(collate(samples), batch)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (
            [{"a": {"b": np.zeros(3)}}, {"a": {"b": np.zeros(5)}}],
            r"'a\.b' has shapes \(3,\), \(5,\).*pad.*pack.*collate=list",
        ),
        ([{"x": [1, 2]}, {"x": [1]}], r"'x' has shapes \(2,\), \(1,\)"),
        ([[1, 2], []], r"the batch has shapes \(2,\), \(0,\)"),
        ([{"a": 1, "b": 1}, {"a": 1}], r"sample 1 in the batch lacks 'b'"),
        ([{"a": 1}, {"a": 1, "c": 1}], r"sample 1 in the batch has also 'c'"),
        ([{"a": 1}, {"b": 1}], r"lacks 'a' and has also 'b'"),
        ([{"a": (1, 2)}, {"a": (1,)}], r"'a' has 2 entries in one sample, 1 in another"),
        ([{"a": 1}, {"a": None}], r"'a' mixes NoneType and int"),
        ([{"a": None}, {"a": 1}], r"'a' mixes NoneType and int"),
        ([1, "a"], r"mixes int and str"),
        ([{"a": ({"b": np.ones(1)},)}, {"a": ({"b": 2},)}], r"'a\[0\]\.b' mixes int and ndarray"),
        ([1, [2]], r"mixes int and list"),
        ([(1, 2), Point(1, 2)], r"mixes Point and tuple"),
        ([], "no samples"),
    ],
    ids=repr,
)
def test_collate_names_the_field_that_does_not_fit(samples: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        collate(samples)


def test_collate_never_gives_an_array_of_objects() -> None:
    # EasyDeL makes dtype=object arrays of ragged token lists, which fail far from their cause.
    with pytest.raises(DataError, match="input_ids"):
        collate([{"input_ids": [1, 2, 3]}, {"input_ids": [1]}])


def test_collate_never_truncates_strings() -> None:
    assert collate([{"s": "a"}, {"s": "a much longer one"}]) == {"s": ["a", "a much longer one"]}


def test_collate_copies_arrays() -> None:
    samples = [np.zeros(2), np.zeros(2)]
    collate(samples)[:] = 1
    assert samples[0].sum() == 0


scalars = st.one_of(st.integers(-(2**60), 2**60), st.floats(allow_nan=False), st.booleans())


@given(
    st.lists(
        st.fixed_dictionaries({"a": scalars, "b": st.tuples(st.text(), st.integers(0, 9))}),
        min_size=1,
        max_size=8,
    )
)
def test_a_row_of_a_batch_is_its_sample(samples: list[dict[str, Any]]) -> None:
    given = [sample["a"] for sample in samples]
    if float in map(type, given) and any(
        type(value) is int and abs(value) > 2**53 for value in given
    ):
        with pytest.raises(DataError, match="is no float64"):
            collate(samples)
        return
    batch = collate(samples)
    assert leading_size(batch) == len(samples)
    for i, sample in enumerate(samples):
        row = slice_batch(batch, i, i + 1)
        assert row["a"][0].item() == sample["a"]
        assert (row["b"][0][0], row["b"][1][0]) == sample["b"]


# ---------------------------------------------------------------- torch, without torch


class Tensor:
    """A stand-in for a tensor with the attributes that collate, leading and join use."""

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)
        self.shape, self.dtype = self.array.shape, self.array.dtype

    def __getitem__(self, rows: slice) -> Tensor:
        return Tensor(self.array[rows])


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = types.ModuleType("torch")
    module.Tensor = Tensor
    module.stack = lambda tensors: Tensor(np.stack([t.array for t in tensors]))
    module.cat = lambda tensors: Tensor(np.concatenate([t.array for t in tensors]))
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


@pytest.mark.usefixtures("torch")
def test_tensors_are_stacked_cut_and_joined() -> None:
    batch = collate([{"x": Tensor([1, 2])}, {"x": Tensor([3, 4])}])
    assert isinstance(batch["x"], Tensor) and batch["x"].array.tolist() == [[1, 2], [3, 4]]
    assert leading_size(batch) == 2
    back = join_batches([slice_batch(batch, 0, 1), slice_batch(batch, 1, 2)])
    assert back["x"].array.tolist() == [[1, 2], [3, 4]]


@pytest.mark.usefixtures("torch")
def test_ragged_tensors_are_named() -> None:
    with pytest.raises(DataError, match=r"'x' has shapes \(2,\), \(1,\)"):
        collate([{"x": Tensor([1, 2])}, {"x": Tensor([3])}])
    with pytest.raises(DataError, match=r"mixes Tensor and int"):
        collate([Tensor([1]), 3])
    with pytest.raises(DataError, match="without a leading axis"):
        leading_size(Tensor(1))


def test_torch_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    collate([{"x": np.ones(2), "s": "a", "o": object()}] * 2)
    assert "torch" not in sys.modules


def test_real_tensors() -> None:
    torch = pytest.importorskip("torch")
    batch = collate([torch.ones(2), torch.zeros(2)])
    assert torch.equal(batch, torch.tensor([[1.0, 1.0], [0.0, 0.0]]))


# ---------------------------------------------------------------- grown


@given(st.integers(1, 5), st.integers(0, 30))
def test_grown_appends_and_changes_nothing(width: int, count: int) -> None:
    chunks = list[list[int]]()
    for i in range(count):
        before = [list(chunk) for chunk in chunks]
        after = append_chunked(chunks, i, width)
        assert chunks == before
        chunks = after
    assert [x for chunk in chunks for x in chunk] == list(range(count))
    assert all(len(chunk) == width for chunk in chunks[:-1])


MASKED = np.ma.masked_equal([1, 0, 3], 0)


@pytest.mark.parametrize("value", [MASKED, MASKED[1], np.ma.masked_equal(0, 0), [MASKED]])
def test_masked_arrays_do_not_lose_their_mask_in_a_batch(value: Any) -> None:
    """Their masked values came as if they were given."""
    plain = (
        np.asarray(value) if isinstance(value, np.ndarray) else [np.asarray(each) for each in value]
    )
    for samples in ([value, value], [{"x": plain}, {"x": value}]):
        with pytest.raises(
            ps.DataError, match=r"sample [01] in the batch: a masked array would lose its mask"
        ):
            collate(samples)
    with pytest.raises(ps.DataError, match="lose its mask"):
        join_batches([{"x": np.ma.stack([MASKED, MASKED])}, {"x": np.zeros((1, 3), np.int64)}])


@pytest.mark.filterwarnings("ignore:Warning. converting a masked element")
def test_masked_numbers_of_a_list_do_not_become_nan() -> None:
    for numbers in ([1.5, np.ma.masked], [1, np.ma.masked]):
        with pytest.raises(ps.DataError, match="lose its mask"):
            collate([{"x": numbers}, {"x": [1.5, 2.5]}])


def test_masked_arrays_do_not_lose_their_mask_elsewhere() -> None:
    documents = ps.from_sequence([np.arange(3), MASKED])
    for ds in (
        documents.pack(8),
        documents.pack(8, "best_fit"),
        documents.map(named).pack_features({"x": 8}),
    ):
        with pytest.raises(ps.DataError, match=r"segment [12] .*lose its mask"):
            list(ds)
    for collate_rows in (ps.pad({"x": 0}), ps.jagged("x")):
        with pytest.raises(ps.DataError, match="lose its mask"):
            list(documents.map(named).batch(2, collate=collate_rows))
    for make in (ps.from_sequence, lambda array: ps.from_tokens(array, [0, 3])):
        with pytest.raises(ps.ConfigError, match="lose its mask"):
            make(MASKED)
    for made in ({"x": MASKED}, MASKED):
        with pytest.raises(ps.ConfigError, match="gave a masked array"):
            ps.from_sequence(range(3)).map(lambda _, made=made: made, batched=3)[0:3].batch(3)[0]
    kept = next(iter(documents.skip(1).batch(1, collate=list)))[0]
    assert kept.mask.tolist() == [False, True, False]


def named(array: Any) -> dict[str, Any]:
    return {"x": array}


def test_no_field_of_a_record_and_no_bytes_become_others_in_a_batch() -> None:
    whole, real = np.dtype([("a", "i8")]), np.dtype([("a", "f8")])
    for samples in (
        [np.array([(2**53 + 1,)], whole), np.array([(0.5,)], real)],
        [np.array([b"a"]), np.array(["a"])],
    ):
        with pytest.raises(DataError, match="have no common dtype"):
            collate(samples)


def test_keys_that_are_spelled_alike_are_not_joined() -> None:
    with pytest.raises(DataError, match="texts are equal"):
        join_batches([{1: np.arange(2), "1": np.arange(3, 5)}] * 2)


def test_tensors_that_do_not_join_are_errors() -> None:
    torch = pytest.importorskip("torch")
    dense = torch.ones(1)
    small = torch.ones(1, dtype=torch.float8_e4m3fn)
    for samples in (
        [dense.to_sparse(), dense],
        [small, dense],
        [torch.ones(1, dtype=torch.uint64), torch.arange(1)],
    ):
        with pytest.raises(DataError, match="do not stack"):
            collate(samples)
    with pytest.raises(DataError, match="tensors beside arrays"):
        join_batches([torch.arange(1), np.arange(1)])


@pytest.mark.parametrize(
    ("samples", "remedy"),
    [
        ([{"ids": [1]}, {"ids": [1, 2]}], "collate=ps.pad({'ids': 0}), use"),
        ([{"f": np.zeros((1, 4))}, {"f": np.zeros((2, 4))}], "collate=ps.pad({'f': 0}), use"),
        ([[1], [1, 2]], ".map(lambda x: {'x': x}) and collate=ps.pad({'x': 0}), use"),
        ([{"a": {"b": [1]}}, {"a": {"b": [1, 2]}}], "with a map before"),
        ([([1], 0), ([1, 2], 0)], "with a map before"),
        ([np.zeros((2, 4)), np.zeros((2, 5))], "with a map before"),
    ],
)
def test_ragged_samples_name_a_call_that_pads_them(samples: list[Any], remedy: str) -> None:
    with pytest.raises(DataError, match=re.escape(remedy)):
        collate(samples)
    if remedy.startswith("collate="):
        (name,) = samples[0]
        assert len(ps.from_sequence(samples).batch(2, collate=ps.pad({name: 0}))[0][name]) == 2
    elif remedy.startswith(".map"):
        mapped = ps.from_sequence(samples).map(lambda x: {"x": x})
        assert len(mapped.batch(2, collate=ps.pad({"x": 0}))[0]["x"]) == 2


def test_samples_that_are_nested_too_deeply_are_an_error_of_ours() -> None:
    sample: Any = 1
    for _ in range(2000):
        sample = {"a": sample}
    with pytest.raises(DataError, match="nested too deeply to be stacked: flatten them"):
        collate([sample, sample])


@pytest.mark.parametrize("other", [[None, None], ["a", "b"], [[1], [2]], np.arange(2)])
@pytest.mark.parametrize("container", [{"x": [1, 2], "y": [3, 4]}, (np.arange(2), np.arange(2))])
@pytest.mark.parametrize("reverse", [False, True])
def test_rows_beside_a_container_are_not_joined(other: Any, container: Any, reverse: bool) -> None:
    trees = [{"meta": other}, {"meta": container}]
    with pytest.raises(ps.DataError, match=r"'meta' has .* in one batch, .* in another; give"):
        join_batches(trees[::-1] if reverse else trees)
