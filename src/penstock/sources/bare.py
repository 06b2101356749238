"""Rows of one column that are no mappings: arrays, as they were written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..types import Ints
from .chain import starts_of
from .columnar import Arrow


class Joint:
    """Arrays end to end; a slice is a view where it lies in one of them."""

    def __init__(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        self._arrays, self._starts = arrays, starts_of([len(array) for array in arrays])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, wanted: slice) -> npt.NDArray[Any]:
        start, stop, _ = wanted.indices(len(self))
        first, last = np.searchsorted(self._starts, [start, max(start, stop - 1)], side="right") - 1
        bounds = pairwise(self._starts[first : last + 2].tolist())
        parts = zip(self._arrays[first : last + 1], bounds, strict=False)
        found = [array[max(start - low, 0) : max(stop - low, 0)] for array, (low, _) in parts]
        return found[0] if len(found) == 1 else np.concatenate(found)


class Bare:
    """A file of which one column is all: a row is its value."""

    columns = None
    slow = False

    def __init__(self, file: Arrow, column: str) -> None:
        self.path: Path = file.path
        self._file, self._column, self.types = file, column, file.types

    def __len__(self) -> int:
        return len(self._file)

    def read(self, indices: Ints, /) -> list[Any]:
        """The values at `indices`."""
        return [row[self._column] for row in self._file.read(indices)]

    def column(self, name: str, /) -> Iterator[Any]:
        """One column, batch by batch."""
        return self._file.column(name)

    def joined(self) -> npt.NDArray[Any] | Joint:
        """The values of the lists of all rows, end to end, where they lie."""
        arrays = self._file.flat(self._column)
        return arrays[0] if len(arrays) == 1 else Joint(arrays)
