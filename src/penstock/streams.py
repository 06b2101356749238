"""The sequential half of the interpreter: chunks of items, pulled; and work spread over threads, in order.

Every stream has four verbs: `pull(n)` gives about n items (none at the end of the pass), `cursor()` says where a pass
begins or was resumed, `seek(epoch, cursor)` goes anywhere, `close()` lets go. No stream writes save or load code:
cursors come from trails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from .errors import ConfigError, StateError
from .program import HOLE, Failed, Program, Run, Step, empty_rows
from .rows import Rows, bounds_of, join_rows
from .seams import Hands, world
from .trail import After, Chunk, Every, Fixed, Joined, Offset, Origin, Span, Trail
from .types import Json

_FIRST_PLAN, _LAST_PLAN = 1024, 16384  # positions planned at a time: few at first, so that a resume is quick


class Stream(Protocol):
    """A flow at run time."""

    def pull(self, n: int, /) -> Chunk: ...
    def cursor(self) -> Json: ...
    def seek(self, epoch: int, cursor: Json, /) -> None: ...
    def close(self) -> None: ...


class Tap:
    """Takes exact numbers of items from a stream, and knows the cursor after each."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._rest: Chunk | None = None
        self._used = 0
        self._end: tuple[Trail, int] = (Fixed(stream.cursor()), 0)

    def seek(self, epoch: int, cursor: Json) -> None:
        self.stream.seek(epoch, cursor)
        self._rest, self._used = None, 0
        self._end = (Fixed(self.stream.cursor()), 0)

    def cursor(self) -> Json:
        """The cursor after the last item taken."""
        if self._rest is None:
            return self._end[0].at(self._end[1])
        return self._rest.trail.at(self._used)

    def ready(self, n: int) -> int:
        """How many items can be taken without another pull; pulls once if there are none."""
        if self._rest is None and not self._fill(n):
            return 0
        return len(self._rest.values) - self._used if self._rest else 0

    def _fill(self, n: int) -> bool:
        chunk = self.stream.pull(n)
        if not chunk.values:
            return False
        trail = After(*self._end, chunk.trail)
        self._rest, self._used = chunk._replace(trail=trail), 0
        return True

    def take(self, n: int) -> Chunk:
        """Exactly `n` items, fewer only at the end of the pass."""
        parts, missing = list[Chunk](), n
        while missing and self._ready_or_back(missing, parts):
            rest, start = self._rest, self._used
            assert rest is not None
            stop = min(len(rest.values), start + missing)
            whole = start == 0 and stop == len(rest.values)
            trail = rest.trail if start == 0 else Offset(rest.trail, start)
            parts.append(rest if whole else Chunk(rest.values[start:stop], rest.rows.slice(start, stop), trail))
            missing -= stop - start
            self._used = stop
            if stop == len(rest.values):
                inner = rest.trail.trail if isinstance(rest.trail, After) else rest.trail
                self._rest, self._end = None, (inner, stop)
        return joined(parts) if parts else Chunk([], empty_rows(0), Fixed(self.cursor()))

    def _ready_or_back(self, n: int, parts: list[Chunk]) -> int:
        """Like `ready`; if it fails, what was taken already is put back, so that nothing is lost."""
        try:
            return self.ready(n)
        except BaseException:
            if parts:
                self._rest, self._used = joined(parts), 0
            raise


def joined(parts: list[Chunk]) -> Chunk:
    """Chunks one after the other as one."""
    if len(parts) == 1:
        return parts[0]
    starts = bounds_of(np.asarray([len(part.values) for part in parts], np.int64)).tolist()[:-1]
    values = [value for part in parts for value in part.values]
    return Chunk(values, join_rows([part.rows for part in parts]), Joined([part.trail for part in parts], starts))


