"""Sources that read the same files, of one mixture file or of several: whether what one holds out
another trains on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from .model import MixtureFile, SourceEntry, Splitting

_MANY = 1_000_000_000  # rows, to compare slices in percent


@dataclass(frozen=True)
class Reader:
    """A source that reads a file: of which mixture file, under which key, and what is held out of
    it."""

    file: str
    at: str
    source: SourceEntry
    split: Splitting | None

    @property
    def held_out(self) -> bool:
        """Whether it reads the part that is held out."""
        return self.split is not None and self.split.part == "held_out"

    def apart(self, other: Reader) -> bool:
        """Whether no row is in both: other halves of one split, or slices that do not touch."""
        alike = self._rows() == other._rows()
        if (
            self.split is not None
            and other.split is not None
            and self.split.part != other.split.part
        ):
            by_value = self.split.column is not None and self.source.where == other.source.where
            if self.split == replace(other.split, part=self.split.part) and (alike or by_value):
                return True
        return self._rows(False) == other._rows(False) and _disjoint(self.source, other.source)

    def _rows(self, sliced: bool = True) -> object:
        """What decides which row has which number."""
        mine = self.source
        told = (
            mine.path,
            mine.format,
            mine.where,
            mine.split if isinstance(mine.split, str) else None,
        )
        return (*told, mine.slice) if sliced else told


@dataclass
class Readers:
    """Who reads which file, in the order in which they were met."""

    of: dict[Path, list[Reader]] = field(default_factory=dict[Path, list[Reader]])

    def meet(
        self, path: Path, source: SourceEntry, model: MixtureFile, file: str, at: str
    ) -> str | None:
        """What is to be said of one more who reads a file."""
        mine = Reader(file, at, source, source.splitting(model))
        others = self.of.setdefault(path.resolve(), [])
        said = [found for other in others if (found := _said(path, mine, other))]
        others.append(mine)
        return max(said, key=lambda found: found[0])[1] if said else None


def _said(path: Path, mine: Reader, other: Reader) -> tuple[bool, str] | None:
    """Whether it is a leak, and what it is, in words."""
    here = mine.file == other.file
    there = other.at if here else f"{other.file}, {other.at}"
    if mine == other or mine.apart(other):
        return None
    if mine.held_out != other.held_out:
        both = mine.split is not None and other.split is not None
        why = (
            "they do not split the same rows in the same way"
            if both
            else "one of them splits nothing"
        )
        what = (
            "are held out here and trained on by"
            if mine.held_out
            else "are trained on here and held out by"
        )
        return True, f"rows of {path} {what} {there}: {why}"
    if not here:
        return None  # two runs may read the same
    if mine.split != other.split:
        return (
            True,
            f"it reads {path}, as {there} does, and what is held out of one is trained on in the "
            "other",
        )
    return False, f"it reads {path}, as {there} does"


def _disjoint(one: SourceEntry, two: SourceEntry) -> bool:
    """Whether slices of the same rows do not touch, as far as their bounds tell."""
    bounds = [part for source in (one, two) for part in source.slice or ()]
    if (
        one.slice is None
        or two.slice is None
        or any(isinstance(part, int) and part < 0 for part in bounds)
    ):
        return False
    if len({isinstance(part, str) for part in bounds if part not in (None, 0)}) > 1:
        return False  # which of 80% and 1,000 comes first, only the rows tell
    a, b = (range(_MANY)[slice(*source.rows(_MANY))] for source in (one, two))
    return bool(len(a) and len(b)) and (a[-1] < b[0] or b[-1] < a[0])
