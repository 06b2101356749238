"""Quarantine of bad samples.

The replacement of a bad draw is a function of the draw: another position of the step that it was
drawn from, by a hash of source, epoch, index and number of the try. So every rank, every resume and
the plan choose the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...errors import ConfigError, DataError, GivenUpError, StateError
from ...types import Ints
from ..base.random import derive_key
from ..base.row_files import describe_row_location
from ..base.rows import HOLE, ProvenanceRows, join_rows
from .chunk_cursors import OriginCursors
from .compiled_step import CompiledStep
from .feed import WorkUnit
from .function_call import Leaf, SampleFailure, locate_cause
from .job import STORAGE_TRIES, is_storage_failure
from .journal import Journal, JournalEntry, SampleDraw, describe_draw, item_to_json, rows_from_json

TRIES = 16
"""Other samples that are tried as a replacement."""
_CHOICES = 1 << 12  # positions that are looked at, those of excluded samples too
_ENDLESS_RANGE = 1 << 20  # positions of an endless zip among which another tuple is chosen


@dataclass(frozen=True)
class LeafReplacement:
    """The replacements of a leaf.

    `step` is the source in its orders and slices, or the outermost zip; None in a planned pack,
    where a bad document leaves a hole. `above` is the number of group levels above it.
    """

    step: CompiledStep | None
    above: int
    leaves: Sequence[Leaf]

    def choose(self, draw: SampleDraw, number: int) -> int:
        """Return the position for a try."""
        assert self.step is not None
        size = self.step.size or _ENDLESS_RANGE
        return derive_key(draw.source, draw.epoch, draw.index, number) % size

    def locate(self, position: int, draw: SampleDraw) -> ProvenanceRows:
        """Return the item at a position, as if drawn in the epoch of a draw."""
        assert self.step is not None
        item = self.step.locate(np.asarray([position]))
        item.epoch = item.epoch - item.epoch.min() + draw.epoch
        return item

    def replacement(
        self, position: int, entry: JournalEntry, draw: SampleDraw, item: ProvenanceRows
    ) -> ProvenanceRows:
        """Return the replacement of an item.

        A journal entry wins over its position: later changes may have moved the samples there.
        """
        rows = self.locate(position, draw)
        if entry.parts is not None:
            rows = rows_from_json(entry.parts, rows, self.leaves)
        elif entry.used is not None and not rows.levels:
            rows.index = np.full_like(rows.index, entry.used)
        rows = rows.deepened(len(item.levels))
        marks = {node: np.full_like(rows.leaf, marks[0]) for node, marks in item.marks.items()}
        rows.marks = {**marks, **rows.marks}
        return rows


class Quarantine:
    """Keeps bad draws away from an indexed step and its functions; `indexed` is None over a stream.

    `paired` is true if the items become partners in a zip of streams, where none can be replaced.
    `stage` is the number of functions over streams above this one. A draw that failed there is
    omitted at that stage only: limits, pairs and mixtures below count it.
    """

    def __init__(
        self,
        journal: Journal,
        leaves: Sequence[Leaf],
        indexed: CompiledStep | None,
        paired: bool = False,
        stage: int = 0,
    ) -> None:
        self.journal, self.leaves, self._indexed, self._paired = journal, leaves, indexed, paired
        self._stage = None if indexed is not None else stage
        self._bad_indices, self._entries_read = np.zeros(0, np.int64), 0

    @cached_property
    def _replacements(self) -> dict[int, LeafReplacement]:
        if self._indexed is None:
            return {}
        return {
            leaf: LeafReplacement(step, above, self.leaves)
            for leaf, step, above in self._indexed.scopes()
        }

    @cached_property
    def _excluded(self) -> list[tuple[int, Ints]]:
        return [] if self._indexed is None else [*self._indexed.excluded()]

    def repair(self, unit: WorkUnit) -> WorkUnit:
        """Replace the known bad draws of a unit; over a stream, leave their items out."""
        if unit.values is None:
            return replace(unit, rows=self.repair_rows(unit.rows))
        if not (bad := self._find_bad(unit.rows)):
            return unit
        omitted = set(_items_of(unit.rows, bad).tolist())
        keep = [i for i in range(len(unit)) if i not in omitted]
        rows = unit.rows.take(np.asarray(keep, np.int64))
        return WorkUnit(
            [unit.values[i] for i in keep], rows, OriginCursors(unit.cursors, keep, False)
        )

    def repair_rows(self, rows: ProvenanceRows) -> ProvenanceRows:
        """Replace the known bad draws."""
        if not self._find_bad(rows):
            return rows
        for above in sorted({leaf.above for leaf in self._replacements.values()}):
            bad = [
                row
                for row in self._find_bad(rows)
                if self._replacements[int(rows.leaf[row])].above == above
            ]
            holes = [row for row in bad if self._replacements[int(rows.leaf[row])].step is None]
            if holes:
                marks = rows.marks.get(HOLE, np.zeros_like(rows.leaf)).copy()
                marks[holes] = 1
                rows = replace(rows, marks={**rows.marks, HOLE: marks})
            elif bad:
                rows = self._replace_items(rows, bad, above)
        return rows

    def _replace_items(self, rows: ProvenanceRows, bad: list[int], above: int) -> ProvenanceRows:
        """Replace the items, some levels down, that hold bad flat rows."""
        inner = replace(rows, levels=rows.levels[above:])
        parts, done = list[ProvenanceRows](), 0
        for row, item in zip(bad, _items_of(inner, bad).tolist(), strict=True):
            if item < done:
                continue  # another draw of this item replaced it
            other = self._find_replacement(
                inner.slice(item, item + 1), int(rows.leaf[row]), self._draw(rows, row)
            )
            parts += [inner.slice(done, item), other]
            done = item + 1
        inner = join_rows([*parts, inner.slice(done, len(inner))])
        return replace(inner, levels=(*rows.levels[:above], *inner.levels))

    def _find_replacement(
        self, item: ProvenanceRows, leaf: int, draw: SampleDraw
    ) -> ProvenanceRows:
        """Return the replacement of an item with a bad draw; note a new one in the journal."""
        replacement, entry = self._replacements[leaf], self.journal.entries[draw]
        if entry.at is not None:
            return replacement.replacement(entry.at, entry, draw, item)
        bad = 0
        for number in range(_CHOICES):
            position = replacement.choose(draw, number)
            rows = replacement.replacement(position, entry, draw, item)
            if self._is_excluded(rows):
                continue
            if self._find_bad(rows):
                bad += 1
                if bad == TRIES:
                    break
            else:
                of_leaf = rows.index[rows.leaf == leaf]
                used = int((of_leaf if len(of_leaf) else rows.index)[0])
                located = replacement.locate(position, draw)
                parts = item_to_json(located, self.leaves) if located.levels else None
                self.journal.entries[draw] = replace(entry, used=used, at=position, parts=parts)
                return rows
        raise DataError(
            f"{TRIES} other samples of the source were tried as a replacement and are bad too; "
            "fix or remove the bad samples of this source; the error of this sample: "
            f"{entry.error}",
            where=describe_draw(draw),
        )

    def _is_excluded(self, rows: ProvenanceRows) -> bool:
        """Return whether a run that excluded samples would deliver one of them again."""
        return any(
            bool(np.isin(rows.index[rows.leaf == leaf], index).any())
            for leaf, index in self._excluded
        )

    def _find_bad(self, rows: ProvenanceRows) -> list[int]:
        """Return the flat rows with known bad draws that are not holes yet."""
        entries = self.journal.entries
        if self._entries_read != len(entries):
            indices = np.asarray(sorted({draw.index for draw in entries}), np.int64)
            self._bad_indices, self._entries_read = indices, len(entries)
        if not entries:
            return []
        maybe = np.isin(rows.index, self._bad_indices)
        if HOLE in rows.marks:
            maybe &= rows.marks[HOLE] == 0
        flat = np.flatnonzero(maybe).tolist()
        noted = [(row, entries.get(self._draw(rows, row))) for row in flat]
        return [row for row, entry in noted if entry and self._applies(entry)]

    def _applies(self, entry: JournalEntry) -> bool:
        """Return whether an entry replaces its draw, or omits it at this stage."""
        return entry.omitted in (None, self._stage)

    def _draw(self, rows: ProvenanceRows, row: int) -> SampleDraw:
        name = self.leaves[int(rows.leaf[row])].name
        part = 0 if self._indexed else int(rows.part[row])
        return SampleDraw(name, int(rows.epoch[row]), int(rows.index[row]), part)

    # ------------------------------------------------------------ failures

    def note(self, failure: SampleFailure, unit: WorkUnit) -> None:
        """Note a sample that failed in the journal.

        Raises:
            Exception: the error of the sample, if it must not or cannot be replaced.
        """
        cause = locate_cause(failure, self.leaves)
        draw = SampleDraw(self.leaves[failure.leaf].name, failure.epoch, failure.index)
        if unit.values is not None:
            draw = self._draw(unit.rows, self._row_of(failure, unit.rows))
        if (reason := self._reason_to_raise(failure)) is not None:
            file = describe_row_location(self.leaves[failure.leaf].source, failure.index)
            unknown = failure.grouped and not getattr(cause, "part", ())
            at = "in the batch or packed row that begins with" if unknown else "at"
            cause.add_note(f"penstock: {at} sample {describe_draw(draw)}{file}{reason}")
            raise cause from None
        released, entry = self._release(unit.rows, draw), self.journal.entries.get(draw)
        if entry is None or not self._applies(entry):
            self.journal.add(draw, cause, omitted=self._stage)
        elif not released:
            raise cause from None

    def _row_of(self, failure: SampleFailure, rows: ProvenanceRows) -> int:
        """Return the flat row of the sample that failed; the first one if it is not there."""
        same = (
            (rows.leaf == failure.leaf)
            & (rows.epoch == failure.epoch)
            & (rows.index == failure.index)
        )
        return int(same.argmax()) if len(same) else 0

    def _reason_to_raise(self, failure: SampleFailure) -> str | None:
        """Return a note on why a failure is raised; None if the sample can be replaced."""
        if isinstance(failure.cause, ConfigError | StateError | GivenUpError):
            return "; the sample is not the cause"
        if is_storage_failure(failure.cause):
            return f"; storage failed {STORAGE_TRIES} times, so the sample is not the cause"
        if failure.grouped:
            return "; a sample of a batch or packed row cannot be replaced"
        if self.journal.policy == "raise":
            return "; on_error='quarantine' replaces it with another sample"
        if self._paired:
            return "; in a zip of streams a sample cannot be replaced without its partners"
        return None

    def _release(self, rows: ProvenanceRows, draw: SampleDraw) -> bool:
        """Undo the replacements that use a draw, which failed; return whether there were any."""
        entries, released = self.journal.entries, False
        for row in self._find_bad(rows):
            bad = self._draw(rows, row)
            replacement, entry = self._replacements[int(rows.leaf[row])], entries[bad]
            if entry.at is None or replacement.step is None:
                continue
            used = replacement.replacement(entry.at, entry, bad, rows)
            if any(self._draw(used, i) == draw for i in range(len(used.leaf))):
                entries[bad], released = replace(entry, used=None, at=None, parts=None), True
        return released


def _items_of(rows: ProvenanceRows, flat: Sequence[int]) -> Ints:
    """Return the items that hold flat rows."""
    return np.searchsorted(rows.firsts(), np.asarray(flat), side="right") - 1
