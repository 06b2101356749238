"""Loaders with a synchronous and an asynchronous interface, over `penstock.Loader`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, Self, TypeVar, cast, runtime_checkable

from ...dataset import Dataset
from ...loader import Loader
from .collate import Padded
from .inputs import dataset_of, read_once

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_END = object()


@runtime_checkable
class AsyncDatasetProtocol(Protocol[T_co]):
    """Form of datasets with asynchronous access."""

    async def aget(self, index: int) -> T_co:
        """Return an item."""
        ...

    def __aiter__(self) -> AsyncIterator[T_co]: ...

    def get_output_sharding(self) -> Mapping[str, Any] | None:
        """Return the shardings of fields, or None."""
        ...

    @property
    def is_exhausted(self) -> bool:
        """True after the last item."""
        ...


class AsyncDataset(ABC, Generic[T]):
    """Base of datasets with asynchronous access; the synchronous methods drive the others.

    The synchronous methods need a thread without a running event loop.
    """

    @abstractmethod
    async def aget(self, index: int) -> T:
        """Return an item.

        Args:
            index: its index.
        """

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[T]: ...

    async def abatch(self, indices: Sequence[int]) -> list[T]:
        """Return several items, requested at once.

        Args:
            indices: their indices.
        """
        return list(await asyncio.gather(*[self.aget(index) for index in indices]))

    def get(self, index: int) -> T:
        """Return an item, synchronously.

        Args:
            index: its index.
        """
        return asyncio.run(self.aget(index))

    def __iter__(self) -> Iterator[T]:
        items = aiter(self)
        with asyncio.Runner() as runner:
            while (item := runner.run(_next_of(items))) is not _END:
                yield item

    def get_output_sharding(self) -> Mapping[str, Any] | None:
        """Return the shardings of fields, or None."""
        return None

    @property
    def is_exhausted(self) -> bool:
        """True after the last item."""
        return False


async def _next_of(items: AsyncIterator[Any]) -> Any:
    return await anext(items, _END)


class AsyncDataLoader(AsyncDataset[dict[str, Any]]):
    """Batches of a source, prefetched by threads, as `for` or `async for`.

    Every `for` is a new pass from its beginning, and a shuffle has another order in each. An endless
    source has one pass, which every `for` begins again. `state_dict` and `load_state_dict` store and
    restore the pass and the position in it. On several ranks each rank gets its share of batches.

    Args:
        source: a sharded source, a dataset, or rows.
        batch_size: rows per batch.
        prefetch_enabled: whether threads prefetch.
        prefetch_workers: number of threads.
        prefetch_buffer_size: batches in flight.
        shuffle_buffer_size: rows of a shuffle buffer before batching.
        drop_last: whether to drop the last, short batch.
        sharding_map: JAX shardings by field; these fields are copied to devices.
        seed: seed of the shuffle; 0 by default.

    >>> loader = AsyncDataLoader([{"x": i} for i in range(5)], batch_size=2)
    >>> [batch["x"].tolist() for batch in loader]
    [[0, 1], [2, 3]]
    """

    def __init__(
        self,
        source: Any,
        batch_size: int = 8,
        prefetch_enabled: bool = True,
        prefetch_workers: int = 2,
        prefetch_buffer_size: int = 4,
        shuffle_buffer_size: int | None = None,
        drop_last: bool = True,
        sharding_map: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> None:
        rows = dataset_of(source, "source")
        if shuffle_buffer_size:
            rows = rows.shuffle_buffer(shuffle_buffer_size, seed=seed or 0)
        self._batches = rows.batch(batch_size, drop_last, Padded())
        self._workers = prefetch_workers if prefetch_enabled else 0
        self._prefetch, self._sharding_map = prefetch_buffer_size or None, sharding_map
        self._loader: Loader | None = None
        self._passes = 0
        self._start: Mapping[str, Any] | None = None
        self._is_exhausted = False

    async def aget(self, index: int) -> dict[str, Any]:
        """Return a batch of a source with random access.

        Args:
            index: number of the batch.

        Raises:
            TypeError: if the source has no random access, or is shuffled by a buffer.
        """
        batch = await asyncio.to_thread(self._batches.__getitem__, index)
        return preshard_batch(batch, self._sharding_map)

    async def __aiter__(self) -> AsyncIterator[dict[str, Any]]:
        batches = iter(self)
        while (batch := await asyncio.to_thread(next, batches, None)) is not None:
            yield batch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._is_exhausted = False
        with Loader(self._batches, workers=self._workers, prefetch=self._prefetch) as loader:
            session = loader._session  # pyright: ignore[reportPrivateUsage]  # to begin at a pass
            if self._start is not None:
                loader.load_state_dict(self._start)
                self._start = None
            elif self._passes and not self._batches.tree.is_endless:
                session.next_pass(self._passes)
            self._loader, batches = loader, iter(loader)
            self._passes = session.epoch + 1
            for batch in batches:
                yield preshard_batch(batch, self._sharding_map)
        self._is_exhausted = True

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the newest iteration."""
        if self._loader is None:
            with Loader(self._batches) as loader:
                return loader.state_dict()
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration at a position.

        Args:
            state: the result of `state_dict`.
        """
        self._start = state

    def get_output_sharding(self) -> Mapping[str, Any] | None:
        """Return the shardings of fields, or None."""
        return self._sharding_map

    @property
    def is_exhausted(self) -> bool:
        """True after the last batch of an iteration."""
        return self._is_exhausted


class PipelineLoader(Loader):
    """The loader of a pipeline: a `penstock.Loader` that `async for` reads too.

    >>> import penstock as ps
    >>> with PipelineLoader(ps.from_sequence([1, 2])) as loader:
    ...     list(loader), loader.get_output_sharding()
    ([1, 2], None)
    """

    _is_exhausted = False

    async def __aiter__(self) -> AsyncIterator[Any]:
        self._is_exhausted, items = False, iter(self)
        while (item := await asyncio.to_thread(next, items, None)) is not None:
            yield item
        self._is_exhausted = True

    async def aget(self, index: int) -> Any:
        """Raise an error: a loader has a position and no random access.

        Args:
            index: number of an item.

        Raises:
            TypeError: always; `seek` goes to an item.
        """
        raise TypeError(f"aget({index}): the loader has no random access: call seek({index})")

    def get_output_sharding(self) -> None:
        """Return None: batches are NumPy arrays."""

    @property
    def is_exhausted(self) -> bool:
        """True after the last item of an `async for`."""
        return self._is_exhausted


AsyncDataset.register(PipelineLoader)


class PrefetchIterator:
    """Read the items of an iterator ahead, in a thread; errors keep their traceback.

    Args:
        source: the iterator.
        buffer_size: items in flight.
        num_workers: accepted; one thread reads the iterator, since its order must not change.

    >>> with PrefetchIterator(iter(range(3))) as items:
    ...     list(items)
    [0, 1, 2]
    """

    def __init__(self, source: Iterable[Any], buffer_size: int = 4, num_workers: int = 2) -> None:
        rows = read_once(source)
        self._loader = Loader(rows, workers=1, prefetch=buffer_size, rank=0, world_size=1)
        self._items = iter(self._loader)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return next(self._items)

    def close(self) -> None:
        """End the thread."""
        self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass
class ShardingSpec:
    """Shardings of the fields of a batch over a JAX mesh.

    Args:
        mesh: the mesh; None for no sharding.
        partition_specs: `PartitionSpec` by field; other fields are replicated.
    """

    mesh: Any = None
    partition_specs: dict[str, Any] = field(default_factory=dict[str, Any])

    def apply(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch with its fields on the devices of the mesh.

        Args:
            batch: the batch.
        """
        if self.mesh is None:
            return dict(batch)
        from jax.sharding import NamedSharding, PartitionSpec

        specs = {name: self.partition_specs.get(name, PartitionSpec()) for name in batch}
        return preshard_batch(
            batch, {name: NamedSharding(self.mesh, spec) for name, spec in specs.items()}
        )


