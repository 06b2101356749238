"""Threads of this process: nothing is copied, and functions that let go of the interpreter run side by side."""

from __future__ import annotations

from functools import partial
from typing import Any

from ...base.rows import Rows
from ...base.seams import world
from ...streams.job import Computed, Job


class Threads:
    """So many threads."""

    def __init__(self, workers: int) -> None:
        self._hands = world.sched.spawn(workers)

    def submit(self, job: Job, values: list[Any] | None, rows: Rows, /) -> Computed:
        return self._hands.submit(partial(job, values, rows))

    def close(self) -> None:
        self._hands.close()
