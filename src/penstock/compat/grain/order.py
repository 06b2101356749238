"""Grain's own order (`order="grain"`), as orders and a mixing rule of Penstock.

Everything here reproduces formulas of Grain 0.2.18, defects included, so that a run can migrate
midway. The default order is Penstock's, which has none of these defects.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from ...engine.base.random import permute, unpermute
from ...engine.orders import Stride
from ...errors import ConfigError
from ...types import Ints, Json
from .cipher import shuffled, unshuffled

_ENDLESS = 1 << 60
_PERIOD = 1 << 20  # mixes of shorter periods are tabulated


@dataclass(frozen=True)
class GlobalShuffle:
    """Shuffle a pass by Grain's cipher; pass `e` has the seed `seed + e`, as in Grain."""

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
    """Shuffle each window; a short last window reaches into the next pass, as in Grain."""

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
    positions: Ints, n: int, seed: int, modulus: int, permutation: Callable[[Ints, int, int], Ints]
) -> Ints:
    """Permute positions inside groups of `n`; group `g` has the seed `seed + g`."""
    out, group = np.empty_like(positions), positions // n
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    edges = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1 if len(ordered) else 0)).tolist()
    for a, b in pairwise([*edges, len(ordered)]):
        rows, group_index = order[a:b], int(ordered[a])
        if (value := (seed + group_index) % modulus) >> 32:
            raise ConfigError(
                f"window {group_index} would have the seed {value}, beyond 32 bits, for which "
                "Grain has no order: lower the seed"
            )
        out[rows] = permutation(positions[rows] - group_index * n, n, value) + group_index * n
    return out


@dataclass(frozen=True)
class FirstPass:
    """Repeat the first pass, random maps included; an endless one counts as very long."""

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
class EndlessSlice(Stride):
    """Grain's slice of an endless dataset."""

    KEY = "reorder"

    def describe(self) -> Json:
        return {"order": "grain slice", "start": self.first, "count": None, "step": self.count}


@dataclass(frozen=True)
class PassingSlice:
    """Grain's slice: positions of every pass, so a shuffled pass has other elements there."""

    start: int
    count: int
    step: int

    def size(self, below: int | None, /) -> int | None:
        return self.count

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        epoch = positions // self.count
        return self.start + (positions - epoch * self.count) * self.step + epoch * (
            below or 0
        ), None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        epoch = positions // below if below else np.zeros_like(positions)
        place, rest = np.divmod(positions - epoch * (below or 0) - self.start, self.step)
        inside = (rest == 0) & (place >= 0) & (place < self.count)
        return np.where(inside, place + epoch * self.count, -1)

    def describe(self) -> Json:
        return {"order": "grain slice", "start": self.start, "count": self.count, "step": self.step}


@dataclass(frozen=True)
class LaterShuffle:
    """Shuffle every pass but the first, in Penstock's order.

    It follows a slice of shuffled samples: a fixed set in the order of that shuffle, which later
    passes would repeat.
    """

    seed: int

    def size(self, below: int | None, /) -> int | None:
        return below

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        return self._reorder(positions, below or 1, permute), None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        return self._reorder(positions, below or 1, unpermute)

    def _reorder(
        self, positions: Ints, n: int, permutation: Callable[[Ints, int, int, Ints], Ints]
    ) -> Ints:
        epoch = positions // n
        place = permutation(positions - epoch * n, n, self.seed, epoch)
        return np.where(epoch > 0, epoch * n + place, positions)

    def describe(self) -> Json:
        return {"order": "later shuffle", "seed": self.seed}


@dataclass(frozen=True)
class SampledShard:
    """Records of a shard of a loader, by the order of a shard of its sampler.

    Record `i` of the shard is record `i * count + index` of all shards, which is entry
    `(i * count + index) // sampler_shards` of the sampler.
    """

    count: int
    index: int
    sampler_shards: int
    rows: int | None

    def size(self, below: int | None, /) -> int | None:
        return self.rows

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        return (positions * self.count + self.index) // self.sampler_shards, None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        first = -((self.index - positions * self.sampler_shards) // self.count)
        found = np.maximum(first, 0)
        matches = (found * self.count + self.index) // self.sampler_shards == positions
        return np.where(matches, found, -1)

    def describe(self) -> Json:
        return {
            "order": "grain sampler",
            "shards": self.count,
            "shard": self.index,
            "sampler_shards": self.sampler_shards,
            "rows": self.rows,
        }


