"""Interfaces to the system: `Sched` provides threads and time, `Screen` shows progress.

All other code of a run is pure; files are read by sources and stores. The simulator in
`penstock.testing` replaces these interfaces, so that the same code runs under dead threads and
reordered results. A lint test checks that no other module accesses the system.
"""

from __future__ import annotations

import contextlib
import logging
import math
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...types import DataComparison, Digests
from .machine import detect_rank, read_environment_variable
from .thread_pool import Task, ThreadPool


class TaskPool(Protocol):
    """Thread pool for tasks; `close` waits up to a number of seconds."""

    def submit(self, task: Callable[[], Any], /) -> Task: ...
    def close(self, seconds: float | None = None, /) -> None: ...


class Sched(Protocol):
    """Scheduler: threads and time."""

    def now(self) -> float: ...
    def sleep(self, seconds: float, /) -> None: ...
    def spawn(self, workers: int, /) -> TaskPool: ...


class Screen(Protocol):
    """Display of progress: a line per task, at intervals of `every()` seconds."""

    def every(self) -> float: ...
    def show(self, work: object, line: str, over: bool, /) -> None: ...


class LocalSched:
    """Threads of this process, and the monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float, /) -> None:
        time.sleep(seconds)

    def spawn(self, workers: int, /) -> TaskPool:
        return ThreadPool(workers)


class LocalScreen:
    """Progress as an overwritten line in a terminal or a notebook, else as log lines.

    `PENSTOCK_PROGRESS=0` disables both.
    """

    def __init__(self) -> None:
        self._lines, self._wide, self._lock = dict[int, str](), 0, threading.Lock()

    def every(self) -> float:
        return (
            math.inf
            if read_environment_variable("PENSTOCK_PROGRESS") == "0"
            else 0.2
            if _find_terminal()
            else 10.0
        )

    def show(self, work: object, line: str, over: bool, /) -> None:
        if math.isinf(self.every()):
            return
        # A closed terminal must not stop the work.
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._lines[id(work)] = line
            if over:
                del self._lines[id(work)]
            if stream := _find_terminal():
                text = " | ".join(self._lines.values())[: shutil.get_terminal_size().columns - 1]
                stream.write("\r" + text.ljust(self._wide) + ("" if text else "\r"))
                stream.flush()
                self._wide = len(text)
            elif (log := logging.getLogger("penstock")).hasHandlers():
                log.info("%s", line)
            else:  # without logging, write to stderr
                sys.stderr.write(f"{line}\n")


def _find_terminal() -> Any:
    """Return the stream of a terminal or notebook with only this process, or None."""
    if detect_rank()[1] > 1:
        return None
    if sys.stderr and sys.stderr.isatty():
        return sys.stderr
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return sys.stdout if hasattr(shell, "kernel") else None


@dataclass
class World:
    """The interfaces in use; tests replace them. `penstock.sources` sets `digests` and `data`."""

    sched: Sched
    screen: Screen
    digests: Digests = field(init=False)
    data: DataComparison = field(init=False)


world = World(LocalSched(), LocalScreen())
