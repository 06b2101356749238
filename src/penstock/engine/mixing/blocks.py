"""The draws of a plan as they are asked for, many at a time; within blocks of more than one draw
permuted."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ...types import Ints
from ..base.bounded_dict import BoundedDict
from ..base.integers import find_distinct_values
from ..base.random import build_permutations, derive_tweak_keys, permute
from .timeline import Timeline

_TABLE = 4096  # blocks up to here are permuted many at once
_WINDOW = (
    1 << 14
)  # positions worked out together, about; half of them in a plain mixture of few sources
_MANY = 20  # sources from which on beginning a window is so much work that a whole one pays
_CACHED_WINDOWS = 1 << 8
_BATCH = 1 << 21  # cells of an array, about


class Blocks:
    """The draws of one plan as they are given out: block `j` is positions `[start + j*size, start +
    (j+1)*size)`."""

    def __init__(self, plan: Timeline) -> None:
        self.plan, self.size = plan, plan.rules.block
        window = _WINDOW // 2 if self.size == 1 and len(plan.rules.names) < _MANY else _WINDOW
        self.span = self.size * max(1, window // self.size)
        self._windows = BoundedDict[int, tuple[Ints, Ints]](
            min(_CACHED_WINDOWS, _BATCH // self.span + 1)
        )
        self._asked = -1

    def at(self, positions: Ints) -> tuple[Ints, Ints]:
        """Source and draw of sorted positions, all covered by the plan."""
        local = positions - self.plan.start
        first, last = int(local[0]) // self.span, int(local[-1]) // self.span
        if first == last:
            if len(local) > 64 or first in self._windows or first == self._asked:
                source, k = self._window(first)
                local -= first * self.span
                return source[local], k[local]
            self._asked = first  # whoever comes back to a window will have the rest of it too
            return self._scattered(local)
        window = local // self.span
        cuts = [0, *(np.flatnonzero(np.diff(window)) + 1).tolist(), len(local)]
        if len(local) < 64 * len(cuts):
            return self._scattered(local)
        source, k = np.empty((2, len(local)), np.int64)
        for a, b in pairwise(cuts):
            number = int(window[a])
            sources, ks = self._window(number)
            source[a:b], k[a:b] = (
                sources[local[a:b] - number * self.span],
                ks[local[a:b] - number * self.span],
            )
        return source, k

    def find(self, source: Ints, k: Ints) -> Ints:
        """The positions at which draws of sources are given, -1 for those that never are."""
        plain = self.plan.locate(source, k)
        if self.size == 1:
            return plain
        out, there = np.full(len(k), -1), np.flatnonzero(plain >= 0)
        block = (plain[there] - self.plan.start) // self.size
        wanted, many = find_distinct_values(block), self._many()
        for a in range(0, len(wanted), many):
            some = wanted[a : a + many]
            mine = there[(block >= some[0]) & (block <= some[-1])]
            sources, ks = self._deal(some)
            order = np.argsort(sources, kind="stable")  # the draws of each source, in their order
            ordered = sources[order]
            for one in map(int, find_distinct_values(source[mine])):
                here, (low, high) = (
                    mine[source[mine] == one],
                    np.searchsorted(ordered, [one, one + 1]),
                )
                given = order[low:high][np.searchsorted(ks[order[low:high]], k[here])]
                out[here] = (
                    self.plan.start + some[given // self.size] * self.size + given % self.size
                )
        return out

    def counts(self, position: int) -> Ints:
        """Draws of every source before a position."""
        j, part = divmod(position - self.plan.start, self.size)
        out = self.plan.counts(np.asarray([position - part]))[0]
        if part:
            sources = self._deal(np.asarray([j]))[0][:part]
            out += np.bincount(sources, minlength=len(out))
        return out

    # ------------------------------------------------------------ inside

    def _window(self, number: int) -> tuple[Ints, Ints]:
        if (found := self._windows.get(number)) is not None:
            return found
        begin = number * self.span
        end = self.plan.end_within(self.plan.start + begin + self.span) - self.plan.start
        if self.size == 1:
            found = self.plan.walk(np.arange(begin, end) + self.plan.start)
        else:
            found = self._deal(np.arange(begin // self.size, -(-end // self.size)))
        self._windows[number] = found
        return found

    def _scattered(self, local: Ints) -> tuple[Ints, Ints]:
        """Positions far apart: only their own blocks are worked out."""
        if self.size == 1:
            return self.plan.walk(local + self.plan.start)
        block = local // self.size
        wanted, which = np.unique(block, return_inverse=True)
        many = self._many()
        source, k = np.empty((2, len(local)), np.int64)
        for a in range(0, len(wanted), many):
            mine = np.flatnonzero((which >= a) & (which < a + many))
            sources, ks = self._deal(wanted[a : a + many])
            flat = (which[mine] - a) * self.size + local[mine] % self.size
            source[mine], k[mine] = sources[flat], ks[flat]
        return source, k

    def _many(self) -> int:
        """How many blocks are dealt at a time."""
        return max(1, _BATCH // max(self.size, 4 * len(self.plan.rules.names)))

    def _deal(self, blocks: Ints) -> tuple[Ints, Ints]:
        """The draws of sorted blocks, one after the other; only the last block of the plan may be
        shorter."""
        start, size = self.plan.start, self.size
        end = self.plan.end_within(start + (int(blocks[-1]) + 1) * size)
        begins = start + blocks * size
        edges = find_distinct_values(np.minimum(np.concatenate([begins, begins + size]), end))
        counts = self.plan.counts(edges)
        before = counts[np.searchsorted(edges, begins)]
        drawn = counts[np.searchsorted(edges, np.minimum(begins + size, end))] - before
        if end == begins[-1] + size:
            return self._shuffled(begins, before, drawn, size)
        last = self._shuffled(begins[-1:], before[-1:], drawn[-1:], int(end - begins[-1]))
        if len(blocks) == 1:
            return last
        rest = self._shuffled(begins[:-1], before[:-1], drawn[:-1], size)
        return np.concatenate([rest[0], last[0]]), np.concatenate([rest[1], last[1]])

    def _shuffled(self, begins: Ints, before: Ints, drawn: Ints, size: int) -> tuple[Ints, Ints]:
        """Blocks of equal size, from the draws before them and in them, int64[blocks, sources]."""
        many, n = drawn.shape
        sources = np.tile(np.arange(n, dtype=_smallest(n)), many)
        in_order = np.repeat(sources, drawn.reshape(-1)).reshape(many, size)
        given = np.take_along_axis(in_order, _orders(size, self.plan.rules.key, begins), axis=1)
        # A stable sort by source lists each source's places in the order in which they come.
        places = np.argsort(given, axis=1, kind="stable")
        first = np.cumsum(drawn, axis=1) - drawn
        k = np.repeat((before - first).reshape(-1), drawn.reshape(-1)).reshape(
            many, size
        ) + np.arange(size)
        ks = np.empty((many, size), np.int64)
        np.put_along_axis(ks, places, k, axis=1)
        return given.reshape(-1).astype(np.int64), ks.reshape(-1)


def _orders(size: int, key: int, starts: Ints) -> Ints:
    """One permutation of `range(size)` per block, keyed by where the block begins: int64[blocks,
    size]."""
    if size <= _TABLE:
        return build_permutations(size, derive_tweak_keys(key, starts))
    return np.stack([permute(np.arange(size), size, key, start) for start in starts.tolist()])


def _smallest(n: int) -> type[np.unsignedinteger]:
    """The narrowest type for source numbers: sorting those is a matter of a few nanoseconds."""
    return np.uint8 if n <= 1 << 8 else np.uint16 if n <= 1 << 16 else np.uint32
