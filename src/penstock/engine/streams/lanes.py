"""Flows whose yield depends on the data run as lanes. Those of a rank, in turn, are one stream
here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from ...types import Json
from ..base.cursors import is_cursor_at, make_cursor_error, parse_cursor_int
from ..base.random import build_permutations, derive_key, derive_tweak_keys
from ..base.rows import join_rows, make_empty_rows
from ..base.seams import world
from .empty_passes import EmptyPassDetector
from .execution import Pace
from .stream import Stream, BufferedStream, join_chunks
from .trail import ContinuedCursors, Chunk, GroupedCursors, ConstantCursor, OffsetCursors, ChunkCursors

_KEY = derive_key("rounds of ranks")


class _Lane:
    """One lane: its stream, opened when it is first asked, and what was taken from it beforehand: a
    few items more than were asked for, where items are cheap beside the asking.
    """

    def __init__(self, number: int, opened: Callable[[int], Stream]) -> None:
        self.number, self._opened = number, opened
        self._tap: BufferedStream | None = None

    def open(self) -> BufferedStream:
        if self._tap is None:
            self._tap = BufferedStream(self._opened(self.number))
        return self._tap

    def seek(self, epoch: int, cursor: Json) -> None:
        self._epoch, self._fresh, self._over = epoch, cursor is None, False
        self._parts, self._left, self._pace = list[Chunk](), 0, Pace()
        self.position: tuple[ChunkCursors, int] = (ConstantCursor(cursor), 0)
        if cursor is not None:
            tap = self.open()
            tap.seek(epoch, cursor)
            if not is_cursor_at(tap.cursor(), cursor):
                raise make_cursor_error(cursor, "a position of this pipeline")

    def close(self) -> None:
        if self._tap is not None:
            self._tap.stream.close()

    def buffer(self, n: int, most: int) -> int:
        """Buffer `n` items, or all that are left, and return how many. No more than `most` are
        taken in advance.
        """
        if self._left < n and not self._over:
            wanted, first, began, tap = (
                max(n - self._left, min(self._pace.size, most)),
                self._fresh,
                world.sched.now(),
                self.open(),
            )
            if first:
                tap.seek(self._epoch, None)
                self._fresh = False
            more = tap.take(wanted)
            self._pace.learn(wanted, world.sched.now() - began)
            self._over = len(more.values) < wanted
            if more.values:
                # What gave nothing stands at null, whether it was asked already or not.
                self._parts += [
                    more._replace(trail=ContinuedCursors(ConstantCursor(None), 0, more.cursors)) if first else more
                ]
                self._left += len(more.values)
        return min(n, self._left)

    def take(self, n: int) -> Chunk:
        """The next `n` items at hand."""
        given, missing = list[Chunk](), n
        while missing:
            values, rows, trail = part = self._parts.pop(0)
            if (extra := len(values) - missing) > 0:
                part = Chunk(values[:missing], rows.slice(0, missing), trail)
                rest = Chunk(
                    values[missing:], rows.slice(missing, missing + extra), OffsetCursors(trail, missing)
                )
                self._parts.insert(0, rest)
            given += [part]
            missing -= len(part.values)
        chunk = join_chunks(given)
        self._left -= n
        self.position = chunk.cursors, n
        return chunk


@dataclass(frozen=True, slots=True)
class InterleavedCursors:
    """The trail of items taken from lanes in turn."""

    turn: int
    drawn: int | None
    lanes: int
    first: int
    ranks: int
    ended: Mapping[int, tuple[ChunkCursors, int]]
    order: Sequence[int]
    positions: list[tuple[ChunkCursors, int]]

    def turn_after(self, count: int) -> int:
        """The turn after so many items: whoever ended was passed over."""
        if not count:
            return self.turn
        rounds, last = divmod(count - 1, len(self.order))
        distance = (self.order[last] - self.turn - self.first) % self.lanes
        return self.turn + rounds * self.lanes + distance + self.ranks

    def at(self, count: int, /) -> Json:
        full, part = divmod(count, len(self.order)) if self.order else (0, 0)
        cursors = {lane: trail.at(used) for lane, (trail, used) in self.ended.items()}
        for i, (lane, (trail, used)) in enumerate(zip(self.order, self.positions, strict=True)):
            cursors[lane] = trail.at(used + full + (i < part))
        at: dict[str, Json] = {str(lane): cursors[lane] for lane in sorted(cursors)}
        found: dict[str, Json] = {
            "at": at,
            "turn": self.turn_after(count),
            "ended": [*sorted(self.ended)],
        }
        if self.drawn is not None:
            found["drawn"] = self.drawn + count
        return found


class InterleavedLanes:
    """The outputs of this rank's lanes in turn, as one stream; a lane that ended is passed over.

    Lane `l` gives outputs `l`, `l + lanes`, ... of the run and is of rank `l mod ranks`. The cursor
    has the cursor of every lane; null stands for a lane that delivered nothing yet.
    """

    def __init__(
        self,
        lanes: int,
        rank: int,
        ranks: int,
        limit: int | None,
        opened: Callable[[int], Stream],
        empty_passes: EmptyPassDetector,
        wide: Callable[[], int],
    ) -> None:
        self.lanes, self.rank, self.ranks, self.limit, self.empty_passes = (
            lanes,
            rank,
            ranks,
            limit,
            empty_passes,
        )
        self._opened, self._wide = opened, wide
        self._all = dict[int, _Lane]()
        self.seek(0, None)
        self._all[rank].open()  # compiles what all lanes share, and refuses now what cannot run

    def seek(self, epoch: int, cursor: Json, /) -> None:
        found = _parse_lanes_cursor(cursor)
        if self.limit is not None and found.drawn > self.limit:
            raise make_cursor_error(found.drawn, f"a number of items up to {self.limit}")
        self._turn, self._drawn = found.turn, found.drawn
        self._first = (
            self.rank - self._turn
        ) % self.ranks  # from the turn to the first lane of ours
        start = self._turn + self._first
        mine = [lane % self.lanes for lane in range(start, start + self.lanes, self.ranks)]
        for lane in mine:
            if lane not in self._all:
                self._all[lane] = _Lane(lane, self._opened)
            self._all[lane].seek(epoch, found.at.get(lane))
        self._ended = {lane: self._all[lane].position for lane in mine if lane in found.ended}
        self._order = [self._all[lane] for lane in mine if lane not in found.ended]
        self._given = any(at is not None for at in found.at.values())

    def cursor(self) -> Json:
        return self._make_cursors().at(0)

    def _make_cursors(self) -> InterleavedCursors:
        drawn = None if self.limit is None else self._drawn
        numbers, behind = (
            [lane.number for lane in self._order],
            [lane.position for lane in self._order],
        )
        return InterleavedCursors(
            self._turn,
            drawn,
            self.lanes,
            self._first,
            self.ranks,
            dict(self._ended),
            numbers,
            behind,
        )

    def close(self) -> None:
        for lane in self._all.values():
            lane.close()

    def pull(self, n: int, /) -> Chunk:
        if self.limit is not None:
            n = min(n, self.limit - self._drawn)
            while self._drawn == self.limit and self._order:
                self._end_lane()
        while n and self._order:
            count, cut, most = len(self._order), n, self._wide()
            for i, lane in enumerate(self._order[:n]):
                wanted = -(-(n - i) // count)
                if (found := lane.buffer(wanted, most)) < wanted:
                    cut = min(cut, found * count + i)  # here it is to be passed over
            if cut:
                return self._take(cut)
            self._end_lane()
        if n:
            self.empty_passes.check(self._given)
        return Chunk([], make_empty_rows(0), ConstantCursor(self.cursor()))

    def _end_lane(self) -> None:
        """The lane whose turn it is has ended."""
        lane, *self._order = self._order
        self._ended[lane.number] = lane.position
        lane.close()

    def _take(self, n: int) -> Chunk:
        """The next `n` items, which are at hand."""
        trail, count = self._make_cursors(), len(self._order)
        full, part = divmod(n, count)
        parts = [lane.take(full + (i < part)) for i, lane in enumerate(self._order[:n])]
        trail.positions[: len(parts)] = [(chunk.cursors, 0) for chunk in parts]
        self._turn, self._drawn, self._given = trail.turn_after(n), self._drawn + n, True
        self._order = self._order[part:] + self._order[:part]
        if count == 1:
            return Chunk(parts[0].values, parts[0].rows, trail)
        values: list[Any] = [None] * n
        for i, chunk in enumerate(parts):
            values[i::count] = chunk.values
        starts = np.cumsum([0, *(len(chunk.values) for chunk in parts[:-1])])
        round_, turn = np.divmod(np.arange(n), count)
        return Chunk(
            values, join_rows([chunk.rows for chunk in parts]).take(starts[turn] + round_), trail
        )

    def open_all(self) -> None:
        """Open every lane, also those that nobody asked yet."""
        for lane in self._all.values():
            lane.open()


class _LanesCursor(NamedTuple):
    """A cursor of lanes, read with care."""

    turn: int
    drawn: int
    at: dict[int, Json]
    ended: set[int]


def _parse_lanes_cursor(cursor: Any) -> _LanesCursor:
    if cursor is None:
        return _LanesCursor(0, 0, {}, set())
    try:
        turn, drawn = parse_cursor_int(cursor["turn"]), parse_cursor_int(cursor.get("drawn", 0))
        at = {int(lane): below for lane, below in cursor["at"].items()}
        return _LanesCursor(turn, drawn, at, set(map(parse_cursor_int, cursor.get("ended", []))))
    except (KeyError, TypeError, AttributeError) as error:
        raise make_cursor_error(cursor, "the cursors of lanes") from error


class ReplicatedLanes:
    """One rank's items of a run whose lanes the ranks cannot share out: each rank reads all lanes,
    and keeps one item of every round of `ranks` items.

    Which one is a permutation keyed by the turn at which the round begins: in a fixed order, a
    mixture that alternates would give each rank one source. The cursor is the run's after whole
    rounds, so all ranks have the same one.
    """

    def __init__(self, lanes: InterleavedLanes, rank: int, ranks: int) -> None:
        self._lanes, self._rank, self._ranks = lanes, rank, ranks

    def cursor(self) -> Json:
        return self._lanes.cursor()

    def seek(self, epoch: int, cursor: Json, /) -> None:
        self._lanes.seek(epoch, cursor)

    def close(self) -> None:
        self._lanes.close()

    def pull(self, n: int, /) -> Chunk:
        parts, turns, total, ranks = list[Chunk](), list[int](), 0, self._ranks
        while total < n * ranks:
            chunk, first = self._lanes.pull(n * ranks - total), -total % ranks
            if not (count := len(chunk.values)):
                break
            turns += [
                cast("InterleavedCursors", chunk.cursors).turn_after(item) for item in range(first, count, ranks)
            ]
            parts.append(chunk)
            total += count
        if not parts:
            return Chunk([], make_empty_rows(0), ConstantCursor(self.cursor()))
        values, rows, trail = join_chunks(parts)
        slots = build_permutations(ranks, derive_tweak_keys(_KEY, np.asarray(turns)))[:, self._rank]
        picks = np.arange(len(turns)) * ranks + slots
        picks = picks[picks < total]  # the last round of a pass may have no item for us
        return Chunk(
            [values[pick] for pick in picks.tolist()], rows.take(picks), GroupedCursors(trail, ranks, total)
        )


class WorkerShare:
    """A share of a rank's items: item `turn`, and every `turns`-th after it.

    The cursor is that before its next item, so the others are computed too: their samples depend on
    the data.
    """

    def __init__(self, stream: Stream, turn: int, turns: int) -> None:
        self._tap, self._turn, self._turns = BufferedStream(stream), turn, turns

    def cursor(self) -> Json:
        return self._tap.cursor()

    def seek(self, epoch: int, cursor: Json, /) -> None:
        self._tap.seek(epoch, cursor)
        if cursor is None and self._turn:
            self._tap.take(self._turn)

    def close(self) -> None:
        self._tap.stream.close()

    def pull(self, n: int, /) -> Chunk:
        values, rows, trail = self._tap.take(n * self._turns)
        picks = np.arange(0, len(values), self._turns)
        return Chunk(
            values[:: self._turns], rows.take(picks), GroupedCursors(trail, self._turns, len(values))
        )
