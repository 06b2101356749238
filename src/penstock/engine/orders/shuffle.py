"""Orders that shuffle by a keyed permutation per pass; nothing is stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isqrt

import numpy as np

from ...arguments import check_int
from ...arrays.trees import append_chunked, build_chunks
from ...types import Carry, Ints, Item, Json
from ..base.integers import find_distinct_values, require_finite
from ..base.random import derive_pass_key, permute, unpermute

Permute = Callable[[Ints, int, int, Ints], Ints]


@dataclass(frozen=True)
class Shuffle:
    """Permute each pass, with another permutation in every pass, in O(1) memory."""

    KEY = "Shuffle"

    def size(self, below: int | None, /) -> int | None:
        return below

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        n = require_finite(below)
        if positions.size and (first := int(positions.min()) // n) == int(positions.max()) // n:
            # One pass: the common case.
            return permute(positions - first * n, n, key, first) + first * n, None
        epoch = positions // n
        return permute(positions - epoch * n, n, key, epoch) + epoch * n, None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        n = require_finite(below)
        epoch = positions // n
        return unpermute(positions - epoch * n, n, key, epoch) + epoch * n

    def describe(self) -> Json:
        return {"order": "shuffle"}


@dataclass(frozen=True)
class BlockShuffle:
    """Shuffle blocks of neighbouring rows, then the rows inside windows of blocks.

    Reads stay almost sequential, as a window touches `window` blocks only. The quality is between a
    shuffle buffer of `rows * window` samples and a full shuffle. A partial block is last.
    """

    KEY = "BlockShuffle"

    rows: int
    window: int

    def size(self, below: int | None, /) -> int | None:
        return below

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        n = require_finite(below)
        epoch = positions // n
        i = permute_windows(positions - epoch * n, n, self.rows * self.window, key, epoch, permute)
        block = i // self.rows
        blocks = n // self.rows
        inside = np.flatnonzero(block < blocks)
        moved = permute(block[inside], blocks, key ^ 1, epoch[inside])
        i[inside] += (moved - block[inside]) * self.rows
        return i + epoch * n, None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        n = require_finite(below)
        epoch = positions // n
        i = positions - epoch * n
        block = i // self.rows
        blocks = n // self.rows
        inside = np.flatnonzero(block < blocks)
        moved = unpermute(block[inside], blocks, key ^ 1, epoch[inside])
        i[inside] += (moved - block[inside]) * self.rows
        return permute_windows(i, n, self.rows * self.window, key, epoch, unpermute) + epoch * n

    def describe(self) -> Json:
        return {"order": "block shuffle", "rows": self.rows, "window": self.window}


@dataclass(frozen=True)
class WindowShuffle:
    """Shuffle each window of neighbouring rows; no row leaves its window.

    An order for indexed inputs, and a fold for streams, with equal results. The fold holds a
    window.
    """

    KEY = "WindowShuffle"

    window: int

    def size(self, below: int | None, /) -> int | None:
        return below

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        return self._permute_passes(positions, below, key, permute), None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        return self._permute_passes(positions, below, key, unpermute)

    def _permute_passes(self, positions: Ints, below: int | None, key: int, how: Permute) -> Ints:
        out = np.empty_like(positions)
        epoch = np.zeros_like(positions) if below is None else positions // below
        for number in map(int, find_distinct_values(epoch)):
            rows, before = np.flatnonzero(epoch == number), number * (below or 0)
            i, pass_key = positions[rows] - before, derive_pass_key(key, number)
            out[rows] = (
                permute_windows(i, below, self.window, pass_key, np.zeros_like(i), how) + before
            )
        return out

    def init(self, key: int, /) -> Carry:
        return {"key": key, "window": 0, "held": []}

    def step(self, carry: Carry, item: Item, /) -> tuple[Carry, Sequence[Sequence[Item]]]:
        held = append_chunked(carry["held"], item, isqrt(self.window) + 1)
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
        key = check_int(carry["key"], "the key {}", 0)
        window = check_int(carry["window"], "the window {}", 0)
        return {"key": key, "window": window, "held": build_chunks(held, isqrt(self.window) + 1)}

    def describe(self) -> Json:
        return {"order": "window shuffle", "window": self.window}


def permute_windows(i: Ints, n: int | None, span: int, key: int, epoch: Ints, how: Permute) -> Ints:
    """Permute the indices inside every window of `span`, up to `n`.

    The last window of a finite pass is shorter; indices after `n` stay.
    """
    out = i.copy()
    window = i // span
    full = int(window.max(initial=0)) + 1 if n is None else n // span
    tweak = epoch * (full + 1) + window
    last = (window == full) & (i < (n or 0))
    for rows, length in (
        (np.flatnonzero(window < full), span),
        (np.flatnonzero(last), (n or 0) % span),
    ):
        if rows.size:
            start = window[rows] * span
            out[rows] = how(i[rows] - start, length, key ^ 2, tweak[rows]) + start
    return out
