"""The journal of a run: its bad samples, and their replacements. Plain JSON in a state."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np

from ...errors import DataError, StateError, type_and_message
from ...types import Json
from ..base.cursors import parse_cursor_int, parse_cursor_list
from ..base.rows import ProvenanceRows, compute_bounds
from .function_call import Leaf

_MOST_RANKS = 1 << 20
_MAX_ERROR = 400  # letters of an error
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object: different on every rank

OnError: TypeAlias = Literal["raise", "quarantine"]

POLICIES: tuple[OnError, ...] = get_args(OnError)


@dataclass(frozen=True, order=True)
class SampleDraw:
    """One draw from a source. `part` tells apart the pieces of a stream's sample, and its
    shards."""

    source: str
    epoch: int
    index: int
    part: int = 0


@dataclass(frozen=True)
class JournalEntry:
    """The record of a bad draw.

    `used` is the index of its replacement, from position `at`; None for omitted samples, and for
    failed replacements. If a whole tuple replaced it, `parts` names its samples. If a
    function over a stream failed, `omitted` is the stage of that function, where it is dropped.
    """

    error: str
    used: int | None = None
    at: int | None = None
    parts: Json = None
    omitted: int | None = None


Entries: TypeAlias = Mapping[SampleDraw, JournalEntry]


class Journal:
    """The bad draws of a run, of at most `most` samples."""

    def __init__(
        self, policy: OnError = "quarantine", most: int = 0, entries: Entries | None = None
    ):
        self.policy, self.max_samples, self.entries = policy, most, dict(entries or {})
        self._samples = {(draw.source, draw.index, draw.part) for draw in self.entries}

    def add(self, draw: SampleDraw, cause: Exception, omitted: int | None = None) -> None:
        """Add a draw. Raise `DataError` if there are too many samples."""
        self._samples.add((draw.source, draw.index, draw.part))
        error = _ADDRESS.sub("", type_and_message(cause))[:_MAX_ERROR]
        if len(self._samples) > self.max_samples:
            count = f"{len(self._samples)} samples failed, more than max_errors={self.max_samples}"
            raise DataError(
                f"{count}; fix the data or raise max_errors; the last error: {error}",
                where=describe_draw(draw),
            ) from cause
        self.entries[draw] = JournalEntry(error, omitted=omitted)


def journal_to_json(entries: Entries) -> list[dict[str, Any]]:
    """Return a journal as plain JSON, sorted by source, epoch and index."""
    return [
        {
            "source": draw.source,
            "epoch": draw.epoch,
            "index": draw.index,
            "error": entry.error,
            "used": entry.used,
        }
        | ({"part": draw.part} if draw.part else {})
        | ({"at": entry.at} if entry.at is not None else {})
        | ({"parts": entry.parts} if entry.parts is not None else {})
        | ({"omitted": entry.omitted} if entry.omitted is not None else {})
        for draw, entry in sorted(entries.items())
    ]


def journal_from_json(saved: Iterable[Any]) -> dict[SampleDraw, JournalEntry]:
    """Return the saved journal of one or more ranks; a replacement of any rank counts for all."""
    journal = dict[SampleDraw, JournalEntry]()
    for item in saved:
        try:
            numbers = item["epoch"], item["index"], item.get("part", 0)
            draw = SampleDraw(str(item["source"]), *map(parse_cursor_int, numbers))
            used, at, omitted = (
                None if item.get(name) is None else parse_cursor_int(item[name])
                for name in ("used", "at", "omitted")
            )
            entry = JournalEntry(str(item["error"]), used, at, item.get("parts"), omitted)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"an entry of the state's journal names no sample ({item!r}); the state is "
                "damaged, load an earlier one"
            ) from error
        if draw not in journal or journal[draw].at is None:
            journal[draw] = entry
    return journal


def without_replacements(
    entries: Entries, draws: Container[SampleDraw]
) -> dict[SampleDraw, JournalEntry]:
    """Return a journal in which the replacements of some draws are to be chosen again."""
    return {
        draw: replace(entry, used=None, at=None, parts=None) if draw in draws else entry
        for draw, entry in entries.items()
    }


def describe_missing_journals(saved: Sequence[Any]) -> list[str]:
    """Return a note if the states of some ranks are missing, as their replacements are unknown.

    Args:
        saved: rank and world size of each state; None if it has neither.
    """
    ranks = [parse_cursor_list(pair) for pair in saved if pair is not None]
    world_size = max((parse_cursor_int(world, _MOST_RANKS) for _, world in ranks), default=0)
    missing = sorted(
        set(range(world_size)) - {parse_cursor_int(rank, world_size) for rank, _ in ranks}
    )
    if not missing:
        return []
    named = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
    return [
        f"the journal of {named} is missing: bad samples that this journal replaced are tried "
        "again, and the plan does not know them; load the states of all ranks as a list"
    ]


def item_to_json(item: ProvenanceRows, leaves: Sequence[Leaf]) -> Json:
    """Return the samples of an item: source, epoch, index, part and marks, in lists like its groups."""
    marks = [item.marks[node] for node in sorted(item.marks)]
    columns = np.stack([item.epoch, item.index, item.part, *marks], axis=1).tolist()
    entries: list[Any] = [
        [leaves[int(leaf)].name, *row]
        for leaf, row in zip(item.leaf.tolist(), columns, strict=True)
    ]
    for offsets in reversed(item.levels):
        entries = [entries[a:b] for a, b in pairwise(offsets.tolist())]
    return entries[0]


def rows_from_json(parts: Json, like: ProvenanceRows, leaves: Sequence[Leaf]) -> ProvenanceRows:
    """Return the rows of `item_to_json`, with the levels and marks of an item of the same step."""
    entries, levels = cast("list[Any]", [parts]), list[Any]()
    numbers: Mapping[Any, int] = {leaf.name: leaf.number for leaf in leaves}
    try:
        for _ in like.levels:
            sizes = [len(cast("list[Any]", group)) for group in entries]
            levels.append(compute_bounds(np.asarray(sizes)))
            entries = [entry for group in entries for entry in cast("list[Any]", group)]
        samples = [cast("list[Any]", entry) for entry in entries]
        if not all(sample[0] in numbers for sample in samples):
            return like  # adopted by a pipeline without these sources
        leaf = np.asarray([numbers[sample[0]] for sample in samples])
        epoch, index, part, *marks = np.asarray(
            [[parse_cursor_int(n) for n in sample[1:]] for sample in samples], np.int64
        ).T
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"the state's journal names {parts!r} as the replacement of a bad sample; the state "
            "is damaged, load an earlier one"
        ) from error
    noted = dict(zip(sorted(like.marks), marks, strict=False))
    return ProvenanceRows(leaf, epoch, index, part, tuple(levels), noted)


def describe_draw(draw: SampleDraw) -> str:
    """Name a draw."""
    return f"{draw.source}[{draw.index}] (pass {draw.epoch})"
