"""Steps that are not methods: window shuffle, interleave, zip, limit, packing, prefetch.

Each is a class whose instance is the dataset with the step applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import ConfigError, make_missing_extra_error
from ...inputs import from_sequence
from . import functions as f
from .autotune import PerformanceConfig, pick_performance_config
from .base import Base
from .elastic import ElasticIterator
from .iter_dataset import IterDataset, PipelineIterDataset, interleave
from .lineage import joined
from .map_dataset import MapDataset, PipelineMapDataset
from .more import (
    RngPool,
    ShapeDtypeStruct,
    ShapeDtypeStructProtocol,
    apply_transformations,
    assert_equal_output_after_checkpoint,
    batch_and_pad,
    get_element_spec,
    get_next_index,
    index_shuffle,
    multithread_prefetch,
    set_next_index,
)
from .operations import PackAndBatchOperation
from .options import (
    DatasetOptions,
    ExecutionTrackingMode,
    MultiprocessingOptions,
    Stage,
    merge_runs,
)
from .order import Windows
from .packing import BestFitPackIterDataset, ConcatThenSplitIterDataset, FirstFitPackIterDataset
from .parquet_dataset import ParquetIterDataset
from .prefetch_iterator import ThreadPrefetchDatasetIterator
from .tfrecord_dataset import TFRecordIterDataset
from .transforms import BOSHandling, FlatMap
from .transforms import FlatMap as FlatMapTransform
from .transforms import MapWithIndex as MapWithIndexTransform

__all__ = [
    "BOSHandling",
    "BestFitPackIterDataset",
    "CacheIterDataset",
    "ConcatThenSplitIterDataset",
    "DatasetOptions",
    "ElasticIterator",
    "ExecutionTrackingMode",
    "FirstFitPackIterDataset",
    "FlatMapIterDataset",
    "FlatMapMapDataset",
    "FlatMapTransform",
    "InterleaveIterDataset",
    "LimitIterDataset",
    "MapWithIndexTransform",
    "PackAndBatchOperation",
    "ParquetIterDataset",
    "PerformanceConfig",
    "RebatchIterDataset",
    "RepeatIterDataset",
    "RngPool",
    "ShapeDtypeStruct",
    "ShapeDtypeStructProtocol",
    "TFRecordIterDataset",
    "ThreadPrefetchDatasetIterator",
    "ThreadPrefetchIterDataset",
    "WindowShuffleIterDataset",
    "WindowShuffleMapDataset",
    "WithOptionsIterDataset",
    "ZipIterDataset",
    "ZipMapDataset",
    "apply_transformations",
    "assert_equal_output_after_checkpoint",
    "batch_and_pad",
    "device_put",
    "get_element_spec",
    "get_next_index",
    "index_shuffle",
    "multithread_prefetch",
    "pick_performance_config",
    "set_next_index",
]


class _Map(PipelineMapDataset):
    """Base of steps whose result is a `MapDataset`."""

    def __init__(self, made: MapDataset, parents: Base | Sequence[Base]) -> None:
        super().__init__(made.core, made.lineage, made.sparse, made.inline, parents)


class _Iter(PipelineIterDataset):
    """Base of steps whose result is an `IterDataset`."""

    def __init__(self, made: IterDataset, parents: Base | Sequence[Base]) -> None:
        super().__init__(made.core, made.lineage, made.run, parents, made.rest_after)


class WindowShuffleMapDataset(_Map):
    """Shuffle every window of `window_size` consecutive elements.

    >>> ds = WindowShuffleMapDataset(MapDataset.range(8), window_size=4, seed=1)
    >>> sorted(ds[i] for i in range(4)), sorted(ds) == list(range(8))
    ([0, 1, 2, 3], True)
    """

    def __init__(self, parent: MapDataset, *, window_size: int, seed: int) -> None:
        window_seed = _window_seed(parent, window_size, seed)
        grain = parent.lineage.grain
        super().__init__(
            parent.reordered(Windows(window_size, window_seed))
            if grain
            else parent.then(parent.core.shuffle(window_seed, window=window_size)),
            parent,
        )


class WindowShuffleIterDataset(_Iter):
    """Shuffle every window of `window_size` consecutive elements; buffers one window.

    >>> ds = WindowShuffleIterDataset(MapDataset.range(8).to_iter_dataset(), window_size=4, seed=1)
    >>> sorted(list(ds)[:4]), sorted(ds) == list(range(8))
    ([0, 1, 2, 3], True)
    """

    def __init__(self, parent: IterDataset, *, window_size: int, seed: int) -> None:
        window_seed = _window_seed(parent, window_size, seed)
        parent.ready_for("WindowShuffleIterDataset")
        if parent.lineage.grain:
            windows = parent.core.batch(window_size, collate=list).map_with_index(
                f.GrainWindow(window_seed)
            )
            super().__init__(parent.then(windows.flat_map(f.same)), parent)
        else:
            shuffled = parent.core.shuffle(window_seed, window=window_size)
            super().__init__(parent.then(shuffled), parent)


def _window_seed(parent: Base, window_size: int, seed: int) -> int:
    if window_size < 1:
        raise ConfigError(f"window_size={window_size}: give at least 1")
    return parent.lineage.seed("window shuffle", seed)


class InterleaveIterDataset(_Iter):
    """Interleave elements of `cycle_length` datasets in turn.

    A dataset that ends leaves the cycle; the next dataset takes its place from the next round on.
    Datasets are opened when their turn comes.

    Args:
        datasets: a list, or a `MapDataset` whose elements are datasets (mapped from file names,
            say).
        cycle_length: number of datasets in the cycle.
        num_make_iter_threads: threads that prefetch.
        make_iter_buffer_size: number of further datasets to prefetch.
        iter_buffer_size: elements to prefetch per dataset.

    Raises:
        ConfigError: for an empty or endless list, or an element that is not a dataset.

    >>> parts = [MapDataset.range(0, 3), MapDataset.range(10, 11), MapDataset.range(20, 22)]
    >>> list(InterleaveIterDataset(parts, cycle_length=2))
    [0, 10, 1, 2, 20, 21]
    """

    def __init__(
        self,
        datasets: Sequence[Base] | MapDataset,
        *,
        cycle_length: int,
        num_make_iter_threads: int = 0,
        make_iter_buffer_size: int = 1,
        iter_buffer_size: int = 1,
    ) -> None:
        if datasets.core.tree.is_endless if isinstance(datasets, MapDataset) else not len(datasets):
            raise ConfigError(
                "interleave: the list of datasets is empty or endless: give at least one, and "
                "repeat the result instead"
            )
        present = [
            dataset
            for dataset in (datasets[i] for i in range(len(datasets)))
            if dataset is not None
        ]
        for dataset in present:
            if not isinstance(dataset, Base):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(
                    f"interleave: got a {type(dataset).__name__} among the datasets: map names to "
                    "datasets first"
                )
        streams: list[IterDataset] = [dataset.stream() for dataset in present]
        made = interleave(streams, cycle_length)
        run = made.run
        if num_make_iter_threads:
            in_flight = (cycle_length + make_iter_buffer_size) * iter_buffer_size
            run = run.workers(
                MultiprocessingOptions(
                    num_make_iter_threads, -(-in_flight // num_make_iter_threads)
                )
            )
        super().__init__(PipelineIterDataset(made.core, made.lineage, run), present)


class ZipMapDataset(_Map):
    """Zip datasets of equal length into tuples.

    >>> list(ZipMapDataset([MapDataset.range(2), MapDataset.range(5, 7)]))
    [(0, 5), (1, 6)]
    """

    def __init__(self, parents: Sequence[MapDataset]) -> None:
        if len(lengths := {len(parent) for parent in parents}) != 1:
            raise ConfigError(
                f"zip: the datasets have different lengths, {sorted(lengths)}: slice them to one "
                "length"
            )
        core = parents[0].core.zip(*(parent.core for parent in parents[1:]))
        lineage = joined([parent.lineage for parent in parents])
        super().__init__(PipelineMapDataset(core, lineage), parents)


class ZipIterDataset(_Iter):
    """Zip datasets into tuples.

    With `strict`, different lengths raise an error at the end of the shortest input; without, the
    shortest input ends the dataset.

    >>> a, b = MapDataset.range(3).to_iter_dataset(), MapDataset.range(5, 7).to_iter_dataset()
    >>> list(ZipIterDataset([a, b], strict=False))
    [(0, 5), (1, 6)]
    """

    def __init__(self, parents: Sequence[IterDataset], *, strict: bool = True) -> None:
        for parent in parents:
            parent.ready_for("zip")
        cores = [parent.core for parent in parents]
        if strict and not any(core.tree.is_endless for core in cores):
            cores = [core.concat(from_sequence([f.END], "end")) for core in cores]
        core = cores[0].zip(*cores[1:])
        core = core.map(f.Strict(), may_skip=True) if strict else core
        super().__init__(
            PipelineIterDataset(
                core,
                joined([parent.lineage for parent in parents]),
                merge_runs(parent.run for parent in parents),
            ),
            parents,
        )


class FlatMapMapDataset(_Map):
    """Expand each element to up to `max_fan_out` elements; the length grows by that factor.

    Unused indices have no element.
    """

    def __init__(self, parent: MapDataset, transform: FlatMap) -> None:
        super().__init__(parent.flat_map(transform), parent)


class FlatMapIterDataset(_Iter):
    """Expand each element to all elements that `transform.flat_map` returns."""

    def __init__(self, parent: IterDataset, transform: FlatMap) -> None:
        super().__init__(parent.flat_map(transform), parent)


class LimitIterDataset(_Iter):
    """Take the first `count` elements.

    >>> list(LimitIterDataset(MapDataset.range(9).to_iter_dataset(), 2))
    [0, 1]
    """

    def __init__(self, parent: IterDataset, count: int) -> None:
        if count < 1:
            raise ConfigError(f"LimitIterDataset(count={count}): give at least 1")
        parent.ready_for("LimitIterDataset")
        super().__init__(parent.then(parent.core.limit(count)), parent)


class RepeatIterDataset(_Iter):
    """Repeat a dataset for `num_epochs` passes, or endlessly without a number.

    Shuffles are new in every pass (in Grain's order they are not).

    >>> list(RepeatIterDataset(MapDataset.range(2).to_iter_dataset(), 2))
    [0, 1, 0, 1]
    """

    def __init__(self, parent: IterDataset, num_epochs: int | None = None) -> None:
        if num_epochs is not None and num_epochs < 1:
            raise ConfigError(f"RepeatIterDataset(num_epochs={num_epochs}): give at least 1")
        parent.ready_for("RepeatIterDataset")
        super().__init__(parent.then(parent.core.repeat(num_epochs)), parent)


class CacheIterDataset(_Iter):
    """Pass on the elements of a dataset, the same in every pass; nothing is cached.

    Every pass computes them again. To store them, use `ds.core.write(...)` and `penstock.read`.

    >>> list(CacheIterDataset(MapDataset.range(3).to_iter_dataset()))
    [0, 1, 2]
    """

    def __init__(self, parent: IterDataset) -> None:
        parent.ready_for("CacheIterDataset")
        super().__init__(parent, parent)


class WithOptionsIterDataset(_Iter):
    """Accept the options of a pipeline; they change no element.

    >>> ds = MapDataset.range(3).to_iter_dataset()
    >>> list(WithOptionsIterDataset(ds, DatasetOptions(filter_warn_threshold_ratio=0.5)))
    [0, 1, 2]
    """

    def __init__(self, parent: IterDataset, options: DatasetOptions) -> None:
        options.require_supported()
        self.options = options
        super().__init__(parent, parent)


class RebatchIterDataset(_Iter):
    """Cut batches of any sizes into batches of `batch_size` rows.

    >>> batches = MapDataset.range(5).batch(3).to_iter_dataset()
    >>> list(RebatchIterDataset(batches, 2))
    [array([0, 1]), array([2, 3]), array([4])]
    """

    def __init__(self, parent: IterDataset, batch_size: int, drop_remainder: bool = False) -> None:
        parent.ready_for("RebatchIterDataset")
        super().__init__(parent.then(parent.core.rebatch(batch_size, drop_remainder)), parent)


class ThreadPrefetchIterDataset(_Iter):
    """Prefetch up to `prefetch_buffer_size` elements in a thread; 0 disables it.

    The thread prefetches the output of the whole pipeline, including later steps.

    >>> list(ThreadPrefetchIterDataset(MapDataset.range(4).to_iter_dataset(), prefetch_buffer_size=2))
    [0, 1, 2, 3]
    """

    def __init__(self, parent: IterDataset, *, prefetch_buffer_size: int) -> None:
        if prefetch_buffer_size < 0:
            raise ConfigError(f"prefetch_buffer_size={prefetch_buffer_size}: give 0 or more")
        run = parent.run.stage(Stage(prefetch_buffer_size)) if prefetch_buffer_size else parent.run
        parent.ready_for("ThreadPrefetchIterDataset")
        super().__init__(replace_run(parent, run), parent)


def device_put(
    ds: IterDataset | MapDataset,
    device: Any,
    *,
    cpu_buffer_size: int = 4,
    device_buffer_size: int = 2,
) -> IterDataset:
    """Prefetch elements to a device, in two threads, while the training step runs.

    One thread prefetches into host memory, another copies to the device. The state is the one after
    the last element that the caller received. Only `.map()` can follow; it runs on the device, in
    the copying thread.

    Args:
        ds: the dataset.
        device: a `jax.Device` or a `jax.sharding.Sharding`.
        cpu_buffer_size: elements in flight in host memory.
        device_buffer_size: elements in flight on the device.

    Raises:
        ImportError: if JAX is not installed.
        ConfigError: for negative sizes.
    """
    try:
        import jax  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError as error:
        raise make_missing_extra_error("jax", "jax", "device_put") from error
    if cpu_buffer_size < 0 or device_buffer_size < 0:
        raise ConfigError(
            f"device_put: cpu_buffer_size={cpu_buffer_size}, "
            f"device_buffer_size={device_buffer_size}: give 0 or more"
        )
    ds = ds.stream()
    ds.ready_for("device_put")
    put = OnDevice(device)
    if not device_buffer_size:
        return ThreadPrefetchIterDataset(ds.map(put), prefetch_buffer_size=cpu_buffer_size)
    prefetched = ThreadPrefetchIterDataset(ds, prefetch_buffer_size=cpu_buffer_size)
    return replace_run(prefetched, prefetched.run.stage(Stage(device_buffer_size, put)))


def replace_run(ds: IterDataset, run: Any) -> IterDataset:
    """Return the dataset with other run options."""
    return PipelineIterDataset(ds.core, ds.lineage.step(), run, ds, ds.rest_after)


class OnDevice:
    """Copy a tree of arrays to a device and wait for the copy."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def __call__(self, element: Any) -> Any:
        import jax

        api: Any = jax
        return (
            None if element is None else api.block_until_ready(api.device_put(element, self.device))
        )
