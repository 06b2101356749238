"""How a segment is made: whole shares, how wide phases may spread, and what is owed from before."""

from __future__ import annotations

import numpy as np

from ...types import MAX_POSITION, Ints
from ..base.random import Words
from .exact import Phases, divided, muldiv
from .segment import Segment, Tables
from .shape import WHOLE, Floats, Shape

LIMIT = 1.9
"""The furthest a count may be off by the bound; the rest to 2 is for the stairs of ramps."""

# what even those may fall behind that have most to get, or one of many would stop all others
_SLACK = 0.1


def build(
    start: int,
    base: Ints,
    residual: Floats,
    members: Ints,
    shape: Shape,
    weights: Ints,
    edges: Ints,
    keys: Words,
) -> Segment:
    """A segment with stairs between the local positions `edges`; `weights` int64[members, stairs]
    have equal sums; `keys` are those of the inner nodes.
    """
    n, sums, mine = shape.leaves, shape.sums(weights), residual[members]
    mean = (
        sums[:, 0].astype(np.float64)
        if len(edges) == 2
        else shape.sums(weights.sum(axis=1).astype(np.float64))
    )
    heavy_left = mean[shape.left] > mean[shape.right]
    light, heavy = (
        np.where(heavy_left, shape.right, shape.left),
        np.where(heavy_left, shape.left, shape.right),
    )
    if len(edges) == 2:
        scale = np.maximum(48 - np.frexp(sums[n:, 0].astype(np.float64))[1], 0).astype(np.int64)
        over = np.maximum(sums[n:, 0], 1) << scale  # in proportion, and large: phases need room
        share = sums[light] << scale[:, None]
    else:
        over = np.full(n - 1, WHOLE)
        share = _shares(sums[light], sums[n:])
    weight, owed = mean / mean[-1], shape.sums(mine)
    wait, lasting = _waits(shape, light, heavy, weight, owed, _patience(mine))
    part, most = share / over[:, None], share.max(axis=1, initial=0)
    width = (_spread(shape, light, heavy, part, lasting) * (over - most)).astype(np.int64)
    # A light element comes at one of so many places, an element apart: they coincide least between
    # two seeds.
    gaps = np.clip((width + 7 * most // 10) // np.maximum(most, 1), 1, (1 << 32) - 1)
    phases = Phases(keys, (gaps + 1).astype(np.uint64), width // gaps)
    offset = -np.rint(wait * over).astype(np.int64) - (over // 2 - width // 2)
    children = np.stack([heavy, light], axis=1)
    tables = _climb(shape, children, over, share, offset, edges, phases)
    return Segment(
        start, base, residual, members, shape, children, over, phases, weights, edges, tables
    )


def _shares(light: Ints, both: Ints) -> Ints:
    """Light shares as multiples of 2^-48; a side that has any weight has some share."""
    share = np.rint(light / np.maximum(both, 1) * WHOLE).astype(np.int64)
    share = np.where(light > 0, np.maximum(share, 1), share)
    return np.where(both > light, np.minimum(share, WHOLE - 1), share)


def _patience(residual: Floats) -> float:
    """Return how far a source may fall behind while others are repaid: at most as far as the worst
    source is off already.
    """
    worst = float(np.abs(residual).max())
    return worst if worst > 2 else 1.0


def _waits(
    shape: Shape, light: Ints, heavy: Ints, weight: Floats, owed: Floats, patience: float
) -> tuple[Floats, Floats]:
    """By how many elements the light side of each node should wait (negative: the heavy side), and
    how much stays owed.

    In full it is `owed` of the light, less its share of what is owed of both. But a side that waits
    makes each of its sources wait, and one of them may have been given too little: `until` is how
    long each side can afford that, `waited` how long it does.
    """
    n = shape.leaves
    with np.errstate(divide="ignore"):
        each = np.where(
            weight[:n] > 0,
            np.maximum(patience + owed[:n], _SLACK) / weight[:n],
            np.float64(MAX_POSITION),
        )
    until, waited, out, lasting = (
        shape.least(np.minimum(each, MAX_POSITION)),
        np.zeros(2 * n - 1),
        np.empty(n - 1),
        np.empty(n - 1),
    )
    for a, b in reversed(shape.rounds):
        one, other, above = light[a:b], heavy[a:b], waited[n + a : n + b]
        x, y = weight[one], weight[other]
        full = (y * owed[one] - x * owed[other]) / np.maximum(x + y, 1e-300)
        low, high = (
            np.maximum(until[side] - above, 0) * own for side, own in ((other, y), (one, x))
        )
        out[a:b] = np.clip(full, -low, high)
        lasting[a:b] = np.abs(full - out[a:b])
        waited[one] = above + np.maximum(out[a:b], 0) / np.maximum(x, 1e-300)
        waited[other] = above + np.maximum(-out[a:b], 0) / np.maximum(y, 1e-300)
    return out, lasting


def _spread(shape: Shape, light: Ints, heavy: Ints, share: Floats, lasting: Floats) -> float:
    """The largest spread of phases, 0 to 1, with which no source can be further off than `LIMIT`.

    A node adds at most a half and half its phases' width to the share that a side has in the error
    of the node above; both sums go down the tree together.
    """
    n, most, least = shape.leaves, share.max(axis=1, initial=0), share.min(axis=1, initial=1)
    plain, wide = np.zeros((2, 2 * n - 1))
    for a, b in reversed(shape.rounds):
        there = most[a:b] > 0  # a side that is never drawn from adds nothing
        for side, part in ((light[a:b], most[a:b]), (heavy[a:b], 1 - least[a:b])):
            plain[side] = 0.5 * there + lasting[a:b] + part * plain[n + a : n + b]
            wide[side] = 0.5 * there * (1 - most[a:b]) + part * wide[n + a : n + b]
    room = np.maximum(LIMIT - plain[:n], 0) / np.maximum(wide[:n], 1e-9)
    return min(1.0, float(room.min()))


def _climb(
    shape: Shape, children: Ints, over: Ints, share: Ints, offset: Ints, edges: Ints, phases: Phases
) -> Tables:
    """Where every node stands at the beginning of every stair, by cumulative sums of integers."""
    n, stairs = shape.leaves, share.shape[1]
    lead, rest = np.empty((2, n - 1, stairs), np.int64)
    lead[:, 0], rest[:, 0] = divided(offset, over)
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
        passed = whole + (part >= phases.late((slice(a, b), None), whole))
        lights = np.clip(passed, 0, above[:, 1:])
        first[children[a:b, 1], 1:], first[children[a:b, 0], 1:] = lights, above[:, 1:] - lights
    return Tables(share, lead, rest, first)


def stair_weights(weights: Floats) -> Ints:
    """Mean weights of stairs, float64[sources, stairs], as integers of sum 2^48; any weight above 0
    stays above 0."""
    total = np.add.accumulate(weights, axis=0)[-1]  # in order: the same on every platform
    out = np.rint(weights / total * WHOLE).astype(np.int64)
    out = np.where((out == 0) & (weights > 0), 1, out)
    heaviest = out.argmax(axis=0)
    out[heaviest, np.arange(out.shape[1])] += WHOLE - out.sum(axis=0)
    return out
