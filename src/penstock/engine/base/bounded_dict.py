"""A dict of bounded size, as a cache of values that can be computed again."""

from __future__ import annotations

from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedDict(dict[K, V]):
    """A dict that keeps the newest `limit` entries.

    Threads may share one: at worst a thread computes a value that another has just evicted.

    >>> squares = BoundedDict[int, int](2)
    >>> for number in (1, 2, 3):
    ...     squares[number] = number * number
    >>> squares
    {2: 4, 3: 9}
    """

    __slots__ = ("limit",)

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if (excess := len(self) - self.limit) > 0:
            for oldest in list(self)[:excess]:
                self.pop(oldest, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.limit,), None, None, iter(self.items())
