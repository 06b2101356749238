"""Facts about files without reading their data: footers, existing indexes and first lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

from ..arrays.columnar import import_arrow, list_content_errors
from ..sources import catalog, count_catalog_rows, derived_files
from ..sources.columnar import Arrow
from ..sources.derived_files import Kind
from ..sources.kinds import ColumnType, CompositeType, describe_column_types
from ..sources.lru import LRUCache, SharedCaches
from ..stores import storage

_FIRST_LINE_BYTES = 64 << 10  # bytes to read for the first line of a file


def read_first_row_columns(path: Path) -> list[str]:
    """Return the columns of the first row of a JSONL file, or nothing if it is too long."""
    if path.suffix.lower() != ".jsonl":
        return []
    line, end, _ = storage.world.store.read(str(path), 0, _FIRST_LINE_BYTES).partition(b"\n")
    try:
        row = json.loads(line) if end else None
    except (ValueError, RecursionError):
        return []
    return [*cast("dict[str, Any]", row)] if isinstance(row, dict) else []


def count_indexed_lines(paths: list[Path], kind: str, cache: str | None) -> int | None:
    """Return the number of rows in line-based files, or None if one has no index yet."""
    if len(paths) >= catalog.MIN_CATALOG_FILES:
        return count_catalog_rows(paths, kind, cache)
    total = 0
    for path in paths:
        index = derived_files.place_index(Kind.LINES, path, "lines", cache, checksummed=True)
        if (rows := derived_files.read_count(index)) is None:
            return None
        total += rows
    return total


@cache
def _get_shared_caches() -> SharedCaches:
    return SharedCaches(LRUCache(1), LRUCache(1))


class RowGroupSizes(NamedTuple):
    """Sizes of Parquet row groups in memory, of the columns that are read.

    `bytes` is the total, `each` the mean of a row group, `row` the mean of a row, and `rows` the
    number of rows in a group.
    """

    bytes: int
    each: float
    row: float
    rows: int


def read_footers(
    paths: tuple[Path, ...], kind: str, selected: Sequence[str] | None
) -> tuple[int, list[str], RowGroupSizes | None]:
    """Return the number of rows, the columns of the first file, and the sizes of row groups."""
    rows, columns, groups, size = 0, list[str](), 0, 0
    for path in paths:
        if kind == "arrow":
            file = Arrow(path, columns=None, shared=_get_shared_caches())
            rows, columns = rows + len(file), columns or list(file.columns)
            continue
        try:
            footer: Any = import_arrow("pyarrow.parquet").read_metadata(str(path))
        except (*list_content_errors(), ValueError) as error:
            raise OSError(f"{path}: cannot be read: {error}") from error
        rows, columns = rows + footer.num_rows, columns or footer.schema.to_arrow_schema().names
        groups += footer.num_row_groups
        size += sum(
            _compute_decoded_size(footer.row_group(number), selected)
            for number in range(footer.num_row_groups)
        )
    if kind == "arrow" or not rows or not groups:
        return rows, columns, None
    return rows, columns, RowGroupSizes(size, size / groups, size / rows, -(-rows // groups))


def read_column_type(path: Path, kind: str, column: str) -> ColumnType | None:
    """Return the type of a column of a Parquet or Arrow file, or None if it is missing."""
    if kind == "arrow":
        return Arrow(path, columns=None, shared=_get_shared_caches()).types.get(column)
    try:
        schema: Any = import_arrow("pyarrow.parquet").read_schema(str(path))
    except (*list_content_errors(), ValueError) as error:
        raise OSError(f"{path}: cannot be read: {error}") from error
    return describe_column_types(schema, schema.names).get(column)


def get_list_dtype(column_type: ColumnType | None) -> str | None:
    """Return the dtype of lists of integers, or None for any other type."""
    if not isinstance(column_type, CompositeType) or column_type.of != "list":
        return None
    item_type = column_type.parts[0][1]
    if isinstance(item_type, str) and item_type.lstrip("u").startswith("int"):
        return item_type
    return None


def _compute_decoded_size(group: Any, selected: Sequence[str] | None) -> int:
    """Return the decoded size of a row group, of the selected columns."""
    parts = (group.column(number) for number in range(group.num_columns))
    return sum(
        part.total_uncompressed_size
        for part in parts
        if selected is None or part.path_in_schema.partition(".")[0] in selected
    )
