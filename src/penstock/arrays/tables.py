"""Convert rows to Parquet and Arrow files of one schema."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from .casts import cast_table
from .columnar import import_arrow
from .lossless import (
    ONE_TYPE,
    find_culprit,
    infer_array,
    list_arrow_errors,
    normalize_empty,
    require_lossless,
    require_same_kind,
)

SAMPLE_COLUMN = "input_ids"
"""The column of samples that are arrays."""

_SAMPLE_MARK = {b"penstock": b"sample"}  # metadata of a column whose values are the samples
_CHUNK_ROWS = 1_000  # rows made into a table at a time
_MAX_OFFSET = (1 << 31) - 1  # of the values of a list column


def iterate_tables(
    rows: Iterable[Any], max_bytes: int, counts: Sequence[int] | None
) -> Iterator[Any]:
    """Yield a table for each file, of at most `max_bytes`, or of the given numbers of rows.

    Args:
        rows: mappings, or arrays of one axis.
        max_bytes: the size limit of a table.
        counts: the number of rows of each table, instead.

    Raises:
        DataError: if a table cannot hold a row, or the values of a field have no common type.
    """
    source, row_count = iter(rows), 0
    if counts is not None:
        for count in counts:
            parts = [
                build_table(
                    list(islice(source, min(_CHUNK_ROWS, count - offset))), row_count + offset
                )
                for offset in range(0, count, _CHUNK_ROWS)
            ]
            row_count += count
            yield concatenate_tables(parts)
        return
    parts_of_file, size = list[Any](), 0
    while chunk := list(islice(source, _CHUNK_ROWS)):
        table = build_table(chunk, row_count)
        row_count += len(chunk)
        while len(table):
            fitting = _count_fitting(table, max_bytes - size, nonempty=not parts_of_file)
            if fitting:
                parts_of_file.append(table.slice(0, fitting))
                size += parts_of_file[-1].nbytes
                table = table.slice(fitting)
            if len(table):
                yield concatenate_tables(parts_of_file)
                parts_of_file, size = [], 0
    if parts_of_file:
        yield concatenate_tables(parts_of_file)


def _count_fitting(table: Any, max_bytes: int, nonempty: bool) -> int:
    """Return the number of first rows of a table that fit into so many bytes, by bisection.

    At least one if `nonempty`, so that no file stays empty.
    """
    low, high = 0, len(table)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if table.slice(0, middle).nbytes <= max_bytes else (low, middle - 1)
        )
    return max(low, int(nonempty))


def build_table(rows: Sequence[Any], first: int) -> Any:
    """Return a table of these rows; `first` is the number of the first one, for errors.

    Raises:
        DataError: if a table cannot hold a row, or the values of a field have no common type.
    """
    rows = wrap_arrays(samples := rows, first)
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = import_arrow().table(
        {name: build_column(name, [row.get(name) for row in rows], first) for name in names}
    )
    return table if rows is samples else mark_samples(table)


def wrap_arrays(samples: Sequence[Any], first: int) -> Sequence[Any]:
    """Return samples as the rows of a table: arrays of one axis become the column `input_ids`.

    Args:
        samples: the samples.
        first: the number of the first one, for errors.

    Returns:
        The samples themselves if all are mappings.

    Raises:
        DataError: if some are neither, or not all are of one kind.
    """
    has_arrays = bool(samples) and not isinstance(samples[0], Mapping)
    for number, sample in enumerate(samples, first):
        is_array = isinstance(sample, np.ndarray) and cast("Any", sample).ndim == 1
        if not (is_array if has_arrays else isinstance(sample, Mapping)):
            raise DataError(
                f"it is a {type(cast(object, sample)).__name__}; a table holds mappings, or arrays of one axis, and "
                "all of one kind: add .map(lambda x: {'text': x}), or write JSON lines",
                where=f"row {number}",
            )
    return [{SAMPLE_COLUMN: sample} for sample in samples] if has_arrays else samples


def mark_samples(table: Any) -> Any:
    """Return a table of one column whose values are the samples, marked as such for readers."""
    field = table.schema.field(0).with_metadata(_SAMPLE_MARK)
    return table.cast(import_arrow().schema([field]))


def has_marked_samples(schema: Any) -> bool:
    """Return whether the values of the only column are the samples."""
    return len(schema) == 1 and _SAMPLE_MARK.items() <= (schema.field(0).metadata or {}).items()


def remove_marks(schema: Any) -> Any:
    """Return a schema without metadata, for rows that are mappings."""
    return import_arrow().schema([field.remove_metadata() for field in schema])


def is_equal_schema(schema: Any, other: Any) -> bool:
    """Return whether tables have equal columns, and samples of one kind."""
    return schema.equals(other) and has_marked_samples(schema) == has_marked_samples(other)


def build_column(name: str, values: Sequence[Any], first: int) -> Any:
    """Return the values of a field as an Arrow array, without changing one.

    Args:
        name: the name of the field.
        values: the values; `None` for a row without the field.
        first: the number of the first row, for errors.

    Raises:
        DataError: if the values have no common type.
    """
    try:
        column = _join_vectors(values)
        if column is None:
            values = normalize_empty(values)
            column = infer_array(values)
            require_same_kind(values, column.type)
        import_arrow().field(name, column.type)  # raises for names that are not UTF-8
    except list_arrow_errors() as error:
        culprit_index = find_culprit(values)
        where = f"rows from {first} on" if culprit_index is None else f"row {first + culprit_index}"
        raise DataError(
            f"the field {name!r} cannot be one column: {error}; {ONE_TYPE}", where=where
        ) from error
    return column


def _join_vectors(values: Sequence[Any]) -> Any | None:
    """Return vectors of one dtype as an Arrow array, copied at once; `None` for other values."""
    if set(map(type, values)) != {np.ndarray}:
        return None
    vectors = cast("Sequence[npt.NDArray[Any]]", values)
    dtype, sizes = vectors[0].dtype, [vector.size for vector in vectors]
    if (
        any(vector.dtype != dtype or vector.ndim != 1 for vector in vectors)
        or not dtype.isnative
        or dtype.kind not in "biuf"
        or (dtype == np.float64 and 0 in sizes)  # an empty vector may have no dtype of its own
        or sum(sizes) > _MAX_OFFSET
    ):
        return None
    try:
        numbers = import_arrow().array(np.concatenate(vectors))
    except list_arrow_errors():  # extended precision
        return None
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    return import_arrow().ListArray.from_arrays(import_arrow().array(offsets), numbers)


def concatenate_tables(tables: Sequence[Any]) -> Any:
    """Concatenate tables without copying; their schemas are merged, and absent values are null.

    Raises:
        DataError: if a column has incompatible types.
    """
    schema = tables[0].schema
    for table in tables[1:]:
        if not is_equal_schema(table.schema, schema):
            schema = merge_schemas(schema, table.schema)
    return import_arrow().concat_tables(
        table if table.schema.equals(schema) else conform_to_schema(table, schema)
        for table in tables
    )


def merge_schemas(schema: Any, other: Any) -> Any:
    """Return a schema with the columns of both.

    Categories and plain values of one column merge to plain values.

    Raises:
        DataError: if a column has incompatible types, or only one of them has arrays as samples.
    """
    if has_marked_samples(schema) != has_marked_samples(other):
        raise DataError(
            "some samples are arrays, others mappings: give all of them the same form in a map step"
        )
    shared = set(schema.names) & set(other.names)
    differing = {name for name in shared if schema.field(name).type != other.field(name).type}
    schemas = [decode_dictionaries(part, differing) for part in (schema, other)]
    return _convert_type_errors(
        lambda: import_arrow().unify_schemas(schemas, promote_options="permissive")
    )


def decode_dictionaries(schema: Any, names: Container[str] | None = None) -> Any:
    """Return a schema whose columns of categories have the type of the values.

    Args:
        schema: an Arrow schema.
        names: change only these columns.

    >>> import pyarrow as pa
    >>> decode_dictionaries(pa.schema({"kind": pa.dictionary(pa.int8(), pa.string())})).types
    [DataType(string)]
    """
    fields = [
        _decode_field(field) if names is None or field.name in names else field for field in schema
    ]
    return import_arrow().schema(fields, schema.metadata)


def _decode_field(field: Any) -> Any:
    return field.with_type(_decode_type(field.type))


def _decode_type(arrow_type: Any) -> Any:
    pa, types = import_arrow(), import_arrow("pyarrow.types")
    if types.is_dictionary(arrow_type):
        return _decode_type(arrow_type.value_type)
    if types.is_struct(arrow_type):
        return pa.struct([_decode_field(field) for field in arrow_type])
    if types.is_list(arrow_type) or types.is_large_list(arrow_type):
        make = pa.list_ if types.is_list(arrow_type) else pa.large_list
        return make(_decode_field(arrow_type.value_field))
    if types.is_fixed_size_list(arrow_type):
        return pa.list_(_decode_field(arrow_type.value_field), arrow_type.list_size)
    return arrow_type


def _convert_type_errors(convert: Callable[[], Any]) -> Any:
    try:
        return convert()
    except list_arrow_errors() as error:
        raise DataError(
            f"a field has one type in some rows and another in others: {error}"
        ) from error


def conform_to_schema(table: Any, schema: Any) -> Any:
    """Return a table with the columns and types of a schema; missing columns are null.

    Raises:
        DataError: if a value would change.
    """

    def converted() -> Any:
        differing = {
            field.name for field in table.schema if field.type != schema.field(field.name).type
        }
        plain = cast_table(table, decode_dictionaries(table.schema, differing))
        for name, column in zip(plain.column_names, plain.columns, strict=True):
            for array in column.chunks:
                require_lossless(array, schema.field(name).type)
        return cast_table(plain, schema)

    return _convert_type_errors(converted)


def encode_table(table: Any, format: str, codec: str) -> bytes:
    """Return the bytes of a table file.

    Raises:
        DataError: if the format cannot hold the table.
    """
    pa: Any = import_arrow()
    sink = pa.BufferOutputStream()
    if format == "parquet":
        try:
            import_arrow("pyarrow.parquet").write_table(table, sink, compression=codec)
        except pa.ArrowNotImplementedError as error:  # for mappings without keys
            raise DataError(f"the rows cannot be written as Parquet: {error}") from error
    else:
        options = pa.ipc.IpcWriteOptions(compression=None if codec == "none" else codec)
        with pa.ipc.new_file(sink, table.schema, options=options) as writer:
            writer.write_table(table)
    return sink.getvalue().to_pybytes()


def decode_table(data: bytes, format: str) -> Any:
    """Return the table in the bytes of a file."""
    pa: Any = import_arrow()
    source = pa.py_buffer(data)
    return (
        import_arrow("pyarrow.parquet").read_table(source)
        if format == "parquet"
        else pa.ipc.open_file(source).read_all()
    )
