"""`ElasticIterator`: batches of all shards, with one state for any number of shards."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from ...errors import ConfigError
from .iter_dataset import IterDataset, PipelineIterDataset
from .iterator import DatasetIterator, RunIterator
from .map_dataset import MapDataset
from .options import MultiprocessingOptions, ReadOptions
from .sharding import ShardOptions


class ElasticIterator(IterDataset):
    """Iterate over this shard's rows of global batches; any number of shards can restore the state.

    The state is the number of elements that all shards have consumed. It is the same in every
    shard, and fits any number of shards and any batch size. A `penstock.Loader` needs no such class:
    every state of it fits any number of ranks.

    Args:
        ds: a dataset without batches and shards.
        global_batch_size: elements of a batch of all shards.
        shard_options: this shard.
        read_options: threads and buffer.
        multiprocessing_options: workers.

    Raises:
        ConfigError: if elements may be missing, or the shards cannot share a batch.

    >>> it = ElasticIterator(MapDataset.range(12), 4, ShardOptions(1, 2))
    >>> next(it).tolist(), it.get_state()
    ([1, 3], {'global_next_index': 4})
    """

    def __init__(
        self,
        ds: MapDataset,
        global_batch_size: int,
        shard_options: ShardOptions,
        *,
        read_options: ReadOptions | None = None,
        multiprocessing_options: MultiprocessingOptions | None = None,
    ) -> None:
        super().__init__()
        if ds.sparse:
            raise ConfigError(
                "ElasticIterator: elements may be missing after a filter or flat map, so batches "
                "would differ in size: filter the source instead"
            )
        if global_batch_size < 1 or global_batch_size % shard_options.shard_count:
            raise ConfigError(
                f"ElasticIterator: {shard_options.shard_count} shards cannot share "
                f"global_batch_size={global_batch_size}: give a multiple of the number of shards"
            )
        self._ds, self._batch, self._shard = ds, global_batch_size, shard_options
        self._read_options, self._options = read_options, multiprocessing_options

    def rows_from(self, start: int) -> PipelineIterDataset:
        """Return the batches of this shard from an element on."""
        rows = self._ds[start + self._shard.shard_index :: self._shard.shard_count]
        batches = rows.batch(self._batch // self._shard.shard_count, drop_remainder=True)
        ds = batches.to_iter_dataset(self._read_options)
        ds = ds if self._options is None else ds.mp_prefetch(self._options)
        return PipelineIterDataset(ds.core, ds.lineage, ds.run, ds)

    @cached_property
    def _iterator(self) -> _ElasticBatches:
        return _ElasticBatches(self, self._batch)

    def __iter__(self) -> DatasetIterator:
        return self._iterator

    def __next__(self) -> Any:
        return next(self._iterator)

    def get_state(self) -> dict[str, int]:
        """Return the number of elements that all shards have consumed."""
        return self._iterator.get_state()

    def set_state(self, state: Any) -> None:
        """Restore a state of any shard.

        Args:
            state: the return value of `get_state()`.
        """
        self._iterator.set_state(state)

    def close(self) -> None:
        """Stop the threads."""
        self._iterator.close()


class _ElasticBatches(DatasetIterator):
    """A run over the batches of a shard, whose position is counted in elements of all shards."""

    def __init__(self, dataset: ElasticIterator, batch: int) -> None:
        super().__init__()
        self._dataset, self._batch = dataset, batch
        self._open(0)

    def _open(self, index: int) -> None:
        batches, self._first = divmod(index, self._batch)
        rows = self._dataset.rows_from(self._first)
        self._run = RunIterator(rows.core, rows.run)
        if batches:
            self._run.seek(batches)

    def __next__(self) -> Any:
        return next(self._run)

    def get_state(self) -> dict[str, int]:
        return {"global_next_index": self._first + self._run.next_index() * self._batch}

    def set_state(self, state: Any) -> None:
        self._run.close()
        self._open(state["global_next_index"])

    def start_prefetch(self) -> None:
        self._run.start_prefetch()

    def close(self) -> None:
        self._run.close()
