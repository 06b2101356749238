"""Choose buffer sizes and worker counts from element sizes and a memory budget."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

from ...arrays.trees import iter_leaves
from ...engine.base.machine import count_cores
from ...errors import ConfigError
from .base import Base
from .map_dataset import MapDataset
from .options import MultiprocessingOptions, ReadOptions

_MAX_BUFFER = 1000  # elements
_MIB = 1 << 20


@dataclass(frozen=True)
class PerformanceConfig:
    """Result of `pick_performance_config`; it depends on the machine, the elements do not."""

    read_options: ReadOptions
    multiprocessing_options: MultiprocessingOptions


def pick_performance_config(
    ds: Base,
    *,
    ram_budget_mb: int | None = None,
    max_workers: int | None = None,
    max_buffer_size: int | None = None,
    samples_to_check: int = 5,
) -> PerformanceConfig:
    """Choose read options and workers such that prefetched elements fit into memory.

    Measures a few elements, read one by one. Half of the budget is for elements that threads read
    ahead, half for workers. There is always room for one of each, however large an element is.

    Args:
        ds: the dataset.
        ram_budget_mb: memory budget in MiB; unlimited by default.
        max_workers: maximum number of workers; one per core by default.
        max_buffer_size: maximum number of elements read ahead; 1,000 by default.
        samples_to_check: number of elements to measure.

    Raises:
        ConfigError: for a budget of 0 or less.

    >>> import numpy as np
    >>> images = MapDataset.source([np.zeros(1 << 20)] * 3)
    >>> config = pick_performance_config(images, ram_budget_mb=1024, max_workers=4, max_buffer_size=100)
    >>> config.read_options, config.multiprocessing_options.num_workers
    (ReadOptions(num_threads=16, prefetch_buffer_size=64), 4)
    """
    if ram_budget_mb is not None and ram_budget_mb <= 0:
        raise ConfigError(f"ram_budget_mb={ram_budget_mb}: give a number above 0")
    buffer, workers = max_buffer_size or _MAX_BUFFER, max_workers or count_cores()
    size = _mean_size(ds, samples_to_check)
    if size and ram_budget_mb is not None:
        capacity = max(1, int(ram_budget_mb * _MIB / 2 / size))
        buffer, workers = min(buffer, capacity), min(workers, capacity)
    return PerformanceConfig(
        ReadOptions(prefetch_buffer_size=buffer), MultiprocessingOptions(num_workers=workers)
    )


def _mean_size(ds: Base, samples: int) -> float:
    """Return the mean number of bytes of an element; 0 without elements."""
    if isinstance(ds, MapDataset):
        count = min(samples, len(ds))
        elements = [ds[i * (len(ds) // count)] for i in range(count)]
    else:
        it = iter(ds.core)
        elements = list(islice(it, samples))
        it.close()
    sizes = [_size(element) for element in elements if element is not None]
    return sum(sizes) / len(sizes) if sizes else 0.0


def _size(element: Any) -> int:
    return sum(_leaf_size(leaf) for _, leaf in iter_leaves(element))


def _leaf_size(leaf: Any) -> int:
    if isinstance(leaf, str | bytes):
        return len(leaf)
    return int(getattr(leaf, "nbytes", 8))
