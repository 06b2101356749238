"""Orders that repeat: passes, reshuffled or replayed, and single samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...types import Ints, Json
from ..base.integers import require_finite


@dataclass(frozen=True)
class Repeat:
    """Join `epochs` passes, each in its own order; `None` is endless."""

    KEY = None

    epochs: int | None

    def size(self, below: int | None, /) -> int | None:
        return _multiply_length(below, self.epochs)

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        return positions, None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        return positions

    def describe(self) -> Json:
        return {"order": "repeat", "epochs": self.epochs}


@dataclass(frozen=True)
class Replay:
    """Join `epochs` passes, each in the order of the first."""

    KEY = None

    epochs: int | None

    def size(self, below: int | None, /) -> int | None:
        return _multiply_length(below, self.epochs)

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        epoch = positions // require_finite(below)
        return positions - epoch * require_finite(below), epoch

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        return np.where(positions < require_finite(below), positions, -1)

    def describe(self) -> Json:
        return {"order": "replay", "epochs": self.epochs}


@dataclass(frozen=True)
class RepeatEach:
    """Repeat each sample `n` times, adjacent."""

    KEY = None

    n: int

    def size(self, below: int | None, /) -> int | None:
        return _multiply_length(below, self.n)

    def down(self, positions: Ints, below: int | None, key: int, /) -> tuple[Ints, Ints | None]:
        return positions // self.n, None

    def up(self, positions: Ints, below: int | None, key: int, /) -> Ints:
        return positions * self.n

    def describe(self) -> Json:
        return {"order": "repeat_each", "n": self.n}


def _multiply_length(below: int | None, epochs: int | None) -> int | None:
    """Return the length of `epochs` passes; empty passes stay empty."""
    return 0 if below == 0 else None if below is None or epochs is None else below * epochs
