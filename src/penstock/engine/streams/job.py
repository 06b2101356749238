"""Jobs: the functions to apply to units of work, and the executors that run them. A job is pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from ...errors import DataError, GivenUpError, StorageError
from ...types import DataLocation
from ..base.event_counts import EVENT_COUNTS
from ..base.groups import NeighbourGroups
from ..base.rows import ProvenanceRows
from ..base.seams import world
from .budget import estimate_total_bytes
from .function_call import FunctionCall, SampleFailure, UnitItems, to_list
from .profiler import Profiler, WorkTime

T = TypeVar("T")

MAX_WORKER_DEATHS = 3
"""Workers that a sample may cost before it is reported."""
STORAGE_TRIES = 3
"""Calls before a failure of storage is raised."""
_RETRY_SECONDS = 0.1  # four times as long after each try


class WorkerLost(DataError):
    """Raised if a worker died over a unit of several items, so that no sample can be named yet."""


class UnitResult(NamedTuple):
    """The result of a unit.

    `origin` has, for each value, the item of the unit that it came from; None if they correspond.
    `size` is the largest number of bytes that the unit took on its way.
    """

    values: list[Any]
    rows: ProvenanceRows
    origin: list[int] | None
    seconds: float
    size: float
    notes: Sequence[WorkTime] = ()


class RowReader(Protocol):
    """Reads the items of rows: a compiled step, or the function of `compute`."""

    def values(self, rows: ProvenanceRows, /) -> Sequence[Any]: ...


@dataclass(frozen=True)
class Grouping:
    """Batches of `n` neighbours; the rest of the last unit is a short batch, or dropped."""

    n: int
    drop: bool

    def run(self, items: UnitItems) -> None:
        """Replace the items of a unit by their batches.

        No step may have dropped or added items before: a unit then consists of whole batches.
        """
        assert items.origin is None
        total = len(items.values) - (len(items.values) % self.n if self.drop else 0)
        offsets = (
            np.minimum(np.arange(0, total + self.n, self.n), total)
            if total
            else np.zeros(1, np.int64)
        )
        items.values = NeighbourGroups(items.values, offsets.tolist())
        items.rows = items.rows.slice(0, total).grouped(offsets)


@dataclass
class Job:
    """The work on every unit: read its rows, unless a stream did, and apply one step after another.

    `names` are those of the sources, by leaf.
    """

    reader: RowReader | None
    steps: list[FunctionCall | Grouping]
    profiler: Profiler | None = None
    names: Sequence[str] = ()

    def name_sample(self, leaf: int, epoch: int, index: int) -> str:
        """Name a sample."""
        return f"{self.names[leaf]}[{index}] (pass {epoch})"

    def __call__(self, values: list[Any] | None, rows: ProvenanceRows) -> UnitResult:
        done = retry_storage(partial(self._run, values, rows))
        return done if self.profiler is None else done._replace(notes=self.profiler.take_records())

    def _run(self, values: list[Any] | None, rows: ProvenanceRows) -> UnitResult:
        began = world.sched.now()
        items = UnitItems(self.reader.values(rows) if self.reader else values or [], rows)
        for step in self.steps:
            step.run(items)
        size = max(items.size, estimate_total_bytes(items.values))
        seconds = world.sched.now() - began
        return UnitResult(to_list(items.values), items.rows, items.origin, seconds, size)

    def split_at_groups(self) -> tuple[Job, Job]:
        """Return the steps over single samples, and those from the first groups on."""
        n = next(
            (i for i, step in enumerate(self.steps) if isinstance(step, Grouping)), len(self.steps)
        )
        return replace(self, steps=self.steps[:n]), replace(self, reader=None, steps=self.steps[n:])


def is_storage_failure(error: BaseException) -> bool:
    """Return whether a failure comes from storage or memory. An `OSError` without a number is a
    decoder's report of bad data.
    """
    if isinstance(error, OSError):
        return error.errno is not None or isinstance(
            error, StorageError | ConnectionError | TimeoutError
        )
    return isinstance(error, MemoryError)


def retry_storage(call: Callable[[], T]) -> T:
    """Return the result of a call; repeat it after a pause if storage fails."""
    for number in range(STORAGE_TRIES - 1):
        try:
            return call()
        except Exception as error:
            cause = error.cause if isinstance(error, SampleFailure) else error
            if not is_storage_failure(cause) or isinstance(cause, GivenUpError):
                raise
            EVENT_COUNTS.add("retries")
            world.sched.sleep(_RETRY_SECONDS * 4**number)
    return call()


class PendingResult(Protocol):
    """A unit in flight. `result` waits for it; `cancel` drops it if it has not begun."""

    def result(self) -> UnitResult: ...
    def done(self) -> bool: ...
    def cancel(self) -> None: ...


class Executor(Protocol):
    """Computes units of jobs, many at a time and in any order.

    `reach` says where, `deaths` counts replaced workers, and `resident` returns the bytes of memory
    of each worker that is visible from here. A unit of several items may raise `WorkerLost`; a
    single item over which workers die raises `SampleFailure`, as does an item whose function raises.
    """

    @property
    def reach(self) -> DataLocation: ...
    @property
    def deaths(self) -> int: ...
    def submit(
        self, job: Job, values: list[Any] | None, rows: ProvenanceRows, /
    ) -> PendingResult: ...
    def resident(self) -> dict[str, int]: ...
    def close(self) -> None: ...
