"""Profiling of a run, on request: time by step and by source, measured where the work is done.

A tree is compiled with a profiler or without one; without, nothing here is called.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np

from ...types import Ints, Json, Sizes, Source
from ..base.machine import get_thread_id, read_cpu_seconds
from ..base.rows import ProvenanceRows
from ..base.seams import world

READ_STEP = "read"
"""The name of the step for reading a source."""
SEVERAL_SOURCES = ""
"""The name of the source of items that are made from several sources."""


class WorkTime(NamedTuple):
    """Seconds that a step took for items of a source, and the part of them on a processor."""

    step: str
    source: str
    items: int
    seconds: float
    processor: float


class CurrentWork:
    """The work of a thread: a step, the sample in progress, and its start time."""

    def __init__(self, step: str, names: Sequence[str], rows: ProvenanceRows | None) -> None:
        self.step = step
        self.names = names
        self.rows = rows
        self.item = 0
        self.since = world.sched.now()
        self.reported_since = 0.0  # since when what was said last lasted

    def __str__(self) -> str:
        if self.rows is None:
            return f"reading {self.names[0]!r}"
        row = self.rows.slice(self.item, self.item + 1)
        name = self.names[int(row.leaf[0])]
        return f"{self.step} over {name}[{int(row.index[0])}] (pass {int(row.epoch[0])})"


class Profiler:
    """Records of work, and their sums.

    Any thread records its work. `take_records` and `add` bring the records to the run, also from
    worker processes, which have a profiler of their own.
    """

    def __init__(self) -> None:
        self._notes = deque[WorkTime]()
        self._sums = dict[tuple[str, str], WorkTime]()
        self._marks = dict[int, CurrentWork]()

    def __reduce__(self) -> Any:
        return Profiler, ()

    @contextmanager
    def track(
        self, step: str, names: Sequence[str], rows: ProvenanceRows | None = None
    ) -> Generator[CurrentWork]:
        """Mark this thread as working on a step."""
        me = get_thread_id()
        try:
            self._marks[me] = mark = CurrentWork(step, names, rows)
            yield mark
        finally:
            del self._marks[me]

    def describe_slow_work(self, seconds: float) -> list[str]:
        """Describe work that threads began longer ago than this, each once."""
        now, found = world.sched.now(), list[str]()
        for mark in self._marks.copy().values():
            if now - mark.since > seconds and mark.reported_since != mark.since:
                mark.reported_since = mark.since
                found.append(f"{mark}, {now - mark.since:.3g} s so far")
        return found

    def record(
        self,
        step: str,
        names: Sequence[str],
        source: Ints,
        seconds: Sequence[float],
        processor: float,
    ) -> None:
        """Record the seconds of a step for each item; `source` numbers the name of each."""
        many, total = np.bincount(source), np.bincount(source, seconds)
        share = processor / max(float(total.sum()), 1e-9)
        for i in np.flatnonzero(many).tolist():
            took = float(total[i])
            self._notes.append(WorkTime(step, names[i], int(many[i]), took, took * share))

    def time_read(self, name: str, read: Callable[[], list[Any]]) -> list[Any]:
        """Call `read`, and record its time for a source."""
        began, processor = world.sched.now(), read_cpu_seconds()
        with self.track(READ_STEP, [name]):
            found = read()
        seconds = [(world.sched.now() - began) / max(len(found), 1)] * len(found)
        self.record(
            READ_STEP,
            [name],
            np.zeros(len(found), np.int64),
            seconds,
            read_cpu_seconds() - processor,
        )
        return found

    def take_records(self) -> list[WorkTime]:
        """Return the records that were not collected yet.

        They are only added up, so any reader may collect them.
        """
        found = list[WorkTime]()
        with suppress(IndexError):
            while True:
                found.append(self._notes.popleft())
        return found

    def add(self, notes: Iterable[WorkTime]) -> None:
        """Add records to the sums of the run."""
        for note in notes:
            before = self._sums.get(note[:2])
            self._sums[note[:2]] = (
                note if before is None else WorkTime(*note[:2], *_plus(before, note))
            )

    def collect(self) -> None:
        """Add the records of this process."""
        self.add(self.take_records())

    def totals(self) -> list[WorkTime]:
        """Return the sums by step and source, the longest first."""
        self.collect()
        return sorted(self._sums.values(), key=lambda note: -note.seconds)


def _plus(a: WorkTime, b: WorkTime) -> tuple[int, float, float]:
    return a.items + b.items, a.seconds + b.seconds, a.processor + b.processor


class TimedSource:
    """A source whose reading is timed."""

    def __init__(self, source: Source, name: str, profiler: Profiler) -> None:
        self._source, self._name, self._profiler = source, name, profiler

    def __len__(self) -> int:
        return len(self._source)

    def read(self, indices: Ints, /) -> list[Any]:
        return self._profiler.time_read(self._name, lambda: self._source.read(indices))

    def lengths(self) -> Sizes | None:
        return self._source.lengths()

    def describe(self) -> Json:
        return self._source.describe()
