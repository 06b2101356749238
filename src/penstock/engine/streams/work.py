"""Work: users' functions run over units of items, here or on other hands, and given out in
order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ...types import Json
from ..base.cursors import make_cursor_error, parse_cursor_int, parse_cursor_list
from ..base.rows import make_empty_rows
from ..base.seams import world
from .barren import EndlessSearch
from .budget import Budget
from .clock import Clock
from .feed import Feed, Indexed, Positions, Unit
from .foresight import foreseeing, foretell
from .job import Computed, Done, Executor, Grouping, Job
from .journal import Journal
from .quarantine import Placed, Quarantine
from .step import Failed, FunctionCall, Leaf
from .trail import Chunk, Every, Fixed, Offset, Origin, Trail

SINGLE = 1 << 11  # items of one sample that are made at a time at most; of others 256


@dataclass(frozen=True)
class Hired:
    """The execution context: an executor or none, the bound on units in flight, the handling of
    failures.
    """

    journal: Journal
    leaves: Sequence[Leaf]
    budget: Budget
    executor: Executor | None = None
    window: int = 0
    most: int | None = None
    """How many items may be under way at most; None leaves it to the window."""
    paired: bool = False
    """Whether the items become partners in a zip of streams."""
    stage: int = 0
    """The number of functions over streams above."""
    clock: Clock | None = None
    """What times the work, if somebody asks."""
    witnesses: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    """Compare what streams give that nothing identifies with what their cursors say that they
    gave."""

    def wide(self, lanes: int) -> int:
        """How many items each of so many lanes may take at a time."""
        many = self.budget.weight.items(self.budget.most / 4 / lanes)
        return min(many, 256 if self.most is None else self.most)


class Positioned(Indexed, Placed, Protocol):
    """What work over positions is done on: an op of a compiled tree."""


class Work:
    """Functions over items, in order: read, map, filter, flat-map. The only stream that runs users'
    functions.

    With an executor, units are computed ahead by it; results arrive in order all the same.
    """

    def __init__(
        self, feed: Feed, op: Positioned | None, steps: list[FunctionCall | Grouping], hired: Hired
    ) -> None:
        self.feed, self.job, self.hired = (
            feed,
            Job(op, steps, hired.clock, [leaf.name for leaf in hired.leaves]),
            hired,
        )
        self.quarantine = Quarantine(hired.journal, hired.leaves, op, hired.paired, hired.stage)
        self._epoch, self._grain = 0, 1  # how many of the items that come in are one that goes out
        self._queue = deque[Unit]()
        self._ahead = deque[
            tuple[Unit, Unit, float, Computed]
        ]()  # as they came, as they are computed, bytes
        self._skip, self._start = 0, self._own(feed.cursor(), 0)
        self._computed_since = 0  # items that came back since the last seek
        self._taken = self._given = (Fixed(feed.cursor()), 0)
        self.pace, self._pulled = Pace(SINGLE if isinstance(feed, Positions) else 256), 0.0
        reach = "process" if hired.executor is None else hired.executor.reach
        self._foreseeing = foreseeing(hired.leaves, reach)
        self.search: EndlessSearch | None = None

    def then(self, step: FunctionCall | Grouping) -> Work:
        """One more step, in the same piece of work."""
        self.job.steps.append(step)
        if isinstance(step, Grouping):
            self._grain *= step.n
            self.pace = Pace(max(SINGLE, 256 * self._grain))
        self._start = self._own(self.feed.cursor(), 0)
        return self

    @property
    def many(self) -> bool:
        return any(isinstance(step, FunctionCall) and step.expands for step in self.job.steps)

    def _own(self, below: Json, skip: int) -> Json:
        return [below, skip] if self.many else below

    def cursor(self) -> Json:
        return self._start

    _taken: tuple[Trail, int]
    _given: tuple[Trail, int]

    def furthest(self) -> int:
        """The position of the feed behind all that was pulled: what is computed ahead of that can
        be computed again."""
        trail, count = self._given
        return parse_cursor_int(trail.at(count)) + self.inside

    @property
    def inside(self) -> bool:
        """Whether some pieces of the next item were given already."""
        return self._skip > 0

    def below(self, epoch: int, cursor: Json, /) -> tuple[object, int, Json]:
        return (
            self.feed,
            epoch,
            parse_cursor_list(cursor)[0] if self.many and cursor is not None else cursor,
        )

    def seek(self, epoch: int, cursor: Json, /) -> None:
        self._drop()
        below = cursor
        if self.many and cursor is not None:
            below, skip = parse_cursor_list(cursor)
            self._skip = parse_cursor_int(skip)
        self.feed.seek(epoch, below)
        self._computed_since = 0
        self._epoch, self._taken = epoch, (Fixed(self.feed.cursor()), 0)
        self._given = self._taken
        self._start = self._own(self.feed.cursor(), self._skip)
        if self.search is not None:
            self.search.begin()

    def _drop(self) -> None:
        self._cancel()
        self._queue.clear()
        self._skip, self._stuck = 0, False

    _stuck = False

    def close(self) -> None:
        self._drop()
        self.feed.close()

    def pull(self, n: int, /) -> Chunk:
        while (found := self._compute(n)) is not None:
            unit, done = found
            if self.hired.clock is not None:
                self.hired.clock.add(done.notes)
            trail: Trail = unit.trail
            self._given, total = (trail, len(unit)), len(unit)
            for step in self.job.steps:
                if isinstance(step, Grouping):
                    trail, total = Every(trail, step.n, total), -(-total // step.n)
            if done.origin is not None or self.many:
                trail = Origin(trail, done.origin or range(len(done.values)), self.many)
            self.hired.budget.weight.learn(done.size, len(unit))
            chunk = Chunk(done.values, done.rows, trail)
            if self._skip and chunk.values:
                if [*(done.origin or [])][self._skip : self._skip + 1] != [0]:
                    raise make_cursor_error(
                        self._skip, "the number of pieces of a sample that were given already"
                    )
                skip, self._skip = self._skip, 0
                chunk = Chunk(
                    chunk.values[skip:],
                    chunk.rows.slice(skip, len(chunk.values)),
                    Offset(trail, skip),
                )
            if chunk.values:
                if self.search is not None:
                    self.search.begin()
                return chunk
            if self.search is not None:
                self.search.nothing_in(unit.rows)
        return Chunk([], make_empty_rows(0), Fixed(None))

    def _compute(self, n: int) -> tuple[Unit, Done] | None:
        """The next unit and what it came to; None at the end."""
        budget = self.hired.budget
        if self.hired.executor is None:
            unit = self._next_here(n * self._grain)
            return None if unit is None else self._again(unit)
        self._stuck = self._stuck and bool(self._ahead)
        while (
            not self._stuck and len(self._ahead) < self.hired.window and (room := self._room()) > 0
        ):
            if (
                self._pulled > 0.001
                and self._ahead
                and (not self._computed_since or self._ahead[0][-1].done())
            ):
                # what is ready, and the first item of all, does not wait for dear items from below
                break
            n = min(self.pace.size, room, budget.weight.items(budget.most / 4 / self.hired.window))
            if self._ahead and not budget.fits(n):
                break
            began = world.sched.now()
            try:
                unit = self._next(n)
            except Exception:
                self._untake()
                if not self._ahead and self.pace.size == 1:
                    raise
                # What precedes the failure is delivered before it.
                self.pace.size, self._stuck = 1, bool(self._ahead)
                continue
            if unit is None:
                break
            self._pulled = world.sched.now() - began
            mended = self.quarantine.mended(unit)
            under_way = self.hired.executor.submit(self.job, mended.values, mended.rows)
            begun = unit, mended, budget.weight.mean * len(unit), under_way
            budget.begin(begun[2])
            self._ahead.append(begun)
        if not self._ahead:
            return None
        unit, mended, _, under_way = self._ahead[
            0
        ]  # it stays until it is done: an interrupt here cancels it
        try:
            done = under_way.result()
        except Failed:
            done = None
        budget.give_back(self._ahead[0][2])
        self._ahead.popleft()
        self._computed_since += len(unit)
        if done is None:
            return self._again(unit)
        # What the streams below took counts too: cheap work over dear items must not pile them up.
        seconds = done.seconds + self._pulled
        if (
            len(unit) >= self.pace.size or seconds > 0.004
        ):  # smaller units were asked for at an earlier pace
            self.pace.took(len(unit), seconds)
        return mended, done

    def _room(self) -> int:
        """Return how many more items may be computed ahead: few at first, so the first batch waits
        for no others."""
        most, first = self.hired.most, self.hired.window + self._computed_since // 4
        if most is None and first >= self.hired.window * self.pace.size:
            return self.pace.size
        return (first if most is None else min(most, first)) - sum(
            len(unit) for unit, *_ in self._ahead
        )

    def _next_here(self, n: int) -> Unit | None:
        """The next unit where nothing is computed ahead: a larger one after many samples that gave
        nothing."""
        more = 0 if self.search is None else min(self.search.samples, self.hired.wide(1))
        if more > n:
            try:
                return self._next(more)
            except Exception:  # perhaps behind what was asked for
                self._untake()
        return self._next(n)

    def _untake(self) -> None:
        """Go back to behind the last unit, where taking the next one failed."""
        trail, count = self._taken
        self.feed.seek(self._epoch, trail.at(count))

    def _next(self, n: int) -> Unit | None:
        if self._queue:
            return self._queue.popleft()
        if (unit := self.feed.next(n)) is not None:
            self._taken = (unit.trail, len(unit))
            if self._foreseeing and isinstance(self.feed, Positions):
                foretell(self.feed, self._foreseeing)
        return unit

    def _again(self, unit: Unit) -> tuple[Unit, Done]:
        """Compute a unit now. Where a sample fails, those before it are delivered first, then
        others are tried in its place.
        """
        while True:
            mended = self.quarantine.mended(unit)
            try:
                return mended, self._computed(mended)
            except Failed as failure:
                if len(unit) <= self._grain:
                    self.quarantine.note(failure, unit)
                else:
                    unit, *others = unit.split(self._grain)
                    self._back(others)

    def _back(self, units: list[Unit]) -> None:
        """Put these units, and behind them all that are under way, back to where they are taken
        from."""
        self._queue.extendleft(reversed([*units, *(later for later, *_ in self._ahead)]))
        self._cancel()

    def _cancel(self) -> None:
        """Want nothing of what is under way."""
        while self._ahead:
            *_, taken, under_way = self._ahead[-1]
            under_way.cancel()
            self.hired.budget.give_back(taken)
            self._ahead.pop()

    def _computed(self, unit: Unit) -> Done:
        if self.hired.executor is None:
            return self.job(unit.values, unit.rows)
        return self.hired.executor.submit(self.job, unit.values, unit.rows).result()


class Pace:
    """Return how many items to compute at a time: more while an item becomes cheaper, within a few
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
