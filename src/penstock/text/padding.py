"""Padded batches of documents of different lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..arguments import check_int, check_padding
from ..arrays.dtypes import (
    TOKEN_DTYPE,
    InexactError,
    cast_array,
    cast_scalar,
    choose_packed_dtype,
    concatenate,
    make_exact_array,
)
from ..arrays.trees import collate
from ..engine.packing.options import DType, check_dtype
from ..engine.packing.row import (
    ADDED_COLUMNS,
    SOURCE_COLUMNS,
    Missing,
    find_learned,
    report_untrained,
)
from ..errors import ConfigError, DataError
from ..types import Flags

Array = npt.NDArray[Any]
PadValues = float | Mapping[str, float]


class Padded:
    """Collate documents to a batch, padded on the right to the longest.

    The batch has the form of packed rows, with one document a row. A document is a row of numbers,
    which the batch calls `tokens`, or a mapping. Features that are rows of numbers are padded, each
    to its longest; all others are collated as usual. `segment_ids` (1, and 0 for padding) and
    `positions` describe the first padded feature. Use it in `batch(n, collate=)`,
    `bucket_by_length` and `batch_by_tokens`.

    Args:
        pad: the padding value: one for all, or {feature: value} with 0 for the rest.
        multiple: pad row lengths to a multiple of this, so that there are few shapes.
        dtype: the dtype of rows, as for `pack`: one, or {feature: dtype}; by default integers
            become int32.
        join: features whose arrays are laid end to end, such as `pixel_values` of images. Documents
            may lack them.
        provenance: add `source_ids`, the index in `ds.sources` of the source of each token, -1 in
            padding; and `segment_sources`, one for each document, `[B, 1]`.

    Raises:
        ConfigError: for a `multiple` below 1, and a dtype that NumPy does not have.
        DataError: for documents of different features, or without a row of numbers, and integers
            that do not fit the dtype.

    >>> batch = Padded(9, multiple=4)([[1, 2], [3]])
    >>> batch["tokens"].tolist(), batch["segment_ids"].tolist()
    ([[1, 2, 9, 9], [3, 9, 9, 9]], [[1, 1, 0, 0], [1, 0, 0, 0]])
    """

    document_level = 1
    keeps_loss = True
    masks_documents = True

    def __init__(
        self,
        pad: float | dict[str, float] = 0,
        multiple: int = 1,
        dtype: DType | dict[str, DType] = None,
        join: Sequence[str] = (),
        provenance: bool = False,
    ) -> None:
        if isinstance(join, str):
            raise ConfigError(f"Padded(join={join!r}): give a tuple of names, such as ({join!r},)")
        check_padding(pad.values() if isinstance(pad, Mapping) else [pad], "Padded(pad={})")
        self.pad, self.multiple, self.dtype = (
            pad,
            check_int(multiple, "Padded(multiple={})", 1),
            dtype,
        )
        for feature_dtype in dtype.values() if isinstance(dtype, dict) else [dtype]:
            check_dtype(feature_dtype, "Padded")
        if provenance not in (True, False):
            raise ConfigError(f"Padded(provenance={provenance!r}): give True or False")
        self.join, self.provenance = tuple(join), provenance
        rest = [f"{dtype}"] * (dtype is not None) + [f"join {self.join}"] * bool(join)
        rest += ["provenance"] * provenance
        self.__qualname__ = f"Padded({', '.join([repr(pad), str(multiple), *rest])})"

    def build_with_sources(self, values: Sequence[Sequence[Any]], sources: Array) -> list[Any]:
        """Collate the documents of batches.

        Args:
            values: lists of documents.
            sources: the number of the source of each document, of all batches.
        """
        batches = [self(documents) for documents in values]
        parts = np.split(sources, np.cumsum([*map(len, values)])[:-1])
        for batch, part in zip(batches, parts, strict=True):
            batch["segment_sources"] = part[:, None]
            batch["source_ids"] = np.where(
                batch["segment_ids"] > 0, part[:, None], part.dtype.type(-1)
            )
        return batches

    def __call__(self, documents: Sequence[Any]) -> dict[str, Any]:
        masked = np.fromiter((type(doc) is Missing for doc in documents), np.bool_, len(documents))
        rows = [
            cast("Mapping[str, Any]", doc if isinstance(doc, Mapping) else {"tokens": doc})
            for doc in (doc.like if type(doc) is Missing else doc for doc in documents)
        ]
        added = ADDED_COLUMNS | SOURCE_COLUMNS if self.provenance else ADDED_COLUMNS
        if conflicts := added & rows[0].keys():
            raise DataError(
                f"Padded adds {' and '.join(sorted(conflicts))}, and the documents have it: rename or "
                "drop it"
            )
        shown = [row for row, is_masked in zip(rows, masked.tolist(), strict=True) if not is_masked]
        joined = {name: [row[name] for row in shown if name in row] for name in self.join}
        rows = [{name: row[name] for name in row if name not in joined} for row in rows]
        out = _pad_columns(rows, self.pad, self.multiple, self.dtype, TOKEN_DTYPE)
        self._blank(out, rows, masked)
        first_padded = next(
            (name for name, value in rows[0].items() if _as_vector(value) is not None), None
        )
        if first_padded is None:
            if isinstance(documents, Mapping | str) or isinstance(documents[0], int | np.integer):
                raise DataError(
                    "Padded takes a list of documents, and this is one document: write "
                    ".batch(n, collate=Padded()) instead of .map(Padded())"
                )
            raise DataError(
                "Padded: the documents have no feature that is a row of numbers: use .batch(n) "
                "without it, or collate=ps.pad({name: 0}) for arrays of different lengths"
            )
        lengths = np.asarray([len(row[first_padded]) for row in rows], np.int32)[:, None]
        lengths[masked] = 0
        positions = np.arange(out[first_padded].shape[1], dtype=np.int32)
        is_token = positions < lengths
        if (learned := find_learned(out)) is not None and learned[1].shape == is_token.shape:
            none = ~learned[1][:, 1:].any(axis=1) & ~masked
            report_untrained(int(none.sum()), learned[0])
        return {
            **out,
            "segment_ids": is_token.astype(np.int32),
            "positions": np.where(is_token, positions, np.int32(0)),
            **{name: _join_arrays(name, arrays) for name, arrays in joined.items() if arrays},
        }

    def _blank(self, out: dict[str, Any], rows: Sequence[Mapping[str, Any]], masked: Flags) -> None:
        """Fill the rows of masked documents with padding."""
        for name, column in out.items():
            if _as_vector(rows[0][name]) is not None:
                fill = self.pad.get(name, 0) if isinstance(self.pad, Mapping) else self.pad
                padded = cast("Array", column)
                padded[masked] = cast_scalar(fill, padded.dtype)


def _join_arrays(name: str, arrays: list[Any]) -> Array:
    try:
        return concatenate([np.asarray(array) for array in arrays])
    except ValueError as error:
        raise DataError(f"Padded(join={name!r}): {error}") from None


def pad_columns(
    rows: Sequence[Mapping[str, Any]], pad: PadValues = 0, multiple: int = 1
) -> dict[str, Any]:
    """Collate mappings to one mapping of columns; rows of numbers are padded to the longest.

    Args:
        rows: mappings with equal fields.
        pad: the padding value: one for all, or {field: value} with 0 for the rest.
        multiple: pad row lengths to a multiple of this.

    Returns:
        field -> array[rows, longest] for rows of numbers. Numbers and arrays of several axes are
        stacked; texts and other objects become lists.

    Raises:
        DataError: for mappings of different fields, and values without a common dtype.

    >>> pad_columns([{"x": [1], "name": "a"}, {"x": [2, 3], "name": "b"}], {"x": -1})
    {'x': array([[ 1, -1],
           [ 2,  3]]), 'name': ['a', 'b']}
    """
    return _pad_columns(rows, pad, multiple)


def _pad_columns(
    rows: Sequence[Mapping[str, Any]],
    pad: PadValues,
    multiple: int,
    dtype: DType | Mapping[str, DType] = None,
    integers: np.dtype[Any] | None = None,
) -> dict[str, Any]:
    names = rows[0].keys()
    for row in rows:
        if row.keys() != names:
            different = sorted(names ^ row.keys())
            raise DataError(
                f"the rows of a batch differ in the fields {different}: give all sources the same "
                "fields"
            )
    out = dict[str, Any]()
    for name in names:
        values = [row[name] for row in rows]
        fill = pad.get(name, 0) if isinstance(pad, Mapping) else pad
        try:
            padded = _pad(
                values,
                fill,
                multiple,
                dtype.get(name) if isinstance(dtype, Mapping) else dtype,
                integers,
            )
        except InexactError as error:
            message = f"field {name!r} of sample {error.index} in the batch: {error}; pass dtype= of one that holds all"
            raise DataError(message, part=(error.index,)) from None
        except OverflowError as error:
            raise DataError(f"field {name!r} cannot hold its padding {fill}: {error}") from None
        out[name] = collate([{name: value} for value in values])[name] if padded is None else padded
    return out


def pad_rows(values: Sequence[Any], pad: float = 0, multiple: int = 1) -> Array | None:
    """Stack rows of numbers, padded to the longest; return `None` for any other values.

    Args:
        values: lists or vectors; the result has the dtype that holds all their numbers. Empty ones
            do not affect it.
        pad: the padding value.
        multiple: pad row lengths to a multiple of this.

    Returns:
        array[rows, longest]; `None` if one of the values is no row of numbers.

    Raises:
        ValueError: for numbers that no dtype holds together.

    >>> pad_rows([[1, 2], [3]])
    array([[1, 2],
           [3, 0]])
    """
    return _pad(values, pad, multiple)


def _pad(
    values: Sequence[Any],
    pad: float,
    multiple: int,
    dtype: DType = None,
    integers: np.dtype[Any] | None = None,
) -> Array | None:
    rows = list[Array]()
    for index, value in enumerate(values):
        try:
            row = _as_vector(value)
        except InexactError as error:
            raise InexactError(str(error), index) from None
        if row is None:
            return None
        rows.append(row)
    lengths = np.asarray([len(row) for row in rows])
    width = -(-int(lengths.max()) // multiple) * multiple
    row_dtype = choose_packed_dtype(rows, dtype, integers)
    for index, row in enumerate(rows):
        if not _keeps_kind(row, row_dtype):
            raise InexactError(f"{row.dtype} does not go into {row_dtype}", index)
        try:
            rows[index] = cast_array(row, row_dtype)
        except OverflowError as error:
            raise InexactError(str(error), index) from None
    out = np.full((len(rows), width), cast_scalar(pad, row_dtype), row_dtype)
    out[np.arange(width) < lengths[:, None]] = concatenate(
        [row for row in rows if len(row)] or rows
    )
    return out


def _as_vector(value: Any) -> Array | None:
    """Return a row of numbers as a vector; `None` for any other value."""
    if not isinstance(value, list) and not hasattr(value, "__array__"):  # tensors have it too
        return None
    if getattr(cast("Any", value), "ndim", 1) != 1:
        return None
    try:
        row = make_exact_array(cast(Any, value))
    except InexactError:
        raise
    except (ValueError, TypeError):
        return None
    return row if row.ndim == 1 and row.dtype.kind in "biuf" else None


def _keeps_kind(row: Array, dtype: np.dtype[Any]) -> bool:
    """Return whether a dtype keeps the kind of numbers: no lost fractions, no truth values.

    Only 0 and 1 become truth values.
    """
    if (
        not row.size
        or np.can_cast(row.dtype, dtype, "same_kind")
        or {row.dtype.kind, dtype.kind} <= set("iu")
    ):
        return True
    return dtype.kind == "b" and row.dtype.kind in "iu" and bool(row.min() >= 0 and row.max() <= 1)
