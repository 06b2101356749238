"""Counts of events in this process and its worker processes: retries of storage, hits and misses of
caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from .machine import lock, process

COUNTED = ("retries", "cache_hits", "cache_misses")


class EventCounts:
    """Counts of events by name, by whichever thread adds them.

    >>> counts = EventCounts()
    >>> counts.add("retries")
    >>> counts.totals()["retries"], counts.news(), counts.news()
    (1, {'retries': 1}, {})
    """

    def __init__(self) -> None:
        self._counts, self._told = Counter[str](), Counter[str]()
        self._locks = dict[int, AbstractContextManager[Any]]()

    def add(self, name: str, n: int = 1) -> None:
        """Count `n` more events."""
        if n:
            with self._alone():
                self._counts[name] += n

    def add_all(self, counts: Mapping[str, int]) -> None:
        """Count what another process counted."""
        for name, n in counts.items():
            self.add(name, n)

    def _alone(self) -> AbstractContextManager[Any]:
        return self._locks.setdefault(
            process(), lock()
        )  # another thread may hold it while this process is forked

    def totals(self) -> dict[str, int]:
        """The counts of all names."""
        with self._alone():
            return {name: self._counts[name] for name in COUNTED}

    def news(self) -> dict[str, int]:
        """Return the counts since the last call, for the process that this one works for."""
        with self._alone():
            news, self._told = self._counts - self._told, self._counts.copy()
            return dict(news)


EVENTS = EventCounts()
"""The counts of this process."""
