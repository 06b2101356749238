"""Rows of columnar files that stay columns: batches are stacked column by column."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..arrays.casts import cast_table
from ..arrays.columnar import ColumnarSamples, ColumnStacker, import_arrow, join_samples
from ..engine.base.fallback import log_fallback
from ..errors import DataError
from ..types import Ints
from .rows import build_rows, convert_named_column, is_number_list, join_batches

MAX_JOINED_ROWS_PER_PART = 8
"""Rows per part up to which concatenating before conversion is faster."""

_MAX_GATHERED_PER_PART = 256  # the same limit for rows gathered directly from a file
_INTEGER_TYPES = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
_STACKED_DTYPES: dict[str, Any] = {
    **dict.fromkeys(_INTEGER_TYPES, np.int64),
    **dict.fromkeys(("float", "double"), np.float64),
    "bool": np.bool_,
}
"""dtypes of stacked numbers."""

_WIDE_TYPES = {"string": "large_string", "binary": "large_binary"}
_TEXT_TYPES = ("string", "large_string", "binary", "large_binary")


class Columns(Mapping[str, Any]):
    """Samples as columns by name: the argument of a batch function with `read(rows="columns")`.

    Numbers without nulls are read-only NumPy arrays of their stored type, without a copy if possible.
    Other columns are lists of the values that samples have. A column is converted on first access;
    `import_arrow` is the `pyarrow.RecordBatch` of all columns.

    >>> import pyarrow as pa
    >>> columns = Columns(pa.RecordBatch.from_pydict({"x": [1, 2], "text": ["a", "b"]}))
    >>> columns["x"] * 2, columns["text"], len(columns)
    (array([2, 4]), ['a', 'b'], 2)
    """

    def __init__(self, batch: Any) -> None:
        self.arrow = batch
        self._converted: dict[str, Any] = {}

    @classmethod
    def of_rows(cls, rows: Sequence[Any]) -> Columns:
        """Convert rows with equal column names to columns."""
        names = {*rows[0]} if rows else set[str]()
        for row in rows:
            if {*row} != names:
                raise DataError(
                    f"a sample has {', '.join(row)}, another one {', '.join(rows[0])}: name "
                    "columns=[...]"
                )
        return cls(import_arrow().RecordBatch.from_pylist(list(rows)))

    def __getitem__(self, name: str) -> Any:
        if name not in self._converted:
            number = self.arrow.schema.get_field_index(name)
            if number < 0:
                raise KeyError(name)
            self._converted[name] = _column_to_values(name, self.arrow.column(number))
        return self._converted[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrow.schema.names)

    def __len__(self) -> int:
        return len(self.arrow.schema.names)

    def __repr__(self) -> str:
        return f"<{self.arrow.num_rows} samples as columns: {', '.join(self)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Columns, (self.arrow,)


def to_columns(samples: Sequence[Any]) -> Mapping[str, Any]:
    """Return samples as columns, also if a step made rows of them."""
    return samples.columns() if isinstance(samples, ColumnarSamples) else Columns.of_rows(samples)


def _column_to_values(name: str, column: Any) -> Any:
    if str(column.type) in _STACKED_DTYPES or str(column.type) in ("uint64", "halffloat"):
        if not column.null_count:
            return column.to_numpy(zero_copy_only=False)
    return convert_named_column(name, column, None, True)


class ColumnFacts:
    """Facts about the columns of a file that are known from its schema."""

    def __init__(self, schema: Any) -> None:
        type_names = [str(type_name) for type_name in schema.types]
        self.names: list[str] = schema.names
        self.numbers = [_STACKED_DTYPES.get(type_name) for type_name in type_names]
        self.lists = [is_number_list(type_name) for type_name in schema.types]
        self.texts = [
            number
            for number, type_name in enumerate(type_names)
            if type_name in ("string", "large_string")
        ]
        self.listed = [type_name in _TEXT_TYPES for type_name in type_names]
        self.bare = [
            type_name in _STACKED_DTYPES or type_name in _TEXT_TYPES for type_name in type_names
        ]
        # Converting values of other types may fail, so it happens where an error names their file.
        self.plain = [
            is_simple or is_list for is_simple, is_list in zip(self.bare, self.lists, strict=True)
        ]

    def row(self, batch: Any, row: int, views: bool) -> dict[str, Any]:
        """Return one row of a record batch or of a table."""
        return {
            name: column[row].as_py()
            if is_simple
            else convert_named_column(name, column.slice(row, 1), None, views)[0]
            for name, column, is_simple in zip(self.names, batch.columns, self.bare, strict=True)
        }


class RecordBatchRows(ColumnarSamples):
    """Some rows of one record batch, in its order or at `positions`.

    With `views` their arrays share the memory of the batch, see `build_rows`. Rows at `positions` are taken
    from the batch on access, usually by a slice that lies within one of them.
    """

    def __init__(
        self,
        batch: Any,
        views: bool,
        form: ColumnFacts,
        rows: list[dict[str, Any]] | None = None,
        positions: Ints | None = None,
    ) -> None:
        self.views, self.form = views, form
        self._batch, self._rows, self._positions = batch, rows, positions

    @classmethod
    def of(cls, batch: Any, views: bool, form: ColumnFacts) -> RecordBatchRows:
        """Return a block whose conversion cannot fail later; conversions that may fail run now."""
        block = cls(batch, views, form)
        for number in form.texts:
            try:
                batch.column(number).validate(full=True)
            except import_arrow().ArrowInvalid:
                block.rows()  # its error names the byte
                raise
        if not all(form.plain):
            block.rows()
        return block

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows, converted once."""
        if self._rows is None:
            self._rows = build_rows(self.batch, views=self.views)
        return self._rows

    @property
    def batch(self) -> Any:
        """The rows as a record batch without other rows."""
        if self._positions is not None:
            self._batch, self._positions = _take_rows(self._batch, self._positions), None
        elif isinstance(self._batch, import_arrow().Table):
            self._batch = join_batches([self._batch])
        return self._batch

    def __len__(self) -> int:
        return self._batch.num_rows if self._positions is None else len(self._positions)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows())

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            return cast(Any, self.rows()[index])
        start, stop, step = index.indices(len(self))
        if step != 1:
            return self.rows()[index]
        rows = None if self._rows is None else self._rows[index]
        if self._positions is not None:
            return RecordBatchRows(self._batch, self.views, self.form, rows, self._positions[index])
        return RecordBatchRows(
            self._batch.slice(start, max(stop - start, 0)), self.views, self.form, rows
        )

    @property
    def nbytes(self) -> int:
        return self.batch.nbytes

    def columns(self) -> Columns:
        return Columns(self.batch)

    def join_parts(self, parts: Sequence[Sequence[Any]], order: Ints) -> Sequence[Any]:
        return join_read_rows(parts, order)

    def collated(self, stack: ColumnStacker) -> dict[str, Any]:
        return {
            name: self._stacked(number, name, stack) for number, name in enumerate(self.form.names)
        }

    def _stacked(self, number: int, name: str, stack: ColumnStacker) -> Any:
        dtype, column = self.form.numbers[number], self.batch.column(number)
        if dtype is not None and not column.null_count:
            numbers: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
            return numbers.astype(dtype)  # a copy, as the values of samples are
        if self.form.listed[number]:
            return column.to_pylist()  # stacked texts are lists; no check per text
        if not self.form.plain[number]:
            return stack([row[name] for row in self.rows()], f".{name}")
        # Views suffice, because stacking copies arrays.
        return stack(convert_named_column(name, column, None, True), f".{name}")


