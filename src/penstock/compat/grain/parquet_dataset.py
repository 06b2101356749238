"""Parquet files as a stream of rows, with one row group in memory at a time."""

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

_CYCLE = 16  # interleaved files
_ROWS = 256  # rows per read of a row group


class ParquetIterDataset(IterDataset):
    """Read the rows of a Parquet file as dicts, in order; 16 files at a time are interleaved.

    Only `columns` are read. A file is opened at its first row; resuming opens it at the row group
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
        patterns = [path] if isinstance(path, str | Path) else path
        paths = [file for pattern in patterns for file in find(pattern)]
        first, *others = (
            from_iterable(Rows(str(path), columns), Path(path).stem) for path in paths
        )
        core = first.interleave(*others, width=_CYCLE) if others else first
        super().__init__(core, Lineage(order))


class Rows:
    """One file as a shard."""

    def __init__(self, path: str, columns: Sequence[str] | None) -> None:
        self.path, self.columns = path, columns

    def names(self) -> Sequence[str]:
        """Return the name of the file."""
        return [Path(self.path).name]

    def open(self, name: str, row: int, /) -> Iterator[Any]:
        """Yield the rows from `row` on."""
        caches = SharedCaches(LRUCache(4), LRUCache(1))
        file = Parquet(Path(self.path), columns=self.columns, shared=caches)
        for start in range(row, len(file), _ROWS):
            yield from file.read(np.arange(start, min(start + _ROWS, len(file))))

    def describe(self) -> Json:
        """Return the format and columns, for the identity of the data."""
        return {"type": "parquet", "columns": None if self.columns is None else list(self.columns)}
