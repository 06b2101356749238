"""Provenance in columns: leaf, epoch and index of every sample of a list of items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...types import Ints

HOLE = 0
"""The mark of unreadable flat rows, which leave a hole in their group. Nodes have other numbers."""

ROW_LENGTH = -1
"""The mark of the tokens of the packed row that flat rows are in, where lengths of rows differ."""


@dataclass(slots=True)
class ProvenanceRows:
    """Provenance of `n` items as arrays, one entry per sample ("flat row").

    An item that groups samples (a batch, a packed row) owns neighbouring flat rows. `levels` has
    the offsets of such groups, outermost first: item `i` of a level owns entries
    `offsets[i]:offsets[i+1]` of the next level. `part` numbers the pieces of one sample. `marks`
    has the annotations of nodes for each flat row.
    """

    leaf: Ints
    epoch: Ints
    index: Ints
    part: Ints
    levels: tuple[Ints, ...] = ()
    marks: dict[int, Ints] = field(default_factory=dict[int, Ints])

    def __len__(self) -> int:
        return len(self.levels[0]) - 1 if self.levels else len(self.leaf)

    def firsts(self) -> Ints:
        """Return the first flat row of each item, and the end: int64[n + 1]."""
        if not self.levels:
            return np.arange(len(self.leaf) + 1)
        first = self.levels[0]
        for offsets in self.levels[1:]:
            first = offsets[first]
        return first

    def first_of(self, item: int, part: Sequence[int] = ()) -> int:
        """Return the first flat row of an item, or of a part of it, given by one index per level."""
        for depth, offsets in enumerate(self.levels):
            inner = part[depth] if depth < len(part) else 0
            item = min(int(offsets[item]) + inner, int(offsets[item + 1]) - 1)
        return item

    def slice(self, start: int, stop: int) -> ProvenanceRows:
        """Return items `start:stop`, as views."""
        levels: list[Ints] = []
        for offsets in self.levels:
            window = offsets[start : stop + 1]
            start, stop = int(window[0]), int(window[-1])
            levels.append(window - start if start else window)
        return self._columns(slice(start, stop), tuple(levels))

    def take(self, items: Ints) -> ProvenanceRows:
        """Return items in any order, as copies."""
        picks, levels = items, list[Ints]()
        for offsets in self.levels:
            starts = offsets[picks]
            bounds = compute_bounds(offsets[picks + 1] - starts)
            levels.append(bounds)
            picks = np.repeat(starts - bounds[:-1], np.diff(bounds)) + np.arange(int(bounds[-1]))
        return self._columns(picks, tuple(levels))

    def grouped(self, offsets: Ints) -> ProvenanceRows:
        """Add an outermost level: item `i` groups the old items `offsets[i]:offsets[i+1]`."""
        return ProvenanceRows(
            self.leaf, self.epoch, self.index, self.part, (offsets, *self.levels), self.marks
        )

    def later(self, passes: Ints) -> ProvenanceRows:
        """Return the rows with `passes` added to the epochs of each item."""
        epoch = self.epoch + np.repeat(passes, np.diff(self.firsts()))
        return replace(self, epoch=epoch)

    def ungrouped(self) -> ProvenanceRows:
        """Remove the outermost level: return the items of all groups."""
        return ProvenanceRows(
            self.leaf, self.epoch, self.index, self.part, self.levels[1:], self.marks
        )

    def deepened(self, depth: int) -> ProvenanceRows:
        """Extend to `depth` levels: wrap every flat row in groups of one."""
        ones = np.arange(len(self.leaf) + 1)
        extra = depth - len(self.levels)
        return self if extra == 0 else self._columns(slice(None), (*self.levels, *(ones,) * extra))

    def flattened(self, depth: int) -> ProvenanceRows:
        """Keep the first `depth` levels; the others must be groups of one."""
        return (
            self if depth == len(self.levels) else self._columns(slice(None), self.levels[:depth])
        )

    def _columns(self, picks: Ints | slice, levels: tuple[Ints, ...]) -> ProvenanceRows:
        marks = {node: column[picks] for node, column in self.marks.items()} if self.marks else {}
        return ProvenanceRows(
            self.leaf[picks], self.epoch[picks], self.index[picks], self.part[picks], levels, marks
        )


def compute_bounds(counts: Ints) -> Ints:
    """Return the offsets of groups of these sizes: int64[n + 1], beginning with 0."""
    out = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=out[1:])
    return out


def join_rows(parts: Sequence[ProvenanceRows]) -> ProvenanceRows:
    """Concatenate rows of equal depth; a mark that a part lacks is 0 there."""
    if len(parts) == 1:
        return parts[0]
    levels = tuple(
        compute_bounds(np.concatenate([np.diff(part.levels[i]) for part in parts]))
        for i in range(len(parts[0].levels))
    )
    marks: dict[int, Ints] = {}
    for node in {node for part in parts for node in part.marks}:
        marks[node] = np.concatenate(
            [part.marks.get(node, np.zeros_like(part.leaf)) for part in parts]
        )
    return ProvenanceRows(
        np.concatenate([part.leaf for part in parts]),
        np.concatenate([part.epoch for part in parts]),
        np.concatenate([part.index for part in parts]),
        np.concatenate([part.part for part in parts]),
        levels,
        marks,
    )


def merge_rows_in_order(parts: Sequence[ProvenanceRows], order: Ints) -> ProvenanceRows:
    """Scatter the rows of several parts into one order: `order` has the target of each row."""
    if any(part.levels or part.marks for part in parts):
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return join_rows(parts).take(back)
    leaf, epoch, index, pieces = columns = np.empty((4, len(order)), np.int64)
    for out, name in zip(columns, ("leaf", "epoch", "index", "part"), strict=True):
        out[order] = np.concatenate([getattr(part, name) for part in parts])
    return ProvenanceRows(leaf, epoch, index, pieces)


def make_empty_rows(depth: int) -> ProvenanceRows:
    """Return rows without items."""
    none = np.zeros(0, np.int64)
    return ProvenanceRows(none, none, none, none, (np.zeros(1, np.int64),) * depth)