class ColumnarFile(ABC):
    """A file whose rows can be read as columns."""

    @abstractmethod
    def block(self, indices: Ints, /) -> Sequence[Any]:
        """Return the rows at `indices`: a `RecordBatchRows`, or a list if that is impossible."""

    def decoding(self) -> tuple[int, int] | None:
        """Return the average bytes and rows of a decoded group; `None` without groups."""
        return None

    def arrow_schema(self) -> Any | None:
        """Return the columns of the rows as a `pyarrow.Schema`; `None` if only reading tells."""
        return None

    def read(self, indices: Ints, /) -> list[Any]:
        """Return the rows at `indices`."""
        return list(self.block(indices))


def join_read_rows(parts: Sequence[Sequence[Any]], order: Ints) -> Sequence[Any]:
    """Join rows that were read in parts; `order` contains the position of each."""
    blocks = [part for part in parts if isinstance(part, RecordBatchRows)]
    try:
        if len(blocks) == len(parts) and (
            batches := _cast_to_one_schema([block.batch for block in blocks])
        ):
            table = join_batches(batches)
            if isinstance(table, import_arrow().RecordBatch):
                form = (
                    blocks[0].form
                    if table.schema.equals(blocks[0].batch.schema)
                    else ColumnFacts(table.schema)
                )
                return RecordBatchRows(_restore_order(table, order), True, form)
    except (import_arrow().ArrowInvalid, import_arrow().ArrowNotImplementedError) as error:
        log_fallback("columns of several sources", error)
    return join_samples(parts, order)


def _cast_to_one_schema(batches: list[Any]) -> list[Any]:
    """Return record batches cast to one schema if only their storage differs, else `[]`."""
    pa, first = import_arrow(), batches[0].schema
    if all(batch.schema.equals(first) for batch in batches):
        return batches
    if any({*batch.schema.names} != {*first.names} for batch in batches):
        return []
    fields = list[Any]()
    for name in first.names:
        types = {batch.schema.field(name).type for batch in batches}
        # Columns of type null contain nulls alone.
        known = {arrow_type for arrow_type in types if not pa.types.is_null(arrow_type)} or types
        widened = known if len(known) == 1 else set(map(_widen_type, known))
        if len(widened) > 1:
            return []
        fields.append((name, widened.pop()))
    schema = pa.schema(fields)
    return [cast_table(batch.select(first.names), schema) for batch in batches]


