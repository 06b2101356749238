"""Rows in their order into files, cut by size or into a number of files, where only going through
them tells what there
is: streams, columns that come up late.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Sequence
from glob import escape
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from ..engine.base.progress import Progress
from ..engine.base.seams import world, write_whole
from ..engine.base.urls import local
from ..errors import ConfigError, DataError
from ..sources import sidecar
from .lines import LineEncoder
from .tables import decoded, encoded, tables_of, under, unified

RowFormat: TypeAlias = Literal["parquet", "arrow", "jsonl"]
ROW_FORMATS: tuple[RowFormat, ...] = get_args(RowFormat)

_CODECS = {
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
    """Write rows to `shard-00000...` in a folder; returns the files.

    Every file is written whole or not at all. What was written there before is refused, or taken
    away once all new files are there. Where a dataset is indexed, `penstock.write` writes with many
    workers, and goes on after a kill.

    Args:
        rows: mappings; for lines, whatever JSON holds.
        folder: where the files go.
        format: "parquet", "arrow" or "jsonl".
        compression: of Parquet "snappy" (the default), "zstd", "gzip", "lz4", "brotli"; of Arrow
            "lz4", "zstd"; of lines "gzip"; "none".
        max_bytes: about the size of a file, before it is compressed.
        counts: how many rows go into each file, instead of that.
        total: how many rows there are, where that is known: for the progress.
        overwrite: whether files that are there already go.

    Raises:
        ConfigError: for formats that there are not, and a folder that holds files already.
        DataError: for no rows, and rows that the format cannot hold.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [file.name for file in write_rows([{"x": 1}, {"x": 2}], folder, "jsonl", counts=[1, 1])]
    ['shard-00000.jsonl', 'shard-00001.jsonl']
    """
    folder = local(folder)
    codec = compression or ("snappy" if format == "parquet" else "none")
    if format not in ROW_FORMATS:
        raise ConfigError(f"unknown format {format!r}: one of {', '.join(ROW_FORMATS)}")
    if codec not in _CODECS[format]:
        raise ConfigError(
            f"{format} has no compression {codec!r}: one of {', '.join(_CODECS[format])}"
        )
    with sidecar.storage(folder):
        before = [
            Path(one.path) for one in world.store.list(f"{escape(folder.as_posix())}/shard-*")
        ]
    if before and not overwrite:
        raise ConfigError(
            f"{folder} holds {len(before)} files of an earlier save: overwrite=True takes them away"
        )
    with Progress("save rows", total, "rows") as progress:
        save = _lines if format == "jsonl" else _tables
        files = save(progress.each(rows), folder, format, codec, max_bytes, counts)
    if not files:
        raise DataError("there are no rows to save", where=str(folder))
    kept = world.store.list(
        f"{escape(folder.as_posix())}/.*.penstock-files"
    )  # of the files that were here before
    for old in {*before, *(Path(one.path) for one in kept)} - set(files):
        world.disk.unlink(old)
    return files


def _written(folder: Path, number: int, suffix: str, data: bytes) -> Path:
    path = folder / f"shard-{number:05d}.{suffix}"
    for what in ("lines", "lengths"):
        with sidecar.storage(path):
            world.disk.unlink(
                sidecar.index_path(path, None, what)
            )  # what was kept of another file of this name
    write_whole(path, data)
    return path


def _lines(
    rows: Iterable[Any],
    folder: Path,
    save: str,
    codec: str,
    most: int,
    counts: Sequence[int] | None,
) -> list[Path]:
    files, name, line = list[Path](), "jsonl.gz" if codec == "gzip" else "jsonl", LineEncoder()
    for lines in _cut((line(number, row)[0] for number, row in enumerate(rows)), most, counts):
        data = b"".join(lines)
        files.append(
            _written(
                folder, len(files), name, gzip.compress(data, mtime=0) if codec == "gzip" else data
            )
        )
    return files


def _cut(lines: Iterator[bytes], most: int, counts: Sequence[int] | None) -> Iterator[list[bytes]]:
    """Lines in groups of at most `most` bytes (one line may be more), or of the counts asked
    for."""
    for count in counts or ():
        yield list(islice(lines, count))
    held, size = list[bytes](), 0
    for line in lines:
        if held and size + len(line) > most:
            yield held
            held, size = [], 0
        held.append(line)
        size += len(line)
    if held:
        yield held


def _tables(
    rows: Iterable[Any],
    folder: Path,
    save: str,
    codec: str,
    most: int,
    counts: Sequence[int] | None,
) -> list[Path]:
    """Table files of one schema. A column that comes up late is empty in the files before it."""
    files, schemas, whole = list[Path](), list[Any](), None
    for table in tables_of(rows, most, counts):
        whole = table.schema if whole is None else unified(whole, table.schema)
        table = under(table, whole)
        files.append(_written(folder, len(files), save, encoded(table, save, codec)))
        schemas.append(table.schema)
    for number, schema in enumerate(schemas):
        if schema != whole:
            table = decoded(world.disk.read(files[number]), save)
            _written(folder, number, save, encoded(under(table, whole), save, codec))
    return files
