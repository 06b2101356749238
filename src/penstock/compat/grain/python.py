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

from . import checkpoint, experimental
from .data_loader import DataLoader, IndexSampler, SequentialSampler, load
from .iter_dataset import IterDataset
from .iterator import DatasetIterator
from .map_dataset import MapDataset
from .options import MultiprocessingOptions, ReadOptions
from .sharding import NoSharding, ShardByJaxProcess, ShardOptions
from .sources import RandomAccessDataSource, RangeDataSource
from .transforms import Batch, DatasetSelectionMap, Transformation, Transformations
from .transforms import Batch as BatchOperation
from .transforms import Filter as FilterTransform
from .transforms import Map as MapTransform
from .transforms import MapWithIndex as MapWithIndexTransform
from .transforms import RandomMap as RandomMapTransform

if TYPE_CHECKING:
    PyGrainCheckpointSave: Any
    PyGrainCheckpointRestore: Any

__all__ = [
    "Batch",
    "BatchOperation",
    "DataLoader",
    "DatasetIterator",
    "DatasetSelectionMap",
    "FilterTransform",
    "IndexSampler",
    "IterDataset",
    "MapDataset",
    "MapTransform",
    "MapWithIndexTransform",
    "MultiprocessingOptions",
    "NoSharding",
    "PyGrainCheckpointRestore",
    "PyGrainCheckpointSave",
    "RandomAccessDataSource",
    "RandomMapTransform",
    "RangeDataSource",
    "ReadOptions",
    "SequentialSampler",
    "ShardByJaxProcess",
    "ShardOptions",
    "Transformation",
    "Transformations",
    "experimental",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in ("PyGrainCheckpointSave", "PyGrainCheckpointRestore"):
        return getattr(checkpoint, name.removeprefix("PyGrain"))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
