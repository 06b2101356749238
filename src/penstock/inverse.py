"""Programs backwards: the positions at which a sample comes up. Arithmetic where there is an inverse, nothing read.

`find` asks from above which stretch of each flow can be meant, and carries the positions found at the leaf back up.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np

from .ints import distinct
from .order import Gap, Repeat, Replay, Slice, Told
from .packed import PackProgram, passes_of
from .program import BatchProgram, EachProgram, MixProgram, PassesProgram, Program, ReadProgram, ReorderProgram
from .types import Ints, Order
from .without import WithoutProgram

_SCAN = 1 << 16  # positions looked at together where a rule has no inverse


@runtime_checkable
class Counted(Protocol):
    """A schedule with an inverse: the draws of each input before a position, the positions of draws (or -1)."""

    def counts(self, position: int, /) -> Ints: ...
    def places(self, source: Ints, k: Ints, /) -> Ints: ...


def find(program: Program, leaf: int, index: Ints, low: int, high: int, lap: int = 0) -> Ints:
    """The positions in `[low, high)` of a lap whose items hold any of these samples of a leaf, sorted, each once. In
    passes that are not told there are none.
    """
    if high <= low or not len(index) or program.size == 0:
        return np.zeros(0, np.int64)
    match program:
        case ReadProgram():
            return _laps(index, program.size, low, high) if program.leaf.number == leaf else index[:0]
        case EachProgram(flow):
            return find(flow, leaf, index, low, high, lap)
        case ReorderProgram():
            return _reordered(program, leaf, index, low, high, lap)
        case MixProgram():
            return _mixed(program, leaf, index, low, high, lap)
        case PassesProgram():
            pieces = [piece for piece in program.cut(low, high) if program.tells(piece[0])]
            found = [find(part, leaf, index, a + shift, b + shift, lap) - shift for part, shift, a, b in pieces]
            return np.concatenate([index[:0], *found])
        case BatchProgram():
            return _batched(program, leaf, index, low, high, lap)
        case PackProgram():
            return _packed(program, leaf, index, low, high)
        case WithoutProgram(flow):
            gaps = program.in_lap(lap)
            below = gaps.down(np.asarray([low, high - 1]))
            draws = gaps.up(find(flow, leaf, index, int(below[0]), int(below[1]) + 1, lap))
            return draws[draws >= 0]
        case _:
            raise AssertionError(f"a program without an inverse: {type(program).__name__}")


def _laps(place: Ints, period: int, low: int, high: int) -> Ints:
    """All positions in a range that are at these places of a period."""
    laps = np.arange(low // period, (high - 1) // period + 1) * period
    found = (laps[:, None] + np.sort(place)).ravel()
    return found[(found >= low) & (found < high)]


def _reordered(program: ReorderProgram, leaf: int, index: Ints, low: int, high: int, lap: int) -> Ints:
    flow, order, n = program.flow, program.order, program.flow.size
    if isinstance(order, Repeat):
        return find(flow, leaf, index, low, high, lap)
    if isinstance(order, Gap) and n is None:
        found = order.up(find(flow, leaf, index, order.after(low), order.after(high - 1) + 1, lap), n, program.key)
        return found[found >= 0]
    if (around := lap_of(order, n)) is not None:
        period, start, stop = around

        own = range(low // period + 1, min(settled(flow) - lap, (high - 1) // period) + 1)  # from there on all alike
        parts = list[Ints]()
        for a, b in pairwise([low, *(each * period for each in own), high]):
            place = order.up(find(flow, leaf, index, start, stop, lap + a // period), n, program.key)
            parts.append(_laps(place[place >= 0], period, a, b))
        return np.concatenate(parts)
    assert n is not None and program.size is not None, "an endless flow is only repeated and sliced"
    first, last = low // program.size, (high - 1) // program.size + 1
    found = order.up(find(flow, leaf, index, first * n, last * n, lap), n, program.key)
    return np.sort(found[(found >= low) & (found < high)])


def settled(program: Program) -> int:
    """The lap from which on all are alike: an exclusion may begin within one."""
    match program:
        case WithoutProgram():
            return program.settled
        case EachProgram(flow) | ReorderProgram(flow) | BatchProgram(flow) | PackProgram(flow):
            return settled(flow)
        case MixProgram(flows) | PassesProgram(flows):
            return max(map(settled, flows))
        case _:
            return 0


def lap_of(order: Order, below: int | None) -> tuple[int, int, int] | None:
    """For an order that goes through the same samples again and again: how many, and between which positions."""
    match order:
        case Slice(start, count, step):
            last = start + (count - 1) * step
            return count, min(start, last), max(start, last) + 1
        case Replay():
            assert below is not None
            return below, 0, below
        case _:
            return None


def _mixed(program: MixProgram, leaf: int, index: Ints, low: int, high: int, lap: int) -> Ints:
    i, size, schedule = int(program.owner[leaf]), program.size, program.schedule
    if i < 0:
        return index[:0]
    flow = program.flows[i]
    if not isinstance(schedule, Counted):
        return np.concatenate([*_scanned(program, i, leaf, index, low, high, lap)])
    if size is None:
        a, b = (int(schedule.counts(position)[i]) for position in (low, high))
        return _placed(schedule, i, find(flow, leaf, index, a, b, lap))
    first, last, drawn = low // size, high // size, int(schedule.counts(size)[i])
    each, base = int(program.advance[i]), int(program.base[i])
    if each == 0:  # every pass begins anew with the same draws
        return _laps(_placed(schedule, i, find(flow, leaf, index, base, base + drawn, lap) - base), size, low, high)
    a, b = (base + e * each + int(schedule.counts(p - e * size)[i]) for e, p in ((first, low), (last, high)))
    k = find(flow, leaf, index, a, b, lap) - base
    k = k[k % each < drawn]
    return _placed(schedule, i, k % each) + k // each * size


def _placed(schedule: Counted, source: int, k: Ints) -> Ints:
    return schedule.places(np.full(len(k), source), k)


def _scanned(program: MixProgram, i: int, leaf: int, index: Ints, low: int, high: int, lap: int) -> Iterator[Ints]:
    """By trying every position: for rules of the user's."""
    yield index[:0]
    for start in range(low, high, _SCAN):
        positions = np.arange(start, min(start + _SCAN, high))
        source, k = program.draws(positions)
        positions, k = positions[source == i], k[source == i]
        if len(k):
            yield positions[np.isin(k, find(program.flows[i], leaf, index, int(k.min()), int(k.max()) + 1, lap))]


