"""Batches of samples whose fields differ in length: filled up to the longest, or one behind the
other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ...errors import ConfigError, DataError
from ...types import Ints
from .dtypes import InexactError, concatenate, exact_array, is_untyped
from .hints import guided
from .ints import held, whole
from .tree import collate

Array = npt.NDArray[Any]

_EMPTY = np.zeros(0, np.int64)  # what empty rows are where none tells its dtype


@guided
def pad(
    fields: Mapping[str, float],
    length: int | None = None,
    multiple: int = 1,
    mask: str = "attention_mask",
) -> Callable[[list[Any]], dict[str, Any]]:
    """A `collate=` that fills fields up to the longest of the batch, and notes what is padding in a
    mask.

    All other fields are collated as they are without it. Samples are mappings. Rows of several
    dtypes get their common one, in which every integer keeps its value; an empty row takes that of
    the others.

    Args:
        fields: field -> what it is filled with. A field holds numbers, along its first axis; the
            others are equal.
        length: fill up to so many instead; a longer one is an error.
        multiple: fill up to a multiple of this.
        mask: the name of the mask: int64[samples, length], 1 where the first of the fields is, 0
            where it is filled.

    Raises:
        ConfigError: for no field, a length or a multiple below 1, or a mask that has the name of a
            field.
        DataError: while reading, for a field that a sample lacks, that holds no numbers, or is
            longer than `length`.

    >>> import penstock as ps
    >>> samples = [{"input_ids": [5, 6, 7], "labels": [1, 1, 1]}, {"input_ids": [8], "labels": [2]}]
    >>> batch = ps.from_sequence(samples).batch(2, collate=ps.pad({"input_ids": 0, "labels": -100}, multiple=2))[0]
    >>> batch["labels"].tolist(), batch["attention_mask"].tolist()
    ([[1, 1, 1, -100], [2, -100, -100, -100]], [[1, 1, 1, 0], [1, 0, 0, 0]])
    """
    if not isinstance(fields, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"pad({fields!r}): say what each field is filled with, such as {{'input_ids': 0}}"
        )
    length = None if length is None else whole(length, "pad(length={})", 1)
    if not fields or mask in fields:
        raise ConfigError(
            f"pad({dict(fields)}, mask={mask!r}): name a field at least, and none as the mask"
        )
    return _Pad(dict(fields), length, whole(multiple, "pad(multiple={})", 1), mask)


@guided
def jagged(fields: Sequence[str]) -> Callable[[list[Any]], dict[str, Any]]:
    """A `collate=` that puts fields one behind the other, without padding: an item with `values`
    and `offsets`, which `Loader(to="torch")` gives as a nested tensor of the jagged layout.

    All other fields are collated as they are without it. Samples are mappings.

    Args:
        fields: names of fields that hold numbers; they may differ along their first axis.

    Raises:
        ConfigError: for no field.
        DataError: while reading, for a field that a sample lacks, or that holds no numbers.

    >>> import penstock as ps
    >>> ds = ps.from_sequence([{"ids": [5, 6, 7]}, {"ids": [8]}]).batch(2, collate=ps.jagged(["ids"]))
    >>> ds[0]["ids"].values.tolist(), ds[0]["ids"].offsets.tolist(), ds[0]["ids"][0].tolist()
    ([5, 6, 7, 8], [0, 3, 4], [5, 6, 7])
    """
    names = [fields] if isinstance(fields, str) else list(fields)
    if not names:
        raise ConfigError("jagged([]): name a field at least")
    return _Jag(names)


class Jagged:
    """Fields of many samples, one behind the other: sample `i` has `values[offsets[i]:offsets[i +
    1]]`."""

    __slots__ = ("offsets", "values")

    def __init__(self, values: Array, offsets: Ints) -> None:
        self.values, self.offsets = values, offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> Array:
        return self.values[self.offsets[:-1][i] : self.offsets[1:][i]]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.offsets.nbytes


class _Pad:
    def __init__(
        self, fields: dict[str, float], length: int | None, multiple: int, mask: str
    ) -> None:
        self._fields, self._length, self._multiple, self._mask = fields, length, multiple, mask
        self.__qualname__ = f"pad({fields}, {length}, {multiple}, {mask!r})"

    def __call__(self, samples: list[Any]) -> dict[str, Any]:
        out, first = _others(samples, self._fields), next(iter(self._fields))
        for name, fill in self._fields.items():
            rows = _rows(samples, name)
            sizes = np.asarray([len(row) for row in rows])
            here = np.arange(self._width(name, int(sizes.max()))) < sizes[:, None]
            joined = _joined(rows, name)
            filled = np.full(
                (*here.shape, *joined.shape[1:]), _filling(fill, joined.dtype, name), joined.dtype
            )
            filled[here] = joined
            out[name] = filled
            if name == first:
                out[self._mask] = here.astype(np.int64)
        return out

    def _width(self, name: str, longest: int) -> int:
        if self._length is not None and longest > self._length:
            raise DataError(
                f"field {name!r} has {longest} entries, and pad(length={self._length}) takes no "
                "more"
            )
        return -(-(self._length or longest) // self._multiple) * self._multiple


class _Jag:
    def __init__(self, fields: list[str]) -> None:
        self._fields = fields
        self.__qualname__ = f"jagged({fields})"

    def __call__(self, samples: list[Any]) -> dict[str, Any]:
        out = _others(samples, self._fields)
        for name in self._fields:
            rows = _rows(samples, name)
            offsets = np.zeros(len(rows) + 1, np.int64)
            np.cumsum([len(row) for row in rows], out=offsets[1:])
            out[name] = Jagged(_joined(rows, name), offsets)
        return out


def _others(samples: Sequence[Any], fields: Mapping[str, Any] | Sequence[str]) -> dict[str, Any]:
    """The fields that are collated as usual."""
    for number, sample in enumerate(samples):
        if not isinstance(sample, Mapping):
            raise DataError(
                f"sample {number} in the batch is a {type(sample).__name__}; fields are of mappings"
            )
        if lacks := [name for name in fields if name not in sample]:
            raise DataError(
                f"sample {number} in the batch lacks {lacks[0]!r}; it has {list(sample)}"  # pyright: ignore[reportUnknownArgumentType]
            )
    rows = cast("Sequence[Mapping[str, Any]]", samples)
    others = [{name: value for name, value in row.items() if name not in fields} for row in rows]
    return collate(others)


def _rows(samples: Sequence[Any], name: str) -> list[Array]:
    rows = list[Array]()
    for number, sample in enumerate(samples):
        try:
            row = exact_array(sample[name])
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


def _joined(rows: Sequence[Array], name: str) -> Array:
    """The rows one behind the other, in their common dtype. Empty rows tell no dtype."""
    some = {place: row for place, row in enumerate(rows) if row.size}
    if not some:
        return next((row for row in rows if not is_untyped(row)), _EMPTY)
    try:
        return concatenate([*some.values()])
    except InexactError as error:
        place = [*some][error.place]
        message = f"field {name!r} of sample {place} in the batch: {error}; give all samples one type in a map before"
        raise DataError(message, part=(place,)) from None
    except ValueError as error:
        raise DataError(
            f"field {name!r} differs along more than its first axis: {error}"
        ) from error


def _filling(fill: float, dtype: np.dtype[Any], name: str) -> float:
    """What a field is filled with; an error where its dtype does not have it."""
    try:
        return held(fill, dtype)
    except OverflowError as error:
        raise DataError(f"field {name!r}: {error}, with which pad() is to fill it") from None
