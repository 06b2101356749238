"""How many samples of each source a stretch of positions holds: by arithmetic, and one by one only where an order mixes
sources anew.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..inverse import Counted, below_batch, lap_of, leaf_of, same_each_pass
from ..order import Gap, Repeat, Told
from ..pack import BestFit, FirstFit
from ..packed import PackProgram
from ..program import BatchProgram, EachProgram, MixProgram, PassesProgram, Program, ReadProgram, ReorderProgram
from ..types import Ints
from ..without import WithoutProgram

_SCAN = 1 << 16  # positions looked at together where nothing can be counted ahead


class Tally:
    """Samples by leaf, and the tokens of those that are packed, added up stretch by stretch."""

    def __init__(self, leaves: int) -> None:
        self.samples, self.tokens = np.zeros((2, leaves), np.int64)

    def add(self, program: Program, start: int, stop: int, times: int = 1) -> None:
        """Add what lies at positions `[start, stop)`, so many times."""
        if stop <= start:
            return
        match program:
            case ReadProgram():
                self.samples[program.leaf.number] += (stop - start) * times
            case EachProgram(flow) | WithoutProgram(flow):
                self.add(flow, start, stop, times)  # of one leaf it does not matter which samples they are
            case ReorderProgram():
                self._reordered(program, start, stop, times)
            case MixProgram():
                self._mixed(program, start, stop, times)
            case PassesProgram():
                for part, shift, a, b in program.pieces(start, stop):
                    self.add(part, a + shift, b + shift, times)
            case BatchProgram():
                self._batched(program, start, stop, times)
            case PackProgram():
                self._packed(program, start, stop, times)
            case _:
                self._one_by_one(program, start, stop, times)

    def _one_by_one(self, program: Program, start: int, stop: int, times: int) -> None:
        for at in range(start, stop, _SCAN):
            positions = np.arange(at, min(at + _SCAN, stop))
            rows = program.locate(positions, np.zeros_like(positions))
            self.samples += np.bincount(rows.leaf, minlength=len(self.samples)) * times

    def _reordered(self, program: ReorderProgram, start: int, stop: int, times: int) -> None:
        flow, order, n = program.flow, program.order, program.flow.size
        if isinstance(order, Told):
            order.check(start, stop, n)
        if isinstance(order, Repeat | Told) or leaf_of(flow) is not None:
            return self.add(flow, start, stop, times)
        if isinstance(order, Gap):
            return self._with_gap(program, order, start, stop, times)
        if (lap := lap_of(order, n)) is not None:
            period, first, last = lap

            def part(a: int, b: int, times: int) -> None:
                if last - first == period:
                    self.add(flow, first + a, first + b, times)
                else:
                    self._one_by_one(program, a, b, times)

            return _by_lap(start, stop, period, times, part)
        if n is None or program.size != n:
            return self._one_by_one(program, start, stop, times)
        head, tail = -(-start // n) * n, stop // n * n  # whole passes hold what they hold in any order
        if head > tail:
            return self._one_by_one(program, start, stop, times)
        self._one_by_one(program, start, head, times)
        self.add(flow, head, tail, times)
        self._one_by_one(program, tail, stop, times)

    def _with_gap(self, program: ReorderProgram, gap: Gap, start: int, stop: int, times: int) -> None:
        """All of a stretch below, less the gaps of the passes in it."""
        flow, n = program.flow, program.flow.size
        lost = gap.lost(n)
        first, last = gap.down(np.asarray([start, stop - 1]), n, 0)[0].tolist()
        self.add(flow, first, last + 1, times)
        if n is None:
            gaps = range(0, int(first < gap.start < last))
        else:
            gaps = range(-(-(first - gap.start) // n), -(-(last - gap.start) // n))
        if len(gaps) > 1 and steady(flow):
            return self.add(flow, gap.start, gap.start + lost, -times * len(gaps))
        for epoch in gaps:
            begin = epoch * (n or 0) + gap.start
            self.add(flow, begin, begin + lost, -times)

    def _mixed(self, program: MixProgram, start: int, stop: int, times: int) -> None:
        schedule, size = program.schedule, program.size
        if not isinstance(schedule, Counted):
            return self._one_by_one(program, start, stop, times)

        def part(a: int, b: int, epoch: int, times: int) -> None:
            low, high = schedule.counts(a), schedule.counts(b)
            shift = program.before(epoch)
            for i in np.flatnonzero(high > low).tolist():
                self.add(program.flows[i], int(low[i] + shift[i]), int(high[i] + shift[i]), times)

        if size is None:
            return part(start, stop, 0, times)
        first, last = start // size, stop // size
        if first == last:
            return part(start - first * size, stop - first * size, first, times)
        part(start - first * size, size, first, times)
        self._passes(program, first + 1, last, times)
        part(0, stop - last * size, last, times)

    def _passes(self, program: MixProgram, first: int, last: int, times: int) -> None:
        """Whole passes of a mixture that ends."""
        schedule, each = program.schedule, program.advance.tolist()
        assert isinstance(schedule, Counted) and program.size is not None
        for i, drawn in enumerate(schedule.counts(program.size).tolist()):
            flow, step, base = program.flows[i], each[i], int(program.base[i])
            if step == drawn:
                self.add(flow, base + first * step, base + last * step, times)
            elif steady(flow):
                self.add(flow, 0, drawn, times * (last - first))
            else:
                for epoch in range(first, last):
                    self.add(flow, base + epoch * step, base + epoch * step + drawn, times)

    def _batched(self, program: BatchProgram, start: int, stop: int, times: int) -> None:
        flow, below, size, n = program.flow, program.flow.size, program.size, program.n
        if below is None or size is None or not program.drop or below % n == 0:
            return self.add(flow, below_batch(program, start), below_batch(program, stop), times)
        first, last = start // size, stop // size
        if first == last:
            return self.add(flow, below_batch(program, start), below_batch(program, stop), times)
        self.add(flow, below_batch(program, start), first * below + size * n, times)
        if steady(flow):
            self.add(flow, 0, size * n, times * (last - first - 1))
        else:
            for epoch in range(first + 1, last):
                self.add(flow, epoch * below, epoch * below + size * n, times)
        self.add(flow, last * below, below_batch(program, stop), times)

    def _packed(self, program: PackProgram, start: int, stop: int, times: int) -> None:
        """A document counts in every row that has a part of it."""
        size = program.size

        def part(a: int, b: int, epoch: int, times: int = times) -> None:
            rows, _, plan, _ = program.planned(epoch)
            pieces = slice(int(plan.bounds[a]), int(plan.bounds[b]))
            leaf, taken = rows.leaf[plan.item[pieces]], plan.stop[pieces] - plan.start[pieces]
            self.samples += np.bincount(leaf, minlength=len(self.samples)) * times
            np.add.at(self.tokens, leaf, taken * times)

        first, last = start // size, stop // size
        if first == last:
            return part(start - first * size, stop - first * size, first)
        part(start - first * size, size, first)
        if isinstance(program.fold, FirstFit | BestFit) and same_each_pass(program.flow):
            part(0, size, 0, times * (last - first - 1))  # documents stay whole: every pass has as many of each
        else:
            for epoch in range(first + 1, last):
                part(0, size, epoch)
        if stop > last * size:
            part(0, stop - last * size, last)


def _by_lap(start: int, stop: int, period: int, times: int, part: Callable[[int, int, int], None]) -> None:
    """A stretch of laps that are all the same: the end of one, whole ones, the beginning of one."""
    first, last = start // period, stop // period
    if first == last:
        return part(start - first * period, stop - first * period, times)
    part(start - first * period, period, times)
    if last - first > 1:
        part(0, period, times * (last - first - 1))
    part(0, stop - last * period, times)


def steady(program: Program) -> bool:
    """Whether the same stretch of any two passes holds as many samples of each leaf."""
    match program:
        case ReadProgram():
            return True
        case EachProgram(flow) | BatchProgram(flow) | WithoutProgram(flow):
            return program.size is not None and steady(flow)
        case ReorderProgram(flow, order):
            if leaf_of(flow) is not None or lap_of(order, flow.size) is not None:
                return program.size is not None
            return isinstance(order, Repeat) and program.size is not None and steady(flow)
        case MixProgram():
            return (
                program.size is not None and isinstance(program.schedule, Counted) and all(map(steady, program.flows))
            )
        case _:
            return False


def pass_sizes(program: Program, leaves: int) -> Ints:
    """How many different samples of each leaf there are to draw from: its length, or what slices leave of it."""
    out = np.zeros(leaves, np.int64)

    def walk(program: Program) -> None:
        match program:
            case ReadProgram():
                out[program.leaf.number] = program.size
            case MixProgram(flows) | PassesProgram(flows):
                for flow in flows:
                    walk(flow)
            case ReorderProgram(flow, order):
                walk(flow)
                leaf = leaf_of(flow)
                if leaf is not None and (size := order.size(int(out[leaf]))) is not None:
                    out[leaf] = min(size, out[leaf])
            case WithoutProgram(flow):
                walk(flow)
                leaf = leaf_of(flow)
                assert leaf is not None
                out[leaf] -= len(program.in_lap(0).gaps_in(0))
            case EachProgram(flow) | BatchProgram(flow) | PackProgram(flow):
                walk(flow)
            case _:
                raise AssertionError(f"a program that is not counted: {type(program).__name__}")

    walk(program)
    return out
