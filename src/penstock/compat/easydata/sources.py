"""Sharded sources: named shards that open at any row, mixed or concatenated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ...dataset import Dataset
from ...engine.mixing import Stop
from ...engine.runtime.iterator import DatasetIterator
from ...errors import ConfigError
from ...inputs import mix, read
from ...sources.paths import FormatName, find
from .inputs import dataset_of, is_stream
from .mixture import checked_weights
from .tag import Tag
from .weights import WeightScheduler

Paths = str | Sequence[str]


class ShardedSource(ABC):
    """Base of all sharded sources; `dataset` is the whole source as a Penstock dataset.

    `open_shard` returns an iterator with `state_dict()` and `load_state_dict()`.
    `open_shard_at_row` seeks in constant time if rows have random access (files, map-style
    datasets, mixtures of these).
    """

    @property
    @abstractmethod
    def shard_names(self) -> list[str]:
        """Names of the shards, in order."""

    @property
    @abstractmethod
    def dataset(self) -> Dataset:
        """All shards, concatenated."""

    @abstractmethod
    def _shard(self, name: str) -> Dataset: ...

    def num_shards(self) -> int:
        """Return the number of shards."""
        return len(self.shard_names)

    def __len__(self) -> int:
        return len(self.dataset)

    def open_shard(self, name: str) -> DatasetIterator:
        """Iterate over the rows of a shard.

        Args:
            name: name of the shard.
        """
        return iter(self._named(name))

    def open_shard_at_row(self, name: str, row: int) -> DatasetIterator:
        """Iterate over the rows of a shard from a row on; empty beyond the end.

        Args:
            name: name of the shard.
            row: index of the first row.
        """
        rows = self.open_shard(name)
        rows._session.seek(row, counted=False)  # pyright: ignore[reportPrivateUsage]  # resume from a row number, without a state
        return rows

    def _named(self, name: str) -> Dataset:
        if name not in self.shard_names:
            raise ConfigError(
                f"unknown shard {name!r}; the shards are {', '.join(self.shard_names)}"
            )
        return self._shard(name)


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
        self.is_streaming = is_stream(dataset)
        self._dataset = dataset_of(dataset, self.name)

    @property
    def shard_names(self) -> list[str]:
        """The single shard name."""
        return [f"{self.name}:0"]

    @property
    def dataset(self) -> Dataset:
        """The rows of the dataset."""
        return self._dataset

    def _shard(self, name: str) -> Dataset:
        return self._dataset


class FilesShardedSource(ShardedSource):
    """Files of one format: each file is a shard, named by its path."""

    format: FormatName

    def __init__(
        self, data_files: Paths, storage_options: Any = None, columns: Sequence[str] | None = None
    ) -> None:
        if storage_options is not None:
            raise ConfigError(
                "storage_options are for object stores, which are not supported here: copy the "
                "files to local disk"
            )
        self._files = [path.as_posix() for path in find(data_files)]
        self._columns = columns
        self._dataset = read(self._files, self.format, columns)

    @property
    def shard_names(self) -> list[str]:
        """The paths, sorted."""
        return list(self._files)

    @property
    def dataset(self) -> Dataset:
        """The rows of all files."""
        return self._dataset

    def _shard(self, name: str) -> Dataset:
        return read(name, self.format, self._columns)


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


class ArrowShardedSource(FilesShardedSource):
    """Arrow IPC files, in the file or the stream format."""

    format = "arrow"


class JsonShardedSource(FilesShardedSource):
    """JSON Lines (`.jsonl`, also compressed), and `.json` files of lines or of one array.

    The content of a `.json` file decides between the two.
    """

    format = "jsonl"


class CsvShardedSource(FilesShardedSource):
    """CSV files with a header."""

    format = "csv"


class TextShardedSource(FilesShardedSource):
    """Text files, one row per non-empty line; `text_field` names its only field.

    Args:
        data_files: files, a glob, or a list of these.
        storage_options: not supported.
        text_field: name of the field.
    """

    format = "text"

    def __init__(
        self, data_files: Paths, storage_options: Any = None, text_field: str = "text"
    ) -> None:
        super().__init__(data_files, storage_options)
        self._renamed = None if text_field == "text" else Renamed(text_field)

    @property
    def dataset(self) -> Dataset:
        """The lines of all files."""
        return self._dataset.map(self._renamed) if self._renamed else self._dataset

    def _shard(self, name: str) -> Dataset:
        lines = super()._shard(name)
        return lines.map(self._renamed) if self._renamed else lines


class Renamed:
    """Rename the field `text` of a row."""

    def __init__(self, field: str) -> None:
        self._field = field

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {self._field: row["text"]}


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
        return (
            source._named(shard)
            if isinstance(source, ShardedSource)
            else dataset_of(OneShard(source, shard), name)
        )


class OneShard:
    """One shard of a source of another library."""

    def __init__(self, source: Any, shard: str) -> None:
        self._source, self.shard_names = source, [shard]

    def open_shard(self, name: str) -> Any:
        return self._source.open_shard(name)


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
