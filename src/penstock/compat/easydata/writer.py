"""Writers of shards with EasyData's settings: sizes as "500MB", or a number of shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from ...arguments import check_choice
from ...dataset import Dataset
from ...errors import ConfigError, make_missing_extra_error
from ...stores.urls import require_local
from ...writing import RowFormat, write_rows
from .config import SaveStageConfig
from .inputs import dataset_of, read_once

_UNITS = {
    "B": 1,
    **{f"{letter}B": 1 << 10 * (i + 1) for i, letter in enumerate("KMGT")},
    **{f"{letter}IB": 1 << 10 * (i + 1) for i, letter in enumerate("KMGT")},
}


def parse_size(size: str | int) -> int:
    """Parse a number of bytes; as in EasyData, 1 KB is 1,024 bytes.

    Args:
        size: a number, or a text such as "500MB".

    Returns:
        The number of bytes.

    Raises:
        ConfigError: for another text, and sizes below one byte.

    >>> parse_size("1.5KB"), parse_size("500MB"), parse_size(7)
    (1536, 524288000, 7)
    """
    text = str(size).replace(" ", "").upper()
    number = text.rstrip("TKMGIB")
    try:
        size_in_bytes = int(float(number) * _UNITS[text[len(number) :] or "B"])
    except (ValueError, KeyError, OverflowError):
        size_in_bytes = 0
    if size_in_bytes < 1:
        raise ConfigError(
            f"max_shard_size={size!r}: give a number of bytes, such as '500MB' or '1GB'"
        )
    return size_in_bytes


def write_shards(
    rows: Iterable[Any], folder: Path, config: SaveStageConfig, total: int | None
) -> list[Path]:
    """Write rows to `shard-00000...` in a folder, and return the files.

    `total` is the number of rows, if known.
    """
    max_bytes, counts = parse_size(config.max_shard_size), _counts(config.num_shards, total)
    form = cast(RowFormat, config.format)
    return write_rows(
        rows, folder, form, config.compression, max_bytes, counts, total, config.overwrite
    )


def rows_in(dataset: Dataset) -> int | None:
    """Return the number of rows, or None if unknown; an endless dataset raises an error."""
    if dataset.tree.reason_not_indexed is None:
        try:
            return len(dataset)
        except TypeError:
            pass
    elif not dataset.tree.is_endless:
        return None
    raise ConfigError(
        "save(): the mixture is endless with stop_strategy='restart': choose 'all_exhausted', or "
        "save before mix()"
    )


@dataclass
class WriteStats:
    """Counts of written rows and files.

    Args:
        num_examples: number of rows.
        num_shards: number of files.
        total_bytes: size of the files.
        output_paths: the files.
    """

    num_examples: int = 0
    num_shards: int = 0
    total_bytes: int = 0
    output_paths: list[str] = field(default_factory=list[str])


class DatasetWriter:
    """Write sharded sources to `shard-00000...` in a folder.

    Args:
        output_path: the folder.
        max_shard_size: maximum bytes of a file, before compression.
        num_shards: number of files, instead of `max_shard_size`.
        compression: codec of the format.
        overwrite: whether to replace files of an earlier save.
    """

    format: RowFormat

    def __init__(
        self,
        output_path: str | Path,
        max_shard_size: int = 500 << 20,
        num_shards: int | None = None,
        compression: str | None = None,
        overwrite: bool = False,
    ) -> None:
        self.output_path, self.max_shard_size = output_path, max_shard_size
        self.num_shards, self.compression, self.overwrite = num_shards, compression, overwrite

    def write(self, source: Any) -> WriteStats:
        """Write all rows of a source.

        Args:
            source: a sharded source, a dataset, or rows.

        Returns:
            The counts.

        Raises:
            ConfigError: for an endless source, and files of an earlier save without `overwrite`.
        """
        if not hasattr(self, "format"):
            raise ConfigError("DatasetWriter has no format: use ParquetWriter or create_writer")
        dataset = dataset_of(source, "source")
        config = SaveStageConfig(
            format=self.format,
            num_shards=self.num_shards,
            compression=self.compression,
            max_shard_size=self.max_shard_size,
            overwrite=self.overwrite,
        )
        counted = _Counted(dataset)
        files = write_shards(counted, require_local(self.output_path), config, rows_in(dataset))
        sizes = [file.stat().st_size for file in files]
        return WriteStats(counted.count, len(files), sum(sizes), [str(file) for file in files])


class _Counted:
    """Rows, and how many of them were read."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self._rows, self.count = rows, 0

    def __iter__(self) -> Iterator[Any]:
        self.count = 0
        for row in self._rows:
            self.count += 1
            yield row


