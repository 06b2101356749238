"""Documents of many lengths in one batch, filled up to the longest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..engine.base.dtypes import (
    TOKENS,
    InexactError,
    concatenate,
    exact_array,
    narrowed,
    packed_dtype,
)
from ..engine.base.ints import held, whole
from ..engine.base.tree import collate
from ..engine.packing.options import DType, check_dtype
from ..engine.packing.row import OWN
from ..errors import DataError

Array = npt.NDArray[Any]
Pad = float | Mapping[str, float]


class Padded:
    """Batches of documents, padded on the right to the longest: the form of packed rows, with a
    document a row.

    A document is a row of numbers (the batch calls them `tokens`), or a mapping. Features that are
    rows of numbers are each padded to their longest, all others are collated as usual.
    `segment_ids` (1, and 0 for padding) and `positions` are those of the first feature that is
    padded. For `batch(n, collate=)`, `bucket_by_length` and `batch_by_tokens`.

    Args:
        pad: fills the rows: one value, or {feature: value} and 0 for the rest.
        multiple: rows are as long as the least multiple of it that does: few shapes, or one.
        dtype: of the rows, as for `pack`: one or {feature: dtype}; without it integers become
            int32.

    Raises:
        ConfigError: for a `multiple` below 1, and a dtype that NumPy does not have.
        DataError: for documents of different features, or without a row of numbers, and integers
            that the dtype does not hold.

    >>> batch = Padded(9, multiple=4)([[1, 2], [3]])
    >>> batch["tokens"].tolist(), batch["segment_ids"].tolist()
    ([[1, 2, 9, 9], [3, 9, 9, 9]], [[1, 1, 0, 0], [1, 0, 0, 0]])
    """

    def __init__(
        self,
        pad: float | dict[str, float] = 0,
        multiple: int = 1,
        dtype: DType | dict[str, DType] = None,
    ) -> None:
        self.pad, self.multiple, self.dtype = pad, whole(multiple, "Padded(multiple={})", 1), dtype
        for each in dtype.values() if isinstance(dtype, dict) else [dtype]:
            check_dtype(each, "Padded")
        self.__qualname__ = f"Padded({pad!r}, {multiple}{'' if dtype is None else f', {dtype}'})"

    def __call__(self, documents: Sequence[Any]) -> dict[str, Any]:
        rows = [
            cast("Mapping[str, Any]", doc if isinstance(doc, Mapping) else {"tokens": doc})
            for doc in documents
        ]
        if own := OWN & rows[0].keys():
            raise DataError(
                f"Padded adds {' and '.join(sorted(own))}, and the documents have it: rename or "
                "drop it"
            )
        out = _columns(rows, self.pad, self.multiple, self.dtype, TOKENS)
        lead = next((name for name, value in rows[0].items() if _row(value) is not None), None)
        if lead is None:
            raise DataError(
                "Padded: the documents have no feature that is a row of numbers; .batch(n) stacks "
                "the rest"
            )
        lengths = np.asarray([len(row[lead]) for row in rows], np.int32)[:, None]
        places = np.arange(out[lead].shape[1], dtype=np.int32)
        there = places < lengths
        return {
            **out,
            "segment_ids": there.astype(np.int32),
            "positions": np.where(there, places, np.int32(0)),
        }


def pad_columns(
    rows: Sequence[Mapping[str, Any]], pad: Pad = 0, multiple: int = 1
) -> dict[str, Any]:
    """Mappings as one of columns: rows of numbers padded to their longest, all else collated as
    usual.

    Args:
        rows: the mappings, with the same fields in each.
        pad: fills the rows: one value, or {field: value} and 0 for the rest.
        multiple: rows are as long as the least multiple of it that does.

    Raises:
        DataError: for mappings of different fields, and values that do not go together.

    >>> pad_columns([{"x": [1], "name": "a"}, {"x": [2, 3], "name": "b"}], {"x": -1})
    {'x': array([[ 1, -1],
           [ 2,  3]]), 'name': ['a', 'b']}
    """
    return _columns(rows, pad, multiple)


def _columns(
    rows: Sequence[Mapping[str, Any]],
    pad: Pad,
    multiple: int,
    dtype: DType | Mapping[str, DType] = None,
    integers: np.dtype[Any] | None = None,
) -> dict[str, Any]:
    names = rows[0].keys()
    for row in rows:
        if row.keys() != names:
            other = sorted(names ^ row.keys())
            raise DataError(
                f"the rows of a batch differ in the fields {other}: give all sources the same "
                "fields"
            )
    out = dict[str, Any]()
    for name in names:
        values = [row[name] for row in rows]
        fill = pad.get(name, 0) if isinstance(pad, Mapping) else pad
        try:
            found = _padded(
                values,
                fill,
                multiple,
                dtype.get(name) if isinstance(dtype, Mapping) else dtype,
                integers,
            )
        except InexactError as error:
            message = f"field {name!r} of sample {error.place} in the batch: {error}; pass dtype= of one that holds all"
            raise DataError(message, part=(error.place,)) from None
        except OverflowError as error:
            raise DataError(f"field {name!r} cannot hold its padding {fill}: {error}") from None
        out[name] = collate([{name: value} for value in values])[name] if found is None else found
    return out


def pad_rows(values: Sequence[Any], pad: float = 0, multiple: int = 1) -> Array | None:
    """Rows of numbers, one above the other, padded to the longest; None where they are something
    else.

    Args:
        values: lists or vectors; they get the dtype that holds all their numbers, and empty ones
            tell none.
        pad: fills the rows.
        multiple: rows are as long as the least multiple of it that does.

    Raises:
        ValueError: for numbers that no dtype holds together.

    >>> pad_rows([[1, 2], [3]])
    array([[1, 2],
           [3, 0]])
    """
    return _padded(values, pad, multiple)


def _padded(
    values: Sequence[Any],
    pad: float,
    multiple: int,
    dtype: DType = None,
    integers: np.dtype[Any] | None = None,
) -> Array | None:
    rows = list[Array]()
    for place, value in enumerate(values):
        try:
            row = _row(value)
        except InexactError as error:
            raise InexactError(str(error), place) from None
        if row is None:
            return None
        rows.append(row)
    lengths = np.asarray([len(row) for row in rows])
    width = -(-int(lengths.max()) // multiple) * multiple
    kind = packed_dtype(rows, dtype, integers)
    for place, row in enumerate(rows):
        if not _may_become(row, kind):
            raise InexactError(f"{row.dtype} does not go into {kind}", place)
        try:
            rows[place] = narrowed(row, kind)
        except OverflowError as error:
            raise InexactError(str(error), place) from None
    out = np.full((len(rows), width), held(pad, kind), kind)
    out[np.arange(width) < lengths[:, None]] = concatenate(
        [row for row in rows if len(row)] or rows
    )
    return out


def _row(value: Any) -> Array | None:
    """A row of numbers as a vector; None for anything else."""
    if not isinstance(value, list) and not hasattr(value, "__array__"):  # tensors have it, too
        return None
    if getattr(cast("Any", value), "ndim", 1) != 1:
        return None
    try:
        row = exact_array(cast(Any, value))
    except InexactError:
        raise
    except (ValueError, TypeError):
        return None
    return row if row.ndim == 1 and row.dtype.kind in "biuf" else None


def _may_become(row: Array, dtype: np.dtype[Any]) -> bool:
    """Return whether numbers keep their kind in a dtype: no fraction is cut, and only 0 and 1
    become truth values."""
    if (
        not row.size
        or np.can_cast(row.dtype, dtype, "same_kind")
        or {row.dtype.kind, dtype.kind} <= set("iu")
    ):
        return True
    return dtype.kind == "b" and row.dtype.kind in "iu" and bool(row.min() >= 0 and row.max() <= 1)
