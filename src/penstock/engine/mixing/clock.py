"""A stretch of a mixture by the clock of tokens: shares of tokens, to one document, whatever the
lengths.

Draw k of an input comes at (tokens before it + u * its length) / weight, u a hash of the input's
name and k, and the mixture is the draws in the order of these times. What lies before a position is
then a time: at any time each input has given its share, to less than one document. Where a position
is, is searched for; what follows it, merged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...types import MAX_POSITION, Ints
from ..base.bounded_dict import BoundedDict
from ..base.integers import find_distinct_values
from ..base.random import GOLDEN_GAMMA, Words, mix64
from .law import Law, Meter, TokenClock
from .shape import Floats

_NEAR = 4096  # draws that are sooner merged than searched for
_FEW = 64  # draws of an input looked at together
_MOST = 1 << 16  # draws merged together at most
_CACHED_POSITIONS = 64
_EXACT = 1 << 50  # tokens up to which times are rounded by less than one
_TRIES = 12  # guesses by how fast draws come; then halving


class Reached(NamedTuple):
    """Before a position: the draws made of each member, and the tokens of those."""

    draws: Ints
    tokens: Ints


@dataclass(frozen=True, eq=False)
class Clocked:
    """Counts `base` of all sources at `start`, and what each was given too much; `members` are
    drawn from on."""

    start: int
    base: Ints
    residual: Floats
    members: Ints
    weights: Ints
    edges: Ints
    law: Law
    keys: Words
    meters: tuple[Meter, ...]
    means: Floats

    # ------------------------------------------------------------ times

    @cached_property
    def _owed(self) -> Ints:
        return np.rint(self.residual[self.members]).astype(np.int64)

    @cached_property
    def _first(self) -> Ints:
        """The tokens of each member before the segment."""
        draws = self.base[self.members].tolist()
        return np.asarray(
            [m.tokens(k) if k else 0 for m, k in zip(self.meters, draws, strict=True)], np.int64
        )

    def _times(self, i: int, draw: int, tokens: int, lengths: Ints) -> Floats:
        """When draws come of which the first and the tokens before it are known."""
        words = (
            np.arange(draw, draw + len(lengths)).view(np.uint64) * np.uint64(GOLDEN_GAMMA)
            + self.keys[i]
        )
        late = (mix64(words) >> np.uint64(33)).view(np.int64) * lengths >> 31
        due = (
            np.cumsum(lengths)
            - lengths
            + late
            + (tokens - int(self._first[i]) + int(self._owed[i]))
        )
        return self.law.times(i, due)

    def _upto(self, i: int, time: float, with_it: bool) -> tuple[int, int]:
        """How many draws of a member come before a time, or at it; their tokens."""
        base, first, meter = int(self.base[self.members[i]]), int(self._first[i]), self.meters[i]
        token = (
            first - int(self._owed[i]) + int(max(self.law.at(i, time), -MAX_POSITION)) - 2
        )  # what is rounded lies within
        draw, tokens = (base, first) if token <= first else meter.near(token)
        if draw <= base:
            draw, tokens = base, first
        side, many, sure = "right" if with_it else "left", _FEW, base
        while True:
            lengths = meter.lengths(draw, draw + many)
            place = int(np.searchsorted(self._times(i, draw, tokens, lengths), time, side=side))
            if place == many:
                draw, tokens, many = draw + many, tokens + int(lengths.sum()), min(2 * many, _MOST)
                sure = draw
            elif (
                place == 0 and draw > sure and token > _EXACT
            ):  # a time is rounded: a little earlier
                draw = max(sure, draw - many)
                tokens = meter.tokens(draw)
            else:
                return draw + place, tokens + int(lengths[:place].sum())

    def _before(self, time: float) -> Reached:
        """The draws before a time."""
        found = [self._upto(i, time, False) for i in range(len(self.members))]
        return Reached(*np.asarray(found, np.int64).T)

    # ------------------------------------------------------------ forwards

    @cached_property
    def _begin(self) -> Reached:
        return Reached(self.base[self.members], self._first)

    @cached_property
    def _reached(self) -> BoundedDict[int, Reached]:
        """The draws before some local positions."""
        return BoundedDict(_CACHED_POSITIONS)

    def _at(self, m: int) -> Reached:
        """What was drawn before a local position."""
        if m == 0:
            return self._begin
        if (found := self._reached.get(m)) is not None:
            return found
        near = max((position for position in list(self._reached) if position < m), default=0)
        place = self._reached.get(near)
        if m - near > _NEAR or place is None:
            near, place = (0, self._begin) if m <= _NEAR else self._searched(m)
        while near < m:
            step = min(m - near, _MOST)
            near, place = near + step, self._merged(place, step)[2]
        self._reached[m] = place
        return place

    def _searched(self, m: int) -> tuple[int, Reached]:
        """A position not long before a local one, by the time at which so many draws are made."""
        low, high, time = (0, self._begin, -np.inf), np.inf, self._about(m - _NEAR // 4)
        for tries in range(200):
            found = self._before(time)
            many = int((found.draws - self._begin.draws).sum())
            if many > m:
                high = time
            else:
                low = (many, found, time)
                if m - many <= _NEAR:
                    break
            if tries < _TRIES:
                time += self._about(m - _NEAR // 4) - self._about(many)
            if not low[2] < time < high or tries >= _TRIES:
                time = _between(low[2], high, time)
            if not low[2] < time < high:
                break
        return low[:2]

    def _about(self, m: int) -> float:
        """When so many draws will be made, about."""
        edges, due = self.law.edges, self.law.due
        made = (due / self.means[:, None]).sum(axis=0)
        s = max(int(np.searchsorted(made, m, side="right")) - 1, 0)
        return float(
            edges[s]
            + (m - made[s]) / max(float((self.law.shares[:, s] / self.means).sum()), 1e-300)
        )

    def _merged(self, place: Reached, many: int) -> tuple[Ints, Ints, Reached]:
        """The next draws from a place on: the members, which of their draws, and the place after
        them."""
        n = len(self.members)
        times, sizes = [np.zeros(0)] * n, [np.zeros(0, np.int64)] * n
        need = self._expected(place, many)
        while True:
            for i in np.flatnonzero(need).tolist():
                begin = int(place.draws[i]) + len(sizes[i])
                more = self.meters[i].lengths(begin, begin + int(need[i]))
                new = self._times(i, begin, int(place.tokens[i] + sizes[i].sum()), more)
                times[i], sizes[i] = np.append(times[i], new), np.append(sizes[i], more)
            last = np.asarray([each[-1] for each in times])
            sure = float(last.min())  # nothing that was not looked at comes before
            there = [int(np.searchsorted(each, sure)) for each in times]
            if sum(there) >= many:
                break
            behind = last <= max(sure, float(np.sort(last)[n // 4]))
            need = np.where(behind, np.maximum(np.asarray(list(map(len, times))) // 2, 8), 0)
        member = np.repeat(np.arange(n), there)
        order = np.argsort(
            np.concatenate([t[:c] for t, c in zip(times, there, strict=True)]), kind="stable"
        )[:many]
        draw = np.concatenate([np.arange(c) for c in there])[order] + place.draws[member[order]]
        member = member[order]
        given = np.bincount(member, minlength=n)
        tokens = np.asarray(
            [each[:c].sum() for each, c in zip(sizes, given.tolist(), strict=True)], np.int64
        )
        return member, draw, Reached(place.draws + given, place.tokens + tokens)

    def _expected(self, place: Reached, many: int) -> Ints:
        """How many draws of each member to look at for so many of all."""
        made = int((place.draws - self._begin.draws).sum())
        begin, end = self._about(made), self._about(made + many)
        due = np.asarray(
            [self.law.at(i, end) - self.law.at(i, begin) for i in range(len(self.members))]
        )
        return (np.minimum(due / self.means, many) * 1.1 + 12).astype(np.int64)

    def rows(self, m: Ints) -> Ints:
        """The stair of each local position."""
        if len(self.law.edges) == 1:
            return np.zeros(len(m), np.int64)
        return np.asarray(
            [np.searchsorted(self.law.edges[1:], self._time(int(x)), side="right") for x in m],
            np.int64,
        )

    def _time(self, m: int) -> float:
        """When the draw at a local position comes."""
        place = self._at(m)
        each = zip(place.draws.tolist(), place.tokens.tolist(), strict=True)
        return min(
            float(self._times(i, k, t, self.meters[i].lengths(k, k + 1))[0])
            for i, (k, t) in enumerate(each)
        )

    def counts(self, m: Ints) -> Ints:
        """Draws of all sources before sorted local positions: int64[len(m), sources]."""
        out = np.repeat(self.base[None], len(m), axis=0)
        if len(m) > 4 and int(m[-1] - m[0]) <= _MOST:
            low = int(m[0])
            member, _ = self._walked(low, int(m[-1]))
            begin = self._at(low).draws
            for i in range(len(self.members)):
                out[:, self.members[i]] = begin[i] + np.searchsorted(
                    np.flatnonzero(member == i), m - low
                )
            return out
        for row, x in zip(out, m.tolist(), strict=True):
            row[self.members] = self._at(x).draws
        return out

    def walk(self, m: Ints) -> tuple[Ints, Ints]:
        """The source of each sorted local position, and which of its draws it is."""
        source, k, a = np.empty_like(m), np.empty_like(m), 0
        while a < len(m):
            low = int(m[a])
            b = int(np.searchsorted(m, low + _MOST))
            gaps = np.flatnonzero(np.diff(m[a:b]) > _NEAR)
            b = a + int(gaps[0]) + 1 if len(gaps) else b
            member, draw = self._walked(low, int(m[b - 1]) + 1)
            source[a:b], k[a:b] = self.members[member[m[a:b] - low]], draw[m[a:b] - low]
            a = b
        return source, k

    def _walked(self, low: int, high: int) -> tuple[Ints, Ints]:
        """All draws between two local positions."""
        place = self._at(low)
        if high == low:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        member, draw, after = self._merged(place, high - low)
        self._reached[high] = after
        return member, draw

    # ------------------------------------------------------------ backwards

    def locate(self, leaf: Ints, j: Ints) -> Ints:
        """The local position of members' `j`-th draws in the segment; `MAX_POSITION` if never."""
        out = np.empty(len(leaf), np.int64)
        for i in map(int, find_distinct_values(leaf)):
            mine = np.flatnonzero(leaf == i)
            mine = mine[np.argsort(j[mine], kind="stable")]
            self._located(i, j[mine], mine, out)
        return out

    def soonest(self, sources: Ints, j: Ints) -> tuple[int, int]:
        """Return which of the `j`-th draws of some sources comes first in the segment, and its
        local position.
        """
        members = np.searchsorted(self.members, sources).tolist()
        draws = (self.base[sources] + j).tolist()
        # Of equal times that of the first member is first, as draws are merged.
        i = int(
            np.argmin(
                [self._when(member, draw) for member, draw in zip(members, draws, strict=True)]
            )
        )
        return i, self._one(members[i], int(j[i]))

    def _located(self, i: int, j: Ints, where: Ints, out: Ints) -> None:
        """Find positions of sorted draws of one member: close ones are merged, others searched."""
        first, last = self._one(i, int(j[0])), self._one(i, int(j[-1])) if len(j) > 1 else 0
        out[where[0]], out[where[-1]] = first, last if len(j) > 1 else first
        if len(j) <= 2:
            return
        if last < MAX_POSITION and last - first <= min(64 * len(j), _MOST):
            member, draw = self._walked(first, last + 1)
            places = np.flatnonzero(member == i)
            out[where] = (
                first + places[np.searchsorted(draw[places], j + int(self.base[self.members[i]]))]
            )
            return
        half = (len(j) - 1) // 2
        self._located(i, j[1 : half + 1], where[1 : half + 1], out)
        if half + 1 < len(j) - 1:
            self._located(i, j[half + 1 : -1], where[half + 1 : -1], out)

    def _one(self, i: int, j: int) -> int:
        draw = int(self.base[self.members[i]]) + j
        if draw >= MAX_POSITION:
            return MAX_POSITION
        time = self._when(i, draw)
        if not np.isfinite(time):
            return MAX_POSITION
        base, found = self.base[self.members].tolist(), j
        for other in range(len(self.members)):
            if other != i:
                found += self._upto(other, time, other < i)[0] - base[other]
        return min(found, MAX_POSITION)

    def _when(self, i: int, draw: int) -> float:
        """When a draw of a member comes."""
        if draw >= MAX_POSITION:
            return np.inf
        meter = self.meters[i]
        return float(self._times(i, draw, meter.tokens(draw), meter.lengths(draw, draw + 1))[0])

    # ------------------------------------------------------------ accounts

    def residuals(self, length: int, counts: Ints) -> Floats:
        """The tokens that each source has too much after `length` positions."""
        place, time = self._at(length), self._time(length)
        out = self.residual.copy()
        if np.isfinite(time):
            due = np.asarray([self.law.at(i, time) for i in range(len(self.members))])
            out[self.members] = self._owed + (place.tokens - self._first) - due
        return out


def _between(low: float, high: float, guess: float) -> float:
    if np.isfinite(low) and np.isfinite(high):
        return low + (high - low) / 2
    return (
        2 * abs(low) + 1
        if np.isfinite(low)
        else high - abs(high) - 1
        if np.isfinite(high)
        else guess
    )


def clocked(
    start: int,
    base: Ints,
    residual: Floats,
    members: Ints,
    weights: Ints,
    edges: Ints,
    clock: TokenClock,
) -> Clocked:
    """A segment with stairs between the local positions `edges`; `weights` int64[members,
    stairs]."""
    means = clock.means[members]
    shares = weights / weights.sum(axis=0)
    each = 1 / (shares / means[:, None]).sum(axis=0)  # tokens of a draw
    times = np.concatenate([np.zeros(1), np.cumsum(np.diff(edges)[:-1] * each[:-1])])
    meters = tuple(clock.meters[int(i)] for i in members)
    law = Law(shares, times)
    return Clocked(
        start, base, residual, members, weights, edges, law, clock.keys[members], meters, means
    )
