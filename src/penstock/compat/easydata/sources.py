"""Sharded sources: named shards that open at any row, mixed or concatenated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias, cast

from ...dataset import Dataset
from ...engine.mixing import Stop
from ...errors import ConfigError, make_missing_extra_error
from ...inputs import mix, read
from ...sources.paths import FormatName, find
from ...stores.remote import is_remote
from .inputs import dataset_of, is_stream
from .mixture import checked_weights
from .sharded import ShardedDataSource, ShardedSource, ShardInfo, get_shard_of
from .tag import Tag
from .weights import WeightScheduler

Paths: TypeAlias = str | Path | Sequence[str | Path]


class HFDatasetShardedSource(ShardedSource):
    """A Hugging Face dataset (map-style or streaming), or anything with rows, as one shard.

    Args:
        dataset: the dataset.
        name: its name; "hf_dataset" by default.

    >>> source = HFDatasetShardedSource([{"x": 1}, {"x": 2}])
    >>> source.shard_names, list(source.open_shard_at_row("hf_dataset:0", 1))
    (['hf_dataset:0'], [{'x': 2}])
    """

    def __init__(self, dataset: Any, name: str | None = None) -> None:
        self.name = name or "hf_dataset"
        self._is_streaming = is_stream(dataset)
        self._dataset = dataset_of(dataset, self.name)

    @property
    def shard_names(self) -> list[str]:
        """The single shard name."""
        return [f"{self.name}:0"]

    @property
    def dataset(self) -> Dataset:
        """The rows of the dataset."""
        return self._dataset

    @property
    def is_streaming(self) -> bool:
        """True for a stream."""
        return self._is_streaming

    @property
    def estimated_length(self) -> int | None:
        """The number of rows; None for a stream."""
        info = self.get_shard_info(self.shard_names[0])
        return info.num_rows if info else None

    def _shard(self, name: str) -> Dataset:
        return self._dataset

    def __repr__(self) -> str:
        return f"HFDatasetShardedSource({self.name!r})"


class HuggingFaceShardedSource(ShardedSource):
    """A dataset of the Hugging Face hub, or a local folder of one, as one shard.

    It is loaded at the first use.

    Args:
        dataset_name: name on the hub, or a folder.
        split: name of the split.
        subset: name of the configuration.
        streaming: whether to stream it, instead of downloading it first.
        cache_dir: folder for downloads.
    """

    def __init__(
        self,
        dataset_name: str,
        split: str = "train",
        subset: str | None = None,
        streaming: bool = True,
        cache_dir: str | None = None,
    ) -> None:
        self.name, self.split, self.subset = dataset_name, split, subset
        self.streaming, self.cache_dir = streaming, cache_dir

    @property
    def shard_names(self) -> list[str]:
        """The single shard name."""
        return [f"{self.name}:{self.split}"]

    @property
    def dataset(self) -> Dataset:
        """The rows of the split."""
        return self._rows

    @cached_property
    def _rows(self) -> Dataset:
        rows = load_hub_dataset(
            self.name, self.subset, self.split, self.streaming, cache_dir=self.cache_dir
        )
        return dataset_of(rows, self.name)

    def _shard(self, name: str) -> Dataset:
        return self._rows

    def __repr__(self) -> str:
        return f"HuggingFaceShardedSource({self.name!r}, split={self.split!r})"


def load_hub_dataset(
    name: str, subset: str | None, split: str, streaming: bool, **options: Any
) -> Any:
    """Return a split of a dataset of the Hugging Face hub.

    Args:
        name: name on the hub, or a folder.
        subset: name of the configuration.
        split: name of the split.
        streaming: whether to stream it.
        options: other arguments of `datasets.load_dataset`.
    """
    try:
        import datasets  # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError as error:
        raise make_missing_extra_error("datasets", "hf", f"the dataset {name!r}") from error
    load = cast(Any, datasets).load_dataset
    return load(name, subset, split=split, streaming=streaming, **options)


_VARIABLES = {
    "key": "AWS_ACCESS_KEY_ID",
    "secret": "AWS_SECRET_ACCESS_KEY",
    "endpoint_url": "AWS_ENDPOINT_URL",
    "anon": "AWS_NO_SIGN_REQUEST",
    "token": "GOOGLE_APPLICATION_CREDENTIALS",
    "account_name": "AZURE_STORAGE_ACCOUNT_NAME",
    "account_key": "AZURE_STORAGE_ACCOUNT_KEY",
}
"""Option of fsspec -> environment variable of the store's own tools."""


_DEFAULTS = (("token", "cloud"), ("token", "google_default"), ("anon", False))
"""Options of fsspec for the credentials of the process, which apply without them."""


