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
from ..sources.kinds import ColumnType, CompositeType
from ..sources.lru import LRUCache, SharedCaches
from ..sources.rows import open_for_arrow
from ..stores import storage

_NUMBERS_AND_TIMES = (
    "int", "uint", "float", "halffloat", "double", "bool", "decimal", "date", "time", "duration"
)  # fmt: skip
_FIRST_BYTES = 64 << 10  # bytes to read for the first lines of a file


def read_first_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows in the first 64 KiB of a JSONL file, up to one that is no mapping."""
    rows = list[dict[str, Any]]()
    if path.suffix.lower() != ".jsonl":
        return rows
    head = storage.world.store.read(str(path), 0, _FIRST_BYTES)
    lines = head.split(b"\n")
    for line in lines if len(head) < _FIRST_BYTES else lines[:-1]:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(row, dict):
            break
        rows.append(cast("dict[str, Any]", row))
    return rows


def _has_no_lines(path: Path) -> bool:
    """Return whether a line-based file is short and holds white space alone."""
    store = storage.world.store
    if store.stat(str(path)).size > _FIRST_BYTES:
        return False
    return not store.read(str(path), 0, _FIRST_BYTES).strip()


def count_indexed_lines(paths: list[Path], kind: str, cache: str | None) -> int | None:
    """Return the number of rows in line-based files, or None if one with rows has no index yet."""
    if len(paths) >= catalog.MIN_CATALOG_FILES:
        return count_catalog_rows(paths, kind, cache)
    total = 0
    for path in paths:
        index = derived_files.place_index(Kind.LINES, path, "lines", cache, checksummed=True)
        if (rows := derived_files.read_count(index)) is None:
            if not _has_no_lines(path):
                return None
            rows = 0
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
) -> tuple[int, Any, RowGroupSizes | None]:
    """Return the rows, the Arrow schema of the first file, and the sizes of row groups."""
    schema: Any = None
    rows, groups, size = 0, 0, 0
    for path in paths:
        if kind == "arrow":
            file = Arrow(path, columns=None, shared=_get_shared_caches())
            rows, schema = rows + len(file), schema or file.file_schema
            continue
        try:
            footer: Any = import_arrow("pyarrow.parquet").read_metadata(open_for_arrow(path))
        except (*list_content_errors(), ValueError) as error:
            raise OSError(f"{path}: cannot be read: {error}") from error
        rows, schema = rows + footer.num_rows, schema or footer.schema.to_arrow_schema()
        groups += footer.num_row_groups
        size += sum(
            _compute_decoded_size(footer.row_group(number), selected)
            for number in range(footer.num_row_groups)
        )
    if kind == "arrow" or not rows or not groups:
        return rows, schema, None
    return rows, schema, RowGroupSizes(size, size / groups, size / rows, -(-rows // groups))


def get_list_dtype(column_type: ColumnType | None) -> str | None:
    """Return the dtype of lists of integers, or None for any other type."""
    if not isinstance(column_type, CompositeType) or column_type.of != "list":
        return None
    item_type = column_type.parts[0][1]
    if isinstance(item_type, str) and item_type.lstrip("u").startswith("int"):
        return item_type
    return None


def can_hold_texts(column_type: ColumnType) -> bool:
    """Return whether values of a type may be texts; other than numbers, times and lists."""
    return isinstance(column_type, str) and not column_type.startswith(_NUMBERS_AND_TIMES)


def can_hold_tokens(column_type: ColumnType) -> bool:
    """Return whether values of a type may be sequences, whose length is a number of tokens."""
    if isinstance(column_type, CompositeType):
        return column_type.of != "struct"
    return column_type == "null" or "extension" in column_type


def _compute_decoded_size(group: Any, selected: Sequence[str] | None) -> int:
    """Return the decoded size of a row group, of the selected columns."""
    parts = (group.column(number) for number in range(group.num_columns))
    return sum(
        part.total_uncompressed_size
        for part in parts
        if selected is None or part.path_in_schema.partition(".")[0] in selected
    )
