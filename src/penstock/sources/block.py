"""Rows of columnar files that are still columns: a batch of them is stacked column by column,
without rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..engine.base.columnar import Columnar, Stack
from ..engine.base.fallback import log_fallback
from ..errors import DataError
from ..types import Ints
from .rows import arrow, column_values, numbers_in_lists, rows_of, together

FEW = 8
"""Rows for each part, up to which it pays to put them together before they are converted."""

_GATHERED = 256  # the same, where rows are gathered straight from a file
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
_STACKED: dict[str, Any] = {
    **dict.fromkeys(_INTEGERS, np.int64),
    **dict.fromkeys(("float", "double"), np.float64),
    "bool": np.bool_,
}
"""The types that numbers of samples have when they are stacked."""

_WIDE = {"string": "large_string", "binary": "large_binary"}
_TEXTS = ("string", "large_string", "binary", "large_binary")


class Columns(Mapping[str, Any]):
    """Some samples as columns, by name: what a function of many samples is given with
    `read(rows="columns")`.

    Numbers without nulls are NumPy arrays of the type they are stored in, read-only and without a
    copy where that can be; all else is a list of the values that samples have. A column is made
    when it is first asked for; `arrow` is the `pyarrow.RecordBatch` of all of them.

    >>> import pyarrow as pa
    >>> found = Columns(pa.RecordBatch.from_pydict({"x": [1, 2], "text": ["a", "b"]}))
    >>> found["x"] * 2, found["text"], len(found)
    (array([2, 4]), ['a', 'b'], 2)
    """

    def __init__(self, batch: Any) -> None:
        self.arrow = batch
        self._made: dict[str, Any] = {}

    @classmethod
    def of_rows(cls, rows: Sequence[Any]) -> Columns:
        """The columns of samples that are rows already, whose names are the same."""
        names = {*rows[0]} if rows else set[str]()
        for row in rows:
            if {*row} != names:
                raise DataError(
                    f"a sample has {', '.join(row)}, another one {', '.join(rows[0])}: name "
                    "columns=[...]"
                )
        return cls(arrow().RecordBatch.from_pylist(list(rows)))

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            place = self.arrow.schema.get_field_index(name)
            if place < 0:
                raise KeyError(name)
            self._made[name] = _column(name, self.arrow.column(place))
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrow.schema.names)

    def __len__(self) -> int:
        return len(self.arrow.schema.names)

    def __repr__(self) -> str:
        return f"<{self.arrow.num_rows} samples as columns: {', '.join(self)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Columns, (self.arrow,)


def _column(name: str, column: Any) -> Any:
    if str(column.type) in _STACKED or str(column.type) in ("uint64", "halffloat"):
        if not column.null_count:
            return column.to_numpy(zero_copy_only=False)
    return column_values(name, column, None, True)


class Form:
    """What is known of the columns of a file before a row of it is read."""

    def __init__(self, schema: Any) -> None:
        kinds = [str(kind) for kind in schema.types]
        self.names: list[str] = schema.names
        self.numbers = [_STACKED.get(kind) for kind in kinds]
        self.lists = [numbers_in_lists(kind) for kind in schema.types]
        self.texts = [
            place for place, kind in enumerate(kinds) if kind in ("string", "large_string")
        ]
        self.listed = [kind in _TEXTS for kind in kinds]
        self.bare = [kind in _STACKED or kind in _TEXTS for kind in kinds]
        # Values of other types may fail to become Python's, so they are made where an error still
        # names their file.
        self.plain = [bare or lists for bare, lists in zip(self.bare, self.lists, strict=True)]

    def row(self, batch: Any, row: int, views: bool) -> dict[str, Any]:
        """One row of a record batch, or of a table."""
        return {
            name: column[row].as_py()
            if bare
            else column_values(name, column.slice(row, 1), None, views)[0]
            for name, column, bare in zip(self.names, batch.columns, self.bare, strict=True)
        }


class Block(Columnar):
    """Rows of one record batch, in its order, or of a few. With `views` their arrays share its
    memory, as `rows_of` says.

    Those of a few are put together where somebody looks, which is at a slice that lies within one
    of them as a rule.
    """

    def __init__(
        self,
        batch: Any,
        views: bool,
        form: Form,
        rows: list[dict[str, Any]] | None = None,
        places: Ints | None = None,
    ) -> None:
        self.views, self.form = views, form
        self._batch, self._rows, self._places = batch, rows, places

    @classmethod
    def of(cls, batch: Any, views: bool, form: Form) -> Block:
        """A block whose values can be had: what might fail is tried now."""
        block = cls(batch, views, form)
        for place in form.texts:
            try:
                batch.column(place).validate(full=True)
            except arrow().ArrowInvalid:
                block.rows()  # says which byte it is
                raise
        if not all(form.plain):
            block.rows()
        return block

    def rows(self) -> list[dict[str, Any]]:
        """The rows, made once."""
        if self._rows is None:
            self._rows = rows_of(self.batch, views=self.views)
        return self._rows

    @property
    def batch(self) -> Any:
        """The rows and no others, as a record batch."""
        if self._places is not None:
            self._batch, self._places = _taken(self._batch, self._places), None
        elif isinstance(self._batch, arrow().Table):
            self._batch = together([self._batch])
        return self._batch

    def __len__(self) -> int:
        return self._batch.num_rows if self._places is None else len(self._places)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows())

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            return cast(Any, self.rows()[index])
        start, stop, step = index.indices(len(self))
        if step != 1:
            return self.rows()[index]
        rows = None if self._rows is None else self._rows[index]
        if self._places is not None:
            return Block(self._batch, self.views, self.form, rows, self._places[index])
        return Block(self._batch.slice(start, max(stop - start, 0)), self.views, self.form, rows)

    @property
    def nbytes(self) -> int:
        return self.batch.nbytes

    def columns(self) -> Columns:
        return Columns(self.batch)

    def collated(self, stack: Stack) -> dict[str, Any]:
        return {
            name: self._stacked(place, name, stack) for place, name in enumerate(self.form.names)
        }

    def _stacked(self, place: int, name: str, stack: Stack) -> Any:
        kind, column = self.form.numbers[place], self.batch.column(place)
        if kind is not None and not column.null_count:
            numbers: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
            return numbers.astype(kind)  # a copy, as the values of samples are
        if self.form.listed[place]:
            return column.to_pylist()  # as texts are stacked: no look at each of them
        if not self.form.plain[place]:
            return stack([row[name] for row in self.rows()], f".{name}")
        return stack(
            column_values(name, column, None, True), f".{name}"
        )  # what stacks arrays copies them


class OfColumns(ABC):
    """A file whose rows can be had as columns."""

    @abstractmethod
    def block(self, indices: Ints, /) -> Sequence[Any]:
        """The rows at `indices`: a `Block`, or a list where that cannot be."""

    def decoding(self) -> tuple[int, int] | None:
        """The bytes and rows of a group that is decoded for a row of it, on average; None where
        there is none."""
        return None

    def read(self, indices: Ints, /) -> list[Any]:
        """The rows at `indices`."""
        return list(self.block(indices))


def joined(parts: Sequence[Sequence[Any]], order: Ints) -> Sequence[Any]:
    """Rows that were read in parts, part after part, in their order: `order` tells where each
    belongs."""
    blocks = [part for part in parts if isinstance(part, Block)]
    try:
        if len(blocks) == len(parts) and (batches := _alike([block.batch for block in blocks])):
            whole = together(batches)
            if isinstance(whole, arrow().RecordBatch):
                form = (
                    blocks[0].form
                    if whole.schema.equals(blocks[0].batch.schema)
                    else Form(whole.schema)
                )
                return Block(_back(whole, order), True, form)
    except (arrow().ArrowInvalid, arrow().ArrowNotImplementedError) as error:
        log_fallback("columns of several sources", error)
    out: list[Any] = [None] * len(order)
    rows = (row for part in parts for row in part)
    for place, row in zip(order.tolist(), rows, strict=True):
        out[place] = row
    return out


def _alike(batches: list[Any]) -> list[Any]:
    """Record batches as of one schema, where their columns differ in how they are stored alone;
    else none."""
    pa, first = arrow(), batches[0].schema
    if all(batch.schema.equals(first) for batch in batches):
        return batches
    if any({*batch.schema.names} != {*first.names} for batch in batches):
        return []
    fields = list[Any]()
    for name in first.names:
        found = {batch.schema.field(name).type for batch in batches}
        told = {
            kind for kind in found if not pa.types.is_null(kind)
        } or found  # of others nothing but nulls was seen
        wide = told if len(told) == 1 else set(map(_wide, told))
        if len(wide) > 1:
            return []
        fields.append((name, wide.pop()))
    schema = pa.schema(fields)
    return [batch.select(first.names).cast(schema) for batch in batches]


def _wide(kind: Any) -> Any:
    """The type that has all values of a type, however they are stored."""
    pa = arrow()
    if pa.types.is_dictionary(kind):
        return _wide(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.large_list(_wide(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _wide(field.type)) for field in kind])
    return getattr(pa, _WIDE[str(kind)])() if str(kind) in _WIDE else kind


def _run(rows: Ints) -> bool:
    """Whether rows are neighbours in their order."""
    return int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((rows[1:] - rows[:-1] == 1).all())


def _taken(batch: Any, places: Ints) -> Any:
    """Some rows of a record batch, or of a table. Those of one run are not copied."""
    if len(places) and _run(places):
        return batch.slice(int(places[0]), len(places))
    return batch.take(arrow().array(places))


def _back(batch: Any, order: Ints) -> Any:
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    return _taken(batch, back)


def of_batch(batch: Any, rows: Ints | None, form: Form, *, views: bool) -> Sequence[Any]:
    """Some rows of a record batch, or all of them. Neighbours are not copied."""
    pa = arrow()
    if not isinstance(batch, pa.RecordBatch) or not batch.num_columns:
        return rows_of(batch, rows, views=views)
    if rows is None:
        return Block.of(batch, views, form)
    first = int(rows[0])
    if _run(rows):
        return Block.of(batch.slice(first, len(rows)), views, form)
    if views and any(form.lists):  # rows are views of the file; what is taken is a copy
        return Block(batch, views, form, rows_of(batch, rows, views=True), rows)
    return Block.of(_taken(batch, rows), True, form)


def of_batches(
    starts: Ints,
    indices: Ints,
    batch: Callable[[int], Any],
    form: Form,
    *,
    views: bool,
    few: Callable[[Ints, Ints], Any] | None = None,
) -> Sequence[Any]:
    """Rows of the batches of a file, each of them asked for once where many rows are of it. `few`
    gathers rows that lie far apart, of these batches, if it can."""
    if not indices.size:
        return []
    parts = starts.searchsorted(indices, "right") - 1
    if len(parts) == 1:
        number = int(parts[0])
        whole, row = batch(number), int(indices[0] - starts[number])
        rows = [form.row(whole, row, views)]
        return (
            Block(whole, views, form, rows, np.asarray([row]))
            if isinstance(whole, arrow().RecordBatch)
            else rows
        )
    rows = indices - starts[parts]
    if bool((parts == parts[0]).all()):
        return of_batch(batch(int(parts[0])), rows, form, views=views)
    if _run(indices):
        bounds = zip(
            range(int(parts[0]), int(parts[-1]) + 1),
            starts[parts[0] : parts[-1] + 1].tolist(),
            strict=True,
        )
        low, high = int(indices[0]), int(indices[-1]) + 1
        begun = [(number, max(low - begin, 0), begin) for number, begin in bounds]
        pieces = [
            batch(number).slice(first, high - begin - first) for number, first, begin in begun
        ]
        if (
            len(pieces) <= FEW
            and form.names
            and all(isinstance(piece, arrow().RecordBatch) for piece in pieces)
        ):
            return Block.of(arrow().Table.from_batches(pieces), views, form)
        return of_batch(together(pieces), None, form, views=True)
    order = np.argsort(parts, kind="stable")
    sorted_parts = parts[order]
    cuts = [0, *(np.flatnonzero(sorted_parts[1:] != sorted_parts[:-1]) + 1).tolist(), len(parts)]
    if len(cuts) * (_GATHERED if few else FEW) > len(rows):
        whole = few(parts, rows) if few else None
        if whole is None:
            held = {number: batch(number) for number in sorted_parts[cuts[:-1]].tolist()}
            pairs = zip(parts.tolist(), rows.tolist(), strict=True)
            whole = together([held[number].slice(row, 1) for number, row in pairs])
        return of_batch(whole, None, form, views=True)
    rows = rows[order]
    spans = [(int(sorted_parts[start]), rows[start:stop]) for start, stop in pairwise(cuts)]
    whole = together([_taken(batch(number), mine) for number, mine in spans])
    return of_batch(_back(whole, order), None, form, views=True)
