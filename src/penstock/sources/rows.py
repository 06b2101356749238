"""From Arrow columns to rows: dicts of Python values, with NumPy arrays where a column holds lists of numbers."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..base import seams
from ..stores import FarFile, is_far
from ..types import Ints

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_NUMBERS = (*_INTEGERS, "halffloat", "float", "double", "bool")


@cache
def arrow(module: str = "pyarrow") -> Any:
    """A module of pyarrow, imported when it is first needed."""
    return importlib.import_module(module)


def mapped(path: Path) -> Any:
    """The bytes of a file as a buffer, mapped. Unlike `mmap` it keeps no file handle, so there may be many."""
    if is_far(path):
        return arrow().py_buffer(seams.world.store.read(str(path)))
    return arrow().memory_map(spelled(path)).read_buffer()


def opened(path: Path) -> Any:
    """A file as Arrow reads it; of what lies in a store, the parts that it asks for."""
    if is_far(path):
        return arrow().PythonFile(FarFile(str(path)), "r")
    return arrow().OSFile(spelled(path))


def spelled(path: Path) -> bytes:
    """A path as the system has it: the names of files need not be UTF-8."""
    return str(path).encode("utf-8", "surrogateescape")


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
        try:
            return column.take(taken).to_pylist()
        except arrow().ArrowNotImplementedError:  # views of texts, as polars writes them, cannot be taken from
            return [column[index].as_py() for index in indices.tolist()]
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
    kind = array.type
    how = _checks().get(kind.id)
    if how is None and isinstance(array, arrow().ExtensionArray):
        check(array.storage)
    elif how is None:
        array.validate(full=True)  # views, unions, run-end encodings
    elif how == "dictionary":
        places = array.indices.drop_null().to_numpy(zero_copy_only=False)
        if places.size and not 0 <= int(places.min()) <= int(places.max()) < len(array.dictionary):
            raise ValueError("a damaged column: an index lies outside of its dictionary")
        check(array.dictionary)
    elif how == "struct":
        for field in range(kind.num_fields):
            check(array.field(field))
    elif how != "plain":
        held, width, values = array.buffers(), _WIDTHS.get(how), array.values if how in _LISTS else None
        if width and held[1] is not None and len(array):
            offsets = np.frombuffer(held[1], width)[array.offset : array.offset + len(array) + 1]
            size = len(values) if values is not None else held[2].size if held[2] else 0
            if offsets[0] < 0 or offsets[-1] > size or (offsets[1:] < offsets[:-1]).any():
                raise ValueError("a damaged column: an offset lies outside of its values")
        if how in _LISTS:
            check(values)


_WIDTHS = {"text": "<i4", "large text": "<i8", "list": "<i4", "large list": "<i8"}
_LISTS = ("list", "large list", "fixed list")


@cache
def _checks() -> dict[int, str]:
    """What there is to check in arrays of each type."""
    pa = arrow()
    plain = [pa.null(), pa.bool_(), pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64()]
    plain += [pa.duration("s")]
    plain += [getattr(pa, name)() for name in _INTEGERS]
    plain += [pa.timestamp("s"), pa.time32("s"), pa.time64("us"), pa.decimal128(1), pa.decimal256(1), pa.binary(1)]
    item = pa.int8()
    found = {kind.id: "plain" for kind in plain}
    found |= {kind.id: "text" for kind in (pa.string(), pa.binary())}
    found |= {kind.id: "large text" for kind in (pa.large_string(), pa.large_binary())}
    found |= {kind.id: "list" for kind in (pa.list_(item), pa.map_(item, item))}
    found |= {pa.large_list(item).id: "large list", pa.list_(item, 1).id: "fixed list", pa.struct([]).id: "struct"}
    return {**found, pa.dictionary(item, item).id: "dictionary"}


def _bare(values: Any) -> Any:
    """The numbers of an array, whatever stands where it has nulls."""
    parts = [None, values.buffers()[1]]
    bare = arrow().Array.from_buffers(values.type, len(values), parts, offset=values.offset)
    return bare.to_numpy(zero_copy_only=False)
