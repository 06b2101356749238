"""Bounds on the memory of columns and of row numbers, checked before they are allocated.

Run-end encodings, views and columns of nulls let a file of a few bytes claim very many values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..arrays.columnar import import_arrow
from ..errors import DataError
from ..stores.limits import DECODED
from ..types import Ints
from .convert import MAX_UNPACK_RATIO

ROWS_PER_PIECE = 1 << 20
"""Rows of a column that are compared, counted or filled at once."""

_ROW_BYTES = 8  # of the number of a row
_OFFSET_BYTES = 8  # of a text or a list


def require_small_column(
    column: Any, target: Any, rows: int, name: str, path: Path, packed: int
) -> None:
    """Raise if a column takes far more memory than its bytes once it is converted to `target`.

    Args:
        column: The Arrow array, or `None` for a column of nulls that the file lacks.
        target: The type to which it is converted.
        rows: Number of its rows.
        name: Its name.
        path: The file.
        packed: Bytes of the columns that are decoded together with it.

    Raises:
        DataError: It takes more than `DECODED`, and more than 250 times these bytes.
    """
    limit = max(DECODED, MAX_UNPACK_RATIO * packed)
    chunks = column.chunks if isinstance(column, import_arrow().ChunkedArray) else [column]
    size = rows * _measure_width(target)
    if column is not None:
        size = max(size, sum(_measure_repeated(chunk, target) for chunk in chunks))
    if size > limit:
        raise DataError(
            f"{rows:,} rows of the column {name!r} would take {size >> 20:,} MiB of memory, and the "
            f"limit is {limit >> 20:,} MiB: leave it out (columns=), or write smaller record batches",
            where=str(path),
        )


def require_room_for_rows(rows: int, path: Path, size: int) -> None:
    """Raise if one number for each row of a file takes far more memory than the file.

    Args:
        rows: The rows that the file claims.
        path: The file.
        size: Its bytes.

    Raises:
        DataError: The numbers take more than `DECODED`, and more than 250 times these bytes.
    """
    limit = max(DECODED, MAX_UNPACK_RATIO * size)
    if _ROW_BYTES * rows > limit:
        raise DataError(
            f"it claims {rows:,} rows in {size:,} bytes, and their numbers would take more than "
            f"{limit >> 20:,} MiB of memory: read it without selecting or counting its rows, or "
            "write fewer rows a file",
            where=str(path),
        )


def _measure_width(arrow_type: Any) -> int:
    """Return the bytes that a value of a type takes, without those of its text or items."""
    types = import_arrow("pyarrow.types")
    if types.is_struct(arrow_type):
        return sum(_measure_width(field.type) for field in arrow_type)
    if types.is_fixed_size_list(arrow_type):
        return arrow_type.list_size * _measure_width(arrow_type.value_type)
    if types.is_null(arrow_type) or types.is_union(arrow_type):
        return 0
    if types.is_dictionary(arrow_type):
        return _measure_width(arrow_type.index_type)
    try:
        return max(arrow_type.bit_width // 8, 1)
    except ValueError:
        return _OFFSET_BYTES


def _measure_repeated(array: Any, target: Any, counts: Ints | None = None) -> int:
    """Return about the bytes of an array whose elements occur `counts` times, once each by default.

    An array that has the type of the target already, and occurs once, takes none.
    """
    types, arrow_type = import_arrow("pyarrow.types"), array.type
    if counts is None and arrow_type.equals(target):
        return 0
    total = len(array) if counts is None else int(counts.sum())
    width = total * max(_measure_width(arrow_type), _measure_width(target))
    if isinstance(array, import_arrow().ExtensionArray):
        return _measure_repeated(array.storage, target, counts)
    if types.is_run_end_encoded(arrow_type):
        if counts is not None and len(array) * _ROW_BYTES > DECODED:
            return len(array) * _ROW_BYTES
        ends = array.run_ends.to_numpy().astype(np.int64) - array.offset
        bounds = np.clip(np.concatenate([np.zeros(1, np.int64), ends]), 0, len(array))
        if counts is not None:
            bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])[bounds]
        return _measure_repeated(array.values, target, np.diff(bounds))
    if types.is_dictionary(arrow_type) and not types.is_dictionary(target):
        codes = array.indices.fill_null(0).to_numpy()
        uses = np.bincount(codes, counts, len(array.dictionary)).astype(np.int64)
        return _measure_repeated(array.dictionary, target, uses)
    if types.is_struct(arrow_type):
        known = {field.name: field.type for field in target} if types.is_struct(target) else {}
        fields = [(array.field(number), field) for number, field in enumerate(arrow_type)]
        return sum(
            _measure_repeated(child, known.get(field.name, field.type), counts)
            for child, field in fields
        )
    if types.is_string_view(arrow_type) or types.is_binary_view(arrow_type):
        words = np.frombuffer(array.buffers()[1] or b"", "<u4")
        views = words[: len(words) // 4 * 4].reshape(-1, 4)
        lengths = views[array.offset : array.offset + len(array), 0].astype(np.int64)
        lengths[array.is_null().to_numpy(zero_copy_only=False)] = 0
    elif str(arrow_type).endswith(("string", "binary")):
        compute = import_arrow("pyarrow.compute")
        lengths = compute.binary_length(array).fill_null(0).to_numpy().astype(np.int64)
    elif types.is_nested(arrow_type) and not types.is_union(arrow_type):
        return width + _measure_items(array, target, counts)
    else:
        return width
    return width + int((lengths if counts is None else lengths * counts).sum())


def _measure_items(array: Any, target: Any, counts: Ints | None) -> int:
    """Return about the bytes of the items of lists, of views of lists, or of maps."""
    types = import_arrow("pyarrow.types")
    if types.is_fixed_size_list(array.type):
        starts = (np.arange(len(array)) + array.offset) * array.type.list_size
        stops = starts + array.type.list_size
    elif hasattr(array, "sizes"):
        starts = array.offsets.to_numpy().astype(np.int64)
        stops = starts + array.sizes.to_numpy() * array.is_valid().to_numpy(zero_copy_only=False)
    else:
        offsets = array.offsets.to_numpy().astype(np.int64)
        starts, stops = offsets[:-1], offsets[1:]
    if types.is_map(array.type):
        children = [(array.keys, "key_type"), (array.items, "item_type")]
    else:
        children = [(array.values, "value_type")]
    return sum(
        _measure_spans(child, getattr(target, name, child.type), starts, stops, counts)
        for child, name in children
    )


def _measure_spans(items: Any, target: Any, starts: Ints, stops: Ints, counts: Ints | None) -> int:
    """Return about the bytes of spans of items; each span occurs `counts` times."""
    if _is_fixed(items.type) and _is_fixed(target):
        total = int(((stops - starts) * (1 if counts is None else counts)).sum())
        return total * max(_measure_width(items.type), _measure_width(target))
    if len(items) * _ROW_BYTES > DECODED and import_arrow("pyarrow.types").is_run_end_encoded(
        items.type
    ):
        return len(items) * _ROW_BYTES
    changes = np.zeros(len(items) + 1, np.int64)
    np.add.at(changes, starts, 1 if counts is None else counts)
    np.subtract.at(changes, stops, 1 if counts is None else counts)
    return _measure_repeated(items, target, np.cumsum(changes)[:-1])


def _is_fixed(arrow_type: Any) -> bool:
    """Return whether all values of a type take the same bytes."""
    types = import_arrow("pyarrow.types")
    if types.is_struct(arrow_type):
        return all(_is_fixed(field.type) for field in arrow_type)
    if types.is_fixed_size_list(arrow_type):
        return _is_fixed(arrow_type.value_type)
    try:
        return types.is_null(arrow_type) or arrow_type.bit_width >= 0
    except ValueError:
        return False
