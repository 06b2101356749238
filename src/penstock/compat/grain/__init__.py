"""Grain's dataset API over Penstock: `import penstock.compat.grain as grain`.

Names, defaults and options are Grain's; order, state and speed are Penstock's. `order="grain"`,
passed to the source of a pipeline, reproduces Grain's own order too.

>>> import penstock.compat.grain as grain
>>> ds = grain.MapDataset.range(10).seed(42).shuffle().map(lambda x: x * x).to_iter_dataset().batch(5)
>>> it = iter(ds)
>>> first, state = next(it), it.get_state()
>>> second = next(it)
>>> it.set_state(state)
>>> bool((next(it) == second).all())
True
"""

from . import (
    checkpoint,
    constants,
    experimental,
    multiprocessing,
    parquet_dataset,
    samplers,
    sharding,
    sources,
    transforms,
)
from .config import config
from .data_loader import DataLoader, DataLoaderIterator, load
from .iter_dataset import IterDataset
from .iterator import DatasetIterator
from .map_dataset import MapDataset
from .options import MultiprocessingOptions, ReadOptions
from .record import Record, RecordMetadata

__all__ = [
    "DataLoader",
    "DataLoaderIterator",
    "DatasetIterator",
    "IterDataset",
    "MapDataset",
    "MultiprocessingOptions",
    "ReadOptions",
    "Record",
    "RecordMetadata",
    "checkpoint",
    "config",
    "constants",
    "experimental",
    "load",
    "multiprocessing",
    "parquet_dataset",
    "samplers",
    "sharding",
    "sources",
    "transforms",
]
