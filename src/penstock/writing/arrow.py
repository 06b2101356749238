"""Encode samples as Arrow tables, with the keys of the source samples of each row.

All shards share the schema of the first samples, so that a shard depends on its number alone.
Nothing is compressed, so that readers can map arrays into memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..arrays.columnar import import_arrow
from ..arrays.dtypes import is_untyped
from ..arrays.lossless import (
    ONE_TYPE,
    find_culprit,
    infer_array,
    list_arrow_errors,
    normalize_empty,
    require_same_kind,
    to_lossless_array,
    to_native_order,
)
from ..arrays.tables import SAMPLE_COLUMN, decode_dictionaries, encode_table
from ..errors import ConfigError, DataError
from ..explore.base import BaseDataset
from ..explore.schemas import find_stored_schema
from ..sources.rows import to_numpy_dtype
from ..sources.saved_dataset import KEYS_COLUMN
from ..text.chat import find_drop_reason
from ..types import Json

_SCHEMA_SAMPLES = 64
_SCHEMA_LABEL = f"the first {_SCHEMA_SAMPLES} samples"
_LENGTH_COLUMNS = ("input_ids", "tokens")  # lists of integers here give the length of a sample


@dataclass(frozen=True)
class Columns:
    """The columns of a dataset.

    Attributes:
        schema: the Arrow schema.
        bare: the column that holds the whole sample, if samples are arrays.
    """

    schema: Any
    bare: str | None

    def lengths(self) -> str | None:
        """Return the column whose lists give the length of a row, if any."""
        types: Any = import_arrow("pyarrow.types")
        lists = {field.name for field in self.schema if types.is_list(field.type)}
        names = (
            name
            for name in _LENGTH_COLUMNS
            if name in lists and types.is_integer(self.schema.field(name).type.value_type)
        )
        return next(names, None)

    def describe(self) -> dict[str, Json]:
        """Return the columns as JSON."""
        columns = {field.name: str(field.type) for field in self.schema}
        return {"columns": columns, "bare": self.bare, "lengths": self.lengths()}


def infer_columns(dataset: BaseDataset[Any]) -> Columns:
    """Return the columns of a dataset, inferred from its first samples that no chat dropped.

    Raises:
        ConfigError: if a chat dropped all samples.
        DataError: if the samples do not fit into columns.
    """
    first = dict[int, Any]()
    for start in range(0, len(dataset), _SCHEMA_SAMPLES):
        positions = np.arange(start, min(start + _SCHEMA_SAMPLES, len(dataset)))
        samples = zip(positions.tolist(), dataset[positions], strict=True)
        first |= {i: sample for i, sample in samples if find_drop_reason(sample) is None}
        if len(first) >= _SCHEMA_SAMPLES or len(first) == len(positions):
            break
    if not first:
        raise ConfigError("write: the chat drops all samples: check its roles and max_length")
    first = dict(islice(first.items(), _SCHEMA_SAMPLES))
    bare = None if isinstance(next(iter(first.values())), Mapping) else SAMPLE_COLUMN
    rows = [_sample_to_row(sample, bare, position) for position, sample in first.items()]
    names = list(dict.fromkeys(name for row in rows for name in row))
    pa: Any = import_arrow()
    fields = list[Any]()
    for name in names:
        values_by_position = {
            index: row[name]
            for index, row in zip(first, rows, strict=True)
            if row.get(name) is not None
        }
        try:
            column_type = _infer_column_type([*values_by_position.values()])
            if _is_unknown(column_type):
                column_type = _find_stored_types(dataset).get(name, column_type)
            if pa.types.is_null(column_type):
                raise DataError(
                    f"the field {name!r} is empty in all of these samples, so its type is unknown: "
                    "fill it, or leave it out",
                    where=_SCHEMA_LABEL,
                )
            fields.append(pa.field(name, column_type))
        except DataError:
            raise
        except list_arrow_errors() as error:
            culprit_index = find_culprit([*values_by_position.values()])
            where = (
                _SCHEMA_LABEL
                if culprit_index is None
                else f"sample {[*values_by_position][culprit_index]}"
            )
            raise DataError(
                f"the field {name!r} cannot be one column: {error}; {ONE_TYPE}", where=where
            ) from error
    return Columns(pa.schema(fields), bare)


def _find_stored_types(dataset: BaseDataset[Any]) -> dict[str, Any]:
    """Return the types of the samples' columns, if the sources store them and no step changes them.

    Samples have arrays of any length, and nanoseconds without their time zone.
    """
    pa, types = import_arrow(), import_arrow("pyarrow.types")
    schema, stored_types = find_stored_schema(dataset.tree), dict[str, Any]()
    fields: Any = () if schema is None else decode_dictionaries(schema)
    for field in fields:
        stored_types[field.name] = field.type
        if types.is_fixed_size_list(field.type):
            stored_types[field.name] = pa.list_(field.type.value_type)
        elif types.is_timestamp(field.type) and field.type.unit == "ns":
            stored_types[field.name] = pa.timestamp("ns")
    return stored_types


def _is_unknown(arrow_type: Any) -> bool:
    """Return whether a type, or one within it, is null."""
    types: Any = import_arrow("pyarrow.types")
    if types.is_struct(arrow_type):
        return any(_is_unknown(field.type) for field in arrow_type)
    if types.is_list(arrow_type):
        return _is_unknown(arrow_type.value_type)
    return types.is_null(arrow_type)


def _infer_column_type(values: list[Any]) -> Any:
    """Return the type of a column: lists of the arrays' common dtype, or what Arrow infers."""
    pa: Any = import_arrow()
    values = normalize_empty(values)
    dtypes: set[Any] = {
        cast(Any, value).dtype if isinstance(value, np.ndarray) else None for value in values
    }
    is_uniform = (
        len(dtypes) == 1 and None not in dtypes and all(value.ndim == 1 for value in values)
    )
    arrow_type = pa.list_(pa.from_numpy_dtype(*dtypes)) if is_uniform else infer_array(values).type
    require_same_kind(values, arrow_type)
    return arrow_type