def _widen_type(arrow_type: Any) -> Any:
    """Return the widest storage of a type's values."""
    pa = import_arrow()
    if pa.types.is_dictionary(arrow_type):
        return _widen_type(arrow_type.value_type)
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        return pa.large_list(_widen_type(arrow_type.value_type))
    if pa.types.is_struct(arrow_type):
        return pa.struct([(field.name, _widen_type(field.type)) for field in arrow_type])
    return (
        getattr(pa, _WIDE_TYPES[str(arrow_type)])()
        if str(arrow_type) in _WIDE_TYPES
        else arrow_type
    )


def _are_consecutive(rows: Ints) -> bool:
    """Return whether rows are consecutive."""
    return int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((rows[1:] - rows[:-1] == 1).all())


def _take_rows(batch: Any, rows: Ints) -> Any:
    """Return some rows of a record batch or table; consecutive rows are not copied."""
    if len(rows) and _are_consecutive(rows):
        return batch.slice(int(rows[0]), len(rows))
    return batch.take(import_arrow().array(rows))


def _restore_order(batch: Any, order: Ints) -> Any:
    inverse = np.empty(len(order), np.int64)
    inverse[order] = np.arange(len(order))
    return _take_rows(batch, inverse)


def take_batch_rows(
    batch: Any, rows: Ints | None, form: ColumnFacts, *, views: bool
) -> Sequence[Any]:
    """Return some rows of a record batch, or all; consecutive rows are not copied."""
    pa = import_arrow()
    if not isinstance(batch, pa.RecordBatch) or not batch.num_columns:
        return build_rows(batch, rows, views=views)
    if rows is None:
        return RecordBatchRows.of(batch, views, form)
    first = int(rows[0])
    if _are_consecutive(rows):
        return RecordBatchRows.of(batch.slice(first, len(rows)), views, form)
    if views and any(form.lists):  # rows stay views of the file, because `take` copies
        return RecordBatchRows(batch, views, form, build_rows(batch, rows, views=True), rows)
    return RecordBatchRows.of(_take_rows(batch, rows), True, form)


def take_rows_of_batches(
    starts: Ints,
    indices: Ints,
    batch: Callable[[int], Any],
    form: ColumnFacts,
    *,
    views: bool,
    few: Callable[[Ints, Ints], Any] | None = None,
) -> Sequence[Any]:
    """Return rows of the batches of a file, requesting each batch once.

    Args:
        starts: First row of each batch.
        indices: Rows to return.
        batch: Returns a batch.
        form: Facts about the columns.
        views: Let arrays share the memory of the batches.
        few: Gathers distant rows of batches; returns `None` if it cannot.
    """
    if not indices.size:
        return []
    parts = starts.searchsorted(indices, "right") - 1
    if len(parts) == 1:
        number = int(parts[0])
        gathered, row = batch(number), int(indices[0] - starts[number])
        rows = [form.row(gathered, row, views)]
        return (
            RecordBatchRows(gathered, views, form, rows, np.asarray([row]))
            if isinstance(gathered, import_arrow().RecordBatch)
            else rows
        )
    rows = indices - starts[parts]
    if bool((parts == parts[0]).all()):
        return take_batch_rows(batch(int(parts[0])), rows, form, views=views)
    if _are_consecutive(indices):
        bounds = zip(
            range(int(parts[0]), int(parts[-1]) + 1),
            starts[parts[0] : parts[-1] + 1].tolist(),
            strict=True,
        )
        low, high = int(indices[0]), int(indices[-1]) + 1
        slices = [
            (number, max(low - batch_start, 0), batch_start) for number, batch_start in bounds
        ]
        pieces = [
            batch(number).slice(offset, high - batch_start - offset)
            for number, offset, batch_start in slices
        ]
        if (
            len(pieces) <= MAX_JOINED_ROWS_PER_PART
            and form.names
            and all(isinstance(piece, import_arrow().RecordBatch) for piece in pieces)
        ):
            return RecordBatchRows.of(import_arrow().Table.from_batches(pieces), views, form)
        return take_batch_rows(join_batches(pieces), None, form, views=True)
    order = np.argsort(parts, kind="stable")
    sorted_parts = parts[order]
    boundaries = [
        0,
        *(np.flatnonzero(sorted_parts[1:] != sorted_parts[:-1]) + 1).tolist(),
        len(parts),
    ]
    if len(boundaries) * (_MAX_GATHERED_PER_PART if few else MAX_JOINED_ROWS_PER_PART) > len(rows):
        gathered = few(parts, rows) if few else None
        if gathered is None:
            batches = {number: batch(number) for number in sorted_parts[boundaries[:-1]].tolist()}
            pairs = zip(parts.tolist(), rows.tolist(), strict=True)
            gathered = join_batches([batches[number].slice(row, 1) for number, row in pairs])
        return take_batch_rows(gathered, None, form, views=True)
    rows = rows[order]
    spans = [(int(sorted_parts[start]), rows[start:stop]) for start, stop in pairwise(boundaries)]
    gathered = join_batches([_take_rows(batch(number), batch_rows) for number, batch_rows in spans])
    return take_batch_rows(_restore_order(gathered, order), None, form, views=True)
