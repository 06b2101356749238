"""Rows that lie far apart in a mapped Arrow file, put together straight from its bytes.

Arrow takes rows from one batch at a time; of 64 rows in 64 batches the steps around that cost more
than the bytes. Here the places of the values of all rows are worked out at once. The bytes of a
batch are looked at only after the batch was opened and checked, as for every other way to read it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..types import Ints
from .rows import arrow, numpy_dtype

_UNKNOWN, _NO = -1, -2
_WIDTHS = {"string": 4, "binary": 4, "large_string": 8, "large_binary": 8}
_LARGEST = 1 << 31  # bytes that 32-bit offsets tell


class Gather:
    """The places of the buffers of a file, of the batches seen so far. `held` opens and checks a
    batch."""

    def __init__(
        self, schema: Any, batches: int, mapped: Callable[[], Any], held: Callable[[int], Any]
    ) -> None:
        self._schema, self._mapped, self._held = schema, mapped, held
        self._known = np.zeros(batches, np.bool_)
        # For each column and batch: where the values begin and, where they have offsets, those.
        self._values = np.full((len(schema), batches), _UNKNOWN)
        self._offsets = np.full((len(schema), batches), _UNKNOWN)

    def take(self, batches: Ints, rows: Ints) -> Any:
        """A record batch of these rows of these batches, in their order; None where it would be too
        large."""
        for number in np.unique(batches[~self._known[batches]]).tolist():
            self._look(number)
        buffer = self._mapped()
        data = np.frombuffer(buffer, np.uint8)
        columns = list[Any]()
        for place, field in enumerate(self._schema):
            column = None
            if bool((self._values[place, batches] != _NO).all()):
                column = self._column(data, place, field.type, batches, rows)
            if column is None:
                pairs = zip(batches.tolist(), rows.tolist(), strict=True)
                column = arrow().concat_arrays(
                    [self._held(n).column(place).slice(row, 1) for n, row in pairs]
                )
            columns.append(column)
        return arrow().RecordBatch.from_arrays(columns, schema=self._schema)

    def _look(self, number: int) -> None:
        base, size = self._mapped().address, self._mapped().size
        for place, column in enumerate(self._held(number).columns):
            self._values[place, number], self._offsets[place, number] = _places(column, base, size)
        self._known[number] = True

    def _column(
        self, data: npt.NDArray[np.uint8], place: int, kind: Any, batches: Ints, rows: Ints
    ) -> Any:
        pa, begin = arrow(), self._values[place, batches]
        if (width := _WIDTHS.get(str(kind)) or _offsets_in(kind)) is None:
            dtype = numpy_dtype(kind)
            size = dtype.itemsize
            values = data[: len(data) // size * size].view(dtype)
            return pa.array(values[begin // size + rows], kind)
        offsets = data[: len(data) // width * width].view(f"<i{width}")
        at = self._offsets[place, batches] // width + rows
        each = kind.value_type.bit_width // 8 if hasattr(kind, "value_type") else 1
        starts, stops = offsets[at].astype(np.int64), offsets[at + 1].astype(np.int64)
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(stops - starts)])
        if ends[-1] * each >= _LARGEST:
            return None
        view = memoryview(cast(Any, data))
        lows, highs = (begin + starts * each).tolist(), (begin + stops * each).tolist()
        joined = pa.py_buffer(
            b"".join([view[low:high] for low, high in zip(lows, highs, strict=True)])
        )
        told = pa.py_buffer(ends.astype(f"<i{width}"))
        if not hasattr(kind, "value_type"):
            return pa.Array.from_buffers(kind, len(rows), [None, told, joined])
        child = pa.Array.from_buffers(kind.value_type, int(ends[-1]), [None, joined])
        return pa.Array.from_buffers(kind, len(rows), [None, told], children=[child])


def _offsets_in(kind: Any) -> int | None:
    types = arrow("pyarrow.types")
    return 4 if types.is_list(kind) else 8 if types.is_large_list(kind) else None


def _places(column: Any, base: int, size: int) -> tuple[int, int]:
    """Where the values of a column begin in the file, and its offsets; `_NO` where it is none of
    those that are simple: numbers, texts and lists of numbers, without nulls."""
    kind, buffers = column.type, column.buffers()
    wide = _WIDTHS.get(str(kind)) or _offsets_in(kind)
    if (
        column.null_count
        or column.offset
        or not len(column)
        or (wide is None and not _number(kind))
    ):
        return _NO, _NO
    values = buffers[1]
    if wide is not None:
        if _offsets_in(kind) is not None:
            child = column.values
            if not _number(kind.value_type) or child.null_count or child.offset:
                return _NO, _NO
            values = child.buffers()[1]
        else:
            values = buffers[2]
    width = wide or kind.bit_width // 8
    found = [_within(each, base, size) for each in (values, buffers[1])]
    if wide is not None and (values is None or values.size == 0):
        found[0] = 0  # nothing but empty texts
    if _NO in found or found[1] % width:
        return _NO, _NO
    return found[0], found[1]


def _within(buffer: Any, base: int, size: int) -> int:
    if buffer is None:
        return _NO
    place: int = buffer.address - base
    return place if 0 <= place <= size - buffer.size else _NO


def _number(kind: Any) -> bool:
    types = arrow("pyarrow.types")
    return types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind)
