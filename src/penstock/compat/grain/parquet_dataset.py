"""Parquet files as a stream of rows, one row group in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...inputs import from_iterable
from ...sources.columnar import Parquet
from ...sources.lru import LRUCache, SharedCaches
from ...sources.paths import find
from ...types import Json
from .iter_dataset import IterDataset
from .lineage import Lineage, Style

_CYCLE = 16  # files that are read in turn
_ROWS = 256  # rows taken out of a row group at a time


class ParquetIterDataset(IterDataset):
    """The rows of a Parquet file as dicts, in order; of several files, 16 in turn. Only `columns`
    are read.

    A file is opened when its first row is asked for. Resuming opens it at the row group that is
    needed.

    >>> import tempfile, pyarrow as pa, pyarrow.parquet as pq
    >>> file = tempfile.mkdtemp() + "/rows.parquet"
    >>> pq.write_table(pa.table({"x": [1, 2]}), file)
    >>> list(ParquetIterDataset(file))
    [{'x': 1}, {'x': 2}]
    """

    def __init__(
        self,
        path: str | Path | Sequence[str | Path],
        *,
        columns: Sequence[str] | None = None,
        order: Style = "penstock",
    ) -> None:
        given = [path] if isinstance(path, str | Path) else path
        paths = [file for one in given for file in find(one)]
        first, *others = (from_iterable(Rows(str(one), columns), Path(one).stem) for one in paths)
        core = first.interleave(*others, width=_CYCLE) if others else first
        super().__init__(core, Lineage(order))


class Rows:
    """One file as a shard."""

    def __init__(self, path: str, columns: Sequence[str] | None) -> None:
        self.path, self.columns = path, columns

    def names(self) -> Sequence[str]:
        """The file."""
        return [Path(self.path).name]

    def open(self, name: str, row: int, /) -> Iterator[Any]:
        """The rows from `row` on."""
        file = Parquet(Path(self.path), columns=self.columns, shared=SharedCaches(LRUCache(4), LRUCache(1)))
        for start in range(row, len(file), _ROWS):
            yield from file.read(np.arange(start, min(start + _ROWS, len(file))))

    def describe(self) -> Json:
        """That it is a Parquet file, and its columns."""
        return {"type": "parquet", "columns": None if self.columns is None else list(self.columns)}
