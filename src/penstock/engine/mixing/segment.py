"""A stretch of a mixture without changes: positions to draws and back, by arithmetic.

Every inner node of the tree splits its elements in two. With A(m) the light side's ideal count
among the node's first m elements, its k-th element is the one in which A passes `k + phase(k)`, the
phase a hash around a half. Two thresholds are further apart than one element moves A, so that one
hash settles an element, forwards and backwards.

A ramp of weights is a row of stairs, each with constant weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import fsum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...types import MAX_POSITION, Ints
from ..base.bounded_dict import BoundedDict
from ..base.random import GOLDEN_GAMMA, Words, mix64
from .split_tree import WHOLE, Floats, SplitTree

Flags = npt.NDArray[np.bool_]

LIMIT = 1.9
"""The largest distance of a count from its ideal; the rest to 2 is for the stairs of ramps."""

_SLACK = 0.1  # draws that the most favoured source may fall behind: it must not stop all others
_SPAN = 1 << 14  # positions of a run at most: products with a share stay below 2^63
_CACHED = 1 << 13  # elements at a time that stay in the processor cache
_ROW = 16  # runs whose edges are computed together
_CACHED_ROWS = 4
_NODE = 800  # positions for each node from which on a loop over nodes is faster
_FEW = 64  # positions that are faster one by one


# ---------------------------------------------------------------- 64-bit arithmetic


def divided(x: Ints, d: Ints) -> tuple[Ints, Ints]:
    """Return quotient and remainder."""
    quotient = x // d
    return quotient, x - quotient * d


def muldiv(a: Ints, m: Ints, d: Ints) -> tuple[Ints, Ints]:
    """Return quotient and remainder of `a*m / d` for 0 <= a <= d <= 2^48 and 0 <= m < 2^60.

    The product may pass 2^64. A float estimate of the quotient is off by some hundred at most; the
    difference is exact.
    """
    near = np.rint(a / d * m).astype(np.int64)
    rest = a * m - near * d
    more = rest // d
    return near + more, rest - more * d


def ceildiv(j: Ints, d: Ints, k: Ints, b: Ints) -> Ints:
    """Return the least x with `b*x >= j*d + k`; `MAX_POSITION` if it is far larger, or b is 0."""
    divisor = np.maximum(b, 1)
    near = np.clip(
        (j.astype(np.float64) * d + k) / divisor, -2.0 * MAX_POSITION, 2.0 * MAX_POSITION
    )
    x = np.rint(near).astype(np.int64)
    short = j * d + k - b * x
    return np.where((near < 1.5 * MAX_POSITION) & (b > 0), x - (-short // divisor), MAX_POSITION)


# ---------------------------------------------------------------- segments


class Phases(NamedTuple):
    """Random delays of the thresholds of nodes: one of `choices` multiples of `steps`, from 0."""

    keys: Words
    choices: Words
    steps: Ints

    def delays(self, nodes: Any, numbers: Ints) -> Ints:
        """Return the delays of thresholds, of the nodes at an index of arrays."""
        words = mix64(numbers.view(np.uint64) * np.uint64(GOLDEN_GAMMA) + self.keys[nodes])
        words >>= np.uint64(32)
        words *= self.choices[nodes]
        words >>= np.uint64(32)
        return words.view(np.int64) * self.steps[nodes]

    def largest(self, nodes: Ints) -> Ints:
        """Return the largest possible delay of each node."""
        return (self.choices[nodes].view(np.int64) - 1) * self.steps[nodes]


class StairTables(NamedTuple):
    """One column per stair, one row per inner node (`first`: per node, and one column more).

    In stair `s` a node that has had `m` elements is at `A = lead + (share*(m - first) + rest) /
    total`; the light side's k-th threshold is at k, or so many steps after it. A side with a surplus
    waits: then A is negative, or larger than the elements of the node.
    """

    share: Ints
    lead: Ints
    rest: Ints
    first: Ints


@dataclass(frozen=True, eq=False)
class Segment:
    """The draws of `members` from position `start` on, by a tree over them.

    Attributes:
        start: the first position; positions below are local, counted from there.
        base: draws of all sources before the segment.
        surplus: excess draws of all sources before the segment.
        members: the sources that are drawn from.
        tree: the tree; leaf `i` is `members[i]`.
        children: the heavy and the light side of every inner node.
        total: the denominator of the shares of every inner node.
        phases: the delays of the thresholds.
        weights: integer weights, int64[members, stairs].
        edges: the local positions between which the stairs lie.
        tables: the position of every node at the beginning of every stair.
    """

    start: int
    base: Ints
    surplus: Floats
    members: Ints
    tree: SplitTree
    children: Ints
    total: Ints
    phases: Phases
    weights: Ints
    edges: Ints
    tables: StairTables

    # ------------------------------------------------------------ forwards

    def stairs(self, m: Ints) -> Ints:
        """Return the stair of each local position."""
        return np.searchsorted(self.edges[1:-1], m, side="right")

    def nodes_at(self, m: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the elements of each node before local positions, int64[nodes, len(m)], and A
        there, as whole and part.
        """
        n, stair = self.tree.leaves, self.stairs(m) if len(self.edges) > 2 else slice(0, 1)
        share, lead, rest, first = (table[:, stair] for table in self.tables)
        out = np.empty((2 * n - 1, len(m)), np.int64)
        wholes, parts = np.empty((2, n - 1, len(m)), np.int64)
        out[-1] = m
        for a, b in reversed(self.tree.rounds):
            above, total = out[n + a : n + b], self.total[a:b, None]
            whole, part = muldiv(share[a:b], above - first[n + a : n + b], total)
            part += rest[a:b]
            carry = part >= total
            whole += lead[a:b] + carry
            part -= total * carry
            wholes[a:b], parts[a:b] = whole, part
            light = whole + (part >= self.phases.delays((slice(a, b), None), whole))
            np.minimum(np.maximum(light, 0, out=light), above, out=light)
            out[self.children[a:b, 1]], out[self.children[a:b, 0]] = light, above - light
        return out, wholes, parts

    def counts(self, m: Ints) -> Ints:
        """Return the draws of all sources before local positions: int64[len(m), sources]."""
        out = np.repeat(self.base[None], len(m), axis=0)
        out[:, self.members] += self.nodes_at(m)[0][: self.tree.leaves].T
        return out

    def draws(self, m: Ints) -> tuple[Ints, Ints]:
        """Return the source of each sorted local position, and which of its draws it is."""
        if m.size == 0:
            return m, m
        low, high = int(m[0]), int(m[-1]) + 1
        stair, last = self.stairs(m[[0, -1]]).tolist()
        is_run = stair == last and _FEW < len(m) == high - low <= _SPAN
        if not is_run or not bool((m[1:] > m[:-1]).all()):
            return self._draws_one_by_one(m)
        if self.tree.leaves * _NODE < len(m):
            return self._draws_by_node(low, high, stair)
        return self._draws_by_level(low, high, stair)

    def _draws_by_node(self, low: int, high: int, stair: int) -> tuple[Ints, Ints]:
        """Compute a run inside one stair, node after node: the facts of a node are numbers then."""
        edges: list[list[int]] = [edge.tolist() for edge in self._edges(low, high)]
        before, after, whole, part = edges
        n, members, total = self.tree.leaves, self.members.tolist(), self.total.tolist()
        base: list[int] = self.base[self.members].tolist()
        share: list[int] = self.tables.share[:, stair].tolist()
        children: list[list[int]] = self.children.tolist()
        # Two arrays, because allocating smaller blocks is cheaper.
        source, k = np.empty(high - low, np.int64), np.empty(high - low, np.int64)
        todo = [(2 * n - 2, np.arange(high - low))]
        while todo:
            node, positions = todo.pop()
            if node < n:
                first = before[node] + base[node]
                source[positions] = members[node]
                k[positions] = np.arange(first, first + len(positions))
                continue
            inner, (heavy, light) = node - n, children[node - n]
            number = np.arange(before[light], after[light])
            place = np.maximum(number - whole[inner], -1)
            place *= total[inner]
            place += self.phases.delays(inner, number)
            place -= part[inner] + 1
            place //= max(share[inner], 1)
            number -= before[node]
            np.maximum(number, place, out=number)  # while the heavy side waits
            is_heavy = np.ones(len(positions), np.bool_)
            is_heavy[number] = False
            todo += [(heavy, np.compress(is_heavy, positions)), (light, positions[number])]
        return source, k

    def _draws_by_level(self, low: int, high: int, stair: int) -> tuple[Ints, Ints]:
        """Compute a run inside one stair, level after level: first the place of every light element
        in its node, then the positions of the nodes of each level.
        """
        n = self.tree.leaves
        before, after, whole, part = self._edges(low, high)
        drawn = after - before
        places = self._light_places(before, drawn, whole, part, stair)
        positions, done = np.arange(high - low), 0
        leaves, leaf_positions = ([np.arange(1)], [positions]) if n == 1 else ([], [])
        for inner, children, is_leaf in self._levels:
            by_child = drawn[children]
            end = done + int(by_child[: len(inner)].sum())
            is_heavy, light = np.ones(len(positions), np.bool_), places[done:end]
            is_heavy[light] = False
            positions = np.concatenate([positions[light], np.compress(is_heavy, positions)])
            done = end
            if is_leaf.any():
                of_leaf = np.repeat(is_leaf, by_child)
                leaves.append(children[is_leaf])
                leaf_positions.append(np.compress(of_leaf, positions))
                positions = np.compress(~of_leaf, positions)
        leaf, order = np.concatenate(leaves), np.concatenate(leaf_positions)
        by_leaf, sources = drawn[leaf], self.members[leaf]
        shift = before[leaf] + self.base[sources] - (np.cumsum(by_leaf) - by_leaf)
        # Two arrays, because allocating smaller blocks is cheaper.
        source, k = np.empty(high - low, np.int64), np.empty(high - low, np.int64)
        source[order] = np.repeat(sources, by_leaf)
        k[order] = np.arange(high - low) + np.repeat(shift, by_leaf)
        return source, k

    def _edges(self, low: int, high: int) -> tuple[Ints, Ints, Ints, Ints]:
        """Return the elements of all nodes before and after a run, and their A before it.

        Runs mostly follow one another: the edges of a row of runs are computed together.
        """
        number, offset = divmod(low, high - low)
        row, i = divmod(number, _ROW)
        if (edges := self._rows_of_runs.get((high - low, offset, row))) is None:
            edges = self.nodes_at(offset + (high - low) * (row * _ROW + np.arange(_ROW + 1)))
            self._rows_of_runs[high - low, offset, row] = edges
        nodes, whole, part = edges
        return nodes[:, i], nodes[:, i + 1], whole[:, i], part[:, i]

    @cached_property
    def _rows_of_runs(self) -> BoundedDict[tuple[int, int, int], tuple[Ints, Ints, Ints]]:
        """Results of `nodes_at` by the length of runs, the first position and the row."""
        return BoundedDict(_CACHED_ROWS)

    def _light_places(self, before: Ints, drawn: Ints, whole: Ints, part: Ints, stair: int) -> Ints:
        """Return the places of the light elements of each node in a run.

        Nodes are in the order of levels; all nodes of a level together are one range of places.
        """
        n, (order, first) = self.tree.leaves, self._order
        light, start = self.children[order, 1], np.empty(n - 1, np.int64)
        by_light, by_node = drawn[light], drawn[n + order]
        ends = np.cumsum(by_node)
        start[order] = ends - by_node - (ends - by_node)[first]
        inner = np.repeat(order, by_light)
        place = np.arange(len(inner))
        place -= np.repeat(np.cumsum(by_light) - by_light - before[light], by_light)
        share, part = np.maximum(self.tables.share[:, stair], 1), part + 1
        for a in range(0, len(inner), _CACHED):
            node, j = inner[a : a + _CACHED], place[a : a + _CACHED]
            later = self.phases.delays(node, j) - part[node]
            later += np.maximum(j - whole[node], -1) * self.total[node]
            later //= share[node]
            j -= before[n + node]
            np.maximum(j, later, out=j)  # while the heavy side waits
            j += start[node]
        return place

    @cached_property
    def _levels(self) -> list[tuple[Ints, Ints, Flags]]:
        """The inner nodes of every level from the root on; their children, the light ones first;
        which are leaves."""
        n, out = self.tree.leaves, list[tuple[Ints, Ints, Flags]]()
        inner = np.arange(max(n - 2, 0), n - 1)
        while len(inner):
            children = self.children[inner, ::-1].T.reshape(-1)
            out.append((inner, children, children < n))
            inner = children[children >= n] - n
        return out

    @cached_property
    def _order(self) -> tuple[Ints, Ints]:
        """The inner nodes by level, and where among them the level of each begins."""
        sizes = np.asarray([len(inner) for inner, _, _ in self._levels], np.int64)
        order = np.concatenate([np.arange(0), *(inner for inner, _, _ in self._levels)])
        return order, np.repeat(np.cumsum(sizes) - sizes, sizes)

    def _draws_one_by_one(self, m: Ints) -> tuple[Ints, Ints]:
        """Go down the tree from positions anywhere in the segment, each by itself."""
        n, stairs = self.tree.leaves, self.tables.share.shape[1]
        children = self.children.reshape(-1)
        share, lead, part_before, first = (table.reshape(-1) for table in self.tables)
        leaf, k = np.empty_like(m), np.empty_like(m)
        index, stair = np.arange(len(m)), self.stairs(m)
        node: Ints = np.full(len(m), 2 * n - 2)
        while True:
            if (is_leaf := node < n).any():
                leaf[index[is_leaf]], k[index[is_leaf]] = node[is_leaf], m[is_leaf]
                rest = ~is_leaf
                index, node, stair, m = index[rest], node[rest], stair[rest], m[rest]
            if not len(index):
                source = self.members[leaf]
                return source, k + self.base[source]
            inner = node - n
            cell, total = inner * stairs + stair, self.total[inner]
            step = share[cell]
            whole, part = muldiv(step, m - first[node * (stairs + 1) + stair], total)
            more, part = divided(part + part_before[cell] + step, total)  # A after the element
            whole += lead[cell] + more
            part -= self.phases.delays(inner, whole)
            passed = part >= 0
            is_light = passed & (part < step)
            lights = whole + passed - is_light
            is_light = (is_light & (lights >= 0)) | (lights >= m) & (whole + passed > m)
            lights = np.clip(lights, 0, m)
            m, node = np.where(is_light, lights, m - lights), children[2 * inner + is_light]

    # ------------------------------------------------------------ backwards

    def locate(self, leaf: Ints, j: Ints) -> Ints:
        """Return the local position of the `j`-th draws of leaves in the segment.

        It goes up the tree in closed form; `MAX_POSITION` for draws that are never made.
        """
        stairs, first = self.tables.share.shape[1], self.tables.first
        stair = np.zeros_like(leaf) if stairs == 1 else (first[leaf, 1:] <= j[:, None]).sum(axis=1)
        out = np.full(len(leaf), MAX_POSITION)
        index = np.flatnonzero(stair < stairs)
        node, stair, j = leaf[index], stair[index], j[index]
        while True:
            up = self.tree.parent[node]
            if (is_root := up < 0).any():
                out[index[is_root]] = j[is_root]
                rest = ~is_root
                index, node, stair, j, up = index[rest], node[rest], stair[rest], j[rest], up[rest]
            if not len(index):
                return np.minimum(out, MAX_POSITION)
            is_light = self.children[up, 1] == node
            for side, elements in ((is_light, self._after_light), (~is_light, self._after_heavy)):
                if side.any():  # while one side waits the other has everything
                    j[side] = np.maximum(elements(up[side], stair[side], j[side]) - 1, j[side])
            node = self.tree.leaves + up

    def first_of(self, sources: Ints, j: Ints) -> tuple[int, int]:
        """Return the index of the source whose `j`-th draw in the segment is first of all, and the
        local position of that draw.
        """
        positions = self.locate(np.searchsorted(self.members, sources), j)
        return int(positions.argmin()), int(positions.min())

    def _after_light(self, inner: Ints, stair: Ints, j: Ints) -> Ints:
        """Return the elements of a node up to and with its `j`-th light one."""
        share, lead, rest = (table[inner, stair] for table in self.tables[:3])
        first = self.tables.first[self.tree.leaves + inner, stair]
        delay = self.phases.delays(inner, j) - rest
        return np.maximum(first + ceildiv(j - lead, self.total[inner], delay, share), first + 1)

    def _after_heavy(self, inner: Ints, stair: Ints, j: Ints) -> Ints:
        """Return the elements of a node up to and with its `j`-th heavy one: the earliest that
        keeps the light side's next threshold, or one later.
        """
        share, lead, rest = (table[inner, stair] for table in self.tables[:3])
        first, total = self.tables.first[self.tree.leaves + inner, stair], self.total[inner]
        latest = rest + 1 - self.phases.largest(inner)
        x = np.maximum(ceildiv(j + 1 + lead - first, total, latest, total - share), 1)
        whole, part = muldiv(share, np.minimum(x, MAX_POSITION - 1), total)
        more, part = divided(part + rest, total)
        whole += lead + more
        lights = whole + (part >= self.phases.delays(inner, whole))
        return first + x + (first + x - lights <= j)

    def surplus_after(self, length: int, counts: Ints) -> Floats:
        """Return the surplus of each source after `length` positions, from its counts there; exact
        to one rounding.
        """
        spans = np.diff(np.minimum(self.edges, length))
        total = self.weights[:, :1].sum()
        # Both products may pass 2^64; their difference cannot, so wrapping leaves it exact.
        due = (self.weights * spans).sum(axis=1)
        out = self.surplus.copy()
        out[self.members] += ((counts - self.base)[self.members] * total - due) / total
        return out


