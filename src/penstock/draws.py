"""The schedules of mixes as programs see them: position to (input, draw), for every rule.

What an indexed mix needs beside `penstock.mix`: concatenation, turns, and a mixture that took over from another one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from .errors import ConfigError, StateError
from .mix import Mixture, SetWeights
from .nodes import By, Chain, Mix, Past, Path, Turns, Weighted, keyed_by
from .program import Drawing, Program
from .random import key_of
from .rows import bounds_of
from .schedule import Schedule, check_names
from .types import Ints, Mixing

FURTHEST = 1 << 60
"""No position of a mixture lies there."""


def schedule_of(flow: Mix, programs: tuple[Program, ...], path: Path) -> Drawing:
    """The schedule of an indexed mix."""
    sizes = tuple(program.size for program in programs)
    match flow.rule:
        case Weighted() as rule:
            found = mixture(rule, flow.names, sizes, path)
            return found if rule.past is None else Spliced(rule.past, found)
        case Chain():
            if None in sizes[:-1]:
                raise ConfigError("concat: an endless dataset hides all that comes after it; limit it first")
            return ChainSchedule(sizes)
        case Turns():
            return TurnsSchedule(sizes)
        case By(mixing):
            return RuleSchedule(mixing, sizes)
        case _:
            raise AssertionError("limit and repeat are orders where the flow is indexed")


def mixture(rule: Weighted, names: tuple[str, ...], sizes: tuple[int | None, ...], path: Path) -> Mixture:
    """The schedule of a weighted mix, ready to be asked."""
    if (key := (names, sizes, path)) not in rule.compiled:
        rule.compiled[key] = _mixture(rule, names, sizes, path)
    return rule.compiled[key]


def _mixture(rule: Weighted, names: tuple[str, ...], sizes: tuple[int | None, ...], path: Path) -> Mixture:
    weights: Any = dict(rule.weights) if isinstance(rule.weights, tuple) else rule.weights
    lengths = None if rule.lengths is None else dict(rule.lengths)

    def in_samples(weights: Any) -> Any:
        if not isinstance(weights, Schedule) or weights.unit != "tokens" or lengths is None:
            return weights
        check_names(weights.names, names, "the schedule")
        return weights.in_tokens(lengths, rule.unit == "tokens")

    events = (
        replace(event, weights=in_samples(event.weights)) if isinstance(event, SetWeights) else event
        for event in rule.events
    )
    return Mixture(
        names=names,
        weights=in_samples(weights),
        sizes=sizes,
        block_size=rule.block_size,
        stop=rule.stop,
        max_epochs=dict(rule.max_epochs) if isinstance(rule.max_epochs, tuple) else rule.max_epochs,
        temperature=rule.temperature,
        key=key_of(rule.seed, *keyed_by(path), "mix"),
        log=tuple(events),
        lengths=tuple(lengths[name] for name in names) if lengths and rule.unit == "tokens" else None,
    )


@dataclass(frozen=True)
class Spliced:
    """The mixture of the past up to where another one took over, and that from there on. Draws of an input that grew
    are counted in its present passes.
    """

    past: Past
    present: Mixture

    @property
    def size(self) -> int | None:
        return self.present.size if self.past.at is not None else self.before.size

    @property
    def passes(self) -> Ints:
        if self.past.at is not None:
            return self.present.passes
        out, kept = np.ones(len(self.present.names), np.int64), self._now >= 0
        out[self._now[kept]] = self.before.passes[kept]
        return out

    @cached_property
    def before(self) -> Mixture | Spliced:
        """The schedule of the past."""
        past = self.past
        return past.mixture if past.earlier is None else Spliced(past.earlier, past.mixture)

    @cached_property
    def _now(self) -> Ints:
        """Where each input of the past is in the present, -1 if it left."""
        names = self.present.names
        return np.asarray([names.index(name) if name in names else -1 for name in self.past.mixture.names], np.int64)

    @cached_property
    def _start(self) -> int:
        return FURTHEST if self.past.at is None else self.past.at

    def at(self, positions: Ints, /) -> tuple[Ints, Ints]:
        old = positions < self._start
        if not old.any():
            return self.present.at(positions)
        source, k = np.empty_like(positions), np.empty_like(positions)
        source[~old], k[~old] = self.present.at(positions[~old])
        then, draws = self.before.at(positions[old])
        source[old], k[old] = self._now[then], self.since(then, draws)
        if (source < 0).any():
            raise StateError(
                "what was drawn from an input that is no longer in the mixture is still needed, by a buffer or a "
                "later pass; give it weight 0 instead"
            )
        return source, k

    def since(self, source: Ints, k: Ints) -> Ints:
        """Draws of inputs of the past as draws of the present: the same sample of the same pass."""
        old, new = self._sizes
        return np.where(old[source] == new[source], k, k // old[source] * new[source] + k % old[source])

    @cached_property
    def _sizes(self) -> tuple[Ints, Ints]:
        """The passes of the inputs of the past, then and now; 1 where they are not known."""
        old, new = np.ones((2, len(self._now)), np.int64)
        for i, now in enumerate(map(int, self._now)):
            size, present = self.past.mixture.sizes[i], self.present.sizes[now] if now >= 0 else None
            if size and present:
                old[i], new[i] = size, present
        return old, new

    def counts(self, position: int, /) -> Ints:
        """Draws of each input before a position; those of an input that left do not count."""
        if position >= self._start:
            return self.present.counts(position)
        out, kept = np.zeros(len(self.present.names), np.int64), np.flatnonzero(self._now >= 0)
        out[self._now[kept]] = self.since(kept, self.before.counts(position)[kept])
        return out

    def places(self, source: Ints, k: Ints, /) -> Ints:
        """The positions of draws of inputs, -1 for those that are never made."""
        out = np.full(len(k), -1) if self.past.at is None else self.present.places(source, k)
        was = np.full(len(self.present.names), -1)
        kept = np.flatnonzero(self._now >= 0)
        was[self._now[kept]] = kept
        mine = np.flatnonzero(was[source] >= 0)
        then, (old, new) = was[source[mine]], self._sizes
        lap, place = np.divmod(k[mine], new[then])
        same = old[then] == new[then]
        found = self.before.places(then, np.where(same, k[mine], lap * old[then] + place))
        found[~same & (place >= old[then])] = -1
        out[mine] = np.where((found >= 0) & (found < self._start), found, out[mine])
        return out


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
        return self.mixing.at(positions)
