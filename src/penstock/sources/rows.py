"""From Arrow columns to rows: dicts of Python values, with NumPy arrays where a column holds lists
of numbers."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.base import seams
from ..errors import DataError
from ..stores import RemoteFile, is_remote
from ..types import Ints

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_NUMBERS = (*_INTEGERS, "halffloat", "float", "double", "bool")


@cache
def arrow(module: str = "pyarrow") -> Any:
    """A module of pyarrow, imported when it is first needed."""
    return importlib.import_module(module)


def mapped(path: Path) -> Any:
    """The bytes of a file as a buffer, mapped. Unlike `mmap` it keeps no file handle, so there may
    be many."""
    if is_remote(path):
        return arrow().py_buffer(seams.world.store.read(str(path)))
    return arrow().memory_map(spelled(path)).read_buffer()


def opened(path: Path) -> Any:
    """A file as Arrow reads it; of what lies in a store, the parts that it asks for."""
    if is_remote(path):
        return arrow().PythonFile(RemoteFile(str(path)), "r")
    return arrow().OSFile(spelled(path))


def spelled(path: Path) -> bytes:
    """A path as the system has it: the names of files need not be UTF-8."""
    return str(path).encode("utf-8", "surrogateescape")


def rows_of(table: Any, indices: Ints | None = None, *, views: bool) -> list[dict[str, Any]]:
    """Some rows of a record batch or a table, or all of them, column by column.

    A list of numbers becomes an array (read-only; a list with a null in it stays a list). With
    `views` these arrays share the memory of the table, which is right where that is a mapped file;
    otherwise they share a copy of just these rows, so that a sample kept for long does not keep all
    the rows it was stored with.
    """
    names: list[str] = table.schema.names
    columns = [
        column_values(name, column, indices, views)
        for name, column in zip(names, table.columns, strict=True)
    ]
    if not names:  # rows there are all the same
        return [{} for _ in range(table.num_rows if indices is None else len(indices))]
    if len(names) == 1:
        return [{names[0]: value} for value in columns[0]]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def together(pieces: Sequence[Any]) -> Any:
    """Record batches and tables, one after the other, as one batch; as a table where they are too
    large for that."""
    pa = arrow()
    if len(pieces) > 1 and all(isinstance(piece, pa.RecordBatch) for piece in pieces):
        try:
            return pa.concat_batches(pieces)
        except pa.ArrowInvalid:
            pass  # more text than the offsets of one batch can tell
    tables = [
        piece if isinstance(piece, pa.Table) else pa.Table.from_batches([piece]) for piece in pieces
    ]
    table = pa.concat_tables(tables).combine_chunks()
    batches = table.to_batches()
    return batches[0] if len(batches) == 1 else table


def numbers_in_lists(kind: Any) -> bool:
    """Whether a column of this type holds lists of numbers, whose values are arrays."""
    types = arrow("pyarrow.types")
    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return lists and str(kind.value_type) in _NUMBERS


def column_values(name: str, column: Any, indices: Ints | None, views: bool) -> list[Any]:
    """Return the values of a column at these places, or all of them; an error names the column."""
    try:
        return values_of(column, indices, views)
    except DataError as error:
        raise DataError(f"the column {name!r}: {error}") from error


def values_of(column: Any, indices: Ints | None, views: bool) -> list[Any]:
    """The values of a column at these places, or all of them."""
    kind = column.type
    if not numbers_in_lists(kind):
        if indices is None:
            return python_values(column)
        return python_values(column.take(arrow().array(indices)))
    chunked = isinstance(column, arrow().ChunkedArray)
    some = indices is not None
    if chunked or (
        some and (not views or str(kind.value_type) == "bool" or column.values.null_count)
    ):
        column = column.take(arrow().array(indices)) if some else column
        column, indices = (column.combine_chunks() if chunked else column), None
        views = views or some
    starts, stops = _bounds(column, indices)
    # Of all values of a large column only what lies between the first and the last list of these
    # rows.
    low = int(starts.min()) if len(starts) else 0
    high = max(low, int(stops.max())) if len(stops) else 0
    values, starts, stops = column.values.slice(low, high - low), starts - low, stops - low
    numbers = _bare(values) if values.null_count else values.to_numpy(zero_copy_only=False)
    numbers = numbers if views else numbers.copy()
    out: list[Any] = [
        numbers[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
    ]
    if values.null_count:
        nulls = np.concatenate([[0], np.cumsum(values.is_null().to_numpy(zero_copy_only=False))])
        for row in np.flatnonzero(nulls[starts] != nulls[stops]).tolist():
            out[row] = values.slice(int(starts[row]), len(out[row])).to_pylist()
    if column.null_count:
        gone = column.is_null().to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(gone if indices is None else gone[indices]).tolist():
            out[row] = None
    return out


@cache
def numpy_dtype(kind: Any) -> np.dtype[Any]:
    """Return the dtype of NumPy for an Arrow type. `to_pandas_dtype` needs pandas before pyarrow
    26.

    >>> import pyarrow as pa
    >>> numpy_dtype(pa.float32()), numpy_dtype(pa.timestamp("s"))
    (dtype('float32'), dtype('<M8[s]'))
    """
    return arrow().nulls(0, kind).to_numpy(zero_copy_only=False).dtype


def python_values(column: Any) -> list[Any]:
    """Return the values of a column in the types of Python; a `DataError` for those that do not
    fit.

    Timestamps and durations in nanoseconds, which Python's types do not hold, are NumPy's; of
    zones, those are in UTC.

    >>> import pyarrow as pa
    >>> python_values(pa.array([5_000], pa.time64("ns"))), python_values(pa.array([5], pa.timestamp("ns")))
    ([datetime.time(0, 0, 0, 5)], [np.datetime64('1970-01-01T00:00:00.000000005')])
    """
    convert = _nanoseconds(column.type)
    if convert is None:
        return exact_pylist(column)
    if arrow("pyarrow.types").is_dictionary(column.type):
        column = column.dictionary_decode()
    return list(map(convert, exact_pylist(column.cast(_counted(column.type)))))


def exact_pylist(column: Any) -> list[Any]:
    """Return `column.to_pylist()`; a `DataError` if Python's types hold less than a value.

    Where a column has timestamps or durations in nanoseconds, Arrow imports pandas, and without it
    raises for some.
    """
    if any(name in str(column.type) for name in _CUT_OFF):
        _require_exact(column)
    try:
        return column.to_pylist()
    except OverflowError as error:
        raise DataError(
            f"a value of {column.type} is beyond those of Python's type: {error}"
        ) from error


@cache
def _nanoseconds(kind: Any) -> Callable[[Any], Any] | None:
    """Return what makes a value of a type from one whose nanoseconds are integers; None for types
    without these."""
    types = arrow("pyarrow.types")
    if str(kind).startswith("timestamp[ns"):
        return lambda value: None if value is None else np.datetime64(value, "ns")
    if str(kind) == "duration[ns]":
        return lambda value: None if value is None else np.timedelta64(value, "ns")
    if types.is_dictionary(kind):
        return _nanoseconds(kind.value_type)
    if types.is_struct(kind):
        inner = {field.name: made for field in kind if (made := _nanoseconds(field.type))}
        if not inner:
            return None
        return lambda value: (
            value and {name: inner.get(name, _same)(part) for name, part in value.items()}
        )
    if types.is_map(kind):
        key, item = (_nanoseconds(part) or _same for part in (kind.key_type, kind.item_type))
        if key is item:
            return None
        return lambda value: value and [(key(name), item(part)) for name, part in value]
    if (
        types.is_nested(kind)
        and hasattr(kind, "value_type")
        and (of_item := _nanoseconds(kind.value_type))
    ):
        return lambda value: value and list(map(of_item, value))
    return None


def _same(value: Any) -> Any:
    return value


def _counted(kind: Any) -> Any:
    """Return a type with int64 in place of nanoseconds."""
    pa, types = arrow(), arrow("pyarrow.types")
    if not _nanoseconds(kind):
        return kind
    if types.is_struct(kind):
        return pa.struct([field.with_type(_counted(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_counted(kind.key_type), _counted(kind.item_type))
    if types.is_fixed_size_list(kind):
        return pa.list_(_counted(kind.value_type), kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(_counted(kind.value_type))
    return pa.list_(_counted(kind.value_type)) if types.is_list(kind) else pa.int64()


_CUT_OFF = ("time64[ns]", "date64", "extension")
"""Types whose Python values hold less than Arrow's; the name of an extension does not tell how it
is stored."""


def _require_exact(column: Any) -> None:
    """Raise `DataError` for times of day with nanoseconds, and for dates with a time of day."""
    for part in leaves(column):
        kind = str(part.type)
        if not (unit := {"time64[ns]": 1_000, "date64[ms]": 86_400_000}.get(kind)):
            continue
        numbers = part.cast(arrow().int64()).drop_null().to_numpy()
        if (cut := numbers[numbers % unit != 0]).size:
            lost = "nanoseconds" if unit == 1_000 else "time of day"
            raise DataError(
                f"the value {int(cut[0]):,} of {kind} would lose its {lost} in Python's type: "
                "store the column as "
                "int64, or leave it out (columns=)"
            )


def leaves(column: Any) -> Iterator[Any]:
    """Yield the arrays without parts that a column is made of."""
    pa, types, kind = arrow(), arrow("pyarrow.types"), column.type
    if isinstance(column, pa.ChunkedArray):
        below = column.chunks
    elif isinstance(column, pa.ExtensionArray):
        below = [column.storage]
    elif types.is_dictionary(kind):
        below = [column.dictionary_decode()]
    elif types.is_run_end_encoded(kind):
        below = [arrow("pyarrow.compute").run_end_decode(column)]
    elif types.is_union(kind):
        below = [column.field(place) for place in range(kind.num_fields)]
    elif types.is_struct(kind):
        below = column.flatten()
    elif types.is_map(kind):  # whose keys and items are those of the array that it is a slice of
        start, stop = (column.offsets[place].as_py() for place in (0, len(column)))
        below = [child.slice(start, stop - start) for child in (column.keys, column.items)]
    elif types.is_nested(kind):
        below = [column.flatten()]
    else:
        yield column
        return
    for part in below:
        yield from leaves(part)


def _bounds(column: Any, indices: Ints | None) -> tuple[Ints, Ints]:
    """Where the lists of a column begin and end among its values."""
    if arrow("pyarrow.types").is_fixed_size_list(column.type):
        places = np.arange(len(column), dtype=np.int64) if indices is None else indices
        starts = (places + column.offset) * column.type.list_size
        return starts, starts + column.type.list_size
    offsets = column.offsets.to_numpy()
    return (
        (offsets[:-1], offsets[1:]) if indices is None else (offsets[indices], offsets[indices + 1])
    )


def check(array: Any) -> None:
    """Refuse an array whose offsets or dictionary indices lead outside of it: reading it could end
    the process.

    `Array.validate` looks at sizes only, and with `full=True` at all bytes of all texts; this looks
    at the offsets.
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
        for (
            field
        ) in array.flatten():  # null where the struct is: what is stored there may be anything
            check(field)
    elif how != "plain":
        held, width, values = (
            array.buffers(),
            _WIDTHS.get(how),
            array.values if how in _LISTS else None,
        )
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
    plain = [
        pa.null(),
        pa.bool_(),
        pa.float16(),
        pa.float32(),
        pa.float64(),
        pa.date32(),
        pa.date64(),
    ]
    plain += [pa.duration("s")]
    plain += [getattr(pa, name)() for name in _INTEGERS]
    plain += [
        pa.timestamp("s"),
        pa.time32("s"),
        pa.time64("us"),
        pa.decimal128(1),
        pa.decimal256(1),
        pa.binary(1),
    ]
    item = pa.int8()
    found = {kind.id: "plain" for kind in plain}
    found |= {kind.id: "text" for kind in (pa.string(), pa.binary())}
    found |= {kind.id: "large text" for kind in (pa.large_string(), pa.large_binary())}
    found |= {kind.id: "list" for kind in (pa.list_(item), pa.map_(item, item))}
    found |= {
        pa.large_list(item).id: "large list",
        pa.list_(item, 1).id: "fixed list",
        pa.struct([]).id: "struct",
    }
    return {**found, pa.dictionary(item, item).id: "dictionary"}


def _bare(values: Any) -> Any:
    """The numbers of an array, whatever stands where it has nulls."""
    parts = [None, values.buffers()[1]]
    bare = arrow().Array.from_buffers(values.type, len(values), parts, offset=values.offset)
    return bare.to_numpy(zero_copy_only=False)
