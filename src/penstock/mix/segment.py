"""A stretch of a mixture under one law of weights: positions to draws and back, by arithmetic.

Every inner node of the tree sends its m-th element left when `floor((share*m + offset) / over)` steps up there. The
offset starts at a half, less what the left side was given too much so far: a segment repairs what others left over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..types import Ints
from .shape import WHOLE, Floats, Shape

FAR = 1 << 60
"""A draw that never comes, as far as this segment knows."""

_SLACK = 0.25  # what even those may fall behind that have most to get, or one of many would stop all others
_WINDOW = 1 << 14  # positions that are walked relative to their first one: products with a share stay below 2^62


class Tables(NamedTuple):
    """One column per stair, one row per inner node (`first`: per node, and one column more).

    In stair `s` a node that has had `m` elements sent `lead + floor((share*(m - first) + rest) / over)` of them left,
    or none where that is negative: a side that was given too much waits.
    """

    share: Ints
    lead: Ints
    rest: Ints
    first: Ints


@dataclass(frozen=True, eq=False)
class Segment:
    """Counts `base` and residuals of all sources at `start`, and a tree over `members` from there on."""

    start: int
    base: Ints
    residual: Floats
    members: Ints
    shape: Shape
    children: Ints
    over: Ints
    weights: Ints
    edges: Ints
    tables: Tables

    # ------------------------------------------------------------ forwards

    def rows(self, m: Ints) -> Ints:
        """The stair of each local position."""
        return np.searchsorted(self.edges[1:-1], m, side="right")

    def nodes_at(self, m: Ints) -> tuple[Ints, Ints, Ints]:
        """How many elements each node had before local positions, int64[nodes, len(m)]; its split, whole and rest."""
        n, row = self.shape.leaves, self.rows(m) if len(self.edges) > 2 else slice(0, 1)
        share, lead, rest, first = (table[:, row] for table in self.tables)
        out = np.empty((2 * n - 1, len(m)), np.int64)
        gone, left_over = np.empty((2, n - 1, len(m)), np.int64)
        out[-1] = m
        for a, b in reversed(self.shape.rounds):
            above, over = out[n + a : n + b], self.over[a:b, None]
            whole, part = muldiv(share[a:b], above - first[n + a : n + b], over)
            part += rest[a:b]
            carry = part >= over
            gone[a:b], left_over[a:b] = whole + lead[a:b] + carry, part - over * carry
            left = np.maximum(gone[a:b], 0)
            out[self.children[a:b, 1]], out[self.children[a:b, 0]] = left, above - left
        return out, gone, left_over

    def counts(self, m: Ints) -> Ints:
        """Draws of all sources before local positions, those before the segment included: int64[len(m), sources]."""
        out = np.repeat(self.base[None], len(m), axis=0)
        out[:, self.members] += self.nodes_at(m)[0][: self.shape.leaves].T
        return out

    def walk(self, m: Ints) -> tuple[Ints, Ints]:
        """The source of each local position, and which of its draws it is."""
        if m.size == 0:
            return m, m
        low, high = int(m.min()), int(m.max())
        ends = self.rows(np.asarray([low, high]))
        if high - low < _WINDOW and ends[0] == ends[1] and len(m) > 16:
            base, gone, rest = (table[:, 0] for table in self.nodes_at(np.asarray([low])))
            leaf, k = self._near(m - low, self.tables.share[:, ends[0]], np.minimum(gone, 0), rest)
            k += base[leaf]
        else:
            leaf, k = self._anywhere(m)
        source = self.members[leaf]
        return source, k + self.base[source]

    def _near(self, m: Ints, share: Ints, behind: Ints, rest: Ints) -> tuple[Ints, Ints]:
        """Down the tree from one position on, which all nodes know their place at."""
        n, over, children = self.shape.leaves, self.over, self.children.reshape(-1)
        waits = bool(behind.any())
        descent = _Descent(m, 2 * n - 2)
        while descent.drop(n):
            m = descent.m
            at = descent.node - n
            a, d = share[at], over[at]
            gone, part = _divided(a * m + rest[at], d)
            left = part >= d - a
            if waits:
                gone += behind[at]
                left &= gone >= 0
                np.maximum(gone, 0, out=gone)
            descent.turn(gone, left, children[2 * at + left])
        return descent.leaf, descent.count

    def _anywhere(self, m: Ints) -> tuple[Ints, Ints]:
        """Down the tree from positions anywhere in the segment."""
        n, stairs, children = self.shape.leaves, self.tables.share.shape[1], self.children.reshape(-1)
        share, lead, rest, first = (table.reshape(-1) for table in self.tables)
        descent = _Descent(m, 2 * n - 2, self.rows(m))
        while descent.drop(n):
            at = descent.node - n
            flat, d = at * stairs + descent.row, self.over[at]
            a = share[flat]
            gone, part = muldiv(a, descent.m - first[descent.node * (stairs + 1) + descent.row], d)
            more, part = _divided(part + rest[flat], d)
            gone += lead[flat] + more
            left = (part >= d - a) & (gone >= 0)
            descent.turn(np.maximum(gone, 0), left, children[2 * at + left])
        return descent.leaf, descent.count

    # ------------------------------------------------------------ backwards

    def locate(self, leaf: Ints, j: Ints) -> Ints:
        """The local position of leaves' `j`-th draws in the segment, up the tree in closed form; `FAR` if never."""
        n, stairs = self.shape.leaves, self.tables.share.shape[1]
        share, lead, rest, first = self.tables
        row = np.zeros_like(leaf) if stairs == 1 else (first[leaf, 1:] <= j[:, None]).sum(axis=1)
        out = np.full(len(leaf), FAR)
        where = np.flatnonzero(row < stairs)
        node, row, j = leaf[where], row[where], j[where]
        while True:
            up = self.shape.parent[node]
            if (top := up < 0).any():
                out[where[top]] = j[top]
                where, node, row, j, up = where[~top], node[~top], row[~top], j[~top], up[~top]
            if not len(where):
                return np.minimum(out, FAR)
            a, d, before = share[up, row], self.over[up], first[n + up, row]
            is_left = self.children[up, 1] == node
            whole = np.where(is_left, j + 1 - lead[up, row], j - before + lead[up, row])
            part = np.where(is_left, -rest[up, row], rest[up, row] + 1)
            m = before + ceildiv(whole, d, part, np.where(is_left, a, d - a))
            j = np.where(is_left, m, np.maximum(m, j + 1)) - 1  # the right side has everything while the left one waits
            node = n + up

    # ------------------------------------------------------------ accounts

    def residuals(self, length: int, counts: Ints) -> Floats:
        """What each source has too much after `length` positions, given its counts there: exact to one rounding."""
        spans = np.diff(np.minimum(self.edges, length))
        total = self.weights[:, :1].sum()
        # Both products may pass 2^64; their difference cannot, so wrapping leaves it exact.
        due = (self.weights * spans).sum(axis=1)
        out = self.residual.copy()
        out[self.members] += ((counts - self.base)[self.members] * total - due) / total
        return out


