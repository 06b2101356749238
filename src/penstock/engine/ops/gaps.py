"""What is left of passes where positions were skipped, and the passes of which that can be told."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...types import Ints
from ..orders import Gap, UnchangedPasses
from .op import Before
from .order import PassOp
from .seek import At
from .tally import Tally
from .tokens import Lengths


class GapOp(PassOp):
    """Each pass without some places in a row."""

    order: Gap

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        first, last = self.order.down(np.asarray([low, high - 1]), self.flow.size, self.key)[
            0
        ].tolist()
        found = self.order.up(
            self.flow.find(leaf, index, first, last + 1), self.flow.size, self.key
        )
        return found[found >= 0]

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        """All of a stretch below, less the gaps of the passes in it."""
        flow, gap, n = self.flow, self.order, self.flow.size
        if flow.leaf is not None:
            return flow.count(tally, start, stop, times)
        lost, (first, last) = gap.lost(n), gap.down(np.asarray([start, stop - 1]), n, 0)[0].tolist()
        flow.count(tally, first, last + 1, times)
        if n is None:
            gaps = range(0, int(first < gap.start < last))
        else:
            gaps = range(-(-(first - gap.start) // n), -(-(last - gap.start) // n))
        if len(gaps) > 1 and flow.steady and not tally.by_document:
            return flow.count(tally, gap.start, gap.start + lost, -times * len(gaps))
        for epoch in gaps:
            begin = epoch * (n or 0) + gap.start
            flow.count(tally, begin, begin + lost, -times)

    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        gap = self.order
        if self.flow.size is not None:
            return lengths.sums(self).before(position, out, times)
        if position <= gap.start:
            return self.flow.tokens(position, lengths, out, times)
        for below, more in (
            (position + gap.count, times),
            (gap.start + gap.count, -times),
            (gap.start, times),
        ):
            self.flow.tokens(below, lengths, out, more)

    def before(self, position: int, ahead: bool = False) -> Iterator[Before]:
        last = (
            self.order.down(np.asarray([position - 1]), self.flow.size, 0)[0] if position else (-1,)
        )
        yield Before(self.flow, int(last[0]) + 1, ahead)


class ToldOp(PassOp):
    """The passes that are as long as the one in which a run stands; others are refused."""

    order: UnchangedPasses

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        self.order.check(start, stop, self.flow.size)
        self.flow.count(tally, start, stop, times)

    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        self.order.check(0, position, self.flow.size)
        self.flow.tokens(position, lengths, out, times)

    def holding(self, token: int, lengths: Lengths) -> At:
        return self.flow.holding(token, lengths)

    def before(self, position: int, ahead: bool = False) -> Iterator[Before]:
        yield Before(self.flow, position, ahead)

    @property
    def leaf(self) -> int | None:
        return None
