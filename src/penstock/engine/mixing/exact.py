"""Products and quotients of 64-bit integers that may pass 64 bits on the way, and the phases of
thresholds."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...types import MAX_POSITION, Ints
from ..base.random import GOLDEN_GAMMA, Words, mix64


class Phases(NamedTuple):
    """How late the thresholds of nodes are: by one of so many choices, a step apart, from 0 on."""

    keys: Words
    choices: Words
    steps: Ints

    def late(self, at: Any, numbers: Ints) -> Ints:
        """Of the thresholds of these numbers, of the nodes `at` (an index of arrays)."""
        words = mix64(numbers.view(np.uint64) * np.uint64(GOLDEN_GAMMA) + self.keys[at])
        words >>= np.uint64(32)
        words *= self.choices[at]
        words >>= np.uint64(32)
        return words.view(np.int64) * self.steps[at]

    def latest(self, at: Ints) -> Ints:
        """How late they can be at most."""
        return (self.choices[at].view(np.int64) - 1) * self.steps[at]


def divided(x: Ints, d: Ints) -> tuple[Ints, Ints]:
    """Quotient and rest."""
    quotient = x // d
    return quotient, x - quotient * d


def muldiv(a: Ints, m: Ints, d: Ints) -> tuple[Ints, Ints]:
    """Quotient and rest of `a*m / d` for 0 <= a <= d <= 2^48 and 0 <= m < 2^60.

    The product may pass 2^64. A float estimate of the quotient is off by some hundred at most; the
    difference is exact.
    """
    near = np.rint(a / d * m).astype(np.int64)
    rest = a * m - near * d
    more = rest // d
    return near + more, rest - more * d


def ceildiv(j: Ints, d: Ints, k: Ints, b: Ints) -> Ints:
    """The least x with `b*x >= j*d + k`; `MAX_POSITION` where it is far beyond that, or b is 0."""
    some = np.maximum(b, 1)
    near = np.clip((j.astype(np.float64) * d + k) / some, -2.0 * MAX_POSITION, 2.0 * MAX_POSITION)
    x = np.rint(near).astype(np.int64)
    short = j * d + k - b * x
    return np.where((near < 1.5 * MAX_POSITION) & (b > 0), x - (-short // some), MAX_POSITION)
