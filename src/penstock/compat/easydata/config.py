"""Settings of a pipeline; `refused` lists the fields without effect, which raise an error if set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast

from ...arguments import check_choice
from ...engine.mixing import STOPS, Stop
from ...engine.packing import Method
from ...errors import ConfigError
from ...schedule import Interpolation, Schedule
from .refused import refuse
from .weights import WeightSchedulePoint, WeightScheduler, check_sum

PADDINGS = (False, True, None, "max_length", "longest", "do_not_pad")


@dataclass(frozen=True)
class TokenizerConfig:
    """Settings to load and call a tokenizer; `trust_remote_code` loads one with its own code.

    Args:
        name_or_path: a hub name, a local folder, or a `tokenizer.json`.
        max_length: maximum number of tokens of a text.
        truncation: whether to truncate longer texts.
        add_special_tokens: whether to add BOS and EOS tokens.
        return_attention_mask: whether rows get an `attention_mask`.
        trust_remote_code: whether the tokenizer may run its own code.
        padding: "max_length" pads rows to `max_length`; True and "longest" leave it to batching,
            which pads to the longest row of each batch.

    Raises:
        ConfigError: for another padding.

    >>> TokenizerConfig("my-tokenizer/", max_length=512).truncation
    True
    """

    name_or_path: str
    max_length: int | None = None
    truncation: bool = True
    padding: bool | str | None = False
    add_special_tokens: bool = True
    return_attention_mask: bool = True
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if self.padding not in PADDINGS:
            raise ConfigError(
                f"TokenizerConfig(padding={self.padding!r}): use one of {', '.join(map(repr, PADDINGS))}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the arguments of a call of the tokenizer."""
        names = "max_length truncation padding add_special_tokens return_attention_mask"
        return {name: getattr(self, name) for name in names.split()}


@dataclass(frozen=True)
class DatasetConfig:
    """One dataset: its files, its text field, and its tokenizer.

    `format_callback(row)` returns another row, then `format_fields` renames. After tokenizing, rows
    have the tokens and `additional_fields`.

    Args:
        data_files: files or globs, or the name of a dataset on the Hugging Face hub.
        name: name of the dataset; `dataset_0` and so on by default.
        type: format of the files, or "huggingface"; by default the extension decides, and a name
            that is not a file is a hub name.
        split: split on the hub.
        num_rows: maximum number of rows.
        dataset_split_name: configuration on the hub.
        tokenizer: tokenizer of this dataset.
        tokenizer_kwargs: options to load the tokenizer.
        cache_path: folder of indexes.
        save_path: folder for `save`.
        save_format: format for `save`.
        content_field: the text field.
        additional_fields: other fields to keep.
        format_callback: returns another row.
        format_fields: old field name -> new one.
        num_shards: number of files of `save`.
        cache_enabled: only True: indexes are always stored.
        shard_column: not supported.

    Raises:
        ConfigError: without `data_files`, and for a field that is not supported.

    >>> DatasetConfig(name="code", data_files="code/*.parquet").content_field
    'text'
    """

    data_files: str | Path | Sequence[str | Path]
    name: str | None = None
    type: str | None = None
    split: str = "train"
    num_rows: int | None = None
    dataset_split_name: str | None = None
    tokenizer: Any = None
    tokenizer_kwargs: Mapping[str, Any] | None = None
    cache_path: str | None = None
    cache_enabled: bool | None = True
    save_path: str | None = None
    save_format: str | None = None
    content_field: str = "text"
    additional_fields: Sequence[str] | None = None
    format_callback: Callable[[Any], Any] | None = None
    format_fields: Mapping[str, str] | None = None
    shard_column: str | None = None
    num_shards: int | None = None

    def __post_init__(self) -> None:
        refuse(self)
        if not self.data_files:
            raise ConfigError(
                "DatasetConfig: data_files is empty: give files, a glob or a hub name"
            )

    def get_tokenizer_config(self) -> TokenizerConfig | Any | None:
        """Return the tokenizer as a `TokenizerConfig`; a tokenizer object is returned unchanged."""
        if isinstance(self.tokenizer, str):
            return TokenizerConfig(self.tokenizer)
        return self.tokenizer


