"""One input after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....errors import ConfigError
from ....types import MAX_POSITION, Ints, Json
from ...base.cursors import parse_cursor_int
from ...base.rows import compute_bounds
from .rule import Drawing, Draws, LaneShare, Outcome, OverInputs, Rule


@dataclass(frozen=True)
class Chain(Rule):
    """One input after the other."""

    METHOD = "concat"
    shares_known = True

    def schedule(self, sizes: Sequence[int | None]) -> Drawing:
        if None in sizes[:-1]:
            raise ConfigError(
                "concat: an endless dataset hides all datasets after it; limit it first"
            )
        return ChainSchedule(tuple(sizes))

    def draws(self, n: int, share: LaneShare) -> Draws:
        return OneByOne(n)

    def endless(self, names: Sequence[str], inputs: Sequence[bool]) -> bool:
        return any(inputs)

    def describe(self) -> dict[str, Json]:
        return {"mix": "concat"}


@dataclass(frozen=True)
class ChainSchedule(OverInputs):
    """One input after the other."""

    @property
    def size(self) -> int | None:
        return None if self.sizes[-1] is None else sum(size or 0 for size in self.sizes)

    def at(self, positions: Ints, /) -> tuple[Ints, Ints]:
        starts = self._starts
        source = np.searchsorted(starts[1:], positions, side="right").astype(np.int64)
        return source, positions - starts[source]

    def counts(self, position: int, /) -> Ints:
        """Draws of each input before a position."""
        most = [MAX_POSITION if size is None else size for size in self.sizes]
        return np.clip(position - self._starts, 0, most)

    def positions_of(self, source: Ints, k: Ints, /) -> Ints:
        """The positions of draws of inputs, -1 for those that are never made."""
        sizes = np.asarray(
            [MAX_POSITION if size is None else size for size in self.sizes], np.int64
        )
        return np.where(k < sizes[source], self._starts[source] + k, -1)

    @property
    def _starts(self) -> Ints:
        return compute_bounds(np.asarray([size or 0 for size in self.sizes[:-1]], np.int64))


@dataclass(frozen=True)
class OneByOne(Draws):
    """Input after input, `n` of them. `at` is the one being read."""

    n: int
    at: int = 0

    def choose(self, position: int, n: int, /) -> list[int]:
        return [self.at] * n if self.at < self.n else []

    def ended(
        self, source: int, position: int, drawn: Sequence[int], empty: bool, /
    ) -> tuple[Draws, Outcome]:
        return OneByOne(self.n, source + 1), "redraw"

    def saved(self) -> Json:
        return self.at

    def restored(self, saved: Json, /) -> Draws:
        return OneByOne(self.n, parse_cursor_int(saved))
