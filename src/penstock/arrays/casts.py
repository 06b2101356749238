"""Casts of Arrow data that change no value, where Arrow's own fail or change values."""

from __future__ import annotations

from typing import Any

import numpy as np

from .columnar import import_arrow


def cast_exactly(column: Any, target: Any) -> Any:
    """Cast an array without changing values; match fields of structs by name.

    Raises:
        ArrowInvalid: A value would change.
    """
    pa: Any = import_arrow()
    types: Any = import_arrow("pyarrow.types")
    if column.type.equals(target):
        return column
    if types.is_null(column.type):
        return pa.nulls(len(column), target)
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    elif types.is_run_end_encoded(column.type):
        column = _decode_runs(column)
    elif isinstance(column.type, (pa.ListViewType, pa.LargeListViewType)):
        column = _convert_list_view(column)
    if types.is_struct(target) and types.is_struct(column.type):
        numbers = {field.name: number for number, field in enumerate(column.type)}
        children = column.flatten()
        parts = [
            cast_exactly(children[numbers[field.name]], field.type)
            if field.name in numbers
            else pa.nulls(len(column), field.type)
            for field in target
        ]
        null_mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(target), mask=null_mask)
    if (types.is_list(target) or types.is_large_list(target)) and hasattr(column, "offsets"):
        offsets = column.offsets
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        values = cast_exactly(column.values.slice(first, last - first), target.value_type)
        new_offsets = pa.array(
            offsets.to_numpy() - first, pa.int64() if types.is_large_list(target) else pa.int32()
        )
        array_type = pa.LargeListArray if types.is_large_list(target) else pa.ListArray
        null_mask = column.is_null() if column.null_count else None
        return array_type.from_arrays(new_offsets, values, type=target, mask=null_mask)
    if "list_view" in str(column.type):  # Arrow casts these incorrectly, see `_convert_list_view`
        raise pa.ArrowNotImplementedError(
            f"Penstock does not read {column.type}: write it with lists instead of views"
        )
    return column.cast(target)


def _decode_runs(column: Any) -> Any:
    """Decode a run-end encoded array; Arrow alone wraps the 32-bit offsets of long texts around.

    Raises:
        ArrowInvalid: The texts take more than 32-bit offsets address.
    """
    pa, compute = import_arrow(), import_arrow("pyarrow.compute")
    wide = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    value_type = column.type.value_type
    if (large := wide.get(value_type)) is None:
        return compute.run_end_decode(column)
    values = column.values.cast(large)
    runs = pa.RunEndEncodedArray.from_arrays(column.run_ends, values)
    return compute.run_end_decode(runs.slice(column.offset, len(column))).cast(value_type)


def _convert_list_view(column: Any) -> Any:
    """Convert views of lists to lists; Arrow's cast loses values after null lists."""
    pa = import_arrow()
    sizes = import_arrow("pyarrow.compute").list_value_length(column).fill_null(0).to_numpy()
    is_large = isinstance(column.type, pa.LargeListViewType)
    offsets = pa.array(
        np.concatenate([[0], np.cumsum(sizes)]), pa.int64() if is_large else pa.int32()
    )
    null_mask = column.is_null() if column.null_count else None
    return (pa.LargeListArray if is_large else pa.ListArray).from_arrays(
        offsets, column.flatten(), mask=null_mask
    )


def cast_table(table: Any, schema: Any) -> Any:
    """Return a table or record batch with the columns and types of a schema.

    Missing columns are null. Arrow's own cast breaks on lists of structs with a field of type null,
    even if no type changes.

    Raises:
        ArrowInvalid: A value would change.
    """
    pa = import_arrow()
    columns = [
        _cast_column(table.column(field.name), field.type)
        if field.name in table.schema.names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    make = pa.RecordBatch if isinstance(table, pa.RecordBatch) else pa.Table
    return make.from_arrays(columns, schema=schema)


def _cast_column(column: Any, target: Any) -> Any:
    if column.type.equals(target) or not hasattr(column, "chunks"):
        return cast_exactly(column, target)
    chunks = [cast_exactly(chunk, target) for chunk in column.chunks]
    return import_arrow().chunked_array(chunks, target)