@dataclass(frozen=True)
class SourceStageConfig:
    """Settings of opening the datasets.

    Args:
        streaming: whether hub datasets are streamed.
        cloud_max_retries: not supported.
        cloud_retry_delay: not supported.
        dask_storage_options: not supported.

    >>> SourceStageConfig(streaming=True, cloud_max_retries=3).streaming
    True
    """

    streaming: bool = True
    cloud_max_retries: int | None = 3
    cloud_retry_delay: float | None = 1.0
    dask_storage_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        refuse(self)


@dataclass(frozen=True)
class TokenizeStageConfig:
    """Settings of tokenizing: default tokenizer and maximum length.

    `default_tokenizer` is for datasets without one; texts are truncated at `max_length` (None:
    never).

    Args:
        default_tokenizer: tokenizer of datasets without one.
        max_length: maximum number of tokens of a text; None never truncates.
        remove_columns: fields to drop from the rows of tokens.
        batch_size: not supported.
        num_workers: not supported.
        cache_tokenized: not supported.

    >>> TokenizeStageConfig().max_length
    2048
    """

    default_tokenizer: Any = None
    max_length: int | None = 2048
    batch_size: int | None = 1000
    num_workers: int | None = 4
    cache_tokenized: bool | None = True
    remove_columns: Sequence[str] | None = None

    def __post_init__(self) -> None:
        refuse(self)


CACHE_TYPES = ("memory", "disk", "hierarchical")
CACHE_COMPRESSIONS = ("none", "gzip", "zstd")


@dataclass(frozen=True)
class CacheStageConfig:
    """Settings of `PipelineContext.cache_manager`; no stage of the pipeline caches by itself.

    Args:
        enabled: whether there is a cache.
        cache_type: "memory", "disk", or "hierarchical" for both.
        cache_dir: folder of the disk cache.
        memory_cache_size: number of values in memory.
        disk_cache_expiry: seconds until a value on disk expires; None for never.
        compression: "none", "gzip" or "zstd", for the disk.
        hash_fn: not supported.

    Raises:
        ConfigError: for an unknown type or compression.

    >>> CacheStageConfig().cache_type
    'hierarchical'
    """

    enabled: bool = True
    cache_type: str = "hierarchical"
    cache_dir: str = ".cache/easydel_pipeline"
    memory_cache_size: int = 100
    disk_cache_expiry: int | None = 86400
    compression: str = "none"
    hash_fn: str = "combined"

    def __post_init__(self) -> None:
        refuse(self)
        check_choice(self.cache_type, CACHE_TYPES, "CacheStageConfig(cache_type={})")
        check_choice(self.compression, CACHE_COMPRESSIONS, "CacheStageConfig(compression={})")


@dataclass(frozen=True)
class MixStageConfig:
    """Settings of mixing: weights that sum to 1, or a schedule, which takes precedence.

    Args:
        weights: weight by dataset, with sum 1.
        weight_schedule: points of a schedule.
        weight_schedule_type: "step", "linear" or "cosine".
        block_size: rows per block.
        stop_strategy: as `stop` of `block_mixture_interleave`.
        seed: seed of the order within blocks.

    Raises:
        ConfigError: for weights or rules that are not valid.

    >>> MixStageConfig(weights={"code": 0.3, "text": 0.7}).block_size
    1000
    """

    weights: Mapping[str, float] | None = None
    weight_schedule: Sequence[WeightSchedulePoint] | None = None
    weight_schedule_type: Interpolation = "step"
    block_size: int = 1000
    stop_strategy: Stop = "restart"
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.weights is not None:
            check_sum(self.weights, "MixStageConfig")
        if self.stop_strategy not in STOPS:
            raise ConfigError(
                f"MixStageConfig: unknown stop_strategy {self.stop_strategy!r}: use one of "
                f"{', '.join(STOPS)}"
            )
        assert self.schedule is None or self.schedule.points

    @property
    def schedule(self) -> Schedule | None:
        """The schedule as a `penstock.Schedule`."""
        if self.weight_schedule is None:
            return None
        return WeightScheduler(self.weight_schedule, self.weight_schedule_type).schedule


