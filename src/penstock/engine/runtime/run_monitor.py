"""Measurements during a run: time waited for items, and time spent by step."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from ..base.event_counts import EVENT_COUNTS
from ..base.machine import count_cores, measure_resident_memory
from ..steps.show import stage
from ..steps.step import Step, Timing
from ..streams.job import Executor
from ..streams.profiler import Profiler, WorkTime
from .executors.threads import Threads
from .session import Session
from .verdict import RunTimes, Verdict, describe_lock_contention, make_verdict

STALL_SECONDS = 0.001
"""Shortest wait that counts as a stall, in seconds."""
ADVICE_SECONDS = 2.0
"""Seconds of waiting after which the log recommends processes, once."""


class RunMonitor:
    """Measures the waits for items. The first wait starts the workers and counts apart.

    `timing` measures the work if a profile was requested.
    """

    def __init__(self, name: str, workers: int, executor: Executor | None, profile: bool) -> None:
        self._name, self._workers, self._executor = name, workers, executor
        self.timing = Timing(Profiler(), _name_step) if profile else None
        self.waited = self.first = self.longest = self._began = self._last = 0.0
        self.stalls, self._has_warned = 0, not isinstance(executor, Threads)

    def record_wait(self, began: float, ended: float) -> None:
        """Record one wait for an item."""
        self._last, seconds = ended, ended - began
        if self.timing:
            self.timing.profiler.collect()
        if not self._began:
            self._began, self.first = ended, seconds
            return
        self.waited += seconds
        if seconds > STALL_SECONDS:
            self.stalls += 1
            self.longest = max(self.longest, seconds)
        if not self._has_warned and self.waited > ADVICE_SECONDS:
            self._warn_of_lock()

    def _warn_of_lock(self) -> None:
        """Warn once if functions hold the interpreter lock and the run waits for that."""
        if (facts := self._times()).is_lock_bound:
            self._has_warned = True
            logging.getLogger("penstock").warning(
                "the run waits for its data: %s", describe_lock_contention(facts)
            )

    def _times(self) -> RunTimes:
        spent = self._executor.cpu_seconds if isinstance(self._executor, Threads) else 0.0
        elapsed, notes = self._last - self._began, self._work_times()
        return RunTimes(
            self._name, self._workers, count_cores(), self.waited, elapsed, self.stalls, self.longest, spent, notes,
        )  # fmt: skip

    def _work_times(self) -> list[WorkTime] | None:
        return self.timing.profiler.totals() if self.timing else None

    def verdict(self) -> Verdict:
        """Return the verdict on the run so far."""
        return make_verdict(self._times())

    def stats(self, session: Session) -> dict[str, Any]:
        """Return all figures as plain values."""
        samples, cropped = session.count_by_source()
        bad = Counter(draw.source for draw in session.journal.entries)
        return {
            "epoch": session.epoch,
            "items": session.items,
            "samples": {leaf.name: samples[leaf.name] for leaf in session.leaves},
            "cropped": {leaf.name: cropped[leaf.name] for leaf in session.leaves},
            "bytes": int(session.out.bytes),
            "errors": len(session.journal.entries),
            "quarantined": {leaf.name: bad[leaf.name] for leaf in session.leaves},
            "worker_deaths": self._executor.deaths if self._executor else 0,
            **EVENT_COUNTS.totals(),
            "elapsed_s": self._last - self._began,
            "waited_s": self.first + self.waited,
            "first_s": self.first,
            "stalls": self.stalls,
            "longest_stall_s": self.longest,
            "under_way": session.budget.units,
            "under_way_bytes": int(session.budget.used),
            "resident_bytes": {
                "run": measure_resident_memory(),
                **(self._executor.resident() if self._executor else {}),
            },
            "time": [note._asdict() for note in self._work_times() or ()],
        }


def _name_step(step: Step) -> str:
    """Return a function step as the user wrote it, with the file and line of the function."""
    (fn,) = step.functions
    fn = getattr(fn, "fn", fn)  # of a wrapper
    code = getattr(fn, "__code__", None)
    if code is None or fn.__module__.startswith("penstock."):
        return stage(step)
    return f"{stage(step)} at {code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"
