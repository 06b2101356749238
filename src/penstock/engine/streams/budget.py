"""Limit of the bytes in flight.

Sizes are known only afterwards, so a unit in flight counts with the mean size of earlier items.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from ...arrays.columnar import ColumnarSamples

_FIRST_UNITS = 64  # in flight before any was measured; one more with each that was
_SAMPLED_ITEMS = 4  # of many, whose bytes are estimated
_SAMPLED_ENTRIES = 3  # of each list in them
_DEPTH = 6
_PLAIN_BYTES = 64  # of an object without a size


class ItemSize:
    """Moving average of the bytes of an item; it grows at once and shrinks slowly."""

    def __init__(self) -> None:
        self.mean, self.measured = 0.0, 0

    def learn(self, size: float, items: int) -> None:
        """Add the bytes of some items."""
        self.measured += 1
        if size and items:
            each = size / items
            share = 0.1 if each < self.mean else 0.5 if self.mean else 1.0
            self.mean += (each - self.mean) * share

    def items(self, size: float) -> int:
        """Return the number of items in some bytes, at least one."""
        return max(1, int(size / self.mean)) if self.mean else 1 << 30


class Budget:
    """The bytes that all streams of a run may have in flight."""

    def __init__(self, most: int) -> None:
        self.max_bytes, self.item_size, self.used, self.units = most, ItemSize(), 0.0, 0

    def fits(self, items: int) -> bool:
        """Return whether more items may be begun. A mean of few items is trusted for few."""
        return (
            self.units < _FIRST_UNITS + self.item_size.measured
            and self.used + items * self.item_size.mean <= self.max_bytes / 2
        )

    # The next call of the caller records that the unit is in flight, or no longer. These methods
    # end with stores, so that no interrupt comes between the two.

    def reserve(self, size: float) -> None:
        """Count a unit of some bytes as in flight."""
        self.used, self.units = self.used + size, self.units + 1

    def release(self, size: float) -> None:
        """Remove a unit."""
        self.used, self.units = self.used - size if self.units > 1 else 0.0, self.units - 1


def estimate_total_bytes(values: Sequence[Any]) -> float:
    """Estimate the bytes of many values from a few of them."""
    if isinstance(values, ColumnarSamples):
        return float(values.nbytes)
    if not values:
        return 0.0
    some = values[:: -(-len(values) // _SAMPLED_ITEMS)]
    return sum(map(estimate_bytes, some)) / len(some) * len(values)


def estimate_bytes(value: Any, depth: int = _DEPTH) -> int:
    """Estimate the bytes of a value. The first entries of long lists stand for all."""
    kind = cast("type[object]", type(value))
    if kind is bytes or kind is str:
        return _PLAIN_BYTES + len(value)
    if (size := None if isinstance(value, dict) else _array_bytes(value)) is not None:
        return _PLAIN_BYTES + size
    if not depth:
        return _PLAIN_BYTES
    # `isinstance` of a protocol is slow
    if kind is dict or (kind is not list and isinstance(value, Mapping)):
        return _PLAIN_BYTES + _sum_bytes(cast("Mapping[Any, Any]", value).values(), depth - 1)
    if isinstance(value, list | tuple) and value:
        entries = cast("Sequence[Any]", value)
        some = entries[:_SAMPLED_ENTRIES]
        return _PLAIN_BYTES + _sum_bytes(some, depth - 1) * len(entries) // len(some)
    return _PLAIN_BYTES + (len(value) if isinstance(value, bytes | bytearray | str) else 0)


def _array_bytes(value: Any) -> int | None:
    """Return the `nbytes` of an array."""
    try:
        size = value.nbytes
    except Exception:  # an object of the user may raise anything for a missing attribute
        return None
    return size if isinstance(size, int) else None


def _sum_bytes(values: Iterable[Any], depth: int) -> int:
    # Without a call for strings, which most samples hold.
    return sum(
        [
            _PLAIN_BYTES + len(v)
            if type(v) is bytes or type(v) is str
            else estimate_bytes(v, depth)
            for v in values
        ]
    )
