"""Threads of this process: nothing is copied, and functions that let go of the interpreter run side by side."""

from __future__ import annotations

from typing import Any

from ...base.rows import Rows
from ...base.seams import processor_time, world
from ...streams.job import Computed, Done, Job


class Threads:
    """So many threads. `spent` is the processor time that functions took on them."""

    def __init__(self, workers: int) -> None:
        self.spent, self._hands = 0.0, world.sched.spawn(workers)

    def submit(self, job: Job, values: list[Any] | None, rows: Rows, /) -> Computed:
        def timed() -> Done:
            began = processor_time()
            done = job(values, rows)
            self.spent += processor_time() - began
            return done

        return self._hands.submit(timed)

    def resident(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self._hands.close()
