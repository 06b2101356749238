"""A share of the samples and the others, told apart by a hash of where they lie: train and
held-out, say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from ...errors import ConfigError
from ...types import Ints, Json
from ..base.ints import finite
from ..base.random import hash64, key_of
from .parts import FixedSet

FINEST = 10**6


@dataclass(frozen=True)
class Portion(FixedSet):
    """`some` of every `of` places of the first pass, in their order; or all `others`.

    Places are cut into `some` stretches for every `of` of them, and a hash of the number of the
    stretch picks one of each. So any prefix has its share, and more data changes nothing for what
    was there before.
    """

    some: int
    of: int
    seed: int = 0
    others: bool = False

    def size(self, below: int | None, /) -> int | None:
        return None if below is None else _size(self, below)

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        count = finite(self.size(below))
        lap = positions // count
        place = positions - lap * count
        if not self.others:
            return self._picked(place), lap
        # All stretches that end before are passed, and of those that follow the ones picked early
        # enough.
        rest = self.of - self.some
        passed = np.maximum(((place + 1) * self.some - self.of) // rest + 1, 0)
        while (more := self._picked(passed) - passed <= place).any():
            passed += more
        return place + passed, lap

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        inside = (positions >= 0) & (positions < finite(below))
        places = np.where(inside, positions, 0)
        stretch = self._stretch(places)
        mine = (self._picked(stretch) == places) != self.others
        return np.where(inside & mine, places - self.before(places) if self.others else stretch, -1)

    def complement(self) -> Portion:
        """All that it does not give."""
        return replace(self, others=not self.others)

    def describe(self) -> Json:
        return {
            "order": "portion",
            "some": self.some,
            "of": self.of,
            "seed": self.seed,
            "others": self.others,
        }

    def _stretch(self, places: Ints) -> Ints:
        return ((places + 1) * self.some - 1) // self.of

    def _picked(self, stretch: Ints) -> Ints:
        """The place that is picked of each stretch."""
        first, end = stretch * self.of // self.some, (stretch + 1) * self.of // self.some
        chance = hash64(_key(self.seed), stretch) >> np.uint64(32)
        return first + (chance * (end - first).astype(np.uint64) >> np.uint64(32)).astype(np.int64)

    def before(self, places: Ints) -> Ints:
        """How many are picked before each place."""
        stretch = self._stretch(places)
        return stretch + (self._picked(stretch) < places)


@lru_cache(maxsize=1024)
def _size(portion: Portion, n: int) -> int:
    picked = int(portion.before(np.asarray([n]))[0])
    return n - picked if portion.others else picked


@lru_cache(maxsize=64)
def _key(seed: int) -> int:
    return key_of(seed, "portion")


def fraction_of(given: Any, where: str) -> Fraction:
    """A share as it is written, "0.5%" or 0.005; exactly.

    >>> fraction_of("0.5%", "split({})"), fraction_of(0.25, "split({})")
    (Fraction(1, 200), Fraction(1, 4))
    """
    try:
        text = given.strip() if isinstance(given, str) else repr(float(given))
        share = Fraction(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        share = Fraction(0)
    if not 0 < share < 1:
        raise ConfigError(
            f"{where.format(repr(given))}: a share between 0 and 1, such as '0.5%' or 0.005"
        )
    if share.denominator > FINEST:
        raise ConfigError(f"{where.format(repr(given))}: at most six digits after the point")
    return share
