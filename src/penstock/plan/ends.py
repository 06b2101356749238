"""When a source has been seen whole, and when none of it comes any more."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ..ops.op import UNKNOWN, Op
from ..types import Ints
from .records import Exhaustion

FAR = 1 << 52  # a source with any weight is drawn again long before as many positions have gone by


def exhaustions(op: Op, counts: Callable[[int], Ints], once: Ints, horizon: int | None) -> list[Exhaustion]:
    """For every leaf, when it repeats and when it ends; `once` is how many different samples each has."""
    size = op.size
    stop = size if size is not None else FAR
    total = counts(stop)
    on = counts(2 * stop) > total if size is None else np.zeros(len(total), np.bool_)
    bound = stop if horizon is None else min(stop, horizon)

    def place(numbers: Ints) -> list[int | None]:
        """The position of each leaf's sample of a number, None if it is not to be seen by the horizon."""
        asked = np.flatnonzero((numbers >= 0) & (numbers < total))
        found = np.full(len(numbers), bound)
        found[asked] = op.nth(asked, numbers[asked])
        for leaf in np.flatnonzero(found == UNKNOWN).tolist():
            count = partial(_count, counts, leaf)
            found[leaf] = _bisected(count, int(numbers[leaf]), stop)
        return [position if position < bound else None for position in found.tolist()]

    repeats, last = place(np.where(once > 0, once, -1)), place(np.where(on, -1, total - 1))
    ends = [None if position is None or position + 1 >= stop else position + 1 for position in last]
    return [Exhaustion(*both) for both in zip(repeats, ends, strict=True)]


def _count(counts: Callable[[int], Ints], leaf: int, position: int) -> int:
    return int(counts(position)[leaf])


def _bisected(count: Callable[[int], int], number: int, stop: int) -> int:
    """The position of a sample by halving: the last before which there were no more than `number`."""
    low, high = 0, stop
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) <= number else (low, middle)
    return low
