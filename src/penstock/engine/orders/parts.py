"""Orders that leave places out: a slice, places by number, a stride, a gap."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np

from ...types import Ints, Json, Order
from ..base.ints import finite


class FixedSet(Order):
    """An order that gives the same samples of the first pass below in every pass."""

    KEY = None


@dataclass(frozen=True)
class Slice(FixedSet):
    """`count` places of the first pass, from `start` by `step`; the same samples in every pass."""

    start: int
    count: int
    step: int = 1

    def size(self, below: int | None, /) -> int | None:
        return self.count

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        lap = positions // self.count
        return self.start + (positions - lap * self.count) * self.step, lap

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        place, rest = np.divmod(positions - self.start, self.step)
        return np.where((rest == 0) & (place >= 0) & (place < self.count), place, -1)

    def describe(self) -> Json:
        return {"order": "slice", "start": self.start, "count": self.count, "step": self.step}


@dataclass(frozen=True)
class Pick(FixedSet):
    """These places of the first pass, in this order, some perhaps more than once; the same samples
    in every pass."""

    places: Ints = field(repr=False, compare=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "digest", blake2b(self.places.astype("<i8").tobytes(), digest_size=8).hexdigest()
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Pick, (self.places,)

    def size(self, below: int | None, /) -> int | None:
        return len(self.places)

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        lap = positions // len(self.places)
        return self.places[positions - lap * len(self.places)], lap

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        by_place, ordered = self._sorted
        first = np.searchsorted(ordered, positions)
        found = np.append(ordered, -1)[first] == positions
        return np.where(found, np.append(by_place, -1)[first], -1)

    def every(self, positions: Ints) -> Ints:
        """All places above of positions below: `up` tells the first of each."""
        by_place, ordered = self._sorted
        first, stop = (np.searchsorted(ordered, positions, side) for side in ("left", "right"))
        many = stop - first
        return by_place[np.repeat(stop - many.cumsum(), many) + np.arange(many.sum())]

    @cached_property
    def _sorted(self) -> tuple[Ints, Ints]:
        """The places above by those below them, and those below."""
        by_place = np.argsort(self.places, kind="stable")
        return by_place, self.places[by_place]

    @cached_property
    def reach(self) -> tuple[int, int]:
        """Between which positions below they lie."""
        return (int(self.places.min()), int(self.places.max()) + 1) if len(self.places) else (0, 0)

    @cached_property
    def different(self) -> int:
        """How many places they are, each counted once."""
        ordered = self._sorted[1]
        return int((ordered[1:] != ordered[:-1]).sum()) + bool(len(ordered))

    def describe(self) -> Json:
        return {"order": "select", "count": len(self.places), "digest": self.digest}


@dataclass(frozen=True)
class AllBut(FixedSet):
    """The places of the first pass without these, each named once, in their order; the same samples
    in every pass."""

    places: Ints = field(repr=False, compare=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "places", np.sort(self.places))
        object.__setattr__(self, "digest", Pick(self.places).digest)

    def __reduce__(self) -> tuple[Any, ...]:
        return AllBut, (self.places,)

    def size(self, below: int | None, /) -> int | None:
        return None if below is None else below - len(self.places)

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        count = finite(self.size(below))
        lap = positions // count
        place = positions - lap * count
        return place + np.searchsorted(self._kept_before, place, side="right"), lap

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        before = np.searchsorted(self.places, positions)
        gone = np.searchsorted(self.places, positions, side="right") > before
        inside = (positions >= 0) & (positions < finite(below))
        return np.where(inside & ~gone, positions - before, -1)

    @cached_property
    def _kept_before(self) -> Ints:
        """How many places are kept before each that is not."""
        return self.places - np.arange(len(self.places))

    def describe(self) -> Json:
        return {"order": "all but", "count": len(self.places), "digest": self.digest}


@dataclass(frozen=True)
class Stride:
    """Every `count`-th sample of each pass, from the `first`: a lane's share."""

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
        place, rest = np.divmod(positions - epoch * (below or 0) - self.first, self.count)
        return np.where((rest == 0) & (place >= 0), epoch * (self.size(below) or 0) + place, -1)

    def describe(self) -> Json:
        return {"order": "stride", "first": self.first, "count": self.count}


@dataclass(frozen=True)
class Gap:
    """Each pass without the `count` places from `start` on: what follows moves up."""

    KEY = None

    start: int
    count: int

    def lost(self, below: int | None) -> int:
        """How many places each pass loses."""
        return self.count if below is None else min(self.count, max(0, below - self.start))

    def size(self, below: int | None, /) -> int | None:
        return None if below is None else below - self.lost(below)

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        size = self.size(below)
        epoch = positions // size if size else np.zeros_like(positions)
        place = positions - epoch * (size or 0)
        return epoch * (below or 0) + place + self.count * (place >= self.start), None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        epoch = positions // below if below else np.zeros_like(positions)
        place = positions - epoch * (below or 0)
        moved = place - self.count * (place >= self.start) + epoch * (self.size(below) or 0)
        return np.where((place >= self.start) & (place < self.start + self.count), -1, moved)

    def describe(self) -> Json:
        return {"order": "gap", "start": self.start, "count": self.count}
