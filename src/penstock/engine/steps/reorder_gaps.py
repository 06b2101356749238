"""Orders without some positions: of each pass, or of a run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise

import numpy as np

from ...types import Ints, Order
from ..base.passes import Passes
from ..orders import Gap, Skips
from .mask import MaskOp
from .op import UNKNOWN, Before, Op, Scope
from .reorder_op import OrderOp, PassOp
from .seek import At, holding
from .tally import Tally
from .tokens import Lengths

_FEW = 1 << 8  # skipped positions that are looked at as quickly as they are counted


class GapOp(PassOp):
    """Each pass without some places in a row."""

    order: Gap

    def __init__(self, input: Op, order: Order, key: int) -> None:
        super().__init__(input, order, key)
        self.keeps_order = input.size is None

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        first, last = self.order.down(np.asarray([low, high - 1]), self.input.size, self.key)[
            0
        ].tolist()
        found = self.order.up(
            self.input.find(leaf, index, first, last + 1), self.input.size, self.key
        )
        return found[found >= 0]

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        """All of a stretch below, less the gaps of the passes in it."""
        input, gap, n = self.input, self.order, self.input.size
        if input.leaf is not None:
            return input.count(tally, start, stop, times)
        lost, (first, last) = gap.lost(n), gap.down(np.asarray([start, stop - 1]), n, 0)[0].tolist()
        input.count(tally, first, last + 1, times)
        if n is None:
            gaps = range(0, int(first < gap.start < last))
        else:
            gaps = range(-(-(first - gap.start) // n), -(-(last - gap.start) // n))
        if len(gaps) > 1 and input.has_steady_counts and not tally.by_document:
            return input.count(tally, gap.start, gap.start + lost, -times * len(gaps))
        for epoch in gaps:
            begin = epoch * (n or 0) + gap.start
            input.count(tally, begin, begin + lost, -times)

    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        gap = self.order
        if self.input.size is not None:
            return lengths.sums(self).before(position, out, times)
        if position <= gap.start:
            return self.input.tokens(position, lengths, out, times)
        for below, more in (
            (position + gap.count, times),
            (gap.start + gap.count, -times),
            (gap.start, times),
        ):
            self.input.tokens(below, lengths, out, more)

    def before(self, position: int, early: bool = False) -> Iterator[Before]:
        last = (
            self.order.down(np.asarray([position - 1]), self.input.size, 0)[0]
            if position
            else (-1,)
        )
        yield Before(self.input, int(last[0]) + 1, early)


class SkipOp(OrderOp):
    """The rows of a run without those that it skipped. A pass of them is shorter."""

    keeps_order = True

    order: Skips
    one_pass = True

    @property
    def passes(self) -> Passes | None:
        return self._passes

    @cached_property
    def _passes(self) -> Passes | None:
        below, lost = self.input.passes, dict[int, int]()
        if below is None:
            return None
        before = 0
        for start, left_out in self.order.points:
            first, stop = start + before, start + left_out
            for one in below.within(first, stop):  # two skips may meet at the end of a pass
                count = min(stop, one.stop) - max(first, one.start)
                lost[one.epoch] = lost.get(one.epoch, 0) + count
            before = left_out
        epochs = sorted({*below.epochs, *(at for epoch in lost for at in (epoch, epoch + 1))})
        return Passes.of(
            (epoch, max(below.size(epoch) - lost.get(epoch, 0), 0)) for epoch in epochs
        )

    @property
    def size(self) -> int | None:
        return None if self._passes is None else self._passes.sizes[0]

    def down(self, position: int) -> int:
        """Return the position below of the item at a position."""
        return int(self.order.down(np.asarray([position]), None, 0)[0][0])

    def _left_out(self, start: int, stop: int) -> list[range]:
        """Return the positions below that are left out between the positions of a range."""
        points = [(0, 0), *self.order.points]
        return [
            range(at + before, at + n)
            for (_, before), (at, n) in pairwise(points)
            if start < at < stop
        ]

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        below = self.input.find(leaf, index, self.down(low), self.down(high - 1) + 1)
        found = self.order.up(below, None, 0)
        return found[found >= 0]

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        self.input.count(tally, self.down(start), self.down(stop - 1) + 1, times)
        short = list[Ints]()
        for gap in self._left_out(start, stop):
            if len(gap) > _FEW:
                self.input.count(tally, gap.start, gap.stop, -times)
            else:
                short.append(np.arange(gap.start, gap.stop))
        if short:
            tally.add(self.input.locate(np.concatenate(short)), -times)

    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        self.input.tokens(self.down(position - 1) + 1 if position else 0, lengths, out, times)
        for gap in self._left_out(-1, position):
            self.input.tokens(gap.stop, lengths, out, -times)
            self.input.tokens(gap.start, lengths, out, times)

    def holding(self, token: int, lengths: Lengths) -> At:
        return holding(self, token, lengths)

    def before(self, position: int, early: bool = False) -> Iterator[Before]:
        yield Before(self.input, self.down(position - 1) + 1 if position else 0, early)

    def scopes(
        self, above: int = 0, packed: bool = False, among: Op | None = None
    ) -> Iterator[Scope]:
        return self.input.scopes(above, packed, among)

    def nth(self, leaf: Ints, number: Ints, last: bool = False) -> Ints:
        return np.full(len(leaf), UNKNOWN)

    @property
    def leaf(self) -> int | None:
        return None


def pass_over_skips(rows: Op, position: int) -> tuple[Op, int]:
    """Return the input of the skips of a run, and the position in it of the next row to deliver.

    A change at a row comes after the skips that end there: it must not change the rows that these
    leave out. `before` stops in front of them, after the last delivered row.
    """
    if isinstance(rows, MaskOp):
        rows = rows.input
    return (rows.input, rows.down(position)) if isinstance(rows, SkipOp) else (rows, position)
