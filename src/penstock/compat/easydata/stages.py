"""Stages as objects: each is a method of `Pipeline`, applied to sharded sources by name."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, cast

from ...errors import ConfigError
from .async_loader import AsyncDataLoader
from .config import (
    LoadStageConfig,
    MixStageConfig,
    PackStageConfig,
    SaveStageConfig,
    TokenizeStageConfig,
)
from .context import BaseStage, PipelineContext
from .pipeline import Pipeline
from .sharded import ShardedDataSource
from .sources import HFDatasetShardedSource

Sources = Mapping[str, ShardedDataSource[Any]]


class _PipelineStage(BaseStage):
    """Base of stages that are a method of `Pipeline`."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(cast("dict[str, Any]", vars(config)) if config is not None else {})
        self.config = config

    @abstractmethod
    def _run(self, pipeline: Pipeline) -> Pipeline:
        """Call the method."""

    def process(self, data: Sources, context: PipelineContext) -> dict[str, Any]:
        """Return the sources after the stage.

        Args:
            data: sharded sources by name.
            context: the context, with the settings of the pipeline.
        """
        if not data:
            raise ConfigError(f"the stage {self.name!r} has no datasets: give at least one")
        pipeline = self._run(Pipeline(context.config).start(data))
        metrics = pipeline.get_context().get_metrics().get(self.name, {})
        self._metrics.update(metrics)
        return {
            name: HFDatasetShardedSource(rows, name) for name, rows in pipeline.get_data().items()
        }


class TokenizeStage(_PipelineStage):
    """Tokenize each source with the tokenizer of its dataset.

    Args:
        config: the settings; by default the ones of the context.
    """

    def __init__(self, config: TokenizeStageConfig | None = None) -> None:
        super().__init__(config)

    @property
    def name(self) -> str:
        """The name of the stage."""
        return "tokenize"

    def _run(self, pipeline: Pipeline) -> Pipeline:
        return pipeline.tokenize(self.config)


class MixStage(_PipelineStage):
    """Mix sources into one, `mixed`; a single source is returned unchanged.

    Args:
        config: the settings; by default the ones of the context.
    """

    def __init__(self, config: MixStageConfig | None = None) -> None:
        super().__init__(config)

    @property
    def name(self) -> str:
        """The name of the stage."""
        return "mix"

    def process(self, data: Sources, context: PipelineContext) -> dict[str, Any]:
        """Return the mixture by name.

        Args:
            data: sharded sources by name.
            context: the context, with the settings of the pipeline.
        """
        return dict(data) if len(data) == 1 else super().process(data, context)

    def _run(self, pipeline: Pipeline) -> Pipeline:
        return pipeline.mix(self.config)


class PackStage(_PipelineStage):
    """Pack the tokens of each source.

    Args:
        config: the settings; by default the ones of the context.
    """

    def __init__(self, config: PackStageConfig | None = None) -> None:
        super().__init__(config)

    @property
    def name(self) -> str:
        """The name of the stage."""
        return "pack"

    def _run(self, pipeline: Pipeline) -> Pipeline:
        return pipeline.pack(self.config)


class SaveStage(_PipelineStage):
    """Write each source to files, and return sources that read them.

    Args:
        config: the settings; by default the ones of the context.
    """

    def __init__(self, config: SaveStageConfig | None = None) -> None:
        super().__init__(config)

    @property
    def name(self) -> str:
        """The name of the stage."""
        return "save"

    def _run(self, pipeline: Pipeline) -> Pipeline:
        return pipeline.save(self.config)


class LoadStage(BaseStage):
    """Return an `AsyncDataLoader` for each source.

    Args:
        config: the settings; by default the ones of the context.
    """

    def __init__(self, config: LoadStageConfig | None = None) -> None:
        super().__init__(vars(config) if config is not None else {})
        self.config = config

    @property
    def name(self) -> str:
        """The name of the stage."""
        return "load"

    def process(self, data: Sources, context: PipelineContext) -> dict[str, AsyncDataLoader]:
        """Return the loaders by name.

        Args:
            data: sharded sources by name.
            context: the context, with the settings of the pipeline.
        """
        options = self.config or context.config.load
        return {
            name: AsyncDataLoader(
                source,
                options.batch_size,
                options.prefetch_enabled,
                options.prefetch_workers,
                options.prefetch_buffer_size,
                options.shuffle_buffer_size,
                options.drop_last,
                seed=context.seed,
            )
            for name, source in data.items()
        }
