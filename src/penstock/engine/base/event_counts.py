"""Event counters of this process and its workers: storage retries, cache hits and misses, packed
documents without a token to train on, and the counts of functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from .machine import get_pid, make_lock

EVENT_NAMES = ("retries", "cache_hits", "cache_misses", "untrained")


class EventCounts:
    """Thread-safe event counters by name.

    >>> counts = EventCounts()
    >>> counts.add("retries")
    >>> counts.totals()["retries"], counts.news(), counts.news()
    (1, {'retries': 1}, {})
    """

    def __init__(self) -> None:
        self._counts, self._reported = Counter[str](), Counter[str]()
        self._locks = dict[int, AbstractContextManager[Any]]()

    def add(self, name: str, n: int = 1) -> None:
        """Count `n` more events."""
        if n:
            with self._lock():
                self._counts[name] += n

    def add_all(self, counts: Mapping[str, int]) -> None:
        """Add the counts of another process."""
        for name, n in counts.items():
            self.add(name, n)

    def _lock(self) -> AbstractContextManager[Any]:
        # One lock per process: another thread may hold it while this process is forked.
        return self._locks.setdefault(get_pid(), make_lock())

    def totals(self, names: Iterable[str] = EVENT_NAMES) -> dict[str, int]:
        """Return the counts of these names."""
        with self._lock():
            return {name: self._counts[name] for name in names}

    def news(self) -> dict[str, int]:
        """Return the counts since the last call, for the parent process."""
        with self._lock():
            news, self._reported = self._counts - self._reported, self._counts.copy()
            return dict(news)


EVENT_COUNTS = EventCounts()
"""The event counters of this process."""
