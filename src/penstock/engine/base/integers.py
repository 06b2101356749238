"""Exact integers: distinct values of a vector, and conversion to other dtypes."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import numpy as np

from ...types import Ints


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


def require_finite(below: int | None) -> int:
    """Return the length of a pass, which must be finite."""
    assert below is not None, "the input of this order is endless; Dataset should have raised"
    return below
