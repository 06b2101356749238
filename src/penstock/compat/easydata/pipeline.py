"""The fluent pipeline: `Pipeline.from_config(config).source().tokenize().mix().load().build()`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

from ...dataset import Dataset
from ...engine.base.machine import place
from ...engine.base.urls import local
from ...engine.graph.ends import endless
from ...engine.graph.indexed import why_not
from ...errors import ConfigError, missing_extra
from ...inputs import mix, read
from ...loader import Loader
from ...sources.paths import FormatName, format_of
from .collate import Padded
from .config import STRATEGIES, DatasetConfig, PipelineConfig, TokenizerConfig
from .inputs import dataset_of
from .mixture import weighed
from .tag import Tag
from .text import Formatted, Tokenize, load_tokenizer, tokenizer_of
from .writer import write_shards

FORMATS: dict[str, FormatName] = {
    "parquet": "parquet", "arrow": "arrow", "csv": "csv", "json": "jsonl", "jsonl": "jsonl", "txt": "text",
    "text": "text",
}  # fmt: skip
HUB = ("huggingface", "hf")


class Pipeline:
    """Stages over named datasets, in the order in which they are called; each gives the pipeline
    back.

    `build` gives a `penstock.Loader`: `for batch in loader`, `state_dict()`,
        `load_state_dict(state)`, ranks found by
    themselves. Nothing is read before, except by `save`.

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
        """A pipeline from its settings, or from a mapping of them."""
        return cls(PipelineConfig.from_dict(config) if isinstance(config, Mapping) else config)

    # ------------------------------------------------------------ stages

    def source(self) -> Self:
        """Open the datasets."""
        self._data = {
            str(one.name): open_rows(one, self.config.streaming) for one in self.config.datasets
        }
        return self

    def tokenize(self) -> Self:
        """Texts to `input_ids` and `attention_mask`, each dataset by its own tokenizer."""
        data, known = self._now("tokenize"), dict[str, Any]()
        for one in self.config.datasets:
            given, extra = tokenizer_of(self.config, one), one.tokenizer_kwargs or {}
            key = f"{given!r} {sorted(extra.items())!r}"
            if key not in known:
                known[key] = load_tokenizer(given, extra)
            if (pad := getattr(known[key], "pad_token_id", None)) is not None:
                self._pad = pad
            call = given if isinstance(given, TokenizerConfig) else TokenizerConfig("")
            if call.max_length is None:
                call = replace(call, max_length=self.config.tokenize.max_length)
            data[str(one.name)] = data[str(one.name)].map(
                Tokenize(known[key], call, replace(one, name=str(one.name)))
            )
        return self

    def mix(self) -> Self:
        """One dataset of all, by weight; rows get `__source__`, the name of their dataset."""
        data, asked = self._now("mix"), self.config.mix
        weights = weighed(asked.weights, asked.schedule, data, "MixStageConfig")
        seed = self.config.seed if asked.seed is None else asked.seed
        inputs = {name: dataset.map(Tag(name)) for name, dataset in data.items()}
        mixed = mix(
            inputs, weights, seed=seed or 0, block_size=asked.block_size, stop=asked.stop_strategy
        )
        self._data = {"mixed": mixed}
        return self

    def pack(self) -> Self:
        """Token rows packed into rows of one length, with `attention_mask`, `segment_ids` and
        `position_ids`."""
        data, asked = self._now("pack"), self.config.pack
        if not asked.enabled:
            return self
        options: dict[str, Any] = {"eos": asked.eos_token_id, "pad": asked.pad_token_id}
        options |= {} if asked.num_packers is None else {"open_rows": asked.num_packers}
        for name, dataset in data.items():
            rows = dataset.map(tokens_only).pack(
                asked.seq_length, STRATEGIES[asked.strategy], **options
            )
            rows = rows.map(with_segments if asked.include_segment_ids else without_segments)
            if asked.shuffle_packed:
                rows = rows.shuffle_buffer(100 * asked.shuffle_buffer_factor, seed=self.config.seed)
            data[name] = rows
        return self

    def save(self) -> Self:
        """Write the rows to files now; the stages that follow read these files."""
        data, asked = self._now("save"), self.config.save
        if not asked.enabled:
            return self
        if place()[1] > 1:
            raise ConfigError(
                "save() on several ranks would write the same files on each: save once, beforehand"
            )
        places = {str(one.name): one for one in self.config.datasets}
        for name, dataset in data.items():
            own = places.get(name)
            folder = own.save_path if own and own.save_path else asked.output_dir
            folder = folder if len(data) == 1 or (own and own.save_path) else f"{folder}/{name}"
            kind = own.save_format if own and own.save_format else asked.format
            files = write_shards(
                dataset, local(folder), replace(asked, format=kind), rows_in(dataset)
            )
            data[name] = read(cast("list[str | Path]", files), name=name)
        return self

    def load(self) -> Self:
        """Batches of rows: mappings of NumPy arrays, token rows padded to the longest of the
        batch."""
        data, asked = self._now("load"), self.config.load
        for name, dataset in data.items():
            if asked.shuffle_buffer_size is not None:
                dataset = dataset.shuffle_buffer(asked.shuffle_buffer_size, seed=self.config.seed)
            data[name] = dataset.batch(asked.batch_size, asked.drop_last, Padded(self._pad))
        self._batched = True
        return self

    def build(self) -> Loader:
        """The loader over the one dataset that there is now."""
        data, asked = self._now("build", after_load=True), self.config.load
        if len(data) > 1:
            raise ConfigError(
                f"build(): there are {len(data)} datasets ({', '.join(data)}); call .mix() before"
            )
        (dataset,) = data.values()
        workers = asked.prefetch_workers if asked.prefetch_enabled else 0
        return Loader(
            dataset, workers=workers, prefetch=asked.prefetch_buffer_size or None, lanes=asked.lanes
        )

    def get_data(self) -> dict[str, Dataset]:
        """The datasets as they are after the stages so far."""
        return dict(self._now("get_data", after_load=True))

    def _now(self, stage: str, after_load: bool = False) -> dict[str, Dataset]:
        if self._data is None:
            raise ConfigError(f"{stage}(): there are no datasets yet; call .source() first")
        if self._batched and not after_load:
            raise ConfigError(
                f"{stage}(): the rows are in batches already; call .{stage}() before .load()"
            )
        return self._data


