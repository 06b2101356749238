"""The context that stages share, and the base of stages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol, runtime_checkable

from ...errors import ConfigError
from .caching import CacheLayer, DiskCache, MemoryCache, TreeCacheManager
from .config import PipelineConfig, TokenizerConfig
from .text import TokenizerManager


@dataclass
class PipelineContext:
    """State that the stages of a pipeline share: settings, tokenizers and metrics.

    Args:
        config: settings of the pipeline.
        seed: default seed.
        step: number of a step, for metrics.
        epoch: number of an epoch, for metrics.
        metrics: values by stage and name.

    >>> from penstock.compat.easydata import DatasetConfig
    >>> context = PipelineContext(PipelineConfig([DatasetConfig("a.parquet")]))
    >>> context.record_metric("save", "rows", 3)
    >>> context.get_metrics()
    {'save': {'rows': 3}}
    """

    config: PipelineConfig
    seed: int | None = None
    step: int = 0
    epoch: int = 0
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    _tokenizers: TokenizerManager = field(default_factory=TokenizerManager, repr=False)
    _cache: CacheLayer | TreeCacheManager | None = field(default=None, repr=False)

    def get_tokenizer(self, name_or_path: str) -> Any:
        """Return a tokenizer, which is loaded once.

        Args:
            name_or_path: its name on the hub, folder or file.
        """
        return self._tokenizers.get_tokenizer(TokenizerConfig(name_or_path))

    def update_step(self, step: int) -> None:
        """Set the number of the step.

        Args:
            step: the number.
        """
        self.step = step

    def update_epoch(self, epoch: int) -> None:
        """Set the number of the epoch.

        Args:
            epoch: the number.
        """
        self.epoch = epoch

    def record_metric(self, stage: str, key: str, value: Any) -> None:
        """Record a metric.

        Args:
            stage: name of the stage.
            key: name of the metric.
            value: its value.
        """
        self.metrics.setdefault(stage, {})[key] = value

    def get_metrics(self) -> dict[str, dict[str, Any]]:
        """Return a copy of the metrics by stage."""
        return {stage: dict(values) for stage, values in self.metrics.items()}

    @property
    def cache_manager(self) -> CacheLayer | TreeCacheManager:
        """The cache of `CacheStageConfig`, for stages and callbacks of the user."""
        options = self.config.cache
        if not options.enabled:
            raise ConfigError("the context has no cache: set CacheStageConfig(enabled=True)")
        if self._cache is None:
            size, expiry = options.memory_cache_size, options.disk_cache_expiry
            if options.cache_type == "memory":
                self._cache = MemoryCache(size)
            elif options.cache_type == "disk":
                self._cache = DiskCache(options.cache_dir, options.compression, expiry)
            else:
                self._cache = TreeCacheManager(options.cache_dir, size, expiry, options.compression)
        return self._cache


@runtime_checkable
class PipelineStage(Protocol):
    """Form of a stage: a name, and a function from datasets to datasets."""

    @property
    def name(self) -> str:
        """The name."""
        ...

    def process(self, data: Any, context: PipelineContext) -> Any:
        """Return the datasets after the stage."""
        ...

    def validate_config(self, config: dict[str, Any]) -> bool:
        """Return whether settings are valid."""
        ...


class BaseStage(ABC):
    """Base of stages: settings and metrics; a subclass defines `name` and `process`.

    Args:
        config: the settings.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self._config = dict(config or {})
        self._metrics: dict[str, Any] = {}

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the stage."""

    @abstractmethod
    def process(self, data: Any, context: PipelineContext) -> Any:
        """Return the datasets after the stage.

        Args:
            data: sharded sources by name.
            context: the shared context.
        """

    def validate_config(self, config: dict[str, Any]) -> bool:
        """Return whether settings are valid; a subclass may check more.

        Args:
            config: the settings.
        """
        return True

    def get_metrics(self) -> dict[str, Any]:
        """Return a copy of the metrics of this stage."""
        return dict(self._metrics)

    def _update_metric(self, key: str, value: Any) -> None:
        self._metrics[key] = value


@dataclass
class ResumeState:
    """A place in the shards of a source, for `iter_shards(start_shard=, start_row=)`.

    A user fills it; nothing here writes one. `state_dict()` of a loader or an opened shard has the
    exact position of a run, with shuffles and packing.

    Args:
        shard_index: number of the shard.
        row_index: first row of that shard.
        epoch: number of the epoch.
        step: number of the step.
        dataset_states: other states by dataset.

    >>> ResumeState.from_dict({"row_index": 3}).row_index
    3
    """

    shard_index: int = 0
    row_index: int = 0
    epoch: int = 0
    step: int = 0
    dataset_states: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a mapping."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ResumeState:
        """Return the state of a mapping; unknown keys are ignored.

        Args:
            data: the mapping.
        """
        return cls(**{item.name: data[item.name] for item in fields(cls) if item.name in data})
