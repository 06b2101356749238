"""The draws of a timeline, permuted within blocks of more than one draw, and cached by windows."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ...types import MAX_POSITION, Ints
from ..base.bounded_dict import BoundedDict
from ..base.integers import find_distinct_values
from ..base.random import build_permutations, derive_tweak_keys, permute
from .timeline import Timeline

_TABLE = 4096  # block sizes up to here are permuted many at once
_WINDOW = 1 << 14  # positions computed together, about
_CACHED_WINDOWS = 1 << 8
_CELLS = 1 << 21  # cells of an array, about
_FEW = 64  # positions for which no window is computed


class Blocks:
    """The draws of one timeline: block `j` is positions `[start + j*size, start + (j+1)*size)`.

    Windows end at `stop`, because the timeline may be invalid where another one has replaced it.
    """

    def __init__(self, timeline: Timeline, stop: int = MAX_POSITION) -> None:
        self.timeline, self.size, self.stop = timeline, timeline.limits.block, stop
        self._span = self.size * max(1, _WINDOW // self.size)
        cached = min(_CACHED_WINDOWS, _CELLS // self._span + 1)
        self._windows = BoundedDict[int, tuple[Ints, Ints]](cached)
        self._last_window = -1

    def at(self, positions: Ints) -> tuple[Ints, Ints]:
        """Return source and draw of sorted positions, all covered by the timeline."""
        local = positions - self.timeline.start
        first, last = int(local[0]) // self._span, int(local[-1]) // self._span
        if first == last:
            if len(local) > _FEW or first in self._windows or first == self._last_window:
                source, k = self._window(first)
                local -= first * self._span
                return source[local], k[local]
            self._last_window = first  # a second request there will probably not be the last
            return self._scattered(local)
        window = local // self._span
        cuts = [0, *(np.flatnonzero(np.diff(window)) + 1).tolist(), len(local)]
        if len(local) < _FEW * len(cuts):
            return self._scattered(local)
        source, k = np.empty((2, len(local)), np.int64)
        for a, b in pairwise(cuts):
            sources, ks = self._window(int(window[a]))
            offsets = local[a:b] - window[a] * self._span
            source[a:b], k[a:b] = sources[offsets], ks[offsets]
        return source, k

    def find(self, source: Ints, k: Ints) -> Ints:
        """Return the positions of draws of sources, -1 for those that are never made."""
        unpermuted = self.timeline.locate(source, k)
        if self.size == 1:
            return unpermuted
        start, size = self.timeline.start, self.size
        out, made = np.full(len(k), -1), np.flatnonzero(unpermuted >= 0)
        block = (unpermuted[made] - start) // size
        distinct, count = find_distinct_values(block), self._blocks_at_once()
        for a in range(0, len(distinct), count):
            blocks = distinct[a : a + count]
            mine = made[(block >= blocks[0]) & (block <= blocks[-1])]
            sources, ks = self._deal(blocks)
            order = np.argsort(sources, kind="stable")  # the draws of each source, in order
            for i in map(int, find_distinct_values(source[mine])):
                wanted = mine[source[mine] == i]
                draws = order[slice(*np.searchsorted(sources[order], [i, i + 1]).tolist())]
                place = draws[np.searchsorted(ks[draws], k[wanted])]
                out[wanted] = start + blocks[place // size] * size + place % size
        return out

    def counts(self, position: int) -> Ints:
        """Return the draws of every source before a position."""
        j, part = divmod(position - self.timeline.start, self.size)
        out = self.timeline.counts(np.asarray([position - part]))[0]
        if part:
            sources = self._deal(np.asarray([j]))[0][:part]
            out += np.bincount(sources, minlength=len(out))
        return out

    def _window(self, number: int) -> tuple[Ints, Ints]:
        if (window := self._windows.get(number)) is not None:
            return window
        start, begin = self.timeline.start, number * self._span
        end = self.timeline.end_within(min(start + begin + self._span, self.stop)) - start
        if self.size == 1:
            window = self.timeline.draws(np.arange(begin, end) + start)
        else:
            window = self._deal(np.arange(begin // self.size, -(-end // self.size)))
        self._windows[number] = window
        return window

    def _scattered(self, local: Ints) -> tuple[Ints, Ints]:
        """Compute positions far apart: only their own blocks."""
        if self.size == 1:
            return self.timeline.draws(local + self.timeline.start)
        distinct, which = np.unique(local // self.size, return_inverse=True)
        count = self._blocks_at_once()
        source, k = np.empty((2, len(local)), np.int64)
        for a in range(0, len(distinct), count):
            mine = np.flatnonzero((which >= a) & (which < a + count))
            sources, ks = self._deal(distinct[a : a + count])
            place = (which[mine] - a) * self.size + local[mine] % self.size
            source[mine], k[mine] = sources[place], ks[place]
        return source, k

    def _blocks_at_once(self) -> int:
        return max(1, _CELLS // max(self.size, 4 * len(self.timeline.limits.names)))

    def _deal(self, blocks: Ints) -> tuple[Ints, Ints]:
        """Return the draws of sorted blocks, one after the other.

        Only the last block of the timeline may be shorter.
        """
        start, size = self.timeline.start, self.size
        begins = start + blocks * size
        end = self.timeline.end_within(int(begins[-1]) + size)
        ends = np.minimum(begins + size, end)
        edges = find_distinct_values(np.concatenate([begins, ends]))
        counts = self.timeline.counts(edges)
        before = counts[np.searchsorted(edges, begins)]
        drawn = counts[np.searchsorted(edges, ends)] - before
        if end == begins[-1] + size:
            return self._permute(begins, before, drawn, size)
        last = self._permute(begins[-1:], before[-1:], drawn[-1:], int(end - begins[-1]))
        if len(blocks) == 1:
            return last
        rest = self._permute(begins[:-1], before[:-1], drawn[:-1], size)
        return np.concatenate([rest[0], last[0]]), np.concatenate([rest[1], last[1]])

    def _permute(self, begins: Ints, before: Ints, drawn: Ints, size: int) -> tuple[Ints, Ints]:
        """Permute blocks of equal size, given the draws before and in them, int64[blocks, sources]."""
        blocks, n = drawn.shape
        by_cell = drawn.reshape(-1)
        sources = np.tile(np.arange(n, dtype=np.min_scalar_type(n - 1)), blocks)  # fast to sort
        in_order = np.repeat(sources, by_cell).reshape(blocks, size)
        permuted = np.take_along_axis(in_order, self._orders(size, begins), axis=1)
        # A stable sort by source lists each source's places in the order in which they come.
        places = np.argsort(permuted, axis=1, kind="stable")
        first = before - (np.cumsum(drawn, axis=1) - drawn)
        k = np.repeat(first.reshape(-1), by_cell).reshape(blocks, size) + np.arange(size)
        ks = np.empty((blocks, size), np.int64)
        np.put_along_axis(ks, places, k, axis=1)
        return permuted.reshape(-1).astype(np.int64), ks.reshape(-1)

    def _orders(self, size: int, starts: Ints) -> Ints:
        """Return a permutation of `range(size)` per block, keyed by where the block begins."""
        key = self.timeline.limits.key
        if size <= _TABLE:
            return build_permutations(size, derive_tweak_keys(key, starts))
        return np.stack([permute(np.arange(size), size, key, start) for start in starts.tolist()])
