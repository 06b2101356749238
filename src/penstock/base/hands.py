"""Threads that compute for somebody, and know when nobody waits for them any more."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

_HERE, _END = threading.local(), threading.Event()

# What `atexit` is told comes after threads were waited for, and these would wait for a store that is down.
getattr(threading, "_register_atexit", atexit.register)(_END.set)


class Pool:
    """So many threads, that begin when they are needed."""

    def __init__(self, workers: int) -> None:
        self._name, self._closed = f"penstock-{id(self):x}", threading.Event()
        self._pool = ThreadPoolExecutor(workers, self._name, _works_for, (self._closed,))

    def submit(self, task: Callable[[], Any], /) -> Future[Any]:
        """Have a task computed."""
        return self._pool.submit(task)

    def close(self, seconds: float | None = None, /) -> None:
        """Compute no more; those that do are waited for, at most so many seconds."""
        self._closed.set()
        self._pool.shutdown(wait=False, cancel_futures=True)
        # What is let go of without being closed may be collected on one of these threads, which cannot wait for itself.
        if not threading.current_thread().name.startswith(f"{self._name}_"):
            wait = threading.Thread(target=self._pool.shutdown, name=self._name, daemon=True)
            wait.start()
            wait.join(seconds)  # to a pool no limit can be said


def _works_for(closed: threading.Event) -> None:
    _HERE.closed = closed


def given_up() -> bool:
    """Whether nobody waits any more for what this thread computes: who hired it let go of it, or the program ends."""
    closed: threading.Event | None = getattr(_HERE, "closed", None)
    return _END.is_set() or (closed is not None and closed.is_set())
