"""A mixture from one position on: segments, one after the other, made when asked for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum, sqrt
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from ...errors import ConfigError
from ...schedule import InterpolationSpan
from ...types import MAX_POSITION, Ints
from ..base.integers import find_distinct_values
from ..base.random import Words, derive_tweak_keys, mix64
from .build import build, stair_weights
from .clock import Clocked, clocked
from .law import TokenClock
from .segment import Flags, Segment, settle
from .shape import Floats, Shape, grow, whole_weights

Stop: TypeAlias = Literal["restart", "first_exhausted", "all_exhausted", "all_exhausted_oversample"]
STOPS: tuple[Stop, ...] = get_args(Stop)
AnySegment: TypeAlias = Segment | Clocked

_UNEVEN = 0.02  # how far a stair of a ramp may be off the ramp, in draws,
_STAIRS = 8192  # unless that takes more stairs than this,
_MOST = 1 << 20  # or more than this many nodes times stairs
_PIECES, _SHORT = (
    16,
    128,
)  # a ramp is worked out in so many pieces or more, but in none of fewer blocks than these,
_CELLS = 1 << 18  # of so many nodes times stairs at most
_OWED = 2  # what a source may be off and be made up for in one segment
_STRAY = 0.1  # how far weights may move, in sum, before the tree is grown anew


@dataclass(frozen=True, eq=False)
class Rules:
    """Limits that hold for a whole run; `MAX_POSITION` stands for no limit.

    `most`: a source drops out after so many draws. `goal`: what a source must be given before a
    pass of the mixture ends; for first_exhausted, what none may pass.
    """

    names: tuple[str, ...]
    stop: Stop
    block: int
    key: int
    keys: Words
    most: Ints
    goal: Ints
    clock: TokenClock | None = None


class Kept(NamedTuple):
    """A tree, the sources over which it stands, and the span and weights that it was grown for."""

    span: InterpolationSpan
    shape: Shape
    members: Ints
    weights: Floats


class State(NamedTuple):
    """The state of a plan: draws made, surplus of each source, sources that ended, the tree."""

    position: int
    counts: Ints
    residual: Floats
    out: Flags
    kept: Kept | None = None


class Grown(NamedTuple):
    """What is known of a plan so far. Replaced as a whole, so that threads see one or the other."""

    segments: tuple[AnySegment, ...]
    upto: int
    state: State | None


class Timeline:
    """Segments from a state on, as far as they were asked for."""

    def __init__(
        self, rules: Rules, spans: Sequence[InterpolationSpan], state: State, ended: bool = False
    ) -> None:
        self.rules, self.spans, self.begin, self._ended = rules, spans, state, ended
        self._begins = [span.begin for span in spans]
        self._grown = Grown((), state.position, None if ended else state)

    # ------------------------------------------------------------ questions

    @property
    def start(self) -> int:
        return self.begin.position

    def size(self) -> int | None:
        """The position at which the plan ends; None if it does not."""
        if self._endless():
            self._refuse_gap()
            return None
        if (
            len(self.spans) == 1
            and not self._ended
            and self.rules.stop in ("restart", "all_exhausted")
        ):
            active = (self.spans[0].first > 0) & ~self.begin.out
            return self.start + int((self.rules.most - self.begin.counts)[active].sum())
        known = self._known(MAX_POSITION)
        return None if known.upto == MAX_POSITION else known.upto

    def covers(self, position: int) -> bool:
        """Whether there is a draw at a position."""
        return self.start <= position < self._known(position).upto

    def end_within(self, position: int) -> int:
        """The end of the plan, or `position` if that comes first."""
        return min(position, self._known(position).upto)

    def segment_at(self, position: int) -> AnySegment | None:
        """The segment of a position up to the end, the end itself included; None at the end of an
        empty plan."""
        segments = self._known(position).segments
        i = bisect_right(segments, position, key=lambda segment: segment.start)
        return segments[i - 1] if i else None

    def counts(self, positions: Ints) -> Ints:
        """Draws of every source before sorted positions: int64[len(positions), sources]."""
        out = np.empty((len(positions), len(self.rules.names)), np.int64)
        for segment, a, b in self._runs(positions):
            out[a:b] = (
                self.begin.counts
                if segment is None
                else segment.counts(positions[a:b] - segment.start)
            )
        return out

    def walk(self, positions: Ints) -> tuple[Ints, Ints]:
        """The source of every sorted position, and which of its draws it is."""
        runs = self._runs(positions)
        if len(runs) == 1 and runs[0][0] is not None:
            return runs[0][0].walk(positions - runs[0][0].start)
        source, k = np.empty((2, len(positions)), np.int64)
        for segment, a, b in runs:
            assert segment is not None
            source[a:b], k[a:b] = segment.walk(positions[a:b] - segment.start)
        return source, k

    def locate(self, source: Ints, k: Ints) -> Ints:
        """The positions of draws of sources, -1 for those that never come."""
        known = self._grown
        while known.state is not None and bool((known.state.counts[source] <= k).any()):
            known = self._grow(known)
        out, segments = np.full(len(k), -1), known.segments
        if not segments:
            return out
        number = np.count_nonzero([segment.base[source] <= k for segment in segments], axis=0) - 1
        for i in map(int, find_distinct_values(number[number >= 0])):
            segment, end = (
                segments[i],
                segments[i + 1].start if i + 1 < len(segments) else known.upto,
            )
            mine = np.flatnonzero(number == i)
            mine = mine[np.isin(source[mine], segment.members)]
            m = _positions(segment, source[mine], k[mine] - segment.base[source[mine]])
            out[mine] = np.where(
                (m < MAX_POSITION) & (m < end - segment.start), segment.start + m, -1
            )
        return out

    def residuals(self, position: int) -> Floats:
        """What every source was given too much before a position."""
        segment = self.segment_at(position)
        if segment is None:
            return self.begin.residual
        local = position - segment.start
        return segment.residuals(local, segment.counts(np.asarray([local]))[0])

    def _runs(self, positions: Ints) -> list[tuple[AnySegment | None, int, int]]:
        """The segments of sorted positions, and which positions are theirs."""
        if not len(positions):
            return []
        low, high = int(positions[0]), int(positions[-1])
        segments = self._known(high).segments
        i, j = (bisect_right(segments, p, key=lambda segment: segment.start) for p in (low, high))
        if i == j:
            return [(segments[i - 1] if i else None, 0, len(positions))]
        starts = [segment.start for segment in segments[i:j]]
        cuts = [0, *np.searchsorted(positions, starts).tolist(), len(positions)]
        mine = [segments[i - 1] if i else None, *segments[i:j]]
        return [(s, a, b) for s, a, b in zip(mine, cuts, cuts[1:], strict=False) if b > a]

    # ------------------------------------------------------------ growth

    def _known(self, position: int) -> Grown:
        """What is known once a position, or the end before it, has been reached."""
        known = self._grown
        while known.upto <= position and known.state is not None:
            known = self._grow(known)
        return known

    def _grow(self, known: Grown) -> Grown:
        """One segment more. Threads that race here make the same one."""
        self._grown = grown = self._next(known.segments, known.state) if known.state else known
        return grown

    def _next(self, segments: tuple[AnySegment, ...], state: State) -> Grown:
        number = bisect_right(self._begins, state.position) - 1
        span = self.spans[number]
        active = _weighted(span) & ~state.out
        later = self._later(number) & ~state.out
        if not active.any():
            if later.any():
                raise self._gap(state.position, later)
            return Grown(segments, state.position, None)
        segment, kept, stop = self._segment(state, span, active)
        ending = self._ending(segment, active, later & ~active)
        source, last = self._drop(segment, active)
        stop = min(stop, ending, last + 1)
        if stop >= MAX_POSITION:
            return Grown((*segments, segment), MAX_POSITION, None)
        if stop == 0:
            return Grown(segments, state.position, None)
        end, counts = state.position + stop, segment.counts(np.asarray([stop]))[0]
        if stop == ending:
            return Grown((*segments, segment), end, None)
        out = state.out | ((np.arange(len(active)) == source) & (last < stop))
        after = State(end, counts, segment.residuals(stop, counts), out, kept)
        return Grown((*segments, segment), end, after)

    def _refuse_gap(self) -> None:
        """Refuse now what is sure to run out before the sources that start later, though it would
        never end."""
        drawn, left = np.zeros_like(self.begin.out), self.rules.most - self.begin.counts
        for number, (span, after) in enumerate(pairwise(self.spans)):
            drawn |= _weighted(span) & ~self.begin.out & (after.begin > self.start)
            if (self.rules.most[drawn] == MAX_POSITION).any():
                return
            later = (
                self._later(number)
                & ~self.begin.out
                & ~drawn
                & (self.rules.goal > self.begin.counts)
            )
            if (over := self.start + int(left[drawn].sum())) < after.begin and later.any():
                raise self._gap(over, later)

    def _gap(self, position: int, later: Flags) -> ConfigError:
        names = [name for name, waits in zip(self.rules.names, later, strict=True) if waits]
        return ConfigError(
            f"at position {position} all sources with weight are exhausted, and {names} start "
            "only later; start them earlier, or let a source with weight continue "
            "(stop='restart', or a larger max_epochs)"
        )

    def _endless(self) -> bool:
        """Whether it is plain, without working anything out, that the plan has no end."""
        if self._grown.state is None:
            return self._grown.upto == MAX_POSITION
        if self.rules.stop == "first_exhausted":
            opened = _weighted(self.spans[-1]) | self._later(-1)
            return bool((self.rules.goal[opened] == MAX_POSITION).all())
        bound = (
            self.rules.goal if self.rules.stop == "all_exhausted_oversample" else self.rules.most
        )
        return bool((_weighted(self.spans[-1]) & ~self.begin.out & (bound == MAX_POSITION)).any())

    def _segment(
        self, state: State, span: InterpolationSpan, active: Flags
    ) -> tuple[AnySegment, Kept | None, int]:
        """The segment from a state on, and how far its law goes."""
        ahead, clock = state.residual, self.rules.clock
        residual = (
            settle(ahead, active, state.out, span.first + span.last)
            if clock is None
            else np.where(active, ahead, 0)
        )
        position, stop = (
            state.position,
            MAX_POSITION if span.end is None else span.end - state.position,
        )
        law = span.over(active)
        edges, weights = np.asarray([0, MAX_POSITION]), law.first[:, None]
        kept = state.kept
        if clock is None and law.constant and float(np.abs(residual).max()) > _OWED:
            # One segment cannot make up for so much: the next continues with the rest, each twice
            # as long.
            stop = min(stop, max(self.rules.block, 4 * len(active), position - self.start))
            kept = None
        if not law.constant:
            edges, blocks = self._stairs(position, law)
            weights, stop = (
                law.means(edges[:-1] + position, blocks, self.rules.block).T,
                int(edges[-1]),
            )
        if clock is not None:
            members = np.flatnonzero(active)
            mine = weights[members]
            exact = whole_weights(mine[:, 0])[:, None] if law.constant else stair_weights(mine)
            return (
                clocked(position, state.counts, residual, members, exact, edges, clock),
                None,
                stop,
            )
        now = weights.mean(axis=1)
        now /= fsum(now.tolist())
        if kept is None or _strayed(kept, span, active, now):
            members = np.flatnonzero(active)
            kept = Kept(span, grow(whole_weights(now[members]), residual[members]), members, now)
        mine = weights[kept.members]
        exact = whole_weights(mine[:, 0])[:, None] if law.constant else stair_weights(mine)
        names = kept.shape.sums(self.rules.keys[kept.members])[len(kept.members) :]
        keys = mix64(names + derive_tweak_keys(self.rules.key, np.asarray([position])))
        return (
            build(position, state.counts, residual, kept.members, kept.shape, exact, edges, keys),
            kept,
            stop,
        )

    def _stairs(self, position: int, span: InterpolationSpan) -> tuple[Ints, Ints]:
        """The next stairs of a ramp, as local positions, on the grid of blocks; and the blocks that
        each begins.

        A piece ends before the weights or their sum move much: then they move evenly, and a stair
        of n positions is off by an eighth of n times what they move along it.
        """
        assert span.end is not None
        size, nodes, whole = self.rules.block, 2 * len(span.first), span.end - span.begin
        length = max(-(-whole // _PIECES), min(whole, _SHORT * size))
        while True:
            ends = span.means(
                np.asarray([position, min(position + length, span.end)]), np.ones(2, np.int64), 1
            )
            sums = [fsum(row) for row in ends.tolist()]
            moved = np.abs(ends[1] / sums[1] - ends[0] / sums[0])
            if length <= size or (
                fsum(moved.tolist()) <= 2 * _STRAY and max(sums) <= 2 * min(sums)
            ):
                break
            length //= 2
        even = sqrt(4 * _UNEVEN * length / max(float(moved.max()), 1e-12))
        each = max(
            1, int(min(even, length)) // size, -(-whole // (size * max(_STAIRS, _MOST // nodes)))
        )
        many = min(max(1, _CELLS // nodes), _STAIRS, -(-length // (size * each)))
        first = -(-(position + 1 - self.start) // size)
        grid = self.start + (first + each * np.arange(many + 1)) * size
        edges = find_distinct_values(np.minimum(np.concatenate([[position], grid]), span.end))
        return edges - position, -(-np.diff(edges) // size)

    def _drop(self, segment: AnySegment, active: Flags) -> tuple[int, int]:
        """The source that first makes the last draw that it may have, and the local position of
        that."""
        mine = np.flatnonzero(active & (self.rules.most < MAX_POSITION))
        if not len(mine):
            return 0, MAX_POSITION
        i, last = segment.soonest(mine, self.rules.most[mine] - segment.base[mine] - 1)
        return int(mine[i]), last

    def _ending(self, segment: AnySegment, active: Flags, waiting: Flags) -> int:
        """The local position at which the pass ends, `MAX_POSITION` if not by the stop rule."""
        goal = self.rules.goal
        mine = np.flatnonzero(active & (goal < MAX_POSITION))
        if self.rules.stop == "first_exhausted" and len(mine):
            return segment.soonest(mine, np.maximum(goal - segment.base, 0)[mine])[1]
        if self.rules.stop == "all_exhausted_oversample":
            lacking = goal > segment.base
            if (lacking & waiting).any():
                return MAX_POSITION
            mine = np.flatnonzero(active & lacking)
            if not len(mine):
                return 0
            if (goal[mine] < MAX_POSITION).all():
                last = int(_positions(segment, mine, (goal - segment.base - 1)[mine]).max())
                return min(last + 1, MAX_POSITION)
        return MAX_POSITION

    def _later(self, number: int) -> Flags:
        """Which sources have weight in a later span."""
        out = np.zeros(len(self.rules.names), np.bool_)
        for span in self.spans[number + 1 :]:
            out |= _weighted(span)
        return out


def _weighted(span: InterpolationSpan) -> Flags:
    """Which sources have weight somewhere in a span."""
    return (span.first > 0) | (span.last > 0)


def _positions(segment: AnySegment, sources: Ints, j: Ints) -> Ints:
    return segment.locate(np.searchsorted(segment.members, sources), j)


def _strayed(kept: Kept, span: InterpolationSpan, active: Flags, now: Floats) -> bool:
    """Return whether to rebuild a tree: its weights have changed, or it is full of dead leaves."""
    dead = 4 * int(np.count_nonzero(active)) < 3 * len(kept.members)
    ramp = kept.span is not span or not span.constant
    return dead or ramp or fsum(np.abs(kept.weights - now).tolist()) > _STRAY
