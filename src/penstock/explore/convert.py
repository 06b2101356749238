"""Tables of several libraries from blocks of samples, without loss and within the memory.

A block of columns is not converted to rows on the way.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

from ..arrays.columnar import import_arrow
from ..arrays.tables import concatenate_tables
from ..engine.steps.step import Step
from ..errors import DataError
from ..sources.rows import convert_named_column
from .memory import MemoryGuard, estimate_bytes
from .rows import Columns, to_columns
from .schemas import find_stored_schema

_COPIES = {"to_arrow": 1.2, "to_polars": 1.2, "to_hf": 1.2, "to_pandas": 2.5, "to_list": 1.1}
"""Bytes of memory that a conversion needs for a byte of its columns, or of its Python values."""


class Conversion:
    """A conversion of samples to one table.

    Args:
        call: the method that the user called, for errors.
        step: the tree of the dataset.
        count: the number of samples, if it is known.
        blocks: the samples.

    >>> from penstock.engine.steps.read import Read
    >>> from penstock.sources import Memory
    >>> rows = [{"x": 1}, {"x": 2}]
    >>> Conversion("to_arrow", Read(Memory(rows)), 2, iter([rows])).to_arrow().to_pydict()
    {'x': [1, 2]}
    """

    def __init__(
        self, call: str, step: Step, count: int | None, blocks: Iterator[Sequence[Any]]
    ) -> None:
        self._call, self._step, self._blocks = call, step, blocks
        self._guard = MemoryGuard(call, count, _COPIES[call])

    def to_list(self) -> list[Any]:
        """Return the samples."""
        samples = list[Any]()
        for block in self._blocks:
            rows = list(block)
            samples += rows
            self._guard.add(len(rows), estimate_bytes(rows))
        return samples

    def to_arrow(self) -> Any:
        """Return a `pyarrow.Table`."""
        pa = import_arrow()
        parts = [*self._read_columns(keep_objects=False)]
        names = list(dict.fromkeys(name for _, columns in parts for name in columns))
        if not names:
            return self._stored_schema().empty_table()
        # A block of empty mappings still has rows.
        return concatenate_tables(
            [pa.table(columns or {names[0]: pa.nulls(rows)}) for rows, columns in parts]
        )

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame`."""
        pandas = _import_optional("pandas", self._call)
        rows, columns = self._join()
        return pandas.DataFrame(
            {name: _to_pandas(pandas, name, column) for name, column in columns.items()},
            index=pandas.RangeIndex(rows),
        )

    def to_polars(self) -> Any:
        """Return a `polars.DataFrame`."""
        polars = _import_optional("polars", self._call)
        return polars.from_arrow(self.to_arrow())

    def to_hf(self) -> Any:
        """Return a `datasets.Dataset` in memory."""
        datasets = _import_optional("datasets", self._call)
        _, columns = self._join()
        arrays = {name: column for name, column in columns.items() if not isinstance(column, list)}
        in_memory = datasets.table.InMemoryTable(import_arrow().table(arrays))
        if len(arrays) == len(columns):
            return datasets.Dataset(in_memory)
        try:  # `datasets` encodes images and audio
            objects = datasets.Dataset.from_dict(
                {name: column for name, column in columns.items() if name not in arrays}
            )
        except Exception as error:
            raise DataError(f"`datasets` cannot hold a column: {error}", where="to_hf") from error
        parts = [objects] if not arrays else [datasets.Dataset(in_memory), objects]
        return datasets.concatenate_datasets(parts, axis=1).select_columns(list(columns))

    def _read_columns(self, *, keep_objects: bool) -> Iterator[tuple[int, Columns]]:
        """Yield blocks of samples as a number of rows and their columns."""
        done = 0
        for block in self._blocks:
            columns = to_columns(block, done, keep_objects=keep_objects)
            done += len(block)
            self._guard.add(len(block), sum(map(_count_bytes, columns.values())))
            yield len(block), columns

    def _join(self) -> tuple[int, Columns]:
        """Return the number of rows and all columns; one that Arrow cannot hold is a list."""
        pa, parts = import_arrow(), [*self._read_columns(keep_objects=True)]
        names = list(dict.fromkeys(name for _, columns in parts for name in columns))
        if not parts:
            return 0, {field.name: pa.nulls(0, field.type) for field in self._stored_schema()}
        return sum(rows for rows, _ in parts), {
            name: _join_column([columns.get(name, pa.nulls(rows)) for rows, columns in parts], name)
            for name in names
        }

    def _stored_schema(self) -> Any:
        schema = find_stored_schema(self._step)
        return import_arrow().schema([]) if schema is None else schema


def _count_bytes(column: Any) -> int:
    return estimate_bytes(column) if isinstance(column, list) else column.nbytes


def _join_column(parts: Sequence[Any], name: str) -> Any:
    """Concatenate the parts of a column; one that Arrow cannot hold becomes a list."""
    pa = import_arrow()
    if not any(isinstance(part, list) for part in parts):
        try:
            return concatenate_tables([pa.table({name: part}) for part in parts]).column(0)
        except DataError:
            pass  # a field of one type in some samples, and of another in others
    return [
        value
        for part in parts
        for value in (cast("list[Any]", part) if isinstance(part, list) else _to_values(name, part))
    ]


def _to_values(name: str, column: Any) -> list[Any]:
    """Return the values of a column as samples have them."""
    chunks = column.chunks if isinstance(column, import_arrow().ChunkedArray) else [column]
    return [value for chunk in chunks for value in convert_named_column(name, chunk, None, True)]


def _to_pandas(pandas: Any, name: str, column: Any) -> Any:
    """Return a column as a series, in a dtype that keeps its values."""
    if isinstance(column, list):
        return pandas.Series(column, dtype=object)
    types: Any = import_arrow("pyarrow.types")
    if types.is_nested(column.type) or types.is_null(column.type):
        return pandas.Series(_to_values(name, column), dtype=object)
    if not column.null_count:
        return column.to_pandas()
    if types.is_boolean(column.type):
        return column.to_pandas(types_mapper={column.type: pandas.BooleanDtype()}.get)
    if types.is_integer(column.type):
        dtype = getattr(
            pandas, str(column.type).replace("int", "Int").replace("uI", "UI") + "Dtype"
        )
        return column.to_pandas(types_mapper={column.type: dtype()}.get)
    return column.to_pandas()


def _import_optional(package: str, call: str) -> Any:
    """Import a package that Penstock does not require.

    Raises:
        ImportError: if it is not installed; the message has the command that installs it.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ImportError(f"{call} needs the package {package!r}: pip install {package}") from None
