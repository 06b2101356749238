"""Grain's own order, as orders and a mixing rule of the core: what `order="grain"` puts in.

Everything here reproduces formulas of Grain 0.2.18, defects included, so that a run can move over
in the middle. The default order of this face is Penstock's, which has none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from ...errors import ConfigError
from ...types import Ints, Json
from .cipher import shuffled, unshuffled

_ENDLESS = 1 << 60
_PERIOD = 1 << 20  # mixes of shorter periods are tabulated


@dataclass(frozen=True)
class GlobalShuffle:
    """A pass in the order of the cipher; pass `e` has the seed `seed + e`, as Grain has it."""

    seed: int

    def size(self, below: int | None, /) -> int | None:
        return below

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        return _in_groups(positions, below or 1, self.seed, 1 << 32, shuffled), None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        return _in_groups(positions, below or 1, self.seed, 1 << 32, unshuffled)

    def describe(self) -> Json:
        return {"order": "grain shuffle", "seed": self.seed}


@dataclass(frozen=True)
class Windows:
    """Every window by itself. A last window that is not full reaches into the next pass, as Grain
    has it."""

    window: int
    seed: int

    def size(self, below: int | None, /) -> int | None:
        return below

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        return _in_groups(positions, self.window, self.seed, 1 << 64, shuffled), None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        return _in_groups(positions, self.window, self.seed, 1 << 64, unshuffled)

    def describe(self) -> Json:
        return {"order": "grain window shuffle", "window": self.window, "seed": self.seed}


def _in_groups(
    positions: Ints, n: int, seed: int, modulus: int, how: Callable[[Ints, int, int], Ints]
) -> Ints:
    """Positions permuted inside groups of `n`; group `g` has the seed `seed + g`."""
    out, group = np.empty_like(positions), positions // n
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    edges = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1 if len(ordered) else 0)).tolist()
    for a, b in pairwise([*edges, len(ordered)]):
        rows, first = order[a:b], int(ordered[a])
        if (value := (seed + first) % modulus) >> 32:
            raise ConfigError(
                f"window {first} would have the seed {value}, beyond 32 bits; Grain has no order "
                "there"
            )
        out[rows] = how(positions[rows] - first * n, n, value) + first * n
    return out


@dataclass(frozen=True)
class FirstPass:
    """The first pass again and again, random maps included. One that is endless counts as very
    long."""

    epochs: int | None = None

    def size(self, below: int | None, /) -> int | None:
        return None if self.epochs is None else (below or _ENDLESS) * self.epochs

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        return positions % (below or _ENDLESS), None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        return np.where(positions < (below or _ENDLESS), positions, -1)

    def describe(self) -> Json:
        return {"order": "first pass", "epochs": self.epochs}


@dataclass(frozen=True)
class PassingSlice:
    """Places of every pass, so that a shuffled pass puts others there: Grain's slice (`count` None:
    endless)."""

    start: int
    count: int | None
    step: int

    def size(self, below: int | None, /) -> int | None:
        return self.count

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        if self.count is None:
            return self.start + positions * self.step, None
        epoch = positions // self.count
        return self.start + (positions - epoch * self.count) * self.step + epoch * (
            below or 0
        ), None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        epoch = positions // below if below and self.count is not None else np.zeros_like(positions)
        place, rest = np.divmod(positions - epoch * (below or 0) - self.start, self.step)
        inside = (
            (rest == 0)
            & (place >= 0)
            & (place < (self.count if self.count is not None else 1 << 62))
        )
        return np.where(inside, place + epoch * (self.count or 0), -1)

    def describe(self) -> Json:
        return {"order": "grain slice", "start": self.start, "count": self.count, "step": self.step}


@dataclass(frozen=True)
class Times:
    """Every sample `n` times in a row."""

    n: int

    def size(self, below: int | None, /) -> int | None:
        return None if below is None else below * self.n

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        return positions // self.n, None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        return positions * self.n

    def describe(self) -> Json:
        return {"order": "times", "n": self.n}


# ---------------------------------------------------------------- mixing


@dataclass(frozen=True)
class Proportions:
    """Grain's mixture: whole-number proportions, split one input after the other by rounding down.

    >>> Proportions.of([1, 2], 2).at(np.arange(6))[0].tolist()
    [0, 1, 1, 0, 1, 1]
    """

    parts: tuple[int, ...]

    @staticmethod
    def of(weights: Sequence[float] | None, inputs: int) -> Proportions:
        """The proportions of these weights: scaled so that the least is 100, then cut off, as Grain
        does."""
        if weights is None:
            return Proportions((1,) * inputs)
        scale = 100 / min(weights)
        return Proportions(tuple(int(weight * scale) for weight in weights))

    def size(self, sizes: Sequence[int | None], /) -> int | None:
        if all(size is None for size in sizes):
            return None
        total = sum(self.parts)
        lengths = [sys.maxsize if size is None else size for size in sizes]
        least = int(
            min(length / (part / total) for length, part in zip(lengths, self.parts, strict=True))
        )
        return None if least >= sys.maxsize else least

    def at(self, positions: Ints, /) -> tuple[Ints, Ints]:
        total = sum(self.parts)
        turn, place = np.divmod(positions, total)
        source, draw = _period(self.parts) if total <= _PERIOD else (None, None)
        if source is None or draw is None:
            source, draw = _picked(place, self.parts)
        else:
            source, draw = source[place], draw[place]
        return source, draw + turn * np.asarray(self.parts, np.int64)[source]

    def describe(self) -> Json:
        return {"rule": "grain proportions", "parts": list(self.parts)}


@lru_cache(maxsize=64)
def _period(parts: tuple[int, ...]) -> tuple[Ints, Ints]:
    return _picked(np.arange(sum(parts), dtype=np.int64), parts)


def _picked(place: Ints, parts: tuple[int, ...]) -> tuple[Ints, Ints]:
    """The input of every place of the period, and which of its draws it is. Python's integers where
    int64 is short."""
    rest = sum(parts)
    wide = rest >= 1 << 31
    before, after = (place.astype(object), place.astype(object) + 1) if wide else (place, place + 1)
    source, draw = np.full(len(place), -1, np.int64), np.zeros(len(place), np.int64)
    for i, part in enumerate(parts):
        less, more = before * (rest - part) // rest, after * (rest - part) // rest
        mine = ((before - less) != (after - more)) & (source < 0)
        source[mine], draw[mine] = i, (after - more - 1)[mine]
        rest, before, after = rest - part, less, more
    return source, draw


# ---------------------------------------------------------------- seeds


def default_seed(marks: Sequence[tuple[int, int]]) -> int:
    """Grain's seed of a step from the seeds above it and how many steps away each is.

    >>> default_seed([(42, 1)])
    3329053876
    """
    return int(
        np.random.SeedSequence([value for mark in marks for value in mark]).generate_state(
            1, np.uint32
        )[0]
    )


def generator_at(seed: int, index: int) -> np.random.Generator:
    """Grain's generator for one sample: Philox with the seed's key, its counter at the sample's
    index."""
    return np.random.Generator(np.random.Philox(key=_philox_key(seed), counter=[0, 0, 0, index]))


@lru_cache(maxsize=1024)
def _philox_key(seed: int) -> int:
    low, high = np.random.Philox(seed).state["state"]["key"].tolist()
    return low | high << 64
