"""`DataLoader` and its samplers: a source, an order and operations in one call."""

from __future__ import annotations

import json
import sys
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol, cast

import numpy as np

from ...dataset import Dataset
from ...engine.base.machine import count_cores
from ...engine.steps.reorder import Reorder
from ...engine.steps.with_source import WithSource
from ...errors import ConfigError, StateError
from . import functions as f
from .iter_dataset import IterDataset, interleave
from .iterator import DatasetIterator, load_in_background, save_in_background
from .lineage import Lineage, Style
from .map_dataset import MapDataset, PipelineMapDataset, make_counter
from .operations import (
    BatchOperation,
    FilterOperation,
    MapOperation,
    OperationIterDataset,
    PackAndBatchOperation,
    RandomMapOperation,
)
from .options import MultiprocessingOptions, ReadOptions
from .order import SampledShard
from .record import RecordMetadata, make_generator
from .sharding import NoSharding, ShardOptions, even_split
from .transforms import Batch, Filter, FlatMap, Map, RandomMap, TfRandomMap, Transformation


class Sampler(Protocol):
    """Order of the records of a `DataLoader`.

    `sampler[i]` is the metadata of record `i` of all shards together; beyond the last record it
    raises `IndexError`, unless the sampler has a length.
    """

    def __getitem__(self, index: int, /) -> RecordMetadata: ...


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
        start, stop = even_split(self.num_records, shard)
        ds = source[start:stop]
        ds = ds if self.seed is None else ds.seed(self.seed)
        ds = ds.shuffle(self.seed) if self.shuffle else ds
        return ds if len(ds) == 0 else ds.repeat(self.num_epochs)

    def grain_records(self, source: MapDataset, shard: ShardOptions) -> MapDataset:
        """Return the records of `source` in Grain's order.

        The sampler shards before it shuffles, the loader afterwards.
        """
        own = self.shard_options
        start, stop = (
            (0, self.num_records) if own.shard_count == 1 else even_split(self.num_records, own)
        )
        keys = source[start:stop]
        keys = keys.shuffle(self.seed) if self.shuffle else keys
        total = len(self)
        if own.drop_remainder and self.num_epochs is not None:
            total = min(total, (stop - start) * own.shard_count * self.num_epochs)
        return _select(keys, shard, own.shard_count, total)

    @cached_property
    def _keys(self) -> MapDataset:
        return self.records(MapDataset.range(self.num_records), self.shard_options)

    def __len__(self) -> int:
        return sys.maxsize if self.num_epochs is None else self.num_epochs * self.num_records

    def __getitem__(self, index: int) -> RecordMetadata:
        """Return the metadata of a record, in Penstock's order."""
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} records")
        key = self._keys[index // self.shard_options.shard_count]
        return RecordMetadata(index, key, make_generator(self.seed, index))


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
        ds = source[shard.shard_index : self._stop(shard) : shard.shard_count]
        return ds if self.seed is None else ds.seed(self.seed)

    def grain_records(self, source: MapDataset, shard: ShardOptions) -> MapDataset:
        """Return the records of `source` in Grain's order."""
        return _select(source, shard, 1, len(self))

    def _stop(self, shard: ShardOptions) -> int:
        dropped = self.num_records % shard.shard_count if shard.drop_remainder else 0
        return self.num_records - dropped

    def __repr__(self) -> str:
        return (
            f"SequentialSampler(num_records={self.num_records}, "
            f"shard_options={self.shard_options!r})"
        )

    def __len__(self) -> int:
        return self._stop(self.shard_options)

    def __getitem__(self, index: int) -> RecordMetadata:
        """Return the metadata of a record."""
        if not 0 <= index < len(self):
            raise IndexError(f"index {index} is out of range for {len(self)} records")
        return RecordMetadata(index, index, make_generator(self.seed, index))


def _select(keys: MapDataset, shard: ShardOptions, sampler_shards: int, total: int) -> MapDataset:
    """Return the records of a shard of the loader, from those of a shard of the sampler."""
    order = SampledShard(
        shard.shard_count,
        shard.shard_index,
        sampler_shards,
        None if total == sys.maxsize else total // shard.shard_count,
    )
    if len(keys) == 0:
        return keys
    return keys.then(Dataset(Reorder(keys.core.repeat().tree, order)))


class DataLoader:
    """Read records in the order of a sampler, through operations; iterators have a state.

    `order="grain"` uses Grain's order, with its random numbers and its distribution of records over
    shards and workers. The result is a dataset, `.dataset`.

    Args:
        data_source: an object with `len` and `[i]`.
        sampler: the order; an `IndexSampler`, a `SequentialSampler` or an object with
            `sampler[i] -> RecordMetadata`.
        operations: transformations of the records, or `Operation`s.
        worker_count: threads that prefetch; one per core for None.
        worker_buffer_size: elements in flight per worker.
        shard_options: the shard to read, in place of the sampler's.
        read_options: threads that read.
        enable_profiling: ignored: a `Loader` of the dataset measures every step of it.
        order: "penstock" or "grain".

    Raises:
        ConfigError: for an object that is no sampler, a sampler with more records than the source,
            or a sampler of a user without `shard_options`.

    >>> sampler = IndexSampler(num_records=4, shuffle=True, seed=1, num_epochs=1)
    >>> loader = DataLoader(data_source=[10, 20, 30, 40], sampler=sampler, operations=[Batch(2)])
    >>> sorted(int(x) for batch in loader for x in batch)
    [10, 20, 30, 40]
    """

    def __init__(
        self,
        *,
        data_source: Any,
        sampler: Sampler,
        operations: Sequence[Any] = (),
        worker_count: int | None = 0,
        worker_buffer_size: int = 1,
        shard_options: ShardOptions | None = None,
        read_options: ReadOptions | None = None,
        enable_profiling: bool = False,
        order: Style = "penstock",
    ) -> None:
        workers = count_workers(worker_count)
        if workers < 0 or worker_buffer_size < 0:
            raise ConfigError(
                f"DataLoader: worker_count={worker_count}, worker_buffer_size={worker_buffer_size}: "
                "give 0 or more"
            )
        self._options = MultiprocessingOptions(
            workers, max(1, worker_buffer_size), enable_profiling
        )
        self._source, self._sampler, self._read_options = data_source, sampler, read_options
        self._operations = [_as_transformation(operation) for operation in operations]
        self._shard = _find_shard(sampler, shard_options)
        self._order: Style = order
        self.dataset: IterDataset = self._make()

    @property
    def multiprocessing_options(self) -> MultiprocessingOptions:
        """Number of workers and their buffers."""
        return self._options

    @property
    def _workers(self) -> int:
        """The number of parts into which Grain's order divides the records; 1 without workers."""
        return max(1, self._options.num_workers) if self._order == "grain" else 1

    @cached_property
    def _records(self) -> MapDataset:
        """The records of the shard: plain elements where nothing asks for metadata."""
        sampler = self._sampler
        if not isinstance(sampler, IndexSampler | SequentialSampler):
            size = _count_records(sampler) // self._shard.shard_count
            reader = f.ReadRecord(self._source, sampler, self._shard)
            core = make_counter(size, type(sampler).__name__).map(reader)
            return PipelineMapDataset(core, Lineage(self._order))
        if sampler.num_records > len(self._source):
            raise ConfigError(
                f"DataLoader: the sampler has {sampler.num_records} records, but the source only "
                f"{len(self._source)}: lower num_records"
            )
        source = MapDataset.source(self._source, order=self._order)
        if not self._has_metadata:
            return sampler.records(source, self._shard)
        keyed = source.then(Dataset(WithSource(source.core.tree, f.with_key)))
        grain = self._order == "grain"
        records = (sampler.grain_records if grain else sampler.records)(keyed, self._shard)
        make = f.MakeRecord(self._shard, sampler.seed)
        return records.then(records.core.zip(make_counter(len(records), "place")).map(make))

    @cached_property
    def _has_metadata(self) -> bool:
        """True if operations need records rather than their data."""
        own = not isinstance(self._sampler, IndexSampler | SequentialSampler)
        others = not all(_is_transformation(operation) for operation in self._operations)
        return self._order == "grain" or own or others

    def _make(self, starts: Sequence[int] | None = None, first: int = 0) -> IterDataset:
        """Return the dataset, or what is left of it.

        Args:
            starts: the number of records that each worker of Grain has read.
            first: the worker whose turn it is.
        """
        workers = self._workers
        parts = list[IterDataset]()
        for worker in range(workers):
            records = self._records if workers == 1 else self._records[worker::workers]
            if starts is not None:
                records = records[starts[worker] :]
            ds = records.to_iter_dataset(self._read_options)
            for operation in self._operations:
                ds = self._apply(ds, operation)
            parts.append(ds.map(f.data_of) if self._has_metadata else ds)
        if workers > 1:
            parts = [interleave(parts[first:] + parts[:first], workers)]
        return parts[0].mp_prefetch(self._options)

    def _apply(self, ds: IterDataset, operation: Any) -> IterDataset:
        """Apply an operation to a dataset of records, or of plain elements."""
        if not self._has_metadata:
            if isinstance(operation, PackAndBatchOperation):
                return operation.pack(ds)
            return ds.apply(operation)
        match operation:
            case Map():
                return ds.map(f.OnData(operation.map))
            case RandomMap():
                return ds.map(f.OnDataRandom(operation.random_map))
            case TfRandomMap():
                return ds.map(f.OnDataRandom(operation.np_random_map))
            case Filter():
                return ds.filter(f.TestsData(operation.filter))
            case FlatMap():
                return ds.flat_map(f.FlatMapRecords(operation))
            case Batch(size, drop, fn):
                batch = f.BatchRecords(fn or f.stack)
                return ds.batch(size, drop_remainder=drop, batch_fn=batch)
            case PackAndBatchOperation():
                return operation.pack(ds.map(f.data_of)).map(f.without_metadata)
            case _:
                return OperationIterDataset(ds, operation)

    def rest_after(self, state: Mapping[str, Any]) -> IterDataset:
        """Return the rest of the dataset after a state that Grain saved.

        Args:
            state: a state of Grain's `DataLoaderIterator`, as a dict.

        Raises:
            StateError: if the state is one of another loader, or the order is not Grain's.
        """
        count, workers = self._shard.shard_count, self._options.num_workers
        if self._order != "grain":
            raise StateError(
                "the state is one of Grain, whose order differs: make the loader with order='grain'"
            )
        for name, here in (
            ("worker_count", workers),
            ("sampler", repr(self._sampler)),
            ("data_source", _show_source(self._source)),
        ):
            if name in state and state[name] != here:
                raise StateError(
                    f"the state of Grain has the {name} {state[name]!r}, not {here!r}: make the "
                    "loader as Grain's was"
                )
        if any(isinstance(operation, FlatMap) for operation in self._operations):
            raise StateError(
                "a state of Grain does not say how far a flat map was: continue from a checkpoint "
                "of an earlier step without one"
            )
        total = max(1, workers) * count
        starts = [
            (
                int(state["last_seen_indices"][str(worker)])
                + total
                - self._shard.shard_index
                - worker * count
            )
            // total
            for worker in range(max(1, workers))
        ]
        return self._make(starts, (int(state["last_worker_index"]) + 1) % max(1, workers))

    def __iter__(self) -> DataLoaderIterator:
        return DataLoaderIterator(self)


def count_workers(worker_count: int | None) -> int:
    """Return a number of workers; one per core for None."""
    return count_cores() if worker_count is None else int(worker_count)


def _find_shard(sampler: Any, shard_options: ShardOptions | None) -> ShardOptions:
    if not hasattr(sampler, "__getitem__"):
        raise ConfigError(
            f"DataLoader: sampler={sampler!r}: use an IndexSampler, a SequentialSampler or an "
            "object with sampler[i] -> RecordMetadata"
        )
    names = ("shard_options", "_shard_options")
    shards = [shard_options, *(getattr(sampler, name, None) for name in names)]
    for shard in shards:
        if isinstance(shard, ShardOptions):
            return shard
    raise ConfigError(
        f"DataLoader: the sampler {sampler!r} has no shard_options: pass shard_options= to the "
        "loader, such as NoSharding()"
    )


def _count_records(sampler: Any) -> int:
    """Return the number of records of a sampler, by bisection if it has no length."""
    if hasattr(sampler, "__len__"):
        return len(sampler)
    low, high = 0, sys.maxsize
    while low < high:
        middle = (low + high) // 2
        try:
            sampler[middle]
            low = middle + 1
        except IndexError:
            high = middle
    return low


@dataclass(frozen=True)
class _OperationMap(Map):
    fn: Any

    def map(self, element: Any) -> Any:
        return self.fn(element)


@dataclass(frozen=True)
class _OperationRandomMap(RandomMap):
    fn: Any

    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return self.fn(element, rng)


@dataclass(frozen=True)
class _OperationFilter(Filter):
    fn: Any

    def filter(self, element: Any) -> bool:
        return self.fn(element)


def _as_transformation(operation: Any) -> Any:
    """Return the transformation that an operation stands for; others of a user stay as they are."""
    kind = cast("type[Any]", type(operation))
    if kind is MapOperation:
        return _OperationMap(operation.map_function)
    if kind is RandomMapOperation:
        return _OperationRandomMap(operation.random_map_function)
    if kind is FilterOperation:
        return _OperationFilter(operation.condition_function)
    if kind is BatchOperation:
        return Batch(operation.batch_size, operation.drop_remainder, operation.batch_fn)
    if not _is_transformation(operation) and not callable(operation):
        raise ConfigError(
            f"DataLoader: {operation!r} is no transformation and no operation: derive it from "
            "transforms.Map, say"
        )
    return operation


def _is_transformation(operation: Any) -> bool:
    return isinstance(operation, Transformation | PackAndBatchOperation)


def _show_source(source: Any) -> str:
    """Return a source as states of Grain show it."""
    if type(source) in (list, tuple, np.ndarray):
        return str(cast("type[Any]", type(source)))
    return repr(source)


class DataLoaderIterator(Iterator[Any]):
    """Iterate over a `DataLoader`; the state is bytes, JSON in UTF-8.

    With `order="grain"`, `set_state` also takes a state that Grain itself saved, and continues
    where it was.

    Args:
        data_loader: the loader.
        state: a state to restore.
        validate_state: ignored: every state is validated.

    >>> loader = DataLoader(data_source=range(5), sampler=SequentialSampler(5))
    >>> it = iter(loader)
    >>> next(it), next(it)
    (0, 1)
    >>> state = it.get_state()
    >>> again = iter(loader)
    >>> again.set_state(state)
    >>> list(again)
    [2, 3, 4]
    """

    def __init__(
        self, data_loader: DataLoader, state: Any = None, validate_state: bool = True
    ) -> None:
        self._loader = data_loader
        self._iterator: DatasetIterator = iter(data_loader.dataset)
        self._taken_over: dict[str, Any] | None = None
        if state is not None:
            self.set_state(state)

    def __next__(self) -> Any:
        return next(self._iterator)

    def get_state(self) -> bytes:
        """Return the state after the last element."""
        return json.dumps(self.state_dict(), indent=4).encode()

    def state_dict(self) -> dict[str, Any]:
        """Return the state as a dict."""
        state = self._iterator.get_state()
        return state if self._taken_over is None else {"grain": self._taken_over, "rest": state}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Restore a state that `state_dict()` returned."""
        self.set_state(state)

    def set_state(self, state: bytes | Mapping[str, Any], on_mismatch: Any = "error") -> None:
        """Restore a state.

        Args:
            state: the return value of `get_state()`, or with `order="grain"` a state of Grain.
            on_mismatch: "error" rejects the state of another pipeline; "adopt" continues with it.

        Raises:
            StateError: for a state that does not fit.
        """
        parsed: Any = json.loads(state) if isinstance(state, bytes) else state
        if not isinstance(parsed, Mapping):
            raise StateError(f"the state is a {type(parsed).__name__}: pass what get_state() gave")
        values = dict(cast("Mapping[str, Any]", parsed))
        theirs = values if "last_seen_indices" in values else values.get("grain")
        ds = self._loader.dataset if theirs is None else self._take_over(theirs)
        iterator: Any = iter(ds)
        if theirs is not values:
            iterator.set_state(values if theirs is None else values["rest"], on_mismatch)
        self._iterator.close()
        self._iterator, self._taken_over = iterator, theirs

    def _take_over(self, state: Mapping[str, Any]) -> IterDataset:
        """Return what is left of the dataset after a state of Grain."""
        return self._loader.rest_after(state)

    def start_prefetch(self) -> None:
        """Start prefetching without waiting."""
        self._iterator.start_prefetch()

    def close(self) -> None:
        """Stop the threads. Closing twice is a no-op."""
        self._iterator.close()

    async def save(self, directory: Any) -> Coroutine[Any, Any, None]:
        """Return a coroutine that writes the present state, as Orbax calls it.

        Args:
            directory: a folder that Orbax creates.
        """
        return save_in_background(directory, self.get_state().decode())

    async def load(self, directory: Any) -> Coroutine[Any, Any, None]:
        """Return a coroutine that restores a state, as Orbax calls it.

        Args:
            directory: the folder of a checkpoint.
        """
        return load_in_background(directory, lambda text: self.set_state(text.encode()))

    def __str__(self) -> str:
        return f"DataLoaderIterator(state={self.get_state().decode()})"


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