def _batched(program: BatchProgram, leaf: int, index: Ints, low: int, high: int, lap: int) -> Ints:
    n, size, below = program.n, program.size, program.flow.size
    found = find(program.flow, leaf, index, below_batch(program, low), below_batch(program, high), lap)
    if size is None or below is None:
        return distinct(found // n)
    epoch = found // below
    place = (found - epoch * below) // n
    return distinct((epoch * size + place)[place < size])  # what lies behind the last whole batch may be dropped


def same_each_pass(program: Program) -> bool:
    """Whether every pass gives the same samples, in whatever order."""
    match program:
        case ReadProgram():
            return True
        case EachProgram(flow) | BatchProgram(flow, _, False):
            return same_each_pass(flow)
        case ReorderProgram(flow, order):
            size = None if flow.size is None else order.size(flow.size)
            whole = size == flow.size or isinstance(order, Repeat)
            return (lap_of(order, flow.size) is not None and not settled(flow)) or (whole and same_each_pass(flow))
        case MixProgram(flows, schedule):
            if program.size is None or not isinstance(schedule, Counted):
                return False
            drawn = schedule.counts(program.size)
            return bool((drawn == program.advance).all()) and all(
                same_each_pass(flow) for flow, count in zip(flows, drawn.tolist(), strict=True) if count
            )
        case _:
            return False


def leaf_of(program: Program) -> int | None:
    """The only leaf of a flow of single samples, None if there are several, or groups."""
    match program:
        case ReadProgram():
            return program.leaf.number
        case ReorderProgram(_, Told()):
            return None
        case EachProgram(flow) | ReorderProgram(flow) | WithoutProgram(flow):
            return leaf_of(flow)
        case _:
            return None


def period(program: Program) -> int:
    """The positions after which a flow of one leaf gives the same samples again, in whatever order."""
    match program:
        case EachProgram(flow) | ReorderProgram(flow, Repeat()):
            return period(flow)
        case ReorderProgram(flow, order) if (lap := lap_of(order, flow.size)) is not None:
            return lap[0]
        case _:
            assert program.size is not None
            return program.size


def below_batch(program: BatchProgram, position: int) -> int:
    """The position below at which a batch begins."""
    below, size = program.flow.size, program.size
    if below is None or size is None:
        return position * program.n
    return position // size * below + position % size * program.n


def _packed(program: PackProgram, leaf: int, index: Ints, low: int, high: int) -> Ints:
    size = program.size

    def rows(epoch: int) -> Ints:
        """The rows of a pass that hold a part of these documents."""
        samples, _, plan, _ = program.planned(epoch)
        mine = (samples.leaf == leaf) & np.isin(samples.index, index)
        pieces = np.flatnonzero(mine[plan.item])
        return distinct(np.searchsorted(plan.bounds, pieces, side="right") - 1)

    passes, epochs = passes_of(program), range(low // size, (high - 1) // size + 1)
    told = [epoch for epoch in epochs if passes is None or passes.tells(passes.place(epoch * passes.size)[0])]
    found = np.concatenate([index[:0], *(rows(epoch) + epoch * size for epoch in told)])
    return found[(found >= low) & (found < high)]
