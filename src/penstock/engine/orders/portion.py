"""Split of samples by a hash of their positions, for example into train and held-out sets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from ...errors import ConfigError
from ...types import Ints, Json
from ..base.integers import require_finite
from ..base.random import derive_key, hash64
from .slices import FixedSet

MAX_DENOMINATOR = 10**6


@dataclass(frozen=True)
class Portion(FixedSet):
    """Fixed set of `some` of every `of` samples, in their order; or of all `others`.

    Every `of` positions are divided into `some` intervals, and a hash of the interval's number
    picks one position of each. So every prefix has its share, and appended data moves no earlier
    sample.
    """

    some: int
    of: int
    seed: int = 0
    others: bool = False

    def size(self, below: int | None, /) -> int | None:
        return None if below is None else _count_portion(self, below)

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        count = require_finite(self.size(below))
        epoch = positions // count
        place = positions - epoch * count
        if not self.others:
            return self._picked(place), epoch
        # Skip all intervals that end before, and then those that picked an early position.
        rest = self.of - self.some
        skipped = np.maximum(((place + 1) * self.some - self.of) // rest + 1, 0)
        while (earlier := self._picked(skipped) - skipped <= place).any():
            skipped += earlier
        return place + skipped, epoch

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        inside = (positions >= 0) & (positions < require_finite(below))
        indices = np.where(inside, positions, 0)
        interval = self._interval(indices)
        selected = (self._picked(interval) == indices) != self.others
        index = indices - self.before(indices) if self.others else interval
        return np.where(inside & selected, index, -1)

    def complement(self) -> Portion:
        """Return the order of all other samples."""
        return replace(self, others=not self.others)

    def describe(self) -> Json:
        return {
            "order": "portion",
            "some": self.some,
            "out_of": self.of,
            "seed": self.seed,
            "others": self.others,
        }

    def _interval(self, indices: Ints) -> Ints:
        return ((indices + 1) * self.some - 1) // self.of

    def _picked(self, interval: Ints) -> Ints:
        """Return the position that is picked in each interval."""
        first, end = interval * self.of // self.some, (interval + 1) * self.of // self.some
        chance = hash64(_derive_key(self.seed), interval) >> np.uint64(32)
        return first + (chance * (end - first).astype(np.uint64) >> np.uint64(32)).astype(np.int64)

    def before(self, indices: Ints) -> Ints:
        """Return the number of picked positions before each position."""
        interval = self._interval(indices)
        return interval + (self._picked(interval) < indices)


@lru_cache(maxsize=1024)
def _count_portion(portion: Portion, n: int) -> int:
    picked = int(portion.before(np.asarray([n]))[0])
    return n - picked if portion.others else picked


@lru_cache(maxsize=64)
def _derive_key(seed: int) -> int:
    return derive_key(seed, "portion")


def parse_fraction(given: Any, where: str) -> Fraction:
    """Parse a share, such as "0.5%" or 0.005, to an exact fraction; 1 - 0.8 is a fifth.

    >>> parse_fraction("0.5%", "split({})"), parse_fraction(1 / 9, "split({})")
    (Fraction(1, 200), Fraction(1, 9))
    """
    try:
        text = given.strip() if isinstance(given, str) else repr(float(given))
        share = Fraction(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        share = Fraction(0)
    if not 0 < share < 1:
        raise ConfigError(
            f"{where.format(repr(given))}: give a share between 0 and 1, such as '0.5%' or 0.005"
        )
    if share.denominator > MAX_DENOMINATOR and not isinstance(given, str):
        share = share.limit_denominator(MAX_DENOMINATOR)
    if not share or share.denominator > MAX_DENOMINATOR:
        raise ConfigError(
            f"{where.format(repr(given))}: give at most six digits after the decimal point"
        )
    return share
