"""Rows of a run with replaced samples, from the plan and the journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...types import Ints
from ..base.rows import ProvenanceRows
from ..steps.op import Op
from ..streams.function_call import Leaf
from ..streams.journal import Journal, JournalEntry, SampleDraw
from ..streams.quarantine import Quarantine

_PREFETCHED = 1 << 16  # items that a run may have made ahead


@dataclass(frozen=True)
class JournaledRows:
    """The compiled step of a run that has delivered the positions before `position`, and its
    journal.
    """

    op: Op
    leaves: list[Leaf]
    entries: Mapping[SampleDraw, JournalEntry]
    position: int
    _until: dict[int, Ints] = field(default_factory=dict[int, Ints], repr=False, compare=False)

    def locate(self, positions: Ints, op: Op | None = None) -> ProvenanceRows:
        """Return the samples at positions (of a part of the tree), with the replacements of bad
        ones.
        """
        op = op or self.op
        rows = op.locate(positions)
        return Quarantine(Journal(entries=self.entries), self.leaves, op).repair_rows(rows)

    def find(self, leaf: int, index: int, found: Ints, within: range) -> Ints:
        """Return the positions that deliver a sample, from those that draw it (`found`) and those
        with replacements.
        """
        maybe = np.union1d(found, self._find_bad(within))
        rows = self.locate(maybe)
        places = np.repeat(maybe, np.diff(rows.firsts()))
        return np.unique(places[(rows.leaf == leaf) & (rows.index == index)])

    def find_undelivered(self, excluded: Mapping[str, Sequence[int]]) -> set[SampleDraw]:
        """Return the draws to deliver that excluded samples were to replace."""
        draws, numbers = set[SampleDraw](), {leaf.name: leaf.number for leaf in self.leaves}
        for draw, entry in self.entries.items():
            if entry.used in excluded.get(draw.source, ()) and draw.source in numbers:
                leaf, index = numbers[draw.source], np.asarray([draw.index])
                rows = self.op.locate(self.op.find(leaf, index, 0, self.position))
                same = (rows.leaf == leaf) & (rows.index == draw.index) & (rows.epoch == draw.epoch)
                if not same.any():
                    draws.add(draw)
        return draws

    def count_extra(self, position: int) -> Ints:
        """Count the samples of each leaf delivered beyond those drawn before a position.

        A tuple that replaces another may have samples of other sources.
        """
        maybe = self._find_replaced_before(position)
        was, given = self.op.locate(maybe), self.locate(maybe)
        drawn, got = (np.bincount(rows.leaf, minlength=len(self.leaves)) for rows in (was, given))
        return got - drawn

    def _find_replaced_before(self, position: int) -> Ints:
        """Return the positions before a position that may hold replacements, among those that the
        run computed or prefetched. The searched range doubles, as a small source comes up in many
        passes.
        """
        until = min(1 << max(position - 1, 0).bit_length(), self.position + _PREFETCHED)
        if until not in self._until:
            self._until[until] = self._find_bad(range(until))
        return self._until[until][: np.searchsorted(self._until[until], position)]

    def _find_bad(self, within: range) -> Ints:
        """Return the positions in a range with bad samples, in passes in which some were bad."""
        where, bad = [np.zeros(0, np.int64)], dict[str, list[tuple[int, int]]]()
        for draw in self.entries:
            bad.setdefault(draw.source, []).append((draw.index, draw.epoch))
        for leaf in self.leaves:
            if leaf.name in bad:
                index, epoch = np.asarray(bad[leaf.name], np.int64).T
                found = self.op.find(leaf.number, np.unique(index), within.start, within.stop)
                rows = self.op.locate(found)
                mine = (
                    (rows.leaf == leaf.number)
                    & np.isin(rows.index, index)
                    & np.isin(rows.epoch, epoch)
                )
                where.append(np.repeat(found, np.diff(rows.firsts()))[mine])
        return np.unique(np.concatenate(where))
