"""Collation of fields that differ in length: padded to the longest, or concatenated (jagged)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..arguments import check_int, check_padding, validate_arguments
from ..arrays.columnar import Jagged
from ..arrays.dtypes import InexactError, cast_scalar, concatenate, is_untyped, make_exact_array
from ..arrays.trees import collate
from ..errors import ConfigError, DataError

Array = npt.NDArray[Any]

_EMPTY_ROW = np.zeros(0, np.int64)  # empty rows, if none has a dtype


@validate_arguments
def pad(
    fields: Mapping[str, float],
    length: int | None = None,
    multiple: int = 1,
    mask: str = "attention_mask",
) -> Callable[[list[Any]], dict[str, Any]]:
    """Create a `collate=` that pads fields to the longest of the batch, and adds a mask.

    Samples are mappings. Other fields are collated as usual. Rows of several dtypes get their
    common dtype, in which every integer keeps its value; empty rows get the dtype of the others.

    Args:
        fields: field -> padding value. A field holds numbers; samples may differ along its first
            axis only.
        length: length to pad to; a longer field is an error. Default: the longest of the batch.
        multiple: round the length up to a multiple of this.
        mask: name of the mask: int64[samples, length], 1 for entries of the first field and 0 for
            padding.

    Returns:
        A function for `ds.batch(n, collate=...)`.

    Raises:
        ConfigError: if no field is named, if `length` or `multiple` is below 1, or if the mask has
            the name of a field.
        DataError: while reading, if a sample lacks a field, if a field holds no numbers, or if it
            is longer than `length`.

    >>> import penstock as ps
    >>> samples = [{"input_ids": [5, 6, 7], "labels": [1, 1, 1]}, {"input_ids": [8], "labels": [2]}]
    >>> batch = ps.from_sequence(samples).batch(2, collate=ps.pad({"input_ids": 0, "labels": -100}, multiple=2))[0]
    >>> batch["labels"].tolist(), batch["attention_mask"].tolist()
    ([[1, 1, 1, -100], [2, -100, -100, -100]], [[1, 1, 1, 0], [1, 0, 0, 0]])
    """
    if not isinstance(fields, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"pad({fields!r}): give the padding value of each field, such as {{'input_ids': 0}}"
        )
    length = None if length is None else check_int(length, "pad(length={})", 1)
    if not fields or mask in fields:
        raise ConfigError(
            f"pad({dict(fields)}, mask={mask!r}): name at least one field, and give the mask "
            "another name"
        )
    check_padding(fields.values(), "pad: {}")
    return _PadCollate(dict(fields), length, check_int(multiple, "pad(multiple={})", 1), mask)


@validate_arguments
def jagged(fields: Sequence[str]) -> Callable[[list[Any]], dict[str, Any]]:
    """Create a `collate=` that concatenates fields without padding.

    The batch has `values` and `offsets` of each field; `Loader(to="torch")` converts them to a
    nested tensor of the jagged layout. Samples are mappings. Other fields are collated as usual.

    Args:
        fields: names of fields that hold numbers; samples may differ along their first axis.

    Returns:
        A function for `ds.batch(n, collate=...)`.

    Raises:
        ConfigError: if no field is named.
        DataError: while reading, if a sample lacks a field, or if a field holds no numbers.

    >>> import penstock as ps
    >>> ds = ps.from_sequence([{"ids": [5, 6, 7]}, {"ids": [8]}]).batch(2, collate=ps.jagged(["ids"]))
    >>> ds[0]["ids"].values.tolist(), ds[0]["ids"].offsets.tolist(), ds[0]["ids"][0].tolist()
    ([5, 6, 7, 8], [0, 3, 4], [5, 6, 7])
    """
    names = [fields] if isinstance(fields, str) else list(fields)
    if not names:
        raise ConfigError("jagged([]): name at least one field")
    return _JaggedCollate(names)


class _PadCollate:
    def __init__(
        self, fields: dict[str, float], length: int | None, multiple: int, mask: str
    ) -> None:
        self._fields, self._length, self._multiple, self._mask = fields, length, multiple, mask
        self.__qualname__ = f"pad({fields}, {length}, {multiple}, {mask!r})"

    def __call__(self, samples: list[Any]) -> dict[str, Any]:
        out, first = _collate_other_fields(samples, self._fields), next(iter(self._fields))
        for name, fill in self._fields.items():
            rows = _collect_rows(samples, name)
            sizes = np.asarray([len(row) for row in rows])
            mask = np.arange(self._width(name, int(sizes.max()))) < sizes[:, None]
            joined = _concatenate_rows(rows, name)
            padded = np.full(
                (*mask.shape, *joined.shape[1:]),
                _cast_padding(fill, joined.dtype, name),
                joined.dtype,
            )
            padded[mask] = joined
            out[name] = padded
            if name == first:
                out[self._mask] = mask.astype(np.int64)
        return out

    def _width(self, name: str, longest: int) -> int:
        if self._length is not None and longest > self._length:
            raise DataError(
                f"field {name!r} has {longest} entries, more than pad(length={self._length}); "
                "truncate it in a map before, or pad to a larger length"
            )
        return -(-(self._length or longest) // self._multiple) * self._multiple


class _JaggedCollate:
    def __init__(self, fields: list[str]) -> None:
        self._fields = fields
        self.__qualname__ = f"jagged({fields})"

    def __call__(self, samples: list[Any]) -> dict[str, Any]:
        out = _collate_other_fields(samples, self._fields)
        for name in self._fields:
            rows = _collect_rows(samples, name)
            offsets = np.zeros(len(rows) + 1, np.int64)
            np.cumsum([len(row) for row in rows], out=offsets[1:])
            out[name] = Jagged(_concatenate_rows(rows, name), offsets)
        return out


def _collate_other_fields(
    samples: Sequence[Any], fields: Mapping[str, Any] | Sequence[str]
) -> dict[str, Any]:
    """Collate the other fields as usual; check that all samples are mappings with the fields."""
    for number, sample in enumerate(samples):
        if not isinstance(sample, Mapping):
            raise DataError(
                f"sample {number} in the batch is a {type(sample).__name__}; map it to a dict first"
            )
        if missing := [name for name in fields if name not in sample]:
            raise DataError(
                f"sample {number} in the batch lacks {missing[0]!r}; it has {list(sample)}"  # pyright: ignore[reportUnknownArgumentType]
            )
    rows = cast("Sequence[Mapping[str, Any]]", samples)
    others = [{name: value for name, value in row.items() if name not in fields} for row in rows]
    return collate(others)


def _collect_rows(samples: Sequence[Any], name: str) -> list[Array]:
    rows = list[Array]()
    for number, sample in enumerate(samples):
        try:
            row = make_exact_array(sample[name])
        except InexactError as error:
            raise DataError(
                f"field {name!r} of sample {number} in the batch: {error}", part=(number,)
            ) from None
        if not row.ndim or row.dtype.kind not in "biufc":
            raise DataError(
                f"field {name!r} of sample {number} in the batch is no list or array of numbers"
            )
        rows.append(row)
    return rows


def _concatenate_rows(rows: Sequence[Array], name: str) -> Array:
    """Concatenate rows in their common dtype; empty rows imply no dtype."""
    nonempty = {place: row for place, row in enumerate(rows) if row.size}
    if not nonempty:
        return next((row for row in rows if not is_untyped(row)), _EMPTY_ROW)
    try:
        return concatenate([*nonempty.values()])
    except InexactError as error:
        place = [*nonempty][error.index]
        message = f"field {name!r} of sample {place} in the batch: {error}; give all samples one type in a map before"
        raise DataError(message, part=(place,)) from None
    except ValueError as error:
        raise DataError(
            f"field {name!r} differs along more than its first axis: {error}"
        ) from error


def _cast_padding(fill: float, dtype: np.dtype[Any], name: str) -> float:
    """Convert the padding value to the dtype of its field."""
    try:
        return cast_scalar(fill, dtype)
    except OverflowError as error:
        raise DataError(
            f"field {name!r}: {error}, which is the padding value of pad(); give another value"
        ) from None
