"""Write a stream of rows to files in order.

The files are cut by size or by row counts. Columns may appear late.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Sequence
from glob import escape
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

from ..arrays.tables import (
    conform_to_schema,
    decode_table,
    encode_table,
    iterate_tables,
    merge_schemas,
)
from ..engine.base.progress import Progress
from ..engine.base.shown import counted
from ..errors import ConfigError, DataError, convert_storage_errors
from ..explore.base import BaseDataset
from ..sources import derived_files
from ..stores import storage
from ..stores.storage import write_atomically
from ..stores.urls import require_local
from .lines import LineEncoder

RowFormat: TypeAlias = Literal["parquet", "arrow", "jsonl"]
"""Format of the files of `write_rows`."""
ROW_FORMATS: tuple[RowFormat, ...] = get_args(RowFormat)

_CODECS_BY_FORMAT = {
    "parquet": ("snappy", "zstd", "gzip", "lz4", "brotli", "none"),
    "arrow": ("lz4", "zstd", "none"),
    "jsonl": ("gzip", "none"),
}


def write_rows(
    rows: Iterable[Any],
    folder: str | Path,
    format: RowFormat = "parquet",
    compression: str | None = None,
    max_bytes: int = 1 << 30,
    counts: Sequence[int] | None = None,
    total: int | None = None,
    overwrite: bool = False,
) -> list[Path]:
    """Write rows to the files `shard-00000...` in a folder.

    Every file is written atomically. With `overwrite`, the files of an earlier save are deleted
    after all new files exist. For an indexed dataset, `penstock.write` uses many workers and
    resumes after a crash.

    Args:
        rows: mappings, or arrays of one axis; for lines, any JSON value.
        folder: the folder of the files.
        format: "parquet", "arrow" or "jsonl".
        compression: "none", or for Parquet "snappy" (the default), "zstd", "gzip", "lz4" or
            "brotli", for Arrow "lz4" or "zstd", for lines "gzip".
        max_bytes: the approximate size of a file before compression.
        counts: the number of rows of each file, instead of `max_bytes`.
        total: the number of rows, if known, for the progress display.
        overwrite: delete the files of an earlier save.

    Returns:
        The files, in order.

    Raises:
        ConfigError: for an endless dataset, an unknown format or compression, and a folder with
            files of an earlier save.
        DataError: if there are no rows, or a row does not fit the format.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [file.name for file in write_rows([{"x": 1}, {"x": 2}], folder, "jsonl", counts=[1, 1])]
    ['shard-00000.jsonl', 'shard-00001.jsonl']
    """
    folder = require_local(folder)
    codec = compression or ("snappy" if format == "parquet" else "none")
    if format not in ROW_FORMATS:
        raise ConfigError(f"unknown format {format!r}: one of {', '.join(ROW_FORMATS)}")
    if codec not in _CODECS_BY_FORMAT[format]:
        raise ConfigError(
            f"{format} has no compression {codec!r}: one of {', '.join(_CODECS_BY_FORMAT[format])}"
        )
    if _is_endless(rows):
        raise ConfigError(
            "write_rows: the dataset is endless; write its beginning: write_rows(ds.take(1_000), ...)"
        )
    with convert_storage_errors(folder):
        old_files = [
            Path(entry.path)
            for entry in storage.world.store.list(f"{escape(folder.as_posix())}/shard-*")
        ]
    if old_files and not overwrite:
        raise ConfigError(
            f"{folder} holds {counted(len(old_files), 'file')} of an earlier write_rows: give "
            "another folder, or overwrite=True, which deletes them"
        )
    with Progress("save rows", total, "rows") as progress:
        save = _write_line_files if format == "jsonl" else _write_table_files
        files = save(progress.each(rows), folder, format, codec, max_bytes, counts)
    if not files:
        raise DataError("there are no rows to save", where=str(folder))
    indexes = storage.world.store.list(
        f"{escape(folder.as_posix())}/.*.penstock-files"
    )  # belong to the old files
    for old_file in {*old_files, *(Path(entry.path) for entry in indexes)} - set(files):
        storage.world.disk.unlink(old_file)
    return files


def _is_endless(rows: Any) -> bool:
    if not isinstance(rows, BaseDataset):
        return False
    dataset = cast("BaseDataset[Any]", rows)
    is_indexed = dataset.tree.reason_not_indexed is None
    return dataset.tree.is_endless or (is_indexed and dataset.compiled.size is None)


def _write_file(folder: Path, number: int, suffix: str, data: bytes) -> Path:
    path = folder / f"shard-{number:05d}.{suffix}"
    for kind in ("lines", "lengths"):
        with convert_storage_errors(path):
            # The index of an earlier file of this name.
            storage.world.disk.unlink(derived_files.index_path(path, None, kind))
    write_atomically(path, data)
    return path


def _write_line_files(
    rows: Iterable[Any],
    folder: Path,
    format: str,
    codec: str,
    max_bytes: int,
    counts: Sequence[int] | None,
) -> list[Path]:
    files, suffix, encode_line = (
        list[Path](),
        "jsonl.gz" if codec == "gzip" else "jsonl",
        LineEncoder(),
    )
    for lines in _group_lines(
        (encode_line(number, row)[0] for number, row in enumerate(rows)), max_bytes, counts
    ):
        data = b"".join(lines)
        files.append(
            _write_file(
                folder,
                len(files),
                suffix,
                gzip.compress(data, mtime=0) if codec == "gzip" else data,
            )
        )
    return files


def _group_lines(
    lines: Iterator[bytes], max_bytes: int, counts: Sequence[int] | None
) -> Iterator[list[bytes]]:
    """Yield lines in groups of `counts` lines, or of at most `max_bytes` (or one line)."""
    for count in counts or ():
        yield list(islice(lines, count))
    group, size = list[bytes](), 0
    for line in lines:
        if group and size + len(line) > max_bytes:
            yield group
            group, size = [], 0
        group.append(line)
        size += len(line)
    if group:
        yield group


def _write_table_files(
    rows: Iterable[Any],
    folder: Path,
    format: str,
    codec: str,
    max_bytes: int,
    counts: Sequence[int] | None,
) -> list[Path]:
    """Write table files of one schema; a column that appears late is null before."""
    files, schemas, common_schema = list[Path](), list[Any](), None
    for table in iterate_tables(rows, max_bytes, counts):
        common_schema = (
            table.schema if common_schema is None else merge_schemas(common_schema, table.schema)
        )
        table = conform_to_schema(table, common_schema)
        files.append(_write_file(folder, len(files), format, encode_table(table, format, codec)))
        schemas.append(table.schema)
    for number, schema in enumerate(schemas):
        if schema != common_schema:
            table = decode_table(storage.world.disk.read(files[number]), format)
            _write_file(
                folder,
                number,
                format,
                encode_table(conform_to_schema(table, common_schema), format, codec),
            )
    return files
