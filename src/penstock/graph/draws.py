"""The schedules of mixes by position: position to (input, draw), for every rule.

What an indexed mix needs beside mixtures by weight: concatenation, turns, rules of the user's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..base.rows import bounds_of
from ..errors import ConfigError
from ..mixing import Mixture
from ..ops.mix import Counted, Drawing
from ..types import Ints, Mixing
from .history import history
from .nodes import By, Chain, Mix, Path, Turns, Weighted

_SCAN = 1 << 16  # positions gone through together


def schedule_of(flow: Mix, sizes: tuple[int | None, ...]) -> Drawing:
    """The schedule of an indexed mix, if it is not by weight."""
    match flow.rule:
        case Chain():
            if None in sizes[:-1]:
                raise ConfigError("concat: an endless dataset hides all that comes after it; limit it first")
            return ChainSchedule(sizes)
        case Turns():
            return TurnsSchedule(sizes)
        case By(mixing):
            return InverseSchedule(mixing, sizes) if isinstance(mixing, Counted) else RuleSchedule(mixing, sizes)
        case _:
            raise AssertionError("limit and repeat are orders where the flow is indexed")


def mixture(rule: Weighted, names: tuple[str, ...], sizes: tuple[int | None, ...], path: Path) -> Mixture:
    """The schedule of a mix of streams in the pass in which the run stands."""
    found = history(rule, names, sizes, path).present
    assert isinstance(found, Mixture), "streams are taken over by their cursors"
    return found


@dataclass(frozen=True)
class ChainSchedule:
    """One input after the other."""

    sizes: tuple[int | None, ...]

    @property
    def size(self) -> int | None:
        return None if self.sizes[-1] is None else sum(size or 0 for size in self.sizes)

    @property
    def passes(self) -> Ints:
        return np.ones(len(self.sizes), np.int64)

    def at(self, positions: Ints, /) -> tuple[Ints, Ints]:
        starts = self._starts
        source = np.searchsorted(starts[1:], positions, side="right").astype(np.int64)
        return source, positions - starts[source]

    def counts(self, position: int, /) -> Ints:
        """Draws of each input before a position."""
        most = [(1 << 62) if size is None else size for size in self.sizes]
        return np.clip(position - self._starts, 0, most)

    def places(self, source: Ints, k: Ints, /) -> Ints:
        """The positions of draws of inputs, -1 for those that are never made."""
        sizes = np.asarray([1 << 62 if size is None else size for size in self.sizes], np.int64)
        return np.where(k < sizes[source], self._starts[source] + k, -1)

    @property
    def _starts(self) -> Ints:
        return bounds_of(np.asarray([size or 0 for size in self.sizes[:-1]], np.int64))


@dataclass(frozen=True)
class TurnsSchedule:
    """One sample of each input in turn, as long as all have one."""

    sizes: tuple[int | None, ...]

    @property
    def size(self) -> int | None:
        known = [size for size in self.sizes if size is not None]
        return min(known) * len(self.sizes) if known else None

    @property
    def passes(self) -> Ints:
        return np.ones(len(self.sizes), np.int64)

    def at(self, positions: Ints, /) -> tuple[Ints, Ints]:
        k = positions // len(self.sizes)
        return positions - k * len(self.sizes), k

    def counts(self, position: int, /) -> Ints:
        """Draws of each input before a position."""
        return (position - np.arange(len(self.sizes)) + len(self.sizes) - 1) // len(self.sizes)

    def places(self, source: Ints, k: Ints, /) -> Ints:
        """The positions of draws of inputs, -1 for those that are never made."""
        found = k * len(self.sizes) + source
        return found if self.size is None else np.where(found < self.size, found, -1)


@dataclass(frozen=True)
class RuleSchedule:
    """A mixing rule of the user's."""

    mixing: Mixing
    sizes: tuple[int | None, ...]

    @property
    def size(self) -> int | None:
        return self.mixing.size(self.sizes)

    @property
    def passes(self) -> Ints:
        return np.ones(len(self.sizes), np.int64)

    def at(self, positions: Ints, /) -> tuple[Ints, Ints]:
        source, k = self.mixing.at(positions)
        if len(wrong := np.flatnonzero((source < 0) | (source >= len(self.sizes)))):
            raise ConfigError(
                f"{type(self.mixing).__name__} draws from input {source[wrong[0]]} at position {positions[wrong[0]]}: "
                f"there are {len(self.sizes)} inputs, numbered from 0 in the order of their names"
            )
        return source, k

    def counts(self, position: int, /) -> Ints:
        """Draws of each input before a position: all positions are gone through where the rule cannot tell."""
        if isinstance(self.mixing, Counted):
            return self.mixing.counts(position)
        out = np.zeros(len(self.sizes), np.int64)
        for start in range(0, position, _SCAN):
            source, _ = self.at(np.arange(start, min(start + _SCAN, position)))
            out += np.bincount(source, minlength=len(out))
        return out


@dataclass(frozen=True)
class InverseSchedule(RuleSchedule):
    """A mixing rule of the user's that can be asked backwards."""

    def places(self, source: Ints, k: Ints, /) -> Ints:
        """The positions of draws of inputs, -1 for those that are never made."""
        assert isinstance(self.mixing, Counted)
        return self.mixing.places(source, k)
