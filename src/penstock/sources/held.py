"""Things kept for a while: mapped files and decoded row groups, the least recently used going
first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import PurePath
from typing import Any, NamedTuple, cast

from ..engine.base.machine import lock, process


class Held:
    """A bounded cache that several threads may use at once; it is dropped on pickling.

    There is no lock around the table, which a fork could leave taken: every step on it is one
        atomic call of a dict,
    because paths in keys are made texts (to hash a path runs Python, and lets other threads in).
    When several threads want the same missing value, one makes it and the others wait, by a lock of
    that value in this process. The newest value is kept even where it alone is over the limit, as
    decoding it again for every read would be worse.

    >>> held = Held(limit=2)
    >>> held.get("a", lambda: (1, "made"))
    'made'
    >>> held.get("a", lambda: (1, "not made again"))
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
        """The value of `key`; where it is not held, `make` gives its cost and the value."""
        key = _plain(key)
        found = self._values.get(key)
        if found is None:
            return self._made(key, make)
        try:
            self._values.move_to_end(key)
        except KeyError:  # another thread let it go in between
            pass
        return found[1]

    def drop(self, key: Any) -> None:
        """Let go of a value that nobody is expected to want again."""
        found = self._values.pop(_plain(key), None)
        if found is not None:
            self._used -= found[0]

    def once(self, what: str) -> bool:
        """Return whether this is the first call for `what`, such as a warning.

        >>> held = Held(limit=2)
        >>> held.once("said"), held.once("said")
        (True, False)
        """
        mine = (0, object())
        return self._values.setdefault(("once", what), mine) is mine

    def holds(self, key: Any) -> bool:
        """Whether a value is there."""
        return _plain(key) in self._values

    def _made(self, key: Any, make: Callable[[], tuple[int, Any]]) -> Any:
        turn = key, process()
        with self._making.setdefault(turn, lock()):  # written in C: an interrupt leaves it open
            if (found := self._values.get(key)) is not None:
                return found[1]
            cost, value = made = make()
            self._values[key] = made
            self._making.pop(turn, None)
        # Threads that add at the same moment may lose a cost here; it is found when the sum is next
        # taken.
        self._used += cost
        if self._used > self._limit:
            self._trim()
        return value

    def _trim(self) -> None:
        """Let go until an eighth of the room is free, so that the sum is not taken again for every
        new value."""
        try:
            used = sum(cost for cost, _ in list(self._values.values()))
        except (
            KeyError,
            RuntimeError,
        ):  # without the interpreter lock: who changed it meanwhile looks after it
            return
        while used > self._limit - self._limit // 8 and len(self._values) > 1:
            try:
                _, (cost, _) = self._values.popitem(last=False)
            except KeyError:
                break
            used -= cost
        self._used = used


def _plain(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(
            [
                str(part) if isinstance(part, PurePath) else part
                for part in cast("tuple[Any, ...]", key)
            ]
        )
    return str(key) if isinstance(key, PurePath) else key


class Shared(NamedTuple):
    """What the files of one source share: mapped files (bounded by number) and decoded row groups
    (by bytes)."""

    files: Held
    decoded: Held
