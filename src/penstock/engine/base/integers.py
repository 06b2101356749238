"""Distinct values of a vector of integers, and lengths that must be finite."""

from __future__ import annotations

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


def require_finite(below: int | None) -> int:
    """Return the length of a pass, which must be finite."""
    assert below is not None, "the input of this order is endless; Dataset should have raised"
    return below
