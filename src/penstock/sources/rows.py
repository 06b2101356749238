"""Arrow columns as rows: dicts of Python values, with arrays for lists of numbers."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays.columnar import import_arrow
from ..errors import DataError
from ..stores import RemoteFile, is_remote, storage
from ..types import Ints

_INTEGER_TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_LIST_BYTES, _DICT_BYTES, _OBJECT_BYTES = 72, 192, 72  # of an object in Python, and its reference
_SHARED_TYPES, _SHARED_BYTES = (
    ("null", "bool", "int8", "uint8"),
    8,
)  # one object for all equal values
_NUMBER_TYPES = (*_INTEGER_TYPES, "halffloat", "float", "double", "bool")


def map_file(path: Path) -> Any:
    """Return the bytes of a file as a memory-mapped buffer.

    Unlike `mmap`, the buffer keeps no file handle, so there may be many of them.

    Raises:
        OSError: The file cannot be opened or mapped; the error has a number, unlike Arrow's.
    """
    if is_remote(path):
        return import_arrow().py_buffer(storage.world.store.read(str(path)))
    try:
        return import_arrow().memory_map(encode_path(path)).read_buffer()
    except OSError as error:
        if error.errno is not None:
            raise
        # Arrow gives no number if the mapping fails. Without one the error would count as damage
        # of the file, and quarantine would drop good samples.
        reason = str(error).rpartition(": ")[2]
        number = errno.ENOMEM if "memory" in reason else errno.EIO
        raise OSError(number, reason, str(path)) from error


def open_for_arrow(path: Path) -> Any:
    """Open a file for Arrow; a remote file is fetched in the parts that Arrow reads."""
    if is_remote(path):
        return import_arrow().PythonFile(RemoteFile(str(path)), "r")
    return import_arrow().OSFile(encode_path(path))


def resolve_absolute_paths(paths: Iterable[Path]) -> Iterator[str]:
    """Yield absolute paths; resolve links of folders, but not those of the files themselves.

    Each folder is resolved once.
    """
    resolved: dict[str, str] = {}
    for path in paths:
        if is_remote(path):
            yield str(path)
            continue
        folder, slash, name = str(path).rpartition("/")
        if folder not in resolved:
            resolved[folder] = str(Path(folder + slash).resolve())
        yield f"{resolved[folder]}/{name}"


def encode_path(path: Path) -> bytes:
    """Encode a path as the file system has it: file names need not be UTF-8."""
    return str(path).encode("utf-8", "surrogateescape")


def build_rows(table: Any, indices: Ints | None = None, *, views: bool) -> list[dict[str, Any]]:
    """Return some rows of a record batch or table, or all of them, built column by column.

    A list of numbers becomes a read-only array; a list that contains a null stays a list.

    Args:
        table: Record batch or table.
        indices: Rows to return; all by default.
        views: Let arrays share the memory of the table, which suits a mapped file. Otherwise they share
            a copy of these rows alone, so that a retained sample does not retain its row group.
    """
    names: list[str] = table.schema.names
    columns = [
        convert_named_column(name, column, indices, views)
        for name, column in zip(names, table.columns, strict=True)
    ]
    if not names:  # without columns all rows are equal
        return [{} for _ in range(table.num_rows if indices is None else len(indices))]
    if len(names) == 1:
        return [{names[0]: value} for value in columns[0]]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def join_batches(pieces: Sequence[Any]) -> Any:
    """Concatenate record batches and tables to one batch, or to a table if it is too large."""
    pa = import_arrow()
    if len(pieces) > 1 and all(isinstance(piece, pa.RecordBatch) for piece in pieces):
        try:
            return pa.concat_batches(pieces)
        except pa.ArrowInvalid:
            pass  # more text than the offsets of one batch can address
    tables = [
        piece if isinstance(piece, pa.Table) else pa.Table.from_batches([piece]) for piece in pieces
    ]
    table = pa.concat_tables(tables).combine_chunks()
    batches = table.to_batches()
    return batches[0] if len(batches) == 1 else table


def is_number_list(arrow_type: Any) -> bool:
    """Return whether a column type is a list of numbers, whose values become arrays."""
    types = import_arrow("pyarrow.types")
    is_list = (
        types.is_list(arrow_type)
        or types.is_large_list(arrow_type)
        or types.is_fixed_size_list(arrow_type)
    )
    return is_list and str(arrow_type.value_type) in _NUMBER_TYPES


def convert_named_column(name: str, column: Any, indices: Ints | None, views: bool) -> list[Any]:
    """Return some values of a column, or all of them; an error names the column."""
    try:
        return convert_column(column, indices, views)
    except DataError as error:
        raise DataError(f"the column {name!r}: {error}") from error


def convert_column(column: Any, indices: Ints | None, views: bool) -> list[Any]:
    """Return some values of a column, or all of them."""
    arrow_type = column.type
    if not is_number_list(arrow_type):
        if indices is None:
            return to_python_values(column)
        return to_python_values(column.take(import_arrow().array(indices)))
    chunked = isinstance(column, import_arrow().ChunkedArray)
    selects = indices is not None
    if chunked or (
        selects and (not views or str(arrow_type.value_type) == "bool" or column.values.null_count)
    ):
        column = column.take(import_arrow().array(indices)) if selects else column
        column, indices = (column.combine_chunks() if chunked else column), None
        views = views or selects
    starts, stops = _compute_list_bounds(column, indices)
    # Convert only the values between the first and the last list of these rows.
    low = int(starts.min()) if len(starts) else 0
    high = max(low, int(stops.max())) if len(stops) else 0
    values, starts, stops = column.values.slice(low, high - low), starts - low, stops - low
    numbers = (
        _ignore_null_mask(values) if values.null_count else values.to_numpy(zero_copy_only=False)
    )
    numbers = numbers if views else numbers.copy()
    lists: list[Any] = [
        numbers[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
    ]
    if values.null_count:
        nulls = np.concatenate([[0], np.cumsum(values.is_null().to_numpy(zero_copy_only=False))])
        for row in np.flatnonzero(nulls[starts] != nulls[stops]).tolist():
            lists[row] = values.slice(int(starts[row]), len(lists[row])).to_pylist()
    if column.null_count:
        null_rows = column.is_null().to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(null_rows if indices is None else null_rows[indices]).tolist():
            lists[row] = None
    return lists


@cache
def to_numpy_dtype(kind: Any) -> np.dtype[Any]:
    """Return the NumPy dtype of an Arrow type.

    Before pyarrow 26, `to_pandas_dtype` needs pandas.

    >>> import pyarrow as pa
    >>> to_numpy_dtype(pa.float32()), to_numpy_dtype(pa.timestamp("s"))
    (dtype('float32'), dtype('<M8[s]'))
    """
    return import_arrow().nulls(0, kind).to_numpy(zero_copy_only=False).dtype


def to_python_values(column: Any) -> list[Any]:
    """Return the values of a column as Python objects.

    Timestamps and durations in nanoseconds exceed Python's types and become NumPy scalars; those with
    a time zone are in UTC.

    Args:
        column: Arrow array.

    Raises:
        DataError: A value does not fit Python's type.

    >>> import pyarrow as pa
    >>> to_python_values(pa.array([5_000], pa.time64("ns")))
    [datetime.time(0, 0, 0, 5)]
    >>> to_python_values(pa.array([5], pa.timestamp("ns")))
    [np.datetime64('1970-01-01T00:00:00.000000005')]
    """
    convert = _choose_time_converter(column.type)
    if convert is None:
        return to_exact_pylist(column)
    if import_arrow("pyarrow.types").is_dictionary(column.type):
        column = column.dictionary_decode()
    return list(map(convert, to_exact_pylist(column.cast(_replace_nanoseconds(column.type)))))


def to_exact_pylist(column: Any) -> list[Any]:
    """Return `column.to_pylist()`; raise `DataError` if a Python type cannot represent a value.

    For timestamps or durations in nanoseconds Arrow imports pandas, and without pandas raises for some
    values.
    """
    if any(name in str(column.type) for name in _LOSSY_TYPES):
        _require_exact(column)
    try:
        return column.to_pylist()
    except OverflowError as error:
        raise DataError(
            f"a value of {column.type} is beyond those of Python's type: {error}"
        ) from error


@cache
def _choose_time_converter(arrow_type: Any) -> Callable[[Any], Any] | None:
    """Return the converter from int64 nanoseconds to a value, or `None` if the type has none."""
    types = import_arrow("pyarrow.types")
    if str(arrow_type).startswith("timestamp[ns"):
        return lambda value: None if value is None else np.datetime64(value, "ns")
    if str(arrow_type) == "duration[ns]":
        return lambda value: None if value is None else np.timedelta64(value, "ns")
    if types.is_dictionary(arrow_type):
        return _choose_time_converter(arrow_type.value_type)
    if types.is_struct(arrow_type):
        inner = {
            field.name: convert
            for field in arrow_type
            if (convert := _choose_time_converter(field.type))
        }
        if not inner:
            return None
        return lambda value: (
            value
            and {name: inner.get(name, _return_unchanged)(part) for name, part in value.items()}
        )
    if types.is_map(arrow_type):
        key, item = (
            _choose_time_converter(part) or _return_unchanged
            for part in (arrow_type.key_type, arrow_type.item_type)
        )
        if key is item:
            return None
        return lambda value: value and [(key(name), item(part)) for name, part in value]
    if (
        types.is_nested(arrow_type)
        and hasattr(arrow_type, "value_type")
        and (of_item := _choose_time_converter(arrow_type.value_type))
    ):
        return lambda value: value and list(map(of_item, value))
    return None


def _return_unchanged(value: Any) -> Any:
    return value


def _replace_nanoseconds(arrow_type: Any) -> Any:
    """Replace nanoseconds in a type by int64."""
    pa, types = import_arrow(), import_arrow("pyarrow.types")
    if not _choose_time_converter(arrow_type):
        return arrow_type
    if types.is_struct(arrow_type):
        return pa.struct(
            [field.with_type(_replace_nanoseconds(field.type)) for field in arrow_type]
        )
    if types.is_map(arrow_type):
        return pa.map_(
            _replace_nanoseconds(arrow_type.key_type), _replace_nanoseconds(arrow_type.item_type)
        )
    if types.is_fixed_size_list(arrow_type):
        return pa.list_(_replace_nanoseconds(arrow_type.value_type), arrow_type.list_size)
    if types.is_large_list(arrow_type):
        return pa.large_list(_replace_nanoseconds(arrow_type.value_type))
    return (
        pa.list_(_replace_nanoseconds(arrow_type.value_type))
        if types.is_list(arrow_type)
        else pa.int64()
    )


_LOSSY_TYPES = ("time64[ns]", "date64", "extension")
"""Types with less precision in Python than in Arrow; an extension may be stored as any type."""


def _require_exact(column: Any) -> None:
    """Raise `DataError` for times of day with nanoseconds, and for dates with a time of day."""
    for part in iterate_innermost_arrays(column):
        type_name = str(part.type)
        if not (unit := {"time64[ns]": 1_000, "date64[ms]": 86_400_000}.get(type_name)):
            continue
        numbers = part.cast(import_arrow().int64()).drop_null().to_numpy()
        if (inexact := numbers[numbers % unit != 0]).size:
            lost = "nanoseconds" if unit == 1_000 else "time of day"
            raise DataError(
                f"the value {int(inexact[0]):,} of {type_name} would lose its {lost} in Python's "
                "type: store the column as int64, or leave it out (columns=)"
            )


def iterate_innermost_arrays(column: Any) -> Iterator[Any]:
    """Yield the innermost arrays of a column."""
    pa, types, arrow_type = import_arrow(), import_arrow("pyarrow.types"), column.type
    if isinstance(column, pa.ChunkedArray):
        children = column.chunks
    elif isinstance(column, pa.ExtensionArray):
        children = [column.storage]
    elif types.is_dictionary(arrow_type):
        children = [column.dictionary_decode()]
    elif types.is_run_end_encoded(arrow_type):
        children = [import_arrow("pyarrow.compute").run_end_decode(column)]
    elif types.is_union(arrow_type):
        children = [column.field(number) for number in range(arrow_type.num_fields)]
    elif types.is_struct(arrow_type):
        children = column.flatten()
    elif types.is_map(arrow_type):  # `keys` and `items` ignore that the map array is a slice
        start, stop = (column.offsets[number].as_py() for number in (0, len(column)))
        children = [child.slice(start, stop - start) for child in (column.keys, column.items)]
    elif types.is_nested(arrow_type):
        children = [column.flatten()]
    else:
        yield column
        return
    for part in children:
        yield from iterate_innermost_arrays(part)


def find_largest_row(column: Any) -> tuple[int, int]:
    """Return the row of a nested column that takes most memory in Python, and about its bytes.

    >>> import pyarrow as pa
    >>> find_largest_row(pa.array([[[1]], [[], [2, 3]]]))
    (1, 360)
    """
    types, start, largest = import_arrow("pyarrow.types"), 0, (0, 0)
    if not types.is_nested(column.type) or is_number_list(column.type):
        return largest
    for part in column.chunks if isinstance(column, import_arrow().ChunkedArray) else [column]:
        sizes = np.atleast_1d(_estimate_objects(part))
        if len(part) and int(sizes.max()) > largest[1]:
            largest = start + int(sizes.argmax()), int(sizes.max())
        start += len(part)
    return largest


def _estimate_objects(array: Any) -> npt.NDArray[np.int64] | int:
    """Return about the bytes of each element as a Python object, or the bytes of every element."""
    types, arrow_type = import_arrow("pyarrow.types"), array.type
    if types.is_struct(arrow_type):
        fields = (array.field(number) for number in range(arrow_type.num_fields))
        return sum((_estimate_objects(field) for field in fields), start=_DICT_BYTES)
    if types.is_fixed_size_list(arrow_type):
        size, start, stop = arrow_type.list_size, array.offset, array.offset + len(array)
        items = _estimate_objects(array.values)
        if isinstance(items, int):
            return _LIST_BYTES + items * size
        return _LIST_BYTES + items.reshape(-1, size).sum(1)[start:stop]
    if not (
        types.is_list(arrow_type) or types.is_large_list(arrow_type) or types.is_map(arrow_type)
    ):
        return _SHARED_BYTES if str(arrow_type) in _SHARED_TYPES else _OBJECT_BYTES
    if types.is_map(arrow_type):
        items = _LIST_BYTES + _estimate_objects(array.keys) + _estimate_objects(array.items)
    else:
        items = _estimate_objects(array.values)
    offsets = array.offsets.to_numpy().astype(np.int64)
    if isinstance(items, int):
        return _LIST_BYTES + np.diff(offsets) * items
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(items)])
    return _LIST_BYTES + ends[offsets[1:]] - ends[offsets[:-1]]


def _compute_list_bounds(column: Any, indices: Ints | None) -> tuple[Ints, Ints]:
    """Return the start and the end of each list of a column, as indices into its values."""
    if import_arrow("pyarrow.types").is_fixed_size_list(column.type):
        rows = np.arange(len(column), dtype=np.int64) if indices is None else indices
        starts = (rows + column.offset) * column.type.list_size
        return starts, starts + column.type.list_size
    offsets = column.offsets.to_numpy()
    return (
        (offsets[:-1], offsets[1:]) if indices is None else (offsets[indices], offsets[indices + 1])
    )


def check_offsets(array: Any) -> None:
    """Raise if offsets or dictionary indices lead out of an array: reading it could crash.

    `Array.validate` checks sizes only, and with `full=True` all bytes of all texts. This checks the
    offsets.
    """
    arrow_type = array.type
    rule = _check_rules().get(arrow_type.id)
    if rule is None and isinstance(array, import_arrow().ExtensionArray):
        check_offsets(array.storage)
    elif rule is None:
        array.validate(full=True)  # views, unions, run-end encodings
    elif rule == "dictionary":
        codes = array.indices.drop_null().to_numpy(zero_copy_only=False)
        if codes.size and not 0 <= int(codes.min()) <= int(codes.max()) < len(array.dictionary):
            raise ValueError("a damaged column: an index lies outside of its dictionary")
        check_offsets(array.dictionary)
    elif rule == "struct":
        for field in array.flatten():  # nulls of the struct hide undefined values of the fields
            check_offsets(field)
    elif rule != "plain":
        buffers, width, values = (
            array.buffers(),
            _OFFSET_DTYPES.get(rule),
            array.values if rule in _LIST_LAYOUTS else None,
        )
        if width and buffers[1] is not None and len(array):
            offsets = np.frombuffer(buffers[1], width)[array.offset : array.offset + len(array) + 1]
            size = len(values) if values is not None else buffers[2].size if buffers[2] else 0
            if offsets[0] < 0 or offsets[-1] > size or (offsets[1:] < offsets[:-1]).any():
                raise ValueError("a damaged column: an offset lies outside of its values")
        if rule in _LIST_LAYOUTS:
            check_offsets(values)


_OFFSET_DTYPES = {"text": "<i4", "large text": "<i8", "list": "<i4", "large list": "<i8"}
_LIST_LAYOUTS = ("list", "large list", "fixed list")


@cache
def _check_rules() -> dict[int, str]:
    """Return the check to apply, by the id of an Arrow type."""
    pa = import_arrow()
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
    plain += [getattr(pa, name)() for name in _INTEGER_TYPES]
    plain += [
        pa.timestamp("s"),
        pa.time32("s"),
        pa.time64("us"),
        pa.decimal128(1),
        pa.decimal256(1),
        pa.binary(1),
    ]
    item = pa.int8()
    rules = {arrow_type.id: "plain" for arrow_type in plain}
    rules |= {arrow_type.id: "text" for arrow_type in (pa.string(), pa.binary())}
    rules |= {arrow_type.id: "large text" for arrow_type in (pa.large_string(), pa.large_binary())}
    rules |= {arrow_type.id: "list" for arrow_type in (pa.list_(item), pa.map_(item, item))}
    rules |= {
        pa.large_list(item).id: "large list",
        pa.list_(item, 1).id: "fixed list",
        pa.struct([]).id: "struct",
    }
    return {**rules, pa.dictionary(item, item).id: "dictionary"}


def _ignore_null_mask(values: Any) -> Any:
    """Return the numbers of an array and ignore its null mask."""
    parts = [None, values.buffers()[1]]
    array = import_arrow().Array.from_buffers(values.type, len(values), parts, offset=values.offset)
    return array.to_numpy(zero_copy_only=False)
