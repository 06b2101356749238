"""Several parts, one after the other, read as one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import numpy as np

from ..engine.base import machine, seams
from ..engine.base.seams import Stat
from ..engine.base.spans import Spans, Stored, join_spans
from ..stores import Range, Reach, Stores, is_remote
from ..types import Ints, Json, Sizes
from . import sidecar
from .block import OfColumns, joined
from .identity import Digest, file_digest, row_digest
from .kinds import Kind, Typed
from .paths import TokenType

_FAR = 4 << 10  # bytes of a store worth reading for nothing to save one more read
_NEAR = 32 << 10  # of this machine
_HELD = 128 << 20  # bytes that are fetched ahead of a source


class File(Protocol):
    """One file of a source: its rows by index. `columns` are the names it gives, `None` where only
    the rows know."""

    @property
    def columns(self) -> Sequence[str] | None: ...
    def __len__(self) -> int: ...
    def read(self, indices: Ints, /) -> list[Any]: ...


@runtime_checkable
class Ranged(Protocol):
    """A file that can say which bytes of a store its rows need."""

    def ranges(self, indices: Ints, /) -> Iterable[Range]: ...


def gap_of(path: Path) -> int:
    """How many bytes between two rows are worth reading for nothing, to save one more read."""
    return _FAR if is_remote(path) else _NEAR


def ranges_of(path: Path, starts: Ints, ends: Ints, of: int = 1) -> list[Range]:
    """Parts of a file, in whole blocks, those made one that are read together."""
    if not starts.size:
        return []
    order, gap = np.argsort(starts, kind="stable"), gap_of(path)
    starts, ends = starts[order] // of * of, -(-ends[order] // of) * of
    cuts = np.flatnonzero(starts[1:] > np.maximum.accumulate(ends)[:-1] + gap) + 1
    lows, highs = (
        starts[np.concatenate([[0], cuts])],
        np.maximum.reduceat(ends, np.concatenate([[0], cuts])),
    )
    return [
        Range(str(path), low, high) for low, high in zip(lows.tolist(), highs.tolist(), strict=True)
    ]


def starts_of(sizes: Sequence[int] | Ints) -> Ints:
    """Where each part begins, and at last where the whole ends: int64[len(sizes) + 1]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(sizes, np.int64))])


def by_part(
    starts: Ints,
    indices: Ints,
    read: Callable[[int, Ints], list[Any]],
) -> list[Any]:
    """Read rows from parts, every part once: `read(part, rows of that part)`. Results in the order
    asked.

    >>> by_part(starts_of([2, 3]), np.array([4, 0, 2]), lambda part, rows: [(part, r) for r in rows.tolist()])
    [(1, 2), (0, 0), (1, 0)]
    """
    if not indices.size:
        return []
    parts = np.searchsorted(starts, indices, side="right") - 1
    rows = indices - starts[parts]
    if bool((parts == parts[0]).all()):
        return read(int(parts[0]), rows)
    order = np.argsort(parts, kind="stable")
    parts, rows = parts[order], rows[order]
    cuts = [0, *(np.flatnonzero(parts[1:] != parts[:-1]) + 1).tolist(), len(parts)]
    values: list[Any] = []
    for start, stop in pairwise(cuts):
        values += read(int(parts[start]), rows[start:stop])
    out: list[Any] = [None] * len(values)
    for place, value in zip(order.tolist(), values, strict=True):
        out[place] = value
    return out


class Outline(NamedTuple):
    """What a source knows of its files: the rows of each, their columns, and the version of
    each."""

    rows: Sequence[int] | Ints
    columns: Sequence[str] | None
    stats: Sequence[Stat]


def outline_of(files: Sequence[File], paths: Sequence[Path]) -> Outline:
    """The outline of files that are open."""
    columns = files[0].columns if files else None
    return Outline([len(file) for file in files], columns, [sidecar.stat(path) for path in paths])


class Counts(Protocol):
    """What says how many tokens it makes of rows. `counted` is what it is known by, `lasting`
    whether that says enough to keep what was counted.
    """

    counted: str

    @property
    def lasting(self) -> bool: ...
    def counts(self, samples: list[Any], /) -> list[int]: ...


