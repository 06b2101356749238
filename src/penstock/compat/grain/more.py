"""Functions of `experimental`: padded batches, threads, positions, checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ...arrays.trees import map_leaves
from ...errors import ConfigError
from . import functions as f
from .base import Base
from .cipher import shuffled
from .iter_dataset import IterDataset
from .iterator import DatasetIterator, RunIterator
from .options import MultiprocessingOptions
from .order import generator_at
from .transforms import Transformation


@runtime_checkable
class ShapeDtypeStructProtocol(Protocol):
    """Anything with a shape and a dtype."""

    @property
    def shape(self) -> tuple[int | None, ...]: ...
    @property
    def dtype(self) -> Any: ...


class RngPool:
    """Generators of Grain for the indices of elements.

    >>> pool = RngPool(seed=3)
    >>> rng = pool.acquire_rng(index=5)
    >>> value = rng.integers(100)
    >>> pool.release_rng(rng)
    >>> bool(value == pool.acquire_rng(index=5).integers(100))
    True
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def acquire_rng(self, index: int, *, op_seed: int = 0) -> np.random.Generator:
        """Return the generator of an index.

        Args:
            index: the index.
            op_seed: distinguishes generators of one index.
        """
        return generator_at(self._seed, index, op_seed)

    def release_rng(self, rng: np.random.Generator) -> None:
        """Do nothing: generators are made, not reused.

        Args:
            rng: a generator.
        """


@dataclass(frozen=True)
class ShapeDtypeStruct:
    """Shape and dtype of an array.

    >>> ShapeDtypeStruct((2, 3), np.dtype("int32"))
    ShapeDtypeStruct(shape=(2, 3), dtype=dtype('int32'))
    """

    shape: tuple[int | None, ...]
    dtype: Any


def get_element_spec(ds: Base) -> Any:
    """Return shapes and dtypes of the first element, which is computed for this.

    Args:
        ds: the dataset.

    Raises:
        ConfigError: for an empty dataset.

    >>> from penstock.compat.grain import MapDataset
    >>> get_element_spec(MapDataset.range(6).map(lambda i: {"x": i}).batch(2))
    {'x': ShapeDtypeStruct(shape=(2,), dtype=dtype('int64'))}
    """
    it = iter(ds.stream())
    try:
        first = next(it)
    except StopIteration:
        raise ConfigError(
            "get_element_spec: the dataset is empty: give one with at least one element"
        ) from None
    finally:
        it.close()
    return map_leaves(_spec, first)


def _spec(leaf: Any) -> ShapeDtypeStruct:
    array = leaf if hasattr(leaf, "dtype") and hasattr(leaf, "shape") else np.asarray(leaf)
    return ShapeDtypeStruct(tuple(array.shape), array.dtype)


def apply_transformations(
    ds: Any, transformations: Transformation | Sequence[Transformation]
) -> Any:
    """Return `ds.apply(transformations)`."""
    return ds.apply(transformations)


def batch_and_pad(values: Sequence[Any], *, batch_size: int, pad_value: Any = 0) -> Any:
    """Batch up to `batch_size` rows, and pad the missing ones.

    Use it as `batch(..., batch_fn=partial(batch_and_pad, ...))`.

    Args:
        values: 1 to `batch_size` elements.
        batch_size: rows of the result.
        pad_value: value of the missing rows.

    Raises:
        ConfigError: for no or too many elements.

    >>> batch_and_pad([1, 2], batch_size=3)
    array([1, 2, 0])
    """
    if not 0 < len(values) <= batch_size:
        raise ConfigError(
            f"batch_and_pad: got {len(values)} elements for a batch of {batch_size}: give 1 to "
            f"{batch_size}"
        )
    missing = batch_size - len(values)

    def pad(column: Any) -> Any:
        rows = np.asarray(column)
        return np.concatenate([rows, np.full((missing, *rows.shape[1:]), pad_value, rows.dtype)])

    batch = f.stack(values)
    return map_leaves(pad, batch) if missing else batch


def multithread_prefetch(
    ds: IterDataset, num_threads: int, buffer_size: int, sequential_slice: bool = False
) -> IterDataset:
    """Prefetch with threads, `buffer_size` elements each; 0 threads is a no-op.

    Args:
        ds: the dataset.
        num_threads: number of threads.
        buffer_size: elements in flight per thread.
        sequential_slice: ignored; elements are not divided among threads.

    >>> from penstock.compat.grain import MapDataset
    >>> list(multithread_prefetch(MapDataset.range(3).to_iter_dataset(), 2, buffer_size=4))
    [0, 1, 2]
    """
    if num_threads == 0:
        return ds
    return ds.mp_prefetch(MultiprocessingOptions(num_threads, buffer_size))


def set_next_index(ds_iter: DatasetIterator, index: int) -> None:
    """Seek to element `index` of the pass.

    Random access takes constant time; other pipelines read up to the element.

    >>> from penstock.compat.grain import MapDataset
    >>> it = iter(MapDataset.range(9).to_iter_dataset())
    >>> set_next_index(it, 5)
    >>> next(it)
    5
    """
    _run_of(ds_iter, "set_next_index").seek(index)


def get_next_index(ds_iter: DatasetIterator) -> int:
    """Return the number of elements of the pass before the next one.

    >>> from penstock.compat.grain import MapDataset
    >>> it = iter(MapDataset.range(9).to_iter_dataset())
    >>> next(it), next(it), get_next_index(it)
    (0, 1, 2)
    """
    return _run_of(ds_iter, "get_next_index").next_index()


def _run_of(ds_iter: DatasetIterator, call: str) -> RunIterator:
    if not isinstance(ds_iter, RunIterator):
        raise ConfigError(
            f"{call}: a {type(ds_iter).__name__} has no index: use an iterator of a dataset without "
            "classes of your own at its end"
        )
    return ds_iter


def index_shuffle(index: int, max_index: int, seed: int, rounds: int) -> int:
    """Return the output of Grain's shuffle of `range(max_index + 1)` for an index.

    Args:
        index: the index.
        max_index: the largest index.
        seed: 32-bit seed.
        rounds: must be 4.

    Raises:
        ConfigError: for other rounds, or an index out of range.

    >>> sorted(index_shuffle(i, 9, seed=3, rounds=4) for i in range(10)) == list(range(10))
    True
    """
    if rounds != 4:
        raise ConfigError(
            f"index_shuffle(rounds={rounds}): only rounds=4 is supported, as in all shuffles of "
            "Grain"
        )
    if not 0 <= index <= max_index:
        raise ConfigError(
            f"index_shuffle(index={index}): give an index from 0 to max_index={max_index}"
        )
    return int(shuffled(np.asarray([index]), max_index + 1, seed)[0])


def assert_equal_output_after_checkpoint(ds: IterDataset) -> None:
    """Assert that a run restored at any element yields the rest of the original run.

    >>> from penstock.compat.grain import MapDataset
    >>> assert_equal_output_after_checkpoint(MapDataset.range(9).seed(1).shuffle().to_iter_dataset())
    """
    from ...testing import assert_resumes

    if next(iter(ds), f.END) is f.END:
        raise AssertionError(f"{ds} has no elements")
    assert_resumes(lambda: ds)
