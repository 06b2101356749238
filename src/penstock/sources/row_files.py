"""Map each row of a source to its file and to its index in that file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from ..errors import ConfigError
from ..types import Ints
from . import open_files
from .chain import JoinedFiles, OpenArguments
from .select import SelectedRows


@runtime_checkable
class RowFiles(Protocol):
    """A source that knows the file of each row."""

    @property
    def paths(self) -> Sequence[Path]: ...
    def file_rows(self, indices: Ints, /) -> tuple[Ints, Ints]: ...


def as_row_files(source: object) -> RowFiles | None:
    """Return the source if each of its rows lies in one file, else `None`."""
    has_files = isinstance(source, JoinedFiles) and len(source.paths) == len(source.files)
    return cast(RowFiles, source) if has_files or isinstance(source, SelectedRows) else None


def locate_row(source: object, index: int) -> tuple[Path, int] | None:
    """Return the file and the row in it of a sample, or `None` if the source has no files."""
    files = as_row_files(source)
    if files is None or not 0 <= index < len(cast("Any", source)):
        return None
    part, row = files.file_rows(np.asarray([index], np.int64))
    return files.paths[int(part[0])], int(row[0])


def describe_row_location(source: object, index: int) -> str:
    """Return ": file, row n" for notes of errors; an empty string for sources without files."""
    location = locate_row(source, index)
    return f": {location[0]}, row {location[1]}" if location else ""


class SampleKeys:
    """The values of one column of a source, which name its samples; archives have `__key__`."""

    def __init__(self, source: object, column: str) -> None:
        arguments: OpenArguments | None = getattr(source, "open_arguments", None)
        self._column, self._source = column, cast(Any, source)
        if arguments is not None and (
            arguments.columns is not None or getattr(source, "format", "") in ("parquet", "arrow")
        ):
            paths, format, _, cache, _, split, where, dtype, eos = arguments
            try:
                self._source = open_files(
                    paths, format, [column], cache, None, split, where, dtype, eos
                )
            except ConfigError:  # there is no such column
                self._source = None

    def of(self, indices: Ints) -> list[str | None]:
        """Return the keys of these rows; `None` for a row without the column."""
        if self._source is None:
            return [None] * len(indices)
        unique, inverse = np.unique(indices, return_inverse=True)
        rows = self._source.read(unique)
        keys = [
            _to_optional_text(cast("dict[str, Any]", row).get(self._column))
            if isinstance(row, dict)
            else None
            for row in rows
        ]
        return [keys[number] for number in inverse.tolist()]


def _to_optional_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)
