"""How long the lists of a column are, for every row and without reading the rows: what packing ahead of time needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..base.progress import Progress
from ..errors import ConfigError, DataError
from ..types import Ints
from . import sidecar
from .chain import File
from .rows import arrow


@runtime_checkable
class Listed(Protocol):
    """A file that can give one column by itself, piece by piece. `slow` where that means decoding all of it."""

    path: Path
    slow: bool

    def __len__(self) -> int: ...
    def column(self, name: str, /) -> Iterator[Any]: ...


def lengths_of(files: Sequence[File], column: str, cache: str | Path | None, rebuild: bool = False) -> Ints:
    """The number of elements of `column` in every row: int64[rows].

    Where finding out means decoding the column, the answer is kept beside the file or in `cache`, checked against the
    file's size and time, or made anew with `rebuild`.
    """
    found = [np.zeros(0, np.int64)]
    for file in files:
        if not isinstance(file, Listed):
            raise ConfigError(
                f"lengths={column!r}: only Parquet and Arrow files tell the lengths of a column's lists without being "
                "read; write the tokens into one of these"
            )
        found.append(_kept(file, column, cache, rebuild) if file.slow else _counted(file, column))
    return np.concatenate(found)


def _kept(file: Listed, column: str, cache: str | Path | None, rebuild: bool) -> Ints:
    what = f"lengths-{''.join(c if c.isalnum() else '-' for c in column)}"
    otherwise = sidecar.index(file.path, cache, what)

    def make(_: bool) -> tuple[int, bytes]:
        return len(file), _counted(file, column).astype("<i8").tobytes()

    place = sidecar.place(file.path, cache, what)
    kept = sidecar.kept(place, sidecar.LENGTHS, file.path, make, otherwise=otherwise, rebuild=rebuild)
    rows, body = sidecar.body(kept, sidecar.LENGTHS, file.path)
    if rows != len(file):
        raise sidecar.damaged(kept, file.path)
    return np.frombuffer(body, "<i8").astype(np.int64)


def _counted(file: Listed, column: str) -> Ints:
    compute: Any = arrow("pyarrow.compute")
    types: Any = arrow("pyarrow.types")
    pieces = [np.zeros(0, np.int64)]
    with Progress(f"read lengths of {column} of {file.path.name}", len(file), "rows") as progress:
        for piece in file.column(column):
            kind = piece.type
            if not (types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)):
                raise ConfigError(f"{file.path}: lengths={column!r}: the column holds {kind}, not lists")
            if piece.null_count:
                raise DataError(f"column {column!r} has rows without a list: fill or drop them", where=str(file.path))
            pieces.append(compute.list_value_length(piece).to_numpy(zero_copy_only=False).astype(np.int64))
            progress.more(len(piece))
    return np.concatenate(pieces)
