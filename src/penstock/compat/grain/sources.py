"""Sources: any object with `len` and `[i]`."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from ...errors import ConfigError


@runtime_checkable
class RandomAccessDataSource(Protocol):
    """Protocol of sources that `MapDataset.source` accepts.

    >>> isinstance([1, 2], RandomAccessDataSource)
    True
    """

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


class RangeDataSource:
    """Integers from `start` to before `stop`.

    >>> from penstock.compat.grain import MapDataset
    >>> list(MapDataset.source(RangeDataSource(2, 9, 3)))
    [2, 5, 8]
    """

    def __init__(self, start: int, stop: int, step: int) -> None:
        if step == 0:
            raise ConfigError("RangeDataSource: step=0: give another step")
        self._numbers = range(start, stop, step)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> int:
        return self._numbers[index]

    def __repr__(self) -> str:
        numbers = self._numbers
        return f"RangeDataSource(start={numbers.start}, stop={numbers.stop}, step={numbers.step})"