class ParquetWriter(DatasetWriter):
    """Write Parquet files; snappy is the default compression."""

    format = "parquet"


class ArrowWriter(DatasetWriter):
    """Write Arrow IPC files."""

    format = "arrow"


class JsonlWriter(DatasetWriter):
    """Write lines of JSON; `compression="gzip"` makes `.jsonl.gz`."""

    format = "jsonl"


_WRITERS = {"parquet": ParquetWriter, "arrow": ArrowWriter, "jsonl": JsonlWriter}


def create_writer(
    output_path: str | Path,
    format: str = "parquet",
    max_shard_size: str | int = "500MB",
    num_shards: int | None = None,
    compression: str | None = None,
    overwrite: bool = False,
) -> DatasetWriter:
    """Return the writer of a format.

    Args:
        output_path: the folder.
        format: "parquet", "arrow" or "jsonl".
        max_shard_size: maximum size of a file.
        num_shards: number of files, instead of `max_shard_size`.
        compression: codec of the format.
        overwrite: whether to replace files of an earlier save.

    Raises:
        ConfigError: for an unknown format or size.
    """
    check_choice(format, tuple(_WRITERS), "create_writer(format={})")
    size = parse_size(max_shard_size)
    return _WRITERS[format](output_path, size, num_shards, compression, overwrite)


def save_dataset(
    source: Any,
    output_path: str | Path,
    format: str = "parquet",
    max_shard_size: str | int = "500MB",
    num_shards: int | None = None,
    compression: str | None = None,
    overwrite: bool = False,
) -> WriteStats:
    """Write all rows of a source to files in a folder.

    Args:
        source: a sharded source, a dataset, or rows.
        output_path: the folder.
        format: "parquet", "arrow" or "jsonl".
        max_shard_size: maximum size of a file.
        num_shards: number of files, instead of `max_shard_size`.
        compression: codec of the format.
        overwrite: whether to replace files of an earlier save.

    Returns:
        The counts.

    >>> import tempfile
    >>> save_dataset([{"x": 1}, {"x": 2}], tempfile.mkdtemp(), "jsonl").num_examples
    2
    """
    writer = create_writer(output_path, format, max_shard_size, num_shards, compression, overwrite)
    return writer.write(source)


def save_iterator(
    iterator: Iterable[Any],
    output_path: str | Path,
    format: str = "parquet",
    max_shard_size: str | int = "500MB",
    compression: str | None = None,
) -> WriteStats:
    """Write the rows of an iterator, which is read once, to files in a folder.

    Args:
        iterator: the rows.
        output_path: the folder.
        format: "parquet", "arrow" or "jsonl".
        max_shard_size: maximum size of a file.
        compression: codec of the format.

    Returns:
        The counts.
    """
    return save_dataset(
        read_once(iterator), output_path, format, max_shard_size, compression=compression
    )


def push_to_hub(files: Sequence[Path], name: str, config: SaveStageConfig) -> None:
    """Upload files to a folder of a dataset on the Hugging Face hub.

    Args:
        files: the files.
        name: name of the folder.
        config: the settings, with the name of the dataset.
    """
    try:
        import huggingface_hub
    except ModuleNotFoundError as error:
        raise make_missing_extra_error("huggingface_hub", "hf", "push_to_hub") from error
    api: Any = cast(Any, huggingface_hub).HfApi(token=config.hub_token)
    hub: dict[str, Any] = {"repo_id": config.hub_repo_id, "repo_type": "dataset"}
    api.create_repo(**hub, private=config.hub_private, exist_ok=True)
    for file in files:
        path = f"{name}/{file.name}"
        api.upload_file(path_or_fileobj=str(file), path_in_repo=path, **hub)


def _counts(files: int | None, total: int | None) -> list[int] | None:
    """Return the rows per file, if the number of files is set."""
    if files is None:
        return None
    if total is None:
        raise ConfigError(
            "SaveStageConfig(num_shards=...): the number of rows is unknown before writing: leave "
            "it out"
        )
    if not 1 <= files <= total:
        raise ConfigError(
            f"SaveStageConfig(num_shards={files}): there are {total} rows: give a number from 1 to "
            f"{total}"
        )
    return [total * (i + 1) // files - total * i // files for i in range(files)]
