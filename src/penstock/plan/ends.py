"""When a source has been seen whole, and when none of it comes any more."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..inverse import Counted, leaf_of
from ..order import Repeat
from ..program import BatchProgram, EachProgram, MixProgram, Program, ReorderProgram
from ..types import Ints
from .records import Exhaustion

FAR = 1 << 52  # a source with any weight is drawn again long before as many positions have gone by


def exhaustions(program: Program, counts: Callable[[int], Ints], once: Ints, horizon: int | None) -> list[Exhaustion]:
    """For every leaf, when it repeats and when it ends; `once` is how many different samples each has."""
    size = program.size
    stop = size if size is not None else FAR
    total = counts(stop)
    on = counts(2 * stop) > total if size is None else np.zeros(len(total), np.bool_)
    bound = stop if horizon is None else min(stop, horizon)

    def place(leaf: int, number: int) -> int | None:
        """The position of a leaf's sample of that number, None if it is not to be seen by the horizon."""
        if number < 0 or number >= total[leaf]:
            return None
        found = _delivered(program, leaf, number)
        if found is None:
            found = _bisected(lambda position: int(counts(position)[leaf]), number, stop)
        return found if found < bound else None

    out = list[Exhaustion]()
    for leaf in range(len(total)):
        last = None if on[leaf] else place(leaf, int(total[leaf]) - 1)
        ends = None if last is None or last + 1 >= stop else last + 1
        out.append(Exhaustion(place(leaf, int(once[leaf])) if once[leaf] else None, ends))
    return out


def _delivered(program: Program, leaf: int, number: int) -> int | None:
    """The position of a leaf's sample of that number, where arithmetic tells."""
    match program:
        case EachProgram(flow):
            return _delivered(flow, leaf, number)
        case ReorderProgram(flow, order) if leaf_of(program) is not None or isinstance(order, Repeat):
            return number if leaf_of(program) is not None else _delivered(flow, leaf, number)
        case BatchProgram(flow):
            below, size = flow.size, program.size
            if program.drop and below is not None and below % program.n:
                return None
            found = _delivered(flow, leaf, number)
            if found is None or below is None or size is None:
                return None if found is None else found // program.n
            return found // below * size + found % below // program.n
        case MixProgram():
            return _drawn(program, leaf, number)
        case _:
            return number if leaf_of(program) is not None else None


def _drawn(program: MixProgram, leaf: int, number: int) -> int | None:
    i, schedule, size = int(program.owner[leaf]), program.schedule, program.size
    k = _delivered(program.flows[i], leaf, number)
    if k is None or not isinstance(schedule, Counted):
        return None
    epoch = 0
    if size is not None and k >= (drawn := int(schedule.counts(size)[i])):
        if drawn != program.advance[i]:
            return None
        epoch, k = divmod(k, drawn)
    return epoch * (size or 0) + int(schedule.places(i, np.asarray([k]))[0])


def _bisected(count: Callable[[int], int], number: int, stop: int) -> int:
    """The position of a sample by halving: the last before which there were no more than `number`."""
    low, high = 0, stop
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) <= number else (low, middle)
    return low