class Asked(NamedTuple):
    """What a source of files was asked for: enough to ask for it again."""

    paths: tuple[str, ...]
    format: str | None
    columns: tuple[str, ...] | None
    cache: str | None
    lengths: str | Counts | None
    split: str | None
    where: Mapping[str, Any] | None
    dtype: TokenType | None = None
    eos: int | None = None


def in_file_order(
    starts: Ints, ends: Ints, read: Callable[[Ints, Ints], Iterable[Any]]
) -> list[Any]:
    """What lies at these bytes, read from front to back, in the order asked.

    >>> in_file_order(np.array([4, 0]), np.array([6, 2]), lambda starts, ends: starts.tolist())
    [4, 0]
    """
    if bool((starts[1:] >= starts[:-1]).all()):
        return list(read(starts, ends))
    order = np.argsort(starts, kind="stable")
    out: list[Any] = [None] * len(order)
    for place, value in zip(order.tolist(), read(starts[order], ends[order]), strict=True):
        out[place] = value
    return out


class Decoding(NamedTuple):
    """What reading a row of a file decodes, as its footer tells: the bytes and the rows of a row
    group on average, and the bytes of all of the source."""

    group: int
    rows: int
    total: int


class Chain:
    """Files of one format as one source, in the order given. What `open_files` returns.

    `as_columns` says that functions of many samples are to have them as columns. `name` is what the
    source is called where nobody gave it a name; `files` are its parts, `paths` and `stats` what
    was found of them. `lengths` finds the sizes of all rows, where they can be known; `column` is
    the one that they are of, `counts` what makes as many tokens of the rows. `asked` is what
    `open_files` was asked for. No file is touched before a row of it is read.
    """

    def __init__(
        self,
        files: Sequence[File],
        outline: Outline,
        *,
        format: str,
        name: str,
        paths: Sequence[Path],
        cache: str | Path | None = None,
        lengths: Callable[[], Sizes] | None = None,
        column: str | None = None,
        counts: Counts | None = None,
    ) -> None:
        self.name, self.paths, self.stats, self.cache = name, list(paths), outline.stats, cache
        self.as_columns = False
        self._digest: Digest | None = None
        self.asked: Asked | None = None
        self._find_lengths, self.column, self.counts = lengths, column, counts
        self._lengths: Sizes | None = None
        self.format = format
        self.files = files
        self._columns = outline.columns
        self._starts = starts_of(outline.rows)
        self._far = any(map(is_remote, self.paths))
        self._use()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._use()

    def _use(self) -> None:
        if self._far and isinstance(seams.world.store, Stores):
            seams.world.store.used_by(self)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __repr__(self) -> str:
        return f"<{self.format} source {self.name!r}: {len(self)} rows in {len(self.files)} files>"

    def read(self, indices: Ints, /) -> list[Any]:
        """The rows at `indices`, each file visited once."""
        self.ahead(indices, now=True)
        return by_part(self._starts, indices, lambda part, rows: self.files[part].read(rows))

    @property
    def columnar(self) -> bool:
        """Whether rows can be had as columns."""
        return len(self.files) > 0 and isinstance(self.files[0], OfColumns)

    @property
    def types(self) -> Mapping[str, Kind]:
        """The types of the columns, where the files tell them; the first file speaks for the
        others."""
        first = self.files[0] if len(self.files) else None
        return first.types if isinstance(first, Typed) else {}

    def place(self, index: int) -> tuple[Path, int]:
        """The file in which a row lies, and which of its rows it is."""
        part = int(self._starts.searchsorted(index, "right")) - 1
        return self.paths[part], index - int(self._starts[part])

    def decoding(self) -> Decoding | None:
        """What a row costs where whole groups of rows are decoded for it; the first file speaks for
        the others."""
        file = self.files[0] if len(self.files) else None
        found = file.decoding() if isinstance(file, OfColumns) else None
        if file is None or found is None or not len(file):
            return None
        return Decoding(found[0], found[1], round(found[0] / max(found[1], 1) * len(self)))

    def block(self, indices: Ints, /) -> Sequence[Any]:
        """The same rows, where they can be as columns of which no row was made yet."""
        self.ahead(indices, now=True)
        if len(self.files) == 1:
            return self._blocks(0, indices)
        parts = self._starts.searchsorted(indices, "right") - 1
        if not parts.size or not isinstance(self.files[int(parts[0])], OfColumns):
            return self.read(indices)
        rows = indices - self._starts[parts]
        if bool((parts == parts[0]).all()):
            return self._blocks(int(parts[0]), rows)
        order = np.argsort(parts, kind="stable")
        cuts = np.flatnonzero(np.diff(parts[order])) + 1
        groups = np.split(order, cuts)
        return joined([self._blocks(int(parts[mine[0]]), rows[mine]) for mine in groups], order)

    def _blocks(self, part: int, rows: Ints) -> Sequence[Any]:
        file = self.files[part]
        return file.block(rows) if isinstance(file, OfColumns) else file.read(rows)

    def lying(self, indices: Ints, /) -> tuple[Ints, Ints]:
        """The number of the file that each row lies in, and which row of it that is."""
        part = np.searchsorted(self._starts, indices, side="right") - 1
        return part, indices - self._starts[part]

    def foresees(self, reach: Reach, /) -> int:
        """How many rows may be fetched ahead; none where it is of no use to those who read: what
        one process holds others lack, but for the cache.
        """
        kept = self.cache is not None or machine.environment("PENSTOCK_CACHE") is not None
        if not (self._far and (reach == "process" or (reach == "machine" and kept))):
            return 0
        return max(1, _HELD * len(self) // max(1, sum(stat.size for stat in self.stats)))

    def ahead(self, indices: Ints, /, now: bool = False) -> bool:
        """Begin to fetch what rows need that lie in a store, and are read soon or now; whether
        there was room."""
        store = seams.world.store
        if not self._far or not isinstance(store, Stores):
            return True
        ranges = list[Range]()
        parts = np.searchsorted(self._starts, indices, side="right") - 1
        for part in np.unique(parts).tolist():
            file = cast(object, self.files[part])
            if isinstance(file, Ranged):
                ranges += file.ranges(indices[parts == part] - self._starts[part])
        return store.ahead(ranges, now)

    def spans(self, indices: Ints, /) -> Spans | None:
        """The rows at `indices` as places in files of tokens; None where they are others."""
        parts = np.searchsorted(self._starts, indices, side="right") - 1
        order, found = np.argsort(parts, kind="stable"), list[Spans]()
        for some in np.split(order, np.flatnonzero(np.diff(parts[order])) + 1):
            file = self.files[int(parts[some[0]])] if len(some) else None
            spans = (
                file.spans(indices[some] - self._starts[parts[some]])
                if isinstance(file, Stored)
                else None
            )
            if spans is None:
                return None
            found.append(spans)
        return join_spans(found, order)

    def lengths(self) -> Sizes | None:
        """The sizes of all rows, found when first asked for; `None` where nobody knows them without
        reading."""
        if self._lengths is None and self._find_lengths is not None:
            self._lengths = self._find_lengths()
        return self._lengths

    def digest(self) -> Digest:
        """What the files hold, found out when first asked for."""
        if self._digest is None:
            self._digest = file_digest(
                self.paths,
                self.stats,
                self.read,
                len(self),
                json.dumps(self.describe()),
                self.cache,
            )
        return self._digest

    def digest_of(self, rows: int, /) -> Digest:
        """What the first rows hold."""
        return {"rows": row_digest(self.read, rows)}

    def describe(self) -> Json:
        """Format, number of rows and columns; `columns` is `None` where they are known only row by
        row."""
        columns = self._columns
        found = {
            "format": self.format,
            "rows": len(self),
            "columns": None if columns is None else list(columns),
        }
        return found if self.counts is None else {**found, "tokens": self.counts.counted}
