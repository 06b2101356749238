"""Convert rows to Parquet and Arrow files of one schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from ..arrays.columnar import import_arrow
from ..errors import DataError
from .lossless import (
    ONE_TYPE,
    find_culprit,
    infer_array,
    list_arrow_errors,
    normalize_empty,
    require_lossless,
    require_same_kind,
)

_CHUNK_ROWS = 1_000  # rows made into a table at a time


def iterate_tables(
    rows: Iterable[Any], max_bytes: int, counts: Sequence[int] | None
) -> Iterator[Any]:
    """Yield a table for each file, of at most `max_bytes`, or of the given numbers of rows.

    Args:
        rows: mappings.
        max_bytes: the size limit of a table.
        counts: the number of rows of each table, instead.

    Raises:
        DataError: if a row is not a mapping, or the values of a field have no common type.
    """
    source, row_count = iter(rows), 0
    if counts is not None:
        for count in counts:
            parts = [
                _build_table(
                    list(islice(source, min(_CHUNK_ROWS, count - offset))), row_count + offset
                )
                for offset in range(0, count, _CHUNK_ROWS)
            ]
            row_count += count
            yield _concatenate_tables(parts)
        return
    parts_of_file, size = list[Any](), 0
    while chunk := list(islice(source, _CHUNK_ROWS)):
        table = _build_table(chunk, row_count)
        row_count += len(chunk)
        while len(table):
            fitting = _count_fitting(table, max_bytes - size, nonempty=not parts_of_file)
            if fitting:
                parts_of_file.append(table.slice(0, fitting))
                size += parts_of_file[-1].nbytes
                table = table.slice(fitting)
            if len(table):
                yield _concatenate_tables(parts_of_file)
                parts_of_file, size = [], 0
    if parts_of_file:
        yield _concatenate_tables(parts_of_file)


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


def _build_table(rows: list[Any], first: int) -> Any:
    """Return a table of these rows; `first` is the number of the first one, for errors."""
    for number, row in enumerate(rows, first):
        if not isinstance(row, Mapping):
            raise DataError(
                f"it is a {type(row).__name__}; only mappings can be saved", where=f"row {number}"
            )
    names = list(dict.fromkeys(name for row in rows for name in row))
    pa: Any = import_arrow()
    columns = dict[str, Any]()
    for name in names:
        values = normalize_empty([row.get(name) for row in rows])
        try:
            columns[name] = infer_array(values)
            require_same_kind(values, columns[name].type)
            pa.field(name, columns[name].type)  # raises for names that are not UTF-8
        except list_arrow_errors() as error:
            culprit_index = find_culprit(values)
            where = (
                f"rows from {first} on" if culprit_index is None else f"row {first + culprit_index}"
            )
            raise DataError(
                f"the field {name!r} cannot be one column: {error}; {ONE_TYPE}", where=where
            ) from error
    return pa.table(columns)


def _concatenate_tables(tables: list[Any]) -> Any:
    schema = tables[0].schema
    for table in tables[1:]:
        schema = merge_schemas(schema, table.schema)
    return import_arrow().concat_tables([conform_to_schema(table, schema) for table in tables])


def merge_schemas(schema: Any, other: Any) -> Any:
    """Return a schema with the columns of both.

    Raises:
        DataError: if a column has incompatible types.
    """
    return _convert_type_errors(
        lambda: import_arrow().unify_schemas([schema, other], promote_options="permissive")
    )


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
    empty: Any = schema.empty_table()

    def converted() -> Any:
        for name, column in zip(table.column_names, table.columns, strict=True):
            for array in column.chunks:
                require_lossless(array, schema.field(name).type)
        return (
            import_arrow().concat_tables([empty, table], promote_options="permissive").cast(schema)
        )

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
