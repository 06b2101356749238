"""In which file each row of a source lies, and at which row of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from ..errors import ConfigError
from ..types import Ints
from . import open_files
from .chain import Asked, Chain
from .select import Selected


@runtime_checkable
class Filed(Protocol):
    """A source that knows in which of its files a row lies."""

    @property
    def paths(self) -> Sequence[Path]: ...
    def lying(self, indices: Ints, /) -> tuple[Ints, Ints]: ...


def filed(source: object) -> Filed | None:
    """The source, where each of its rows lies in one file."""
    known = isinstance(source, Chain) and len(source.paths) == len(source.files)
    return cast(Filed, source) if known or isinstance(source, Selected) else None


def row_of(source: object, index: int) -> tuple[Path, int] | None:
    """The file in which a sample lies, and its row there; None where the source has no files."""
    files = filed(source)
    if files is None or not 0 <= index < len(cast("Any", source)):
        return None
    part, row = files.lying(np.asarray([index], np.int64))
    return files.paths[int(part[0])], int(row[0])


def file_and_row(source: object, index: int) -> str:
    """Return ": file, row n" for a row of a source of files, for notes of errors; nothing for other
    sources."""
    found = row_of(source, index)
    return f": {found[0]}, row {found[1]}" if found else ""


class Keys:
    """What one column of a source holds, row by row: the names of its samples, `__key__` in
    archives."""

    def __init__(self, source: object, column: str) -> None:
        asked: Asked | None = getattr(source, "asked", None)
        self._column, self._source = column, cast(Any, source)
        if asked is not None and (
            asked.columns is not None or getattr(source, "format", "") in ("parquet", "arrow")
        ):
            paths, form, _, cache, _, split, where, dtype, eos = asked
            try:
                self._source = open_files(
                    paths, form, [column], cache, None, split, where, dtype, eos
                )
            except ConfigError:  # there is no such column
                self._source = None

    def of(self, indices: Ints) -> list[str | None]:
        """The keys of these rows; None where a row has no such column."""
        if self._source is None:
            return [None] * len(indices)
        different, back = np.unique(indices, return_inverse=True)
        rows = self._source.read(different)
        found = [
            _text(cast("dict[str, Any]", row).get(self._column)) if isinstance(row, dict) else None
            for row in rows
        ]
        return [found[place] for place in back.tolist()]


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)
