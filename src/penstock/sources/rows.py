"""From Arrow columns to rows: dicts of Python values, with NumPy arrays where a column holds lists of numbers."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..types import Ints

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_NUMBERS = (*_INTEGERS, "halffloat", "float", "double", "bool")


def arrow(module: str = "pyarrow") -> Any:
    """A module of pyarrow, imported when it is first needed."""
    return importlib.import_module(module)


def rows_of(table: Any, indices: Ints, *, views: bool) -> list[dict[str, Any]]:
    """Some rows of a record batch or a table, column by column.

    A list of numbers becomes an array (read-only; a list with a null in it stays a list). With `views` these arrays
    share the memory of the table, which is right where that is a mapped file; otherwise they share a copy of just these
    rows, so that a sample kept for long does not keep all the rows it was stored with.
    """
    taken = arrow().array(indices)
    columns = [_values(column, indices, taken, views) for column in table.columns]
    names: list[str] = table.schema.names
    if len(names) == 1:
        return [{names[0]: value} for value in columns[0]]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def together(pieces: Sequence[Any]) -> Any:
    """Record batches and tables, one after the other, as one batch; as a table where they are too large for that."""
    pa = arrow()
    tables = [piece if isinstance(piece, pa.Table) else pa.Table.from_batches([piece]) for piece in pieces]
    table = pa.concat_tables(tables).combine_chunks()
    batches = table.to_batches()
    return batches[0] if len(batches) == 1 else table


def _values(column: Any, indices: Ints, taken: Any, views: bool) -> list[Any]:
    types = arrow("pyarrow.types")
    kind = column.type
    fixed = types.is_fixed_size_list(kind)
    if not (fixed or types.is_list(kind) or types.is_large_list(kind)) or str(kind.value_type) not in _NUMBERS:
        return column.take(taken).to_pylist()
    chunked = isinstance(column, arrow().ChunkedArray)
    if not views or chunked or str(kind.value_type) == "bool" or column.values.null_count:
        column = column.take(taken)
        column = column.combine_chunks() if chunked else column
        indices = np.arange(len(column), dtype=np.int64)
    if fixed:
        starts = (indices + column.offset) * kind.list_size
        stops = starts + kind.list_size
    else:
        offsets = column.offsets.to_numpy()
        starts, stops = offsets[indices], offsets[indices + 1]
    values = column.values
    numbers = _bare(values) if values.null_count else values.to_numpy(zero_copy_only=False)
    out: list[Any] = [numbers[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    if values.null_count:
        nulls = np.concatenate([[0], np.cumsum(values.is_null().to_numpy(zero_copy_only=False))])
        for row in np.flatnonzero(nulls[starts] != nulls[stops]).tolist():
            out[row] = values.slice(int(starts[row]), len(out[row])).to_pylist()
    if column.null_count:
        for row in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)[indices]).tolist():
            out[row] = None
    return out


def check(array: Any) -> None:
    """Refuse an array whose offsets or dictionary indices lead outside of it: reading it could end the process.

    `Array.validate` looks at sizes only, and with `full=True` at all bytes of all texts; this looks at the offsets.
    """
    types, kind = arrow("pyarrow.types"), array.type
    if isinstance(array, arrow().ExtensionArray):
        check(array.storage)
    elif types.is_dictionary(kind):
        places = array.indices.drop_null().to_numpy(zero_copy_only=False)
        if places.size and not 0 <= int(places.min()) <= int(places.max()) < len(array.dictionary):
            raise ValueError("a damaged column: an index lies outside of its dictionary")
        check(array.dictionary)
    elif types.is_string(kind) or types.is_binary(kind):
        _check_offsets(array, "<i4", array.buffers()[2])
    elif types.is_large_string(kind) or types.is_large_binary(kind):
        _check_offsets(array, "<i8", array.buffers()[2])
    elif types.is_list(kind) or types.is_map(kind):
        _check_offsets(array, "<i4", array.values)
        check(array.values)
    elif types.is_large_list(kind):
        _check_offsets(array, "<i8", array.values)
        check(array.values)
    elif types.is_fixed_size_list(kind):
        check(array.values)
    elif types.is_struct(kind):
        for field in range(kind.num_fields):
            check(array.field(field))
    elif not (types.is_primitive(kind) or types.is_fixed_size_binary(kind) or types.is_decimal(kind)):
        array.validate(full=True)  # views, unions and run-end encodings


def _check_offsets(array: Any, dtype: str, values: Any) -> None:
    held = array.buffers()[1]
    if held is None or not len(array):
        return
    offsets = np.frombuffer(held, dtype)[array.offset : array.offset + len(array) + 1]
    size = 0 if values is None else len(values)
    if offsets[0] < 0 or offsets[-1] > size or bool((offsets[1:] < offsets[:-1]).any()):
        raise ValueError("a damaged column: an offset lies outside of its values")


def _bare(values: Any) -> Any:
    """The numbers of an array, whatever stands where it has nulls."""
    parts = [None, values.buffers()[1]]
    bare = arrow().Array.from_buffers(values.type, len(values), parts, offset=values.offset)
    return bare.to_numpy(zero_copy_only=False)
