"""Buffer and worker numbers from the size of elements and the memory there is for them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any

from ...engine.base.machine import cores
from ...engine.base.tree import leaves
from ...errors import ConfigError
from .base import Base
from .map_dataset import MapDataset
from .options import MultiprocessingOptions, ReadOptions

_MOST = 1000  # elements in a buffer
_MIB = 1 << 20


@dataclass(frozen=True)
class PerformanceConfig:
    """What `pick_performance_config` found. The numbers depend on the machine; elements and their
    order do not."""

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
    """Read options and workers such that what is made ahead fits into `ram_budget_mb`.

    Looks at the size of a few elements, read one by one. Half of the budget is for elements that
    are read ahead (at most `max_buffer_size`, 1,000 without it), half for workers (at most
    `max_workers`, one for each core without it). There is always room for one of each, however
    large an element is.

    >>> import numpy as np
    >>> images = MapDataset.source([np.zeros(1 << 20)] * 3)
    >>> pick_performance_config(images, ram_budget_mb=1024, max_workers=4, max_buffer_size=100)
    PerformanceConfig(read_options=ReadOptions(num_threads=16, prefetch_buffer_size=64), \
multiprocessing_options=MultiprocessingOptions(num_workers=4, per_worker_buffer_size=1))
    """
    if ram_budget_mb is not None and ram_budget_mb <= 0:
        raise ConfigError(f"ram_budget_mb={ram_budget_mb}: more than 0")
    buffer, workers = max_buffer_size or _MOST, max_workers or cores()
    size = _mean_size(ds, samples_to_check)
    if size and ram_budget_mb is not None:
        fits = max(1, int(ram_budget_mb * _MIB / 2 / size))
        buffer, workers = min(buffer, fits), min(workers, fits)
    return PerformanceConfig(
        ReadOptions(prefetch_buffer_size=buffer), MultiprocessingOptions(num_workers=workers)
    )


def _mean_size(ds: Base, samples: int) -> float:
    """Bytes of an element; 0 where there is none."""
    if isinstance(ds, MapDataset):
        many = min(samples, len(ds))
        found = [ds[i * (len(ds) // many)] for i in range(many)]
    else:
        it = iter(ds.core)
        found = list(islice(it, samples))
        it.close()
    sizes = [_size(element) for element in found if element is not None]
    return sum(sizes) / len(sizes) if sizes else 0.0


def _size(element: Any) -> int:
    return sum(_leaf_size(leaf) for _, leaf in leaves(element))


def _leaf_size(leaf: Any) -> int:
    if isinstance(leaf, str | bytes):
        return len(leaf)
    return int(getattr(leaf, "nbytes", 8))
