"""Several parts, one after the other, read as one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..base.seams import Stat
from ..base.spans import Spans, Stored, join_spans
from ..types import Ints, Json
from . import sidecar
from .identity import Digest, file_digest, row_digest
from .paths import TokenType

_FEW = 8  # rows for each part, up to which it pays to put them together before they are converted


class File(Protocol):
    """One file of a source: its rows by index. `columns` are the names it gives, `None` where only the rows know."""

    @property
    def columns(self) -> Sequence[str] | None: ...
    def __len__(self) -> int: ...
    def read(self, indices: Ints, /) -> list[Any]: ...


def starts_of(sizes: Sequence[int] | Ints) -> Ints:
    """Where each part begins, and at last where the whole ends: int64[len(sizes) + 1]."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(sizes, np.int64))])


def by_part(
    starts: Ints,
    indices: Ints,
    read: Callable[[int, Ints], list[Any]],
    few: Callable[[list[int], Ints], list[Any]] | None = None,
) -> list[Any]:
    """Read rows from parts, every part once: `read(part, rows of that part)`. Results in the order asked.

    Where there are only a few rows for each part, `few` (if given) is called once instead, with the part of each row.

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
    if few and len(cuts) * _FEW > len(rows):
        values = few(parts.tolist(), rows)
    else:
        for start, stop in pairwise(cuts):
            values += read(int(parts[start]), rows[start:stop])
    out: list[Any] = [None] * len(values)
    for place, value in zip(order.tolist(), values, strict=True):
        out[place] = value
    return out


class Outline(NamedTuple):
    """What a source knows of its files: the rows of each, their columns, and the version of each."""

    rows: Sequence[int] | Ints
    columns: Sequence[str] | None
    stats: Sequence[Stat]


def outline_of(files: Sequence[File], paths: Sequence[Path]) -> Outline:
    """The outline of files that are open."""
    columns = files[0].columns if files else None
    return Outline([len(file) for file in files], columns, [sidecar.stat(path) for path in paths])


class Asked(NamedTuple):
    """What a source of files was asked for: enough to ask for it again."""

    paths: tuple[str, ...]
    format: str | None
    columns: tuple[str, ...] | None
    cache: str | None
    lengths: str | None
    split: str | None
    where: Mapping[str, Any] | None
    dtype: TokenType | None = None
    eos: int | None = None


def in_file_order(starts: Ints, ends: Ints, read: Callable[[Ints, Ints], Iterable[Any]]) -> list[Any]:
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


class Chain:
    """Files of one format as one source, in the order given. What `open_files` returns.

    `name` is what the source is called where nobody gave it a name; `files` are its parts, `paths` and `stats` what was
    found of them. `lengths` finds the sizes of all rows, where they can be known, `column` is the one that they are of;
    `asked` is what `open_files` was asked for. No file is touched before a row of it is read.
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
        lengths: Callable[[], Ints] | None = None,
        column: str | None = None,
    ) -> None:
        self.name, self.paths, self.stats, self.cache = name, list(paths), outline.stats, cache
        self._digest: Digest | None = None
        self.asked: Asked | None = None
        self._find_lengths, self.column = lengths, column
        self._lengths: Ints | None = None
        self.format = format
        self.files = files
        self._columns = outline.columns
        self._starts = starts_of(outline.rows)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __repr__(self) -> str:
        return f"<{self.format} source {self.name!r}: {len(self)} rows in {len(self.files)} files>"

    def read(self, indices: Ints, /) -> list[Any]:
        """The rows at `indices`, each file visited once."""
        return by_part(self._starts, indices, lambda part, rows: self.files[part].read(rows))

    def spans(self, indices: Ints, /) -> Spans | None:
        """The rows at `indices` as places in files of tokens; None where they are others."""
        parts = np.searchsorted(self._starts, indices, side="right") - 1
        order, found = np.argsort(parts, kind="stable"), list[Spans]()
        for some in np.split(order, np.flatnonzero(np.diff(parts[order])) + 1):
            file = self.files[int(parts[some[0]])] if len(some) else None
            spans = file.spans(indices[some] - self._starts[parts[some]]) if isinstance(file, Stored) else None
            if spans is None:
                return None
            found.append(spans)
        return join_spans(found, order)

    def lengths(self) -> Ints | None:
        """The sizes of all rows, found when first asked for; `None` where nobody knows them without reading."""
        if self._lengths is None and self._find_lengths is not None:
            self._lengths = self._find_lengths()
        return self._lengths

    def digest(self) -> Digest:
        """What the files hold, found out when first asked for."""
        if self._digest is None:
            self._digest = file_digest(
                self.paths, self.stats, self.read, len(self), json.dumps(self.describe()), self.cache
            )
        return self._digest

    def digest_of(self, rows: int, /) -> Digest:
        """What the first rows hold."""
        return {"rows": row_digest(self.read, rows)}

    def describe(self) -> Json:
        """Format, number of rows and columns; `columns` is `None` where they are known only row by row."""
        columns = self._columns
        return {"format": self.format, "rows": len(self), "columns": None if columns is None else list(columns)}
