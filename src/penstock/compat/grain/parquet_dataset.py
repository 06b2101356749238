"""Parquet files as a stream of rows, with one row group in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...arrays.columnar import import_arrow
from ...inputs import from_iterable
from ...sources.columnar import Parquet
from ...sources.lru import LRUCache, SharedCaches
from ...sources.paths import find
from ...sources.rows import build_rows
from ...types import Json
from .iter_dataset import PipelineIterDataset
from .lineage import Lineage, Style

_CYCLE = 16  # interleaved files
_ROWS = 256  # rows per read of a row group


class ParquetIterDataset(PipelineIterDataset):
    """Read the rows of a Parquet file as dicts, in order; 16 files at a time are interleaved.

    Only `columns` are read. A file is opened at its first row; resuming opens it at the row group
    needed.

    Args:
        path: one or several files.
        columns: the columns to read; all by default.
        order: "penstock" or "grain".
        **read_kwargs: arguments of `pyarrow.parquet.ParquetFile`, such as `filesystem`, with which
            pyarrow itself opens the files.

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
        **read_kwargs: Any,
    ) -> None:
        patterns = [path] if isinstance(path, str | Path) else path
        if read_kwargs:
            paths: list[Any] = [*patterns]
        else:
            paths = [file for pattern in patterns for file in find(pattern)]
        first, *others = (
            from_iterable(Rows(str(path), columns, read_kwargs), Path(path).stem) for path in paths
        )
        core = first.interleave(*others, width=_CYCLE) if others else first
        super().__init__(core, Lineage(order))


class Rows:
    """One file as a shard."""

    def __init__(
        self, path: str, columns: Sequence[str] | None, read_kwargs: Mapping[str, Any]
    ) -> None:
        self.path, self.columns, self._read_kwargs = path, columns, read_kwargs

    def names(self) -> Sequence[str]:
        """Return the name of the file."""
        return [Path(self.path).name]

    def open(self, name: str, row: int, /) -> Iterator[Any]:
        """Yield the rows from `row` on."""
        if self._read_kwargs:
            yield from self._open_by_arrow(row)
            return
        caches = SharedCaches(LRUCache(4), LRUCache(1))
        file = Parquet(Path(self.path), columns=self.columns, shared=caches)
        for start in range(row, len(file), _ROWS):
            yield from file.read(np.arange(start, min(start + _ROWS, len(file))))

    def _open_by_arrow(self, row: int) -> Iterator[Any]:
        pq: Any = import_arrow("pyarrow.parquet")
        with pq.ParquetFile(self.path, **self._read_kwargs) as file:
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if row < rows:
                    table = file.read_row_group(group, self.columns)
                    yield from build_rows(table.slice(row), views=False)
                row = max(0, row - rows)

    def describe(self) -> Json:
        """Return the format and columns, for the identity of the data."""
        return {"type": "parquet", "columns": None if self.columns is None else list(self.columns)}
