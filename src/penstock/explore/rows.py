"""Samples as Arrow columns; a sample that is no mapping is the value of one column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from ..arrays.columnar import import_arrow
from ..arrays.tables import build_column
from ..errors import DataError
from ..sources.block import RecordBatchRows

SCHEMA_ROWS = 64
"""Samples from which columns and their types are inferred."""

VALUE_COLUMN = "value"
"""The column of samples that are no mappings."""

Columns: TypeAlias = dict[str, Any]
"""Columns of equal length by name: Arrow arrays, and lists of values that Arrow cannot hold."""


def column_names(samples: Sequence[Any]) -> list[str]:
    """Return the names of the columns of samples, in the order of their first appearance.

    >>> column_names([{"a": 1}, {"b": 2, "a": 3}]), column_names([1, 2])
    (['a', 'b'], ['value'])
    """
    if samples and not all(isinstance(sample, Mapping) for sample in samples):
        return [VALUE_COLUMN]
    return list(dict.fromkeys(name for sample in samples for name in sample))


def infer_schema(samples: Sequence[Any]) -> Any:
    """Return the `pyarrow.Schema` of samples.

    Raises:
        DataError: if the values of a column have no common type in Arrow.
    """
    columns = to_columns(samples, 0)
    return import_arrow().schema([(name, column.type) for name, column in columns.items()])


def to_columns(samples: Sequence[Any], first: int, *, keep_objects: bool = False) -> Columns:
    """Return the columns of samples.

    Samples that are columns already are not converted.

    Args:
        samples: the samples.
        first: the number of the first sample, for errors.
        keep_objects: return a list for a column that Arrow cannot hold.

    Raises:
        DataError: if Arrow cannot hold a column.

    >>> {name: column.to_pylist() for name, column in to_columns([{"x": 1}, {"x": 2}], 0).items()}
    {'x': [1, 2]}
    """
    if isinstance(samples, RecordBatchRows):
        batch = samples.batch
        return dict(zip(batch.schema.names, batch.columns, strict=True))
    names = column_names(samples)
    if names == [VALUE_COLUMN] and not all(isinstance(sample, Mapping) for sample in samples):
        return {VALUE_COLUMN: _to_column(VALUE_COLUMN, samples, first, keep_objects)}
    return {
        name: _to_column(name, [sample.get(name) for sample in samples], first, keep_objects)
        for name in names
    }


def _to_column(name: str, values: Sequence[Any], first: int, keep_objects: bool) -> Any:
    try:
        return build_column(name, values, first)
    except DataError as error:
        plain = list(map(_to_lists, values))
        try:
            return build_column(name, plain, first)
        except DataError:
            if keep_objects:
                return list(values)
            raise error from None


def _to_lists(value: Any) -> Any:
    """Return tensors, and arrays of several axes, as lists of vectors; also inside containers."""
    if isinstance(value, Mapping):
        return {name: _to_lists(part) for name, part in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [*map(_to_lists, cast("Sequence[Any]", value))]
    if not isinstance(value, np.ndarray | np.generic) and hasattr(value, "__array__"):
        try:
            value = np.asarray(value)
        except (TypeError, RuntimeError):
            return value  # a tensor without a dtype of NumPy, or on an accelerator
    if isinstance(value, np.ndarray) and (array := cast("Any", value)).ndim != 1:
        return [*map(_to_lists, array)] if array.ndim else array[()]
    return cast("Any", value)
