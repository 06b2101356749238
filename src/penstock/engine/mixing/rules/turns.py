"""One sample of each input in turn, as long as all have one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....types import Ints, Json
from .rule import Drawing, Draws, LaneShare, Outcome, OverInputs, Rule


@dataclass(frozen=True)
class Turns(Rule):
    """One sample of each input in turn."""

    METHOD = "zip"
    paired = True

    def schedule(self, sizes: Sequence[int | None]) -> Drawing:
        return TurnsSchedule(tuple(sizes))

    def draws(self, n: int, share: LaneShare) -> Draws:
        return InTurn(n)

    def endless(self, names: Sequence[str], inputs: Sequence[bool]) -> bool:
        return all(inputs)

    def describe(self) -> dict[str, Json]:
        return {"mix": "zip"}


@dataclass(frozen=True)
class TurnsSchedule(OverInputs):
    """One sample of each input in turn, as long as all have one."""

    @property
    def size(self) -> int | None:
        known = [size for size in self.sizes if size is not None]
        return min(known) * len(self.sizes) if known else None

    def at(self, positions: Ints, /) -> tuple[Ints, Ints]:
        k = positions // len(self.sizes)
        return positions - k * len(self.sizes), k

    def counts(self, position: int, /) -> Ints:
        """Draws of each input before a position."""
        return (position - np.arange(len(self.sizes)) + len(self.sizes) - 1) // len(self.sizes)

    def positions_of(self, source: Ints, k: Ints, /) -> Ints:
        """The positions of draws of inputs, -1 for those that are never made."""
        found = k * len(self.sizes) + source
        return found if self.size is None else np.where(found < self.size, found, -1)


@dataclass(frozen=True)
class InTurn(Draws):
    """Round robin over `n` inputs; the first that ends, ends all."""

    n: int

    def choose(self, position: int, n: int, /) -> list[int]:
        return [p % self.n for p in range(position, position + n)]

    def ended(
        self, source: int, position: int, drawn: Sequence[int], empty: bool, /
    ) -> tuple[Draws, Outcome]:
        return self, "end"