def open_rows(one: DatasetConfig, streaming: bool) -> Dataset:
    """The rows of a dataset: of local files, or from the hub."""
    name, kind = str(one.name), one.type
    if kind is not None and kind not in (*FORMATS, *HUB):
        raise ConfigError(
            f"the dataset {name!r}: unknown type {kind!r}: one of {', '.join((*FORMATS, *HUB))}"
        )
    if kind in HUB or (
        kind is None and isinstance(one.data_files, str) and _is_hub_name(one.data_files)
    ):
        rows = dataset_of(_from_hub(one, streaming), name)
    else:
        if one.split != "train" or one.dataset_split_name is not None:
            raise ConfigError(
                f"the dataset {name!r}: local files have no splits; name the files of the split"
            )
        rows = read(
            one.data_files, FORMATS[kind] if kind else None, name=name, cache=one.cache_path
        )
    rows = rows if one.num_rows is None else rows.limit(one.num_rows)
    if one.format_callback is None and not one.format_fields:
        return rows
    return rows.map(Formatted(name, one.format_callback, one.format_fields))


def _is_hub_name(name: str) -> bool:
    return (
        not any(letter in name for letter in "*?[{")
        and format_of(Path(name)) is None
        and not Path(name).exists()
    )


def _from_hub(one: DatasetConfig, streaming: bool) -> Any:
    try:
        import datasets  # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError as error:
        raise missing_extra("datasets", "hf", f"the dataset {one.name!r}") from error
    load = cast(Any, datasets).load_dataset
    return load(one.data_files, one.dataset_split_name, split=one.split, streaming=streaming)


def rows_in(dataset: Dataset) -> int | None:
    """The number of rows, where it is known; a dataset that never ends cannot be saved."""
    if why_not(dataset.flow) is None:
        try:
            return len(dataset)
        except TypeError:
            pass
    elif not endless(dataset.flow):
        return None
    raise ConfigError(
        "save(): the mixture never ends with stop_strategy='restart'; choose 'all_exhausted', or "
        "save before mix()"
    )


def tokens_only(row: Mapping[str, Any]) -> dict[str, Any]:
    """What packing takes: the tokens, and where they are from."""
    return {
        name: value for name, value in row.items() if name == "input_ids" or name.startswith("__")
    }


def with_segments(row: Mapping[str, Any]) -> dict[str, Any]:
    """A packed row in the terms of `transformers`."""
    return {
        **without_segments(row),
        "segment_ids": row["segment_ids"],
        "position_ids": row["positions"],
    }


def without_segments(row: Mapping[str, Any]) -> dict[str, Any]:
    """A packed row without the places of its documents."""
    own = {name: value for name, value in row.items() if name not in ("segment_ids", "positions")}
    return {**own, "attention_mask": (row["segment_ids"] > 0).astype("int32")}
