"""`map(may_skip=True)`: falsy results are items, skipped samples are not."""

from __future__ import annotations

import penstock as ps
from helpers import numbers
from penstock.arrays.trees import collate


def halve(x: int) -> int | None:
    if x % 2:
        raise ps.Skip
    return None if x == 4 else x // 2


def test_only_skipped_samples_are_dropped() -> None:
    assert list(numbers(10).map(halve, may_skip=True)) == [0, 1, None, 3, 4]


def test_a_function_that_stacks_may_skip_too() -> None:
    ds = ps.from_sequence([[1, 2], [3]]).map(collate, may_skip=True)
    assert [stacked.tolist() for stacked in ds] == [[1, 2], [3]]