def build(start: int, base: Ints, residual: Floats, members: Ints, shape: Shape, weights: Ints, edges: Ints) -> Segment:
    """A segment with stairs between the local positions `edges`; `weights` int64[members, stairs] have equal sums."""
    n, stairs = shape.leaves, weights.shape[1]
    sums = shape.sums(weights)
    mine = residual[members]
    if stairs == 1:
        over = np.maximum(sums[n:, 0], 1)
        share = sums[shape.left]
        mean = sums[:, 0].astype(np.float64)
    else:
        over = np.full(n - 1, WHOLE)
        share = _shares(sums[shape.left], sums[n:])
        mean = shape.sums(weights.sum(axis=1).astype(np.float64))
    owed = _corrections(shape, mean / mean[-1], shape.sums(mine), _patience(mine))
    turned = owed < 0  # the side that must wait becomes the left one: then only one end of its count needs a bound
    children = np.stack([np.where(turned, shape.left, shape.right), np.where(turned, shape.right, shape.left)], axis=1)
    share = np.where(turned[:, None], over[:, None] - share, share)
    offset = over // 2 - np.rint(np.abs(owed) * over).astype(np.int64)
    tables = _climb(shape, children, over, share, offset, edges)
    return Segment(start, base, residual, members, shape, children, over, weights, edges, tables)


def _shares(left: Ints, both: Ints) -> Ints:
    """Left shares as multiples of 2^-48; a side that has any weight has some share."""
    share = np.rint(left / np.maximum(both, 1) * WHOLE).astype(np.int64)
    share = np.where(left > 0, np.maximum(share, 1), share)
    return np.where(both > left, np.minimum(share, WHOLE - 1), share)


def _patience(residual: Floats) -> float:
    """How far a source may fall behind while others are repaid: no further than the worst of all is off already."""
    worst = float(np.abs(residual).max())
    return worst if worst > 2 else 1.0


