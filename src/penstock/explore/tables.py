"""Conversion of a dataset to tables of Arrow, pandas, polars and Hugging Face `datasets`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..engine.base.progress import Progress
from ..engine.orders import Pick
from ..engine.steps.read import single_source
from ..engine.steps.step import iter_steps
from ..errors import ConfigError
from ..types import Ints
from .base import BaseDataset

if TYPE_CHECKING:
    from ..sources.partition import ColumnValues
    from .convert import Conversion

D = TypeVar("D")

_FIRST_ROWS, _BLOCK_ROWS = 256, 8_192
"""Rows of the first block, which tells how much memory all need, and of later ones."""

_LOCATED = 1 << 20  # positions that are located together


class Tables(BaseDataset[D]):
    """Methods of `Dataset` that read all samples, or the first `limit`, into a table."""

    def to_arrow(self, limit: int | None = None) -> Any:
        """Read samples into a `pyarrow.Table`.

        Keys become columns; a key that a sample lacks is null. Samples that are no mappings become
        one column, `value`. Values keep their types: lists, mappings, times, decimals and bytes.
        Columns of Parquet and Arrow files and of tables are not converted to Python on the way.

        Args:
            limit: maximum number of samples. Default: one pass.

        Returns:
            The `pyarrow.Table`.

        Raises:
            ConfigError: if the table would not fit into memory, or if the dataset is endless and
                has no limit.
            DataError: if the values of a column have no common type in Arrow.

        >>> import penstock as ps
        >>> ps.from_sequence([{"x": 1, "y": [0.5]}, {"x": 2}]).to_arrow().to_pydict()
        {'x': [1, 2], 'y': [[0.5], None]}
        """
        return self._convert("to_arrow", limit).to_arrow()

    def to_pandas(self, limit: int | None = None) -> Any:
        """Read samples into a `pandas.DataFrame`.

        Whole numbers and truth values beside missing ones get pandas' nullable dtypes, so that they
        stay exact. Lists, mappings, decimals and bytes are objects; a list of numbers is an array.
        Values that Arrow cannot hold, such as images, stay the objects that they are.

        Args:
            limit: maximum number of samples. Default: one pass.

        Returns:
            The `pandas.DataFrame`.

        Raises:
            ConfigError: if the frame would not fit into memory, or if the dataset is endless and
                has no limit.
            ImportError: if pandas is not installed.

        >>> import penstock as ps
        >>> ps.from_sequence([{"text": "a", "year": 1990}, {"text": "b"}]).to_pandas()
          text  year
        0    a  1990
        1    b  <NA>
        """
        return self._convert("to_pandas", limit).to_pandas()

    def to_polars(self, limit: int | None = None) -> Any:
        """Read samples into a `polars.DataFrame`.

        Args:
            limit: maximum number of samples. Default: one pass.

        Returns:
            The `polars.DataFrame`.

        Raises:
            ConfigError: if the frame would not fit into memory, or if the dataset is endless and
                has no limit.
            DataError: if the values of a column have no common type in Arrow.
            ImportError: if polars is not installed.

        >>> import penstock as ps
        >>> ds = ps.from_sequence([{"x": 1}, {"x": 2}])
        >>> frame = ds.to_polars()  # doctest: +SKIP
        """
        return self._convert("to_polars", limit).to_polars()

    def to_hf(self, limit: int | None = None) -> Any:
        """Read samples into a Hugging Face `datasets.Dataset` in memory.

        Args:
            limit: maximum number of samples. Default: one pass.

        Returns:
            The `datasets.Dataset`.

        Raises:
            ConfigError: if the table would not fit into memory, or if the dataset is endless and
                has no limit.
            DataError: if neither Arrow nor `datasets` can hold a column.
            ImportError: if `datasets` is not installed.

        >>> import penstock as ps
        >>> ps.from_sequence([{"x": 1}, {"x": 2}]).to_hf()
        Dataset({
            features: ['x'],
            num_rows: 2
        })
        """
        return self._convert("to_hf", limit).to_hf()

    def to_list(self, limit: int | None = None) -> list[Any]:
        """Read samples into a list, as iteration gives them.

        Args:
            limit: maximum number of samples. Default: one pass.

        Returns:
            The samples, in order.

        Raises:
            ConfigError: if the list would not fit into memory, or if the dataset is endless and has
                no limit.

        >>> import penstock as ps
        >>> ps.from_sequence("abc").repeat().to_list(limit=4)
        ['a', 'b', 'c', 'a']
        """
        return self._convert("to_list", limit).to_list()

    def _convert(self, call: str, limit: int | None) -> Conversion:
        from .convert import Conversion

        count = self._count(limit, call)
        total = count if self._is_indexed else None  # a stream may end before its limit
        return Conversion(call, self.tree, total, self._read_blocks(call, count))

    def _split_by_columns(self, share: float, columns: Sequence[str]) -> tuple[Pick, Pick]:
        """Return the samples to train on, and those whose values have the lowest hashes.

        Raises:
            ConfigError: if the dataset is endless, if no sample has one of the columns, or if its
                values have no text.
        """
        from .column_hashes import find_hash_range, hash_columns, split_hashes

        if self.compiled.size is None:
            raise ConfigError("split(): the dataset is endless; split it before .repeat() or mix")
        call = f"split(column={columns[0] if len(columns) == 1 else list(columns)!r})"
        hashes = hash_columns(self._read_blocks(call, self.compiled.size), columns, call)
        held, (low, middle, high) = split_hashes(
            hashes, share, *find_hash_range(self.tree, columns)
        )
        first, second = np.flatnonzero(~held), np.flatnonzero(held)
        return Pick(first, (columns, middle, high)), Pick(second, (columns, low, middle))

    def _read_column_values(self, call: str, columns: Sequence[str]) -> ColumnValues:
        """Return the values of columns for each sample of a finite indexed dataset.

        Files below orders alone are read column by column; the functions of other datasets run.

        Raises:
            ConfigError: if no sample has one of the columns, or if its values have no text.
        """
        from ..sources.partition import read_values
        from .column_hashes import encode_columns

        size, (leaf, _) = self.compiled.size, single_source(self.tree) or (None, ())
        orders_alone = all(step.is_order for step, _ in iter_steps(self.tree))
        values = read_values(leaf.source, columns) if leaf and orders_alone else None
        if values is None:
            return encode_columns(self._read_blocks(call, size), columns, call)
        if leaf is self.tree:
            return values
        return values._replace(codes=values.codes[self._locate_rows(size or 0)])

    def _locate_rows(self, size: int) -> Ints:
        """Return the rows of the only source at the first `size` positions."""
        rows = np.zeros(size, np.int64)
        for start in range(0, size, _LOCATED):
            stop = min(start + _LOCATED, size)
            rows[start:stop] = self.compiled.op.locate(np.arange(start, stop)).index
        return rows

    def _read_blocks(self, call: str, count: int | None) -> Iterator[Sequence[Any]]:
        """Yield the samples in blocks, a small one first, and report progress."""
        done = 0
        with Progress(call, count, "samples") as progress:
            for block in self._blocks(count, _FIRST_ROWS, _BLOCK_ROWS):
                yield block
                done += len(block)
                progress.tell(done)