DEFAULT_PACKERS = 4

STRATEGIES: dict[str, Method] = {
    "greedy": "concat_split",
    "pool": "best_fit",
    "first_fit": "first_fit",
}


@dataclass(frozen=True)
class PackStageConfig:
    """Settings of packing into rows of `seq_length` tokens.

    "greedy" splits documents; "pool" and "first_fit" keep them whole. `num_packers` is the number
    of open rows for "pool" (default 4). `shuffle_packed` draws rows from a shuffle buffer of `100 *
    shuffle_buffer_factor` rows.

    Args:
        enabled: whether to pack.
        seq_length: tokens per row.
        eos_token_id: token after each document.
        pad_token_id: token of the padding.
        strategy: "greedy", "pool" or "first_fit".
        num_packers: open rows of "pool"; other strategies take only the default.
        include_segment_ids: whether rows get segment and position ids.
        shuffle_packed: whether to shuffle packed rows.
        shuffle_buffer_factor: size of the shuffle buffer, in hundreds of rows.

    Raises:
        ConfigError: for an unknown strategy, or `num_packers` with another one than "pool".

    >>> PackStageConfig(seq_length=512, strategy="pool").enabled
    True
    """

    enabled: bool = True
    seq_length: int = 2048
    eos_token_id: int | None = 2
    pad_token_id: int = 0
    strategy: str = "greedy"
    num_packers: int | None = DEFAULT_PACKERS
    include_segment_ids: bool = True
    shuffle_packed: bool = True
    shuffle_buffer_factor: int = 10

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ConfigError(
                f"PackStageConfig: unknown strategy {self.strategy!r}: use one of "
                f"{', '.join(STRATEGIES)}"
            )
        if self.num_packers not in (None, DEFAULT_PACKERS) and self.strategy != "pool":
            raise ConfigError(
                f"PackStageConfig: num_packers needs strategy='pool', not {self.strategy!r}: leave "
                "it out"
            )


@dataclass(frozen=True)
class LoadStageConfig:
    """Settings of loading: batches of `batch_size` rows, prefetched by threads.

    `lanes` is as in `penstock.Loader`, for packed rows on several ranks.

    Args:
        batch_size: rows per batch.
        prefetch_enabled: whether threads prefetch.
        prefetch_workers: number of threads.
        prefetch_buffer_size: batches in flight.
        shuffle_buffer_size: rows of a shuffle buffer before batching.
        drop_last: whether to drop the last, short batch.
        lanes: as in `penstock.Loader`.
        prefetch_to_device: not supported.

    >>> LoadStageConfig().batch_size
    8
    """

    batch_size: int = 8
    prefetch_enabled: bool = True
    prefetch_workers: int = 2
    prefetch_buffer_size: int = 4
    shuffle_buffer_size: int | None = None
    drop_last: bool = True
    prefetch_to_device: bool | None = False
    lanes: int = 1

    def __post_init__(self) -> None:
        refuse(self)