# ---------------------------------------------------------------- work


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of work: what to compute on, and the trail of what it is made of. `values` is None for positions."""

    values: list[Any] | None
    rows: Rows
    trail: Trail

    def __len__(self) -> int:
        return len(self.rows)

    def singles(self) -> list[Unit]:
        """The same, item by item."""
        return [
            Unit(self.values and self.values[i : i + 1], self.rows.slice(i, i + 1), Offset(self.trail, i))
            for i in range(len(self))
        ]


class Feed(Protocol):
    """Where work comes from: positions of a program, or the items of another stream."""

    def next(self, n: int, /) -> Unit | None: ...
    def cursor(self) -> Json: ...
    def seek(self, epoch: int, cursor: Json, /) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Spread:
    """Which positions one rank works on: its group of every `world_size * group` positions."""

    rank: int = 0
    world_size: int = 1
    group: int = 1


class Positions:
    """The positions of a program, one pass at a time."""

    def __init__(self, program: Program, spread: Spread) -> None:
        self.program, self.spread = program, spread
        self._epoch, self._at, self._plan = 0, 0, _FIRST_PLAN
        self._rows = empty_rows(program.depth)
        self._used: int = 0

    def cursor(self) -> Json:
        return self._at

    def seek(self, epoch: int, cursor: Json, /) -> None:
        self._epoch, self._at, self._plan = epoch, 0 if cursor is None else as_int(cursor), _FIRST_PLAN
        self._rows, self._used = empty_rows(self.program.depth), 0

    def next(self, n: int, /) -> Unit | None:
        if self._used == len(self._rows) and not self._locate():
            return None
        group, ranks, size = self.spread.group, self.spread.world_size, self.program.size
        left = len(self._rows) - self._used
        if n < left and group > 1 and ranks > 1:
            n = min(left, -(-n // group) * group)
        n = min(n, left)
        unit = self._rows.slice(self._used, self._used + n)
        step = group * ranks if ranks > 1 else 1
        trail = Span(self._at, group if ranks > 1 else 1, step, size)
        self._used += n
        self._at = as_int(trail.at(n))
        return Unit(None, unit, trail)

    def _locate(self) -> bool:
        """Plan the next stretch of positions."""
        rank, ranks, group = self.spread.rank, self.spread.world_size, self.spread.group
        size = self.program.size
        if ranks == 1:
            places = np.arange(self._at, self._at + self._plan)
        else:
            groups = np.arange(-(-self._plan // group)) * (group * ranks) + self._at + rank * group
            places = (groups[:, None] + np.arange(group)).ravel()
        if size is not None:
            places = places[places < size]
        if not places.size:
            return False
        shift, lap = (self._epoch * size, 0) if size is not None else (0, self._epoch)
        self._rows, self._used = self.program.locate(places + shift, np.full_like(places, lap)), 0
        self._plan = min(max(_LAST_PLAN, 64 * len(np.unique(self._rows.leaf))), self._plan * 2)
        return True

    def close(self) -> None:
        pass


class Upstream:
    """The items of another stream as work."""

    def __init__(self, stream: Stream) -> None:
        self.tap = Tap(stream)

    def next(self, n: int, /) -> Unit | None:
        chunk = self.tap.take(n)
        return Unit(chunk.values, chunk.rows, chunk.trail) if chunk.values else None

    def cursor(self) -> Json:
        return self.tap.cursor()

    def seek(self, epoch: int, cursor: Json, /) -> None:
        self.tap.seek(epoch, cursor)

    def close(self) -> None:
        self.tap.stream.close()


class Done(NamedTuple):
    """A unit, computed: what came out, which items of the unit it came from, how long it took, what went wrong."""

    values: list[Any]
    rows: Rows
    origin: list[int] | None
    seconds: float


Verdict = Callable[[Failed, Unit], "Unit | None"]
"""What to do about a sample that failed: go on with another unit, or (None) raise."""


@dataclass
class Hired:
    """Who works: some threads or none, how many units may be under way, what to do about failures."""

    verdict: Verdict
    hands: Hands | None = None
    window: int = 0
    strict: bool = False
    """Every sample must give exactly one: ranks share out positions without lanes."""


class Work:
    """Functions over items, in order: read, map, filter, flat-map. The only stream that runs users' functions.

    With hands, units are computed ahead by them; results come in order all the same, so nobody can tell.
    """

    def __init__(self, feed: Feed, program: Program | None, steps: list[Step], hired: Hired, grain: int = 1) -> None:
        self.feed, self.program, self.steps, self.hired, self.grain = feed, program, steps, hired, grain
        self._queue = deque[Unit]()
        self._ahead = deque[tuple[Unit, "Future[Done]"]]()
        self._skip, self._start = 0, self._own(feed.cursor(), 0)
        self._given: tuple[Trail, int] = (Fixed(feed.cursor()), 0)
        self.pace = Pace()

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

    def furthest(self) -> Json:
        """The cursor of the feed behind all that was pulled: what is computed ahead of that can be computed again."""
        trail, count = self._given
        return trail.at(count)

    def seek(self, epoch: int, cursor: Json, /) -> None:
        self._drop()
        below = cursor
        if self.many and cursor is not None:
            below, skip = as_list(cursor)
            self._skip = as_int(skip)
        self.feed.seek(epoch, below)
        self._given = (Fixed(self.feed.cursor()), 0)
        self._start = self._own(self.feed.cursor(), self._skip)

    def _drop(self) -> None:
        for _, future in self._ahead:
            future.cancel()
        self._ahead.clear()
        self._queue.clear()
        self._skip = 0

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
                skip, self._skip = self._skip, 0
                chunk = Chunk(chunk.values[skip:], chunk.rows.slice(skip, len(chunk.values)), Offset(trail, skip))
            if chunk.values:
                return chunk
        return Chunk([], empty_rows(0), Fixed(None))

    def _compute(self, n: int) -> tuple[Unit, Done] | None:
        """The next unit and what it came to; None at the end."""
        if self.hired.hands is None:
            if (unit := self._next(n)) is None:
                return None
            self._queue.appendleft(unit)
            return self._inline(n)
        while len(self._ahead) < self.hired.window:
            try:
                unit = self._next(self.pace.size * self.grain)
            except Exception:
                if self._ahead:
                    break  # what was computed before the failure is delivered before it
                if self.pace.size == 1:
                    raise
                self.pace.size = 1
                continue
            if unit is None:
                break
            self._ahead.append((unit, self.hired.hands.submit(lambda unit=unit: self.compute(unit))))
        if not self._ahead:
            return None
        unit, future = self._ahead.popleft()
        try:
            done = future.result()
        except Failed as failure:
            return self._again(unit, failure, n)
        except BaseException:
            self._back([unit])
            raise
        self.pace.took(len(unit), done.seconds)
        return unit, done

    def _next(self, n: int) -> Unit | None:
        return self._queue.popleft() if self._queue else self.feed.next(n)

    def _again(self, unit: Unit, failure: Failed, n: int) -> tuple[Unit, Done] | None:
        """A sample of the unit failed: deliver what comes before it, then let the verdict decide."""
        while True:
            if len(unit) > 1 and (self.program is None or not unit.rows.levels):
                # One by one: the samples before the bad one are delivered first.
                self._back(unit.singles())
                return self._inline(n)
            try:
                mended = self.hired.verdict(failure, unit)
            except BaseException:
                self._back([unit])
                raise
            if mended is None:
                self._back([unit])  # the position stays before the sample that failed
                raise failure.cause from None
            unit = mended
            try:
                return unit, self.compute(unit)
            except Failed as next_failure:
                failure = next_failure

    def _back(self, units: list[Unit]) -> None:
        """Put these units, and behind them all that are under way, back to where they are taken from."""
        for _, future in self._ahead:
            future.cancel()
        self._queue.extendleft(reversed([*units, *(later for later, _ in self._ahead)]))
        self._ahead.clear()

    def _inline(self, n: int) -> tuple[Unit, Done] | None:
        unit = self._queue.popleft()
        try:
            return unit, self.compute(unit)
        except Failed as failure:
            return self._again(unit, failure, n)
        except BaseException:
            self._back([unit])
            raise

    def compute(self, unit: Unit) -> Done:
        """The values of a unit, and which of its items they came from. Pure; runs in any thread."""
        began, run = world.sched.now(), Run()
        values = self.program.values(unit.rows, run) if self.program else unit.values or []
        found = Results(values, unit.rows, None)
        found.close_up(run, self.hired.strict)
        for step in self.steps:
            results = step.apply(found.values, found.rows, run)
            if step.kind == "filter":
                found.keep([i for i, flag in enumerate(results) if flag is not HOLE and flag])
                run.holes = False
                continue
            found.values = results
            found.close_up(run, self.hired.strict)
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

    def close_up(self, run: Run, strict: bool) -> None:
        """Without the holes that dropped samples left."""
        if run.holes:
            if strict:
                raise dropped_between_ranks()
            self.keep([i for i, value in enumerate(self.values) if value is not HOLE])
            run.holes = False

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

    def __init__(self) -> None:
        self.size = 1
        self._per_item = float("inf")

    def took(self, items: int, seconds: float) -> None:
        """Learn from what the last `items` took."""
        per_item = seconds / max(items, 1)
        if seconds < 0.0003 or (seconds < 0.004 and per_item < 0.9 * self._per_item):
            self.size = min(self.size * 2, 256)
        elif seconds > 0.008:
            self.size = max(1, self.size // 2)
        self._per_item = per_item


# ---------------------------------------------------------------- batches


class Batches:
    """Groups of `n` neighbours. Holds nothing between batches, so its cursor is the one below."""

    def __init__(self, stream: Stream, n: int, drop: bool) -> None:
        self.tap, self.n, self.drop = Tap(stream), n, drop

    def cursor(self) -> Json:
        return self.tap.cursor()

    def seek(self, epoch: int, cursor: Json, /) -> None:
        self.tap.seek(epoch, cursor)

    def close(self) -> None:
        self.tap.stream.close()

    def pull(self, n: int, /) -> Chunk:
        size = self.n
        values, rows, trail = self.tap.take(n * size)
        total = len(values)
        if self.drop and total % size:
            total -= total % size
        groups = [values[i : i + size] for i in range(0, total, size)]
        if not groups:
            return Chunk([], empty_rows(0), Fixed(None))
        if total < len(values):
            rows = rows.slice(0, total)
        offsets = np.minimum(np.arange(len(groups) + 1) * size, total)
        return Chunk(groups, rows.grouped(offsets), Every(trail, size, total))


def dropped_between_ranks() -> ConfigError:
    """Ranks that share out positions cannot close a gap together."""
    return ConfigError(
        "a function raised Skip (or a bad sample was to be left out) in a run over several ranks that has no "
        "lanes, so the "
        "ranks would drift apart; drop samples with .filter(...) and give the Loader lanes=, or use "
        "on_error='quarantine'"
    )


def as_int(cursor: Json) -> int:
    """A cursor that must be a position."""
    if isinstance(cursor, bool) or not isinstance(cursor, int) or cursor < 0:
        raise bad_cursor(cursor, "a position")
    return cursor


def as_list(cursor: Json, length: int = 2) -> list[Any]:
    """A cursor that must be a list of so many entries."""
    if not isinstance(cursor, list) or len(cursor) != length:
        raise bad_cursor(cursor, f"a list of {length}")
    return cursor


def bad_cursor(cursor: Json, wanted: str) -> StateError:
    """The error for a cursor of another shape than the pipeline's."""
    return StateError(
        f"a cursor in the state is {str(cursor)[:80]!r} where {wanted} should be; it is of another pipeline or damaged"
    )