@dataclass(frozen=True)
class Times:
    """Repeat every sample `n` times in a row."""

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
    """Grain's mixture: integer proportions, split one input at a time by rounding down.

    >>> Proportions.of([1, 2], 2).at(np.arange(6))[0].tolist()
    [0, 1, 1, 0, 1, 1]
    """

    parts: tuple[int, ...]

    @staticmethod
    def of(weights: Sequence[float] | None, inputs: int) -> Proportions:
        """Scale weights so that the smallest is 100, then truncate, as Grain does."""
        if weights is None:
            return Proportions((1,) * inputs)
        scale = 100 / min(weights)
        return Proportions(tuple(int(weight * scale) for weight in weights))

    def size(self, sizes: Sequence[int | None], /) -> int | None:
        if all(size is None for size in sizes):
            return None
        total = sum(self.parts)
        lengths = [sys.maxsize if size is None else size for size in sizes]
        rows = int(
            min(length / (part / total) for length, part in zip(lengths, self.parts, strict=True))
        )
        return None if rows >= sys.maxsize else rows

    def at(self, positions: Ints, /) -> tuple[Ints, Ints]:
        total = sum(self.parts)
        period, offset = np.divmod(positions, total)
        source, draw = _period(self.parts) if total <= _PERIOD else (None, None)
        if source is None or draw is None:
            source, draw = _source_and_draw(offset, self.parts)
        else:
            source, draw = source[offset], draw[offset]
        return source, draw + period * np.asarray(self.parts, np.int64)[source]

    def describe(self) -> Json:
        return {"rule": "grain proportions", "parts": list(self.parts)}


@lru_cache(maxsize=64)
def _period(parts: tuple[int, ...]) -> tuple[Ints, Ints]:
    return _source_and_draw(np.arange(sum(parts), dtype=np.int64), parts)


def _source_and_draw(offset: Ints, parts: tuple[int, ...]) -> tuple[Ints, Ints]:
    """Return the input of every offset in the period, and its draw number.

    Uses Python integers if int64 could overflow.
    """
    remaining = sum(parts)
    wide = remaining >= 1 << 31
    before, after = (
        (offset.astype(object), offset.astype(object) + 1) if wide else (offset, offset + 1)
    )
    source, draw = np.full(len(offset), -1, np.int64), np.zeros(len(offset), np.int64)
    for i, part in enumerate(parts):
        less, more = (
            before * (remaining - part) // remaining,
            after * (remaining - part) // remaining,
        )
        selected = ((before - less) != (after - more)) & (source < 0)
        source[selected], draw[selected] = i, (after - more - 1)[selected]
        remaining, before, after = remaining - part, less, more
    return source, draw


# ---------------------------------------------------------------- seeds


def default_seed(marks: Sequence[tuple[int, int]]) -> int:
    """Return Grain's seed of a step, from the seeds above it and their distances in steps.

    >>> default_seed([(42, 1)])
    3329053876
    """
    return int(
        np.random.SeedSequence([value for mark in marks for value in mark]).generate_state(
            1, np.uint32
        )[0]
    )


def generator_at(seed: int, index: int, op_seed: int = 0) -> np.random.Generator:
    """Return Grain's generator for one sample: Philox with the sample's index as counter."""
    counter = [0, 0, op_seed, index]
    return np.random.Generator(np.random.Philox(key=_philox_key(seed), counter=counter))


@lru_cache(maxsize=1024)
def _philox_key(seed: int) -> int:
    low, high = np.random.Philox(seed).state["state"]["key"].tolist()
    return low | high << 64
