"""Gather distant rows of a memory-mapped Arrow file directly from its bytes.

Arrow takes rows from one batch at a time. For 64 rows in 64 batches that overhead exceeds the cost
of copying the bytes. This module computes the offsets of all values at once. Like every other
reader it touches the bytes of a batch only after `open_batch` has opened and checked the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..arrays.columnar import import_arrow
from ..types import Ints
from .rows import to_numpy_dtype

_UNKNOWN, _UNSUPPORTED = -1, -2
_OFFSET_WIDTHS = {"string": 4, "binary": 4, "large_string": 8, "large_binary": 8}
_MAX_32_BIT_BYTES = 1 << 31  # bytes that 32-bit offsets address


class ArrowTake:
    """Buffer offsets of the batches seen so far; `open_batch` opens and checks a batch."""

    def __init__(
        self, schema: Any, batches: int, mapped: Callable[[], Any], open_batch: Callable[[int], Any]
    ) -> None:
        self._schema, self._mapped, self._open_batch = schema, mapped, open_batch
        self._known = np.zeros(batches, np.bool_)
        # For each column and batch: the byte offset of its values, and of its offsets if any.
        self._values = np.full((len(schema), batches), _UNKNOWN)
        self._offsets = np.full((len(schema), batches), _UNKNOWN)

    def take(self, batches: Ints, rows: Ints) -> Any:
        """Return a record batch of these rows of these batches, in order."""
        for batch in np.unique(batches[~self._known[batches]]).tolist():
            self._locate(batch)
        buffer = self._mapped()
        data = np.frombuffer(buffer, np.uint8)
        columns = list[Any]()
        for number, field in enumerate(self._schema):
            column = None
            if bool((self._values[number, batches] != _UNSUPPORTED).all()):
                column = self._column(data, number, field.type, batches, rows)
            if column is None:
                pairs = zip(batches.tolist(), rows.tolist(), strict=True)
                column = import_arrow().concat_arrays(
                    [self._open_batch(n).column(number).slice(row, 1) for n, row in pairs]
                )
            columns.append(column)
        return import_arrow().RecordBatch.from_arrays(columns, schema=self._schema)

    def _locate(self, batch: int) -> None:
        base, size = self._mapped().address, self._mapped().size
        for field, column in enumerate(self._open_batch(batch).columns):
            self._values[field, batch], self._offsets[field, batch] = _find_buffer_offsets(
                column, base, size
            )
        self._known[batch] = True

    def _column(
        self, data: npt.NDArray[np.uint8], field: int, arrow_type: Any, batches: Ints, rows: Ints
    ) -> Any:
        pa, value_offsets = import_arrow(), self._values[field, batches]
        if (
            width := _OFFSET_WIDTHS.get(str(arrow_type)) or _find_list_offset_width(arrow_type)
        ) is None:
            dtype = to_numpy_dtype(arrow_type)
            size = dtype.itemsize
            values = data[: len(data) // size * size].view(dtype)
            return pa.array(values[value_offsets // size + rows], arrow_type)
        offsets = data[: len(data) // width * width].view(f"<i{width}")
        positions = self._offsets[field, batches] // width + rows
        item_size = arrow_type.value_type.bit_width // 8 if hasattr(arrow_type, "value_type") else 1
        starts, stops = offsets[positions].astype(np.int64), offsets[positions + 1].astype(np.int64)
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(stops - starts)])
        if ends[-1] * item_size >= _MAX_32_BIT_BYTES:
            return None
        view = memoryview(cast(Any, data))
        lows, highs = (
            (value_offsets + starts * item_size).tolist(),
            (value_offsets + stops * item_size).tolist(),
        )
        joined = pa.py_buffer(
            b"".join([view[low:high] for low, high in zip(lows, highs, strict=True)])
        )
        offset_buffer = pa.py_buffer(ends.astype(f"<i{width}"))
        if not hasattr(arrow_type, "value_type"):
            return pa.Array.from_buffers(arrow_type, len(rows), [None, offset_buffer, joined])
        child = pa.Array.from_buffers(arrow_type.value_type, int(ends[-1]), [None, joined])
        return pa.Array.from_buffers(arrow_type, len(rows), [None, offset_buffer], children=[child])


def _find_list_offset_width(kind: Any) -> int | None:
    types = import_arrow("pyarrow.types")
    return 4 if types.is_list(kind) else 8 if types.is_large_list(kind) else None


def _find_buffer_offsets(column: Any, base: int, size: int) -> tuple[int, int]:
    """Return the file offsets of the values and of the offsets of a column.

    Supported are numbers, texts and lists of numbers, without nulls; other columns yield
    `_UNSUPPORTED`.
    """
    arrow_type, buffers = column.type, column.buffers()
    offset_width = _OFFSET_WIDTHS.get(str(arrow_type)) or _find_list_offset_width(arrow_type)
    if (
        column.null_count
        or column.offset
        or not len(column)
        or (offset_width is None and not _is_number(arrow_type))
    ):
        return _UNSUPPORTED, _UNSUPPORTED
    values = buffers[1]
    if offset_width is not None:
        if _find_list_offset_width(arrow_type) is not None:
            child = column.values
            if not _is_number(arrow_type.value_type) or child.null_count or child.offset:
                return _UNSUPPORTED, _UNSUPPORTED
            values = child.buffers()[1]
        else:
            values = buffers[2]
    width = offset_width or arrow_type.bit_width // 8
    offsets = [_locate_buffer(buffer, base, size) for buffer in (values, buffers[1])]
    if offset_width is not None and (values is None or values.size == 0):
        offsets[0] = 0  # all texts are empty
    if _UNSUPPORTED in offsets or offsets[1] % width:
        return _UNSUPPORTED, _UNSUPPORTED
    return offsets[0], offsets[1]


def _locate_buffer(buffer: Any, base: int, size: int) -> int:
    if buffer is None:
        return _UNSUPPORTED
    offset: int = buffer.address - base
    return offset if 0 <= offset <= size - buffer.size else _UNSUPPORTED


def _is_number(kind: Any) -> bool:
    types = import_arrow("pyarrow.types")
    return types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind)
