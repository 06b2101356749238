"""Measurements during a run: time waited for items, and time spent by step."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from ..base.event_counts import EVENT_COUNTS
from ..base.machine import count_cores, measure_resident_memory
from ..steps.show import stage
from ..steps.step import Step, Timing
from ..streams.clock import Clock, Note
from ..streams.job import Executor
from .executors.threads import Threads
from .session import Session
from .verdict import Facts, Verdict, judged, turns

STALL = 0.001
"""Seconds from which on a wait for an item is a stall."""
SURE = 2.0
"""Seconds of waiting after which it is said, once, what processes would give."""


class Watch:
    """Waiting time for items. The first wait starts the workers and counts apart.

    `timing` measures the work if a profile was requested.
    """

    def __init__(self, name: str, workers: int, executor: Executor | None, profile: bool) -> None:
        self._name, self._workers, self._executor = name, workers, executor
        self.timing = Timing(Clock(), _called) if profile else None
        self.waited = self.first = self.longest = self._began = self._last = 0.0
        self.stalls, self._told = 0, not isinstance(executor, Threads)

    def took(self, began: float, ended: float) -> None:
        """One wait."""
        self._last, seconds = ended, ended - began
        if self.timing:
            self.timing.clock.gather()
        if not self._began:
            self._began, self.first = ended, seconds
            return
        self.waited += seconds
        if seconds > STALL:
            self.stalls += 1
            self.longest = max(self.longest, seconds)
        if not self._told and self.waited > SURE:
            self._tell_of_turns()

    def _tell_of_turns(self) -> None:
        """Say once that the functions hold the interpreter, where that is why somebody waits."""
        if (facts := self._facts()).held:
            self._told = True
            logging.getLogger("penstock").warning("the run waits for its data: %s", turns(facts))

    def _facts(self) -> Facts:
        spent = self._executor.cpu_seconds if isinstance(self._executor, Threads) else 0.0
        elapsed, notes = self._last - self._began, self._notes()
        return Facts(
            self._name, self._workers, count_cores(), self.waited, elapsed, self.stalls, self.longest, spent, notes,
        )  # fmt: skip

    def _notes(self) -> list[Note] | None:
        return self.timing.clock.sums() if self.timing else None

    def verdict(self) -> Verdict:
        """Whether the run is bound by its data."""
        return judged(self._facts())

    def stats(self, session: Session) -> dict[str, Any]:
        """All figures, as plain values."""
        samples, bad = session.samples, Counter(draw.source for draw in session.journal.entries)
        return {
            "epoch": session.epoch,
            "items": session.items,
            "samples": {leaf.name: samples[leaf.name] for leaf in session.leaves},
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
            "time": [note._asdict() for note in self._notes() or ()],
        }


def _called(step: Step) -> str:
    """Return a function step as the user wrote it, with the file and line of the function."""
    (fn,) = step.functions
    fn = getattr(fn, "fn", fn)  # of a wrapper
    code = getattr(fn, "__code__", None)
    if code is None or fn.__module__.startswith("penstock."):
        return stage(step)
    return f"{stage(step)} at {code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"
