"""Tables and data frames in memory, whose rows stay columns until they are needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from ..arguments import join_first, suggest_names
from ..arrays.columnar import import_arrow
from ..arrays.lossless import list_arrow_errors
from ..errors import ConfigError
from ..types import Ints, Json, Sizes
from .block import ColumnFacts, take_rows_of_batches
from .chain import compute_offsets
from .hub import find_stored_table
from .kinds import ColumnType, describe_column_types
from .memory import Memory
from .unify import SchemaConverter


class ArrowStream(Protocol):
    """A table or data frame that exports Arrow columns: pandas, polars, pyarrow, DuckDB and others."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


class HubTable(Protocol):
    """A map-style dataset of Hugging Face `datasets`."""

    @property
    def features(self) -> Mapping[str, Any]: ...
    @property
    def column_names(self) -> Sequence[str]: ...


class ArrowTable(Memory):
    """Rows of a table in memory: mappings, or columns where a step takes columns.

    A row equals the row that `penstock.read` gives for a Parquet file of the table. A list of numbers is
    a view of the column.

    Args:
        seq: A `pyarrow.Table`, a record batch, or a Hugging Face dataset with a stored table.
        columns: The columns of the rows; all by default.
        length_column: A column of lists, whose lengths are those of the samples.

    >>> import pyarrow as pa
    >>> source = ArrowTable(pa.table({"x": [1, 2], "tokens": [[3], [4, 5]]}), length_column="tokens")
    >>> source.read(np.array([1])), source.lengths()
    ([{'x': 2, 'tokens': array([4, 5])}], array([1, 2]))
    """

    def __init__(
        self, seq: Any, columns: Sequence[str] | None = None, length_column: str | None = None
    ) -> None:
        super().__init__(seq)
        self._columns, self._length_column = columns, length_column
        table, self._order = (
            (find_stored_table(self._seq) or (self._seq, None))
            if _is_of(self._seq, "datasets", "Dataset")
            else (self._seq, None)
        )
        for name in (*(columns or ()), *([length_column] if length_column else [])):
            if name not in table.column_names:
                raise ConfigError(
                    f"read: the table has no column {name!r}; it has "
                    f"{join_first(table.column_names, 8)}{suggest_names(name, table.column_names)}"
                )
        lengths = None if length_column is None else _measure_lists(table, length_column)
        self._lengths = lengths if lengths is None or self._order is None else lengths[self._order]
        table = table if columns is None else table.select(list(columns))
        convert = SchemaConverter(table.schema, None, Path(self.name))
        self._schema: Any = convert.schema
        self._batches: list[Any] = [*map(convert, table.to_batches())]
        self._starts = compute_offsets([batch.num_rows for batch in self._batches])
        self._facts = ColumnFacts(convert.schema)
        self._read = self._read_rows
        self.as_columns = False

    @property
    def name(self) -> str:
        """The kind of the table, for errors."""
        return type(self._seq).__name__

    @property
    def types(self) -> Mapping[str, ColumnType]:
        """The types of the columns."""
        return describe_column_types(self._schema, self._schema.names)

    def __getstate__(self) -> Any:
        return self._seq, self._columns, self._length_column, self.as_columns

    def __setstate__(self, state: Any) -> None:
        *arguments, as_columns = state
        self.__init__(*arguments)
        self.as_columns = as_columns

    def arrow_schema(self) -> Any:
        """Return the columns of the rows."""
        return self._schema

    def lengths(self) -> Sizes | None:
        """Return the lengths of the lists of a column, if one was named."""
        return self._lengths

    def block(self, indices: Ints, /) -> Sequence[Any]:
        """Return the rows at `indices`, as columns."""
        rows = indices if self._order is None else self._order[indices]
        return take_rows_of_batches(
            self._starts, rows, self._batches.__getitem__, self._facts, views=True
        )

    def describe(self) -> Json:
        """Return the kind of the table, its number of rows, and the columns if some were chosen."""
        description = cast("dict[str, Json]", super().describe())
        return (
            description if self._columns is None else {**description, "columns": [*self._columns]}
        )

    def _read_rows(self, _: Any, indices: Ints) -> list[Any]:
        return list(self.block(indices))