def share_out_surplus(surplus: Floats, active: Flags, ended: Flags, weights: Floats) -> Floats:
    """Share the surplus of the sources that are not drawn from among those that are.

    The surplus of a source that ran out is shared by weight, as its samples would have been. Where
    weights are set to 0, many sources may leave at once, with more surplus than a heavy source
    could repay: there all take equal parts.
    """
    ran_out, left = (fsum(surplus[mask].tolist()) for mask in (ended, ~active & ~ended))
    by_weight = ran_out * (weights / fsum(weights[active].tolist()))
    return np.where(active, surplus + (by_weight + left / np.count_nonzero(active)), 0.0)


# ---------------------------------------------------------------- building a segment


def build_segment(
    start: int,
    base: Ints,
    surplus: Floats,
    members: Ints,
    tree: SplitTree,
    weights: Ints,
    edges: Ints,
    keys: Words,
) -> Segment:
    """Build a segment with stairs between the local positions `edges`.

    `weights` have equal sums in all stairs; `keys` are those of the inner nodes.
    """
    n, sums, surplus_here = tree.leaves, tree.sums(weights), surplus[members]
    constant = len(edges) == 2
    mean = sums[:, 0].astype(np.float64)
    if not constant:
        mean = tree.sums(weights.sum(axis=1).astype(np.float64))
    left_is_heavy = mean[tree.left] > mean[tree.right]
    light = np.where(left_is_heavy, tree.right, tree.left)
    heavy = np.where(left_is_heavy, tree.left, tree.right)
    if constant:
        scale = np.maximum(48 - np.frexp(sums[n:, 0].astype(np.float64))[1], 0).astype(np.int64)
        total = np.maximum(sums[n:, 0], 1) << scale  # in proportion, and large: phases need room
        share = sums[light] << scale[:, None]
    else:
        total = np.full(n - 1, WHOLE)
        share = _compute_shares(sums[light], sums[n:])
    weight, excess = mean / mean[-1], tree.sums(surplus_here)
    wait, lasting = _compute_waits(tree, light, heavy, weight, excess)
    part, largest = share / total[:, None], share.max(axis=1, initial=0)
    spread = _compute_spread(tree, light, heavy, part, lasting)
    width = (spread * (total - largest)).astype(np.int64)
    # A light element comes at one of so many places, an element apart: they coincide least between
    # two seeds.
    gaps = np.clip((width + 7 * largest // 10) // np.maximum(largest, 1), 1, (1 << 32) - 1)
    phases = Phases(keys, (gaps + 1).astype(np.uint64), width // gaps)
    offset = -np.rint(wait * total).astype(np.int64) - (total // 2 - width // 2)
    children = np.stack([heavy, light], axis=1)
    tables = _compute_tables(tree, children, total, share, offset, edges, phases)
    return Segment(
        start, base, surplus, members, tree, children, total, phases, weights, edges, tables
    )


def _compute_shares(light: Ints, both: Ints) -> Ints:
    """Return light shares as multiples of 2^-48; a side that has any weight has some share."""
    share = np.rint(light / np.maximum(both, 1) * WHOLE).astype(np.int64)
    share = np.where(light > 0, np.maximum(share, 1), share)
    return np.where(both > light, np.minimum(share, WHOLE - 1), share)


def _compute_waits(
    tree: SplitTree, light: Ints, heavy: Ints, weight: Floats, surplus: Floats
) -> tuple[Floats, Floats]:
    """Return by how many elements the light side of each node waits (negative: the heavy side), and
    the surplus that remains.

    A full wait is the surplus of the light side, less its share of the surplus of both. But a side
    that waits makes each of its sources wait, and one of them may have a deficit: `until` is how
    long each side can afford that, `waited` how long it does.
    """
    n = tree.leaves
    worst = float(np.abs(surplus[:n]).max())
    patience = worst if worst > 2 else 1.0  # how far a source may fall behind
    with np.errstate(divide="ignore"):
        afford = np.maximum(patience + surplus[:n], _SLACK) / weight[:n]
    until, waited = tree.minima(np.minimum(afford, MAX_POSITION)), np.zeros(2 * n - 1)
    out, lasting = np.empty(n - 1), np.empty(n - 1)
    for a, b in reversed(tree.rounds):
        left, right, above = light[a:b], heavy[a:b], waited[n + a : n + b]
        x, y = weight[left], weight[right]
        full = (y * surplus[left] - x * surplus[right]) / np.maximum(x + y, 1e-300)
        low = np.maximum(until[right] - above, 0) * y
        high = np.maximum(until[left] - above, 0) * x
        out[a:b] = np.clip(full, -low, high)
        lasting[a:b] = np.abs(full - out[a:b])
        waited[left] = above + np.maximum(out[a:b], 0) / np.maximum(x, 1e-300)
        waited[right] = above + np.maximum(-out[a:b], 0) / np.maximum(y, 1e-300)
    return out, lasting


def _compute_spread(
    tree: SplitTree, light: Ints, heavy: Ints, share: Floats, lasting: Floats
) -> float:
    """Return the largest spread of phases, 0 to 1, that keeps every source within `LIMIT`.

    A node adds at most a half and half its phases' width to the share that a side has in the error
    of the node above; both sums go down the tree together.
    """
    n, most, least = tree.leaves, share.max(axis=1, initial=0), share.min(axis=1, initial=1)
    plain, wide = np.zeros((2, 2 * n - 1))
    for a, b in reversed(tree.rounds):
        half = 0.5 * (most[a:b] > 0)  # a side that is never drawn from adds nothing
        for side, part in ((light[a:b], most[a:b]), (heavy[a:b], 1 - least[a:b])):
            plain[side] = half + lasting[a:b] + part * plain[n + a : n + b]
            wide[side] = half * (1 - most[a:b]) + part * wide[n + a : n + b]
    room = np.maximum(LIMIT - plain[:n], 0) / np.maximum(wide[:n], 1e-9)
    return min(1.0, float(room.min()))


def _compute_tables(
    tree: SplitTree,
    children: Ints,
    total: Ints,
    share: Ints,
    offset: Ints,
    edges: Ints,
    phases: Phases,
) -> StairTables:
    """Return the position of every node at the beginning of every stair, by cumulative sums."""
    n, stairs = tree.leaves, share.shape[1]
    lead, rest = np.empty((2, n - 1, stairs), np.int64)
    lead[:, 0], rest[:, 0] = divided(offset, total)
    first = np.zeros((2 * n - 1, stairs + 1), np.int64)
    if stairs == 1:
        return StairTables(share, lead, rest, first)
    first[-1] = edges
    for a, b in reversed(tree.rounds):
        above, d = first[n + a : n + b], total[a:b, None]
        whole, part = muldiv(share[a:b], np.diff(above, axis=1), d)
        whole, part = np.cumsum(whole, axis=1), np.cumsum(part, axis=1) + rest[a:b, :1]
        carry = part // d
        whole, part = whole + lead[a:b, :1] + carry, part - carry * d
        lead[a:b, 1:], rest[a:b, 1:] = whole[:, :-1], part[:, :-1]
        passed = whole + (part >= phases.delays((slice(a, b), None), whole))
        lights = np.clip(passed, 0, above[:, 1:])
        first[children[a:b, 1], 1:], first[children[a:b, 0], 1:] = lights, above[:, 1:] - lights
    return StairTables(share, lead, rest, first)