class ArrowEncoder:
    """Encoder of samples as the rows of one Arrow file."""

    suffix = "arrow"
    end = 0

    def __init__(self, dataset: BaseDataset[Any], columns: Columns) -> None:
        self._dataset, self._columns = dataset, columns
        self._positions = list[int]()

    def __call__(self, position: int, sample: Any) -> tuple[Mapping[str, Any], int]:
        """Return a row and its approximate size in bytes."""
        row, names = (
            _sample_to_row(sample, self._columns.bare, position),
            self._columns.schema.names,
        )
        if unknown := [name for name in row if name not in names]:
            raise DataError(
                f"it has the field {unknown[0]!r}, which the first samples lack: give all "
                "samples the same fields",
                where=f"sample {position}",
            )
        self._positions.append(position)
        return row, sum(map(_estimate_bytes, row.values()))

    def file(self, pieces: Sequence[Any]) -> bytes:
        """Return the file of these rows."""
        pa, schema, positions = import_arrow(), self._columns.schema, self._positions[: len(pieces)]
        columns = [
            _build_column(_collect_values(pieces, field), field, positions) for field in schema
        ]
        keys = _build_keys_column(self._dataset, positions)
        table = pa.table([*columns, keys], pa.schema([*schema, pa.field(KEYS_COLUMN, keys.type)]))
        self._positions = self._positions[len(pieces) :]
        return encode_table(table, "arrow", "none")


def _collect_values(pieces: Sequence[Mapping[str, Any]], field: Any) -> list[Any]:
    """Return the values of a column; empty vectors without a dtype get the column's dtype."""
    values = [to_native_order(row.get(field.name)) for row in pieces]
    if not any(isinstance(value, np.ndarray) and is_untyped(value) for value in values):
        return values
    types: Any = import_arrow("pyarrow.types")
    number = types.is_list(field.type) and types.is_primitive(field.type.value_type)
    empty: Any = np.zeros(0, to_numpy_dtype(field.type.value_type)) if number else []
    return [
        empty if isinstance(value, np.ndarray) and is_untyped(value) else value for value in values
    ]


