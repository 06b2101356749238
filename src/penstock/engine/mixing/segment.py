"""A stretch of a mixture under one law of weights: positions to draws and back, by arithmetic.

Every inner node of the tree splits its elements in two. With A(m) the light side's ideal count
among the node's first m elements, its k-th element is the one in which A passes `k + phase(k)`, the
phase a hash around a half. Two thresholds are further apart than one element moves A, so that one
hash settles an element, forwards and backwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import fsum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...types import MAX_POSITION, Ints
from .exact import Phases, ceildiv, divided, muldiv
from .shape import Floats, Shape

Flags = npt.NDArray[np.bool_]

_SPAN = 1 << 14  # positions worked out together at most: products with a share stay below 2^63
_FIT = 1 << 13  # that many at a time stay in the cache
_AHEAD = 16  # runs whose edges are worked out together
_NODE = 800  # positions a node from which on it pays to look at each node by itself
_FEW = 64  # positions that are sooner worked out one by one


class Tables(NamedTuple):
    """One column per stair, one row per inner node (`first`: per node, and one column more).

    In stair `s` a node that has had `m` elements is at `A = lead + (share*(m - first) + rest) /
    over`; the light side's k-th threshold is at k, or so many steps after it. A side that was given
    too much before waits: then A is negative, or beyond what the node has had.
    """

    share: Ints
    lead: Ints
    rest: Ints
    first: Ints


@dataclass(frozen=True, eq=False)
class Segment:
    """Counts `base` and residuals of all sources at `start`, and a tree over `members` from there
    on.

    `children` are the heavy and the light side of every inner node.
    """

    start: int
    base: Ints
    residual: Floats
    members: Ints
    shape: Shape
    children: Ints
    over: Ints
    phases: Phases
    weights: Ints
    edges: Ints
    tables: Tables

    # ------------------------------------------------------------ forwards

    def rows(self, m: Ints) -> Ints:
        """The stair of each local position."""
        return np.searchsorted(self.edges[1:-1], m, side="right")

    def nodes_at(self, m: Ints) -> tuple[Ints, Ints, Ints]:
        """The number of elements of each node before local positions, int64[nodes, len(m)], and its
        A there, quotient and remainder.
        """
        n, row = self.shape.leaves, self.rows(m) if len(self.edges) > 2 else slice(0, 1)
        share, lead, rest, first = (table[:, row] for table in self.tables)
        out = np.empty((2 * n - 1, len(m)), np.int64)
        wholes, parts = np.empty((2, n - 1, len(m)), np.int64)
        out[-1] = m
        for a, b in reversed(self.shape.rounds):
            above, over = out[n + a : n + b], self.over[a:b, None]
            whole, part = muldiv(share[a:b], above - first[n + a : n + b], over)
            part += rest[a:b]
            carry = part >= over
            whole += lead[a:b] + carry
            part -= over * carry
            wholes[a:b], parts[a:b] = whole, part
            light = whole + (part >= self.phases.late((slice(a, b), None), whole))
            np.minimum(np.maximum(light, 0, out=light), above, out=light)
            out[self.children[a:b, 1]], out[self.children[a:b, 0]] = light, above - light
        return out, wholes, parts

    def counts(self, m: Ints) -> Ints:
        """Draws of all sources before local positions, those before the segment included:
        int64[len(m), sources]."""
        out = np.repeat(self.base[None], len(m), axis=0)
        out[:, self.members] += self.nodes_at(m)[0][: self.shape.leaves].T
        return out

    def walk(self, m: Ints) -> tuple[Ints, Ints]:
        """The source of each sorted local position, and which of its draws it is."""
        if m.size == 0:
            return m, m
        low, high = int(m[0]), int(m[-1]) + 1
        first, last = self.rows(m[[0, -1]]).tolist()
        together = (
            first == last and _FEW < len(m) == high - low <= _SPAN and bool((m[1:] > m[:-1]).all())
        )
        if not together:
            return self._alone(m)
        return (self._in_turn if self.shape.leaves * _NODE < len(m) else self._together)(
            low, high, first
        )

    def _in_turn(self, low: int, high: int, row: int) -> tuple[Ints, Ints]:
        """All positions of a run inside one stair, node after node: what is known of a node are
        numbers then, and no arrays as long as its elements.
        """
        edges: list[list[int]] = [each.tolist() for each in self._edges(low, high)]
        before, after, whole, part = edges
        n, members, over = self.shape.leaves, self.members.tolist(), self.over.tolist()
        share: list[int] = self.tables.share[:, row].tolist()
        children: list[list[int]] = self.children.tolist()
        source, k = (
            np.empty(high - low, np.int64),
            np.empty(high - low, np.int64),
        )  # apart: smaller blocks are cheaper
        todo = [(2 * n - 2, np.arange(high - low))]
        while todo:
            node, where = todo.pop()
            if node < n:
                source[where], begin = members[node], before[node] + int(self.base[members[node]])
                k[where] = np.arange(begin, begin + len(where))
                continue
            at, (heavy, light) = node - n, children[node - n]
            number = np.arange(before[light], after[light])
            late = np.maximum(number - whole[at], -1)
            late *= over[at]
            late += self.phases.late(at, number)
            late -= part[at] + 1
            late //= max(share[at], 1)
            number -= before[node]
            np.maximum(number, late, out=number)  # while the heavy side waits
            is_heavy = np.ones(len(where), np.bool_)
            is_heavy[number] = False
            todo += [(heavy, np.compress(is_heavy, where)), (light, where[number])]
        return source, k

    def _together(self, low: int, high: int, row: int) -> tuple[Ints, Ints]:
        """All positions of a run inside one stair: first the place of every light element in its
        node, then, level by level, which positions come to whom.
        """
        n = self.shape.leaves
        before, after, whole, part = self._edges(low, high)
        many = after - before
        place = self._lights(before, many, whole, part, row)
        positions, done = np.arange(high - low), 0
        found, leaves = [positions] if n == 1 else [], [np.arange(n)] if n == 1 else []
        for inner, children, arrived in self._levels:
            drawn = many[children]
            is_heavy, total = np.ones(len(positions), np.bool_), int(drawn[: len(inner)].sum())
            light = place[done : done + total]
            is_heavy[light] = False
            positions, done = (
                np.concatenate([positions[light], np.compress(is_heavy, positions)]),
                done + total,
            )
            if arrived.all():
                found.append(positions)
                leaves.append(children)
            elif arrived.any():
                there = np.repeat(arrived, drawn)
                found.append(np.compress(there, positions))
                leaves.append(children[arrived])
                positions = np.compress(~there, positions)
        leaf, where = np.concatenate(leaves), np.concatenate(found)
        source, many, before = self.members[leaf], many[leaf], before[leaf]
        out, k = (
            np.empty(high - low, np.int64),
            np.empty(high - low, np.int64),
        )  # apart: smaller blocks are cheaper
        out[where] = np.repeat(source, many)
        k[where] = np.arange(high - low) - np.repeat(
            np.cumsum(many) - many - before - self.base[source], many
        )
        return out, k

    def _edges(self, low: int, high: int) -> tuple[Ints, Ints, Ints, Ints]:
        """The nodes at both ends of a run, their A at the first. Who goes from run to run is given
        several at once: one more is little work.
        """
        length, (begin, each, runs, nodes, whole, part) = high - low, self._ahead
        i, rest = divmod(low - begin, length)
        if rest or each != length or not 0 <= i < runs:
            i, runs = 0, _AHEAD if low == begin + each * runs else 1
            nodes, whole, part = self.nodes_at(low + length * np.arange(runs + 1))
            self.__dict__["_ahead"] = (
                low,
                length,
                runs,
                nodes,
                whole,
                part,
            )  # as a whole: threads see one or the other
        return nodes[:, i], nodes[:, i + 1], whole[:, i], part[:, i]

    @cached_property
    def _ahead(self) -> tuple[int, int, int, Ints, Ints, Ints]:
        """Return the starts, lengths and number of the runs with known edges; `nodes_at` has their
        edges.
        """
        none = np.empty((0, 0), np.int64)
        return -1, 0, 0, none, none, none

    def _lights(self, before: Ints, many: Ints, whole: Ints, part: Ints, row: int) -> Ints:
        """The places of the light elements among the `many` of each node that come after `before`,
        nodes by level; all nodes of a level together are one run of places.
        """
        n, (order, first) = self.shape.leaves, self._order
        light, start = self.children[order, 1], np.empty(n - 1, np.int64)
        lights, here = many[light], many[n + order]
        ends = np.cumsum(here)
        start[order] = ends - here - (ends - here)[first]
        at = np.repeat(order, lights)
        place = np.arange(len(at))
        place -= np.repeat(np.cumsum(lights) - lights - before[light], lights)
        share, part = np.maximum(self.tables.share[:, row], 1), part + 1
        for a in range(0, len(at), _FIT):
            here, j = at[a : a + _FIT], place[a : a + _FIT]
            late = self.phases.late(here, j) - part[here]
            late += np.maximum(j - whole[here], -1) * self.over[here]
            late //= share[here]
            j -= before[n + here]
            np.maximum(j, late, out=j)  # while the heavy side waits
            j += start[here]
        return place

    @cached_property
    def _levels(self) -> list[tuple[Ints, Ints, npt.NDArray[np.bool_]]]:
        """The inner nodes of every level from the root on; their children, the light ones first;
        which are leaves."""
        n, out = self.shape.leaves, list[tuple[Ints, Ints, npt.NDArray[np.bool_]]]()
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

    def _alone(self, m: Ints) -> tuple[Ints, Ints]:
        """Down the tree from positions anywhere in the segment, each by itself."""
        n, stairs, children = (
            self.shape.leaves,
            self.tables.share.shape[1],
            self.children.reshape(-1),
        )
        share, lead, rest, first = (table.reshape(-1) for table in self.tables)
        leaf, k = np.empty_like(m), np.empty_like(m)
        where, node, row = np.arange(len(m)), np.full(len(m), 2 * n - 2), self.rows(m)
        while True:
            if (arrived := node < n).any():
                leaf[where[arrived]], k[where[arrived]] = node[arrived], m[arrived]
                where, node, row, m = where[~arrived], node[~arrived], row[~arrived], m[~arrived]
            if not len(where):
                source = self.members[leaf]
                return source, k + self.base[source]
            at = node - n
            flat, d = at * stairs + row, self.over[at]
            a = share[flat]
            whole, part = muldiv(a, m - first[node * (stairs + 1) + row], d)
            more, part = divided(part + rest[flat] + a, d)  # where A is after the element
            whole += lead[flat] + more
            part -= self.phases.late(at, whole)
            passed = part >= 0
            is_light = passed & (part < a)
            gone = whole + passed - is_light
            is_light = (is_light & (gone >= 0)) | (gone >= m) & (whole + passed > m)
            gone = np.clip(gone, 0, m)
            m, node = np.where(is_light, gone, m - gone), children[2 * at + is_light]

    # ------------------------------------------------------------ backwards

    def locate(self, leaf: Ints, j: Ints) -> Ints:
        """The local position of leaves' `j`-th draws in the segment, up the tree in closed form;
        `MAX_POSITION` if never."""
        n, stairs = self.shape.leaves, self.tables.share.shape[1]
        first = self.tables.first
        row = np.zeros_like(leaf) if stairs == 1 else (first[leaf, 1:] <= j[:, None]).sum(axis=1)
        out = np.full(len(leaf), MAX_POSITION)
        where = np.flatnonzero(row < stairs)
        node, row, j = leaf[where], row[where], j[where]
        while True:
            up = self.shape.parent[node]
            if (top := up < 0).any():
                out[where[top]] = j[top]
                where, node, row, j, up = where[~top], node[~top], row[~top], j[~top], up[~top]
            if not len(where):
                return np.minimum(out, MAX_POSITION)
            is_light = self.children[up, 1] == node
            for mine, after in ((is_light, self._light_ones), (~is_light, self._heavy_ones)):
                if mine.any():  # while one side waits the other has everything
                    j[mine] = np.maximum(after(up[mine], row[mine], j[mine]) - 1, j[mine])
            node = n + up

    def soonest(self, sources: Ints, j: Ints) -> tuple[int, int]:
        """Return which of the `j`-th draws of some sources comes first in the segment, and its
        local position.
        """
        found = self.locate(np.searchsorted(self.members, sources), j)
        return int(found.argmin()), int(found.min())

    def _light_ones(self, at: Ints, row: Ints, j: Ints) -> Ints:
        """How many elements a node has had once its `j`-th light one has come."""
        share, lead, rest = (table[at, row] for table in self.tables[:3])
        first = self.tables.first[self.shape.leaves + at, row]
        late = self.phases.late(at, j) - rest
        return np.maximum(first + ceildiv(j - lead, self.over[at], late, share), first + 1)

    def _heavy_ones(self, at: Ints, row: Ints, j: Ints) -> Ints:
        """Find the `j`-th heavy draw: at the earliest element that keeps the light side's next
        threshold, or one later.
        """
        share, lead, rest = (table[at, row] for table in self.tables[:3])
        first, over = self.tables.first[self.shape.leaves + at, row], self.over[at]
        latest = rest + 1 - self.phases.latest(at)
        x = np.maximum(ceildiv(j + 1 + lead - first, over, latest, over - share), 1)
        whole, part = muldiv(share, np.minimum(x, MAX_POSITION - 1), over)
        more, part = divided(part + rest, over)
        whole += lead + more
        passed = whole + (part >= self.phases.late(at, whole))
        return first + x + (first + x - passed <= j)

    # ------------------------------------------------------------ accounts

    def residuals(self, length: int, counts: Ints) -> Floats:
        """Return the surplus of each source after `length` positions, from its counts there; exact
        to one rounding.
        """
        spans = np.diff(np.minimum(self.edges, length))
        total = self.weights[:, :1].sum()
        # Both products may pass 2^64; their difference cannot, so wrapping leaves it exact.
        due = (self.weights * spans).sum(axis=1)
        out = self.residual.copy()
        out[self.members] += ((counts - self.base)[self.members] * total - due) / total
        return out


def settle(residual: Floats, active: Flags, out: Flags, weights: Floats) -> Floats:
    """Close the accounts of those who are not drawn from: those who are share what they had too
    much or too little.

    What a source left when it ran out goes by weight, as its samples would have. Where weights are
    set to 0 many may leave at once, with more between them than a heavy source could make good:
    there all take the same.
    """
    ran_out, left = (fsum(residual[who].tolist()) for who in (out, ~active & ~out))
    shared = ran_out * (weights / fsum(weights[active].tolist())) + left / np.count_nonzero(active)
    return np.where(active, residual + shared, 0.0)