def _measure_lists(table: Any, name: str) -> Ints:
    column = table.column(name)
    types: Any = import_arrow("pyarrow.types")
    if not (types.is_list(column.type) or types.is_large_list(column.type)):
        raise ConfigError(
            f"read(lengths={name!r}): the column holds {column.type}; name a column of lists"
        )
    lengths = import_arrow("pyarrow.compute").list_value_length(column).fill_null(0)
    return lengths.to_numpy().astype(np.int64)


def is_arrow(value: object) -> bool:
    """Return whether a value is a table or a record batch of pyarrow."""
    return type(value).__module__.startswith("pyarrow") and hasattr(value, "column_names")


def is_table(value: object) -> bool:
    """Return whether a value is a table or a data frame: it has rows of named columns.

    Series and arrays are none.

    >>> import pyarrow as pa
    >>> is_table(pa.table({"x": [1]})), is_table(pa.array(["a.parquet"])), is_table("a.parquet")
    (True, False, False)
    """
    if hasattr(value, "__arrow_c_stream__"):
        return any(hasattr(value, name) for name in ("columns", "column_names", "schema"))
    return _is_of(value, "datasets", "Dataset") or _is_of(value, "pandas", "DataFrame")


def open_table(
    value: Any, columns: Sequence[str] | None = None, length_column: str | None = None
) -> Memory:
    """Return a source over the rows of a table or data frame.

    A Hugging Face dataset with images or audio, a format or a transform is read through its own
    `[i]`, and has no columns here.

    Args:
        value: an object for which `is_table` is true.
        columns: the columns of the rows; all by default.
        length_column: a column of lists, whose lengths are those of the samples.

    Raises:
        ConfigError: if columns are missing, or have names that are no texts or not unique.
    """
    if _is_of(value, "datasets", "Dataset"):
        if find_stored_table(value) is None:
            if length_column is not None:
                raise ConfigError(
                    f"read(lengths={length_column!r}): this dataset has a format or decodes values, so "
                    "lengths are known only by reading; leave out lengths="
                )
            return Memory(value if columns is None else value.select_columns(list(columns)))
    elif _is_of(value, "pandas", "DataFrame"):
        value = _convert_pandas(value)
    elif not is_arrow(value):
        try:
            value = import_arrow().RecordBatchReader.from_stream(value).read_all()
        except list_arrow_errors() as error:
            raise ConfigError(
                f"read: a column of the frame has a type that Arrow lacks ({error}); cast it, as in "
                "frame.with_columns(polars.col('x').cast(polars.Int64))"
            ) from error
    return ArrowTable(value, columns, length_column)


def _convert_pandas(data_frame: Any) -> Any:
    """Return a pandas frame as a table: missing values are null, named index levels are columns."""
    levels = [number for number, name in enumerate(data_frame.index.names) if name is not None]
    names = [*(data_frame.index.names[level] for level in levels), *data_frame.columns]
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise ConfigError(
            f"read: the frame has a column named {wrong[0]!r}, and names must be texts; write "
            "ps.read(frame.rename(columns=str))"
        )
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(
            f"read: the frame has the column {repeated!r} more than once, or also as its index; "
            "rename one, or drop the index: ps.read(frame.reset_index(drop=True))"
        )
    data_frame = data_frame.reset_index(level=levels) if levels else data_frame
    pa = import_arrow()
    try:
        return pa.Table.from_pandas(data_frame, preserve_index=False).replace_schema_metadata()
    except list_arrow_errors() as error:
        raise ConfigError(
            f"read: a column of the frame has values without a common type ({error}); convert it, "
            "as in frame['x'].astype(str), or give rows: "
            "ps.from_sequence(frame.to_dict('records'))"
        ) from error


def _is_of(value: object, package: str, name: str) -> bool:
    return any(
        cls.__module__.partition(".")[0] == package and cls.__name__ == name
        for cls in type(value).__mro__
    )
