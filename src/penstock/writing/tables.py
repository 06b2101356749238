"""Rows as tables: Parquet and Arrow files of one schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from ..errors import DataError
from ..sources.rows import arrow
from .exact import alike, culprit, keeps, retyped, typed, unfit

_ROWS = 1_000  # rows made into a table at a time


def tables_of(rows: Iterable[Any], most: int, counts: Sequence[int] | None) -> Iterator[Any]:
    """Tables of the rows of one file each: of at most `most` bytes, or of the counts asked for."""
    source, begun = iter(rows), 0
    if counts is not None:
        for count in counts:
            parts = [
                _table(list(islice(source, min(_ROWS, count - done))), begun + done)
                for done in range(0, count, _ROWS)
            ]
            begun += count
            yield _joined(parts)
        return
    held, size = list[Any](), 0
    while chunk := list(islice(source, _ROWS)):
        table = _table(chunk, begun)
        begun += len(chunk)
        while len(table):
            fits = _fitting(table, most - size, at_least=not held)
            if fits:
                held.append(table.slice(0, fits))
                size += held[-1].nbytes
                table = table.slice(fits)
            if len(table):
                yield _joined(held)
                held, size = [], 0
    if held:
        yield _joined(held)


def _fitting(table: Any, room: int, at_least: bool) -> int:
    """How many of the first rows of a table take at most so many bytes; one, where a file would
    else stay empty."""
    low, high = 0, len(table)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if table.slice(0, middle).nbytes <= room else (low, middle - 1)
    return max(low, int(at_least))


def _table(rows: list[Any], first: int) -> Any:
    """A table of these rows; the number of the first of them is for errors."""
    for number, row in enumerate(rows, first):
        if not isinstance(row, Mapping):
            raise DataError(
                f"it is a {type(row).__name__}; only mappings can be saved", where=f"row {number}"
            )
    names = list(dict.fromkeys(name for row in rows for name in row))
    pa: Any = arrow()
    columns = dict[str, Any]()
    for name in names:
        values = retyped([row.get(name) for row in rows])
        try:
            columns[name] = typed(values)
            alike(values, columns[name].type)
            pa.field(name, columns[name].type)  # names can be no UTF-8, too
        except unfit() as error:
            bad = culprit(values)
            where = f"rows from {first} on" if bad is None else f"row {first + bad}"
            raise DataError(
                f"the field {name!r} cannot be one column: {error}", where=where
            ) from error
    return pa.table(columns)


def _joined(tables: list[Any]) -> Any:
    whole = tables[0].schema
    for table in tables[1:]:
        whole = unified(whole, table.schema)
    return arrow().concat_tables([under(table, whole) for table in tables])


def unified(one: Any, other: Any) -> Any:
    """A schema that holds the columns of two."""
    return _tried(lambda: arrow().unify_schemas([one, other], promote_options="permissive"))


def _tried(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except unfit() as error:
        raise DataError(
            f"a field has one type in some rows and another in others: {error}"
        ) from error


def under(table: Any, schema: Any) -> Any:
    """The table with the columns and types of a schema, nothing of it lost; what it lacks is
    null."""
    empty: Any = schema.empty_table()

    def made() -> Any:
        for name, column in zip(table.column_names, table.columns, strict=True):
            for array in column.chunks:
                keeps(array, schema.field(name).type)
        return arrow().concat_tables([empty, table], promote_options="permissive").cast(schema)

    return _tried(made)


def encoded(table: Any, save: str, codec: str) -> bytes:
    """A table as a file."""
    pa: Any = arrow()
    sink = pa.BufferOutputStream()
    if save == "parquet":
        try:
            arrow("pyarrow.parquet").write_table(table, sink, compression=codec)
        except pa.ArrowNotImplementedError as error:  # mappings without keys
            raise DataError(f"the rows cannot be written as Parquet: {error}") from error
    else:
        options = pa.ipc.IpcWriteOptions(compression=None if codec == "none" else codec)
        with pa.ipc.new_file(sink, table.schema, options=options) as writer:
            writer.write_table(table)
    return sink.getvalue().to_pybytes()


def decoded(data: bytes, save: str) -> Any:
    """The table of such a file."""
    pa: Any = arrow()
    source = pa.py_buffer(data)
    return (
        arrow("pyarrow.parquet").read_table(source)
        if save == "parquet"
        else pa.ipc.open_file(source).read_all()
    )
