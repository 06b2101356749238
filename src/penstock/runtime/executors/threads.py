"""Threads of this process: nothing is copied, and functions that let go of the interpreter run side by side."""

from __future__ import annotations

import logging
from typing import Any

from ...base.rows import Rows
from ...base.seams import cores, processor_time, world
from ...streams.job import Computed, Done, Job

SURE = 2.0
"""Seconds of waiting after which it is said, once, what processes would give."""


class Threads:
    """So many threads. `spent` is the processor time that functions took on them."""

    def __init__(self, workers: int) -> None:
        self.workers, self.spent, self._hands = workers, 0.0, world.sched.spawn(workers)
        self._told = False

    def submit(self, job: Job, values: list[Any] | None, rows: Rows, /) -> Computed:
        def timed() -> Done:
            began = processor_time()
            done = job(values, rows)
            self.spent += processor_time() - began
            return done

        return self._hands.submit(timed)

    def waited(self, waited: float, elapsed: float) -> None:
        """Say once that the functions hold the interpreter, where that is why somebody waits."""
        if self._told or waited < SURE or not held(self.workers, cores(), self.spent, waited, elapsed):
            return
        self._told = True
        logging.getLogger("penstock").warning(
            "the run waits for its data, and the functions of %d threads use %.1f of %d cores: they hold the "
            "interpreter, so threads take turns; Loader(executor='processes') may be up to %d times as fast",
            self.workers, self.spent / elapsed, cores(), min(self.workers, cores()),
        )  # fmt: skip

    def close(self) -> None:
        self._hands.close()


def held(workers: int, cores: int, spent: float, waited: float, elapsed: float) -> bool:
    """Whether threads took turns: somebody waited most of the time, and they used about one core of several."""
    return min(workers, cores) > 1 and waited > 0.5 * elapsed and 0.8 < spent / elapsed < 1.15
