"""The fluent pipeline: `Pipeline.from_config(config).source().mix().load().build()`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

from ...dataset import Dataset
from ...engine.base.machine import detect_rank
from ...errors import ConfigError
from ...inputs import mix, read
from ...stores.urls import require_local
from .async_loader import PipelineLoader
from .collate import Padded
from .config import (
    DatasetConfig,
    LoadStageConfig,
    MixStageConfig,
    PackStageConfig,
    PipelineConfig,
    SaveStageConfig,
    TokenizerConfig,
    TokenizeStageConfig,
    merge_tokenizer_config,
)
from .context import PipelineContext
from .inputs import dataset_of
from .mixture import checked_weights
from .opening import open_rows
from .packers import pack_rows
from .sharded import TransformedShardedSource
from .tag import Tag
from .text import TokenizedRows, limit_length, load_tokenizer, make_tokenizer_error
from .writer import WriteStats, push_to_hub, rows_in, save_dataset, write_shards


class Pipeline:
    """Apply stages to named datasets, in the order of calls; each call returns the pipeline.

    `build` returns a `penstock.Loader` with `state_dict()` and `load_state_dict(state)`; it detects
    its ranks. No stage reads data before iteration, except `save`.

    Args:
        config: the settings.

    >>> import tempfile, pyarrow as pa, pyarrow.parquet as pq
    >>> folder = tempfile.mkdtemp()
    >>> pq.write_table(pa.table({"text": list("abc")}), f"{folder}/a.parquet")
    >>> config = PipelineConfig(datasets=[DatasetConfig(data_files=f"{folder}/*.parquet", name="a")])
    >>> with Pipeline.from_config(config).source().build() as rows:
    ...     list(rows)
    [{'text': 'a'}, {'text': 'b'}, {'text': 'c'}]
    """

    def __init__(self, config: PipelineConfig) -> None:
        self.config = config
        self._context = PipelineContext(config, config.seed)
        self._data: dict[str, Dataset] | None = None
        self._load: LoadStageConfig | None = None
        self._stages: list[str] = []
        self._pad = config.pack.pad_token_id

    @classmethod
    def from_config(cls, config: PipelineConfig | Mapping[str, Any]) -> Pipeline:
        """Make a pipeline from its settings, or from a mapping of them.

        Args:
            config: the settings.

        Returns:
            The pipeline.
        """
        return cls(PipelineConfig.from_dict(config) if isinstance(config, Mapping) else config)

    # ------------------------------------------------------------ stages

    def source(self) -> Self:
        """Open the datasets.

        Returns:
            This pipeline.
        """
        streaming = self.config.streaming and self.config.source.streaming
        data = {str(config.name): open_rows(config, streaming) for config in self.config.datasets}
        return self.start(data)

    def start(self, data: Mapping[str, Any]) -> Self:
        """Begin with datasets or sharded sources, instead of `source`.

        Args:
            data: the datasets by name.

        Returns:
            This pipeline.

        Raises:
            ConfigError: if the pipeline has datasets.
        """
        if self._data is not None:
            raise ConfigError("source(): it was called before: make another pipeline")
        self._data = {name: dataset_of(rows, name) for name, rows in data.items()}
        self._stages.append("source")
        return self

    def tokenize(self, config: TokenizeStageConfig | None = None) -> Self:
        """Tokenize texts to `input_ids` and `attention_mask`, each dataset with its own tokenizer.

        Args:
            config: settings that replace the ones of the pipeline.

        Returns:
            This pipeline.

        Raises:
            ConfigError: for a dataset without a tokenizer.
        """
        data, options = self._datasets_for("tokenize"), config or self.config.tokenize
        tokenizers = dict[str, Any]()
        for name, rows in data.items():
            dataset = self.config.get_dataset_by_name(name) or DatasetConfig(name, name)
            source = merge_tokenizer_config(dataset, self.config.default_tokenizer, options)
            if source is None:
                raise make_tokenizer_error(name)
            extra = dataset.tokenizer_kwargs or {}
            key = f"{source!r} {sorted(extra.items())!r}"
            if key not in tokenizers:
                tokenizers[key] = load_tokenizer(source, extra)
            if (pad := getattr(tokenizers[key], "pad_token_id", None)) is not None:
                self._pad = pad
            call = source if isinstance(source, TokenizerConfig) else TokenizerConfig("")
            call = limit_length(call, options.max_length)
            tokens = TokenizedRows(tokenizers[key], call, dataset, options.remove_columns or ())
            data[name] = rows.map(tokens)
        return self._note("tokenize")

    def mix(self, config: MixStageConfig | None = None) -> Self:
        """Mix all datasets by weight; rows get `__source__`, the name of their dataset.

        Args:
            config: settings that replace the ones of the pipeline.

        Returns:
            This pipeline.
        """
        data, options = self._datasets_for("mix"), config or self.config.mix
        weights = checked_weights(options.weights, options.schedule, data, "MixStageConfig")
        seed = self.config.seed if options.seed is None else options.seed
        inputs = {name: dataset.map(Tag(name)) for name, dataset in data.items()}
        mixed = mix(
            inputs,
            weights,
            seed=seed or 0,
            block_size=options.block_size,
            stop=options.stop_strategy,
        )
        self._data = {"mixed": mixed}
        return self._note("mix")

    def pack(self, config: PackStageConfig | None = None) -> Self:
        """Pack token rows into rows of one length.

        Rows get `attention_mask`, `segment_ids` and `position_ids`.

        Args:
            config: settings that replace the ones of the pipeline.

        Returns:
            This pipeline.
        """
        data, options = self._datasets_for("pack"), config or self.config.pack
        if options.enabled:
            for name, dataset in data.items():
                data[name] = pack_rows(dataset, options, self.config.seed)
        return self._note("pack")

    def save(self, config: SaveStageConfig | None = None) -> Self:
        """Write the rows to files now; the stages that follow read these files.

        Args:
            config: settings that replace the ones of the pipeline.

        Returns:
            This pipeline.

        Raises:
            ConfigError: on several ranks, or for an endless mixture.
        """
        data, options = self._datasets_for("save"), config or self.config.save
        if not options.enabled:
            return self._note("save")
        if detect_rank()[1] > 1:
            raise ConfigError(
                "save() on several ranks would write the same files on each: save once, before "
                "the distributed run"
            )
        for name, dataset in data.items():
            folder, form = self._output_of(name, options, len(data))
            files = write_shards(dataset, require_local(folder), form, rows_in(dataset))
            self._context.record_metric("save", f"{name}_save_path", folder)
            self._context.record_metric("save", f"{name}_num_shards", len(files))
            if options.push_to_hub:
                push_to_hub(files, name, options)
            data[name] = read(cast("list[str | Path]", files), name=name)
        return self._note("save")

    def _output_of(
        self, name: str, options: SaveStageConfig, count: int
    ) -> tuple[str, SaveStageConfig]:
        """Return the folder of a dataset, and its settings."""
        config = self.config.get_dataset_by_name(name) or DatasetConfig(name, name)
        folder = options.output_dir if count == 1 else f"{options.output_dir}/{name}"
        return config.save_path or folder, replace(
            options,
            format=config.save_format or options.format,
            num_shards=config.num_shards or options.num_shards,
        )

    def load(self, config: LoadStageConfig | None = None) -> Self:
        """Batch rows into mappings of NumPy arrays, token rows padded to the longest of the batch.

        Args:
            config: settings that replace the ones of the pipeline.

        Returns:
            This pipeline.
        """
        data, options = self._datasets_for("load"), config or self.config.load
        for name, dataset in data.items():
            if options.shuffle_buffer_size is not None:
                dataset = dataset.shuffle_buffer(options.shuffle_buffer_size, seed=self.config.seed)
            data[name] = dataset.batch(options.batch_size, options.drop_last, Padded(self._pad))
        self._load = options
        return self._note("load")

    def build(self) -> PipelineLoader:
        """Return the loader over the one remaining dataset; after `save`, over all of them.

        Raises:
            ConfigError: if there is more than one dataset, and `save` was not the last stage.
        """
        data = self._datasets_for("build", after_load=True)
        options, ray = self._load or self.config.load, self.config.ray
        if len(data) > 1 and self._stages[-1] == "save":
            first, *others = data.values()
            data = {"saved": first.concat(*others)}
        if len(data) > 1:
            raise ConfigError(
                f"build(): there are {len(data)} datasets ({', '.join(data)}): call .mix() first"
            )
        (dataset,) = data.values()
        workers = options.prefetch_workers if options.prefetch_enabled else 0
        return PipelineLoader(
            dataset,
            workers=ray.num_workers if ray.enabled else workers,
            executor="ray" if ray.enabled else "threads",
            prefetch=options.prefetch_buffer_size or None,
            lanes=options.lanes,
        )

    def get_data(self) -> dict[str, Dataset]:
        """Return the datasets after the stages called so far, by name."""
        return dict(self._datasets_for("get_data", after_load=True))

    def get_context(self) -> PipelineContext:
        """Return the context: settings, metrics and cache."""
        return self._context

    def get_stages(self) -> list[str]:
        """Return the names of the stages called so far."""
        return list(self._stages)

    def _note(self, stage: str) -> Self:
        self._stages.append(stage)
        return self

    def _datasets_for(self, stage: str, after_load: bool = False) -> dict[str, Dataset]:
        if self._data is None:
            raise ConfigError(f"{stage}(): there are no datasets yet: call .source() first")
        if self._load is not None and not after_load:
            raise ConfigError(
                f"{stage}(): the rows are already batched: call .{stage}() before .load()"
            )
        return self._data


def create_pipeline(
    datasets: Iterable[DatasetConfig | Mapping[str, Any]],
    default_tokenizer: Any = None,
    **kwargs: Any,
) -> Pipeline:
    """Return the pipeline of some datasets.

    Args:
        datasets: settings of the datasets, or mappings of them.
        default_tokenizer: tokenizer of datasets without one.
        **kwargs: other settings of `PipelineConfig`.
    """
    given = {"datasets": list(datasets), "default_tokenizer": default_tokenizer, **kwargs}
    return Pipeline(PipelineConfig.from_dict(given))


def tokenize_and_save(
    data_files: str | Path | list[str | Path],
    tokenizer: Any,
    output_path: str,
    output_format: str = "parquet",
    max_length: int = 2048,
) -> None:
    """Tokenize the texts of files, and write the tokens to files in a folder.

    Args:
        data_files: the files, a glob, or a name on the hub.
        tokenizer: the tokenizer.
        output_path: the folder.
        output_format: "parquet", "arrow" or "jsonl".
        max_length: maximum number of tokens of a text.
    """
    config = PipelineConfig(
        [DatasetConfig(data_files, tokenizer=tokenizer)],
        tokenize=TokenizeStageConfig(max_length=max_length),
        save=SaveStageConfig(True, output_path, output_format),
    )
    Pipeline(config).source().tokenize().save()


def pretokenize(
    source: Any,
    transform: Any,
    output_path: str,
    output_format: str = "parquet",
    max_shard_size: str | int = "500MB",
    compression: str | None = None,
    num_proc: int | None = None,
    show_progress: bool = True,
) -> WriteStats:
    """Apply a transform to a source, and write the rows to files in a folder.

    Args:
        source: the source.
        transform: the transform, such as `SFTPreprocessTransform`.
        output_path: the folder.
        output_format: "parquet", "arrow" or "jsonl".
        max_shard_size: maximum size of a file.
        compression: codec of the format; snappy for Parquet by default.
        num_proc: not supported.
        show_progress: not supported.

    Returns:
        The counts.

    Raises:
        ConfigError: for `num_proc`, and for an endless source.
    """
    if num_proc not in (None, 1):
        raise ConfigError(
            f"pretokenize(num_proc={num_proc}) would have no effect: write an indexed dataset with "
            "penstock.write(ds, folder, workers=...)"
        )
    if not show_progress:
        raise ConfigError(
            "pretokenize(show_progress=False) would have no effect: set PENSTOCK_PROGRESS=0"
        )
    rows = TransformedShardedSource(source, transform)
    return save_dataset(rows, output_path, output_format, max_shard_size, compression=compression)
