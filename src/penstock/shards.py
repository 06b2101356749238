"""Sources that can only be read in sequence, at run time: shards one after the other, each read by one lane, or rows
dealt to the lanes in memory where there are fewer shards than lanes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, cast

import numpy as np

from .barren import Barren
from .retry import patiently
from .rows import Rows, empty_rows
from .step import Leaf
from .streams import as_int, as_list
from .trail import Chunk, Fixed
from .types import Ints, Json, Shards


class Shelf:
    """The shards of a source, of which one is open: it is read on where it stands, or opened at another row."""

    def __init__(self, leaf: Leaf) -> None:
        self._leaf, self._shards = leaf, cast(Shards, leaf.source)
        self.names = list(self._shards.names())
        self.close()

    def close(self) -> None:
        self._rows: Iterator[Any] = iter(())
        self._at: tuple[int, int] | None = None

    def read(self, shard: int, row: int, n: int) -> list[Any]:
        """Up to `n` rows of a shard from `row` on."""
        return patiently(partial(self._read, shard, row, n))

    def _read(self, shard: int, row: int, n: int) -> list[Any]:
        at, self._at = self._at, None  # whatever is thrown, the next try opens the shard anew
        try:
            if at != (shard, row):
                self._rows = self._shards.open(self.names[shard], row)
            values = list(islice(self._rows, n))
        except Exception as error:
            error.add_note(f"penstock: in {self._leaf.name}, shard {self.names[shard]}")
            raise
        self._at = shard, row + len(values)
        if not values:
            self.close()
        return values


class Sharded:
    """Every `lanes`-th shard from the `lane`-th on, one after the other; the cursor is the shard and the row."""

    def __init__(self, leaf: Leaf, lane: int = 0, lanes: int = 1) -> None:
        self.leaf, self._lane, self._lanes = leaf, lane, lanes
        self._shelf = Shelf(leaf)
        self.seek(0, None)

    def cursor(self) -> Json:
        return [self._shard, self._row]

    def seek(self, epoch: int, cursor: Json, /) -> None:
        shard, row = (self._lane, 0) if cursor is None else as_list(cursor)
        self._epoch, self._shard, self._row = epoch, as_int(shard), as_int(row)

    def close(self) -> None:
        self._shelf.close()

    def pull(self, n: int, /) -> Chunk:
        while self._shard < len(self._shelf.names):
            if values := self._shelf.read(self._shard, self._row, n):
                trail, index = _ShardTrail(self._shard, self._row), np.arange(self._row, self._row + len(values))
                self._row += len(values)
                return Chunk(values, rows_of(self.leaf, self._epoch, index, self._shard), trail)
            self._shard, self._row = self._shard + self._lanes, 0
        return Chunk([], empty_rows(0), Fixed(None))


@dataclass(frozen=True, slots=True)
class _ShardTrail:
    shard: int
    row: int

    def at(self, count: int, /) -> Json:
        return [self.shard, self.row + count]


def rows_of(leaf: Leaf, epoch: int, index: Ints, shard: Ints | int) -> Rows:
    """Where rows of shards come from."""
    zeros = np.zeros_like(index)
    return Rows(zeros + leaf.number, zeros + epoch, index, zeros + shard)


# ---------------------------------------------------------------- fewer shards than lanes


class LaneOf(NamedTuple):
    """Which lane of how many; those of the rank, the readers that they share, by leaf, and what went barren."""

    lane: int
    lanes: int
    mine: Sequence[int]
    readers: dict[int, Reader]
    barren: Barren


class Place(NamedTuple):
    """Where a row lies: its number, counted over all passes, and its pass, shard and row."""

    number: int
    epoch: int
    shard: int
    row: int


class Reader:
    """Reads shards once for all lanes of a rank, and holds the rows between the lane that is furthest behind and the
    one that is furthest ahead.
    """

    def __init__(self, leaf: Leaf, lanes: Iterable[int]) -> None:
        self.leaf, self._shelf = leaf, Shelf(leaf)
        self._pending, self._wanted = set(lanes), dict[int, Place]()
        self._at: Place | None = None

    def want(self, lane: int, place: Place | None) -> None:
        """A lane goes on behind this place; None where it needs no more."""
        self._pending.discard(lane)
        self._wanted.pop(lane, None)
        if place is not None:
            self._wanted[lane] = place

    def _begin(self) -> Place:
        """Go to the lane that is furthest behind: at first, after a resume, and where something was thrown."""
        at = min(self._wanted.values())
        self._base, self._rows, self._parts = at.number, list[Any](), [at]
        self._ends = dict[int, int]()
        return at

    def rows(self, first: int, stop: int, step: int, epoch: int) -> tuple[list[Any], Ints, Ints]:
        """Every `step`-th row of `[first, stop)` that is of this pass, with their shards and places there."""
        at = self._begin() if self._at is None or first < self._base else self._at
        while at.number < stop and epoch not in self._ends:
            at = self._at = self._read(at, stop - at.number)
        numbers = np.arange(first, min(stop, self._ends.get(epoch, stop)), step)
        part = np.searchsorted([place.number for place in self._parts], numbers, side="right") - 1
        lie = np.asarray([(place.shard, place.row - place.number) for place in self._parts], np.int64)[part]
        values = self._rows[first - self._base : first - self._base + step * len(numbers) : step]
        return values, lie[:, 0], lie[:, 1] + numbers

    def end(self, epoch: int) -> int:
        """The number of the first row behind a pass that was read to its end."""
        return self._ends[epoch]

    def _read(self, at: Place, n: int) -> Place:
        """Up to `n` rows more, or over the end of a shard or a pass. What is thrown meanwhile changes nothing."""
        number, epoch, shard, row = at
        if shard < len(self._shelf.names):
            if values := self._shelf.read(shard, row, n):
                self._rows += values
                return Place(number + len(values), epoch, shard, row + len(values))
            after = Place(number, epoch, shard + 1, 0)
        else:
            after = Place(number, epoch + 1, 0, 0)
            self._ends[epoch] = number
        self._parts += [after]
        return after

    def trim(self) -> None:
        """Forget the rows that every lane has taken."""
        least = self._base if self._pending else min(place.number for place in self._wanted.values())
        if (gone := least - self._base) > len(self._rows) // 2:
            del self._rows[:gone]
            self._base = least
            keep = bisect_right(self._parts, least, key=lambda place: place.number) - 1
            del self._parts[:keep]


class Dealt:
    """A lane's rows of a reader: every `lanes`-th. The cursor is the shard, row and number behind the last one."""

    def __init__(self, reader: Reader, lane: int, lanes: int) -> None:
        self.reader, self.lane, self.lanes, self._over = reader, lane, lanes, False
        self._place = Place(0, 0, 0, 0)

    def cursor(self) -> Json:
        number, _, shard, row = self._place
        return [shard, row, number]

    def seek(self, epoch: int, cursor: Json, /) -> None:
        if cursor is None:
            # Rows are dealt on over the end of a pass, so that a lane without a share of one has one of another.
            on = self._over and epoch == self._place.epoch + 1
            self._place = Place(self.reader.end(epoch - 1) if on else 0, epoch, 0, 0)
        else:
            shard, row, number = map(as_int, as_list(cursor, 3))
            self._place = Place(number, epoch, shard, row)
        self._over = False
        self.reader.want(self.lane, self._place)

    def close(self) -> None:
        self.reader.want(self.lane, None)

    def pull(self, n: int, /) -> Chunk:
        number, epoch, _, _ = self._place
        first = number + (self.lane - number) % self.lanes
        values, shard, row = self.reader.rows(first, first + (n - 1) * self.lanes + 1, self.lanes, epoch)
        self._over = len(values) < n
        if not values:
            return Chunk([], empty_rows(0), Fixed(None))
        trail = _DealtTrail(self._place, first, self.lanes, shard, row)
        self._place = Place(first + (len(values) - 1) * self.lanes + 1, epoch, int(shard[-1]), int(row[-1]) + 1)
        self.reader.want(self.lane, self._place)
        self.reader.trim()
        return Chunk(values, rows_of(self.reader.leaf, epoch, row, shard), trail)


@dataclass(frozen=True, slots=True)
class _DealtTrail:
    before: Place
    first: int
    lanes: int
    shard: Ints
    row: Ints

    def at(self, count: int, /) -> Json:
        if not count:
            return [self.before.shard, self.before.row, self.before.number]
        last = count - 1
        return [int(self.shard[last]), int(self.row[last]) + 1, self.first + last * self.lanes + 1]
