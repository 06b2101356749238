"""Threads of this process: nothing is copied, and functions that let go of the interpreter run side
by side."""

from __future__ import annotations

import logging
from typing import Any

from ....types import DataLocation
from ...base.machine import get_thread_id, locate_thread, read_cpu_seconds
from ...base.rows import ProvenanceRows
from ...base.seams import world
from ...base.thread_pool import Task
from ...streams.clock import Clock
from ...streams.job import Computed, Done, Job

_PATIENCE = 0.5  # seconds that closing waits for functions under way


class Threads:
    """So many threads. `spent` is the processor time that functions took on them.

    `timeout`: a piece of work that is waited for so many seconds is named in the log; a thread
    cannot be ended.
    """

    def __init__(self, workers: int, timeout: float | None = None) -> None:
        self.spent, self._timeout, self._hands = 0.0, timeout, world.sched.spawn(workers)
        self._busy = dict[int, tuple[Job, ProvenanceRows]]()  # what each thread is at

    def submit(self, job: Job, values: list[Any] | None, rows: ProvenanceRows, /) -> Computed:
        def timed() -> Done:
            me, began = get_thread_id(), read_cpu_seconds()
            self._busy[me] = job, rows
            try:
                done = job(values, rows)
            finally:
                del self._busy[me]
            self.spent += read_cpu_seconds() - began
            return done

        under_way = self._hands.submit(timed)
        if self._timeout is None or job.clock is None:
            return under_way
        return _Watched(under_way, self._timeout, job.clock)

    def computes_here(self) -> bool:
        """Return whether this thread is one of them, and at work."""
        return get_thread_id() in self._busy

    @property
    def reach(self) -> DataLocation:
        return "process"

    @property
    def deaths(self) -> int:
        return 0

    def resident(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        """Take no more work. A function that does not return soon is named, and not waited for."""
        self._hands.close(_PATIENCE)
        for one, (job, rows) in self._busy.copy().items():
            if one != get_thread_id() and rows.leaf.size:
                over = job.named(int(rows.leaf[0]), int(rows.epoch[0]), int(rows.index[0]))
                logging.getLogger("penstock").warning(
                    "the run was closed while a thread is at %s over %d samples from %s on; it "
                    "cannot be stopped: it takes no more work, and ends when the function returns",
                    locate_thread(one), len(rows.leaf), over,
                )  # fmt: skip


class _Watched:
    """A unit under way. Whoever waits for it too long says over what."""

    def __init__(self, under_way: Task, timeout: float, clock: Clock) -> None:
        self._under_way, self._timeout, self._clock = under_way, timeout, clock
        self.done, self.cancel = under_way.done, under_way.cancel

    def result(self) -> Done:
        late = list[str]()
        while not late and not self._under_way.wait(self._timeout):
            late = self._clock.late(self._timeout)
        for each in late:
            logging.getLogger("penstock").warning(
                "the run has waited longer than timeout=%g s: a thread is at %s, and threads "
                "cannot be stopped; executor='processes' replaces such a worker",
                self._timeout, each,
            )  # fmt: skip
        return self._under_way.result()
