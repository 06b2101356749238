"""The first items of a stream, and those after them: a run of its own, which every rank goes
through."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from ...types import Json
from ..base.cursors import parse_cursor_int, parse_cursor_list
from ..streams.deal import Spread
from ..streams.empty_passes import EmptyPassDetector
from ..streams.lanes import Lanes
from ..streams.opening import Opening
from ..streams.reader import ONCE, LaneOf, Laps, Reader
from ..streams.stream import Stream, Tap
from ..streams.trail import Chunk, Trail
from .op import OneInput, Op

_PASSED = 1024  # items that are passed over at a time


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


class Remaining:
    """The part of a stream after its first `n` items.

    The cursor has the number still to come, and the cursor below.
    """

    def __init__(self, stream: Stream, n: int) -> None:
        self._tap, self._n = Tap(stream), n
        self.seek(0, None)

    def cursor(self) -> Json:
        return [self._left, self._tap.cursor()]

    def seek(self, epoch: int, cursor: Json, /) -> None:
        left, below = (self._n, None) if cursor is None else parse_cursor_list(cursor)
        self._left = parse_cursor_int(left, self._n + 1)
        self._tap.seek(epoch, below)

    def close(self) -> None:
        self._tap.stream.close()

    def pull(self, n: int, /) -> Chunk:
        while self._left:
            if not (passed := len(self._tap.take(min(self._left, _PASSED)).values)):
                break
            self._left -= passed
        values, rows, trail = self._tap.take(n)
        return Chunk(values, rows, _After(trail))


@dataclass(frozen=True, slots=True)
class _After:
    """The trail of items after the first."""

    trail: Trail

    def at(self, count: int, /) -> Json:
        return [0, self.trail.at(count)]


class _OwnRun(OneInput):
    """Some items of a flow, counted as a run of it would give them. `endless`: the flow never
    ends."""

    def __init__(self, flow: Op, n: int, endless: bool) -> None:
        super().__init__(flow)
        self.indexed = False
        self.n, self.endless = n, endless

    def _run(self, opening: Opening, limit: int | None) -> Lanes:
        lanes, readers = opening.share.lanes, dict[int, Reader]()
        empty_passes = EmptyPassDetector(lanes, self.endless)

        def opened(lane: int) -> Stream:
            of = LaneOf(lane, lanes, range(lanes), readers, empty_passes)
            return Opening(opening.leaves, opening.execution, Spread(), of).open(self.flow, ONCE)

        chunk_size = partial(opening.execution.chunk_size, lanes)
        return Lanes(lanes, 0, 1, limit, opened, empty_passes, chunk_size)


class LimitOp(_OwnRun):
    """The first `n` items of the first pass of a flow, in every pass."""

    def stream(self, opening: Opening, laps: Laps) -> Stream:
        if opening.given:
            return opening.open(self.flow, laps)  # the lanes know their limit
        return opening.dealt(self, lambda: FirstPass(self._run(opening, self.n)), laps)


class RestOp(_OwnRun):
    """All but the first `n` items of every pass of a flow."""

    def stream(self, opening: Opening, laps: Laps) -> Stream:
        return opening.dealt(self, lambda: Remaining(self._run(opening, None), self.n), laps)
