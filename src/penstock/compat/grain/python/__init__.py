"""Grain's older names: `import penstock.compat.grain.python as grain`.

>>> import penstock.compat.grain.python as grain
>>> class Double(grain.MapTransform):
...     def map(self, element):
...         return 2 * element
>>> list(grain.MapDataset.range(3).map(Double()))
[0, 2, 4]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import checkpoint, experimental
from ..checkpoint import CheckpointHandler as PyGrainCheckpointHandler
from ..config import config
from ..constants import DATASET_INDEX, EPOCH, INDEX, META_FEATURES, RECORD, RECORD_KEY, SEED
from ..data_loader import DataLoader, IndexSampler, Sampler, SequentialSampler, load
from ..data_loader import DataLoaderIterator as PyGrainDatasetIterator
from ..iter_dataset import IterDataset
from ..iterator import DatasetIterator
from ..map_dataset import MapDataset
from ..multiprocessing import SharedMemoryArray
from ..operations import (
    BatchOperation,
    FilterOperation,
    MapOperation,
    Operation,
    RandomMapOperation,
)
from ..options import MultiprocessingOptions, ReadOptions
from ..record import Record, RecordMetadata
from ..sharding import NoSharding, ShardByJaxProcess, ShardOptions
from ..sources import ArrayRecordDataSource, RandomAccessDataSource, RangeDataSource
from ..sources import SharedMemoryDataSource as InMemoryDataSource
from ..transforms import Batch, DatasetSelectionMap, Transformation, Transformations
from ..transforms import Filter as FilterTransform
from ..transforms import Map as MapTransform
from ..transforms import MapWithIndex as MapWithIndexTransform
from ..transforms import RandomMap as RandomMapTransform

if TYPE_CHECKING:
    PyGrainCheckpointSave: Any
    PyGrainCheckpointRestore: Any

__all__ = [
    "DATASET_INDEX",
    "EPOCH",
    "INDEX",
    "META_FEATURES",
    "RECORD",
    "RECORD_KEY",
    "SEED",
    "ArrayRecordDataSource",
    "Batch",
    "BatchOperation",
    "DataLoader",
    "DatasetIterator",
    "DatasetSelectionMap",
    "FilterOperation",
    "FilterTransform",
    "InMemoryDataSource",
    "IndexSampler",
    "IterDataset",
    "MapDataset",
    "MapOperation",
    "MapTransform",
    "MapWithIndexTransform",
    "MultiprocessingOptions",
    "NoSharding",
    "Operation",
    "PyGrainCheckpointHandler",
    "PyGrainCheckpointRestore",
    "PyGrainCheckpointSave",
    "PyGrainDatasetIterator",
    "RandomAccessDataSource",
    "RandomMapOperation",
    "RandomMapTransform",
    "RangeDataSource",
    "ReadOptions",
    "Record",
    "RecordMetadata",
    "Sampler",
    "SequentialSampler",
    "ShardByJaxProcess",
    "ShardOptions",
    "SharedMemoryArray",
    "Transformation",
    "Transformations",
    "checkpoint",
    "config",
    "experimental",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in ("PyGrainCheckpointSave", "PyGrainCheckpointRestore"):
        return getattr(checkpoint, name.removeprefix("PyGrain"))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
