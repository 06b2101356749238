"""Mixtures over the passes of a run. What is changed in one pass holds in the later ones, and in
none before."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ...errors import ConfigError, StateError
from ...schedule import Schedule, check_names
from ...types import MAX_POSITION, Ints
from ..base.random import derive_key
from ..mixing import Corrected, Event, MadeUp, Meter, Mixture, SetWeights
from ..mixing.rules import Past, Weighted
from ..ops.mix import MixOp
from ..ops.op import Op
from ..ops.passes import PassesOp
from .nodes import Flow, Path, keyed_by

_T = TypeVar("_T")

FURTHEST = MAX_POSITION
"""No position of a mixture lies there, and no pass has that number."""


@dataclass(frozen=True)
class Spliced:
    """One pass in which a mixture replaces another at `start`: the former one before, `present`
    after.

    Draws of an input that grew are counted in its present passes.
    """

    before: OnePass
    present: Mixture
    start: int = FURTHEST

    @property
    def names(self) -> tuple[str, ...]:
        return self.present.names

    @property
    def sizes(self) -> tuple[int | None, ...]:
        return self.present.sizes

    @property
    def size(self) -> int | None:
        return self.before.size if self.start == FURTHEST else self.present.size

    @property
    def passes(self) -> Ints:
        if self.start != FURTHEST:
            return self.present.passes
        out, kept = np.ones(len(self.present.names), np.int64), self._now >= 0
        out[self._now[kept]] = self.before.passes[kept]
        return out

    @cached_property
    def _now(self) -> Ints:
        """Where each input of the past is in the present, -1 if it left."""
        names = self.present.names
        return np.asarray(
            [names.index(name) if name in names else -1 for name in self.before.names], np.int64
        )

    def at(self, positions: Ints, /) -> tuple[Ints, Ints]:
        old = positions < self.start
        if not old.any():
            return self.present.at(positions)
        source, k = np.empty_like(positions), np.empty_like(positions)
        source[~old], k[~old] = self.present.at(positions[~old])
        then, draws = self.before.at(positions[old])
        source[old], k[old] = self._now[then], self.since(then, draws)
        if (source < 0).any():
            raise StateError(
                "a buffer or a later pass still needs draws from an input that the mixture no "
                "longer has; give it weight 0 instead of removing it"
            )
        return source, k

    def since(self, source: Ints, k: Ints) -> Ints:
        """Draws of inputs of the past as draws of the present: the same sample of the same pass."""
        old, new = self._lengths
        return np.where(
            old[source] == new[source], k, k // old[source] * new[source] + k % old[source]
        )

    @cached_property
    def _lengths(self) -> tuple[Ints, Ints]:
        """The passes of the inputs of the past, then and now; 1 where they are not known."""
        old, new = np.ones((2, len(self._now)), np.int64)
        for i, now in enumerate(map(int, self._now)):
            size, present = self.before.sizes[i], self.present.sizes[now] if now >= 0 else None
            if size and present:
                old[i], new[i] = size, present
        return old, new

    @property
    def goes_on(self) -> bool:
        """Whether every input goes on where it was when the mixture took over."""
        if isinstance(self.before, Spliced) and not self.before.goes_on:
            return False
        if self.start == FURTHEST:
            return True
        kept = np.flatnonzero(self._now >= 0)
        try:
            then = self.since(kept, self.before.counts(self.start)[kept])
        except IndexError:  # the past ends before that
            return False
        return np.array_equal(then, self.present.counts(self.start)[self._now[kept]])

    def counts(self, position: int, /) -> Ints:
        """Draws of each input before a position; those of an input that left do not count."""
        if position >= self.start:
            return self.present.counts(position)
        out, kept = np.zeros(len(self.present.names), np.int64), np.flatnonzero(self._now >= 0)
        out[self._now[kept]] = self.since(kept, self.before.counts(position)[kept])
        return out

    def never_drawn(self, source: int, low: int, high: int, /) -> tuple[Ints, Ints]:
        """The first and last of the draws in a range that were never made.

        They are the later rows of an input that grew, in the passes before.
        """
        size, starts, stops = self.present.sizes[source] or 0, list[Ints](), list[Ints]()
        first = 0
        for until, rows in self._former_passes(source) if size else ():
            laps = np.arange(max(first, low // size), min(until, -(-high // size)))
            first = max(first, until)
            if rows < size:
                starts.append(np.clip(laps * size + rows, low, high))
                stops.append(np.clip((laps + 1) * size, low, high))
        none = np.zeros(0, np.int64)
        begin, end = np.concatenate([none, *starts]), np.concatenate([none, *stops])
        return begin[begin < end], end[begin < end]

    def _former_passes(self, source: int) -> list[tuple[int, int]]:
        """Up to which pass an input had how many rows."""
        if source not in self._now:
            return []
        before, then = self.before, int(np.flatnonzero(self._now == source)[0])
        earlier = before._former_passes(then) if isinstance(before, Spliced) else []
        if not (rows := before.sizes[then]):
            return []
        until = FURTHEST
        if self.start != FURTHEST:
            end = self.start if before.size is None else min(self.start, before.size)
            until = int(before.counts(end)[then]) // rows
        return [*((min(lap, until), few) for lap, few in earlier), (until, rows)]

    def surplus(self, position: int, /) -> dict[str, float]:
        """Return the surplus of each input before a position."""
        return (self.before if position < self.start else self.present).surplus(position)

    def places(self, source: Ints, k: Ints, /) -> Ints:
        """The positions of draws of inputs, -1 for those that are never made."""
        out = np.full(len(k), -1) if self.start == FURTHEST else self.present.places(source, k)
        was = np.full(len(self.present.names), -1)
        kept = np.flatnonzero(self._now >= 0)
        was[self._now[kept]] = kept
        mine = np.flatnonzero(was[source] >= 0)
        then, (old, new) = was[source[mine]], self._lengths
        lap, place = np.divmod(k[mine], new[then])
        same = old[then] == new[then]
        found = self.before.places(then, np.where(same, k[mine], lap * old[then] + place))
        found[~same & (place >= old[then])] = -1
        out[mine] = np.where((found >= 0) & (found < self.start), found, out[mine])
        return out


OnePass: TypeAlias = Mixture | Spliced
Passes: TypeAlias = Mapping[int, OnePass]
MixtureOp: TypeAlias = MixOp | PassesOp


@dataclass(frozen=True)
class History:
    """A mixture, what happened to it in which pass, and the mixture that it took over from. `now`
    is the pass in which the run stands, None where the mixture is drawn from by another step.
    """

    mixture: Mixture
    events: tuple[tuple[int, Event], ...]
    past: Past | None
    now: int | None
    made: MadeUp | None = None

    @cached_property
    def passes(self) -> Passes:
        """From which pass on which schedule holds, the first from 0."""
        return _passes(self.mixture, self.events, self.past)

    @property
    def goes_on(self) -> bool:
        """Whether all mixtures that took over go on where those before them were."""
        return all(each.goes_on for each in self.passes.values() if isinstance(each, Spliced))

    @property
    def present(self) -> OnePass:
        """The schedule of the pass in which the run stands."""
        return _of(self.passes, self.now or 0)


def _passes(mixture: Mixture, events: Sequence[tuple[int, Event]], past: Past | None) -> Passes:
    """From which pass on which schedule holds, the first from 0."""
    out = {0: mixture}
    for lap, event in events:
        before, out[lap] = _of(out, lap), _of(out, lap).with_event(event)
        if isinstance(event, SetWeights):
            mixture = replace(mixture, weights=event.weights, temperature=None)
            out[lap] = out[lap] if event.at or before.log else mixture
        out[lap + 1] = mixture
    if past is None:
        return out
    before = _passes(past.mixture, past.events, past.earlier)
    old: dict[int, OnePass] = {
        lap: Spliced(then, mixture) for lap, then in before.items() if lap < past.lap
    }
    if past.lap == FURTHEST:
        return old
    old[past.lap] = Spliced(_of(before, past.lap), out[past.lap], past.at)
    return old | {lap: each for lap, each in out.items() if lap > past.lap}


def _of(passes: Mapping[int, _T], lap: int) -> _T:
    laps = sorted(passes)
    return passes[laps[bisect_right(laps, lap) - 1]]


def one_pass_of(past: Past, lap: int) -> OnePass:
    """The schedule that a mixture of the past has in a pass."""
    return _of(_passes(past.mixture, past.events, past.earlier), lap)


def bound(past: Past, present: Mixture) -> Past:
    """The past with the lengths of the present, where it was timed by a clock."""
    earlier = None if past.earlier is None else bound(past.earlier, present)
    return replace(past, mixture=past.mixture.with_meters(present), earlier=earlier)


def history(
    rule: Weighted,
    names: tuple[str, ...],
    sizes: tuple[int | None, ...],
    path: Path,
    flows: tuple[Flow, ...] = (),
    meters: tuple[Meter, ...] | None = None,
) -> History:
    """The mixture of a weighted mix, with what happened to it. With `meters`, of these flows,
    shares of tokens go by the clock.
    """
    key = names, sizes, path, tuple(map(id, flows)) if meters else ()
    if key not in rule.compiled:
        rule.compiled[key] = (
            flows,
            _history(rule, names, sizes, path, meters),
        )  # flows are kept for their identities
    found = rule.compiled[key][1]
    return found if rule.made is None else replace(found, made=rule.made)


def _history(
    rule: Weighted,
    names: tuple[str, ...],
    sizes: tuple[int | None, ...],
    path: Path,
    meters: tuple[Meter, ...] | None,
) -> History:
    weights: Any = dict(rule.weights) if isinstance(rule.weights, tuple) else rule.weights
    lengths = None if rule.lengths is None else dict(rule.lengths)

    def in_samples(weights: Any) -> Any:
        if not isinstance(weights, Schedule) or weights.unit != "tokens" or lengths is None:
            return weights
        check_names(weights.names, names, "the schedule")
        return weights.in_tokens(lengths, rule.unit == "tokens")

    events = tuple(
        (
            lap,
            replace(event, weights=in_samples(event.weights))
            if isinstance(event, SetWeights)
            else event,
        )
        for lap, event in rule.events
    )
    mixture = Mixture(
        names=names,
        weights=in_samples(weights),
        sizes=sizes,
        block_size=rule.block_size,
        stop=rule.stop,
        max_epochs=dict(rule.max_epochs) if isinstance(rule.max_epochs, tuple) else rule.max_epochs,
        temperature=rule.temperature,
        key=derive_key(rule.seed, *keyed_by(path), "mix"),
        lengths=tuple(lengths[name] for name in names)
        if lengths and rule.unit == "tokens"
        else None,
        meters=meters,
    )
    return History(mixture, events, rule.past and bound(rule.past, mixture), rule.now)


def mixture_op(found: History, inputs: tuple[Op, ...], leaves: int, at: Path) -> MixtureOp:
    """The op of a mixture, which may have changed from one pass to the next. In a run of its passes
    all count as many positions as that in which the run stands; inside another step each as many as
    it has.
    """
    if found.made is not None:
        return MixOp(inputs, Corrected(found.mixture, found.made), leaves, at)
    passes = found.passes
    laps, parts = tuple(passes), list[MixOp]()
    for i, (lap, schedule) in enumerate(passes.items()):
        # Each input goes on with a pass that it has not begun before.
        base = parts[-1].drawn(lap - laps[i - 1]) if i and parts[-1].size is not None else None
        parts.append(MixOp(inputs, schedule, leaves, at, base=base))
    sizes = [part.size for part in parts]
    if len(parts) == 1 or sizes[0] is None:
        return parts[0]
    if None in sizes:
        raise ConfigError(
            f"the mixture of {', '.join(found.mixture.names)} ends, but the change would make it "
            f"endless in pass {laps[sizes.index(None)]}; limit the input that has no end"
        )
    if found.now is not None:
        size = parts[bisect_right(laps, found.now) - 1].size or 0
        return PassesOp(laps, [lap * size for lap in laps], parts, size, found.now)
    starts = accumulate(
        ((b - a) * (size or 0) for (a, b), size in zip(pairwise(laps), sizes, strict=False)),
        initial=0,
    )
    return PassesOp(laps, tuple(starts), parts, sizes[0], None)