def _drop_defaults(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are not the defaults."""
    return {name: value for name, value in options.items() if (name, value) not in _DEFAULTS}


def _describe_variables(options: Mapping[str, Any]) -> str:
    """Return how to give the options of a store; their values are secrets and stay out of it."""
    names = [_VARIABLES[name] for name in options if name in _VARIABLES]
    known = f": set {', '.join(names)}" if names else ", see docs/stores.md"
    return f"credentials come from the environment{known}"


class FilesShardedSource(ShardedSource):
    """Files of one format: each file is a shard, named by its path."""

    format: FormatName

    def __init__(
        self, data_files: Paths, storage_options: Any = None, columns: Sequence[str] | None = None
    ) -> None:
        if needed := _drop_defaults(storage_options or {}):
            raise ConfigError(
                f"{type(self).__name__}(storage_options=...) would have no effect: "
                f"{_describe_variables(needed)}"
            )
        self._files = expand_data_files(data_files)
        self._columns = columns
        self._dataset = self._read(self._files)

    @property
    def shard_names(self) -> list[str]:
        """The paths, sorted."""
        return list(self._files)

    @property
    def dataset(self) -> Dataset:
        """The rows of all files."""
        return self._dataset

    def _shard(self, name: str) -> Dataset:
        return self._read([name])

    def _read(self, files: list[str]) -> Dataset:
        return read(files if len(files) > 1 else files[0], self.format, self._columns)

    def get_shard_info(self, shard_name: str) -> ShardInfo | None:
        """Return facts about a file.

        Args:
            shard_name: its path.
        """
        info = super().get_shard_info(shard_name)
        return replace(info, url=shard_name) if info else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self._files)} files)"


class ParquetShardedSource(FilesShardedSource):
    """Parquet files, a glob, or a list of these; only `columns` are read.

    >>> import tempfile, pyarrow as pa, pyarrow.parquet as pq
    >>> folder = tempfile.mkdtemp()
    >>> pq.write_table(pa.table({"x": [1, 2, 3]}), f"{folder}/a.parquet")
    >>> source = ParquetShardedSource(f"{folder}/*.parquet")
    >>> list(source.open_shard_at_row(source.shard_names[0], 2))
    [{'x': 3}]
    """

    format = "parquet"

    def get_shard_info(self, shard_name: str) -> ParquetShardInfo | None:
        """Return facts about a file, with the number of its row groups.

        Args:
            shard_name: its path.
        """
        from pyarrow import parquet

        info = super().get_shard_info(shard_name)
        if info is None:
            return None
        metadata = None if is_remote(shard_name) else cast(Any, parquet).read_metadata(shard_name)
        return ParquetShardInfo(
            **vars(info), num_row_groups=metadata.num_row_groups if metadata else 0
        )


@dataclass
class ParquetShardInfo(ShardInfo):
    """Facts about a Parquet file; for a local file the number of its row groups too.

    Args:
        num_row_groups: number of row groups; 0 if unknown.
    """

    num_row_groups: int = 0


class ArrowShardedSource(FilesShardedSource):
    """Arrow IPC files, in the file or the stream format."""

    format = "arrow"


class JsonShardedSource(FilesShardedSource):
    """JSON Lines (`.jsonl`, also compressed), and `.json` files of lines or of one array.

    Args:
        data_files: files, a glob, or a list of these.
        storage_options: only the credentials of the process, such as `{"token": "cloud"}`.
        jsonl: accepted for either form; the content of a `.json` file decides.
    """

    format = "jsonl"

    def __init__(self, data_files: Paths, storage_options: Any = None, jsonl: bool = True) -> None:
        super().__init__(data_files, storage_options)


class CsvShardedSource(FilesShardedSource):
    """CSV files with a header; with another delimiter than a comma, files are read into memory.

    Args:
        data_files: files, a glob, or a list of these.
        storage_options: only the credentials of the process, such as `{"token": "cloud"}`.
        delimiter: character between values.
    """

    format = "csv"

    def __init__(
        self, data_files: Paths, storage_options: Any = None, delimiter: str = ","
    ) -> None:
        self._delimiter = delimiter
        super().__init__(data_files, storage_options)

    def _read(self, files: list[str]) -> Dataset:
        if self._delimiter == ",":
            return super()._read(files)
        from pyarrow import csv

        options = csv.ParseOptions(delimiter=self._delimiter)
        first, *others = [
            read(cast(Any, csv).read_csv(file, parse_options=options), name=file) for file in files
        ]
        return first.concat(*others) if others else first


class TextShardedSource(FilesShardedSource):
    """Text files, one row per non-empty line; `text_field` names its only field.

    Args:
        data_files: files, a glob, or a list of these.
        storage_options: only the credentials of the process, such as `{"token": "cloud"}`.
        text_field: name of the field.
    """

    format = "text"

    def __init__(
        self, data_files: Paths, storage_options: Any = None, text_field: str = "text"
    ) -> None:
        self._text_field = text_field
        super().__init__(data_files, storage_options)

    def _read(self, files: list[str]) -> Dataset:
        lines = super()._read(files)
        return lines if self._text_field == "text" else lines.rename({"text": self._text_field})


class CompositeShardedSource(ShardedSource):
    """Concatenate the shards of several sources.

    Duplicate shard names get a number from the second on.

    Args:
        sources: the sources.

    Raises:
        ConfigError: without sources.

    >>> both = CompositeShardedSource([HFDatasetShardedSource([{"x": 1}]), HFDatasetShardedSource([{"x": 2}])])
    >>> both.shard_names, [row["x"] for name in both.shard_names for row in both.open_shard(name)]
    (['hf_dataset:0', 'hf_dataset:0#2'], [1, 2])
    """

    def __init__(self, sources: Sequence[Any]) -> None:
        if not sources:
            raise ConfigError("CompositeShardedSource: no sources: give a list of at least one")
        self._shards: dict[str, tuple[Any, str]] = {}
        for source in sources:
            for shard in source.shard_names:
                name, count = shard, 1
                while name in self._shards:
                    count += 1
                    name = f"{shard}#{count}"
                self._shards[name] = source, shard
        first, *others = [dataset_of(source, f"sources[{i}]") for i, source in enumerate(sources)]
        self._dataset = first.concat(*others)

    @property
    def shard_names(self) -> list[str]:
        """The shards of all sources, in the order of the sources."""
        return list(self._shards)

    @property
    def dataset(self) -> Dataset:
        """The rows of all sources."""
        return self._dataset

    def _shard(self, name: str) -> Dataset:
        source, shard = self._shards[name]
        return get_shard_of(source, shard)


@dataclass
class MixedShardState:
    """A place in a mixture, for `open_shard_at_row(name, state.examples_yielded)`.

    A user fills it; nothing here writes one. `state_dict()` of an opened shard has the exact
    position.

    Args:
        source_index: index of a source.
        shard_index: index of its shard.
        row_index: row in that shard.
        block_index: number of the block of the mixture.
        examples_yielded: rows of the mixture so far.
    """

    source_index: int
    shard_index: int
    row_index: int
    block_index: int = 0
    examples_yielded: int = 0


class MixedShardedSource(ShardedSource):
    """Mix sources by weight, or by a schedule of weights, as one shard `mixed_shard_0`.

    The schedule counts samples. Rows are copies with `__source__`, the name in `sources`. If a
    source is itself a mixture, rows also have `__source_path__`, the names from the outermost to
    the innermost ("web/wiki"). The seed defaults to 0, so two runs are equal. A `weight_scheduler`
    takes precedence, and `weights` are only checked. The rules are those of
    `penstock.engine.mixing`.

    Args:
        sources: sources by name.
        weights: weight by source; equal by default.
        block_size: rows per block.
        seed: seed of the order within blocks.
        stop_strategy: as `stop` of `block_mixture_interleave`.
        weight_scheduler: schedule of weights.

    Raises:
        ConfigError: if `sources` is not a mapping, or weights do not name them.

    >>> mixed = MixedShardedSource({"a": HFDatasetShardedSource([{"x": 1}]), "b": HFDatasetShardedSource([{"x": 2}])})
    >>> rows = mixed.open_shard(mixed.shard_names[0])
    >>> {next(rows)["__source__"] for _ in range(9)} == {"a", "b"}
    True
    """

    def __init__(
        self,
        sources: Mapping[str, Any],
        weights: Mapping[str, float] | None = None,
        block_size: int = 1000,
        seed: int | None = None,
        stop_strategy: Stop = "restart",
        weight_scheduler: WeightScheduler | None = None,
    ) -> None:
        if not isinstance(sources, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(
                f"MixedShardedSource: the sources are a {type(sources).__name__}; give {{name: "
                "source}"
            )
        schedule = weight_scheduler.schedule if weight_scheduler else None
        self.weights = checked_weights(weights, schedule, sources, "MixedShardedSource")
        self.seed, self.block_size, self.stop_strategy = seed or 0, block_size, stop_strategy
        nested = any(isinstance(source, MixedShardedSource) for source in sources.values())
        inputs = {
            name: dataset_of(source, name).map(Tag(name, nested))
            for name, source in sources.items()
        }
        self._dataset = mix(
            inputs, self.weights, seed=self.seed, block_size=block_size, stop=stop_strategy
        )

    def __repr__(self) -> str:
        return f"MixedShardedSource(weights={self.weights}, block_size={self.block_size}, {self.stop_strategy!r})"

    @property
    def shard_names(self) -> list[str]:
        """The single shard name: a mixture is one sequence."""
        return ["mixed_shard_0"]

    @property
    def dataset(self) -> Dataset:
        """The mixture."""
        return self._dataset

    def _shard(self, name: str) -> Dataset:
        return self._dataset


def expand_data_files(data_files: Paths) -> list[str]:
    """Return the files of paths, globs and folders: sorted and unique.

    Args:
        data_files: a path, a glob, a folder, or a list of these.

    Raises:
        ConfigError: if one of them matches no file.
    """
    return [path.as_posix() for path in find(data_files)]


def wrap_hf_dataset(dataset: Any) -> ShardedDataSource[Any]:
    """Return a sharded source of a dataset; a sharded source is returned unchanged.

    Args:
        dataset: a Hugging Face dataset, a Penstock dataset, rows, or a sharded source.

    Raises:
        ConfigError: for an object without rows.

    >>> list(wrap_hf_dataset([{"x": 1}]))
    [{'x': 1}]
    """
    if isinstance(dataset, ShardedDataSource):
        return cast("ShardedDataSource[Any]", dataset)
    return HFDatasetShardedSource(dataset)