@dataclass(frozen=True)
class SaveStageConfig:
    """Settings of saving to files `shard-00000.parquet`, ... in `output_dir`.

    `format` is "parquet", "arrow" or "jsonl". No file exceeds `max_shard_size`; `num_shards` sets
    the number of files instead. Files of an earlier save raise an error, or are replaced with
    `overwrite`.

    Args:
        enabled: whether to save.
        output_dir: the folder.
        format: format of the files.
        num_shards: number of files.
        compression: codec of the format.
        max_shard_size: maximum size of a file.
        overwrite: whether to replace files of an earlier save.
        push_to_hub: whether to upload the files to a dataset on the Hugging Face hub.
        hub_repo_id: name of that dataset.
        hub_private: whether it is private if it is new.
        hub_token: token for the hub; by default the token of its own tools.

    Raises:
        ConfigError: for `push_to_hub` without `hub_repo_id`.

    >>> SaveStageConfig(output_dir="out", format="jsonl").max_shard_size
    '500MB'
    """

    enabled: bool = True
    output_dir: str = "./output"
    format: str = "parquet"
    num_shards: int | None = None
    compression: str | None = None
    max_shard_size: str | int = "500MB"
    overwrite: bool = False
    push_to_hub: bool = False
    hub_repo_id: str | None = None
    hub_private: bool = False
    hub_token: str | None = None

    def __post_init__(self) -> None:
        if self.push_to_hub and not self.hub_repo_id:
            raise ConfigError("SaveStageConfig(push_to_hub=True): give hub_repo_id")


@dataclass(frozen=True)
class RayConfig:
    """Settings of a Ray cluster whose actors prepare the batches of the pipeline.

    Args:
        enabled: whether to use Ray.
        num_workers: number of actors.
        resources_per_worker: not supported.
        use_gpu: not supported.
        object_store_memory: not supported.

    >>> RayConfig(enabled=True).num_workers
    4
    """

    enabled: bool = False
    num_workers: int = 4
    resources_per_worker: Mapping[str, float] | None = None
    use_gpu: bool = False
    object_store_memory: int | None = None

    def __post_init__(self) -> None:
        refuse(self)


@dataclass(frozen=True)
class ObservabilityConfig:
    """Accept EasyData's defaults; other values raise an error that says what to use instead.

    Args:
        progress_enabled: not supported.
        progress_type: not supported.
        metrics_enabled: not supported.
        log_level: not supported.
        log_interval: not supported.
    """

    progress_enabled: bool = True
    progress_type: str = "tqdm"
    metrics_enabled: bool = True
    log_level: str = "INFO"
    log_interval: int = 100

    def __post_init__(self) -> None:
        refuse(self)


