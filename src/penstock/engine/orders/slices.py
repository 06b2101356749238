"""Orders that select samples: slices, indices, exclusions, strides, gaps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np

from ...types import MAX_POSITION, Ints, Json, Order
from ..base.integers import require_finite


class FixedSet(Order):
    """Order of a fixed set: the same samples of the input's first pass in every pass."""

    KEY = None


@dataclass(frozen=True)
class Slice(FixedSet):
    """Fixed set of `count` samples, from `start` by `step`."""

    start: int
    count: int
    step: int = 1

    def size(self, below: int | None, /) -> int | None:
        return self.count

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        epoch = positions // self.count
        return self.start + (positions - epoch * self.count) * self.step, epoch

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        index, rest = np.divmod(positions - self.start, self.step)
        return np.where((rest == 0) & (index >= 0) & (index < self.count), index, -1)

    def describe(self) -> Json:
        return {"order": "slice", "start": self.start, "count": self.count, "step": self.step}


@dataclass(frozen=True)
class Pick(FixedSet):
    """Fixed set of samples by index, in the given order; indices may repeat.

    `hashes` are the columns and the range of their hashes that a split by column chose.
    """

    indices: Ints = field(repr=False, compare=False)
    hashes: tuple[Sequence[str], float, float] | None = field(
        default=None, repr=False, compare=False
    )
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "digest", blake2b(self.indices.astype("<i8").tobytes(), digest_size=8).hexdigest()
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Pick, (self.indices, self.hashes)

    def size(self, below: int | None, /) -> int | None:
        return len(self.indices)

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        epoch = positions // len(self.indices)
        return self.indices[positions - epoch * len(self.indices)], epoch

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        order, ordered = self._sorted
        first = np.searchsorted(ordered, positions)
        occurs = np.append(ordered, -1)[first] == positions
        return np.where(occurs, np.append(order, -1)[first], -1)

    def every(self, positions: Ints) -> Ints:
        """Return all occurrences of positions of the input; `up` returns the first of each."""
        order, ordered = self._sorted
        first, stop = (np.searchsorted(ordered, positions, side) for side in ("left", "right"))
        counts = stop - first
        return order[np.repeat(stop - counts.cumsum(), counts) + np.arange(counts.sum())]

    @cached_property
    def _sorted(self) -> tuple[Ints, Ints]:
        """The sorting permutation of the indices, and the sorted indices."""
        order = np.argsort(self.indices, kind="stable")
        return order, self.indices[order]

    @cached_property
    def reach(self) -> tuple[int, int]:
        """The range of the indices."""
        return (
            (int(self.indices.min()), int(self.indices.max()) + 1) if len(self.indices) else (0, 0)
        )

    @cached_property
    def different(self) -> int:
        """The number of distinct indices."""
        ordered = self._sorted[1]
        return int((ordered[1:] != ordered[:-1]).sum()) + bool(len(ordered))

    def describe(self) -> Json:
        return {"order": "select", "count": len(self.indices), "digest": self.digest}


@dataclass(frozen=True)
class AllBut(FixedSet):
    """Fixed set of all samples except those at distinct indices."""

    indices: Ints = field(repr=False, compare=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "indices", np.sort(self.indices))
        object.__setattr__(self, "digest", Pick(self.indices).digest)

    def __reduce__(self) -> tuple[Any, ...]:
        return AllBut, (self.indices,)

    def size(self, below: int | None, /) -> int | None:
        return None if below is None else below - len(self.indices)

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        count = require_finite(self.size(below))
        epoch = positions // count
        index = positions - epoch * count
        return index + np.searchsorted(self._remaining_before, index, side="right"), epoch

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        before = np.searchsorted(self.indices, positions)
        excluded = np.searchsorted(self.indices, positions, side="right") > before
        inside = (positions >= 0) & (positions < require_finite(below))
        return np.where(inside & ~excluded, positions - before, -1)

    @cached_property
    def _remaining_before(self) -> Ints:
        """The number of remaining samples before each excluded one."""
        return self.indices - np.arange(len(self.indices))

    def describe(self) -> Json:
        return {"order": "all but", "count": len(self.indices), "digest": self.digest}


@dataclass(frozen=True)
class Stride:
    """Every `count`-th sample of each pass, from `first`: the share of a lane."""

    KEY = None

    first: int
    count: int

    def size(self, below: int | None, /) -> int | None:
        return None if below is None else max(0, -((self.first - below) // self.count))

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        if below is None:
            return self.first + positions * self.count, None
        n = self.size(below) or 1
        epoch = positions // n
        return epoch * below + self.first + (positions - epoch * n) * self.count, None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        epoch = positions // below if below else np.zeros_like(positions)
        index, rest = np.divmod(positions - epoch * (below or 0) - self.first, self.count)
        return np.where((rest == 0) & (index >= 0), epoch * (self.size(below) or 0) + index, -1)

    def describe(self) -> Json:
        return {"order": "stride", "first": self.first, "count": self.count}


@dataclass(frozen=True)
class Gap:
    """Each pass without `count` samples from `start`; later samples move up."""

    KEY = None

    start: int
    count: int

    def lost(self, below: int | None) -> int:
        """Return the number of samples that each pass loses."""
        return self.count if below is None else min(self.count, max(0, below - self.start))

    def size(self, below: int | None, /) -> int | None:
        return None if below is None else below - self.lost(below)

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        size = self.size(below)
        epoch = positions // size if size else np.zeros_like(positions)
        index = positions - epoch * (size or 0)
        return epoch * (below or 0) + index + self.count * (index >= self.start), None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        epoch = positions // below if below else np.zeros_like(positions)
        index = positions - epoch * (below or 0)
        moved = index - self.count * (index >= self.start) + epoch * (self.size(below) or 0)
        return np.where((index >= self.start) & (index < self.start + self.count), -1, moved)

    def describe(self) -> Json:
        return {"order": "gap", "start": self.start, "count": self.count}


@dataclass(frozen=True)
class Skips:
    """All passes as one, without some samples: from position `points[i][0]` on, `points[i][1]`
    samples were left out before."""

    KEY = None

    points: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def of(skipped: Iterable[tuple[int, int]]) -> Skips:
        """Return the order without these samples, one skip after the other.

        Args:
            skipped: start and number of each skip, as positions of the order without the earlier ones.
        """
        points = list[tuple[int, int]]()
        for start, count in skipped:
            i = bisect_left(points, (start,))
            before, later = points[i - 1][1] if i else 0, points[i:]
            within = [n for at, n in later if at <= start + count]
            moved = [(at - count, n + count) for at, n in later if at > start + count]
            points[i:] = [(start, max([before, *within]) + count), *moved]
        return Skips(tuple(points))

    def size(self, below: int | None, /) -> int | None:
        return below

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        starts, left_out = np.asarray([(0, 0), *self.points]).T
        return positions + left_out[np.searchsorted(starts[1:], positions, side="right")], None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        starts, left_out = np.asarray([(0, 0), *self.points]).T
        i = np.searchsorted((starts + left_out)[1:], positions, side="right")
        found = positions - left_out[i]
        end = np.append(starts[1:], MAX_POSITION)[i]
        return np.where(found < end, found, -1)

    def describe(self) -> Json:
        return {"order": "skips", "points": [[*point] for point in self.points]}
