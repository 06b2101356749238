"""The settings of a pipeline. A field does something, or is refused when it is given."""

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
    """How a tokenizer is loaded and called. A tokenizer that brings code of its own is loaded only
    if you say so.

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
        refuse(
            self, padding="rows are padded when they are put into batches, to the longest of each"
        )


@dataclass(frozen=True)
class DatasetConfig:
    """One dataset: where its rows are, which field is the text, and how it is tokenised.

    `data_files` are files or globs (the extension tells the format, or `type`), or the name of a
    dataset on the hub (`type="huggingface"`, or a name that is no file). `format_callback(row)`
    gives another row, then `format_fields` renames. After tokenising rows hold the tokens and
    `additional_fields`.

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
            cache_enabled="indexes of lines are always kept, in cache_path or beside the data",
            shard_column="rows are found by their number; no column is needed",
            num_shards="SaveStageConfig(num_shards=...) says into how many files rows are saved",
        )


@dataclass(frozen=True)
class TokenizeStageConfig:
    """Tokenising: `default_tokenizer` for datasets without one, `max_length` beyond which texts are
    cut (None: never).

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
            batch_size="the run chooses how many texts a call of the tokenizer gets",
            num_workers="LoadStageConfig(prefetch_workers=...) are the threads that tokenise",
            cache_tokenized="save() after tokenize() keeps the tokens, and what follows reads them",
            remove_columns="only tokens and DatasetConfig(additional_fields=...) are kept anyway",
        )


@dataclass(frozen=True)
class MixStageConfig:
    """Mixing: weights (shares of sum 1), or a schedule of them; where both are given the schedule
    holds.

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
                f"MixStageConfig: unknown stop_strategy {self.stop_strategy!r}: one of "
                f"{', '.join(STOPS)}"
            )
        assert self.schedule is None or self.schedule.points

    @property
    def schedule(self) -> Schedule | None:
        """The schedule, as the core has it."""
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
    """Packing token rows into rows of `seq_length`; "greedy" cuts documents, "pool" and "first_fit"
    keep them whole.

    `num_packers` is how many rows are open at a time, for "pool" (4 without it). `shuffle_packed`
    draws rows from a buffer of `100 * shuffle_buffer_factor` of them.

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
                f"PackStageConfig: unknown strategy {self.strategy!r}: one of "
                f"{', '.join(STRATEGIES)}"
            )
        if self.num_packers is not None and self.strategy != "pool":
            raise ConfigError(
                f"PackStageConfig: num_packers is for strategy='pool', not {self.strategy!r}"
            )


@dataclass(frozen=True)
class LoadStageConfig:
    """Batches of `batch_size` rows, made ahead by threads. `lanes`: as in `penstock.Loader`, for
    packed rows on ranks.

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
        refuse(self, prefetch_to_device="batches are NumPy arrays; move them where you train")


@dataclass(frozen=True)
class SaveStageConfig:
    """Saving as files `shard-00000.parquet`, ... ("parquet", "arrow" or "jsonl") in `output_dir`.

    No file is larger than `max_shard_size`; with `num_shards` there are that many instead. Files of
    an earlier save are refused, or replaced with `overwrite`.

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
        refuse(self, push_to_hub="push the folder of files with huggingface_hub once it is written")


@dataclass(frozen=True)
class PipelineConfig:
    """The settings of all stages. `seed` is that of every stage without one; `streaming` is for
    datasets on the hub.

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
        nothing = "there is no such stage"
        refuse(
            self,
            source="its fields are those of DatasetConfig",
            cache=nothing,
            ray=nothing,
            observability=nothing,
        )
        if not self.datasets:
            raise ConfigError("PipelineConfig: no datasets; give at least one DatasetConfig")
        named = [
            replace(one, name=one.name or f"dataset_{i}") for i, one in enumerate(self.datasets)
        ]
        names = [str(one.name) for one in named]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigError(
                f"PipelineConfig: two datasets are named {twice[0]!r}; give each a name of its own"
            )
        object.__setattr__(self, "datasets", named)

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> PipelineConfig:
        """Settings from plain mappings, as a YAML or JSON file gives them. Unknown keys are refused
        by name."""
        stages = {"tokenize": TokenizeStageConfig, "pack": PackStageConfig, "load": LoadStageConfig}
        stages |= {"save": SaveStageConfig}
        made = {
            name: _made(stages[name], value) if name in stages else value
            for name, value in given.items()
        }
        if isinstance(made.get("mix"), Mapping):
            mixing = dict(cast("Mapping[str, Any]", made["mix"]))
            if (points := mixing.get("weight_schedule")) is not None:
                mixing["weight_schedule"] = [_made(WeightSchedulePoint, point) for point in points]
            made["mix"] = _made(MixStageConfig, mixing)
        made["datasets"] = [_made(DatasetConfig, one) for one in made.get("datasets", ())]
        return _made(cls, made)


def _made(kind: Any, value: Any) -> Any:
    """A dataclass from a mapping of its fields; anything else as it is."""
    if not isinstance(value, Mapping):
        return value
    given = dict(cast("Mapping[str, Any]", value))
    known = [each.name for each in fields(kind)]
    if unknown := sorted(set(given) - set(known)):
        raise ConfigError(
            f"{kind.__name__} has no field {unknown[0]!r}; its fields are {', '.join(known)}"
        )
    return kind(**given)


def refuse(config: Any, **reasons: str) -> None:
    """Refuse fields that would do nothing, each with what to do instead. False is as good as left
    out."""
    for name, reason in reasons.items():
        if getattr(config, name):
            kind = type(config).__name__
            raise ConfigError(
                f"{kind}({name}={getattr(config, name)!r}) would do nothing here: {reason}"
            )
