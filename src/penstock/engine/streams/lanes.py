"""Lanes of pipelines whose yield depends on the data, interleaved to one stream of a rank."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from ...types import Json
from ..base.cursors import is_cursor_at, make_cursor_error, parse_cursor_int
from ..base.random import build_permutations, derive_key, derive_tweak_keys
from ..base.rows import join_rows, make_empty_rows
from ..base.seams import world
from .chunk_cursors import (
    Chunk,
    ChunkCursors,
    ConstantCursor,
    ContinuedCursors,
    GroupedCursors,
    OffsetCursors,
)
from .empty_passes import EmptyPassDetector
from .execution import Pace
from .stream import BufferedStream, Stream, join_chunks

_KEY = derive_key("rounds of ranks")


class LaneTrail(NamedTuple):
    """The cursors of items that a lane gave, and how many of them precede its position.

    `number` tells apart the trails of a lane: a cursor is made once for a trail and a count.
    """

    cursors: ChunkCursors
    used: int
    number: int


_count_trails = itertools.count().__next__


class _Lane:
    """One lane: its stream, opened at the first request, and a buffer of items taken in advance.

    It buffers a few more items than requested if items are cheap beside a call.
    """

    def __init__(self, number: int, opened: Callable[[int], Stream]) -> None:
        self.number, self._opened = number, opened
        self._input: BufferedStream | None = None

    def open(self) -> BufferedStream:
        if self._input is None:
            self._input = BufferedStream(self._opened(self.number))
        return self._input

    def seek(self, epoch: int, cursor: Json) -> None:
        self._epoch, self._fresh, self._over = epoch, cursor is None, False
        self._parts, self._left, self._pace = list[Chunk](), 0, Pace()
        self.position = LaneTrail(ConstantCursor(cursor), 0, _count_trails())
        if cursor is not None:
            stream = self.open()
            stream.seek(epoch, cursor)
            if not is_cursor_at(stream.cursor(), cursor):
                raise make_cursor_error(cursor, "a position of this pipeline")

    def close(self) -> None:
        if self._input is not None:
            self._input.stream.close()

    def buffer(self, n: int, most: int) -> int:
        """Buffer `n` items, or all that are left, and return how many. No more than `most` are
        taken in advance.
        """
        if self._left < n and not self._over:
            wanted = max(n - self._left, min(self._pace.size, most))
            first = self._fresh
            began = world.sched.now()
            stream = self.open()
            if first:
                stream.seek(self._epoch, None)
                self._fresh = False
            more = stream.take(wanted)
            self._pace.learn(wanted, world.sched.now() - began)
            self._over = len(more.values) < wanted
            if more.values:
                # What gave nothing stands at null, whether it was asked already or not.
                self._parts += [
                    more._replace(cursors=ContinuedCursors(ConstantCursor(None), 0, more.cursors))
                    if first
                    else more
                ]
                self._left += len(more.values)
        return min(n, self._left)

    def take(self, n: int) -> Chunk:
        """Return the next `n` buffered items."""
        given, missing = list[Chunk](), n
        while missing:
            values, rows, cursors = part = self._parts.pop(0)
            if (extra := len(values) - missing) > 0:
                part = Chunk(values[:missing], rows.slice(0, missing), cursors)
                rest = Chunk(
                    values[missing:],
                    rows.slice(missing, missing + extra),
                    OffsetCursors(cursors, missing),
                )
                self._parts.insert(0, rest)
            given += [part]
            missing -= len(part.values)
        chunk = join_chunks(given)
        self._left -= n
        self.position = LaneTrail(chunk.cursors, n, _count_trails())
        return chunk


MadeCursors: TypeAlias = dict[int, tuple[int, int, Json]]
"""The cursor of every lane that was made last, with the number of its trail and its count."""


@dataclass(frozen=True, slots=True)
class InterleavedCursors:
    """The cursors of items that were taken from lanes in turn.

    `behind` has the trails of the lanes in `order` before the first item, and `taken` those of the
    items. A lane that did not move has the same cursor object as before, from `made`.
    """

    turn: int
    drawn: int | None
    lanes: int
    first: int
    ranks: int
    ended: Mapping[int, LaneTrail]
    order: Sequence[int]
    behind: Sequence[LaneTrail]
    taken: Sequence[LaneTrail]
    made: MadeCursors

    def turn_after(self, count: int) -> int:
        """Return the turn after some items; ended lanes are skipped."""
        if not count:
            return self.turn
        rounds, last = divmod(count - 1, len(self.order))
        distance = (self.order[last] - self.turn - self.first) % self.lanes
        return self.turn + rounds * self.lanes + distance + self.ranks

    def at(self, count: int, /) -> Json:
        full, part = divmod(count, len(self.order)) if self.order else (0, 0)
        by_lane = {lane: self._at(lane, trail, trail.used) for lane, trail in self.ended.items()}
        for i, lane in enumerate(self.order):
            used = full + (i < part)
            trail = self.taken[i] if used else self.behind[i]
            by_lane[lane] = self._at(lane, trail, used or trail.used)
        at: dict[str, Json] = {str(lane): by_lane[lane] for lane in sorted(by_lane)}
        found: dict[str, Json] = {
            "at": at,
            "turn": self.turn_after(count),
            "ended": [*sorted(self.ended)],
        }
        if self.drawn is not None:
            found["drawn"] = self.drawn + count
        return found

    def _at(self, lane: int, trail: LaneTrail, used: int) -> Json:
        """Return the cursor of a lane: the last one that was made, if it did not move."""
        number, count, cursor = self.made.get(lane, _NOT_MADE)
        if number == trail.number and count == used:
            return cursor
        cursor = trail.cursors.at(used)
        self.made[lane] = trail.number, used, cursor
        return cursor


_NOT_MADE = (-1, 0, None)


class InterleavedLanes:
    """The outputs of this rank's lanes in turn, as one stream; ended lanes are skipped.

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
        self.lanes = lanes
        self.rank = rank
        self.ranks = ranks
        self.limit = limit
        self.empty_passes = empty_passes
        self._opened, self._wide = opened, wide
        self._all = dict[int, _Lane]()
        self._made = MadeCursors()
        self.seek(0, None)
        self._all[rank].open()  # compiles what all lanes share, and refuses now what cannot run

    def seek(self, epoch: int, cursor: Json, /) -> None:
        found = _parse_lanes_cursor(cursor)
        if self.limit is not None and found.drawn > self.limit:
            raise make_cursor_error(found.drawn, f"a number of items up to {self.limit}")
        self._turn, self._drawn = found.turn, found.drawn
        # From the turn to the first lane of ours.
        self._first = (self.rank - self._turn) % self.ranks
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

    def _make_cursors(self, taken: Sequence[LaneTrail] = ()) -> InterleavedCursors:
        drawn = None if self.limit is None else self._drawn
        numbers = [lane.number for lane in self._order]
        behind = [lane.position for lane in self._order]
        return InterleavedCursors(
            self._turn,
            drawn,
            self.lanes,
            self._first,
            self.ranks,
            dict(self._ended),
            numbers,
            behind,
            taken,
            self._made,
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
        """Record that the lane whose turn it is has ended."""
        lane, *self._order = self._order
        self._ended[lane.number] = lane.position
        lane.close()

    def _take(self, n: int) -> Chunk:
        """Return the next `n` items, which are buffered."""
        taken, count = list[LaneTrail](), len(self._order)
        cursors = self._make_cursors(taken)
        full, part = divmod(n, count)
        parts = [lane.take(full + (i < part)) for i, lane in enumerate(self._order[:n])]
        taken += [lane.position for lane in self._order[: len(parts)]]
        self._turn, self._drawn, self._given = cursors.turn_after(n), self._drawn + n, True
        self._order = self._order[part:] + self._order[:part]
        if count == 1:
            return Chunk(parts[0].values, parts[0].rows, cursors)
        values: list[Any] = [None] * n
        for i, chunk in enumerate(parts):
            values[i::count] = chunk.values
        starts = np.cumsum([0, *(len(chunk.values) for chunk in parts[:-1])])
        round_, turn = np.divmod(np.arange(n), count)
        return Chunk(
            values, join_rows([chunk.rows for chunk in parts]).take(starts[turn] + round_), cursors
        )

    def open_all(self) -> None:
        """Open all lanes, including those without a request so far."""
        for lane in self._all.values():
            lane.open()


class _LanesCursor(NamedTuple):
    """A decoded cursor of several lanes."""

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
    """One rank's items of a run whose lanes cannot be divided among the ranks.

    Each rank reads all lanes, and keeps one item of every round of `ranks` items.

    A permutation keyed by the first turn of the round selects it: in a fixed order, a mixture that
    alternates would give each rank one source. The cursor is the run's after whole rounds, so all
    ranks have the same one.
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
                cast("InterleavedCursors", chunk.cursors).turn_after(item)
                for item in range(first, count, ranks)
            ]
            parts.append(chunk)
            total += count
        if not parts:
            return Chunk([], make_empty_rows(0), ConstantCursor(self.cursor()))
        values, rows, cursors = join_chunks(parts)
        slots = build_permutations(ranks, derive_tweak_keys(_KEY, np.asarray(turns)))[:, self._rank]
        picks = np.arange(len(turns)) * ranks + slots
        picks = picks[picks < total]  # the last round of a pass may have no item for us
        return Chunk(
            [values[pick] for pick in picks.tolist()],
            rows.take(picks),
            GroupedCursors(cursors, ranks, total),
        )


class WorkerShare:
    """One worker's share of a rank's items: item `worker`, and every `workers`-th after it.

    The cursor precedes its next item, so the other items are computed too: their samples depend on
    the data.
    """

    def __init__(self, stream: Stream, worker: int, workers: int) -> None:
        self._input, self._worker, self._workers = BufferedStream(stream), worker, workers

    def cursor(self) -> Json:
        return self._input.cursor()

    def seek(self, epoch: int, cursor: Json, /) -> None:
        self._input.seek(epoch, cursor)
        if cursor is None and self._worker:
            self._input.take(self._worker)

    def close(self) -> None:
        self._input.stream.close()

    def pull(self, n: int, /) -> Chunk:
        values, rows, cursors = self._input.take(n * self._workers)
        picks = np.arange(0, len(values), self._workers)
        return Chunk(
            values[:: self._workers],
            rows.take(picks),
            GroupedCursors(cursors, self._workers, len(values)),
        )
