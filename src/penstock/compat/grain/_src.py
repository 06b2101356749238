"""Paths of Grain's private modules that public projects import, such as `_src.python.options`.

`import penstock.compat.grain._src.python.options` finds the module with the same names here.
"""

from __future__ import annotations

import sys
from types import ModuleType

from . import (
    checkpoint,
    constants,
    data_loader,
    experimental,
    multiprocessing,
    operations,
    options,
    packing,
    parquet_dataset,
    record,
    samplers,
    sharding,
    sources,
    transforms,
)
from .base import Base
from .config import config
from .data_loader import count_workers
from .iter_dataset import IterDataset, PipelineIterDataset
from .iterator import DatasetIterator
from .map_dataset import MapDataset, SourceMapDataset
from .tfrecord_dataset import RecordIterator, RecordReader, TFRecordIterDataset


def _make(**names: object) -> ModuleType:
    module = ModuleType("names")
    vars(module).update(names)
    return module


MODULES: dict[str, ModuleType] = {
    "core.config": _make(config=config),
    "core.constants": constants,
    "core.sharding": sharding,
    "core.transforms": transforms,
    "python.checkpoint.handler": checkpoint,
    "python.data_loader": _make(
        DataLoader=data_loader.DataLoader,
        DataLoaderIterator=data_loader.DataLoaderIterator,
        _determine_worker_count=count_workers,
    ),
    "python.data_sources": sources,
    "python.dataset.base": _make(
        DatasetOptions=options.DatasetOptions,
        DatasetSelectionMap=transforms.DatasetSelectionMap,
        ExecutionTrackingMode=options.ExecutionTrackingMode,
        RandomAccessDataSource=sources.RandomAccessDataSource,
        ShapeDtypeStruct=experimental.ShapeDtypeStruct,
    ),
    "python.dataset.dataset": _make(
        DatasetIterator=DatasetIterator,
        IterDataset=IterDataset,
        MapDataset=MapDataset,
        WithOptionsIterDataset=experimental.WithOptionsIterDataset,
        _Dataset=Base,
        apply_transformations=experimental.apply_transformations,
        get_element_spec=experimental.get_element_spec,
        get_next_index=experimental.get_next_index,
        set_next_index=experimental.set_next_index,
    ),
    "python.dataset.sources.parquet_dataset": parquet_dataset,
    "python.dataset.sources.tfrecord_dataset": _make(
        TFRecordIterDataset=TFRecordIterDataset,
        _TFRecordDatasetIterator=RecordIterator,
        _TFRecordReader=RecordReader,
    ),
    "python.dataset.transformations.packing": packing,
    "python.dataset.transformations.prefetch": _make(
        MultiprocessPrefetchIterDataset=experimental.ThreadPrefetchIterDataset,
        PrefetchIterDataset=PipelineIterDataset,
        ThreadPrefetchDatasetIterator=experimental.ThreadPrefetchDatasetIterator,
        ThreadPrefetchIterDataset=experimental.ThreadPrefetchIterDataset,
        multithread_prefetch=experimental.multithread_prefetch,
    ),
    "python.dataset.transformations.source": _make(SourceMapDataset=SourceMapDataset),
    "python.ipc.shared_memory_array": multiprocessing,
    "python.load": data_loader,
    "python.operations": operations,
    "python.options": options,
    "python.record": record,
    "python.samplers": samplers,
}
"""The private modules of Grain, by path, with the modules that have their names here."""


def _register() -> None:
    for path, module in MODULES.items():
        parent: ModuleType = sys.modules[__name__]
        *folders, name = path.split(".")
        for folder in folders:
            full_name = f"{parent.__name__}.{folder}"
            inner = sys.modules.setdefault(full_name, ModuleType(full_name))
            setattr(parent, folder, inner)
            parent = inner
        setattr(parent, name, module)
        sys.modules[f"{parent.__name__}.{name}"] = module


_register()
