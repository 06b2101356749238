"""Open the rows of a dataset from its settings: local or remote files, or a dataset of the hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from ...dataset import Dataset
from ...errors import ConfigError
from ...inputs import read
from ...sources.paths import FormatName, detect_format
from .config import DatasetConfig
from .inputs import dataset_of
from .mixture import as_hub
from .sources import (
    ArrowShardedSource,
    CsvShardedSource,
    FilesShardedSource,
    HuggingFaceShardedSource,
    JsonShardedSource,
    ParquetShardedSource,
    TextShardedSource,
    expand_data_files,
    load_hub_dataset,
)
from .text import Formatted

FORMATS: dict[str, FormatName] = {
    "parquet": "parquet", "arrow": "arrow", "csv": "csv", "tsv": "csv", "json": "jsonl",
    "jsonl": "jsonl", "txt": "text", "text": "text",
}  # fmt: skip
HUB = ("huggingface", "hf")

_SOURCES: dict[str, type[FilesShardedSource]] = {
    "parquet": ParquetShardedSource,
    "arrow": ArrowShardedSource,
    "csv": CsvShardedSource,
    "jsonl": JsonShardedSource,
}


def create_source(config: DatasetConfig) -> FilesShardedSource | HuggingFaceShardedSource:
    """Return the sharded source of a dataset, by its type or the ending of its files.

    Args:
        config: the settings of the dataset.

    Raises:
        ConfigError: for an unknown type or ending, and for splits of files.
    """
    if is_on_hub(config):
        return HuggingFaceShardedSource(
            str(config.data_files), config.split, config.dataset_split_name
        )
    files = expand_data_files(config.data_files)
    kind = FORMATS[config.type] if config.type else detect_format(Path(files[0]))
    if _ends_with(config, "tsv"):
        return CsvShardedSource(files, delimiter="\t")
    if kind == "text":
        return TextShardedSource(files, text_field=config.content_field)
    if kind not in _SOURCES:
        raise ConfigError(f"{files[0]}: the name tells no format: give DatasetConfig(type=...)")
    return _SOURCES[kind](files)


def open_rows(config: DatasetConfig, streaming: bool) -> Dataset:
    """Open the rows of a dataset, from files or from the hub.

    Args:
        config: the settings of the dataset.
        streaming: whether to stream a dataset of the hub.

    Raises:
        ConfigError: for an unknown type, and for splits of files.
    """
    name, files = str(config.name), config.data_files
    if is_on_hub(config):
        subset, split = config.dataset_split_name, config.split
        rows = dataset_of(load_hub_dataset(str(files), subset, split, streaming), name)
    elif _ends_with(config, "tsv"):
        rows = create_source(config).dataset
    else:
        kind = FORMATS[config.type] if config.type else None
        paths = cast("str | Sequence[str]", files)
        rows = read(paths, kind, name=name, cache=config.cache_path)
        if config.content_field != "text" and _ends_with(config, "txt"):
            rows = rows.rename({"text": config.content_field})
    rows = rows if config.num_rows is None else rows.limit(config.num_rows)
    if config.format_callback is None and not config.format_fields:
        return rows
    return rows.map(Formatted(name, config.format_callback, config.format_fields))


def is_on_hub(config: DatasetConfig) -> bool:
    """Return whether a dataset is one of the Hugging Face hub.

    Args:
        config: the settings of the dataset.

    Raises:
        ConfigError: for an unknown type, and for splits of files.
    """
    kind, files = config.type, config.data_files
    if kind is not None and kind not in (*FORMATS, *HUB):
        known = ", ".join((*FORMATS, *HUB))
        raise ConfigError(f"dataset {config.name!r}: unknown type {kind!r}: use one of {known}")
    if kind in HUB or (kind is None and isinstance(files, str) and _is_hub_name(files)):
        return True
    if config.split != "train" or config.dataset_split_name is not None:
        raise ConfigError(
            f"dataset {config.name!r}: local files have no splits: name the files of the split"
        )
    return False


def load_for_inform(inform: Any, mixture: Any) -> Any:
    """Return the rows of an inform as a Hugging Face `IterableDataset`.

    Args:
        inform: the settings of the dataset.
        mixture: the `DatasetMixture`, for its folder of indexes and `streaming`.
    """
    return as_hub(open_rows(inform.to_config("inform", mixture.cache_dir), mixture.streaming))


def _ends_with(config: DatasetConfig, kind: str) -> bool:
    """Return whether files have a type, or names that end with it if no type is set."""
    files = config.data_files
    first = files if isinstance(files, str | Path) else files[0]
    return config.type == kind or (config.type is None and str(first).endswith(f".{kind}"))


def _is_hub_name(name: str) -> bool:
    return (
        not any(letter in name for letter in "*?[{")
        and detect_format(Path(name)) is None
        and not Path(name).exists()
    )
