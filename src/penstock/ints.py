"""Integers: vectors of them without what NumPy brings along, and those that users give."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from .errors import ConfigError
from .types import Ints


def distinct(values: Ints) -> Ints:
    """The different values in ascending order. `np.unique` would import masked arrays at its first call, which is more
    than the whole of a resume takes.

    >>> distinct(np.array([2, 0, 2, 1, 0])).tolist()
    [0, 1, 2]
    """
    ordered = np.sort(values)
    keep = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=keep[1:])
    return ordered[keep]


def whole(value: Any, where: str, least: int | None = None) -> int:
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
    if number is None or (least is not None and number < least):
        bound = "" if least is None else f" of at least {least}"
        raise ConfigError(f"{where.format(repr(value))}: a whole number{bound}")
    return number
