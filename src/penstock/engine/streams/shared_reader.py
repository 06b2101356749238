"""Streams that lanes cannot divide: a rank reads them once and deals the items to its lanes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...errors import DataError
from ...types import Json
from ..base.cursors import is_cursor_at, make_cursor_error, parse_cursor_int, parse_cursor_list
from ..base.rows import join_rows, make_empty_rows
from .chunk_cursors import Chunk, ChunkCursors, ConstantCursor
from .empty_passes import EmptyPassDetector
from .stream import BufferedStream, Stream


class LaneContext(NamedTuple):
    """One lane of several: the lanes of its rank, their shared readers by step, and empty passes."""

    lane: int
    lanes: int
    rank_lanes: Sequence[int]
    readers: dict[int, SharedReader]
    empty_passes: EmptyPassDetector


_MAX_BUFFERED = 1 << 24  # so many items are never held for the lane that is furthest behind


class ReadPosition(NamedTuple):
    """A position between two items of a stream: pass, number of the next item, and cursor."""

    epoch: int
    number: int
    cursor: Json


class PassCounts(NamedTuple):
    """The number of passes of a step in a pass of the run (None: endless), and of the rule above.

    Those of the rule follow one another without a break.
    """

    run: int | None
    rule: int


ONE_PASS = PassCounts(1, 1)


class _BufferedChunk(NamedTuple):
    epoch: int
    start: int
    chunk: Chunk


class SharedReader:
    """Reads a stream once for all lanes of a rank, and buffers the items between the slowest and
    the fastest lane.

    The items of a pass are numbered; number `n` is of lane `n mod lanes`. Passes that follow one
    another are numbered on, so that a lane without a share of one has one of another. Others begin
    where the position of the run alone says.
    """

    def __init__(self, stream: Stream, lanes: Iterable[int], passes: PassCounts) -> None:
        self._input = BufferedStream(stream)
        self._pending = set(lanes)
        self._positions = dict[int, ReadPosition]()
        self._laps = passes
        self._ends = dict[int, int]()  # the number behind each pass that was read to its end
        self._reset()

    def _reset(self) -> None:
        """Reset the position (initially and after an exception)."""
        self._epoch, self._parts = -1, list[_BufferedChunk]()
        self._buffered = dict[
            int, tuple[int, int]
        ]()  # range of numbers of the buffered items of a pass

    def first_number(self, epoch: int) -> int:
        """Return the number of the first item of a pass."""
        run, own = self._laps
        return self._ends[epoch - 1] if epoch % own else (epoch % run if run else epoch) // own

    def is_end_unknown(self, epoch: int) -> bool:
        """Return whether the number of a pass depends on a pass that was not read to its end here.

        A lane that has all of its share, and a state that says so, need not ask for more.
        """
        return epoch % self._laps.rule > 0 and epoch - 1 not in self._ends

    def set_position(self, lane: int, position: ReadPosition | None) -> None:
        """Record the position of a lane; None if it needs no more items."""
        self._pending.discard(lane)
        self._positions.pop(lane, None)
        if position is not None:
            self._positions[lane] = position
        elif not self._pending and not self._positions:
            self._input.stream.close()

    def require_cursor(self, epoch: int, cursor: Json) -> None:
        """Raise `StateError` if a cursor is not a position of the stream."""
        self._reset()
        self._input.seek(epoch, cursor)
        if not is_cursor_at(self._input.cursor(), cursor):
            raise make_cursor_error(cursor, "a position of this pipeline")

    def read_items(
        self, position: ReadPosition, first: int, stop: int, step: int
    ) -> list[tuple[int, Chunk]]:
        """Return every `step`-th item of `[first, stop)` after a position, with the number of the
        first item of each chunk.
        """
        epoch, found = position.epoch, list[tuple[int, Chunk]]()
        while not self._is_buffered(epoch, first, stop):
            self._advance(position, stop)
        for start, (values, rows, cursors) in [
            part[1:] for part in self._parts if part.epoch == epoch
        ]:
            begin = first + max(0, -(-(start - first) // step)) * step
            picks = range(begin - start, min(stop - start, len(values)), step)
            if picks:
                found += [
                    (
                        start,
                        Chunk(
                            values[picks.start : picks.stop : step],
                            rows.take(np.asarray(picks)),
                            cursors,
                        ),
                    )
                ]
        return found

    def end_number(self, epoch: int) -> int | None:
        """Return the number after the last item of a pass; None if it was not read to its end."""
        return self._ends.get(epoch)

    def _is_buffered(self, epoch: int, first: int, stop: int) -> bool:
        low, high = self._buffered.get(epoch, (first, -1))
        return low <= first and (stop <= high or high == self._ends.get(epoch))

    def _advance(self, position: ReadPosition, stop: int) -> None:
        """Read, or seek, towards the items after a position."""
        epoch, own = self._epoch, self._laps.rule
        if (
            epoch < 0
            or position.epoch < epoch
            or position.number < self._buffered.get(position.epoch, (0, 0))[0]
        ):
            self._reset()
            self._seek(min(self._positions.values(), key=lambda wanted: wanted[:2]))
        elif position.epoch // own > epoch // own:
            self._seek(position)
        elif position.epoch > epoch and self._ends.get(epoch) == self._buffered[epoch][1]:
            if position.number < (first := self.first_number(epoch + 1)):
                raise make_cursor_error(position.number, f"a number from {first} on")
            self._seek(ReadPosition(epoch + 1, first, None))
        else:
            self._read(parse_cursor_int(max(1, stop - self._buffered[epoch][1]), _MAX_BUFFERED))

    def _seek(self, position: ReadPosition) -> None:
        epoch, number, cursor = position
        self._epoch = -1
        self._input.seek(epoch, cursor)
        self._buffered[epoch] = number, number
        self._epoch = epoch

    def _read(self, n: int) -> None:
        """Read up to `n` more items of the pass."""
        epoch, self._epoch = self._epoch, -1
        chunk = self._input.take(n)
        low, high = self._buffered[epoch]
        if chunk.values:
            self._parts += [_BufferedChunk(epoch, high, chunk)]
        self._buffered[epoch] = low, high + len(chunk.values)
        if len(chunk.values) < n:
            self._ends[epoch] = high + len(chunk.values)
        self._epoch = epoch

    def trim(self) -> None:
        """Drop the items that every lane has taken."""
        if not self._pending:
            epoch, number, _ = base = min(self._positions.values(), key=lambda wanted: wanted[:2])
            self._parts = [
                part
                for part in self._parts
                if (part.epoch, part.start + len(part.chunk.values)) > base[:2]
            ]
            self._buffered = {at: held for at, held in self._buffered.items() if at >= epoch}
            if epoch in self._buffered:
                low, high = self._buffered[epoch]
                self._buffered[epoch] = max(low, number), high


class SharedReaderLane:
    """One lane's items of a shared reader: every `lanes`-th.

    Its cursor has the stream's cursor after the last item, and its number.
    """

    def __init__(self, reader: SharedReader, lane: int, lanes: int) -> None:
        self.reader, self.lane, self.lanes = reader, lane, lanes
        self._position = ReadPosition(0, reader.first_number(0), None)

    def cursor(self) -> Json:
        return [self._position.cursor, self._position.number]

    def seek(self, epoch: int, cursor: Json, /) -> None:
        if cursor is None:
            while self.reader.is_end_unknown(epoch) and self._position.epoch == epoch - 1:
                self.pull(1 << 10)  # only the end of the pass matters here
            self._position = ReadPosition(epoch, self.reader.first_number(epoch), None)
        else:
            below, number = parse_cursor_list(cursor)
            self.reader.require_cursor(epoch, below)
            self._position = ReadPosition(epoch, parse_cursor_int(number), below)
            self.reader.set_position(self.lane, self._position)

    def close(self) -> None:
        self.reader.set_position(self.lane, None)

    def pull(self, n: int, /) -> Chunk:
        epoch, number, _ = self._position
        first = number + (self.lane - number) % self.lanes
        self.reader.set_position(self.lane, self._position)
        parts = self.reader.read_items(
            self._position, first, first + (n - 1) * self.lanes + 1, self.lanes
        )
        values = [value for _, chunk in parts for value in chunk.values]
        if (end := self.reader.end_number(epoch)) is not None and end < number:
            raise DataError(
                f"a stream ended after {end} samples, before sample {number}, where the run "
                "continues; make it give the same samples every time it is read"
            )
        if not values:
            return Chunk([], make_empty_rows(0), ConstantCursor(None))
        cursors = _SharedLaneCursors(
            self._position, first, self.lanes, [(start, chunk.cursors) for start, chunk in parts]
        )
        self._position = cursors.position_after(len(values))
        self.reader.set_position(self.lane, self._position)
        self.reader.trim()
        return Chunk(values, join_rows([chunk.rows for _, chunk in parts]), cursors)


@dataclass(frozen=True, slots=True)
class _SharedLaneCursors:
    before: ReadPosition
    first: int
    lanes: int
    parts: Sequence[tuple[int, ChunkCursors]]

    def position_after(self, count: int) -> ReadPosition:
        if not count:
            return self.before
        last = self.first + (count - 1) * self.lanes
        start, cursors = self.parts[bisect_right(self.parts, last, key=lambda part: part[0]) - 1]
        return ReadPosition(self.before.epoch, last + 1, cursors.at(last - start + 1))

    def at(self, count: int, /) -> Json:
        _, number, cursor = self.position_after(count)
        return [cursor, number]
