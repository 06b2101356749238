"""`DataLoader` and its samplers: a source, an order and operations in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...errors import ConfigError
from .iter_dataset import IterDataset
from .iterator import DatasetIterator
from .lineage import Style
from .map_dataset import MapDataset
from .options import MultiprocessingOptions, ReadOptions
from .sharding import NoSharding, ShardOptions
from .transforms import Batch, Transformation


@dataclass(frozen=True)
class IndexSampler:
    """Sample the records of a shard, shuffled per epoch if `shuffle`.

    A shard is one contiguous range of records. `seed` also seeds random operations.

    Args:
        num_records: number of records of the source.
        shard_options: the shard to read.
        shuffle: whether to shuffle; requires `seed`.
        num_epochs: number of passes; endless by default.
        seed: seed of the order and of random operations.

    >>> loader = DataLoader(data_source=range(6), sampler=IndexSampler(6, ShardOptions(1, 2), num_epochs=2))
    >>> list(loader)
    [3, 4, 5, 3, 4, 5]
    """

    num_records: int
    shard_options: ShardOptions = field(default_factory=NoSharding)
    shuffle: bool = False
    num_epochs: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.num_records < 1 or (self.num_epochs is not None and self.num_epochs < 1):
            raise ConfigError(f"{self}: give at least one record, and one epoch")
        if self.shuffle and self.seed is None:
            raise ConfigError(f"{self}: shuffling needs a seed: pass seed=")

    def records(self, source: MapDataset, shard: ShardOptions) -> MapDataset:
        """Return the records of `source` in this order."""
        size, remainder = divmod(self.num_records, shard.shard_count)
        remainder = 0 if shard.drop_remainder else remainder
        start = shard.shard_index * size + min(shard.shard_index, remainder)
        ds = source[start : start + size + (shard.shard_index < remainder)]
        ds = ds if self.seed is None else ds.seed(self.seed)
        ds = ds.shuffle(self.seed) if self.shuffle else ds
        return ds.repeat(self.num_epochs)


@dataclass(frozen=True)
class SequentialSampler:
    """Sample the records of a shard once, in order: every `shard_count`-th record.

    >>> list(DataLoader(data_source=range(6), sampler=SequentialSampler(6, ShardOptions(1, 2))))
    [1, 3, 5]
    """

    num_records: int
    shard_options: ShardOptions = field(default_factory=NoSharding)
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.num_records < 1:
            raise ConfigError(f"{self}: give at least one record")

    def records(self, source: MapDataset, shard: ShardOptions) -> MapDataset:
        """Return the records of `source` in this order."""
        stop = self.num_records - (
            self.num_records % shard.shard_count if shard.drop_remainder else 0
        )
        ds = source[shard.shard_index : stop : shard.shard_count]
        return ds if self.seed is None else ds.seed(self.seed)


class DataLoader:
    """Read records in the order of a sampler, through operations; iterators have a state.

    `order="grain"` uses Grain's order. The result is a dataset, `.dataset`.

    Args:
        data_source: an object with `len` and `[i]`.
        sampler: the order.
        operations: transformations of the records.
        worker_count: threads that prefetch.
        worker_buffer_size: elements in flight per worker.
        shard_options: the shard to read, in place of the sampler's.
        read_options: threads that read.
        order: "penstock" or "grain".

    Raises:
        ConfigError: for another sampler, or one with more records than the source.

    >>> sampler = IndexSampler(num_records=4, shuffle=True, seed=1, num_epochs=1)
    >>> loader = DataLoader(data_source=[10, 20, 30, 40], sampler=sampler, operations=[Batch(2)])
    >>> sorted(int(x) for batch in loader for x in batch)
    [10, 20, 30, 40]
    """

    def __init__(
        self,
        *,
        data_source: Any,
        sampler: IndexSampler | SequentialSampler,
        operations: Sequence[Transformation] = (),
        worker_count: int | None = 0,
        worker_buffer_size: int = 1,
        shard_options: ShardOptions | None = None,
        read_options: ReadOptions | None = None,
        order: Style = "penstock",
    ) -> None:
        if not isinstance(sampler, IndexSampler | SequentialSampler):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"DataLoader: sampler={sampler!r}: use an IndexSampler or a SequentialSampler"
            )
        if sampler.num_records > len(data_source):
            raise ConfigError(
                f"DataLoader: the sampler has {sampler.num_records} records, but the source only "
                f"{len(data_source)}: lower num_records"
            )
        source = MapDataset.source(data_source, order=order)
        records = sampler.records(source, shard_options or sampler.shard_options)
        ds = records.to_iter_dataset(read_options).apply(operations)
        workers = MultiprocessingOptions(worker_count or 0, max(1, worker_buffer_size))
        self.dataset: IterDataset = ds.mp_prefetch(workers) if worker_count else ds

    def __iter__(self) -> DatasetIterator:
        return iter(self.dataset)


def load(
    source: Any,
    *,
    num_epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    shard_options: ShardOptions | None = None,
    transformations: Sequence[Transformation] = (),
    batch_size: int | None = None,
    drop_remainder: bool = False,
    worker_count: int | None = 0,
    read_options: ReadOptions | None = None,
) -> DataLoader:
    """Return a `DataLoader` over all records of a source.

    Args:
        source: an object with `len` and `[i]`.
        num_epochs: number of passes; endless by default.
        shuffle: whether to shuffle; requires `seed`.
        seed: seed of the order and of random operations.
        shard_options: the shard to read.
        transformations: transformations of the records.
        batch_size: records per batch; not batched by default.
        drop_remainder: whether to drop the last, short batch.
        worker_count: threads that prefetch.
        read_options: threads that read.

    >>> [batch.tolist() for batch in load(range(5), num_epochs=1, batch_size=2, drop_remainder=True)]
    [[0, 1], [2, 3]]
    """
    batches = [] if batch_size is None else [Batch(batch_size, drop_remainder)]
    return DataLoader(
        data_source=source,
        sampler=IndexSampler(len(source), shard_options or NoSharding(), shuffle, num_epochs, seed),
        operations=[*transformations, *batches],
        worker_count=worker_count,
        read_options=read_options,
    )
