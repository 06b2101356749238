"""Flows whose yield depends on the data run as lanes. Those of a rank, in turn, are one stream here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .barren import Barren
from .rows import empty_rows, join_rows
from .states import lane_number
from .streams import Stream, Tap, as_int, bad_cursor, joined, stands_at
from .trail import After, Chunk, Fixed, Offset, Trail
from .types import Json


class _Lane:
    """One lane: its stream, opened when it is first asked, and what was taken from it beforehand."""

    def __init__(self, number: int, opened: Callable[[int], Stream]) -> None:
        self.number, self._opened = number, opened
        self._tap: Tap | None = None

    @property
    def tap(self) -> Tap:
        if self._tap is None:
            self._tap = Tap(self._opened(self.number))
        return self._tap

    def seek(self, epoch: int, cursor: Json) -> None:
        self._epoch, self._fresh = epoch, cursor is None
        self._chunk, self._used, self._over = Chunk([], empty_rows(0), Fixed(cursor)), 0, False
        if cursor is not None:
            self.tap.seek(epoch, cursor)
            if not stands_at(self.tap.cursor(), cursor):
                raise bad_cursor(cursor, "a place of this pipeline")

    def close(self) -> None:
        if self._tap is not None:
            self._tap.stream.close()

    @property
    def behind(self) -> tuple[Trail, int]:
        return self._chunk.trail, self._used

    def have(self, n: int) -> int:
        """Have `n` items at hand, or all that are left; how many that is."""
        chunk, used = self._chunk, self._used
        left = len(chunk.values) - used
        if left < n and not self._over:
            if self._fresh:
                self.tap.seek(self._epoch, None)
                self._fresh = False
            more = self.tap.take(n - left)
            self._over = len(more.values) < n - left
            if more.values and left:
                rest = Chunk(chunk.values[used:], chunk.rows.slice(used, used + left), Offset(chunk.trail, used))
                self._chunk, self._used = joined([rest, more]), 0
            elif more.values:
                self._chunk, self._used = more._replace(trail=After(chunk.trail, used, more.trail)), 0
        return min(n, len(self._chunk.values) - self._used)

    def give(self, n: int) -> Chunk:
        """The next `n` items at hand."""
        chunk, start = self._chunk, self._used
        self._used = start + n
        if start == 0 and n == len(chunk.values):
            return chunk
        return Chunk(chunk.values[start : start + n], chunk.rows.slice(start, start + n), chunk.trail)


@dataclass(frozen=True, slots=True)
class Turned:
    """The trail of items taken from lanes in turn."""

    turn: int
    drawn: int | None
    lanes: int
    first: int
    ranks: int
    ended: Mapping[int, tuple[Trail, int]]
    order: Sequence[int]
    behind: Sequence[tuple[Trail, int]]

    def after(self, count: int) -> int:
        """The turn after so many items: whoever ended was passed over."""
        if not count:
            return self.turn
        rounds, last = divmod(count - 1, len(self.order))
        distance = (self.order[last] - self.turn - self.first) % self.lanes
        return self.turn + rounds * self.lanes + distance + self.ranks

    def at(self, count: int, /) -> Json:
        full, part = divmod(count, len(self.order)) if self.order else (0, 0)
        cursors = {lane: trail.at(used) for lane, (trail, used) in self.ended.items()}
        for i, (lane, (trail, used)) in enumerate(zip(self.order, self.behind, strict=True)):
            cursors[lane] = trail.at(used + full + (i < part))
        at: dict[str, Json] = {str(lane): cursors[lane] for lane in sorted(cursors)}
        found: dict[str, Json] = {"at": at, "turn": self.after(count), "ended": [*sorted(self.ended)]}
        if self.drawn is not None:
            found["drawn"] = self.drawn + count
        return found


class Lanes:
    """The outputs of this rank's lanes in turn, as one stream; a lane that ended is passed over.

    Lane `l` gives outputs `l`, `l + lanes`, ... of the run and is of rank `l mod ranks`. The cursor has that of every
    lane; null is one that has given nothing yet.
    """

    def __init__(
        self, lanes: int, rank: int, ranks: int, limit: int | None, opened: Callable[[int], Stream], barren: Barren
    ) -> None:
        self.lanes, self.rank, self.ranks, self.limit, self.barren = lanes, rank, ranks, limit, barren
        self._opened = opened
        self._all = dict[int, _Lane]()
        self.seek(0, None)
        assert self._all[rank].tap  # compiles what all lanes share, and refuses now what cannot run

    def seek(self, epoch: int, cursor: Json, /) -> None:
        found = _found(cursor)
        self._turn, self._drawn = found.turn, found.drawn
        self._first = (self.rank - self._turn) % self.ranks  # from the turn to the first lane of ours
        start = self._turn + self._first
        mine = [lane % self.lanes for lane in range(start, start + self.lanes, self.ranks)]
        for lane in mine:
            if lane not in self._all:
                self._all[lane] = _Lane(lane, self._opened)
            self._all[lane].seek(epoch, found.at.get(lane))
        self._ended = {lane: self._all[lane].behind for lane in mine if lane in found.ended}
        self._order = [self._all[lane] for lane in mine if lane not in found.ended]
        self._given = any(at is not None for at in found.at.values())
        self.barren.found.clear()

    def cursor(self) -> Json:
        return self._trail().at(0)

    def _trail(self) -> Turned:
        drawn = None if self.limit is None else self._drawn
        numbers, behind = [lane.number for lane in self._order], [lane.behind for lane in self._order]
        return Turned(self._turn, drawn, self.lanes, self._first, self.ranks, dict(self._ended), numbers, behind)

    def close(self) -> None:
        for lane in self._all.values():
            lane.close()

    def pull(self, n: int, /) -> Chunk:
        if self.limit is not None:
            n = min(n, self.limit - self._drawn)
        while n > 0 and self._order:
            count, cut = len(self._order), n
            for i, lane in enumerate(self._order[:n]):
                wanted = -(-(n - i) // count)
                if (found := lane.have(wanted)) < wanted:
                    cut = min(cut, found * count + i)  # here it is to be passed over
            if cut:
                return self._dealt(cut)
            self._end()
        self.barren.check(self._given)
        return Chunk([], empty_rows(0), Fixed(self.cursor()))

    def _end(self) -> None:
        """The lane whose turn it is has ended."""
        lane, *self._order = self._order
        self._ended[lane.number] = lane.behind
        lane.close()

    def _dealt(self, n: int) -> Chunk:
        """The next `n` items, which are at hand."""
        trail, count = self._trail(), len(self._order)
        full, part = divmod(n, count)
        parts = [lane.give(full + (i < part)) for i, lane in enumerate(self._order[:n])]
        self._turn, self._drawn, self._given = trail.after(n), self._drawn + n, True
        self._order = self._order[part:] + self._order[:part]
        if count == 1:
            return Chunk(parts[0].values, parts[0].rows, trail)
        values: list[Any] = [None] * n
        for i, chunk in enumerate(parts):
            values[i::count] = chunk.values
        starts = np.cumsum([0, *(len(chunk.values) for chunk in parts[:-1])])
        round_, turn = np.divmod(np.arange(n), count)
        return Chunk(values, join_rows([chunk.rows for chunk in parts]).take(starts[turn] + round_), trail)

    def open_all(self) -> None:
        """Open every lane, also those that nobody asked yet."""
        for lane in self._all.values():
            assert lane.tap


class _Found(NamedTuple):
    """A cursor of lanes, read with care."""

    turn: int
    drawn: int
    at: dict[int, Json]
    ended: set[int]


def _found(cursor: Any) -> _Found:
    if cursor is None:
        return _Found(0, 0, {}, set())
    try:
        turn, drawn = as_int(cursor["turn"]), as_int(cursor.get("drawn", 0))
        at = {lane_number(lane): below for lane, below in cursor["at"].items()}
        return _Found(turn, drawn, at, set(map(as_int, cursor.get("ended", []))))
    except (KeyError, TypeError, AttributeError) as error:
        raise bad_cursor(cursor, "the cursors of lanes") from error
