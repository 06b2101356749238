"""Sources that read the same files, within one mixture file or across several.

Lint uses them to find rows that one source holds out and another trains on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from .model import MixtureFile, Partitioning, SourceEntry, Splitting

_NOMINAL_ROWS = 1_000_000_000  # to compare slices in percent


@dataclass(frozen=True)
class SourceReader:
    """A source that reads a file, with its mixture file, key and split."""

    file: str
    at: str
    source: SourceEntry
    split: Splitting | None

    @property
    def held_out(self) -> bool:
        """True if the source reads the held-out part."""
        return self.split is not None and self.split.part == "held_out"

    def is_disjoint(self, other: SourceReader) -> bool:
        """Return True if no row is in both: two parts of one split, or disjoint slices."""
        same_rows = self._rows() == other._rows()
        if (
            self.split is not None
            and other.split is not None
            and self.split.part != other.split.part
        ):
            by_value = self.split.column is not None and self.source.where == other.source.where
            if self.split == replace(other.split, part=self.split.part) and (same_rows or by_value):
                return True
        if same_rows and _are_parts_disjoint(self.source.partition, other.source.partition):
            return True
        return self._rows(False) == other._rows(False) and _are_slices_disjoint(
            self.source, other.source
        )

    def _rows(self, sliced: bool = True) -> object:
        """Return the settings that determine the numbers of rows."""
        source = self.source
        settings = (
            source.path,
            source.format,
            source.where,
            source.split if isinstance(source.split, str) else None,
        )
        return (*settings, source.slice) if sliced else settings


@dataclass
class ReaderRegistry:
    """Readers of each file, in the order of their registration."""

    of: dict[Path, list[SourceReader]] = field(default_factory=dict[Path, list[SourceReader]])

    def add(
        self, path: Path, source: SourceEntry, model: MixtureFile, file: str, at: str
    ) -> str | None:
        """Register a reader of a file; return a warning if it shares rows with an earlier one."""
        reader = SourceReader(file, at, source, source.splitting(model))
        others = self.of.setdefault(path.resolve(), [])
        warnings = [
            warning for other in others if (warning := _describe_overlap(path, reader, other))
        ]
        others.append(reader)
        return max(warnings, key=lambda warning: warning[0])[1] if warnings else None


def _describe_overlap(
    path: Path, mine: SourceReader, other: SourceReader
) -> tuple[bool, str] | None:
    """Return whether two readers of a file leak held-out rows, and a message; None if disjoint."""
    same_file = mine.file == other.file
    other_key = other.at if same_file else f"{other.file}, {other.at}"
    if mine == other or mine.is_disjoint(other):
        return None
    if mine.held_out != other.held_out:
        both_split = mine.split is not None and other.split is not None
        reason = "their splits differ" if both_split else "one of them has no split"
        relation = (
            "are held out here and trained on by"
            if mine.held_out
            else "are trained on here and held out by"
        )
        return True, f"rows of {path} {relation} {other_key}: {reason}"
    if not same_file:
        return None  # two runs may read the same rows
    if mine.split != other.split:
        return (
            True,
            f"it reads {path}, as {other_key} does, and what is held out of one is trained on in the "
            "other",
        )
    return False, f"it reads {path}, as {other_key} does"


def _are_parts_disjoint(one: Partitioning | None, two: Partitioning | None) -> bool:
    """Return True if two parts hold different values of the same columns."""
    if one is None or two is None or one.columns != two.columns:
        return False
    if one.input is None or two.input is None or one.input == two.input:
        return False
    if replace(one, input=None) == replace(two, input=None):
        return True
    rests = [(a, b) for a, b in ((one, two), (two, one)) if a.input == a.rest]
    return all(b.input != b.rest and b.input in (a.only or ()) for a, b in rests)


def _are_slices_disjoint(one: SourceEntry, two: SourceEntry) -> bool:
    """Return True if slices of the same rows are disjoint, as far as their bounds show."""
    bounds = [part for source in (one, two) for part in source.slice or ()]
    if (
        one.slice is None
        or two.slice is None
        or any(isinstance(part, int) and part < 0 for part in bounds)
    ):
        return False
    if len({isinstance(part, str) for part in bounds if part not in (None, 0)}) > 1:
        return False  # comparing 80% with row 1,000 needs the number of rows
    a, b = (range(_NOMINAL_ROWS)[slice(*source.rows(_NOMINAL_ROWS))] for source in (one, two))
    return bool(len(a) and len(b)) and (a[-1] < b[0] or b[-1] < a[0])
