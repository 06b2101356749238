"""Bad samples: what takes their places.

What takes the place of a bad draw is a function of the draw: another position of what it was drawn
from, by a hash of source, pass, index and the number of the try. So every rank, every resume and
the plan choose alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from ...errors import ConfigError, DataError, GivenUpError, StateError
from ...types import Ints
from ..base.random import derive_key
from ..base.row_files import describe_row_location
from ..base.rows import HOLE, ProvenanceRows, join_rows
from .feed import Unit
from .journal import Journal, JournalEntry, SampleDraw, draw_shown, item_told, rows_told
from .retry import TRIES as RETRIES
from .retry import is_storage
from .step import Failed, Leaf, cause_of
from .trail import Origin

TRIES = 16
_ENDLESS = 1 << 20  # among so many positions of an endless zip another tuple is chosen


class Among(Protocol):
    """The op from which a bad sample is replaced. `since` is the first position to which all
    exclusions apply.
    """

    @property
    def size(self) -> int | None: ...
    @property
    def depth(self) -> int: ...
    @property
    def since(self) -> int: ...
    def locate(self, positions: Ints, /) -> ProvenanceRows: ...


class Placed(Protocol):
    """Whatever knows where its leaves stand: for each the leaf, what it is exchanged in (None: it
    leaves a hole), and how many levels of groups stand above that.
    """

    def places(self) -> Iterable[tuple[int, Among | None, int]]: ...


@dataclass(frozen=True)
class LeafPlace:
    """The position of a leaf in a tree.

    `among` is the op that replacements come from (its source in its orders and slices, or the
    outermost zip), with the number of group levels above. `among` is None in a planned pack, where
    a bad document leaves a hole.
    """

    among: Among | None
    above: int
    leaves: Sequence[Leaf]

    def choice(self, draw: SampleDraw, number: int) -> int:
        """The position to try next in the place of a draw. What an edit left out is not found
        there."""
        assert self.among is not None
        size = self.among.size or _ENDLESS
        first = -(-self.among.since // size) * size
        return first + derive_key(draw.source, draw.epoch, draw.index, number) % size

    def located(self, at: int, draw: SampleDraw) -> ProvenanceRows:
        """The item at one position, as if drawn in the pass of a draw."""
        assert self.among is not None
        position = np.asarray([at])
        found = self.among.locate(position)
        found.epoch = found.epoch - found.epoch.min() + draw.epoch
        return found

    def rows(
        self, at: int, entry: JournalEntry, draw: SampleDraw, item: ProvenanceRows
    ) -> ProvenanceRows:
        """Return the replacement of an item. Journal entries win over a new search: later edits may
        have changed the samples there.
        """
        found = self.located(at, draw)
        if entry.parts is not None:
            found = rows_told(entry.parts, found, self.leaves)
        elif entry.used is not None and not found.levels:
            found.index = np.full_like(found.index, entry.used)
        found = found.deepened(len(item.levels))
        above = {node: np.full_like(found.leaf, marks[0]) for node, marks in item.marks.items()}
        found.marks = {**above, **found.marks}
        return found


class Quarantine:
    """Keeps bad draws away from an op and the functions on it; `op` is None over a stream.

    `paired` says that the items become partners in a zip of streams, where none can be exchanged.
    `stage` is the number of functions over streams above this one. Omitted draws are known only at
    the stage that failed: below it, limits, pairs and mixtures count them.
    """

    def __init__(
        self,
        journal: Journal,
        leaves: Sequence[Leaf],
        op: Placed | None,
        paired: bool = False,
        stage: int = 0,
    ) -> None:
        self.journal, self.leaves, self.op, self.paired = journal, leaves, op, paired
        self.stage = None if op is not None else stage
        self._indices, self._read = np.zeros(0, np.int64), 0

    @cached_property
    def places(self) -> dict[int, LeafPlace]:
        """Where the leaves stand in the tree."""
        return (
            {}
            if self.op is None
            else {
                leaf: LeafPlace(among, above, self.leaves)
                for leaf, among, above in self.op.places()
            }
        )

    def mended(self, unit: Unit) -> Unit:
        """The unit with others in the places of draws that are known to be bad; those of a stream
        are left out."""
        if unit.values is None:
            return replace(unit, rows=self.replaced(unit.rows))
        if not (known := self._known(unit.rows)):
            return unit
        gone = set(_items(unit.rows, known).tolist())
        keep = [i for i in range(len(unit)) if i not in gone]
        rows = unit.rows.take(np.asarray(keep, np.int64))
        return Unit([unit.values[i] for i in keep], rows, Origin(unit.trail, keep, False))

    def replaced(self, rows: ProvenanceRows) -> ProvenanceRows:
        """Rows with others in the places of those known to be bad."""
        if not self._known(rows):
            return rows
        for above in sorted({place.above for place in self.places.values()}):
            known = [r for r in self._known(rows) if self.places[int(rows.leaf[r])].above == above]
            if holes := [r for r in known if self.places[int(rows.leaf[r])].among is None]:
                marks = rows.marks.get(HOLE, np.zeros_like(rows.leaf)).copy()
                marks[holes] = 1
                rows = replace(rows, marks={**rows.marks, HOLE: marks})
            elif known:
                rows = self._exchanged(rows, known, above)
        return rows

    def _exchanged(self, rows: ProvenanceRows, known: list[int], above: int) -> ProvenanceRows:
        """Rows with others in the places of the items, so many levels down, that hold known bad
        draws."""
        inner = replace(rows, levels=rows.levels[above:])
        parts, done = list[ProvenanceRows](), 0
        for row, item in zip(known, _items(inner, known).tolist(), strict=True):
            if item < done:
                continue  # exchanged already, because of another draw of the same item
            other = self._other(
                inner.slice(item, item + 1), int(rows.leaf[row]), self._draw(rows, row)
            )
            parts += [inner.slice(done, item), other]
            done = item + 1
        inner = join_rows([*parts, inner.slice(done, len(inner))])
        return replace(inner, levels=(*rows.levels[:above], *inner.levels))

    def _other(self, item: ProvenanceRows, leaf: int, draw: SampleDraw) -> ProvenanceRows:
        """What takes the place of an item because of one bad draw in it."""
        place, entry = self.places[leaf], self.journal.entries[draw]
        if entry.at is not None:
            return place.rows(entry.at, entry, draw, item)
        for number in range(TRIES):
            at = place.choice(draw, number)
            found = place.rows(at, entry, draw, item)
            if not self._known(found):
                same = found.index[found.leaf == leaf]
                used = int((same if len(same) else found.index)[0])
                whole = place.located(at, draw)
                parts = item_told(whole, self.leaves) if whole.levels else None
                self.journal.entries[draw] = replace(entry, used=used, at=at, parts=parts)
                return found
        raise DataError(
            f"{TRIES} other samples of the source were tried as a replacement and are bad too; "
            "fix or remove the bad samples of this source; the error of this sample: "
            f"{entry.error}",
            where=draw_shown(draw),
        )

    def _known(self, rows: ProvenanceRows) -> list[int]:
        """The flat rows whose draws are known to be bad here, and which are no holes already."""
        entries = self.journal.entries
        if self._read != len(entries):
            self._indices, self._read = (
                np.asarray(sorted({draw.index for draw in entries}), np.int64),
                len(entries),
            )
        if not entries:
            return []
        maybe = np.isin(rows.index, self._indices)
        if HOLE in rows.marks:
            maybe &= rows.marks[HOLE] == 0
        flat = np.flatnonzero(maybe).tolist()
        known = [(r, entries.get(self._draw(rows, r))) for r in flat]
        return [r for r, entry in known if entry and entry.omitted in (None, self.stage)]

    def _draw(self, rows: ProvenanceRows, row: int) -> SampleDraw:
        name, part = self.leaves[int(rows.leaf[row])].name, 0 if self.op else int(rows.part[row])
        return SampleDraw(name, int(rows.epoch[row]), int(rows.index[row]), part)

    # ------------------------------------------------------------ failures

    def note(self, failure: Failed, unit: Unit) -> None:
        """Write down a sample that failed. Raises it where that is not asked for, or could not
        help."""
        cause = cause_of(failure, self.leaves)
        draw = SampleDraw(self.leaves[failure.leaf].name, failure.epoch, failure.index)
        if unit.values is not None:
            draw = self._draw(unit.rows, self._row_of(failure, unit.rows))
        if (reason := self._reason(failure)) is not None:
            file = describe_row_location(self.leaves[failure.leaf].source, failure.index)
            cause.add_note(f"penstock: at sample {draw_shown(draw)}{file}{reason}")
            raise cause from None
        freed, entry = self._freed(unit.rows, draw), self.journal.entries.get(draw)
        if entry is None or entry.omitted not in (None, self.stage):
            self.journal.add(draw, cause, omitted=self.stage)
        elif not freed:
            raise cause from None

    def _row_of(self, failure: Failed, rows: ProvenanceRows) -> int:
        """The flat row of the sample that failed; the first one if it is not among them."""
        same = (
            (rows.leaf == failure.leaf)
            & (rows.epoch == failure.epoch)
            & (rows.index == failure.index)
        )
        return int(same.argmax()) if len(same) else 0

    def _reason(self, failure: Failed) -> str | None:
        """Why a failure is raised; None where the sample can be exchanged."""
        if isinstance(failure.cause, ConfigError | StateError):
            return "; the sample is not the cause"
        if isinstance(failure.cause, GivenUpError):
            return "; the sample is not the cause"
        if is_storage(failure.cause):
            return f"; storage failed {RETRIES} times, so the sample is not the cause"
        if failure.grouped:
            return "; a function over groups failed, so no single sample can be replaced"
        if self.journal.policy == "raise":
            return "; on_error='quarantine' replaces it with another sample"
        return (
            "; in a zip of streams a sample cannot be replaced without its partners"
            if self.paired
            else None
        )

    def _freed(self, rows: ProvenanceRows, draw: SampleDraw) -> bool:
        """Whether the failed draw stood in for others: these are given others again."""
        entries, found = self.journal.entries, False
        for row in self._known(rows):
            mine = self._draw(rows, row)
            place, entry = self.places[int(rows.leaf[row])], entries[mine]
            if entry.at is None or place.among is None:
                continue
            stood_in = place.rows(entry.at, entry, mine, rows)
            if any(self._draw(stood_in, r) == draw for r in range(len(stood_in.leaf))):
                entries[mine], found = replace(entry, used=None, at=None, parts=None), True
        return found


def _items(rows: ProvenanceRows, flat: Sequence[int]) -> Ints:
    """The items that hold flat rows."""
    return np.searchsorted(rows.firsts(), np.asarray(flat), side="right") - 1
