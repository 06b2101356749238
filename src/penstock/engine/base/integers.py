"""Integers: validation of arguments, and vectors of integers."""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Any, cast

import numpy as np

from ...errors import ConfigError
from ...types import Ints

MAX_POSITION = 1 << 60
"""Limit of positions, draws, passes, steps and cursors; also the position of what never happens.

Four positions can be added in 64 bits.
"""


def find_distinct_values(values: Ints) -> Ints:
    """Return the distinct values in ascending order.

    `np.unique` imports masked arrays at its first call, which takes longer than a resume.

    >>> find_distinct_values(np.array([2, 0, 2, 1, 0])).tolist()
    [0, 1, 2]
    """
    ordered = np.sort(values)
    keep = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=keep[1:])
    return ordered[keep]


def check_int(value: Any, where: str, least: int | None = None, most: int | None = None) -> int:
    """Return an argument that must be an integer between `least` and `most`.

    NumPy integers are valid, bools are not. `where` names the argument, with `{}` for the value.

    >>> check_int(np.int32(3), "batch({})", 1)
    3
    >>> check_int(2.5, "limit({})", 0)
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


def cast_scalar(value: Any, dtype: np.dtype[Any]) -> Any:
    """Convert a number to a dtype; raise `OverflowError` if an integer dtype cannot hold it.

    NumPy checks only Python integers.

    >>> cast_scalar(np.int64(3), np.dtype("uint8")), cast_scalar(2.0, np.dtype("int32"))
    (3, 2)
    >>> cast_scalar(np.int64(300), np.dtype("uint8"))
    Traceback (most recent call last):
    ...
    OverflowError: uint8 does not have 300
    """
    return _to_int(value, dtype) if dtype.kind in "biu" else value


@lru_cache(1024, typed=True)
def _to_int(value: Any, dtype: np.dtype[Any]) -> int:
    number = cast("float", value.item() if isinstance(value, np.generic) else value)  # pyright: ignore[reportUnknownMemberType]
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not (low <= number <= high and number == int(number)):  # a NaN fails the comparison
        raise OverflowError(f"{dtype} does not have {value}")
    return int(number)


def check_indices(values: Any, where: str) -> Ints:
    """Return indices as a vector, from a list, a range, or an array of any integer dtype.

    >>> check_indices([3, 1], "select({})").tolist()
    [3, 1]
    >>> check_indices([True, False], "select({})")
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: select([True, False]): this is a mask; give indices, np.flatnonzero(mask)
    """
    array = np.asarray(values) if hasattr(values, "ndim") else np.asarray(values, object)
    kinds: set[type] = set(map(type, array.flat)) if array.dtype == object else {array.dtype.type}
    if array.size and kinds <= {bool, np.bool_}:
        problem = "this is a mask; give indices, np.flatnonzero(mask)"
    elif array.ndim == 1 and (
        not array.size or all(issubclass(kind, int | np.integer) for kind in kinds)
    ):
        for extreme in (array.min(initial=0), array.max(initial=0)):
            check_position(int(extreme))
        return array.astype(np.int64)
    else:
        problem = "give a vector of whole numbers, such as [3, 1]"
    raise ConfigError(f"{where.format(repr(values)[:60])}: {problem}")


def check_position(position: int, each: int = 1) -> None:
    """Raise `IndexError` if a position, times `each`, exceeds the limit of positions.

    >>> check_position(1 << 40)
    >>> check_position(1 << 58, 8)
    Traceback (most recent call last):
    ...
    IndexError: position 288230376151711744 of 8 samples each: positions are counted up to 2^60
    """
    if not abs(position) * each < MAX_POSITION:
        raise make_position_error(position, each)


def make_position_error(position: int, each: int = 1) -> IndexError:
    """Return the error for a position beyond the limit."""
    groups = f" of {each} samples each" if each > 1 else ""
    return IndexError(f"position {position}{groups}: positions are counted up to 2^60")


def require_finite(below: int | None) -> int:
    """Return the length of a pass, which must be finite."""
    assert below is not None, "the input of this order is endless; Dataset should have raised"
    return below
