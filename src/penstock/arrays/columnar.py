"""Columnar samples: consumers of columns receive them without building rows; and Arrow's modules."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any, TypeAlias, cast

import numpy.typing as npt

from ..types import Ints

ColumnStacker: TypeAlias = Callable[[Sequence[Any], str], Any]
"""Function from the values of a field, and the path of the field for errors, to a column."""


@cache
def import_arrow(module: str = "pyarrow") -> Any:
    """Import a module of pyarrow on first use."""
    return importlib.import_module(module)


def list_content_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of Arrow for data, without the one for a lack of memory."""
    pa = import_arrow()
    errors = cast("list[type[Exception]]", pa.ArrowException.__subclasses__())
    return tuple(error for error in errors if not issubclass(error, MemoryError))


class ColumnarSamples(Sequence[Any]):
    """Sequence of samples stored as columns; a row is built at access. Slices are columnar too."""

    @abstractmethod
    def collated(self, stack: ColumnStacker) -> Any:
        """Collate the rows column by column with `stack`."""

    @abstractmethod
    def columns(self) -> Mapping[str, Any]:
        """Return the columns for functions of many samples.

        A sample has the same values with any neighbours.
        """

    def join_parts(self, parts: Sequence[Sequence[Any]], order: Ints) -> Sequence[Any]:
        """Join the samples of this part and of later ones, columnar if possible.

        Args:
            parts: The samples.
            order: The position of each sample in the result.
        """
        return join_samples(parts, order)

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The bytes of the columns."""


def join_samples(parts: Sequence[Sequence[Any]], order: Ints) -> list[Any]:
    """Return the samples of parts as a list; `order` contains the position of each."""
    ordered: list[Any] = [None] * len(order)
    for position, sample in zip(order.tolist(), chain.from_iterable(parts), strict=True):
        ordered[position] = sample
    return ordered


class Jagged:
    """Concatenated field of many samples: sample `i` is `values[offsets[i]:offsets[i + 1]]`."""

    __slots__ = ("offsets", "values")

    def __init__(self, values: npt.NDArray[Any], offsets: Ints) -> None:
        self.values, self.offsets = values, offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> npt.NDArray[Any]:
        return self.values[self.offsets[:-1][i] : self.offsets[1:][i]]

    @property
    def nbytes(self) -> int:
        """The bytes of values and offsets."""
        return self.values.nbytes + self.offsets.nbytes


class ColumnwiseFunction:
    """Function of many samples that accepts `ColumnarSamples`; other functions receive lists."""
