"""Settings of a pipeline; a field without effect here raises an error if it is set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

from ...engine.mixing import STOPS, Stop
from ...engine.packing import Method
from ...errors import ConfigError
from ...schedule import Interpolation, Schedule
from .weights import WeightSchedulePoint, WeightScheduler, check_sum


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
        padding: not supported.

    >>> TokenizerConfig("my-tokenizer/", max_length=512).truncation
    True
    """

    name_or_path: str
    max_length: int | None = None
    truncation: bool = True
    add_special_tokens: bool = True
    return_attention_mask: bool = True
    trust_remote_code: bool = False
    padding: None = None

    def __post_init__(self) -> None:
        refuse(self, padding="batching pads rows to the longest of each batch")


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
        cache_enabled: not supported.
        shard_column: not supported.
        num_shards: not supported.

    >>> DatasetConfig(name="code", data_files="code/*.parquet").content_field
    'text'
    """

    data_files: str | Sequence[str]
    name: str | None = None
    type: str | None = None
    split: str = "train"
    num_rows: int | None = None
    dataset_split_name: str | None = None
    tokenizer: Any = None
    tokenizer_kwargs: Mapping[str, Any] | None = None
    cache_path: str | None = None
    save_path: str | None = None
    save_format: str | None = None
    content_field: str = "text"
    additional_fields: Sequence[str] | None = None
    format_callback: Callable[[Any], Any] | None = None
    format_fields: Mapping[str, str] | None = None
    cache_enabled: None = None
    shard_column: None = None
    num_shards: None = None

    def __post_init__(self) -> None:
        refuse(
            self,
            cache_enabled="line indexes are always cached, in cache_path or beside the data",
            shard_column="rows are indexed by number; no column is needed",
            num_shards="set the number of output files with SaveStageConfig(num_shards=...)",
        )


@dataclass(frozen=True)
class TokenizeStageConfig:
    """Settings of tokenizing: default tokenizer and maximum length.

    `default_tokenizer` is for datasets without one; texts are truncated at `max_length` (None:
    never).

    Args:
        default_tokenizer: tokenizer of datasets without one.
        max_length: maximum number of tokens of a text; None never truncates.
        batch_size: not supported.
        num_workers: not supported.
        cache_tokenized: not supported.
        remove_columns: not supported.

    >>> TokenizeStageConfig().max_length
    2048
    """

    default_tokenizer: Any = None
    max_length: int | None = 2048
    batch_size: None = None
    num_workers: None = None
    cache_tokenized: None = None
    remove_columns: None = None

    def __post_init__(self) -> None:
        refuse(
            self,
            batch_size="the run chooses the number of texts per tokenizer call",
            num_workers="set the number of tokenizing threads with LoadStageConfig(prefetch_workers=...)",
            cache_tokenized="call save() after tokenize() to store the tokens for the stages that follow",
            remove_columns="rows only have tokens and DatasetConfig(additional_fields=...) anyway",
        )


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
        num_packers: open rows of "pool".
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
    num_packers: int | None = None
    include_segment_ids: bool = True
    shuffle_packed: bool = True
    shuffle_buffer_factor: int = 10

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise ConfigError(
                f"PackStageConfig: unknown strategy {self.strategy!r}: use one of "
                f"{', '.join(STRATEGIES)}"
            )
        if self.num_packers is not None and self.strategy != "pool":
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
    lanes: int = 1
    prefetch_to_device: None = None

    def __post_init__(self) -> None:
        refuse(
            self,
            prefetch_to_device="batches are NumPy arrays; move them to the device in the training loop",
        )


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
        push_to_hub: not supported.

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
    push_to_hub: None = None

    def __post_init__(self) -> None:
        refuse(self, push_to_hub="push the written folder with huggingface_hub")


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
        source: not supported.
        cache: not supported.
        ray: not supported.
        observability: not supported.

    Raises:
        ConfigError: without datasets, or with two of one name.

    >>> PipelineConfig(datasets=[DatasetConfig("a.parquet")]).datasets[0].name
    'dataset_0'
    """

    datasets: Sequence[DatasetConfig]
    default_tokenizer: Any = None
    streaming: bool = True
    seed: int | None = None
    tokenize: TokenizeStageConfig = field(default_factory=TokenizeStageConfig)
    mix: MixStageConfig = field(default_factory=MixStageConfig)
    pack: PackStageConfig = field(default_factory=PackStageConfig)
    load: LoadStageConfig = field(default_factory=LoadStageConfig)
    save: SaveStageConfig = field(default_factory=SaveStageConfig)
    source: None = None
    cache: None = None
    ray: None = None
    observability: None = None

    def __post_init__(self) -> None:
        no_stage = "there is no such stage"
        refuse(
            self,
            source="set the fields of DatasetConfig instead",
            cache=no_stage,
            ray=no_stage,
            observability=no_stage,
        )
        if not self.datasets:
            raise ConfigError("PipelineConfig: no datasets; give at least one DatasetConfig")
        named = [
            replace(dataset, name=dataset.name or f"dataset_{i}")
            for i, dataset in enumerate(self.datasets)
        ]
        names = [str(dataset.name) for dataset in named]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(
                f"PipelineConfig: two datasets are named {duplicates[0]!r}; give each its own name"
            )
        object.__setattr__(self, "datasets", named)

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
        stages = {"tokenize": TokenizeStageConfig, "pack": PackStageConfig, "load": LoadStageConfig}
        stages |= {"save": SaveStageConfig}
        settings = {
            name: _from_mapping(stages[name], value) if name in stages else value
            for name, value in given.items()
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


def refuse(config: Any, **reasons: str) -> None:
    """Raise if a field without effect is set; the message says what to do instead.

    Args:
        config: the settings.
        reasons: field -> the remedy. False counts as not set.

    Raises:
        ConfigError: if one of the fields is set.
    """
    for name, reason in reasons.items():
        if getattr(config, name):
            kind = type(config).__name__
            raise ConfigError(
                f"{kind}({name}={getattr(config, name)!r}) would have no effect: {reason}"
            )
