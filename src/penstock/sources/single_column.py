"""Files with a single unnamed column: each row is an array, not a mapping."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arrays.tables import SAMPLE_COLUMN, has_marked_samples
from ..types import Ints
from .chain import compute_offsets
from .columnar import Arrow, Parquet
from .unify import TabularFile


class JoinedArrays:
    """Concatenated arrays; a slice within one of them is a view."""

    def __init__(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        self._arrays, self._starts = arrays, compute_offsets([len(array) for array in arrays])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, span: slice) -> npt.NDArray[Any]:
        start, stop, _ = span.indices(len(self))
        first, last = np.searchsorted(self._starts, [start, max(start, stop - 1)], side="right") - 1
        bounds = pairwise(self._starts[first : last + 2].tolist())
        parts = zip(self._arrays[first : last + 1], bounds, strict=False)
        slices = [array[max(start - low, 0) : max(stop - low, 0)] for array, (low, _) in parts]
        return slices[0] if len(slices) == 1 else np.concatenate(slices)


class SingleColumn:
    """A file whose rows are the values of one column."""

    columns = None

    def __init__(self, file: Arrow | Parquet, column: str) -> None:
        self.path: Path = file.path
        self._file, self._column, self.types = file, column, file.types
        self.slow: bool = file.slow

    def __len__(self) -> int:
        return len(self._file)

    def read(self, indices: Ints, /) -> list[Any]:
        """Return the values at `indices`."""
        return [row[self._column] for row in self._file.read(indices)]

    def column(self, name: str, /) -> Iterator[Any]:
        """Yield one column, batch by batch."""
        return self._file.column(name)


class MappedColumn(SingleColumn):
    """A column of an Arrow file, whose lists are views."""

    def __init__(self, file: Arrow, column: str) -> None:
        super().__init__(file, column)
        self._flatten = file.flat

    def joined(self) -> npt.NDArray[Any] | JoinedArrays:
        """Return the values of the lists of all rows, concatenated, as views."""
        arrays = self._flatten(self._column)
        return arrays[0] if len(arrays) == 1 else JoinedArrays(arrays)


def find_sample_column(files: Sequence[object], columns: Sequence[str] | None) -> Any | None:
    """Return the Arrow field of the only column of files, if its values are the samples."""
    if columns is None or [*columns] != [SAMPLE_COLUMN]:
        return None
    file = files[0]
    if not isinstance(file, TabularFile) or not has_marked_samples(file.file_schema):
        return None
    return file.file_schema.field(0)
