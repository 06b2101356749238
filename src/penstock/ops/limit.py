"""The first items of a stream: a run of its own, which every rank goes through."""

from __future__ import annotations

from dataclasses import replace

from ..streams.barren import Barren
from ..streams.deal import Spread
from ..streams.lanes import Lanes
from ..streams.opening import Opening
from ..streams.reader import ONCE, LaneOf, Laps, Reader
from ..streams.stream import Stream
from ..streams.trail import Chunk
from ..types import Json
from .op import OneInput, Op


class FirstPass:
    """A stream that gives the items of its first pass in every pass."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self._epoch = stream, 0

    def cursor(self) -> Json:
        return self.stream.cursor()

    def seek(self, epoch: int, cursor: Json, /) -> None:
        self._epoch = epoch
        self.stream.seek(0, cursor)

    def close(self) -> None:
        self.stream.close()

    def pull(self, n: int, /) -> Chunk:
        values, rows, trail = self.stream.pull(n)
        return Chunk(values, replace(rows, epoch=rows.epoch + self._epoch), trail)


class LimitOp(OneInput):
    """The first `n` items of the first pass of a flow, in every pass. `endless`: the flow never ends."""

    def __init__(self, flow: Op, n: int, endless: bool) -> None:
        super().__init__(flow)
        self.indexed = False
        self.n, self.endless = n, endless

    def stream(self, opening: Opening, grain: int, laps: Laps) -> Stream:
        if opening.given:
            return opening.open(self.flow, laps, grain)  # the lanes know their limit
        return opening.dealt(self, lambda: self._first(opening), laps)

    def _first(self, opening: Opening) -> Stream:
        lanes, readers = opening.share.lanes, dict[int, Reader]()
        barren = Barren(lanes, self.endless)

        def opened(lane: int) -> Stream:
            of = LaneOf(lane, lanes, range(lanes), readers, barren)
            return Opening(opening.leaves, opening.hired, Spread(), of).open(self.flow, ONCE)

        return FirstPass(Lanes(lanes, 0, 1, self.n, opened, barren, opening.hired.most))
