"""Bad samples: which were found, what takes their places, and the journal that tells of both.

What takes the place of a bad draw is a function of the draw: another position of what it was drawn from, by a hash of
source, pass, index and the number of the try. So every rank, every resume and the plan choose alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np

from ..base.cursors import as_int, as_list
from ..base.random import key_of
from ..base.rows import HOLE, Rows, join_rows
from ..errors import ConfigError, DataError, StateError
from ..types import Ints
from .feed import Unit
from .retry import TRIES as RETRIES
from .retry import is_storage
from .step import Failed, Leaf
from .trail import Origin

TRIES = 16
_MOST_RANKS = 1 << 20
_ENDLESS = 1 << 20  # among so many positions of an endless zip another tuple is chosen

OnError: TypeAlias = Literal["raise", "quarantine"]

POLICIES: tuple[OnError, ...] = get_args(OnError)


@dataclass(frozen=True, order=True)
class SampleDraw:
    """One draw from a source. `part` tells apart the pieces of a stream's sample, and its shards."""

    source: str
    epoch: int
    index: int
    part: int = 0


@dataclass(frozen=True)
class JournalEntry:
    """What is known of a bad draw. `used` is the index that took its place, from position `at` of what it was drawn
    from; None of what was left out, and of what was only to take the place of another.
    """

    error: str
    used: int | None = None
    at: int | None = None


class Journal:
    """The bad draws of a run, of which at most `most` samples may be."""

    def __init__(
        self, policy: OnError = "quarantine", most: int = 0, entries: Mapping[SampleDraw, JournalEntry] | None = None
    ):
        self.policy, self.most, self.entries = policy, most, dict(entries or {})
        self._samples = {(draw.source, draw.index, draw.part) for draw in self.entries}

    def add(self, draw: SampleDraw, cause: Exception) -> None:
        """One more; an error where there are too many."""
        self._samples.add((draw.source, draw.index, draw.part))
        error = f"{type(cause).__name__}: {cause}"[:200]
        if len(self._samples) > self.most:
            count = f"{len(self._samples)} samples failed, more than max_errors={self.most}"
            raise DataError(f"{count}; the last: {error}", where=_shown(draw)) from cause
        self.entries[draw] = JournalEntry(error)


def journal_to_json(entries: Mapping[SampleDraw, JournalEntry]) -> list[dict[str, Any]]:
    """A journal as plain JSON, in the order of sources, passes and indices."""
    return [
        {"source": draw.source, "epoch": draw.epoch, "index": draw.index, "error": entry.error, "used": entry.used}
        | ({"part": draw.part} if draw.part else {})
        | ({"at": entry.at} if entry.at is not None else {})
        for draw, entry in sorted(entries.items())
    ]


def journal_from_json(saved: Iterable[Any]) -> dict[SampleDraw, JournalEntry]:
    """The journal that was saved, on one rank or on several: what one of them replaced counts for all."""
    found = dict[SampleDraw, JournalEntry]()
    for entry in saved:
        try:
            numbers = entry["epoch"], entry["index"], entry.get("part", 0)
            draw = SampleDraw(str(entry["source"]), *map(as_int, numbers))
            used, at = (None if entry.get(name) is None else as_int(entry[name]) for name in ("used", "at"))
            told = JournalEntry(str(entry["error"]), used, at)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateError(f"an entry of the state's journal names no sample ({entry!r}); it is damaged") from error
        if draw not in found or found[draw].at is None:
            found[draw] = told
    return found


def whose_journals_are_missing(bodies: Sequence[Mapping[str, Any]]) -> list[str]:
    """A note where not the states of all ranks are at hand: the run goes on alike, but tries again what the others
    replaced.
    """
    told = [as_list(body["journal_of"]) for body in bodies if "journal_of" in body]
    of = max((as_int(world, _MOST_RANKS) for _, world in told), default=0)
    missing = sorted(set(range(of)) - {as_int(rank, of) for rank, _ in told})
    named = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
    return [
        f"the journal of {named} is missing: bad samples that were replaced there are tried again, and the plan does "
        "not know of them; load the states of all ranks as a list"
    ] * bool(missing)


class Among(Protocol):
    """What a bad sample is exchanged in. `since` is the position from which on all that edits leave out is left out."""

    @property
    def size(self) -> int | None: ...
    @property
    def depth(self) -> int: ...
    @property
    def since(self) -> int: ...
    def locate(self, positions: Ints, laps: Ints, /) -> Rows: ...


class Placed(Protocol):
    """Whatever knows where its leaves stand: for each the leaf, what it is exchanged in (None: it leaves a hole), and
    how many levels of groups stand above that.
    """

    def places(self) -> Iterable[tuple[int, Among | None, int]]: ...


