"""`DataLoader` and its samplers: a source, an order and operations in one call, over the dataset
API."""

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
    """The records of a shard, shuffled anew in every epoch if `shuffle` (with a `seed`); endless
    without `num_epochs`.

    A shard is one stretch of the records. `seed` is also that of random operations.

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
            raise ConfigError(f"{self}: at least one record, and one epoch")
        if self.shuffle and self.seed is None:
            raise ConfigError(f"{self}: shuffling needs a seed")

    def records(self, source: MapDataset, shard: ShardOptions) -> MapDataset:
        """The records of `source` in this order."""
        size, more = divmod(self.num_records, shard.shard_count)
        more = 0 if shard.drop_remainder else more
        start = shard.shard_index * size + min(shard.shard_index, more)
        ds = source[start : start + size + (shard.shard_index < more)]
        ds = ds if self.seed is None else ds.seed(self.seed)
        ds = ds.shuffle(self.seed) if self.shuffle else ds
        return ds.repeat(self.num_epochs)


@dataclass(frozen=True)
class SequentialSampler:
    """The records of a shard once, in order: every `shard_count`-th of them.

    >>> list(DataLoader(data_source=range(6), sampler=SequentialSampler(6, ShardOptions(1, 2))))
    [1, 3, 5]
    """

    num_records: int
    shard_options: ShardOptions = field(default_factory=NoSharding)
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.num_records < 1:
            raise ConfigError(f"{self}: at least one record")

    def records(self, source: MapDataset, shard: ShardOptions) -> MapDataset:
        """The records of `source` in this order."""
        most = self.num_records - (
            self.num_records % shard.shard_count if shard.drop_remainder else 0
        )
        ds = source[shard.shard_index : most : shard.shard_count]
        return ds if self.seed is None else ds.seed(self.seed)


class DataLoader:
    """Records of a source in the order of a sampler, through operations; iterators have a state.

    `worker_count` threads compute ahead, `worker_buffer_size` elements each. `shard_options` go
    before the sampler's. `order="grain"` gives Grain's order. The result is a dataset, `.dataset`.

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
                f"DataLoader: sampler={sampler!r}: an IndexSampler or a SequentialSampler"
            )
        if sampler.num_records > len(data_source):
            raise ConfigError(
                f"DataLoader: {sampler.num_records} records of a source of {len(data_source)}"
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
    """A `DataLoader` over all records of a source.

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
