"""Samples as Arrow tables: their columns, and beside them the keys of what each was made of.

All shards have one schema, that of the first samples, so that a shard depends on its number alone.
Nothing is
compressed: arrays are read where they lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..dataset import Dataset
from ..engine.base.dtypes import is_untyped
from ..errors import DataError
from ..sources.rows import arrow, numpy_dtype
from ..sources.saved_dataset import KEYS
from ..types import Json
from .exact import alike, culprit, exact, native, retyped, typed, unfit
from .tables import encoded

_FIRST = 64  # samples that tell the schema
_WHERE = f"the first {_FIRST} samples"
_BARE = "input_ids"
_LENGTHS = (
    "input_ids",
    "tokens",
)  # columns that tell how long a sample is, where they hold lists of integers


@dataclass(frozen=True)
class Columns:
    """What rows are made of: an Arrow schema, and the column that is all of a sample, where samples
    are arrays."""

    schema: Any
    bare: str | None

    def lengths(self) -> str | None:
        """The column whose lists tell how long a row is."""
        types: Any = arrow("pyarrow.types")
        lists = {field.name for field in self.schema if types.is_list(field.type)}
        told = (
            name
            for name in _LENGTHS
            if name in lists and types.is_integer(self.schema.field(name).type.value_type)
        )
        return next(told, None)

    def describe(self) -> dict[str, Json]:
        """The same as JSON."""
        columns = {field.name: str(field.type) for field in self.schema}
        return {"columns": columns, "bare": self.bare, "lengths": self.lengths()}


def columns_of(dataset: Dataset) -> Columns:
    """The columns of a dataset, as its first samples have them."""
    first = dataset[np.arange(min(_FIRST, len(dataset)))]
    bare = None if isinstance(first[0], Mapping) else _BARE
    rows = [_row(sample, bare, position) for position, sample in enumerate(first)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    pa: Any = arrow()
    fields = list[Any]()
    for name in names:
        held = {place: row[name] for place, row in enumerate(rows) if row.get(name) is not None}
        try:
            fields.append(pa.field(name, _type([*held.values()], name)))
        except DataError:
            raise
        except unfit() as error:
            bad = culprit([*held.values()])
            where = _WHERE if bad is None else f"sample {[*held][bad]}"
            raise DataError(
                f"the field {name!r} cannot be one column: {error}", where=where
            ) from error
    return Columns(pa.schema(fields), bare)


def _type(values: list[Any], name: str) -> Any:
    """What a column of such values is: lists of what arrays hold, if they all hold the same, or
    what Arrow finds."""
    pa: Any = arrow()
    values = retyped(values)
    dtypes: set[Any] = {
        cast(Any, value).dtype if isinstance(value, np.ndarray) else None for value in values
    }
    same = len(dtypes) == 1 and None not in dtypes and all(value.ndim == 1 for value in values)
    kind = pa.list_(pa.from_numpy_dtype(*dtypes)) if same else typed(values).type
    alike(values, kind)
    if pa.types.is_null(kind):
        raise DataError(
            f"the field {name!r} is empty in all of them, so that its type is not known: fill it, "
            "or leave it out",
            where=_WHERE,
        )
    return kind


class ArrowEncoder:
    """Samples as rows of one file."""

    suffix = "arrow"
    end = 0

    def __init__(self, dataset: Dataset, columns: Columns) -> None:
        self._dataset, self._columns = dataset, columns
        self._first: int | None = None

    def __call__(self, position: int, sample: Any) -> tuple[Mapping[str, Any], int]:
        """A row, and about how many bytes it takes."""
        row, names = _row(sample, self._columns.bare, position), self._columns.schema.names
        if foreign := [name for name in row if name not in names]:
            raise DataError(
                f"it has the field {foreign[0]!r}, which the first samples have not: give all "
                "samples the same fields",
                where=f"sample {position}",
            )
        self._first = position if self._first is None else self._first
        return row, sum(map(_bytes, row.values()))

    def file(self, pieces: Sequence[Any]) -> bytes:
        """The file of so many rows."""
        pa, schema, first = arrow(), self._columns.schema, self._first or 0
        columns = [_column(_values(pieces, field), field, first) for field in schema]
        keys = _keys(self._dataset, first, first + len(pieces))
        table = pa.table([*columns, keys], pa.schema([*schema, pa.field(KEYS, keys.type)]))
        self._first = first + len(pieces)
        return encoded(table, "arrow", "none")


def _values(pieces: Sequence[Mapping[str, Any]], field: Any) -> list[Any]:
    """The values of a column; an empty vector that tells no dtype has that of the column."""
    values = [native(row.get(field.name)) for row in pieces]
    if not any(isinstance(value, np.ndarray) and is_untyped(value) for value in values):
        return values
    types: Any = arrow("pyarrow.types")
    number = types.is_list(field.type) and types.is_primitive(field.type.value_type)
    empty: Any = np.zeros(0, numpy_dtype(field.type.value_type)) if number else []
    return [
        empty if isinstance(value, np.ndarray) and is_untyped(value) else value for value in values
    ]


def _row(sample: Any, bare: str | None, position: int) -> Mapping[str, Any]:
    if bare is None and isinstance(sample, Mapping) and sample:
        row = cast("Mapping[str, Any]", sample)
        if wrong := next((name for name in row if not isinstance(name, str) or name == KEYS), None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DataError(
                f"{wrong!r} is no name for a column of a sample", where=f"sample {position}"
            )
        return row
    if (
        bare is not None
        and isinstance(sample, np.ndarray)
        and cast("npt.NDArray[Any]", sample).ndim == 1
    ):
        return {bare: sample}
    raise DataError(
        f"it is a {type(cast(object, sample)).__name__}; a table takes mappings ({{'text': text}}, "
        "say), or arrays of "
        "one axis, and all of one kind",
        where=f"sample {position}",
    )


def _bytes(value: Any) -> int:
    if isinstance(value, np.ndarray | np.generic):
        return value.nbytes
    return (
        len(value) * (1 if isinstance(value, str | bytes) else 8)
        if hasattr(value, "__len__")
        else 8
    )


def _column(values: list[Any], field: Any, first: int) -> Any:
    """One column of a file; of arrays of one type without a step for each number."""
    pa: Any = arrow()
    if pa.types.is_list(field.type) and all(_plain(v) and v.dtype.kind in "biufmM" for v in values):
        flat = np.concatenate(values) if len(values) > 1 else values[0]
        if pa.from_numpy_dtype(flat.dtype) == field.type.value_type and {
            v.dtype for v in values
        } == {flat.dtype}:
            offsets = np.concatenate([[0], np.cumsum([len(value) for value in values])]).astype(
                np.int32
            )
            return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat))
    try:
        return exact(values, field.type)
    except unfit():
        for number, value in enumerate(values):
            _fits(value, field, first + number)
    try:
        return pa.array(
            values, field.type
        )  # every one of them fits; together Arrow found no type for them
    except unfit() as error:
        raise DataError(
            f"the field {field.name!r} is no column: {error}", where=f"samples from {first} on"
        ) from error


def _plain(value: Any) -> bool:
    return (
        isinstance(value, np.ndarray)
        and value.ndim == 1
        and not isinstance(value, np.ma.MaskedArray)
    )


def _fits(value: Any, field: Any, position: int) -> None:
    try:
        exact([value], field.type)
    except unfit() as error:
        raise DataError(
            f"its field {field.name!r} is no {field.type}, as the first samples have it: {error}",
            where=f"sample {position}",
        ) from error


def _keys(dataset: Dataset, start: int, stop: int) -> Any:
    """What every row is made of: a list of source, epoch and index, and of packed documents the
    tokens."""
    pa: Any = arrow()
    found = dataset.plan.at(slice(start, stop))
    names = pa.DictionaryArray.from_arrays(
        found.source.astype(np.int32), pa.array(found.names, pa.string())
    )
    columns = {"source": names.dictionary_decode(), "epoch": found.epoch, "index": found.index}
    if found.start is not None and found.stop is not None:
        columns |= {"start": found.start, "stop": found.stop}
    parts = pa.StructArray.from_arrays(
        [pa.array(column) for column in columns.values()], [*columns]
    )
    offsets = np.searchsorted(found.position, np.arange(start, stop + 1)).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), parts)
