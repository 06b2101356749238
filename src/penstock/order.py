"""Orders: pure maps from positions to positions, vectorised. A new one is three short methods.

Positions are unbounded: position `p` of a flow with passes of length `n` is sample `p % n` of pass `p // n`.
`down` maps positions to positions of the flow below; `up` is its inverse, where a position below may not occur
above it is -1. "Laps" count the times a fixed order was gone through again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isqrt

import numpy as np

from .errors import StateError
from .ints import distinct, whole
from .random import key_of_pass, permute, unpermute
from .tree import grown, regrown
from .types import Carry, Ints, Item, Json

_Permute = Callable[[Ints, int, int, Ints], Ints]


@dataclass(frozen=True)
class Shuffle:
    """Every sample once a pass, in an order that is new in every pass. Needs O(1) memory."""

    def size(self, below: int | None, /) -> int | None:
        return below

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        n = _finite(below)
        if positions.size and (first := int(positions.min()) // n) == int(positions.max()) // n:
            return permute(positions - first * n, n, key, first) + first * n, None  # one pass: the common case
        epoch = positions // n
        return permute(positions - epoch * n, n, key, epoch) + epoch * n, None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        n = _finite(below)
        epoch = positions // n
        return unpermute(positions - epoch * n, n, key, epoch) + epoch * n

    def describe(self) -> Json:
        return {"order": "shuffle"}


@dataclass(frozen=True)
class BlockShuffle:
    """Blocks of neighbouring rows in random order, then the rows within windows of blocks.

    Reads stay almost sequential: a window touches `window` blocks only. Quality lies between a shuffle buffer
    of `rows * window` samples and a full shuffle. The tail that fills no block comes last.
    """

    rows: int
    window: int

    def size(self, below: int | None, /) -> int | None:
        return below

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        n = _finite(below)
        epoch = positions // n
        i = _within(positions - epoch * n, n, self.rows * self.window, key, epoch, permute)
        block = i // self.rows
        whole = n // self.rows
        inside = np.flatnonzero(block < whole)
        moved = permute(block[inside], whole, key ^ 1, epoch[inside])
        i[inside] += (moved - block[inside]) * self.rows
        return i + epoch * n, None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        n = _finite(below)
        epoch = positions // n
        i = positions - epoch * n
        block = i // self.rows
        whole = n // self.rows
        inside = np.flatnonzero(block < whole)
        moved = unpermute(block[inside], whole, key ^ 1, epoch[inside])
        i[inside] += (moved - block[inside]) * self.rows
        return _within(i, n, self.rows * self.window, key, epoch, unpermute) + epoch * n

    def describe(self) -> Json:
        return {"order": "block shuffle", "rows": self.rows, "window": self.window}


def _within(i: Ints, n: int | None, span: int, key: int, epoch: Ints, how: _Permute) -> Ints:
    """Permute the rows inside every window of `span`; the last window of a pass that ends is shorter."""
    out = i.copy()
    window = i // span
    full = int(window.max(initial=0)) + 1 if n is None else n // span
    tweak = epoch * (full + 1) + window
    for rows, length in ((np.flatnonzero(window < full), span), (np.flatnonzero(window == full), (n or 0) % span)):
        if rows.size:
            start = window[rows] * span
            out[rows] = how(i[rows] - start, length, key ^ 2, tweak[rows]) + start
    return out


@dataclass(frozen=True)
class WindowShuffle:
    """Each `window` of neighbouring rows in random order; no row leaves its window.

    An order where the flow is indexed, a fold where it streams: they give the same. The fold holds a window.
    """

    window: int

    def size(self, below: int | None, /) -> int | None:
        return below

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        return self._moved(positions, below, key, permute), None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        return self._moved(positions, below, key, unpermute)

    def _moved(self, positions: Ints, below: int | None, key: int, how: _Permute) -> Ints:
        out = np.empty_like(positions)
        epoch = np.zeros_like(positions) if below is None else positions // below
        for one in map(int, distinct(epoch)):
            mine, before = np.flatnonzero(epoch == one), one * (below or 0)
            i, own = positions[mine] - before, key_of_pass(key, one)
            out[mine] = _within(i, below, self.window, own, np.zeros_like(i), how) + before
        return out

    def init(self, key: int, /) -> Carry:
        return {"key": key, "window": 0, "held": []}

    def step(self, carry: Carry, item: Item, /) -> tuple[Carry, Sequence[Sequence[Item]]]:
        held = grown(carry["held"], item, isqrt(self.window) + 1)
        if (len(held) - 1) * len(held[0]) + len(held[-1]) < self.window:
            return {**carry, "held": held}, []
        groups = self.flush({**carry, "held": held})
        return {"key": carry["key"], "window": carry["window"] + 1, "held": []}, groups

    def flush(self, carry: Carry, /) -> Sequence[Sequence[Item]]:
        held = [item for chunk in carry["held"] for item in chunk]
        places = permute(np.arange(len(held)), len(held), carry["key"] ^ 2, carry["window"])
        return [[held[place]] for place in places.tolist()]

    def restored(self, carry: Carry, /) -> Carry:
        held = [item for chunk in carry["held"] for item in chunk if item.number >= 0]
        key, window = whole(carry["key"], "the key {}", 0), whole(carry["window"], "the window {}", 0)
        return {"key": key, "window": window, "held": regrown(held, isqrt(self.window) + 1)}

    def describe(self) -> Json:
        return {"order": "window shuffle", "window": self.window}


@dataclass(frozen=True)
class Slice:
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
class Repeat:
    """`epochs` passes as one, each in its own order; `None` is for ever."""

    epochs: int | None

    def size(self, below: int | None, /) -> int | None:
        return _times(below, self.epochs)

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        return positions, None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        return positions

    def describe(self) -> Json:
        return {"order": "repeat", "epochs": self.epochs}


@dataclass(frozen=True)
class Replay:
    """`epochs` passes as one, each in the order of the first."""

    epochs: int | None

    def size(self, below: int | None, /) -> int | None:
        return _times(below, self.epochs)

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        lap = positions // _finite(below)
        return positions - lap * _finite(below), lap

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        return np.where(positions < _finite(below), positions, -1)

    def describe(self) -> Json:
        return {"order": "replay", "epochs": self.epochs}


@dataclass(frozen=True)
class Gap:
    """Each pass without the `count` places from `start` on: what follows moves up."""

    start: int
    count: int

    def lost(self, below: int | None) -> int:
        """How many places each pass loses."""
        return self.count if below is None else min(self.count, max(0, below - self.start))

    def size(self, below: int | None, /) -> int | None:
        return None if below is None else below - self.lost(below)

    def after(self, position: int) -> int:
        """The place that a position has in an endless flow, or in the first pass."""
        return position + self.count * (position >= self.start)

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


@dataclass(frozen=True)
class Told:
    """The passes `first` to `stop - 1` of a flow: those that are as long as the one in which a run stands."""

    first: int
    stop: int

    def size(self, below: int | None, /) -> int | None:
        return below

    def check(self, low: int, high: int, below: int | None) -> None:
        """Refuse positions `[low, high)` of other passes."""
        for lap in (low // (below or 1), (high - 1) // (below or 1)):
            if low < high and not self.first <= lap < self.stop:
                raise StateError(
                    f"pass {lap} has another number of positions than the present one, {below}: positions were "
                    "skipped in some passes and not in others; ask the plan of a state saved in such a pass"
                )

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        if positions.size:
            self.check(int(positions.min()), int(positions.max()) + 1, below)
        return positions, None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        lap = positions // (below or 1)
        return np.where((lap >= self.first) & (lap < self.stop), positions, -1)

    def describe(self) -> Json:
        return {"order": "told", "first": self.first, "stop": self.stop}


@dataclass(frozen=True)
class Stride:
    """Every `count`-th sample of each pass, from the `first`: a lane's share."""

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


def _times(below: int | None, epochs: int | None) -> int | None:
    """The length of so many passes; of nothing there is nothing, however often."""
    return 0 if below == 0 else None if below is None or epochs is None else below * epochs


def _finite(below: int | None) -> int:
    assert below is not None, "this order was put on an endless flow; the dataset should have refused it"
    return below