@dataclass(frozen=True)
class LeafPlace:
    """Where a leaf stands in a tree: what a bad sample of it is exchanged in (its source in its orders and slices,
    or the outermost zip), and how many levels of groups stand above that. `among` is None in a planned pack, where a
    bad document leaves a hole.
    """

    among: Among | None
    above: int

    def choice(self, draw: SampleDraw, number: int) -> int:
        """The position to try next in the place of a draw. What an edit left out is not found there."""
        assert self.among is not None
        size = self.among.size or _ENDLESS
        first = -(-self.among.since // size) * size
        return first + key_of(draw.source, draw.epoch, draw.index, number) % size

    def rows(self, at: int, entry: JournalEntry, draw: SampleDraw, item: Rows) -> Rows:
        """The rows of one position, as if drawn in the pass of a draw and in the place of an item."""
        assert self.among is not None
        position = np.asarray([at])
        found = self.among.locate(position, np.zeros_like(position)).deepened(len(item.levels))
        if entry.used is not None and not self.among.depth:
            found.index = np.full_like(found.index, entry.used)
        found.epoch = found.epoch - found.epoch.min() + draw.epoch
        above = {node: np.full_like(found.leaf, marks[0]) for node, marks in item.marks.items()}
        found.marks = {**above, **found.marks}
        return found


class Quarantine:
    """Keeps bad draws away from an op and the functions on it; `op` is None over a stream.

    `paired` says that the items become partners in a zip of streams, where none can be exchanged.
    """

    def __init__(self, journal: Journal, leaves: Sequence[Leaf], op: Placed | None, paired: bool = False) -> None:
        self.journal, self.leaves, self.op, self.paired = journal, leaves, op, paired
        self._indices, self._read = np.zeros(0, np.int64), 0

    @cached_property
    def places(self) -> dict[int, LeafPlace]:
        """Where the leaves stand in the tree."""
        return {} if self.op is None else {leaf: LeafPlace(among, above) for leaf, among, above in self.op.places()}

    def mended(self, unit: Unit) -> Unit:
        """The unit with others in the places of draws that are known to be bad; those of a stream are left out."""
        if unit.values is None:
            return replace(unit, rows=self.replaced(unit.rows))
        if not (known := self._known(unit.rows)):
            return unit
        gone = set(_items(unit.rows, known).tolist())
        keep = [i for i in range(len(unit)) if i not in gone]
        rows = unit.rows.take(np.asarray(keep, np.int64))
        return Unit([unit.values[i] for i in keep], rows, Origin(unit.trail, keep, False))

    def replaced(self, rows: Rows) -> Rows:
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

    def _exchanged(self, rows: Rows, known: list[int], above: int) -> Rows:
        """Rows with others in the places of the items, so many levels down, that hold known bad draws."""
        inner = replace(rows, levels=rows.levels[above:])
        parts, done = list[Rows](), 0
        for row, item in zip(known, _items(inner, known).tolist(), strict=True):
            if item < done:
                continue  # exchanged already, because of another draw of the same item
            other = self._other(inner.slice(item, item + 1), int(rows.leaf[row]), self._draw(rows, row))
            parts += [inner.slice(done, item), other]
            done = item + 1
        inner = join_rows([*parts, inner.slice(done, len(inner))])
        return replace(inner, levels=(*rows.levels[:above], *inner.levels))

    def _other(self, item: Rows, leaf: int, draw: SampleDraw) -> Rows:
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
                self.journal.entries[draw] = replace(entry, used=used, at=at)
                return found
        raise DataError(
            f"{TRIES} others of the source, tried in its place, are bad too; it failed by {entry.error}",
            where=_shown(draw),
        )

    def _known(self, rows: Rows) -> list[int]:
        """The flat rows whose draws are known to be bad, and which are no holes already."""
        entries = self.journal.entries
        if self._read != len(entries):
            self._indices, self._read = np.asarray(sorted({draw.index for draw in entries}), np.int64), len(entries)
        if not entries:
            return []
        maybe = np.isin(rows.index, self._indices)
        if HOLE in rows.marks:
            maybe &= rows.marks[HOLE] == 0
        return [r for r in np.flatnonzero(maybe).tolist() if self._draw(rows, r) in entries]

    def _draw(self, rows: Rows, row: int) -> SampleDraw:
        name, part = self.leaves[int(rows.leaf[row])].name, 0 if self.op else int(rows.part[row])
        return SampleDraw(name, int(rows.epoch[row]), int(rows.index[row]), part)

    # ------------------------------------------------------------ failures

    def note(self, failure: Failed, unit: Unit) -> None:
        """Write down a sample that failed. Raises it where that is not asked for, or could not help."""
        cause = failure.cause
        draw = SampleDraw(self.leaves[failure.leaf].name, failure.epoch, failure.index)
        if unit.values is not None:
            draw = self._draw(unit.rows, 0)
        if reason := self._reason(failure):
            cause.add_note(f"penstock: at sample {_shown(draw)}{reason}")
            raise cause from None
        freed = self._freed(unit.rows, draw)
        if draw not in self.journal.entries:
            self.journal.add(draw, cause)
        elif not freed:
            raise cause from None

    def _reason(self, failure: Failed) -> str:
        """Why a failure is raised; nothing where the sample can be exchanged."""
        if isinstance(failure.cause, ConfigError | StateError):
            return "; not a fault of the sample"
        if is_storage(failure.cause):
            return f"; storage failed {RETRIES} times, which is no fault of the sample"
        if self.journal.policy == "raise":
            return "; on_error='quarantine' puts another in its place"
        if failure.grouped:
            return "; a function over groups failed, so no single sample can be exchanged"
        return "; in a zip of streams the partners of a sample cannot be exchanged" if self.paired else ""

    def _freed(self, rows: Rows, draw: SampleDraw) -> bool:
        """Whether the failed draw stood in for others: these are given others again."""
        entries, found = self.journal.entries, False
        for row in self._known(rows):
            mine = self._draw(rows, row)
            place, entry = self.places[int(rows.leaf[row])], entries[mine]
            if entry.at is None or place.among is None:
                continue
            stood_in = place.rows(entry.at, entry, mine, rows)
            if any(self._draw(stood_in, r) == draw for r in range(len(stood_in.leaf))):
                entries[mine], found = replace(entry, used=None, at=None), True
        return found


def _items(rows: Rows, flat: Sequence[int]) -> Ints:
    """The items that hold flat rows."""
    return np.searchsorted(rows.firsts(), np.asarray(flat), side="right") - 1


def _shown(draw: SampleDraw) -> str:
    return f"{draw.source}[{draw.index}] (pass {draw.epoch})"
