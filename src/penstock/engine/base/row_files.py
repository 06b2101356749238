"""Map each row of a source to its file, its index in that file, and its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np

from ...types import FileSource, RowFiles


def as_row_files(source: object) -> RowFiles | None:
    """Return the files of the rows of a source, if each row lies in one file."""
    return source.row_files() if isinstance(source, FileSource) else None


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
