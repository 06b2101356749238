"""A mixture: sources drawn from by weight, as a function of the position; and its saved form."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from ...arguments import make_position_error
from ...errors import ConfigError, StateError
from ...schedule import InterpolationSpan, Schedule
from ...types import MAX_POSITION, Ints, Json
from ..base.integers import find_distinct_values
from ..base.random import derive_tweak_keys, hash_names, mix64
from .blocks import Blocks
from .events import Adopt, Event, Exhausted, SetWeights, event_from_json
from .options import check_log, compute_limits, compute_spans
from .split_tree import Floats
from .stretches import Stretches
from .timeline import AnySegment, Limits, State, Stop, Timeline
from .token_clock import IntegerCache, Meter, TokenClock, UnknownMeter

Spans = tuple[InterpolationSpan, ...]


@dataclass(frozen=True)
class Mixture:
    """Named sources drawn from by weight, in random order.

    After any number of draws each count is within 2 of its weight's share. A source that drops out
    leaves its surplus or deficit to those that stay.

    Attributes:
        names: the sources, sorted.
        weights: relative numbers, a `Schedule`, or None: then equal, or by `temperature`.
        sizes: the lengths of one pass, None if endless or unknown.
        block_size: n permutes every n draws once more; counts are then exact only between blocks.
        log: the changes during a run, in the order of their positions.
        lengths: mean tokens of a sample; weights are then shares of tokens.
        meters: the token counts of all draws; shares of tokens are then by the token clock.
        cache: the cache of what follows from the draws of these meters.
        one_source_per: n fills every stretch of n positions with n neighbours of one source.
            Weights, blocks, caps and surplus then count stretches inside, and positions outside.

    >>> m = Mixture(("a", "b"), {"a": 3, "b": 1}, (None, 2))
    >>> source, k = m.at(np.arange(8))
    >>> source.tolist(), k.tolist()
    ([0, 0, 0, 1, 1, 0, 0, 0], [0, 1, 2, 0, 1, 3, 4, 5])
    >>> m.positions_of(np.asarray([1]), np.asarray([250_000_000_000])).tolist()
    [1000000000001]
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
    one_source_per: int = 1
    cache: IntegerCache | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_log(self.log, self.names)
        assert self._limits and all(self._spans)
        if self.one_source_per > 1:
            self._stretches.require_filled(self._limits_in_draws, self.opened)

    # ------------------------------------------------------------ questions

    @property
    def size(self) -> int | None:
        """The number of draws in one pass; None if endless, or if it depends on a length that is
        not known."""
        size = self._eras[-1].timeline.size()
        return None if size is None else self._stretches.begin(size)

    @property
    def passes(self) -> Ints:
        """The largest number of passes over each source in one pass of a finite mixture."""
        if self.size is None:
            raise ConfigError("the mixture is endless: there is no second pass of it")
        sizes = [MAX_POSITION if size is None else max(size, 1) for size in self.sizes]
        return -(-self.counts(self.size) // np.asarray(sizes, np.int64))

    @property
    def opened(self) -> tuple[bool, ...]:
        """True for sources that are ever given weight."""
        weights = [span.first + span.last for spans in self._spans for span in spans]
        return tuple(bool(weight > 0) for weight in np.max(weights, axis=0))

    def end_within(self, position: int) -> int:
        """Return the end of a pass, or `position` if that comes first."""
        stretch = self._stretches.number(self.event_position(position))
        return min(position, self._stretches.begin(self._eras[-1].timeline.end_within(stretch)))

    def event_position(self, position: int) -> int:
        """Return the first position from one on at which a stretch begins, so that an event may."""
        return self._stretches.begin(self._stretches.number(position + self.one_source_per - 1))

    def at(self, positions: Ints) -> tuple[Ints, Ints]:
        """Return the source of each position, and which of its draws (0, 1, 2, ...) it is.

        Neighbours in order are fastest.
        """
        if self.one_source_per > 1:
            positions, places = self._stretches.split(positions)
            return self._stretches.join(*self._at(positions), places)
        return self._at(positions)

    def _at(self, positions: Ints) -> tuple[Ints, Ints]:
        if not len(positions):
            return positions.astype(np.int64), positions.astype(np.int64)
        if bool((positions[1:] >= positions[:-1]).all()):
            return self._at_sorted(positions)
        order = np.argsort(positions, kind="stable")
        source, k = np.empty((2, len(positions)), np.int64)
        source[order], k[order] = self._at_sorted(positions[order])
        return source, k

    def positions_of(self, source: Ints, k: Ints) -> Ints:
        """Return the positions of draws of sources, -1 for draws that are never made.

        It is the inverse of `at`.
        """
        k, places = self._stretches.split_draws(source, k)
        out, begun = np.full(len(k), -1), np.zeros(len(k), np.int64)
        for era in self._eras:
            begun += era.timeline.begin.counts[source] <= k
        number = np.where(k < 0, -1, begun - 1)
        for i in map(int, find_distinct_values(number[number >= 0])):
            mine = np.flatnonzero(number == i)
            out[mine] = self._eras[i].find(source[mine], k[mine])
        return np.where(out < 0, -1, self._stretches.begin(out) + places)

    def counts(self, position: int) -> Ints:
        """Return the draws of each source before a position."""
        if position == 0:
            return np.zeros(len(self.names), np.int64)
        stretch, place = self._stretches.split(position)
        era = self._era(stretch)
        if era.timeline.end_within(stretch + (place > 0)) < stretch + (place > 0):
            raise self._make_end_error(stretch)
        counts = self._stretches.draws(era.counts(stretch))
        if place:
            counts[self._at(np.asarray([stretch]))[0]] += place
        return counts

    def weights_at(self, position: int) -> dict[str, float]:
        """Return the weights in force at a position, of sum 1; 0 for sources that dropped out."""
        stretch = self._stretches.number(position)
        segment = self._segment(stretch)
        if segment is None:
            raise self._make_end_error(stretch)
        stair = segment.stairs(np.asarray([stretch - segment.start]))[0]
        weights: list[int] = segment.weights[:, stair].tolist()
        total = sum(weights)
        shares = (weight / total for weight in weights)
        members = [self.names[i] for i in map(int, segment.members)]
        return dict.fromkeys(self.names, 0.0) | dict(zip(members, shares, strict=True))

    def live(self, position: int) -> tuple[str, ...]:
        """Return the sources with weight that have not dropped out; none at the end."""
        segment = self._segment(self._stretches.number(position))
        if segment is None:
            return ()
        weights = segment.weights.max(axis=1)
        return tuple(self.names[i] for i in map(int, segment.members[weights > 0]))

    def surplus(self, position: int) -> dict[str, float]:
        """Return the surplus of each source before a position, in samples or (by a clock) tokens."""
        stretch, place = self._stretches.split(position)
        _, surplus = self._account(self._era(stretch).timeline, stretch)
        if place:  # within a stretch, the surplus of its source grows evenly
            _, later = self._account(self._era(stretch).timeline, stretch + 1)
            surplus = surplus + (later - surplus) * (place / self.one_source_per)
        scale = 1 if self.meters is not None else self.one_source_per
        return dict(zip(self.names, (surplus * scale).tolist(), strict=True))

    # ------------------------------------------------------------ changes

    def with_event(self, event: Event) -> Mixture:
        """Return the mixture with one more event, at its place in the log."""
        i = bisect_right(self.log, event.at, key=lambda other: other.at)
        if i < len(self.log) or isinstance(event, Adopt):
            return self.with_log((*self.log[:i], event, *self.log[i:]))
        check_log((event,), self.names)
        changed = object.__new__(Mixture)  # the results of the earlier events are shared
        changed.__dict__.update(self.__dict__, log=(*self.log, event))
        if isinstance(event, SetWeights):
            changed.__dict__["_spans"] = (*self._spans, self._compute_spans(event))
        *earlier, last = self._eras
        if not changed._ends_before(last.timeline, event):
            at = self._stretches.number(event.at)
            continued = Blocks(last.timeline, at), changed._continue(last, event)
            changed.__dict__["_eras"] = (*earlier, *continued)
        return changed

    def with_log(self, log: tuple[Event, ...]) -> Mixture:
        """Return the mixture with another log."""
        return replace(self, log=log)

    def with_meters(self, present: Mixture) -> Mixture:
        """Return the mixture with the meters of another, for the inputs that both have.

        A mixture without meters stays as it is.
        """
        if self.meters is None or present.meters is None:
            return self
        others = dict(
            zip(zip(present.names, present.sizes, strict=True), present.meters, strict=True)
        )
        own = zip(self.names, self.sizes, self.meters, strict=True)
        meters = tuple(others.get((name, size), meter) for name, size, meter in own)
        return replace(self, meters=meters, cache=None)

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)} | {"cache": None}

    # ------------------------------------------------------------ inside

    @cached_property
    def _stretches(self) -> Stretches:
        """The stretches of one source, counted from the start, or the last `Adopt`."""
        begin = [Adopt(0, {}), *(event for event in self.log if isinstance(event, Adopt))][-1]
        drawn = np.asarray([begin.counts.get(name, 0) for name in self.names], np.int64)
        size = self.one_source_per
        return Stretches(size, begin.at % size, drawn % size)

    @cached_property
    def _limits(self) -> Limits:
        clock = None
        if (meters := self._stretch_meters) is not None and self.lengths is not None:
            tweak = derive_tweak_keys(self.key, np.zeros(1, np.int64))
            keys = mix64(hash_names(self.names) + tweak)
            means = np.asarray(self.lengths, np.float64) * self.one_source_per
            cache = self.cache if self.one_source_per == 1 else None
            clock = TokenClock(meters, means, keys, cache)
        return self._stretches.limits(replace(self._limits_in_draws, clock=clock))

    @cached_property
    def _limits_in_draws(self) -> Limits:
        return compute_limits(
            self.names, self.sizes, self.stop, self.block_size, self.key, self.max_epochs
        )

    @cached_property
    def _stretch_meters(self) -> tuple[Meter, ...] | None:
        """The token counts of stretches."""
        return None if self.meters is None else self._stretches.meters(self.meters)

    @cached_property
    def _spans(self) -> tuple[Spans, ...]:
        """The weights at the start, and those of every `SetWeights`."""
        events = (event for event in self.log if isinstance(event, SetWeights))
        return (self._compute_spans(self), *map(self._compute_spans, events))

    def _compute_spans(self, weighted: Mixture | SetWeights) -> Spans:
        temperature = self.temperature if weighted is self else None
        by_clock = self.meters is not None
        spans = compute_spans(
            self.names, self.sizes, weighted.weights, temperature, self.lengths, by_clock
        )
        return self._stretches.spans(spans)

    @cached_property
    def _eras(self) -> tuple[Blocks, ...]:
        """The draws from the start, or the last `Adopt`, and from every later event on."""
        n, first = len(self.names), 0
        begin = State(0, np.zeros(n, np.int64), np.zeros(n), np.zeros(n, np.bool_))
        spans = self._spans[0]
        for i, event in enumerate(self.log):
            if isinstance(event, Adopt):
                counts = [event.counts.get(name, 0) for name in self.names]
                surplus = np.asarray([event.surplus.get(name, 0.0) for name in self.names])
                surplus /= 1 if self.meters is not None else self.one_source_per
                drawn = np.asarray(counts, np.int64) // self.one_source_per
                at = self._stretches.number(event.at)
                begin = State(at, drawn, surplus, begin.ended)
                changes = sum(isinstance(other, SetWeights) for other in self.log[: i + 1])
                spans, first = self._spans[changes], i + 1
        eras = [self._begin(spans, begin)]
        for event in self.log[first:]:
            if self._ends_before(eras[-1].timeline, event):
                break
            timeline = eras[-1].timeline
            at = self._stretches.number(event.at)
            eras[-1:] = Blocks(timeline, at), self._continue(eras[-1], event)
        return tuple(eras)

    def _begin(self, spans: Spans, begin: State, is_over: bool = False) -> Blocks:
        ended = begin.ended | (begin.counts >= self._limits.most)
        return Blocks(Timeline(self._limits, spans, begin._replace(ended=ended), is_over))

    def _ends_before(self, timeline: Timeline, event: Event) -> bool:
        """Return whether the input streams ended before an event, because one lane ends before
        others.
        """
        has_ends = any(isinstance(other, Exhausted) for other in self.log)
        at = self._stretches.number(event.at)
        return has_ends and timeline.end_within(at) < at

    def _continue(self, era: Blocks, event: Event) -> Blocks:
        """Return the draws from an event on. They repay the surplus of the block that it cuts."""
        timeline, at = era.timeline, self._stretches.number(event.at)
        if (end := timeline.end_within(at)) < at:
            raise ConfigError(
                f"the event at position {event.at} is after the end of the mixture, "
                f"{self._stretches.begin(end)}; give a position before the end"
            )
        spans, ended = tuple(timeline.spans), timeline.begin.ended.copy()
        is_over = isinstance(event, Exhausted) and self.stop == "first_exhausted"
        if isinstance(event, SetWeights):
            spans = self._compute_spans(event)
        if isinstance(event, Exhausted):
            ended[self.names.index(event.source)] = True
        state = State(at, *self._account(timeline, at), ended)
        return self._begin(spans, state, is_over)

    def _account(self, timeline: Timeline, at: int) -> tuple[Ints, Floats]:
        """Return the draws of each source before a position, and its surplus."""
        counts = Blocks(timeline).counts(at)
        start = timeline.counts(np.asarray([at]))[0]  # before blocks are permuted
        extra = counts - start
        if (meters := self._stretch_meters) is not None and extra.any():
            pairs = zip(meters, start.tolist(), counts.tolist(), strict=True)
            tokens = [b - a and meter.tokens(b) - meter.tokens(a) for meter, a, b in pairs]
            extra = np.asarray(tokens, np.int64)
        return counts, timeline.surplus(at) + extra

    def _era(self, position: int) -> Blocks:
        i = bisect_right(self._eras, position, key=lambda era: era.timeline.start)
        if i == 0:
            start = self._stretches.begin(self._eras[0].timeline.start)
            position = self._stretches.begin(position)
            remedy = "the first position; give a position from 0 on"
            if start:
                remedy = "where this mixture was adopted; ask the mixture before it"
            raise IndexError(f"position {position} is before {start}, {remedy}")
        return self._eras[i - 1]

    def _segment(self, position: int) -> AnySegment | None:
        timeline = self._era(position).timeline
        return timeline.segment_at(position) if timeline.covers(position) else None

    def _make_end_error(self, position: int) -> IndexError:
        size, position = self.size, self._stretches.begin(position)
        if size is None:
            return make_position_error(position)
        return IndexError(
            f"position {position} is after the end of the mixture, which has {size} draws; "
            "give an earlier position"
        )

    def _at_sorted(self, positions: Ints) -> tuple[Ints, Ints]:
        low, high = int(positions[0]), int(positions[-1])
        first, last = self._era(low), self._era(high)
        if not last.timeline.covers(high):
            raise self._make_end_error(high)
        if first is last:
            return first.at(positions)
        starts = [era.timeline.start for era in self._eras[1:]]
        cuts = [0, *np.searchsorted(positions, starts).tolist(), len(positions)]
        source, k = np.empty((2, len(positions)), np.int64)
        for era, a, b in zip(self._eras, cuts, cuts[1:], strict=False):
            if b > a:
                source[a:b], k[a:b] = era.at(positions[a:b])
        return source, k


