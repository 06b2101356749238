"""A mixing rule of the user's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ....errors import ConfigError
from ....types import Ints, Json, Mixing
from .rule import Drawing, Draws, Invertible, LaneShare, Outcome, OverInputs, Rule

_SCAN = 1 << 16  # positions gone through together


@dataclass(frozen=True)
class By(Rule):
    """By a rule of the user's. Over streams a pass ends before the first draw that cannot be
    made."""

    mixing: Mixing

    named = keyed_by_name = counts_passes = True

    def schedule(self, sizes: Sequence[int | None]) -> Drawing:
        kind = InverseSchedule if isinstance(self.mixing, Invertible) else RuleSchedule
        return kind(tuple(sizes), self.mixing)

    def draws(self, n: int, share: LaneShare) -> Draws:
        return ByRule(RuleSchedule((None,) * n, self.mixing), share, self.mixing.size((None,) * n))

    def endless(self, names: Sequence[str], inputs: Sequence[bool]) -> bool:
        return all(inputs)

    def describe(self) -> dict[str, Json]:
        return {"mix": "by", **cast("dict[str, Json]", self.mixing.describe())}

    def options(self) -> dict[str, Any]:
        return {"rule": type(self.mixing).__name__}


@dataclass(frozen=True)
class RuleSchedule(OverInputs):
    """A mixing rule of the user's."""

    mixing: Mixing

    @property
    def size(self) -> int | None:
        return self.mixing.size(self.sizes)

    def at(self, positions: Ints, /) -> tuple[Ints, Ints]:
        source, k = self.mixing.at(positions)
        if len(wrong := np.flatnonzero((source < 0) | (source >= len(self.sizes)))):
            raise ConfigError(
                f"{type(self.mixing).__name__} draws from input {source[wrong[0]]} at position "
                f"{positions[wrong[0]]}; return a number from 0 to {len(self.sizes) - 1}, in the "
                "order of the names of the inputs"
            )
        return source, k

    def counts(self, position: int, /) -> Ints:
        """Draws of each input before a position: all positions are gone through where the rule
        cannot tell."""
        if isinstance(self.mixing, Invertible):
            return self.mixing.counts(position)
        out = np.zeros(len(self.sizes), np.int64)
        for start in range(0, position, _SCAN):
            source, _ = self.at(np.arange(start, min(start + _SCAN, position)))
            out += np.bincount(source, minlength=len(out))
        return out


@dataclass(frozen=True)
class InverseSchedule(RuleSchedule):
    """A mixing rule of the user's that can be asked backwards."""

    def positions_of(self, source: Ints, k: Ints, /) -> Ints:
        """The positions of draws of inputs, -1 for those that are never made."""
        assert isinstance(self.mixing, Invertible)
        return self.mixing.positions_of(source, k)


@dataclass(frozen=True)
class ByRule(Draws):
    """A lane's share of a mixing rule of the user's, up to its own `size` where it has one; the
    first input that ends, ends all.
    """

    rule: RuleSchedule
    share: LaneShare
    size: int | None

    def choose(self, position: int, n: int, /) -> list[int]:
        places = self.share.compute_offsets(np.arange(position, position + n), 0)
        places = places if self.size is None else places[places < self.size]
        return self.rule.at(places)[0].tolist() if len(places) else []

    def ended(
        self, source: int, position: int, drawn: Sequence[int], empty: bool, /
    ) -> tuple[Draws, Outcome]:
        return self, "end"
