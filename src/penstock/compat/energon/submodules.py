"""Energon's submodules: aliases of the names of this package.

Each row of `ALIASES` becomes a module, so that `from penstock.compat.energon.task_encoder.base
import stateless` works without a file for each.
"""

from __future__ import annotations

from collections.abc import Mapping

_SAMPLES = "Sample Batch SourceInfo"
_WRAPPERS = (
    "BatchDataset BlendDataset ConcatDataset EpochizeDataset FilterDataset GcDataset "
    "GroupBatchDataset IterMapDataset LimitDataset LogSampleDataset MapDataset MixBatchDataset "
    "PackingDataset RepeatDataset ShuffleBufferDataset WatchdogDataset concat_pad generic_concat "
    "homogeneous_concat_mix"
)
_FACTORIES = (
    "BaseWebdatasetFactory DefaultDecoderWebdatasetFactory DefaultGenericWebdatasetFactory "
    "JoinedWebdatasetFactory StandardWebdatasetFactory"
)
_CACHES = (
    "CachePool DecodeFileStore DirectLazy FileCacheLazy FileStore FileStoreCachePool "
    "FileStoreDecoder Lazy MockLazy NoCachePool PrimaryFileStore SystemFileStore "
    "WebdatasetFileStore"
)
_COOKING = "Cooker basic_sample_keys cooker"
_STATES = "SavableDataLoader SavableDataLoaderState"
_FLAVORS = {
    "captioning": "CaptioningSample CaptioningWebdataset",
    "crude": "CrudeSample CrudeWebdataset",
    "image": "ImageSample ImageWebdataset",
    "image_classification": "ImageClassificationSample ImageClassificationWebdataset",
    "interleaved": "InterleavedSample InterleavedWebdataset",
    "multichoice_vqa": "MultiChoiceVQASample MultiChoiceVQAWebdataset",
    "ocr": "OCRSample OCRWebdataset",
    "similarity_interleaved": "SimilarityInterleavedSample SimilarityInterleavedWebdataset",
    "text": "TextSample TextWebdataset",
    "vid_qa": "VidQASample VidQAWebdataset",
    "vqa": "VQASample VQAWebdataset",
    "vqa_and_ocr": "VQAOCRSample VQAOCRWebdataset",
}
_JSONL = "CrudeJsonlDatasetFactory DefaultCrudeJsonlDatasetFactory"
_LOADED = (
    "DatasetBlendMode DatasetLoaderInterface LoadedDataset LoadedDatasetList "
    "TraversedDatasetReference"
)
_CONFIG = (
    "INDEX_SQLITE_FILENAME INDEX_UUID_FILENAME INFO_JSON_FILENAME INFO_YAML_FILENAME "
    "MAIN_FOLDER_NAME SPLIT_YAML_FILENAME"
)

ALIASES: Mapping[str, str] = {
    "av": "AVData AVDecoder get_clips_uniform get_single_frames_uniform",
    "av.av_data": "AVData",
    "av.av_decoder": "AVDecoder",
    "av.utils": "get_clips_uniform get_single_frames_uniform",
    "cache": _CACHES,
    "cache.base": ("CachePool FileStore FileStoreDecoder Lazy MockLazy PrimaryFileStore"),
    "cache.file_cache_pool": "FileCacheLazy FileStoreCachePool",
    "cache.file_store": "DecodeFileStore SystemFileStore WebdatasetFileStore",
    "cache.no_cache": "DirectLazy NoCachePool",
    "dataset_config": "get_dataset_from_config",
    "edataclass": "edataclass",
    "epathlib": "EPath",
    "epathlib.epath": "EPath",
    "errors": ("FatalSampleError SampleException SkipSample log_exception reraise_exception"),
    "flavors": (
        f"{_FACTORIES} {' '.join(_FLAVORS.values())} {_JSONL} BaseCoreDatasetFactory {_SAMPLES} "
        "SavableDataset SampleDecoder"
    ),
    "flavors.base_dataset": (
        f"{_SAMPLES} BaseCoreDatasetFactory PinMemoryMixin SavableDataset add_source_info"
    ),
    **{f"flavors.{name}": names for name, names in _FLAVORS.items()},
    "flavors.jsonl": _JSONL,
    "flavors.jsonl.crude_jsonl_dataset": _JSONL,
    "flavors.webdataset": f"{_FACTORIES} MAIN_FOLDER_NAME SampleDecoder VideoData",
    "flavors.webdataset.base_webdataset": "BaseWebdatasetFactory",
    "flavors.webdataset.config": _CONFIG,
    "flavors.webdataset.default_decoder_webdataset": "DefaultDecoderWebdatasetFactory",
    "flavors.webdataset.default_generic_webdataset": "DefaultGenericWebdatasetFactory",
    "flavors.webdataset.joined_webdataset": "JoinedWebdatasetFactory",
    "flavors.webdataset.prepare": "WebdatasetPreparator",
    "flavors.webdataset.sample_decoder": "SampleDecoder",
    "flavors.webdataset.standard_webdataset": "StandardWebdatasetFactory",
    "media": "AVMetadata ImageMetadata MediaMetadataBase",
    "media.metadata": "AVMetadata ImageMetadata MediaMetadataBase",
    "metadataset": (
        f"DatasetLoader Metadataset MetadatasetV2 {_LOADED} load_dataset prepare_metadataset "
        "traverse_metadataset"
    ),
    "metadataset.dataset_loader": "DatasetLoader",
    "metadataset.loader": "load_dataset prepare_metadataset traverse_metadataset",
    "metadataset.loader_interface": _LOADED,
    "metadataset.metadataset": "Metadataset",
    "metadataset.metadataset_v2": "MetadatasetV2",
    "rng": "SystemRng",
    "savable_loader": f"{_STATES} BasicDataLoader",
    "source_info": "SourceInfo add_source_info",
    "task_encoder": (
        f"AugmentTaskEncoder {_SAMPLES} {_COOKING} DefaultTaskEncoder TaskEncoder batch_list "
        "batch_pad_stack batch_stack generic_batch get_train_dataset get_val_dataset "
        "get_val_datasets stateless"
    ),
    "task_encoder.base": (
        f"AugmentTaskEncoder {_SAMPLES} {_COOKING} {_WRAPPERS} DefaultTaskEncoder SavableDataset "
        "SkipSample TaskEncoder WorkerConfig batch_list batch_pad_stack batch_stack generic_batch "
        "stateless"
    ),
    "task_encoder.cooking": _COOKING,
    "task_encoder.loader": "get_train_dataset get_val_dataset get_val_datasets",
    "worker": "WorkerConfig",
    "wrappers": f"{_WRAPPERS} SkipSample",
    "wrappers.base": "SavableDataset",
    **{
        f"wrappers.{name}_dataset": f"{kind}Dataset"
        for name, kind in {
            "batch": "Batch",
            "blend": "Blend",
            "concat": "Concat",
            "epochize": "Epochize",
            "filter": "Filter",
            "gc": "Gc",
            "group_batch": "GroupBatch",
            "iter_map": "IterMap",
            "limit": "Limit",
            "log_sample": "LogSample",
            "map": "Map",
            "mix_batch": "MixBatch",
            "packing": "Packing",
            "repeat": "Repeat",
            "shuffle_buffer": "ShuffleBuffer",
            "watchdog": "Watchdog",
        }.items()
    },
    "wrappers.skip": "SkipSample",
}
"""Submodule -> the names of this package that it exports."""