def _sample_to_row(sample: Any, bare: str | None, position: int) -> Mapping[str, Any]:
    if bare is None and isinstance(sample, Mapping) and sample:
        row = cast("Mapping[str, Any]", sample)
        if wrong := next(
            (name for name in row if not isinstance(name, str) or name == KEYS_COLUMN),  # pyright: ignore[reportUnnecessaryIsInstance]
            None,
        ):
            raise DataError(
                f"{wrong!r} is not a valid column name: name columns with text other than {KEYS_COLUMN!r}",
                where=f"sample {position}",
            )
        return row
    if (
        bare is not None
        and isinstance(sample, np.ndarray)
        and cast("npt.NDArray[Any]", sample).ndim == 1
    ):
        return {bare: sample}
    raise DataError(
        f"it is a {type(cast(object, sample)).__name__}; a table holds mappings, or arrays of one "
        "axis, and all of one kind: add .map(lambda x: {'text': x}), or write format='jsonl'",
        where=f"sample {position}",
    )


def _estimate_bytes(value: Any) -> int:
    if isinstance(value, np.ndarray | np.generic):
        return value.nbytes
    return (
        len(value) * (1 if isinstance(value, str | bytes) else 8)
        if hasattr(value, "__len__")
        else 8
    )


def _build_column(values: list[Any], field: Any, positions: Sequence[int]) -> Any:
    """Return one column of a file; arrays of one dtype are copied without a step per number."""
    pa: Any = import_arrow()
    if not values:
        return pa.array([], field.type)
    if pa.types.is_list(field.type) and all(
        _is_plain_vector(v) and v.dtype.kind in "biufmM" for v in values
    ):
        flat_values = np.concatenate(values) if len(values) > 1 else values[0]
        if pa.from_numpy_dtype(flat_values.dtype) == field.type.value_type and {
            v.dtype for v in values
        } == {flat_values.dtype}:
            offsets = np.concatenate([[0], np.cumsum([len(value) for value in values])]).astype(
                np.int32
            )
            return pa.ListArray.from_arrays(pa.array(offsets), pa.array(flat_values))
    try:
        return to_lossless_array(values, field.type)
    except list_arrow_errors():
        for position, value in zip(positions, values, strict=True):
            _require_lossless_value(value, field, position)
    try:
        # Each value fits, though Arrow infers no common type.
        return pa.array(values, field.type)
    except list_arrow_errors() as error:
        raise DataError(
            f"the field {field.name!r} cannot be one column: {error}; {ONE_TYPE}",
            where=f"samples from {positions[0]} on",
        ) from error


def _is_plain_vector(value: Any) -> bool:
    return (
        isinstance(value, np.ndarray)
        and value.ndim == 1
        and not isinstance(value, np.ma.MaskedArray)
    )


def _require_lossless_value(value: Any, field: Any, position: int) -> None:
    try:
        to_lossless_array([value], field.type)
    except list_arrow_errors() as error:
        raise DataError(
            f"its field {field.name!r} is not {field.type}, its type in the first samples: {error}",
            where=f"sample {position}",
        ) from error


def _build_keys_column(dataset: BaseDataset[Any], rows: Sequence[int]) -> Any:
    """Return the keys of every row: source, epoch and index, and the token range of documents."""
    pa: Any = import_arrow()
    start, stop = (rows[0], rows[-1] + 1) if rows else (0, 1)
    keys = dataset.plan.at(slice(start, stop))
    used = np.isin(keys.position, rows)
    names = pa.DictionaryArray.from_arrays(
        keys.source[used].astype(np.int32), pa.array(keys.names, pa.string())
    )
    columns = {
        "source": names.dictionary_decode(),
        "epoch": keys.epoch[used],
        "index": keys.index[used],
    }
    if keys.start is not None and keys.stop is not None:
        columns |= {"start": keys.start[used], "stop": keys.stop[used]}
    parts = pa.StructArray.from_arrays(
        [pa.array(column) for column in columns.values()], [*columns]
    )
    ends = np.asarray([*rows, stop], np.int64)
    offsets = np.searchsorted(keys.position[used], ends).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), parts)
