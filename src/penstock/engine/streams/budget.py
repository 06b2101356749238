"""How much may be made ahead, in bytes: a bound for what is under way, whoever computes it.

Sizes are known only afterwards, so what is begun counts as much as what came before was on average.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from ..base.columnar import ColumnarSamples

_BLIND = 64  # units that may be under way before any was seen; with each that was seen, one more
_LOOKED_AT = 4  # items of many that are bytes_of
_DEEPER = 3  # and of what they hold
_DEEP = 6
_PLAIN = 64  # bytes of what has no size of its own


class Weight:
    """How many bytes an item takes, about: what was seen last counts most, and more at once."""

    def __init__(self) -> None:
        self.mean, self.seen = 0.0, 0

    def learn(self, size: float, items: int) -> None:
        """So many items took so many bytes."""
        self.seen += 1
        if size and items:
            found = size / items
            self.mean += (found - self.mean) * (
                0.1 if found < self.mean else 0.5 if self.mean else 1.0
            )

    def items(self, room: float) -> int:
        """How many items so many bytes are, at least one."""
        return max(1, int(room / self.mean)) if self.mean else 1 << 30


class Budget:
    """So many bytes may be under way, of what all streams of a run compute."""

    def __init__(self, most: int) -> None:
        self.most, self.weight, self.used, self.units = most, Weight(), 0.0, 0

    def fits(self, items: int) -> bool:
        """Whether so many items more may be begun. What few have shown of sizes holds for few."""
        return (
            self.units < _BLIND + self.weight.seen
            and self.used + items * self.weight.mean <= self.most / 2
        )

    # The caller notes with its next call that a unit is under way, or that it is not any more. Both
    # of these end with stores, so no interrupt comes between the two.

    def begin(self, taken: float) -> None:
        """Count a unit of so many bytes as under way."""
        self.used, self.units = self.used + taken, self.units + 1

    def give_back(self, taken: float) -> None:
        """Count such a unit no more."""
        self.used, self.units = self.used - taken if self.units > 1 else 0.0, self.units - 1


def bytes_of_all(values: Sequence[Any]) -> float:
    """The bytes that many values take, about: a few of them speak for the others."""
    if isinstance(values, ColumnarSamples):
        return float(values.nbytes)
    if not values:
        return 0.0
    some = values[:: -(-len(values) // _LOOKED_AT)]
    return sum(map(bytes_of, some)) / len(some) * len(values)


def _own_size(value: Any) -> int | None:
    """The bytes that an array says it takes."""
    try:
        size = value.nbytes
    except (
        Exception
    ):  # objects of the user's may raise anything when they are asked for what they lack
        return None
    return size if isinstance(size, int) else None


def bytes_of(value: Any, deep: int = _DEEP) -> int:
    """The bytes that a value takes, about. Of long lists the first entries speak for all."""
    kind = cast("type[object]", type(value))
    if kind is bytes or kind is str:
        return _PLAIN + len(value)
    if (size := None if isinstance(value, dict) else _own_size(value)) is not None:
        return _PLAIN + size
    if not deep:
        return _PLAIN
    if kind is dict or (
        kind is not list and isinstance(value, Mapping)
    ):  # asking for a mapping takes long
        return _PLAIN + _of(cast("Mapping[Any, Any]", value).values(), deep - 1)
    if isinstance(value, list | tuple) and value:
        every = cast("Sequence[Any]", value)
        some = every[:_DEEPER]
        return _PLAIN + _of(some, deep - 1) * len(every) // len(some)
    return _PLAIN + (len(value) if isinstance(value, bytes | bytearray | str) else 0)


def _of(values: Iterable[Any], deep: int) -> int:
    # Without a call for what most samples hold.
    return sum(
        [
            _PLAIN + len(v) if type(v) is bytes or type(v) is str else bytes_of(v, deep)
            for v in values
        ]
    )