@dataclass(frozen=True)
class PipelineConfig:
    """Settings of all stages.

    `seed` is the default seed of every stage; `streaming` applies to datasets on the hub.

    Args:
        datasets: the datasets.
        default_tokenizer: tokenizer of datasets without one.
        streaming: whether hub datasets are streamed.
        seed: default seed of every stage.
        tokenize: settings of tokenizing.
        mix: settings of mixing.
        pack: settings of packing.
        load: settings of loading.
        save: settings of saving.
        source: settings of opening.
        cache: settings of the cache of the context.
        ray: settings of a Ray cluster.
        observability: only its defaults.

    Raises:
        ConfigError: without datasets, or with two of one name.

    >>> PipelineConfig(datasets=[DatasetConfig("a.parquet")]).datasets[0].name
    'dataset_0'
    """

    datasets: Sequence[DatasetConfig]
    default_tokenizer: Any = None
    streaming: bool = True
    seed: int | None = None
    source: SourceStageConfig = field(default_factory=SourceStageConfig)
    tokenize: TokenizeStageConfig = field(default_factory=TokenizeStageConfig)
    cache: CacheStageConfig = field(default_factory=CacheStageConfig)
    mix: MixStageConfig = field(default_factory=MixStageConfig)
    pack: PackStageConfig = field(default_factory=PackStageConfig)
    load: LoadStageConfig = field(default_factory=LoadStageConfig)
    save: SaveStageConfig = field(default_factory=SaveStageConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    observability: ObservabilityConfig = field(default_factory=ObservabilityConfig)

    def __post_init__(self) -> None:
        if not self.datasets:
            raise ConfigError("PipelineConfig: no datasets; give at least one DatasetConfig")
        named = [
            replace(dataset, name=get_dataset_name(dataset, i))
            for i, dataset in enumerate(self.datasets)
        ]
        names = [str(dataset.name) for dataset in named]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(
                f"PipelineConfig: two datasets are named {duplicates[0]!r}; give each its own name"
            )
        object.__setattr__(self, "datasets", named)

    def get_dataset_by_name(self, name: str) -> DatasetConfig | None:
        """Return the settings of a dataset; None if there is none of this name.

        Args:
            name: its name.
        """
        return next((dataset for dataset in self.datasets if dataset.name == name), None)

    def validate(self) -> list[str]:
        """Return the errors of weights that name unknown datasets; empty if there are none.

        Two datasets of one name raise an error at once.
        """
        names = {dataset.name for dataset in self.datasets}
        points = [
            (f"step {point.step} of the schedule", point.weights)
            for point in self.mix.weight_schedule or ()
        ]
        given = [("the weights", self.mix.weights or {}), *points]
        return [
            f"{location}: there is no dataset {name!r}"
            for location, weights in given
            for name in weights
            if name not in names
        ]

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> PipelineConfig:
        """Make settings from plain mappings, as a YAML or JSON file has them.

        Args:
            given: the settings by name.

        Returns:
            The settings.

        Raises:
            ConfigError: for an unknown key.
        """
        settings = {
            name: _from_mapping(_STAGES[name], value) if name in _STAGES else value
            for name, value in given.items()
            if not (name in (*_STAGES, "mix") and value is None)
        }
        if isinstance(settings.get("mix"), Mapping):
            mixing = dict(cast("Mapping[str, Any]", settings["mix"]))
            if (points := mixing.get("weight_schedule")) is not None:
                mixing["weight_schedule"] = [
                    _from_mapping(WeightSchedulePoint, point) for point in points
                ]
            settings["mix"] = _from_mapping(MixStageConfig, mixing)
        settings["datasets"] = [
            _from_mapping(DatasetConfig, dataset) for dataset in settings.get("datasets", ())
        ]
        return _from_mapping(cls, settings)


_STAGES = {
    "source": SourceStageConfig,
    "tokenize": TokenizeStageConfig,
    "cache": CacheStageConfig,
    "pack": PackStageConfig,
    "load": LoadStageConfig,
    "save": SaveStageConfig,
    "ray": RayConfig,
    "observability": ObservabilityConfig,
}


def get_dataset_name(ds_cfg: DatasetConfig, index: int) -> str:
    """Return the name of a dataset.

    Args:
        ds_cfg: its settings.
        index: its number, for the name of a dataset without one.
    """
    return ds_cfg.name or f"dataset_{index}"


def merge_tokenizer_config(
    ds_cfg: DatasetConfig, global_tokenizer: str | None, stage_cfg: TokenizeStageConfig
) -> TokenizerConfig | Any | None:
    """Return the tokenizer of a dataset: its own, else the stage's, else the global one.

    Args:
        ds_cfg: settings of the dataset.
        global_tokenizer: tokenizer of all datasets without one.
        stage_cfg: settings of the stage.
    """
    tokenizer = ds_cfg.tokenizer or stage_cfg.default_tokenizer or global_tokenizer
    return TokenizerConfig(tokenizer) if isinstance(tokenizer, str) else tokenizer


def _from_mapping(kind: Any, value: Any) -> Any:
    """Make a dataclass from a mapping of its fields; return other values unchanged."""
    if not isinstance(value, Mapping):
        return value
    given = dict(cast("Mapping[str, Any]", value))
    known = [field.name for field in fields(kind)]
    if unknown := sorted(set(given) - set(known)):
        raise ConfigError(
            f"{kind.__name__} has no field {unknown[0]!r}; its fields are {', '.join(known)}"
        )
    return kind(**given)
