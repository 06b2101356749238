"""EasyData's submodules: aliases of the names of this package."""

from __future__ import annotations

from collections.abc import Mapping

_CONFIG = (
    "CacheStageConfig DatasetConfig LoadStageConfig MixStageConfig ObservabilityConfig "
    "PackStageConfig PipelineConfig RayConfig SaveStageConfig SourceStageConfig "
    "TokenizeStageConfig TokenizerConfig WeightSchedulePoint get_dataset_name "
    "merge_tokenizer_config"
)
_PROTOCOLS = (
    "AsyncDataset AsyncDatasetProtocol BaseStage MappedShardedDataSource PipelineContext "
    "PipelineStage ResumeState ShardInfo ShardedDataSource"
)
_TYPES = (
    "BaseDatasetInform DatasetLoadError DatasetMixture DatasetType TextDatasetInform "
    "VisualDatasetInform"
)
_FILES = (
    "ArrowShardedSource CompositeShardedSource CsvShardedSource HuggingFaceShardedSource "
    "JsonShardedSource ParquetShardInfo ParquetShardedSource TextShardedSource create_source "
    "expand_data_files load_for_inform"
)
_HUB = "HFDatasetShardedSource wrap_hf_dataset"
_BASE = "ChainedTransform ExpandTransform Transform"
_CHAT = (
    "ChatTemplateTransform ConvertInputOutputToChatML ConvertToChatML DEFAULT_ROLE_MAPPING "
    "MaybeApplyChatTemplate"
)
_FIELDS = "AddField CombineFields DropFields ExtractField RenameFields SelectFields"
_FILTERS = "FilterByField FilterNonEmpty FilterTransform"
_MAPS = "MapField MapTransform"
_MIXING = "MixStage MixedShardState MixedShardedSource WeightScheduler block_mixture_interleave"
_PACKING = (
    "FirstFitPacker GreedyPacker PackStage PackedSequence PackedShardedSource PoolPacker "
    "pack_constant_length pack_pre_tokenized"
)
_TOKENIZING = (
    "TokenizeStage TokenizedShardedSource TokenizerManager batched_tokenize_iterator "
    "compute_tokenizer_hash tokenize_dataset_config"
)
_TRAINERS = (
    "BCOPreprocessTransform CPOPreprocessTransform DPOPreprocessTransform "
    "GRPOPreprocessTransform KTOPreprocessTransform ORPOPreprocessTransform "
    "RewardPreprocessTransform SFTPreprocessTransform"
)
_TRANSFORMED = "LimitedShardedSource TransformedShardedSource"
_CACHES = "CacheLayer CacheMetadata DatasetCache DiskCache MemoryCache TreeCacheManager"
_LOADING = (
    "AsyncDataLoader LoadStage PrefetchIterator ShardingSpec batch_iterator collate_batch "
    "create_data_iterator preshard_batch"
)
_PIPELINE = "Pipeline build_dataset create_pipeline pretokenize tokenize_and_save"
_SAVING = (
    "ArrowWriter DatasetWriter JsonlWriter ParquetWriter SaveStage WriteStats create_writer "
    "parse_size save_dataset save_iterator"
)
_RAY = (
    "RayPreprocessor RayTokenizeWorker TokenizeBatch TokenizedBatch parallel_process_shards "
    "tokenize_with_ray"
)
_UTILS = (
    "align_columns_intersection get_cached_filesystem glob_files infer_builder_from_ext "
    "is_streaming warn_deprecated with_retry wrap_format_callback"
)

ALIASES: Mapping[str, str] = {
    "core": f"{_CONFIG} {_PROTOCOLS} {_TYPES}",
    "core.config": _CONFIG,
    "core.protocols": _PROTOCOLS,
    "core.types": _TYPES,
    "distributed": _RAY,
    "distributed.ray_utils": _RAY,
    "execution": f"{_CACHES} {_LOADING} {_PIPELINE} {_SAVING}",
    "execution.cache": _CACHES,
    "execution.loader": _LOADING,
    "execution.pipeline": _PIPELINE,
    "execution.save": _SAVING,
    "sources": f"{_FILES} {_HUB}",
    "sources.base": _FILES,
    "sources.hf_wrapper": _HUB,
    "transforms": (
        f"{_BASE} {_CHAT} {_FIELDS} {_FILTERS} {_MAPS} {_MIXING} {_PACKING} {_TOKENIZING} "
        f"{_TRAINERS} {_TRANSFORMED}"
    ),
    "transforms.base": _BASE,
    "transforms.chat_template": f"{_CHAT} convert_to_chatml is_conversational",
    "transforms.field_ops": _FIELDS,
    "transforms.filter_ops": _FILTERS,
    "transforms.map_ops": _MAPS,
    "transforms.mixture": _MIXING,
    "transforms.pack": _PACKING,
    "transforms.source": _TRANSFORMED,
    "transforms.tokenize": _TOKENIZING,
    "utils": _UTILS,
}
"""Submodule -> the names of this package that it exports."""
