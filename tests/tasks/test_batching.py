"""Batches of values: NumPy arrays and torch tensors give the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.tasks import (
    Batch,
    CaptioningSample,
    batch_list,
    batch_pad_stack,
    batch_stack,
    concat_pad,
    edataclass,
    generic_batch,
    generic_concat,
    homogeneous_concat_mix,
)

shapes = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 3)), min_size=1, max_size=5)


@given(shapes)
def test_padding_keeps_every_value_and_adds_zeros_only(found: list[tuple[int, int]]) -> None:
    arrays = [np.arange(1, a * b + 1).reshape(a, b) for a, b in found]
    out = batch_pad_stack(arrays)
    assert out.shape == (len(found), max(a for a, _ in found), max(b for _, b in found))
    for row, array in zip(out, arrays, strict=True):
        assert (row[: array.shape[0], : array.shape[1]] == array).all()
        assert row.sum() == array.sum()
    assert (batch_pad_stack([torch.from_numpy(array) for array in arrays]).numpy() == out).all()


@given(shapes)
def test_concat_pad_puts_rows_one_behind_the_other(found: list[tuple[int, int]]) -> None:
    arrays = [np.arange(1, a * b + 1).reshape(a, b) for a, b in found]
    out = concat_pad(arrays)
    assert out.shape == (sum(a for a, _ in found), max(b for _, b in found))
    at = 0
    for array in arrays:
        assert (out[at : at + len(array), : array.shape[1]] == array).all()
        at += len(array)
    assert out.sum() == sum(array.sum() for array in arrays)
    assert (concat_pad([torch.from_numpy(array) for array in arrays]).numpy() == out).all()


def test_dtypes_stay() -> None:
    assert batch_stack([np.zeros(2, np.uint8)]).dtype == np.uint8
    assert (
        batch_pad_stack(
            [torch.zeros(1, dtype=torch.float16), torch.zeros(2, dtype=torch.float16)]
        ).dtype
        is torch.float16
    )
    assert concat_pad([np.zeros((1, 1), np.int8), np.zeros((1, 2), np.int8)]).dtype == np.int8


@pytest.mark.parametrize(
    ("fn", "values", "said"),
    [
        (batch_stack, [np.zeros(2), np.zeros(3)], "batch_pad_stack"),
        (batch_stack, ["a"], "a str among the values"),
        (batch_pad_stack, [np.zeros(2), np.zeros((2, 2))], "numbers of axes differ"),
        (concat_pad, [np.zeros(2), np.zeros((2, 2))], "number of axes"),
        (concat_pad, [np.zeros(())], "number of axes"),
        (generic_batch, [{"a": 1}, {"b": 1}], "different keys"),
    ],
)
def test_what_cannot_be_batched_is_refused(fn: Any, values: list[Any], said: str) -> None:
    with pytest.raises(ps.DataError, match=said):
        fn(values)


class Pair(NamedTuple):
    x: Any
    name: str


@dataclass
class Plain:
    x: Any
    names: list[str]


def test_generic_batch_goes_into_records_and_lists_the_rest() -> None:
    pair = generic_batch([Pair(np.array([1]), "a"), Pair(np.array([1, 2]), "b")])
    assert (
        isinstance(pair, Pair) and pair.x.tolist() == [[1, 0], [1, 2]] and pair.name == ["a", "b"]
    )
    assert generic_batch([1, 2]) == [1, 2] and generic_batch([None, np.zeros(1)])[0] is None
    assert generic_batch([{}, {}]) == {} and batch_list(("a", 1)) == ["a", 1]


def test_concatenated_lists_are_flat() -> None:
    # One list of captions, not a list of lists.
    first, second = Plain(np.zeros((1, 2)), ["a"]), Plain(np.ones((1, 3)), ["b"])
    mixed = homogeneous_concat_mix([first, second])
    assert mixed.names == ["a", "b"] and mixed.x.tolist() == [[0, 0, 0], [1, 1, 1]]
    assert generic_concat([0.2, 0.8]) == [0.2, 0.8]
    with pytest.raises(ps.ConfigError, match="Pair and Plain"):
        homogeneous_concat_mix([first, Pair(1, "a")])


@edataclass
class Captions(Batch):
    image: Any
    caption: list[str]


def test_batches_made_of_samples_are_stacked() -> None:
    # `from_samples` of some peers leaves tensors in lists.
    samples = [
        CaptioningSample(
            __key__=key, __restore_key__=("s", 0, i), image=torch.ones(1, i + 1), caption=key
        )
        for i, key in enumerate("ab")
    ]
    batch = Captions.from_samples(samples)
    assert (
        batch.image.shape == (2, 1, 2)
        and batch.caption == ["a", "b"]
        and batch.__key__ == ["a", "b"]
    )
    assert batch.__restore_key__ == (("s", 0, 0), ("s", 0, 1)) and batch.__sources__ is None
    assert Captions.from_samples(samples, caption=["x", "y"]).caption == ["x", "y"]
    both = homogeneous_concat_mix([batch, batch])
    assert both.__key__ == ["a", "b", "a", "b"] and len(both.__restore_key__) == 4
