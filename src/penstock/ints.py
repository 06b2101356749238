"""Vectors of integers: what NumPy has, without what it brings along."""

from __future__ import annotations

import numpy as np

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