def _corrections(shape: Shape, weight: Floats, owed: Floats, patience: float) -> Floats:
    """By how many elements the left side of each node should wait (negative: the right side).

    In full it is `owed` of the left, less its share of what is owed of both. But a side that waits makes each of its
    sources wait, and one of them may have been given too little: `until` is how long each side can afford that,
    `waited` how long it does.
    """
    n = shape.leaves
    with np.errstate(divide="ignore"):
        each = np.where(weight[:n] > 0, np.maximum(patience + owed[:n], _SLACK) / weight[:n], np.float64(FAR))
    until, waited, out = shape.least(np.minimum(each, FAR)), np.zeros(2 * n - 1), np.empty(n - 1)
    for a, b in reversed(shape.rounds):
        left, right, above = shape.left[a:b], shape.right[a:b], waited[n + a : n + b]
        x, y = weight[left], weight[right]
        both = np.maximum(x + y, 1e-300)
        full = (y * owed[left] - x * owed[right]) / both
        low, high = (np.maximum(until[side] - above, 0) * own for side, own in ((right, y), (left, x)))
        out[a:b] = np.clip(full, -low, high)
        waited[left] = above + np.maximum(out[a:b], 0) / np.maximum(x, 1e-300)
        waited[right] = above + np.maximum(-out[a:b], 0) / np.maximum(y, 1e-300)
    return out


def _climb(shape: Shape, children: Ints, over: Ints, share: Ints, offset: Ints, edges: Ints) -> Tables:
    """Where every node stands at the beginning of every stair, by cumulative sums of integers."""
    n, stairs = shape.leaves, share.shape[1]
    lead, rest = np.empty((2, n - 1, stairs), np.int64)
    lead[:, 0] = offset // over
    rest[:, 0] = offset - lead[:, 0] * over
    first = np.zeros((2 * n - 1, stairs + 1), np.int64)
    if stairs == 1:
        return Tables(share, lead, rest, first)
    first[-1] = edges
    for a, b in reversed(shape.rounds):
        above, d = first[n + a : n + b], over[a:b, None]
        whole, part = muldiv(share[a:b], np.diff(above, axis=1), d)
        whole, part = np.cumsum(whole, axis=1), np.cumsum(part, axis=1) + rest[a:b, :1]
        carry = part // d
        whole, part = whole + lead[a:b, :1] + carry, part - carry * d
        lead[a:b, 1:], rest[a:b, 1:] = whole[:, :-1], part[:, :-1]
        gone = np.maximum(whole, 0)
        first[children[a:b, 1], 1:], first[children[a:b, 0], 1:] = gone, above[:, 1:] - gone
    return Tables(share, lead, rest, first)


def muldiv(a: Ints, m: Ints, d: Ints) -> tuple[Ints, Ints]:
    """Quotient and rest of `a*m / d` for 0 <= a <= d <= 2^48 and 0 <= m < 2^60.

    The product may pass 2^64. A float estimate of the quotient is off by some hundred at most; the difference is exact.
    """
    near = np.rint(a / d * m).astype(np.int64)
    rest = a * m - near * d
    more = rest // d
    return near + more, rest - more * d


def ceildiv(j: Ints, d: Ints, k: Ints, b: Ints) -> Ints:
    """The least x with `b*x >= j*d + k`; about `FAR` where it is further away than that."""
    near = np.clip((j.astype(np.float64) * d + k) / b, -1.0 * FAR, 1.0 * FAR)
    x = np.rint(near).astype(np.int64)
    short = j * d + k - b * x
    return np.where(near < FAR / 2, x - (-short // b), FAR)


class _Descent:
    """Elements on their way down, each with its number `m` in its node. Who reaches a leaf is written down."""

    def __init__(self, m: Ints, root: int, row: Ints | None = None) -> None:
        self.leaf, self.count = np.empty_like(m), np.empty_like(m)
        self.where, self.m, self.node, self.row = np.arange(len(m)), m, np.full(len(m), root), row

    def drop(self, leaves: int) -> bool:
        """Take out what has arrived; whether anything is left."""
        arrived = self.node < leaves
        if arrived.any():
            there = np.flatnonzero(arrived)
            self.leaf[self.where[there]], self.count[self.where[there]] = self.node[there], self.m[there]
            on = np.flatnonzero(~arrived)
            self.where, self.node, self.m = self.where[on], self.node[on], self.m[on]
            self.row = None if self.row is None else self.row[on]
        return len(self.node) > 0

    def turn(self, gone: Ints, left: npt.NDArray[np.bool_], node: Ints) -> None:
        """Go down: left, as number `gone` there, or right. By arithmetic: selecting is slow where turns are random."""
        right = self.m - gone
        gone -= right
        gone *= left
        gone += right
        self.m, self.node = gone, node


def _divided(x: Ints, d: Ints) -> tuple[Ints, Ints]:
    quotient = x // d
    return quotient, x - quotient * d


def stair_weights(weights: Floats) -> Ints:
    """Mean weights of stairs, float64[sources, stairs], as integers of sum 2^48; any weight above 0 stays above 0."""
    total = np.add.accumulate(weights, axis=0)[-1]  # in order: the same on every platform
    out = np.rint(weights / total * WHOLE).astype(np.int64)
    out = np.where((out == 0) & (weights > 0), 1, out)
    heaviest = out.argmax(axis=0)
    out[heaviest, np.arange(out.shape[1])] += WHOLE - out.sum(axis=0)
    return out
