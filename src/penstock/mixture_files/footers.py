"""What is known of the files of a source without reading them: footers, indexes that are there, and
first lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

from ..engine.base import seams
from ..sources import catalog, outlined, sidecar
from ..sources.columnar import Arrow
from ..sources.kinds import Made, kinds_of
from ..sources.lru import LRUCache, SharedCaches
from ..sources.rows import arrow

_LINE = 64 << 10  # bytes that are read of a file for its first line


def first_of(path: Path) -> list[str]:
    """What the first row of a file of lines has, none where that is not seen at once."""
    if path.suffix.lower() != ".jsonl":
        return []
    line, end, _ = seams.world.store.read(str(path), 0, _LINE).partition(b"\n")
    try:
        row = json.loads(line) if end else None
    except (ValueError, RecursionError):
        return []
    return [*cast("dict[str, Any]", row)] if isinstance(row, dict) else []


def lines(paths: list[Path], kind: str, cache: str | None) -> int | None:
    """The rows of files of lines, where all are indexed already."""
    if len(paths) >= catalog.MANY:
        return outlined(paths, kind, cache)
    total = 0
    for path in paths:
        kept = sidecar.index_path(path, cache)
        stamp = (
            sidecar.decode(seams.world.store.read(str(kept), 0, sidecar.HEADER))
            if kept.exists()
            else None
        )
        if stamp is None or stamp.data[:2] != sidecar.stat(path)[:2]:
            return None
        total += stamp.total
    return total


@cache
def _shared() -> SharedCaches:
    return SharedCaches(LRUCache(1), LRUCache(1))


class RowGroups(NamedTuple):
    """What the footers of Parquet files tell of the columns that are read: all bytes, those of a
    row group and of a row, as they lie in memory, and the rows of a group.
    """

    bytes: int
    each: float
    row: float
    rows: int


def footers(
    paths: tuple[Path, ...], kind: str, asked: Sequence[str] | None
) -> tuple[int, list[str], RowGroups | None]:
    """The rows of these files, the columns of the first, and what is known of the row groups of
    Parquet."""
    rows, columns, groups, size = 0, list[str](), 0, 0
    for path in paths:
        if kind == "arrow":
            file = Arrow(path, columns=None, shared=_shared())
            rows, columns = rows + len(file), columns or list(file.columns)
            continue
        try:
            footer: Any = arrow("pyarrow.parquet").read_metadata(str(path))
        except (arrow().ArrowException, ValueError) as error:
            raise OSError(f"{path}: cannot be read: {error}") from error
        rows, columns = rows + footer.num_rows, columns or footer.schema.to_arrow_schema().names
        groups += footer.num_row_groups
        size += sum(
            _bytes(footer.row_group(number), asked) for number in range(footer.num_row_groups)
        )
    if kind == "arrow" or not rows or not groups:
        return rows, columns, None
    return rows, columns, RowGroups(size, size / groups, size / rows, -(-rows // groups))


def ids_in(path: Path, kind: str, column: str | None) -> str | None:
    """The dtype of the integers in the lists of a column of a file; None if the column holds
    something else."""
    if column is None:
        return None
    if kind == "arrow":
        types = Arrow(path, columns=None, shared=_shared()).types
    else:
        try:
            schema: Any = arrow("pyarrow.parquet").read_schema(str(path))
        except (arrow().ArrowException, ValueError) as error:
            raise OSError(f"{path}: cannot be read: {error}") from error
        types = kinds_of(schema, schema.names)
    found = types.get(column)
    inner = found.parts[0][1] if isinstance(found, Made) and found.of == "list" else None
    return inner if isinstance(inner, str) and inner.lstrip("u").startswith("int") else None


def _bytes(group: Any, asked: Sequence[str] | None) -> int:
    """The bytes of a row group in memory, of the columns that are read."""
    parts = (group.column(number) for number in range(group.num_columns))
    return sum(
        part.total_uncompressed_size
        for part in parts
        if asked is None or part.path_in_schema.partition(".")[0] in asked
    )
