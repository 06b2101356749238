"""First looks at a dataset: its first samples, a random sample, its columns and their summary."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..arguments import check_int
from ..engine.base.random import derive_key, permute
from ..errors import ConfigError
from .base import BaseDataset

if TYPE_CHECKING:
    from .summary import Summary

D = TypeVar("D")


class Look(BaseDataset[D]):
    """Methods of `Dataset` that read a few samples, and say what they read."""

    def head(self, n: int = 5) -> list[Any]:
        """Read the first `n` samples of a pass into a list.

        It works for every dataset, also for streams and endless ones, and reads no more than `n`
        samples of the result. A `filter` before it may read more of its input.

        Args:
            n: maximum number of samples.

        Returns:
            The samples; fewer than `n` if a pass is shorter.

        Raises:
            ConfigError: if `n` is no integer of at least 0.

        >>> import penstock as ps
        >>> ps.from_sequence(range(1_000)).filter(lambda x: x % 7 == 0).head(3)
        [0, 7, 14]
        """
        n = check_int(n, "head({})", 0)
        return [
            sample for block in self._blocks(self._count(n, "head"), n or 1) for sample in block
        ]

    def take(self, n: int) -> D:
        """Keep the first `n` samples of each pass: another name of `limit`.

        Args:
            n: maximum number of samples.

        Returns:
            The first samples, as a dataset.

        Raises:
            ConfigError: if `n` is no integer of at least 0.

        >>> import penstock as ps
        >>> list(ps.from_sequence("abc").take(2))
        ['a', 'b']
        """
        return self.limit(n)

    def sample(self, n: int, seed: int = 0) -> D:
        """Select `n` random samples of an indexed dataset, without repetition, in random order.

        The result is a fixed set, the same in every pass; it reads nothing until samples are
        requested. Other seeds give other samples. For all samples in random order use `shuffle`.

        Args:
            n: number of samples.
            seed: any integer.

        Returns:
            The selected samples, as a dataset.

        Raises:
            ConfigError: if the dataset is endless, or has fewer than `n` samples.
            IndexedError: if an earlier step has no positions.

        >>> import penstock as ps
        >>> few = ps.from_sequence(range(1_000)).sample(3, seed=1)
        >>> len(few), len(set(few)), list(few) == list(few)
        (3, 3, True)
        """
        n, seed = check_int(n, "sample({})", 0), check_int(seed, "sample(seed={})")
        self.tree.require_indexed(
            "sample()", f"use .take({100 * max(n, 1)}).shuffle_buffer({10 * max(n, 1)}).take({n})"
        )
        size = self.compiled.size
        if size is None:
            raise ConfigError(
                f"sample({n}): the dataset is endless, so it has no random sample; choose from its "
                f"beginning: .take({100 * max(n, 1)}).sample({n})"
            )
        if n > size:
            raise ConfigError(
                f"sample({n}): the dataset has {size} samples; for all of them in random order use "
                f".shuffle(seed={seed})"
            )
        return self.select(permute(np.arange(n), size, derive_key("sample", seed)))

    @cached_property
    def schema(self) -> Any:
        """The columns and their types, as a `pyarrow.Schema`.

        For Parquet and Arrow files, tables and data frames whose rows are only ordered or mixed, the
        source knows it, and no sample is read. Else it is inferred from the first 64 samples, which
        runs the functions of the pipeline on them; a later sample may have other columns. Samples
        that are no mappings form one column, `value`.

        Raises:
            DataError: if the values of a column have no common type in Arrow, such as images.

        >>> import penstock as ps
        >>> ps.from_sequence([{"text": "a", "tokens": [1, 2]}]).schema
        text: string
        tokens: list<item: int64>
          child 0, item: int64
        """
        from .rows import SCHEMA_ROWS, infer_schema
        from .schemas import find_stored_schema

        stored = find_stored_schema(self.tree)
        return infer_schema(self.head(SCHEMA_ROWS)) if stored is None else stored

    @cached_property
    def columns(self) -> list[str]:
        """The names of the columns, at the cost of `schema`; `["value"]` for other than mappings.

        >>> import penstock as ps
        >>> ps.from_sequence([{"text": "a", "year": 1990}]).columns
        ['text', 'year']
        """
        from .rows import SCHEMA_ROWS, column_names
        from .schemas import find_stored_schema

        stored = find_stored_schema(self.tree)
        return column_names(self.head(SCHEMA_ROWS)) if stored is None else list(stored.names)

    def describe(self, limit: int = 1_000) -> Summary:
        """Summarise each column: type, missing and distinct values, range, lengths, frequent values.

        It reads at most `limit` samples: blocks of neighbours that are spread evenly over an indexed
        dataset, and the first samples of a stream or an endless dataset. The result says how many
        samples it read. It prints as a table, and shows as one in a notebook.

        Args:
            limit: maximum number of samples to read.

        Returns:
            A summary with one entry per column.

        Raises:
            ConfigError: if `limit` is below 1.

        >>> import penstock as ps
        >>> ps.from_sequence([{"text": "a" * i, "year": 1990 + i} for i in range(3)]).describe()
        3 of 3 samples read
        column  type  missing  distinct  minimum  maximum  length    frequent
        text    str         0         3                    0 to 2  '', 'a', 'aa'
        year    int         0         3  1990     1992             1990, 1991, 1992
        """
        from .summary import summarize

        limit = check_int(limit, "describe(limit={})", 1)
        size = self.compiled.size if self._is_indexed else None
        if size is None or size <= limit:
            samples = self.head(limit)
            total = len(samples) if len(samples) < limit else size
            return summarize(samples, total, first=True)
        samples = self._values(_spread_positions(size, limit))
        return summarize(list(samples), size, first=False)

    def _repr_html_(self) -> str:
        from .html import show_dataset

        return show_dataset(self, super()._repr_html_())


_NEIGHBOURS = 32
"""Neighbours that a summary reads together, because files decode whole groups of rows."""


def _spread_positions(size: int, limit: int) -> Any:
    """Return `limit` positions below `size`: blocks of neighbours at equal distances."""
    neighbours = min(_NEIGHBOURS, limit)
    blocks = limit // neighbours
    starts = np.arange(blocks) * (size - neighbours) // max(blocks - 1, 1)
    return np.unique(starts[:, None] + np.arange(neighbours))