def mixture_to_json(mixture: Mixture) -> dict[str, Json]:
    """Return plain JSON: all that the order depends on, without the meters of a token clock.

    >>> made = Mixture(("a", "b"), {"a": 3, "b": 1}, (None, 2), key=7)
    >>> mixture_from_json(mixture_to_json(made)) == made
    True
    """
    weights, caps = mixture.weights, mixture.max_epochs
    return {
        "names": list(mixture.names),
        "weights": dict(weights) if isinstance(weights, Mapping) else None,
        "schedule": weights.to_json() if isinstance(weights, Schedule) else None,
        "sizes": list(mixture.sizes),
        "block_size": mixture.block_size,
        "stop": mixture.stop,
        "max_epochs": dict(caps) if isinstance(caps, Mapping) else caps,
        "temperature": mixture.temperature,
        "key": mixture.key,
        "log": [event.to_json() for event in mixture.log],
        "lengths": None if mixture.lengths is None else list(mixture.lengths),
        "clock": mixture.meters is not None,
        **({} if (n := mixture.one_source_per) == 1 else {"one_source_per": n}),
    }


def mixture_from_json(saved: Any) -> Mixture:
    """Return the mixture that `mixture_to_json` wrote."""
    try:
        options: dict[str, Any] = dict(cast("Mapping[str, Any]", saved))
        schedule, clock = options.pop("schedule"), options.pop("clock")
        names, lengths = tuple(options.pop("names")), options.pop("lengths")
        if schedule is not None:
            options["weights"] = Schedule.from_json(schedule)
        return Mixture(
            names,
            sizes=tuple(options.pop("sizes")),
            log=tuple(map(event_from_json, options.pop("log"))),
            lengths=None if lengths is None else tuple(lengths),
            meters=tuple(map(UnknownMeter, names)) if clock else None,
            **options,
        )
    except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
        raise StateError(
            f"a mixture in the state cannot be read ({error}); the state is damaged, load an "
            "earlier one"
        ) from error
