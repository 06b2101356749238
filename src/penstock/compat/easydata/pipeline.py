"""The fluent pipeline: `Pipeline.from_config(config).source().mix().load().build()`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

from ...dataset import Dataset
from ...engine.base.machine import detect_rank
from ...errors import ConfigError, make_missing_extra_error
from ...inputs import mix, read
from ...loader import Loader
from ...sources.paths import FormatName, detect_format
from ...stores.urls import require_local
from .collate import Padded
from .config import STRATEGIES, DatasetConfig, PipelineConfig, TokenizerConfig
from .inputs import dataset_of
from .mixture import checked_weights
from .tag import Tag
from .text import Formatted, TokenizedRows, load_tokenizer, tokenizer_of
from .writer import write_shards

FORMATS: dict[str, FormatName] = {
    "parquet": "parquet", "arrow": "arrow", "csv": "csv", "json": "jsonl", "jsonl": "jsonl", "txt": "text",
    "text": "text",
}  # fmt: skip
HUB = ("huggingface", "hf")


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
        self._data: dict[str, Dataset] | None = None
        self._batched = False
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
        self._data = {
            str(dataset.name): open_rows(dataset, self.config.streaming)
            for dataset in self.config.datasets
        }
        return self

    def tokenize(self) -> Self:
        """Tokenize texts to `input_ids` and `attention_mask`, each dataset with its own tokenizer.

        Returns:
            This pipeline.
        """
        data, tokenizers = self._datasets_for("tokenize"), dict[str, Any]()
        for config in self.config.datasets:
            source, extra = tokenizer_of(self.config, config), config.tokenizer_kwargs or {}
            key = f"{source!r} {sorted(extra.items())!r}"
            if key not in tokenizers:
                tokenizers[key] = load_tokenizer(source, extra)
            if (pad := getattr(tokenizers[key], "pad_token_id", None)) is not None:
                self._pad = pad
            call = source if isinstance(source, TokenizerConfig) else TokenizerConfig("")
            if call.max_length is None:
                call = replace(call, max_length=self.config.tokenize.max_length)
            data[str(config.name)] = data[str(config.name)].map(
                TokenizedRows(tokenizers[key], call, replace(config, name=str(config.name)))
            )
        return self

    def mix(self) -> Self:
        """Mix all datasets by weight; rows get `__source__`, the name of their dataset.

        Returns:
            This pipeline.
        """
        data, options = self._datasets_for("mix"), self.config.mix
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
        return self

    def pack(self) -> Self:
        """Pack token rows into rows of one length.

        Rows get `attention_mask`, `segment_ids` and `position_ids`.

        Returns:
            This pipeline.
        """
        data, config = self._datasets_for("pack"), self.config.pack
        if not config.enabled:
            return self
        options: dict[str, Any] = {"eos": config.eos_token_id, "pad": config.pad_token_id}
        options |= {} if config.num_packers is None else {"open_rows": config.num_packers}
        for name, dataset in data.items():
            rows = dataset.map(tokens_only).pack(
                config.seq_length, STRATEGIES[config.strategy], **options
            )
            rows = rows.map(with_segments if config.include_segment_ids else without_segments)
            if config.shuffle_packed:
                rows = rows.shuffle_buffer(
                    100 * config.shuffle_buffer_factor, seed=self.config.seed
                )
            data[name] = rows
        return self

    def save(self) -> Self:
        """Write the rows to files now; the stages that follow read these files.

        Returns:
            This pipeline.

        Raises:
            ConfigError: on several ranks, or for an endless mixture.
        """
        data, options = self._datasets_for("save"), self.config.save
        if not options.enabled:
            return self
        if detect_rank()[1] > 1:
            raise ConfigError(
                "save() on several ranks would write the same files on each: save once, before "
                "the distributed run"
            )
        configs = {str(dataset.name): dataset for dataset in self.config.datasets}
        for name, dataset in data.items():
            config = configs.get(name)
            folder = config.save_path if config and config.save_path else options.output_dir
            folder = (
                folder if len(data) == 1 or (config and config.save_path) else f"{folder}/{name}"
            )
            kind = config.save_format if config and config.save_format else options.format
            files = write_shards(
                dataset, require_local(folder), replace(options, format=kind), rows_in(dataset)
            )
            data[name] = read(cast("list[str | Path]", files), name=name)
        return self

    def load(self) -> Self:
        """Batch rows into mappings of NumPy arrays, token rows padded to the longest of the batch.

        Returns:
            This pipeline.
        """
        data, options = self._datasets_for("load"), self.config.load
        for name, dataset in data.items():
            if options.shuffle_buffer_size is not None:
                dataset = dataset.shuffle_buffer(options.shuffle_buffer_size, seed=self.config.seed)
            data[name] = dataset.batch(options.batch_size, options.drop_last, Padded(self._pad))
        self._batched = True
        return self

    def build(self) -> Loader:
        """Return the loader over the one remaining dataset.

        Raises:
            ConfigError: if there is more than one dataset.
        """
        data, options = self._datasets_for("build", after_load=True), self.config.load
        if len(data) > 1:
            raise ConfigError(
                f"build(): there are {len(data)} datasets ({', '.join(data)}): call .mix() first"
            )
        (dataset,) = data.values()
        workers = options.prefetch_workers if options.prefetch_enabled else 0
        return Loader(
            dataset,
            workers=workers,
            prefetch=options.prefetch_buffer_size or None,
            lanes=options.lanes,
        )

    def get_data(self) -> dict[str, Dataset]:
        """Return the datasets after the stages called so far, by name."""
        return dict(self._datasets_for("get_data", after_load=True))

    def _datasets_for(self, stage: str, after_load: bool = False) -> dict[str, Dataset]:
        if self._data is None:
            raise ConfigError(f"{stage}(): there are no datasets yet: call .source() first")
        if self._batched and not after_load:
            raise ConfigError(
                f"{stage}(): the rows are already batched: call .{stage}() before .load()"
            )
        return self._data


def open_rows(config: DatasetConfig, streaming: bool) -> Dataset:
    """Open the rows of a dataset, from local files or from the hub."""
    name, kind = str(config.name), config.type
    if kind is not None and kind not in (*FORMATS, *HUB):
        raise ConfigError(
            f"dataset {name!r}: unknown type {kind!r}: use one of {', '.join((*FORMATS, *HUB))}"
        )
    if kind in HUB or (
        kind is None and isinstance(config.data_files, str) and _is_hub_name(config.data_files)
    ):
        rows = dataset_of(_from_hub(config, streaming), name)
    else:
        if config.split != "train" or config.dataset_split_name is not None:
            raise ConfigError(
                f"dataset {name!r}: local files have no splits: name the files of the split"
            )
        rows = read(
            config.data_files, FORMATS[kind] if kind else None, name=name, cache=config.cache_path
        )
    rows = rows if config.num_rows is None else rows.limit(config.num_rows)
    if config.format_callback is None and not config.format_fields:
        return rows
    return rows.map(Formatted(name, config.format_callback, config.format_fields))


def _is_hub_name(name: str) -> bool:
    return (
        not any(letter in name for letter in "*?[{")
        and detect_format(Path(name)) is None
        and not Path(name).exists()
    )


def _from_hub(config: DatasetConfig, streaming: bool) -> Any:
    try:
        import datasets  # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError as error:
        raise make_missing_extra_error("datasets", "hf", f"the dataset {config.name!r}") from error
    load = cast(Any, datasets).load_dataset
    return load(
        config.data_files, config.dataset_split_name, split=config.split, streaming=streaming
    )


def rows_in(dataset: Dataset) -> int | None:
    """Return the number of rows, or None if unknown; an endless dataset raises an error."""
    if dataset.flow.reason_not_indexed is None:
        try:
            return len(dataset)
        except TypeError:
            pass
    elif not dataset.flow.is_endless:
        return None
    raise ConfigError(
        "save(): the mixture is endless with stop_strategy='restart': choose 'all_exhausted', or "
        "save before mix()"
    )


def tokens_only(row: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the fields that packing takes: tokens and provenance."""
    return {
        name: value for name, value in row.items() if name == "input_ids" or name.startswith("__")
    }


def with_segments(row: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the fields of a packed row to those of `transformers`."""
    return {
        **without_segments(row),
        "segment_ids": row["segment_ids"],
        "position_ids": row["positions"],
    }


def without_segments(row: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the document positions of a packed row."""
    fields = {
        name: value for name, value in row.items() if name not in ("segment_ids", "positions")
    }
    return {**fields, "attention_mask": (row["segment_ids"] > 0).astype("int32")}
