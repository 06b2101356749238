"""Integers: vectors of them without what NumPy brings along, and those that users give."""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Any, cast

import numpy as np

from ...errors import ConfigError
from ...types import Ints

FAR = 1 << 62
"""Positions are counted up to here."""


def distinct(values: Ints) -> Ints:
    """The different values in ascending order. `np.unique` would import masked arrays at its first
    call, which is more than the whole of a resume takes.

    >>> distinct(np.array([2, 0, 2, 1, 0])).tolist()
    [0, 1, 2]
    """
    ordered = np.sort(values)
    keep = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=keep[1:])
    return ordered[keep]


def whole(value: Any, where: str, least: int | None = None, most: int | None = None) -> int:
    """The whole number that was given, NumPy's too; anything else is refused, in its place.

    >>> whole(np.int32(3), "batch({})", 1)
    3
    >>> whole(2.5, "limit({})", 0)
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: limit(2.5): a whole number of at least 0
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    large = most is not None and number is not None and number > most
    if number is None or large or (least is not None and number < least):
        bound = f" of at most {most}" if large else "" if least is None else f" of at least {least}"
        raise ConfigError(f"{where.format(repr(value))}: a whole number{bound}")
    return number


def held(value: Any, dtype: np.dtype[Any]) -> Any:
    """A number that fills an array, if this dtype has it; NumPy checks that of Python's integers
    alone.

    >>> held(np.int64(3), np.dtype("uint8")), held(2.0, np.dtype("int32")), held(1.5, np.dtype("float32"))
    (3, 2, 1.5)
    >>> held(np.int64(300), np.dtype("uint8"))
    Traceback (most recent call last):
    ...
    OverflowError: uint8 does not have 300
    """
    return _whole_in(value, dtype) if dtype.kind in "biu" else value


@lru_cache(1024, typed=True)
def _whole_in(value: Any, dtype: np.dtype[Any]) -> int:
    number = cast("float", value.item() if isinstance(value, np.generic) else value)  # pyright: ignore[reportUnknownMemberType]
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not (low <= number <= high and number == int(number)):  # NaN is nowhere
        raise OverflowError(f"{dtype} does not have {value}")
    return int(number)


def places(values: Any, where: str) -> Ints:
    """The whole numbers that were given, as a vector: a list, a range, an array of any kind of
    integers.

    >>> places([3, 1], "select({})").tolist()
    [3, 1]
    >>> places([True, False], "select({})")
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: select([True, False]): a mask; give the places where it is true, np.flatnonzero(mask)
    """
    found = np.asarray(values) if hasattr(values, "ndim") else np.asarray(values, object)
    kinds: set[type] = set(map(type, found.flat)) if found.dtype == object else {found.dtype.type}
    if found.size and kinds <= {bool, np.bool_}:
        said = "a mask; give the places where it is true, np.flatnonzero(mask)"
    elif found.ndim == 1 and (
        not found.size or all(issubclass(kind, int | np.integer) for kind in kinds)
    ):
        for extreme in (found.min(initial=0), found.max(initial=0)):
            within_reach(int(extreme))
        return found.astype(np.int64)
    else:
        said = "whole numbers in one row, such as [3, 1]"
    raise ConfigError(f"{where.format(repr(values)[:60])}: {said}")


def within_reach(position: int, each: int = 1) -> None:
    """Refuse a position that is counted no more, or behind which others are of which each takes so
    many.

    >>> within_reach(1 << 40)
    >>> within_reach(1 << 60, 8)
    Traceback (most recent call last):
    ...
    IndexError: position 1152921504606846976 of 8 samples each: positions are counted up to 2^62
    """
    if not abs(position) * each < FAR:
        groups = f" of {each} samples each" if each > 1 else ""
        raise IndexError(f"position {position}{groups}: positions are counted up to 2^62")


def finite(below: int | None) -> int:
    """The length of a pass where there must be one."""
    assert below is not None, (
        "this order was put on an endless flow; the dataset should have refused it"
    )
    return below
