"""LRU caches of mapped files and decoded row groups."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import PurePath
from typing import Any, NamedTuple, cast

from ..engine.base.machine import get_pid, make_lock


class LRUCache:
    """A bounded, thread-safe LRU cache; pickling drops its values.

    The table has no lock, because a fork could copy a locked one. Every step is one atomic call of a
    dict. Keys store paths as strings, since hashing a path runs Python code and may switch threads. If
    several threads miss the same key, one makes the value and the others wait on a lock of that key.
    The newest value stays even if it alone exceeds the limit: decoding it for every read costs more.
    It is evicted before another value is made, so that memory never holds two of that size.

    >>> cache = LRUCache(limit=2)
    >>> cache.get("a", lambda: (1, "made"))
    'made'
    >>> cache.get("a", lambda: (1, "not made again"))
    'made'
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._values: OrderedDict[Any, tuple[int, Any]] = OrderedDict()
        self._making: dict[Any, AbstractContextManager[Any]] = {}

    def __getstate__(self) -> int:
        return self._limit

    def __setstate__(self, limit: int) -> None:
        self.__init__(limit)

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Any, make: Callable[[], tuple[int, Any]]) -> Any:
        """Return the value of `key`; on a miss, `make` returns its cost and the value."""
        key = _convert_paths_to_text(key)
        entry = self._values.get(key)
        if entry is None:
            return self._make(key, make)
        try:
            self._values.move_to_end(key)
        except KeyError:  # another thread has evicted it in between
            pass
        return entry[1]

    def drop(self, key: Any) -> None:
        """Evict a value that no reader is expected to need again."""
        entry = self._values.pop(_convert_paths_to_text(key), None)
        if entry is not None:
            self._used -= entry[0]

    def is_first(self, name: str) -> bool:
        """Return whether this is the first call with this name, for example to warn once.

        >>> cache = LRUCache(limit=2)
        >>> cache.is_first("said"), cache.is_first("said")
        (True, False)
        """
        marker = (0, object())
        return self._values.setdefault(("first", name), marker) is marker

    def holds(self, key: Any) -> bool:
        """Return whether the cache contains the key."""
        return _convert_paths_to_text(key) in self._values

    def _make(self, key: Any, make: Callable[[], tuple[int, Any]]) -> Any:
        lock_key = key, get_pid()
        with self._making.setdefault(lock_key, make_lock()):  # a C lock: an interrupt releases it
            if (entry := self._values.get(key)) is not None:
                return entry[1]
            if self._used > self._limit:
                self._drop_oversized()
            cost, value = new_entry = make()
            self._values[key] = new_entry
            self._making.pop(lock_key, None)
        # Concurrent additions may lose a cost here; `_trim` computes the sum again.
        self._used += cost
        if self._used > self._limit:
            self._trim()
        return value

    def _drop_oversized(self) -> None:
        """Evict values that exceed the limit alone; the next value would evict them."""
        try:
            entries = list(self._values.items())
        except RuntimeError:
            return  # without the GIL another thread changed the dict
        for key, (cost, _) in entries:
            if cost > self._limit:
                self.drop(key)

    def _trim(self) -> None:
        """Evict until an eighth of the limit is free, so that eviction passes stay rare."""
        try:
            used = sum(cost for cost, _ in list(self._values.values()))
        except (KeyError, RuntimeError):
            return  # without the GIL another thread changed the dict; that thread trims it
        while used > self._limit - self._limit // 8 and len(self._values) > 1:
            try:
                _, (cost, _) = self._values.popitem(last=False)
            except KeyError:
                break
            used -= cost
        self._used = used


def _convert_paths_to_text(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(
            [
                str(part) if isinstance(part, PurePath) else part
                for part in cast("tuple[Any, ...]", key)
            ]
        )
    return str(key) if isinstance(key, PurePath) else key


class SharedCaches(NamedTuple):
    """The caches that the files of one source share.

    `files` holds mapped files and is bounded by their number; `decoded` holds row groups and is bounded
    by bytes.
    """

    files: LRUCache
    decoded: LRUCache
