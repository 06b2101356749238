"""The object that the rest of the library asks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...arguments import make_position_error
from ...errors import ConfigError
from ...schedule import InterpolationSpan, Schedule
from ...types import MAX_POSITION, Ints
from ..base.integers import find_distinct_values
from ..base.random import derive_tweak_keys, hash_names, mix64
from .asking import check_log, rules_of, spans_of
from .blocks import Blocks
from .events import Adopt, Event, Exhausted, SetWeights
from .law import Meter, TokenClock
from .shape import Floats
from .timeline import AnySegment, Rules, State, Stop, Timeline


@dataclass(frozen=True)
class Mixture:
    """Named sources drawn from by weight, in random order: after any number of draws each count is
    within 2 of what its weight asks.

    `names` come sorted. `sizes` are the lengths of one pass, None where endless or unknown.
    `weights` are relative numbers, a `Schedule`, or None: then equal, or by `temperature`.
    `block_size` n permutes every n draws once more; counts are then exact only between these
    blocks. With `lengths`, the mean tokens per sample, weights are shares of tokens: by means, or,
    with `meters`, which know every length, by the clock of tokens. A source that drops out leaves
    what it is ahead or behind to those that stay.

    >>> m = Mixture(("a", "b"), {"a": 3, "b": 1}, (None, 2))
    >>> source, k = m.at(np.arange(8))
    >>> source.tolist(), k.tolist()
    ([0, 0, 0, 1, 1, 0, 0, 0], [0, 1, 2, 0, 1, 3, 4, 5])
    >>> m.find(1, 250_000_000_000)
    1000000000001
    """

    names: tuple[str, ...]
    weights: Mapping[str, float] | Schedule | None
    sizes: tuple[int | None, ...]
    block_size: int = 1
    stop: Stop = "restart"
    max_epochs: float | Mapping[str, float] | None = None
    temperature: float | None = None
    key: int = 0
    log: tuple[Event, ...] = ()
    lengths: tuple[float, ...] | None = None
    meters: tuple[Meter, ...] | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_log(self.log, self.names)
        assert self._rules
        for law in self._laws:
            assert law

    # ------------------------------------------------------------ questions

    @property
    def size(self) -> int | None:
        """The number of draws in one pass; None if endless, or if it depends on a length that is
        not known."""
        return self._eras[-1].plan.size()

    @property
    def passes(self) -> Ints:
        """Return the largest number of passes over each source in one pass of a finite mixture."""
        if self.size is None:
            raise ConfigError("the mixture is endless: there is no second pass of it")
        counts = self.counts(self.size)
        size = np.asarray(
            [MAX_POSITION if size is None else max(size, 1) for size in self.sizes], np.int64
        )
        return -(-counts // size)

    @property
    def opened(self) -> tuple[bool, ...]:
        """Which sources are ever given weight."""
        weights = np.asarray([span.first + span.last for law in self._laws for span in law])
        return tuple(bool(weight > 0) for weight in weights.max(axis=0))

    def end_within(self, position: int) -> int:
        """The end of a pass, or `position` if that comes first."""
        return self._eras[-1].plan.end_within(position)

    def at(self, positions: Ints) -> tuple[Ints, Ints]:
        """The source of each position, and which of its draws (0, 1, 2, ...) it is. Neighbours in
        order are fastest."""
        if not len(positions):
            return positions.astype(np.int64), positions.astype(np.int64)
        if bool((positions[1:] >= positions[:-1]).all()):
            return self._at_sorted(positions)
        order = np.argsort(positions, kind="stable")
        source, k = np.empty((2, len(positions)), np.int64)
        source[order], k[order] = self._at_sorted(positions[order])
        return source, k

    def find(self, source: int, k: int) -> int:
        """The position of a source's `k`-th draw: the inverse of `at`."""
        found = (
            int(self.places(np.asarray([source]), np.asarray([k]))[0])
            if 0 <= k < MAX_POSITION
            else -1
        )
        if found < 0:
            raise IndexError(
                f"the mixture never makes draw {k} of {self.names[source]!r}; use an earlier draw"
            )
        return found

    def places(self, source: Ints, k: Ints) -> Ints:
        """The positions of draws of sources, -1 for those that are never made."""
        out = np.full(len(k), -1)
        begun = np.count_nonzero([era.plan.begin.counts[source] <= k for era in self._eras], axis=0)
        number = np.where(k < 0, -1, begun - 1)
        for i in map(int, find_distinct_values(number[number >= 0])):
            mine = np.flatnonzero(number == i)
            out[mine] = self._eras[i].find(source[mine], k[mine])
        return out

    def counts(self, position: int) -> Ints:
        """Draws of each source before a position."""
        if position == 0:
            return np.zeros(len(self.names), np.int64)
        era = self._era(position)
        if era.plan.end_within(position) < position:
            raise self._beyond(position)
        return era.counts(position)

    def weights_at(self, position: int) -> dict[str, float]:
        """The weights in force at a position, of sum 1, those that dropped out 0."""
        segment = self._segment(position)
        if segment is None:
            raise self._beyond(position)
        row = segment.weights[:, segment.rows(np.asarray([position - segment.start]))[0]]
        found = dict.fromkeys(self.names, 0.0)
        total = int(row.sum())
        return found | {
            self.names[i]: int(w) / total
            for i, w in zip(segment.members.tolist(), row, strict=True)
        }

    def live(self, position: int) -> tuple[str, ...]:
        """The sources with weight that have not dropped out at a position; none at the end."""
        segment = self._segment(position)
        if segment is None:
            return ()
        weights = segment.weights.max(axis=1).tolist()
        return tuple(self.names[int(i)] for i, w in zip(segment.members, weights, strict=True) if w)

    # ------------------------------------------------------------ changes

    def with_event(self, event: Event) -> Mixture:
        """The mixture with one more event, at its place in the log."""
        place = bisect_right(self.log, event.at, key=lambda other: other.at)
        if place < len(self.log) or isinstance(event, Adopt):
            return self.with_log((*self.log[:place], event, *self.log[place:]))
        check_log((event,), self.names)
        found = object.__new__(Mixture)  # what was worked out of the earlier events stays
        found.__dict__.update(self.__dict__, log=(*self.log, event))
        if isinstance(event, SetWeights):
            found.__dict__["_laws"] = (*self._laws, self._law(event))
        if not found._over(self._eras[-1].plan, event):
            found.__dict__["_eras"] = (*self._eras, found._after(self._eras[-1].plan, event))
        return found

    def with_log(self, log: tuple[Event, ...]) -> Mixture:
        """The mixture with another log."""
        return replace(self, log=log)

    def with_meters(self, present: Mixture) -> Mixture:
        """The mixture, timed by a clock, with the meters of another of the same inputs, as far as
        it has them."""
        if self.meters is None or present.meters is None:
            return self
        there = {name: i for i, name in enumerate(present.names)}
        found = list[Meter]()
        for name, size, meter in zip(self.names, self.sizes, self.meters, strict=True):
            i = there.get(name, -1)
            found.append(present.meters[i] if i >= 0 and present.sizes[i] == size else meter)
        return replace(self, meters=tuple(found))

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    # ------------------------------------------------------------ inside

    @cached_property
    def _rules(self) -> Rules:
        return rules_of(
            self.names,
            self.sizes,
            self.stop,
            self.block_size,
            self.key,
            self.max_epochs,
            self._clock,
        )

    @cached_property
    def _clock(self) -> TokenClock | None:
        if self.meters is None or self.lengths is None:
            return None
        keys = mix64(hash_names(self.names) + derive_tweak_keys(self.key, np.zeros(1, np.int64)))
        return TokenClock(self.meters, np.asarray(self.lengths, np.float64), keys)

    @cached_property
    def _laws(self) -> tuple[tuple[InterpolationSpan, ...], ...]:
        """The weights at the start, and those of every `SetWeights`."""
        timed = self.meters is not None
        first = spans_of(
            self.names, self.sizes, self.weights, self.temperature, self.lengths, timed
        )
        return (first, *(self._law(event) for event in self.log if isinstance(event, SetWeights)))

    def _law(self, event: SetWeights) -> tuple[InterpolationSpan, ...]:
        return spans_of(
            self.names, self.sizes, event.weights, None, self.lengths, self.meters is not None
        )

    @cached_property
    def _eras(self) -> tuple[Blocks, ...]:
        """One plan from the start, or from where another mixture was taken over, and one from every
        later event."""
        start = max((i for i, event in enumerate(self.log) if isinstance(event, Adopt)), default=-1)
        position, counts, surplus = (
            0,
            np.zeros(len(self.names), np.int64),
            np.zeros(len(self.names)),
        )
        law = self._laws[sum(isinstance(event, SetWeights) for event in self.log[: start + 1])]
        if start >= 0:
            event = self.log[start]
            assert isinstance(event, Adopt)
            position, counts = (
                event.at,
                np.asarray([event.counts.get(name, 0) for name in self.names], np.int64),
            )
            surplus = np.asarray([event.surplus.get(name, 0.0) for name in self.names])
        eras = [self._plan(law, position, counts, surplus, np.zeros(len(counts), np.bool_))]
        for event in self.log[start + 1 :]:
            if self._over(eras[-1].plan, event):
                break
            eras.append(self._after(eras[-1].plan, event))
        return tuple(eras)

    def _plan(
        self,
        law: tuple[InterpolationSpan, ...],
        at: int,
        counts: Ints,
        residual: Any,
        out: Any,
        ended: bool = False,
    ) -> Blocks:
        out = out | (counts >= self._rules.most)
        return Blocks(Timeline(self._rules, law, State(at, counts, residual, out), ended))

    def _over(self, plan: Timeline, event: Event) -> bool:
        """Return whether the input streams ended before an event, because one lane ends before
        others.
        """
        return (
            any(isinstance(each, Exhausted) for each in self.log)
            and plan.end_within(event.at) < event.at
        )

    def _after(self, plan: Timeline, event: Event) -> Blocks:
        """The plan from an event on. What the block that it cuts had given out by then is made up
        for afterwards."""
        at = event.at
        if plan.end_within(at) < at:
            raise ConfigError(
                f"the event at position {at} is after the end of the mixture, "
                f"{plan.end_within(at)}; give a position before the end"
            )
        counts, residual = self._account(plan, at)
        law, out = tuple(plan.spans), plan.begin.out.copy()
        if isinstance(event, SetWeights):
            law = self._law(event)
        if isinstance(event, Exhausted):
            out[self.names.index(event.source)] = True
        first = isinstance(event, Exhausted) and self.stop == "first_exhausted"
        return self._plan(law, at, counts, residual, out, ended=first)

    def surplus(self, position: int) -> dict[str, float]:
        """Return the surplus of each source before a position, in samples or (by a clock) tokens."""
        _, residual = self._account(self._era(position).plan, position)
        return dict(zip(self.names, residual.tolist(), strict=True))

    def _account(self, plan: Timeline, at: int) -> tuple[Ints, Floats]:
        """Return the draws of each source before a position, and its surplus."""
        counts = Blocks(plan).counts(at)
        residual = plan.residuals(at) + self._tokens(plan.counts(np.asarray([at]))[0], counts)
        return counts, residual

    def _tokens(self, start: Ints, stop: Ints) -> Ints:
        """The distance between draws of every source, in tokens if shares count tokens by a clock."""
        if self.meters is None or bool((start == stop).all()):
            return stop - start
        each = zip(self.meters, start.tolist(), stop.tolist(), strict=True)
        return np.asarray([b - a and m.tokens(b) - m.tokens(a) for m, a, b in each], np.int64)

    def _era(self, position: int) -> Blocks:
        i = bisect_right(self._eras, position, key=lambda era: era.plan.start)
        if i == 0:
            start = self._eras[0].plan.start
            raise IndexError(
                f"position {position} is before {start}, "
                + (
                    "where this mixture was adopted; ask the mixture before it"
                    if start
                    else "the first position; give a position from 0 on"
                )
            )
        return self._eras[i - 1]

    def _segment(self, position: int) -> AnySegment | None:
        era = self._era(position)
        return era.plan.segment_at(position) if era.plan.covers(position) else None

    def _beyond(self, position: int) -> IndexError:
        size = self.size
        if size is None:
            return make_position_error(position)
        return IndexError(
            f"position {position} is after the end of the mixture, which has {size} draws; "
            "give an earlier position"
        )

    def _at_sorted(self, positions: Ints) -> tuple[Ints, Ints]:
        low, high = int(positions[0]), int(positions[-1])
        first, last = self._era(low), self._era(high)
        if not last.plan.covers(high):
            raise self._beyond(high)
        if first is last:
            return first.at(positions)
        starts = [era.plan.start for era in self._eras[1:]]
        cuts = [0, *np.searchsorted(positions, starts).tolist(), len(positions)]
        source, k = np.empty((2, len(positions)), np.int64)
        for era, a, b in zip(self._eras, cuts, cuts[1:], strict=False):
            if b > a:
                source[a:b], k[a:b] = era.at(positions[a:b])
        return source, k
