"""A stretch of a mixture by the token clock: shares of tokens, to one document, for any lengths.

Draw k of an input comes at (tokens before it + u * its length) / weight, u a hash of the input's
name and k, and the mixture is the draws in the order of these times. The draws before a position
are then those before a time, at which each input has had its share to less than one document. The
time of a position is searched for; the draws after it are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, NoReturn, Protocol, TypeAlias

import numpy as np

from ...errors import StateError
from ...types import MAX_POSITION, Ints, Json, Sizes
from ..base.bounded_dict import BoundedDict
from ..base.integers import find_distinct_values
from ..base.random import GOLDEN_GAMMA, Words, mix64
from .split_tree import Floats

_NEAR = 4096  # draws that are merged faster than searched for
_FEW = 64  # draws of an input examined together
_MOST = 1 << 16  # draws merged together at most
_CACHED_POSITIONS = 64
_EXACT = 1 << 50  # tokens up to which times are rounded by less than one
_TRIES = 12  # guesses by the rate of draws; then bisection

IntegerCache: TypeAlias = Callable[[Mapping[str, Json], Callable[[], Ints]], Sizes | None]


class Meter(Protocol):
    """The tokens of an input, by its draws, which never end."""

    def tokens(self, draw: int, /) -> int:
        """Return the tokens before a draw."""
        ...

    def lengths(self, start: int, stop: int, /) -> Ints:
        """Return the tokens of each draw of a range."""
        ...

    def near(self, token: int, /) -> tuple[int, int]:
        """Return the draw that holds a token, or one not long before it; and the tokens before that
        draw."""
        ...


@dataclass(frozen=True)
class UnknownMeter:
    """The meter of an input that was removed or replaced."""

    name: str

    def tokens(self, *_: int) -> NoReturn:
        raise StateError(
            "shares of tokens count the tokens drawn before this mixture was adopted, and the "
            f"former lengths of {self.name!r} no longer exist; keep this input unchanged, with "
            "weight 0 if the run needs no more of it"
        )

    lengths = near = tokens


@dataclass(frozen=True, eq=False)
class TokenClock:
    """The meters of the inputs of a mixture, in order, their mean lengths and hash keys.

    `cache` returns integers that follow from the draws of the inputs, by a key: from a file, or
    made.
    """

    meters: tuple[Meter, ...]
    means: Floats
    keys: Words
    cache: IntegerCache | None = None


@dataclass(frozen=True, eq=False)
class DueTokens:
    """The tokens that are due of each source at a time.

    `shares` are float64[sources, stairs]; the stairs begin at the times `edges`, in tokens.
    """

    shares: Floats
    edges: Floats

    @cached_property
    def due(self) -> Floats:
        """The tokens due of each source when each stair begins."""
        out = np.zeros_like(self.shares)
        np.cumsum(self.shares[:, :-1] * np.diff(self.edges), axis=1, out=out[:, 1:])
        return out

    def at(self, time: float) -> Floats:
        """Return the tokens due of each source at a time."""
        s = max(int(self.edges.searchsorted(time, side="right")) - 1, 0)
        return self.due[:, s] + (time - self.edges[s]) * self.shares[:, s]

    def times(self, source: Ints, tokens: Ints) -> Floats:
        """Return when so many tokens of sources are due; infinity if never.

        The tokens of each source stand together.
        """
        s = np.zeros(len(source), np.int64)
        if len(self.edges) > 1:
            starts = np.flatnonzero(np.diff(source, prepend=-1)).tolist()
            for a, b in pairwise([*starts, len(source)]):
                s[a:b] = self.due[source[a]].searchsorted(tokens[a:b], side="right")
            s = np.maximum(s - 1, 0)
        shares, out = self.shares[source, s], np.full(len(tokens), np.inf)
        np.divide(tokens - self.due[source, s], shares, out=out, where=shares > 0)
        return np.minimum(out + self.edges[s], np.append(self.edges[1:], np.inf)[s])


class MemberCounts(NamedTuple):
    """The draws of each member before a position, and their tokens."""

    draws: Ints
    tokens: Ints


@dataclass(frozen=True, eq=False)
class ClockSegment:
    """The draws of `members` from position `start` on, in the order of their times.

    `base` are the draws of all sources before it, `surplus` their excess tokens.
    """

    start: int
    base: Ints
    surplus: Floats
    members: Ints
    weights: Ints
    due: DueTokens
    keys: Words
    meters: tuple[Meter, ...]
    means: Floats

    # ------------------------------------------------------------ times

    @cached_property
    def _excess(self) -> Ints:
        return np.rint(self.surplus[self.members]).astype(np.int64)

    @cached_property
    def _base(self) -> MemberCounts:
        """The progress before the segment."""
        draws = self.base[self.members]
        pairs = zip(self.meters, draws.tolist(), strict=True)
        return MemberCounts(
            draws, np.asarray([k and meter.tokens(k) for meter, k in pairs], np.int64)
        )

    def _times(self, member: Ints, draw: Ints, before: Ints, lengths: Ints) -> Floats:
        """Return the times of draws of members, given their lengths and the tokens before them.

        The draws of each member stand together.
        """
        words = mix64(draw.view(np.uint64) * np.uint64(GOLDEN_GAMMA) + self.keys[member])
        delay = (words >> np.uint64(33)).view(np.int64) * lengths >> 31
        shift = self._excess - self._base.tokens
        return self.due.times(member, before + delay + shift[member])

    def _times_of_runs(self, members: Ints, begun: MemberCounts, runs: Sequence[Ints]) -> Floats:
        """Return the times of the next draws of members, which have these lengths."""
        counts = np.asarray(list(map(len, runs)), np.int64)
        lengths: Ints = np.concatenate(runs)
        starts = np.cumsum(counts) - counts
        before = np.cumsum(lengths) - lengths
        before += np.repeat(begun.tokens - before[np.minimum(starts, len(before) - 1)], counts)
        draw = np.arange(len(lengths)) + np.repeat(begun.draws - starts, counts)
        return self._times(np.repeat(members, counts), draw, before, lengths)

    def _next_times(self, members: Ints, begun: MemberCounts) -> Floats:
        """Return the time of the next draw of each member; infinity if it makes no more."""
        out = np.full(len(members), np.inf)
        some = np.flatnonzero(begun.draws < MAX_POSITION)
        pairs = _pair(members[some], begun.draws[some])
        runs: list[Ints] = [self.meters[i].lengths(draw, draw + 1) for i, draw in pairs]
        if runs:
            out[some] = self._times(
                members[some], begun.draws[some], begun.tokens[some], np.concatenate(runs)
            )
        return out

    def _times_of(self, members: Ints, draws: Ints) -> Floats:
        """Return the time of a draw of each member."""
        tokens = [
            0 if draw >= MAX_POSITION else self.meters[i].tokens(draw)
            for i, draw in _pair(members, draws)
        ]
        return self._next_times(members, MemberCounts(draws, np.asarray(tokens, np.int64)))

    def _next_time(self, m: int) -> float:
        """Return the time of the draw at a local position."""
        return float(self._next_times(np.arange(len(self.members)), self._progress(m)).min())

    def _draws_before(self, time: float, inclusive: int = 0) -> MemberCounts:
        """Return the draws of all members before a time, and their tokens.

        Those of the first `inclusive` members at that time count too.
        """
        base, first = self._base.draws, self._base.tokens
        due = np.maximum(self.due.at(time), -MAX_POSITION).tolist()
        begun, runs = list[tuple[int, int]](), list[Ints]()
        for i, meter in enumerate(self.meters):
            token = int(first[i]) - int(self._excess[i]) + int(due[i]) - 2  # rounding is smaller
            draw, tokens = (0, 0) if token <= first[i] else meter.near(token)
            if draw <= base[i]:
                draw, tokens = int(base[i]), int(first[i])
            begun.append((draw, tokens))
            runs.append(meter.lengths(draw, draw + _FEW))
        found = MemberCounts(*np.asarray(begun, np.int64).T)
        times = self._times_of_runs(np.arange(len(runs)), found, runs).reshape(-1, _FEW)
        places = [
            int(row.searchsorted(time, side="right" if i < inclusive else "left"))
            for i, row in enumerate(times)
        ]
        more = [int(run[:place].sum()) for run, place in zip(runs, places, strict=True)]
        out = MemberCounts(found.draws + places, found.tokens + more)
        for i, place in enumerate(places):
            rounded = place == 0 and found.tokens[i] > _EXACT and found.draws[i] > base[i]
            if place == _FEW or rounded:
                out.draws[i], out.tokens[i] = self._search_member(i, time, begun[i], i < inclusive)
        return out

    def _search_member(
        self, i: int, time: float, begin: tuple[int, int], inclusive: bool
    ) -> tuple[int, int]:
        """Return the draws of a member before a time, and their tokens, from a draw not far off."""
        meter, (draw, tokens), base = self.meters[i], begin, int(self._base.draws[i])
        side, count, certain = "right" if inclusive else "left", _FEW, base
        while True:
            run = meter.lengths(draw, draw + count)
            begun = MemberCounts(np.asarray([draw]), np.asarray([tokens]))
            times = self._times_of_runs(np.asarray([i]), begun, [run])
            place = int(times.searchsorted(time, side=side))
            if place == count:
                draw = draw + count
                tokens = tokens + int(run.sum())
                count = min(2 * count, _MOST)
                certain = draw
            elif place == 0 and draw > certain and tokens > _EXACT:  # a time is rounded: go back
                draw = max(certain, draw - count)
                tokens = meter.tokens(draw)
            else:
                return draw + place, tokens + int(run[:place].sum())

    # ------------------------------------------------------------ forwards

    @cached_property
    def _known(self) -> BoundedDict[int, MemberCounts]:
        """The progress before some local positions."""
        return BoundedDict(_CACHED_POSITIONS)

    def _progress(self, m: int) -> MemberCounts:
        """Return the progress before a local position."""
        if m == 0:
            return self._base
        if (known := self._known.get(m)) is not None:
            return known
        near = max((position for position in list(self._known) if position < m), default=0)
        progress = self._known.get(near)
        if m - near > _NEAR or progress is None:
            near, progress = (0, self._base) if m <= _NEAR else self._search(m)
        while near < m:
            step = min(m - near, _MOST)
            near, progress = near + step, self._merge(progress, step)[2]
        self._known[m] = progress
        return progress

    def _search(self, m: int) -> tuple[int, MemberCounts]:
        """Return a position not long before a local one, and the progress there.

        It searches the time at which so many draws are made.
        """
        best, low, high = (0, self._base), -np.inf, np.inf
        target = self._estimate_time(m - _NEAR // 4)
        time = target
        for tries in range(200):
            progress = self._draws_before(time)
            position = int((progress.draws - self._base.draws).sum())
            if position > m:
                high = time
            else:
                best, low = (position, progress), time
                if m - position <= _NEAR:
                    break
            if tries < _TRIES:
                time += target - self._estimate_time(position)
            if not low < time < high or tries >= _TRIES:
                time = _choose_between(low, high, time)
            if not low < time < high:
                break
        return best

    def _estimate_time(self, m: int) -> float:
        """Return about when so many draws are made, by mean lengths."""
        edges, draws = self.due.edges, (self.due.due / self.means[:, None]).sum(axis=0)
        s = max(int(np.searchsorted(draws, m, side="right")) - 1, 0)
        rate = float((self.due.shares[:, s] / self.means).sum())
        return float(edges[s] + (m - draws[s]) / max(rate, 1e-300))

    def _merge(self, progress: MemberCounts, count: int) -> tuple[Ints, Ints, MemberCounts]:
        """Merge the next draws: return their members, their numbers, and the progress after them."""
        n = len(self.members)
        times, lengths = [np.zeros(0)] * n, [np.zeros(0, np.int64)] * n
        needed = self._estimate_draws(progress, count)
        while True:
            members = np.flatnonzero(needed)
            examined = np.asarray([len(lengths[i]) for i in members.tolist()], np.int64)
            tokens = [int(lengths[i].sum()) for i in members.tolist()]
            begun = MemberCounts(
                progress.draws[members] + examined, progress.tokens[members] + tokens
            )
            ends = (begun.draws + needed[members]).tolist()
            spans = zip(members.tolist(), begun.draws.tolist(), ends, strict=True)
            runs: list[Ints] = [self.meters[i].lengths(a, b) for i, a, b in spans]
            more = self._times_of_runs(members, begun, runs)
            cuts = np.cumsum(list(map(len, runs)))[:-1]
            for i, run, time in zip(members.tolist(), runs, np.split(more, cuts), strict=True):
                lengths[i] = np.concatenate((lengths[i], run)) if len(lengths[i]) else run
                times[i] = np.concatenate((times[i], time)) if len(times[i]) else time
            last = np.asarray([of_member[-1] for of_member in times])
            certain = float(last.min())  # no draw that was not examined comes before
            counts = [int(of_member.searchsorted(certain)) for of_member in times]
            if sum(counts) >= count:
                break
            behind = last <= max(certain, float(np.sort(last)[n // 4]))
            needed = np.where(behind, np.maximum(np.asarray(list(map(len, times))) // 2, 8), 0)
        candidates = np.concatenate([t[:c] for t, c in zip(times, counts, strict=True)])
        order = np.argsort(candidates, kind="stable")[:count]
        member: Ints = np.repeat(np.arange(n), counts)[order]
        starts = np.cumsum(np.asarray(counts, np.int64)) - counts
        draw: Ints = order - starts[member] + progress.draws[member]
        drawn = np.bincount(member, minlength=n)
        pairs = zip(lengths, drawn.tolist(), strict=True)
        tokens = [int(of_member[:c].sum()) for of_member, c in pairs]
        return member, draw, MemberCounts(progress.draws + drawn, progress.tokens + tokens)

    def _estimate_draws(self, progress: MemberCounts, count: int) -> Ints:
        """Return how many draws of each member to examine for so many of all."""
        position = int((progress.draws - self._base.draws).sum())
        begin, end = self._estimate_time(position), self._estimate_time(position + count)
        due = self.due.at(end) - self.due.at(begin)
        return (np.minimum(due / self.means, count) * 1.1 + 12).astype(np.int64)

    def _run(self, low: int, high: int) -> tuple[Ints, Ints]:
        """Return the members and numbers of all draws between two local positions."""
        if high == low:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        member, draw, self._known[high] = self._merge(self._progress(low), high - low)
        return member, draw

    def stairs(self, m: Ints) -> Ints:
        """Return the stair of each local position."""
        if len(self.due.edges) == 1:
            return np.zeros(len(m), np.int64)
        times = np.asarray([self._next_time(x) for x in m.tolist()])
        return np.searchsorted(self.due.edges[1:], times, side="right")

    def counts(self, m: Ints) -> Ints:
        """Return the draws of all sources before sorted local positions: int64[len(m), sources]."""
        out = np.repeat(self.base[None], len(m), axis=0)
        if len(m) > 4 and int(m[-1] - m[0]) <= _MOST:
            low = int(m[0])
            member, _ = self._run(low, int(m[-1]))
            begin = self._progress(low).draws
            for i in range(len(self.members)):
                drawn = np.searchsorted(np.flatnonzero(member == i), m - low)
                out[:, self.members[i]] = begin[i] + drawn
            return out
        for row, x in zip(out, m.tolist(), strict=True):
            row[self.members] = self._progress(x).draws
        return out

    def draws(self, m: Ints) -> tuple[Ints, Ints]:
        """Return the source of each sorted local position, and which of its draws it is."""
        source, k, a = np.empty_like(m), np.empty_like(m), 0
        while a < len(m):
            low = int(m[a])
            b = int(np.searchsorted(m, low + _MOST))
            gaps = np.flatnonzero(np.diff(m[a:b]) > _NEAR)
            b = a + int(gaps[0]) + 1 if len(gaps) else b
            member, draw = self._run(low, int(m[b - 1]) + 1)
            source[a:b], k[a:b] = self.members[member[m[a:b] - low]], draw[m[a:b] - low]
            a = b
        return source, k

    # ------------------------------------------------------------ backwards

    def locate(self, leaf: Ints, j: Ints) -> Ints:
        """Return the local position of the `j`-th draws of members in the segment.

        `MAX_POSITION` for draws that are never made.
        """
        out = np.empty(len(leaf), np.int64)
        for i in map(int, find_distinct_values(leaf)):
            mine = np.flatnonzero(leaf == i)
            mine = mine[np.argsort(j[mine], kind="stable")]
            self._locate_sorted(i, j[mine], mine, out)
        return out

    def first_of(self, sources: Ints, j: Ints) -> tuple[int, int]:
        """Return the index of the source whose `j`-th draw in the segment is first of all, and the
        local position of that draw.
        """
        members = np.searchsorted(self.members, sources)
        # At equal times the first member comes first, as draws are merged.
        i = int(np.argmin(self._times_of(members, self.base[sources] + j)))
        return i, self._locate_one(int(members[i]), int(j[i]))

    def _locate_sorted(self, i: int, j: Ints, index: Ints, out: Ints) -> None:
        """Locate sorted draws of one member: close ones are merged, others searched."""
        if not len(j):
            return
        first = self._locate_one(i, int(j[0]))
        last = self._locate_one(i, int(j[-1])) if len(j) > 1 else first
        out[index[0]], out[index[-1]] = first, last
        if len(j) <= 2:
            return
        if last < MAX_POSITION and last - first <= min(64 * len(j), _MOST):
            member, draw = self._run(first, last + 1)
            places = np.flatnonzero(member == i)
            numbers = j + int(self._base.draws[i])
            out[index] = first + places[np.searchsorted(draw[places], numbers)]
            return
        half = (len(j) - 1) // 2
        for part in (slice(1, half + 1), slice(half + 1, -1)):
            self._locate_sorted(i, j[part], index[part], out)

    def _locate_one(self, i: int, j: int) -> int:
        time = float(self._times_of(np.asarray([i]), self._base.draws[[i]] + j)[0])
        if not np.isfinite(time):
            return MAX_POSITION
        made = self._draws_before(time, inclusive=i).draws - self._base.draws
        made[i] = j
        return min(sum(made.tolist()), MAX_POSITION)

    def surplus_after(self, length: int, counts: Ints) -> Floats:
        """Return the excess tokens of each source after `length` positions."""
        progress, time = self._progress(length), self._next_time(length)
        out = self.surplus.copy()
        if np.isfinite(time):
            drawn = progress.tokens - self._base.tokens
            out[self.members] = self._excess + drawn - self.due.at(time)
        return out


def _pair(members: Ints, draws: Ints) -> list[tuple[int, int]]:
    return list(zip(members.tolist(), draws.tolist(), strict=True))


def _choose_between(low: float, high: float, guess: float) -> float:
    """Return the middle of two bounds; a point far beyond the only finite one."""
    if np.isfinite(low) and np.isfinite(high):
        return low + (high - low) / 2
    if np.isfinite(low):
        return 2 * abs(low) + 1
    return high - abs(high) - 1 if np.isfinite(high) else guess


def build_clock_segment(
    start: int,
    base: Ints,
    surplus: Floats,
    members: Ints,
    weights: Ints,
    edges: Ints,
    clock: TokenClock,
) -> ClockSegment:
    """Build a segment with stairs between the local positions `edges`.

    `weights` are int64[members, stairs].
    """
    means = clock.means[members]
    shares = weights / weights.sum(axis=0)
    tokens_of_draw = 1 / (shares / means[:, None]).sum(axis=0)
    lengths = np.diff(edges)[:-1] * tokens_of_draw[:-1]
    due = DueTokens(shares, np.concatenate([np.zeros(1), np.cumsum(lengths)]))
    meters = tuple(clock.meters[int(i)] for i in members)
    return ClockSegment(
        start, base, surplus, members, weights, due, clock.keys[members], meters, means
    )
