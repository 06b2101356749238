"""Rows into files: Parquet, Arrow or JSON Lines, cut by size or into a number of files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from glob import escape
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np

from ...base.progress import Progress
from ...base.seams import world, write_whole
from ...errors import ConfigError, DataError
from ...sources import sidecar
from ...sources.rows import arrow
from .config import SaveStageConfig

_ROWS = 1_000  # rows made into a table at a time
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_CODECS = {
    "parquet": ("snappy", "zstd", "gzip", "lz4", "brotli", "none"),
    "arrow": ("lz4", "zstd", "none"),
    "jsonl": ("gzip", "none"),
}


def write_shards(rows: Iterable[Any], folder: Path, config: SaveStageConfig, total: int | None) -> list[Path]:
    """Write rows to `shard-00000...` in a folder; returns the files. `total` is the number of rows where it is known.

    Every file is written whole or not at all. What an earlier save left there is refused, or taken away once all new
    files are there.
    """
    save, codec = config.format, config.compression or ("snappy" if config.format == "parquet" else "none")
    if save not in _CODECS:
        raise ConfigError(f"SaveStageConfig: unknown format {save!r}: one of {', '.join(_CODECS)}")
    if codec not in _CODECS[save]:
        raise ConfigError(f"SaveStageConfig: {save} has no compression {codec!r}: one of {', '.join(_CODECS[save])}")
    before = [Path(one.path) for one in world.store.list(f"{escape(folder.as_posix())}/shard-*")]
    if before and not config.overwrite:
        raise ConfigError(f"{folder} holds {len(before)} files of an earlier save: SaveStageConfig(overwrite=True)")
    most, counts = size_of(config.max_shard_size), _counts(config.num_shards, total)
    with Progress("save rows", total, "rows") as progress:
        files = _saved(progress.each(rows), folder, save, codec, most, counts)
    if not files:
        raise DataError("there are no rows to save", where=str(folder))
    kept = world.store.list(f"{escape(folder.as_posix())}/.*.penstock-files")  # of the files that were here before
    for old in {*before, *(Path(one.path) for one in kept)} - set(files):
        world.disk.unlink(old)
    return files


def _saved(
    rows: Iterable[Any], folder: Path, save: str, codec: str, most: int, counts: Sequence[int] | None
) -> list[Path]:
    if save != "jsonl":
        return _tables(rows, folder, save, None if codec == "none" else codec, most, counts)
    files, name = list[Path](), "jsonl.gz" if codec == "gzip" else "jsonl"
    for lines in _cut(map(_line, rows), most, counts):
        data = b"".join(lines)
        files.append(_written(folder, len(files), name, gzip.compress(data, mtime=0) if codec == "gzip" else data))
    return files


def size_of(given: str | int) -> int:
    """A number of bytes, as in "500MB" or "1GiB".

    >>> size_of("1.5MB"), size_of("2KiB")
    (1500000, 2048)
    """
    text = str(given).replace(" ", "").upper()
    number = text.rstrip("KMGIB")
    try:
        size = int(float(number) * _UNITS[text[len(number) :]])
    except (ValueError, KeyError):
        size = 0
    if size < 1:
        raise ConfigError(f"max_shard_size={given!r}: give a number of bytes, such as '500MB' or '1GiB'")
    return size


def _counts(files: int | None, total: int | None) -> list[int] | None:
    """How many rows go into each file, where their number was asked for."""
    if files is None:
        return None
    if total is None:
        raise ConfigError("SaveStageConfig(num_shards=...): the number of rows is not known beforehand; leave it out")
    if not 1 <= files <= total:
        raise ConfigError(f"SaveStageConfig(num_shards={files}): there are {total} rows; from 1 to that many files")
    return [total * (i + 1) // files - total * i // files for i in range(files)]


def _written(folder: Path, number: int, suffix: str, data: bytes) -> Path:
    path = folder / f"shard-{number:05d}.{suffix}"
    for what in ("lines", "lengths"):
        world.disk.unlink(sidecar.place(path, None, what))  # what was kept of another file of this name
    write_whole(path, data)
    return path


# ---------------------------------------------------------------- lines


def _line(row: Any) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False, default=_plain).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise DataError(f"a row cannot be written as JSON: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return cast(Any, value).tolist()
    raise TypeError(f"a {type(value).__name__} is not JSON; save as parquet or arrow")


def _cut(lines: Iterator[bytes], most: int, counts: Sequence[int] | None) -> Iterator[list[bytes]]:
    """Lines in groups of at most `most` bytes (one line may be more), or of the counts asked for."""
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


# ---------------------------------------------------------------- tables


def _tables(
    rows: Iterable[Any], folder: Path, save: str, codec: str | None, most: int, counts: Sequence[int] | None
) -> list[Path]:
    """Table files of one schema. A column that comes up late is empty in the files before it."""
    pa: Any = arrow()
    files, schemas, whole = list[Path](), list[Any](), cast(Any, None)
    for table in _grouped(rows, most, counts):
        whole = table.schema if whole is None else _unified(whole, table.schema)
        table = _under(table, whole)
        files.append(_written(folder, len(files), save, _bytes(table, save, codec)))
        schemas.append(table.schema)
    for number, schema in enumerate(schemas):
        if schema != whole:
            data = pa.py_buffer(world.disk.read(files[number]))
            table = (
                arrow("pyarrow.parquet").read_table(data) if save == "parquet" else pa.ipc.open_file(data).read_all()
            )
            _written(folder, number, save, _bytes(_under(table, whole), save, codec))
    return files


def _grouped(rows: Iterable[Any], most: int, counts: Sequence[int] | None) -> Iterator[Any]:
    """Tables of the rows of one file each."""
    source = iter(rows)
    if counts is not None:
        for count in counts:
            parts = [_table(list(islice(source, min(_ROWS, count - done)))) for done in range(0, count, _ROWS)]
            yield _joined(parts)
        return
    held, size = list[Any](), 0
    while chunk := list(islice(source, _ROWS)):
        table = _table(chunk)
        while len(table):
            fits = _fitting(table, most - size, at_least=not held)
            if fits:
                held.append(table.slice(0, fits))
                size += held[-1].nbytes
                table = table.slice(fits)
            if len(table):
                yield _joined(held)
                held, size = [], 0
    if held:
        yield _joined(held)


def _fitting(table: Any, room: int, at_least: bool) -> int:
    """How many of the first rows of a table take at most so many bytes; one, where a file would else stay empty."""
    low, high = 0, len(table)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if table.slice(0, middle).nbytes <= room else (low, middle - 1)
    return max(low, int(at_least))


def _table(rows: list[Any]) -> Any:
    for row in rows:
        if not isinstance(row, Mapping):
            raise DataError(f"a row is a {type(row).__name__}; only mappings can be saved")
    names = list(dict.fromkeys(name for row in rows for name in row))
    pa: Any = arrow()
    columns = dict[str, Any]()
    for name in names:
        try:
            columns[name] = pa.array([row.get(name) for row in rows])
        except pa.ArrowException as error:
            raise DataError(f"the field {name!r} cannot be one column: {error}") from error
    return pa.table(columns)


def _joined(tables: list[Any]) -> Any:
    return (
        tables[0] if len(tables) == 1 else _tried(lambda: arrow().concat_tables(tables, promote_options="permissive"))
    )


def _unified(one: Any, other: Any) -> Any:
    return _tried(lambda: arrow().unify_schemas([one, other], promote_options="permissive"))


def _tried(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except arrow().ArrowException as error:
        raise DataError(f"a field has one type in some rows and another in others: {error}") from error


def _under(table: Any, schema: Any) -> Any:
    """The table with the columns and types of a schema; what it lacks is null."""
    pa: Any = arrow()
    missing = [each for each in schema if each.name not in table.column_names]
    for each in missing:
        table = table.append_column(each, pa.nulls(len(table), each.type))
    return table.select(schema.names).cast(schema)


def _bytes(table: Any, save: str, codec: str | None) -> bytes:
    pa: Any = arrow()
    sink = pa.BufferOutputStream()
    if save == "parquet":
        arrow("pyarrow.parquet").write_table(table, sink, compression=codec or "none")
    else:
        options = pa.ipc.IpcWriteOptions(compression=codec)
        with pa.ipc.new_file(sink, table.schema, options=options) as writer:
            writer.write_table(table)
    return sink.getvalue().to_pybytes()
