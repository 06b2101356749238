"""The execution loop: it runs functions over units of items, here or in workers, and delivers in
order.

The way of a unit, in `ExecutionLoop`:

1. `_take`: the feed (positions of a step, or another stream) gives the next items, as many as the
   `Pace` asks for. Sources that prefetch learn which rows come after them.
2. `Quarantine.repair` replaces draws that are known to be bad.
3. `_fill_window` submits the unit to the executor, within a number of units, of items and of bytes
   (`Budget`). Inline, `_run` computes it at once.
4. `_compute` waits for the oldest unit, so results are delivered in order, in whatever order they finish.
5. `_compute_alone` handles a unit that failed. It is computed grain by grain (an item, or a batch),
   so that what precedes the failure is delivered. A grain that fails names a bad sample, which the
   quarantine replaces or raises. A grain over which a worker was lost is computed sample by sample,
   until the sample that kills workers is found.
6. `pull` returns the results as a chunk, with the cursors that its cursors are made from.

Lanes are loops of their own that share budget and executor; `InterleavedLanes` deals their items in turn. A
unit is pure, so any exception may drop what is in flight: the caller seeks before it continues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...types import Json
from ..base.cursors import make_cursor_error, parse_cursor_int, parse_cursor_list
from ..base.rows import join_rows, make_empty_rows
from ..base.seams import world
from .budget import Budget
from .chunk_cursors import (
    Chunk,
    ChunkCursors,
    ConstantCursor,
    GroupedCursors,
    OffsetCursors,
    OriginCursors,
)
from .compiled_step import CompiledStep
from .empty_passes import EndlessSearch
from .feed import Feed, PositionFeed, WorkUnit
from .function_call import FunctionCall, Leaf, SampleFailure
from .job import MAX_WORKER_DEATHS, Executor, Grouping, Job, PendingResult, UnitResult, WorkerLost
from .journal import Journal
from .prefetch_hints import find_prefetchers, send_hints
from .profiler import Profiler
from .quarantine import Quarantine
from .stream import UnaryStream

LARGEST_SAMPLE_UNIT = 1 << 11  # items of one sample in a unit at most
LARGEST_UNIT = 256  # other items
SLOW_PULL = 0.001  # seconds for a unit of the feed
_FIRST_ITEMS = 256  # items that are computed in small units, so that the first batch is early


@dataclass(frozen=True)
class Execution:
    """The parts that the loops of a run share: executor, limits in flight, and the handling of failures.

    Attributes:
        window: the largest number of units in flight.
        most: the largest number of items in flight; None leaves it to the window.
        profile: measures the work on request.
        paired: True if the items become partners in a zip of streams.
        stage: the number of functions over streams above.
        witnesses: checks that a stream without identity repeats what its cursor says it gave.
    """

    journal: Journal
    leaves: Sequence[Leaf]
    budget: Budget
    executor: Executor | None = None
    window: int = 0
    max_items: int | None = None
    profiler: Profiler | None = None
    paired: bool = False
    stage: int = 0
    witnesses: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])

    def chunk_size(self, lanes: int) -> int:
        """Return the number of items that each of some lanes may take at a time."""
        items = self.budget.item_size.items(self.budget.max_bytes / 4 / lanes)
        return min(items, LARGEST_UNIT if self.max_items is None else self.max_items)


@dataclass(frozen=True)
class InFlight:
    """A unit in flight: before and after the repair of bad samples, its expected bytes, and its
    result.
    """

    unit: WorkUnit
    repaired: WorkUnit
    size: float
    computed: PendingResult


class ExecutionLoop(UnaryStream):
    """A stream of the results of a job over the units of a feed. No other stream runs functions."""

    search: EndlessSearch | None = None
    _taken: tuple[ChunkCursors, int]
    _delivered: tuple[ChunkCursors, int]

    def __init__(
        self,
        feed: Feed,
        indexed: CompiledStep | None,
        steps: list[FunctionCall | Grouping],
        execution: Execution,
    ) -> None:
        self.feed, self.execution = feed, execution
        names = [leaf.name for leaf in execution.leaves]
        self.job = Job(indexed, steps, execution.profiler, names)
        self.quarantine = Quarantine(
            execution.journal, execution.leaves, indexed, execution.paired, execution.stage
        )
        self._epoch, self._grain = 0, 1  # items of the feed that make an item of the result
        self._queue = deque[WorkUnit]()  # taken from the feed before
        self._in_flight, self._stuck = deque[InFlight](), False
        self._skip, self._start = 0, self._with_skip(feed.cursor(), 0)
        self._computed_since = 0  # items that came back since the last seek
        self._taken = self._delivered = (ConstantCursor(feed.cursor()), 0)
        single = isinstance(feed, PositionFeed)
        self.pace, self._pulled = Pace(LARGEST_SAMPLE_UNIT if single else LARGEST_UNIT), 0.0
        reach = "process" if execution.executor is None else execution.executor.reach
        self._prefetchers = find_prefetchers(execution.leaves, reach)

    def add_step(self, step: FunctionCall | Grouping) -> ExecutionLoop:
        """Add a step to the job."""
        self.job.steps.append(step)
        if isinstance(step, Grouping):
            self._grain *= step.n
            self.pace = Pace(max(LARGEST_SAMPLE_UNIT, LARGEST_UNIT * self._grain))
        self._start = self._with_skip(self.feed.cursor(), 0)
        return self

    # ------------------------------------------------------------ cursors

    @property
    def _expands(self) -> bool:
        return any(isinstance(step, FunctionCall) and step.expands for step in self.job.steps)

    def _with_skip(self, below: Json, skip: int) -> Json:
        return [below, skip] if self._expands else below

    def cursor(self) -> Json:
        return self._start

    @property
    def is_inside_sample(self) -> bool:
        """True if some pieces of the next sample were delivered."""
        return self._skip > 0

    def delivered_position(self) -> int:
        """Return the position of the feed after the last delivered unit.

        What was computed beyond it can be computed again.
        """
        cursors, count = self._delivered
        return parse_cursor_int(cursors.at(count)) + self.is_inside_sample

    def input_at(self, epoch: int, cursor: Json, /) -> tuple[object, int, Json]:
        if self._expands and cursor is not None:
            cursor = parse_cursor_list(cursor)[0]
        return self.feed, epoch, cursor

    def seek(self, epoch: int, cursor: Json, /) -> None:
        self._drop()
        below = cursor
        if self._expands and cursor is not None:
            below, skip = parse_cursor_list(cursor)
            self._skip = parse_cursor_int(skip)
        self.feed.seek(epoch, below)
        self._computed_since = 0
        self._epoch, self._taken = epoch, (ConstantCursor(self.feed.cursor()), 0)
        self._delivered = self._taken
        self._start = self._with_skip(self.feed.cursor(), self._skip)
        if self.search is not None:
            self.search.reset()

    def close(self) -> None:
        self._drop()
        self.feed.close()

    def _drop(self) -> None:
        self._cancel()
        self._queue.clear()
        self._skip, self._stuck = 0, False

    # ------------------------------------------------------------ the loop

    def pull(self, n: int, /) -> Chunk:
        while (computed := self._compute(n)) is not None:
            unit, done = computed
            if self.execution.profiler is not None:
                self.execution.profiler.add(done.notes)
            cursors: ChunkCursors = unit.cursors
            self._delivered, total = (cursors, len(unit)), len(unit)
            for step in self.job.steps:
                if isinstance(step, Grouping):
                    cursors, total = GroupedCursors(cursors, step.n, total), -(-total // step.n)
            if done.origin is not None or self._expands:
                cursors = OriginCursors(
                    cursors, done.origin or range(len(done.values)), self._expands
                )
            self.execution.budget.item_size.learn(done.size, len(unit))
            chunk = Chunk(done.values, done.rows, cursors)
            if self._skip and chunk.values:
                if [*(done.origin or [])][self._skip : self._skip + 1] != [0]:
                    raise make_cursor_error(
                        self._skip, "the number of pieces of a sample that were given already"
                    )
                skip, self._skip = self._skip, 0
                rows = chunk.rows.slice(skip, len(chunk.values))
                chunk = Chunk(chunk.values[skip:], rows, OffsetCursors(cursors, skip))
            if chunk.values:
                if self.search is not None:
                    self.search.reset()
                return chunk
            if self.search is not None:
                self.search.note_empty(unit.rows)
        return Chunk([], make_empty_rows(0), ConstantCursor(None))

    def _compute(self, n: int) -> tuple[WorkUnit, UnitResult] | None:
        """Return the next unit, as it was computed, and its result; None at the end of the pass."""
        if self.execution.executor is None:
            unit = self._take_inline(n * self._grain)
            return None if unit is None else self._compute_alone(unit)
        self._fill_window(self.execution.executor)
        if not self._in_flight:
            return None
        first, failure = self._in_flight[0], None  # an interrupt while it is there cancels it
        try:
            done = first.computed.result()
        except SampleFailure:  # maybe of a sample that is known to be bad by now
            done = None
        except WorkerLost as error:
            done, failure = None, error.with_traceback(None)
        unit = first.unit
        self.execution.budget.release(first.size)
        self._in_flight.popleft()
        self._computed_since += len(unit)
        if done is None:
            return self._compute_alone(unit, failure)
        # Slow items of the feed must not pile up behind fast functions.
        seconds = done.seconds + self._pulled
        if len(unit) >= self.pace.size or seconds > 0.004:  # else it was asked for at another pace
            self.pace.learn(len(unit), seconds)
        return first.repaired, done

    def _fill_window(self, executor: Executor) -> None:
        """Submit units as long as window, items and bytes allow."""
        budget, window = self.execution.budget, self.execution.window
        self._stuck = self._stuck and bool(self._in_flight)
        while (
            not self._stuck and len(self._in_flight) < window and (free := self._free_items()) > 0
        ):
            if self._pulled > SLOW_PULL and self._in_flight:
                # A result that is ready does not wait for slow items, nor does the first of all.
                if not self._computed_since or self._in_flight[0].computed.done():
                    break
            n = min(self.pace.size, free, budget.item_size.items(budget.max_bytes / 4 / window))
            if self._in_flight and not budget.fits(n):
                break
            began = world.sched.now()
            try:
                unit = self._take(n)
            except Exception:
                self._seek_after_last_unit()
                if not self._in_flight and self.pace.size == 1:
                    raise
                # What precedes the failure is delivered before it.
                self.pace.size, self._stuck = 1, bool(self._in_flight)
                continue
            if unit is None:
                break
            self._pulled = world.sched.now() - began
            repaired = self.quarantine.repair(unit)
            computed = executor.submit(self.job, repaired.values, repaired.rows)
            started = InFlight(unit, repaired, budget.item_size.mean * len(unit), computed)
            budget.reserve(started.size)
            self._in_flight.append(started)

    def _free_items(self) -> int:
        """Return how many more items may be in flight; few at first, so the first batch is early."""
        most, first = self.execution.max_items, self.execution.window + self._computed_since // 4
        if most is None and first >= self.execution.window * self.pace.size:
            return self.pace.size
        limit = first if most is None else min(most, first)
        return limit - sum(len(started.unit) for started in self._in_flight)

    def _take_inline(self, n: int) -> WorkUnit | None:
        """Take the next unit, a larger one if many samples yielded nothing."""
        more = 0 if self.search is None else self.search.samples
        more = min(more, self.execution.chunk_size(1))
        if more > n:
            try:
                return self._take(more)
            except Exception:  # maybe of an item behind the first n
                self._seek_after_last_unit()
        return self._take(n)

    def _take(self, n: int) -> WorkUnit | None:
        if self._queue:
            return self._queue.popleft()
        if (unit := self.feed.next(n)) is not None:
            self._taken = (unit.cursors, len(unit))
            if self._prefetchers and isinstance(self.feed, PositionFeed):
                send_hints(self.feed, self._prefetchers)
        return unit

    def _seek_after_last_unit(self) -> None:
        """Seek behind the last unit, after the feed failed."""
        cursors, count = self._taken
        self.feed.seek(self._epoch, cursors.at(count))

    # ------------------------------------------------------------ failures

    def _compute_alone(
        self, unit: WorkUnit, failure: SampleFailure | WorkerLost | None = None
    ) -> tuple[WorkUnit, UnitResult]:
        """Compute a unit now, or its first grain if it fails; replace bad samples.

        `failure` says that a worker was lost over the unit. Its other grains are taken next.
        """
        lost = 0
        while True:
            if failure is not None and len(unit) > self._grain:
                unit, *rest = unit.split(self._grain)
                self._queue.extendleft(reversed([*rest, *(each.unit for each in self._in_flight)]))
                self._cancel()
            elif isinstance(failure, SampleFailure):
                self.quarantine.note(failure, unit)
            repaired = self.quarantine.repair(unit)
            try:
                if isinstance(failure, WorkerLost):
                    return repaired, self._run_by_samples(repaired)
                return repaired, self._run(self.job, repaired)
            except SampleFailure as error:
                failure = error.with_traceback(None)
            except WorkerLost as error:
                lost += 1
                if lost >= MAX_WORKER_DEATHS:
                    raise
                failure = error.with_traceback(None)

    def _run(self, job: Job, unit: WorkUnit) -> UnitResult:
        executor = self.execution.executor
        if executor is None:
            return job(unit.values, unit.rows)
        return executor.submit(job, unit.values, unit.rows).result()

    def _run_by_samples(self, unit: WorkUnit) -> UnitResult:
        """Compute each sample of a unit in a task of its own, then the steps over groups."""
        executor = self.execution.executor
        assert executor is not None  # it lost a worker
        single, grouped = self.job.split_at_groups()
        tasks = [executor.submit(single, one.values, one.rows) for one in unit.split(1)]
        parts = [task.result() for task in tasks]
        if not grouped.steps:
            (done,) = parts
            return done
        values = [value for part in parts for value in part.values]
        done = self._run(
            grouped, WorkUnit(values, join_rows([part.rows for part in parts]), unit.cursors)
        )
        return done._replace(size=max(done.size, sum(part.size for part in parts)))

    def _cancel(self) -> None:
        """Drop what is in flight."""
        while self._in_flight:
            started = self._in_flight[-1]
            started.computed.cancel()
            self.execution.budget.release(started.size)
            self._in_flight.pop()


class Pace:
    """The number of items to compute at a time.

    It grows as long as that makes an item cheaper, up to a few milliseconds for the first items,
    and up to several later.

    Only the speed depends on it, never an item or a cursor.
    """

    def __init__(self, most: int = LARGEST_UNIT) -> None:
        self.size, self._most = 1, most
        self._per_item, self._items = float("inf"), 0

    def learn(self, items: int, seconds: float) -> None:
        """Adapt the size to the seconds that some items took."""
        per_item = seconds / max(items, 1)
        early = self._items < _FIRST_ITEMS
        longest, cheaper = (0.004, 0.9) if early else (0.008, 0.95)
        self._items += items
        if seconds < 0.002 or (seconds < longest and per_item < cheaper * self._per_item):
            self.size = min(self.size * 2, self._most)
        elif seconds > 2 * longest:
            self.size = max(1, self.size // 2)
        self._per_item = per_item
