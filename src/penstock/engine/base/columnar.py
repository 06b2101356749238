"""Columnar samples: consumers of columns receive them without building rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

ColumnStacker: TypeAlias = Callable[[Sequence[Any], str], Any]
"""Function from the values of a field, and the path of the field for errors, to a column."""


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

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """The bytes of the columns."""


class ColumnwiseFunction:
    """Function of many samples that accepts `ColumnarSamples`; other functions receive lists."""
