"""The documented API of EasyDeL's data package (`easydel.data`), on Penstock.

Names, defaults and old formats are EasyData's; order, stop rules, packing and states are
Penstock's. A field without effect here raises an error if it is set. `step` counts samples of the
mixture, as in the original.

>>> from penstock.compat.easydata import block_mixture_interleave
>>> mixed = block_mixture_interleave({"a": [{"x": 0}], "b": [{"x": 1}]}, stop="all_exhausted")
>>> sorted(row["x"] for row in mixed)
[0, 1]
"""

from __future__ import annotations

from .config import (
    DatasetConfig,
    LoadStageConfig,
    MixStageConfig,
    PackStageConfig,
    PipelineConfig,
    SaveStageConfig,
    TokenizerConfig,
    TokenizeStageConfig,
)
from .legacy import DatasetMixture, TextDatasetInform, build_dataset
from .mixture import block_mixture_interleave
from .pipeline import Pipeline
from .sources import (
    ArrowShardedSource,
    CompositeShardedSource,
    CsvShardedSource,
    HFDatasetShardedSource,
    JsonShardedSource,
    MixedShardedSource,
    ParquetShardedSource,
    ShardedSource,
    TextShardedSource,
)
from .weights import WeightSchedulePoint, WeightScheduler

__all__ = [
    "ArrowShardedSource",
    "CompositeShardedSource",
    "CsvShardedSource",
    "DatasetConfig",
    "DatasetMixture",
    "HFDatasetShardedSource",
    "JsonShardedSource",
    "LoadStageConfig",
    "MixStageConfig",
    "MixedShardedSource",
    "PackStageConfig",
    "ParquetShardedSource",
    "Pipeline",
    "PipelineConfig",
    "SaveStageConfig",
    "ShardedSource",
    "TextDatasetInform",
    "TextShardedSource",
    "TokenizeStageConfig",
    "TokenizerConfig",
    "WeightSchedulePoint",
    "WeightScheduler",
    "block_mixture_interleave",
    "build_dataset",
]
