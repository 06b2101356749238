"""Lengths that are not held: indexed like the array that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from penstock.engine.base.sizes import (
    ConcatenatedLengths,
    DerivedLengths,
    EndOffsetLengths,
    LengthsByIndex,
    OffsetLengths,
    sum_lengths,
)

SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=12)


@examples(60)
@given(SIZES, SIZES, st.data())
def test_all_are_indexed_like_arrays(one: list[int], two: list[int], data: st.DataObject) -> None:
    first, second = np.asarray(one), np.asarray(two)
    spans = OffsetLengths(np.concatenate([[3], 3 + np.cumsum(first)]))
    ends = EndOffsetLengths(lambda: np.cumsum(second), len(second))
    both = np.concatenate([first, second])
    cases: list[tuple[Any, Any]] = [
        (LengthsByIndex(lambda index: first[index], len(first)), first),
        (spans, first),
        (ends, second),
        (ConcatenatedLengths((spans, ends)), both),
        (DerivedLengths(spans, lambda sizes: np.minimum(sizes, 4)), np.minimum(first, 4)),
    ]
    for sizes, array in cases:
        assert len(sizes) == len(array) and sum_lengths(sizes) == array.sum()
        start, stop = (data.draw(st.integers(0, len(array))) for _ in range(2))
        for step in (1, 2):
            assert sizes[start:stop:step].tolist() == array[start:stop:step].tolist()
        where = np.asarray(
            data.draw(st.lists(st.integers(0, len(array) - 1), max_size=5)), np.int64
        )
        assert sizes[where].tolist() == array[where].tolist()
        assert sizes[:].dtype == np.int64


def test_nothing_is_held_of_a_function() -> None:
    assert LengthsByIndex(lambda index: index % 3, 1 << 50)[np.asarray([1 << 49])].tolist() == [
        (1 << 49) % 3
    ]
    with pytest.raises(IndexError):
        LengthsByIndex(lambda index: np.arange(3)[index], 3)[np.asarray([3])]
