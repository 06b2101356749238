"""A mixture from one position on: segments, one after the other, computed when they are needed."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum, sqrt
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from ...errors import ConfigError
from ...schedule import InterpolationSpan
from ...types import MAX_POSITION, Ints, Json
from ..base.integers import find_distinct_values
from ..base.random import Words, derive_tweak_keys, mix64
from .segment import Flags, Segment, build_segment, share_out_surplus
from .split_tree import (
    Floats,
    SplitTree,
    build_split_tree,
    convert_to_integer_weights,
    convert_to_stair_weights,
)
from .token_clock import ClockSegment, TokenClock, build_clock_segment

Stop: TypeAlias = Literal["restart", "first_exhausted", "all_exhausted", "all_exhausted_oversample"]
STOPS: tuple[Stop, ...] = get_args(Stop)
AnySegment: TypeAlias = Segment | ClockSegment

_UNEVEN = 0.02  # draws that a stair of a ramp may be off the ramp,
_STAIRS = 8192  # unless that takes more stairs than this,
_MOST = 1 << 20  # or more than this many nodes times stairs
_PIECES = 16  # a ramp is computed in at least so many pieces,
_SHORT = 128  # but in none of fewer blocks than these,
_CELLS = 1 << 18  # of so many nodes times stairs at most
_LARGE_SURPLUS = 2  # the largest surplus that one segment repays
_UNCACHED = 4  # segments that are computed before all are loaded from a cache
_MOST_CACHED = 1 << 21  # integers of the states before all segments, if they are cached
_MOST_TOGETHER = 1 << 12  # segments computed ahead of the need for them
_CACHE_VERSION = 1  # raise it where segments change
_STRAY = 0.1  # how far weights may move, in sum, before the tree is built again


@dataclass(frozen=True, eq=False)
class Limits:
    """Settings that hold for a whole run; `MAX_POSITION` stands for no limit.

    Attributes:
        most: the draws after which a source drops out.
        goal: the draws of a source before a pass of the mixture ends; for first_exhausted, the
            draws that none may pass.
    """

    names: tuple[str, ...]
    stop: Stop
    block: int
    key: int
    keys: Words
    most: Ints
    goal: Ints
    clock: TokenClock | None = None


class BuiltTree(NamedTuple):
    """A tree, its sources, and the span and weights that it was built for."""

    span: InterpolationSpan
    tree: SplitTree
    members: Ints
    weights: Floats


class State(NamedTuple):
    """The state of a timeline: draws and surplus of each source, the sources that ended, the tree."""

    position: int
    counts: Ints
    surplus: Floats
    ended: Flags
    built: BuiltTree | None = None


class Known(NamedTuple):
    """The states before the segments known so far, which end at position `upto`.

    `state` is the one there; None if the timeline ends. The whole is replaced, so that threads see
    one or the other.
    """

    states: tuple[State, ...]
    upto: int
    state: State | None

    def encode(self) -> Ints:
        """Return the whole as integers, without trees."""
        rows = [
            np.concatenate([[s.position], s.counts, s.surplus.view(np.int64), s.ended])
            for s in self.states
        ]
        return np.concatenate([[self.upto], *rows]).astype(np.int64, copy=False)

    @classmethod
    def decode(cls, integers: Ints, sources: int) -> Known:
        """Return the segments of a timeline that ends, from the integers of `encode`."""
        states = list[State]()
        for row in integers[1:].reshape(-1, 1 + 3 * sources):
            counts, surplus, ended = row[1:].reshape(3, sources)
            states.append(State(int(row[0]), counts, surplus.view(np.float64), ended > 0))
        return cls(tuple(states), int(integers[0]), None)


class Timeline:
    """The segments of a mixture from a state on."""

    def __init__(
        self,
        limits: Limits,
        spans: Sequence[InterpolationSpan],
        begin: State,
        is_over: bool = False,
    ) -> None:
        self.limits, self.spans, self.begin = limits, spans, begin
        self._is_over = is_over
        self._span_begins = [span.begin for span in spans]
        self._known = Known((), begin.position, None if is_over else begin)
        self._segments = dict[int, AnySegment]()  # by position

    @property
    def start(self) -> int:
        """The first position."""
        return self.begin.position

    def size(self) -> int | None:
        """Return the position at which the timeline ends; None if it does not."""
        if self._is_endless():
            self._require_no_gap()
            return None
        ends_with_sources = self.limits.stop in ("restart", "all_exhausted")
        if len(self.spans) == 1 and not self._is_over and ends_with_sources:
            active = (self.spans[0].first > 0) & ~self.begin.ended
            return self.start + int((self.limits.most - self.begin.counts)[active].sum())
        upto = self._extend_to(MAX_POSITION).upto
        return None if upto == MAX_POSITION else upto

    def covers(self, position: int) -> bool:
        """Return whether there is a draw at a position."""
        return self.start <= position < self._extend_to(position).upto

    def end_within(self, position: int) -> int:
        """Return the end of the timeline, or `position` if that comes first."""
        return min(position, self._extend_to(position).upto)

    def segment_at(self, position: int) -> AnySegment | None:
        """Return the segment of a position, or of the end; None at the end of an empty timeline."""
        states = self._extend_to(position).states
        i = bisect_right(states, position, key=lambda state: state.position)
        return self._segment(states[i - 1]) if i else None

    def counts(self, positions: Ints) -> Ints:
        """Return the draws of all sources before sorted positions: int64[len(positions), sources]."""
        out = np.empty((len(positions), len(self.limits.names)), np.int64)
        for segment, a, b in self._split_by_segment(positions):
            if segment is None:
                out[a:b] = self.begin.counts
            else:
                out[a:b] = segment.counts(positions[a:b] - segment.start)
        return out

    def draws(self, positions: Ints) -> tuple[Ints, Ints]:
        """Return the source of every sorted position, and which of its draws it is."""
        parts = self._split_by_segment(positions)
        if len(parts) == 1 and (segment := parts[0][0]) is not None:
            return segment.draws(positions - segment.start)
        source, k = np.empty((2, len(positions)), np.int64)
        for segment, a, b in parts:
            assert segment is not None
            source[a:b], k[a:b] = segment.draws(positions[a:b] - segment.start)
        return source, k

    def locate(self, source: Ints, k: Ints) -> Ints:
        """Return the positions of draws of sources, -1 for those that are never made."""
        known = self._known
        while known.state is not None and bool((known.state.counts[source] <= k).any()):
            known = self._extend(known)
        out = np.full(len(k), -1)
        begun = np.zeros(len(k), np.int64)
        for state in known.states:
            begun += state.counts[source] <= k
        ends = [*(state.position for state in known.states[1:]), known.upto]
        for i in map(int, find_distinct_values(begun[begun > 0] - 1)):
            segment = self._segment(known.states[i])
            mine = np.flatnonzero(begun == i + 1)
            mine = mine[np.isin(source[mine], segment.members)]
            m = _locate(segment, source[mine], k[mine] - segment.base[source[mine]])
            made = (m < MAX_POSITION) & (m < ends[i] - segment.start)
            out[mine] = np.where(made, segment.start + m, -1)
        return out

    def surplus(self, position: int) -> Floats:
        """Return the excess draws, or tokens, of every source before a position."""
        segment = self.segment_at(position)
        if segment is None:
            return self.begin.surplus
        local = position - segment.start
        return segment.surplus_after(local, segment.counts(np.asarray([local]))[0])

    def _split_by_segment(self, positions: Ints) -> list[tuple[AnySegment | None, int, int]]:
        """Return the segments of sorted positions, and which positions are theirs."""
        if not len(positions):
            return []
        low, high = int(positions[0]), int(positions[-1])
        states = self._extend_to(high).states
        i, j = (bisect_right(states, p, key=lambda state: state.position) for p in (low, high))
        first = self._segment(states[i - 1]) if i else None
        if i == j:
            return [(first, 0, len(positions))]
        cuts = np.searchsorted(positions, [state.position for state in states[i:j]]).tolist()
        cuts = [0, *cuts, len(positions)]
        parts = zip([first, *map(self._segment, states[i:j])], cuts, cuts[1:], strict=False)
        return [(segment, a, b) for segment, a, b in parts if b > a]

    # ------------------------------------------------------------ growth

    def _extend_to(self, position: int) -> Known:
        """Compute segments up to a position, or the end before it."""
        known = self._known
        while known.upto <= position and known.state is not None:
            known = self._extend(known)
        return known

    def _extend(self, known: Known) -> Known:
        """Compute one more segment. Threads that race here compute equal ones."""
        assert known.state is not None
        cached = self._load_all() if len(known.states) == _UNCACHED else None
        self._known = extended = cached or self._compute_next(known.states, known.state)
        return extended

    def _load_all(self) -> Known | None:
        """Return all segments from the cache of the clock, or compute and store them.

        None without a cache, or if an error or too many segments come first. Then the cache stores
        no states, so that no process tries again.
        """
        clock, begin, computed = self.limits.clock, self.begin, list[Known]()
        most = min(_MOST_CACHED // (1 + 3 * len(begin.counts)), _MOST_TOGETHER)
        if clock is None or clock.cache is None or begin.position or most <= _UNCACHED:
            return None

        def compute() -> Ints:
            known = Known((), 0, begin)
            try:
                while known.state is not None and len(known.states) < most:
                    known = self._compute_next(known.states, known.state)
            except ConfigError:  # raised again at the position that needs the segment
                return np.zeros(1, np.int64)
            computed[:] = [known]
            return (known if known.state is None else Known((), 0, None)).encode()

        cached = clock.cache(self._describe(clock), compute)
        integers = None if cached is None else cached[: len(cached)]
        if computed or integers is None or len(integers) == 1:
            return computed[0] if computed else None
        return Known.decode(integers, len(begin.counts))

    def _describe(self, token_clock: TokenClock) -> dict[str, Json]:
        """Return everything that the segments follow from, but the draws of the inputs."""
        limits, begin, digest = self.limits, self.begin, hashlib.blake2b(digest_size=16)
        arrays = [limits.keys, limits.most, limits.goal, token_clock.means, token_clock.keys]
        arrays += [begin.counts, begin.surplus, begin.ended]
        spans = list[Json]()
        for span in self.spans:
            arrays += [span.first, span.last]
            ends = span.begin, span.end, span.origin, span.target
            spans.append([repr(ends), span.interpolation])
        for array in arrays:
            digest.update(array.tobytes())
        options: Json = [_CACHE_VERSION, limits.stop, limits.block, limits.key, *limits.names]
        return {"segments": options, "spans": spans, "arrays": digest.hexdigest()}

    def _segment(self, state: State) -> AnySegment:
        """Return the segment after a state."""
        if (segment := self._segments.get(state.position)) is None:
            span = self.spans[bisect_right(self._span_begins, state.position) - 1]
            active = _has_weight(span) & ~state.ended
            segment = self._build_segment(state, span, active)[0]
            self._segments[state.position] = segment
        return segment

    def _compute_next(self, states: tuple[State, ...], state: State) -> Known:
        number = bisect_right(self._span_begins, state.position) - 1
        span = self.spans[number]
        active = _has_weight(span) & ~state.ended
        later = self._have_weight_after(number) & ~state.ended
        if not active.any():
            if later.any():
                raise self._make_gap_error(state.position, later)
            return Known(states, state.position, None)
        segment, built, stop = self._build_segment(state, span, active)
        self._segments[state.position] = segment
        pass_end = self._find_pass_end(segment, active, later & ~active)
        source, last = self._find_last_draw(segment, active, min(stop, pass_end))
        stop = min(stop, pass_end, last + 1)
        if stop >= MAX_POSITION:
            return Known((*states, state), MAX_POSITION, None)
        if stop == 0:
            return Known(states, state.position, None)
        end, counts = state.position + stop, segment.counts(np.asarray([stop]))[0]
        if stop == pass_end:
            return Known((*states, state), end, None)
        ended = state.ended | ((np.arange(len(active)) == source) & (last < stop))
        after = State(end, counts, segment.surplus_after(stop, counts), ended, built)
        return Known((*states, state), end, after)

    def _require_no_gap(self) -> None:
        """Raise `ConfigError` if all sources with weight are sure to end before later ones start."""
        drawn, left = np.zeros_like(self.begin.ended), self.limits.most - self.begin.counts
        for number, (span, after) in enumerate(pairwise(self.spans)):
            drawn |= _has_weight(span) & ~self.begin.ended & (after.begin > self.start)
            if (self.limits.most[drawn] == MAX_POSITION).any():
                return
            later = self._have_weight_after(number) & ~self.begin.ended & ~drawn
            later &= self.limits.goal > self.begin.counts
            if (end := self.start + int(left[drawn].sum())) < after.begin and later.any():
                raise self._make_gap_error(end, later)

    def _make_gap_error(self, position: int, later: Flags) -> ConfigError:
        names = [name for name, waits in zip(self.limits.names, later, strict=True) if waits]
        return ConfigError(
            f"at position {position} all sources with weight are exhausted, and {names} start "
            "only later; start them earlier, or let a source with weight continue "
            "(stop='restart', or a larger max_epochs)"
        )

    def _is_endless(self) -> bool:
        """Return whether the timeline certainly has no end, without computing segments."""
        if self._known.state is None:
            return self._known.upto == MAX_POSITION
        limits = self.limits
        if limits.stop == "first_exhausted":
            return bool((limits.goal[self._have_weight_after(-1)] == MAX_POSITION).all())
        bound = limits.goal if limits.stop == "all_exhausted_oversample" else limits.most
        active = _has_weight(self.spans[-1]) & ~self.begin.ended
        return bool((active & (bound == MAX_POSITION)).any())

    def _build_segment(
        self, state: State, span: InterpolationSpan, active: Flags
    ) -> tuple[AnySegment, BuiltTree | None, int]:
        """Build the segment from a state on; return also its tree and its largest length."""
        position, clock, built = state.position, self.limits.clock, state.built
        stop = MAX_POSITION if span.end is None else span.end - position
        surplus = np.where(active, state.surplus, 0)
        active_span = span.over(active)
        constant = active_span.constant
        if clock is None:
            by_weight = span.first + span.last
            surplus = share_out_surplus(state.surplus, active, state.ended, by_weight)
            if constant and float(np.abs(surplus).max()) > _LARGE_SURPLUS:
                # One segment cannot repay so much: the next continues, each twice as long.
                stop = min(stop, max(self.limits.block, 4 * len(active), position - self.start))
                built = None
        edges, weights = np.asarray([0, MAX_POSITION]), active_span.first[:, None]
        if not constant:
            edges, blocks = self._choose_stairs(position, active_span)
            weights = active_span.means(edges[:-1] + position, blocks, self.limits.block).T
            stop = int(edges[-1])

        def to_integers(weights: Floats) -> Ints:
            if constant:
                return convert_to_integer_weights(weights[:, 0])[:, None]
            return convert_to_stair_weights(weights)

        members = np.flatnonzero(active)
        if clock is not None:
            integers = to_integers(weights[members])
            segment = build_clock_segment(
                position, state.counts, surplus, members, integers, edges, clock
            )
            return segment, None, stop
        mean = weights.mean(axis=1)
        mean /= fsum(mean.tolist())
        if built is None or _is_outdated(built, span, active, mean):
            tree = build_split_tree(convert_to_integer_weights(mean[members]), surplus[members])
            built = BuiltTree(span, tree, members, mean)
        members, tree = built.members, built.tree
        names = tree.sums(self.limits.keys[members])[len(members) :]
        keys = mix64(names + derive_tweak_keys(self.limits.key, np.asarray([position])))
        integers = to_integers(weights[members])
        segment = build_segment(
            position, state.counts, surplus, members, tree, integers, edges, keys
        )
        return segment, built, stop

    def _choose_stairs(self, position: int, span: InterpolationSpan) -> tuple[Ints, Ints]:
        """Return the next stairs of a ramp, as local positions on the grid of blocks; and the
        blocks that each begins.

        A piece ends before the weights or their sum move much: then they move evenly, and a stair
        of n positions is off by an eighth of n times their movement along it.
        """
        assert span.end is not None
        size, nodes, whole = self.limits.block, 2 * len(span.first), span.end - span.begin
        length = max(-(-whole // _PIECES), min(whole, _SHORT * size))
        while True:
            ends = np.asarray([position, min(position + length, span.end)])
            weights = span.means(ends, np.ones(2, np.int64), 1)
            sums = [fsum(row) for row in weights.tolist()]
            moved = np.abs(weights[1] / sums[1] - weights[0] / sums[0])
            is_even = fsum(moved.tolist()) <= 2 * _STRAY and max(sums) <= 2 * min(sums)
            if length <= size or is_even:
                break
            length //= 2
        even = sqrt(4 * _UNEVEN * length / max(float(moved.max()), 1e-12))
        fewest = -(-whole // (size * max(_STAIRS, _MOST // nodes)))
        step = size * max(1, int(min(even, length)) // size, fewest)
        count = min(max(1, _CELLS // nodes), _STAIRS, -(-length // step))
        first = self.start - (self.start - position - 1) // size * size
        grid = first + step * np.arange(count + 1)
        edges = find_distinct_values(np.minimum(np.concatenate([[position], grid]), span.end))
        return edges - position, -(-np.diff(edges) // size)

    def _find_last_draw(self, segment: AnySegment, active: Flags, stop: int) -> tuple[int, int]:
        """Return the source that is first to make its last draw, and the local position of that.

        Only a position before `stop` matters.
        """
        limited = np.flatnonzero(active & (self.limits.most < MAX_POSITION))
        if len(limited) and stop < MAX_POSITION:
            made = segment.counts(np.asarray([stop]))[0]
            limited = limited[made[limited] >= self.limits.most[limited]]
        if not len(limited):
            return 0, MAX_POSITION
        draws = self.limits.most[limited] - segment.base[limited] - 1
        i, last = segment.first_of(limited, draws)
        return int(limited[i]), last

    def _find_pass_end(self, segment: AnySegment, active: Flags, waiting: Flags) -> int:
        """Return the local position at which the pass ends, `MAX_POSITION` if not by its rule."""
        goal, stop = self.limits.goal, self.limits.stop
        if stop == "first_exhausted":
            sources = np.flatnonzero(active & (goal < MAX_POSITION))
            if not len(sources):
                return MAX_POSITION
            return segment.first_of(sources, np.maximum(goal - segment.base, 0)[sources])[1]
        lacking = goal > segment.base
        if stop != "all_exhausted_oversample" or (lacking & waiting).any():
            return MAX_POSITION
        sources = np.flatnonzero(active & lacking)
        if not len(sources):
            return 0
        if (goal[sources] == MAX_POSITION).any():
            return MAX_POSITION
        last = _locate(segment, sources, (goal - segment.base - 1)[sources]).max()
        return min(int(last) + 1, MAX_POSITION)

    def _have_weight_after(self, number: int) -> Flags:
        """Return the sources that have weight after a span."""
        out = np.zeros(len(self.limits.names), np.bool_)
        for span in self.spans[number + 1 :]:
            out |= _has_weight(span)
        return out


def _has_weight(span: InterpolationSpan) -> Flags:
    """Return the sources that have weight somewhere in a span."""
    return (span.first > 0) | (span.last > 0)


def _locate(segment: AnySegment, sources: Ints, j: Ints) -> Ints:
    return segment.locate(np.searchsorted(segment.members, sources), j)


def _is_outdated(built: BuiltTree, span: InterpolationSpan, active: Flags, weights: Floats) -> bool:
    """Return whether to build a new tree: weights have moved, or a quarter of the leaves ended."""
    ended = 4 * int(np.count_nonzero(active)) < 3 * len(built.members)
    moves = built.span is not span or not span.constant
    return ended or moves or fsum(np.abs(built.weights - weights).tolist()) > _STRAY