def preshard_batch(
    batch: Mapping[str, Any], sharding_map: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return a batch with some fields on devices.

    Args:
        batch: the batch.
        sharding_map: JAX sharding by field; other fields are unchanged.
    """
    if not sharding_map:
        return dict(batch)
    import jax

    put = cast(Any, jax).device_put
    return {
        name: put(value, sharding_map[name]) if name in sharding_map else value
        for name, value in batch.items()
    }


def collate_batch(examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return rows as one mapping of arrays; rows of tokens are padded to the longest.

    Args:
        examples: the rows.

    >>> collate_batch([{"x": [1, 2]}, {"x": [3, 4]}])["x"].tolist()
    [[1, 2], [3, 4]]
    """
    return Padded()(list(examples)) if examples else {}


def batch_iterator(
    source: Iterable[Any], batch_size: int, drop_last: bool = True
) -> Iterator[dict[str, Any]]:
    """Iterate over batches of the rows of an iterator.

    Args:
        source: the iterator, which is read once.
        batch_size: rows per batch.
        drop_last: whether to drop the last, short batch.

    >>> [batch["x"].tolist() for batch in batch_iterator(iter([{"x": 1}, {"x": 2}]), 2)]
    [[1, 2]]
    """
    return iter(read_once(source).batch(batch_size, drop_last, Padded()))


def create_data_iterator(
    dataset: Any,
    batch_size: int,
    shuffle: bool = True,
    drop_last: bool = False,
    prefetch: bool = True,
    prefetch_workers: int = 2,
    prefetch_buffer: int = 4,
    shuffle_buffer: int | None = None,
    seed: int | None = None,
) -> Iterator[Any]:
    """Iterate once over a dataset: lists of rows, or rows with `batch_size=1`.

    Args:
        dataset: a Hugging Face dataset, a sharded source, or rows.
        batch_size: rows per list.
        shuffle: whether to shuffle; completely, or by a buffer for streams.
        drop_last: whether to drop the last, short list.
        prefetch: whether threads prefetch.
        prefetch_workers: number of threads.
        prefetch_buffer: items in flight.
        shuffle_buffer: rows of the shuffle buffer; 10,000 by default.
        seed: seed of the shuffle; 0 by default.

    >>> list(create_data_iterator([{"x": 1}, {"x": 2}], 2, shuffle=False))
    [[{'x': 1}, {'x': 2}]]
    """
    rows = dataset_of(dataset, "dataset")
    if shuffle and rows.tree.reason_not_indexed is None:
        rows = rows.shuffle(seed or 0)
    elif shuffle:
        rows = rows.shuffle_buffer(shuffle_buffer or 10_000, seed=seed or 0)
    if batch_size > 1:
        rows = rows.batch(batch_size, drop_last, list)
    return _iterate_once(rows, prefetch_workers if prefetch else 0, prefetch_buffer)


def _iterate_once(rows: Dataset, workers: int, prefetch: int) -> Iterator[Any]:
    with Loader(rows, workers=workers, prefetch=prefetch, rank=0, world_size=1) as loader:
        yield from loader
