"""Streams that lanes cannot share out among themselves: read once a rank, their items dealt to the lanes in memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from .barren import Barren
from .errors import DataError
from .nodes import Path
from .rows import empty_rows, join_rows
from .streams import Stream, Tap, as_int, as_list, bad_cursor, stands_at
from .trail import Chunk, Fixed, Trail
from .types import Json


class LaneOf(NamedTuple):
    """Which lane of how many; those of the rank, the readers that they share, by place, and what went barren."""

    lane: int
    lanes: int
    mine: Sequence[int]
    readers: dict[Path, Reader]
    barren: Barren


class Place(NamedTuple):
    """Between two items of a stream: how many came before, over all passes, and the pass and the cursor there."""

    number: int
    epoch: int
    cursor: Json


class Reader:
    """Reads a stream once for all lanes of a rank, and holds the items between the lane that is furthest behind and the
    one that is furthest ahead.
    """

    def __init__(self, stream: Stream, lanes: Iterable[int]) -> None:
        self._tap, self._pending, self._wanted = Tap(stream), set(lanes), dict[int, Place]()
        self._parts = list[tuple[int, Chunk]]()  # what was read, each with the number of its first item
        self._ends = dict[int, int]()  # the number behind each pass that was read to its end
        self._base, self._stop, self._epoch, self._lost = 0, 0, 0, True

    def want(self, lane: int, place: Place | None) -> None:
        """A lane goes on behind this place; None where it needs no more."""
        self._pending.discard(lane)
        self._wanted.pop(lane, None)
        if place is not None:
            self._wanted[lane] = place
        elif not self._pending and not self._wanted:
            self._tap.stream.close()

    def check(self, epoch: int, cursor: Json) -> None:
        """Refuse a cursor that is no place of the stream."""
        self._lost = True
        self._tap.seek(epoch, cursor)
        if not stands_at(self._tap.cursor(), cursor):
            raise bad_cursor(cursor, "a place of this pipeline")

    def items(self, first: int, stop: int, step: int, epoch: int) -> list[tuple[int, Chunk]]:
        """Every `step`-th item of `[first, stop)` that is of this pass, with the number of the first of each chunk."""
        if self._lost or first < self._base:
            self._begin()
        while self._stop < stop and epoch not in self._ends:
            self._read(stop - self._stop)
        found, stop = list[tuple[int, Chunk]](), min(stop, self._ends.get(epoch, stop))
        for start, (values, rows, trail) in self._parts:
            begin = first + max(0, -(-(start - first) // step)) * step
            picks = range(begin - start, min(stop - start, len(values)), step)
            if picks:
                found += [(start, Chunk(values[picks.start : picks.stop : step], rows.take(np.asarray(picks)), trail))]
        return found

    def end(self, epoch: int) -> int | None:
        """The number behind a pass, once it was read to its end."""
        return self._ends.get(epoch)

    def _begin(self) -> None:
        """Go to the lane that is furthest behind: at first, after a resume, and where something was thrown."""
        number, self._epoch, cursor = min(self._wanted.values(), key=lambda place: place.number)
        self._lost = True
        self._tap.seek(self._epoch, cursor)
        self._parts, self._ends, self._base, self._stop, self._lost = [], {}, number, number, False

    def _read(self, n: int) -> None:
        """Up to `n` items more, or over the end of a pass."""
        self._lost = True
        chunk = self._tap.take(n)
        if chunk.values:
            self._parts += [(self._stop, chunk)]
            self._stop += len(chunk.values)
        if len(chunk.values) < n:
            self._ends[self._epoch] = self._stop
            self._epoch += 1
            self._tap.seek(self._epoch, None)
        self._lost = False

    def trim(self) -> None:
        """Forget the items that every lane has taken."""
        if not self._pending:
            self._base = min(place.number for place in self._wanted.values())
            self._parts = [part for part in self._parts if part[0] + len(part[1].values) > self._base]


class Dealt:
    """A lane's items of a reader: every `lanes`-th. The cursor is that of the stream behind the last one, and its
    number.
    """

    def __init__(self, reader: Reader, lane: int, lanes: int) -> None:
        self.reader, self.lane, self.lanes, self._over = reader, lane, lanes, False
        self._place = Place(0, 0, None)

    def cursor(self) -> Json:
        return [self._place.cursor, self._place.number]

    def seek(self, epoch: int, cursor: Json, /) -> None:
        if cursor is None:
            # Items are dealt on over the end of a pass, so that a lane without a share of one has one of another.
            on = self._over and epoch == self._place.epoch + 1
            self._place = Place((on and self.reader.end(epoch - 1)) or 0, epoch, None)
        else:
            below, number = as_list(cursor)
            self.reader.check(epoch, below)
            self._place = Place(as_int(number), epoch, below)
            self.reader.want(self.lane, self._place)
        self._over = False

    def close(self) -> None:
        self.reader.want(self.lane, None)

    def pull(self, n: int, /) -> Chunk:
        number, epoch, _ = self._place
        first = number + (self.lane - number) % self.lanes
        self.reader.want(self.lane, self._place)
        parts = self.reader.items(first, first + (n - 1) * self.lanes + 1, self.lanes, epoch)
        values = [value for _, chunk in parts for value in chunk.values]
        self._over = len(values) < n
        if (end := self.reader.end(epoch)) is not None and end < number:
            raise DataError(
                f"a stream ended after {end} samples, where sample {number} was to be found again: it must give the "
                "same samples every time"
            )
        if not values:
            return Chunk([], empty_rows(0), Fixed(None))
        trail = _DealtTrail(self._place, first, self.lanes, [(start, chunk.trail) for start, chunk in parts])
        self._place = trail.place(len(values))
        self.reader.want(self.lane, self._place)
        self.reader.trim()
        return Chunk(values, join_rows([chunk.rows for _, chunk in parts]), trail)


@dataclass(frozen=True, slots=True)
class _DealtTrail:
    before: Place
    first: int
    lanes: int
    parts: Sequence[tuple[int, Trail]]

    def place(self, count: int) -> Place:
        if not count:
            return self.before
        last = self.first + (count - 1) * self.lanes
        start, trail = self.parts[bisect_right(self.parts, last, key=lambda part: part[0]) - 1]
        return Place(last + 1, self.before.epoch, trail.at(last - start + 1))

    def at(self, count: int, /) -> Json:
        number, _, cursor = self.place(count)
        return [cursor, number]


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
