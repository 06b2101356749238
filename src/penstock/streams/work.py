"""Work: users' functions run over units of items, here or on other hands, and given out in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..base.cursors import as_int, as_list, bad_cursor
from ..base.rows import Rows, bounds_of, empty_rows
from ..base.seams import Hands, world
from ..types import Json
from .feed import Feed, Indexed, Unit
from .quarantine import Journal, Placed, Quarantine
from .retry import patiently
from .step import Failed, Leaf, Step
from .trail import Chunk, Fixed, Offset, Origin, Trail


class Done(NamedTuple):
    """A unit, computed: what came out, which items of the unit it came from, how long it took, what went wrong."""

    values: list[Any]
    rows: Rows
    origin: list[int] | None
    seconds: float


@dataclass(frozen=True)
class Hired:
    """Who works: some threads or none, how many units may be under way, what to do about failures."""

    journal: Journal
    leaves: Sequence[Leaf]
    hands: Hands | None = None
    window: int = 0
    most: int | None = None
    """How many items may be under way at most; None leaves it to the window."""
    paired: bool = False
    """Whether the items become partners in a zip of streams."""


class Computed(Indexed, Placed, Protocol):
    """What work over positions is done on: an op of a compiled tree."""


class Work:
    """Functions over items, in order: read, map, filter, flat-map. The only stream that runs users' functions.

    With hands, units are computed ahead by them; results come in order all the same, so nobody can tell.
    """

    def __init__(self, feed: Feed, op: Computed | None, steps: list[Step], hired: Hired, grain: int = 1) -> None:
        self.feed, self.op, self.steps, self.hired = feed, op, steps, hired
        self.quarantine = Quarantine(hired.journal, hired.leaves, op, hired.paired)
        self._epoch = 0
        self._queue = deque[Unit]()
        self._ahead = deque[tuple[Unit, Unit, "Future[Done]"]]()  # as they came, as they are computed
        self._skip, self._start = 0, self._own(feed.cursor(), 0)
        self._taken = self._given = (Fixed(feed.cursor()), 0)
        self.pace, self._pulled = Pace(256 * grain), 0.0

    def then(self, step: Step) -> Work:
        """One more function, in the same piece of work."""
        self.steps.append(step)
        self._start = self._own(self.feed.cursor(), 0)
        return self

    @property
    def many(self) -> bool:
        return any(step.kind == "flat" for step in self.steps)

    def _own(self, below: Json, skip: int) -> Json:
        return [below, skip] if self.many else below

    def cursor(self) -> Json:
        return self._start

    _taken: tuple[Trail, int]
    _given: tuple[Trail, int]

    def furthest(self) -> int:
        """The position of the feed behind all that was pulled: what is computed ahead of that can be computed again."""
        trail, count = self._given
        return as_int(trail.at(count)) + self.inside

    @property
    def inside(self) -> bool:
        """Whether some pieces of the next item were given already."""
        return self._skip > 0

    def seek(self, epoch: int, cursor: Json, /) -> None:
        self._drop()
        below = cursor
        if self.many and cursor is not None:
            below, skip = as_list(cursor)
            self._skip = as_int(skip)
        self.feed.seek(epoch, below)
        self._epoch, self._taken = epoch, (Fixed(self.feed.cursor()), 0)
        self._given = self._taken
        self._start = self._own(self.feed.cursor(), self._skip)

    def _drop(self) -> None:
        for *_, future in self._ahead:
            future.cancel()
        self._ahead.clear()
        self._queue.clear()
        self._skip, self._stuck = 0, False

    _stuck = False

    def close(self) -> None:
        self._drop()
        self.feed.close()

    def pull(self, n: int, /) -> Chunk:
        while (found := self._compute(n)) is not None:
            unit, done = found
            trail: Trail = unit.trail
            self._given = (trail, len(unit))
            if done.origin is not None or self.many:
                trail = Origin(trail, done.origin or range(len(done.values)), self.many)
            chunk = Chunk(done.values, done.rows, trail)
            if self._skip and chunk.values:
                if [*(done.origin or [])][self._skip : self._skip + 1] != [0]:
                    raise bad_cursor(self._skip, "the number of pieces of a sample that were given already")
                skip, self._skip = self._skip, 0
                chunk = Chunk(chunk.values[skip:], chunk.rows.slice(skip, len(chunk.values)), Offset(trail, skip))
            if chunk.values:
                return chunk
        return Chunk([], empty_rows(0), Fixed(None))

    def _compute(self, n: int) -> tuple[Unit, Done] | None:
        """The next unit and what it came to; None at the end."""
        if self.hired.hands is None:
            unit = self._next(n)
            return None if unit is None else self._again(unit)
        self._stuck = self._stuck and bool(self._ahead)
        while not self._stuck and len(self._ahead) < self.hired.window and (room := self._room()) > 0:
            if self._pulled > 0.001 and self._ahead and self._ahead[0][-1].done():
                break  # what is ready does not wait for dear items from below
            began = world.sched.now()
            try:
                unit = self._next(min(self.pace.size, room))
            except Exception:
                trail, count = self._taken
                self.feed.seek(self._epoch, trail.at(count))
                if not self._ahead and self.pace.size == 1:
                    raise
                # What precedes the failure is delivered before it.
                self.pace.size, self._stuck = 1, bool(self._ahead)
                continue
            if unit is None:
                break
            self._pulled = world.sched.now() - began
            mended = self.quarantine.mended(unit)
            self._ahead.append((unit, mended, self.hired.hands.submit(partial(self.compute, mended))))
        if not self._ahead:
            return None
        unit, mended, future = self._ahead.popleft()
        try:
            done = future.result()
        except Failed:
            return self._again(unit)
        # What the streams below took counts too: cheap work over dear items must not pile them up.
        self.pace.took(len(unit), done.seconds + self._pulled)
        return mended, done

    def _room(self) -> int:
        """How many more items may be computed ahead."""
        most = self.hired.most
        return self.pace.size if most is None else most - sum(len(unit) for unit, *_ in self._ahead)

    def _next(self, n: int) -> Unit | None:
        if self._queue:
            return self._queue.popleft()
        if (unit := self.feed.next(n)) is not None:
            self._taken = (unit.trail, len(unit))
        return unit

    def _again(self, unit: Unit) -> tuple[Unit, Done]:
        """Compute a unit here. Where a sample fails, those before it are delivered first, then others are tried in its
        place.
        """
        while True:
            mended = self.quarantine.mended(unit)
            try:
                return mended, self.compute(mended)
            except Failed as failure:
                if len(unit) == 1:
                    self.quarantine.note(failure, unit)
                else:
                    unit, *others = unit.singles()
                    self._back(others)

    def _back(self, units: list[Unit]) -> None:
        """Put these units, and behind them all that are under way, back to where they are taken from."""
        for *_, future in self._ahead:
            future.cancel()
        self._queue.extendleft(reversed([*units, *(later for later, *_ in self._ahead)]))
        self._ahead.clear()

    def compute(self, unit: Unit) -> Done:
        """The values of a unit, and which of its items they came from. Pure; runs in any thread."""
        return patiently(partial(self._compute_once, unit))

    def _compute_once(self, unit: Unit) -> Done:
        began = world.sched.now()
        values = self.op.values(unit.rows) if self.op else unit.values or []
        found = Results(values, unit.rows, None)
        for step in self.steps:
            results = step.apply(found.values, found.rows)
            if step.kind != "filter":
                found.values = results
            if step.kind in ("filter", "may_skip"):
                found.keep([i for i, result in enumerate(results) if result])
            if step.kind == "may_skip":
                found.values = [some[0] for some in found.values]
            if step.kind == "flat":
                found.spread()
        return Done(found.values, found.rows, found.origin, world.sched.now() - began)


@dataclass
class Results:
    """Items on their way through the functions of a unit; `origin` says which of its items each came from."""

    values: list[Any]
    rows: Rows
    origin: list[int] | None

    def keep(self, which: list[int]) -> None:
        """These items only."""
        if len(which) == len(self.values):
            return
        self.values = [self.values[i] for i in which]
        self.rows = self.rows.take(np.asarray(which, np.int64))
        self.origin = which if self.origin is None else [self.origin[i] for i in which]

    def spread(self) -> None:
        """Every value is a list: its entries become the items, each with a part number of its own."""
        counts = np.asarray([len(value) for value in self.values], np.int64)
        source = np.repeat(np.arange(len(counts)), counts)
        piece = np.arange(len(source)) - bounds_of(counts)[source] + 1
        rows = self.rows.take(source)
        self.rows = replace(rows, part=rows.part * 1_000_003 + np.repeat(piece, np.diff(rows.firsts())))
        self.values = [entry for value in self.values for entry in value]
        self.origin = source.tolist() if self.origin is None else [self.origin[i] for i in source.tolist()]


class Pace:
    """How many items to compute at a time: more while that makes an item cheaper, but never more than a few
    milliseconds.

    Only the speed depends on it, never an item or a cursor.
    """

    def __init__(self, most: int = 256) -> None:
        self.size, self._most = 1, most
        self._per_item = float("inf")

    def took(self, items: int, seconds: float) -> None:
        """Learn from what the last `items` took."""
        per_item = seconds / max(items, 1)
        if seconds < 0.002 or (seconds < 0.004 and per_item < 0.9 * self._per_item):
            self.size = min(self.size * 2, self._most)
        elif seconds > 0.008:
            self.size = max(1, self.size // 2)
        self._per_item = per_item
