"""When a source has been seen whole, and when none of it comes any more."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ..ints import distinct
from ..inverse import Counted, leaf_of
from ..order import Repeat
from ..program import BatchProgram, EachProgram, MixProgram, Program, ReorderProgram
from ..types import Ints
from .records import Exhaustion

FAR = 1 << 52  # a source with any weight is drawn again long before as many positions have gone by

_UNKNOWN = -2


def exhaustions(program: Program, counts: Callable[[int], Ints], once: Ints, horizon: int | None) -> list[Exhaustion]:
    """For every leaf, when it repeats and when it ends; `once` is how many different samples each has."""
    size = program.size
    stop = size if size is not None else FAR
    total = counts(stop)
    on = counts(2 * stop) > total if size is None else np.zeros(len(total), np.bool_)
    bound = stop if horizon is None else min(stop, horizon)

    def place(numbers: Ints) -> list[int | None]:
        """The position of each leaf's sample of a number, None if it is not to be seen by the horizon."""
        asked = np.flatnonzero((numbers >= 0) & (numbers < total))
        found = np.full(len(numbers), bound)
        found[asked] = _delivered(program, asked, numbers[asked])
        for leaf in np.flatnonzero(found == _UNKNOWN).tolist():
            count = partial(_count, counts, leaf)
            found[leaf] = _bisected(count, int(numbers[leaf]), stop)
        return [position if position < bound else None for position in found.tolist()]

    repeats, last = place(np.where(once > 0, once, -1)), place(np.where(on, -1, total - 1))
    ends = [None if position is None or position + 1 >= stop else position + 1 for position in last]
    return [Exhaustion(*both) for both in zip(repeats, ends, strict=True)]


def _count(counts: Callable[[int], Ints], leaf: int, position: int) -> int:
    return int(counts(position)[leaf])


def _delivered(program: Program, leaf: Ints, number: Ints) -> Ints:
    """The positions of leaves' samples of these numbers, `_UNKNOWN` where arithmetic does not tell."""
    if leaf_of(program) is not None:
        return number
    match program:
        case EachProgram(flow) | ReorderProgram(flow, Repeat()):
            return _delivered(flow, leaf, number)
        case BatchProgram(flow):
            below, size, found = flow.size, program.size, _delivered(flow, leaf, number)
            if program.drop and below is not None and below % program.n:
                return np.full(len(leaf), _UNKNOWN)
            if below is None or size is None:
                return np.where(found < 0, found, found // program.n)
            return np.where(found < 0, found, found // below * size + found % below // program.n)
        case MixProgram(flows, schedule) if isinstance(schedule, Counted):
            source, k = program.owner[leaf], np.empty(len(leaf), np.int64)
            for i in map(int, distinct(source)):
                mine = np.flatnonzero(source == i)
                k[mine] = _delivered(flows[i], leaf[mine], number[mine])
            return _drawn(program, schedule, source, k)
        case _:
            return np.full(len(leaf), _UNKNOWN)


def _drawn(program: MixProgram, schedule: Counted, source: Ints, k: Ints) -> Ints:
    known, epoch = k >= 0, np.zeros_like(k)
    if program.size is not None:
        drawn = schedule.counts(program.size)[source]
        later = known & (k >= drawn)
        known &= ~later | (drawn == program.advance[source])  # else passes do not follow one another without gaps
        epoch = np.where(later, k // np.maximum(drawn, 1), 0)
        k = k - epoch * drawn
    out = np.full(len(k), _UNKNOWN)
    out[known] = epoch[known] * (program.size or 0) + schedule.places(source[known], k[known])
    return out


def _bisected(count: Callable[[int], int], number: int, stop: int) -> int:
    """The position of a sample by halving: the last before which there were no more than `number`."""
    low, high = 0, stop
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) <= number else (low, middle)
    return low
