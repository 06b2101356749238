"""Threads of this process: nothing is copied, and functions that release the interpreter lock run in
parallel.
"""

from __future__ import annotations

from logging import getLogger
from typing import Any

from ....types import DataLocation
from ...base.machine import get_thread_id, locate_thread, read_cpu_seconds
from ...base.rows import ProvenanceRows
from ...base.seams import world
from ...base.thread_pool import Task
from ...streams.job import Job, PendingResult, UnitResult
from ...streams.profiler import Profiler

_CLOSE_SECONDS = 0.5  # that closing waits for running functions


class Threads:
    """An executor of some threads. `cpu_seconds` is the processor time that functions took on them.

    `timeout`: the log names a function that takes more seconds, as a thread cannot be killed.
    """

    def __init__(self, workers: int, timeout: float | None = None) -> None:
        self.cpu_seconds, self._timeout, self._pool = 0.0, timeout, world.sched.spawn(workers)
        self._running = dict[int, tuple[Job, ProvenanceRows]]()  # by thread

    def submit(self, job: Job, values: list[Any] | None, rows: ProvenanceRows, /) -> PendingResult:
        def compute() -> UnitResult:
            thread, began = get_thread_id(), read_cpu_seconds()
            self._running[thread] = job, rows
            try:
                done = job(values, rows)
            finally:
                del self._running[thread]
            self.cpu_seconds += read_cpu_seconds() - began
            return done

        task = self._pool.submit(compute)
        if self._timeout is None or job.profiler is None:
            return task
        return _TimedTask(task, self._timeout, job.profiler)

    def computes_here(self) -> bool:
        """Return whether a function runs on this thread, which is one of the pool."""
        return get_thread_id() in self._running

    @property
    def reach(self) -> DataLocation:
        return "process"

    @property
    def deaths(self) -> int:
        return 0

    def resident(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        """Take no more work. A function that does not return soon is logged, and not waited for."""
        self._pool.close(_CLOSE_SECONDS)
        for thread, (job, rows) in self._running.copy().items():
            if thread != get_thread_id() and rows.leaf.size:
                first = job.name_sample(int(rows.leaf[0]), int(rows.epoch[0]), int(rows.index[0]))
                getLogger("penstock").warning(
                    "the run was closed while a thread is at %s over %d samples from %s on; it "
                    "cannot be stopped: it takes no more work, and ends when the function returns",
                    locate_thread(thread),
                    len(rows.leaf),
                    first,
                )


class _TimedTask:
    """A task that logs a function that takes too long."""

    def __init__(self, task: Task, timeout: float, profile: Profiler) -> None:
        self._task, self._timeout, self._profile = task, timeout, profile
        self.done, self.cancel = task.done, task.cancel

    def result(self) -> UnitResult:
        late = list[str]()
        while not late and not self._task.wait(self._timeout):
            late = self._profile.describe_slow_work(self._timeout)
        for function in late:
            getLogger("penstock").warning(
                "the run has waited longer than timeout=%g s: a thread is at %s, and threads "
                "cannot be stopped; executor='processes' replaces such a worker",
                self._timeout,
                function,
            )
        return self._task.result()
