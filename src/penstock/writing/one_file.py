"""Write a dataset as one file, or as the shards of a folder; the name tells the format."""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from glob import escape
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self, TypeAlias, get_args

from ..arguments import check_choice
from ..arrays.casts import cast_table
from ..arrays.columnar import import_arrow
from ..arrays.lossless import list_arrow_errors
from ..arrays.tables import (
    conform_to_schema,
    decode_dictionaries,
    has_marked_samples,
    is_equal_schema,
    mark_samples,
    merge_schemas,
    wrap_arrays,
)
from ..engine.base.machine import detect_rank
from ..engine.base.progress import Progress
from ..errors import ConfigError, DataError
from ..explore.base import BaseDataset
from ..explore.rows import to_columns
from ..explore.schemas import find_stored_schema
from ..sources.block import RecordBatchRows
from ..sources.saved_dataset import MANIFEST_NAME
from ..stores import storage
from ..stores.outputs import open_output
from ..stores.urls import require_local
from .lines import LineEncoder
from .rows import write_rows
from .shards import write

FileFormat: TypeAlias = Literal["parquet", "arrow", "jsonl", "csv", "tar"]
FILE_FORMATS: tuple[FileFormat, ...] = get_args(FileFormat)

Blocks: TypeAlias = Callable[[], Iterator[Sequence[Any]]]
"""Function that reads the samples from the start, in blocks."""

_FORMATS_BY_ENDING: Mapping[str, FileFormat] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_GROUP_BYTES = 64 << 20  # of a row group of Parquet, or a record batch


def write_dataset(
    dataset: BaseDataset[Any],
    blocks: Blocks,
    path: str | Path,
    format: FileFormat | None,
    overwrite: bool,
) -> list[Path]:
    """Write the first pass of a dataset, as `Dataset.write` describes.

    Args:
        dataset: the dataset, with an end.
        blocks: reads its samples.
        path: a file, or a folder.
        format: the format, if the name of the file does not tell it, or for a folder.
        overwrite: replace what is there.

    Returns:
        The files.

    Raises:
        ConfigError: if the name tells no format, or if the file or other shards exist.
        DataError: if the format cannot hold a sample.
    """
    if format is not None:
        check_choice(format, FILE_FORMATS, "write(format={})")
    if dataset.tree.is_endless or (
        dataset.tree.reason_not_indexed is None and dataset.compiled.size is None
    ):
        raise ConfigError(
            f"write: the dataset is endless; write its beginning: ds.take(1_000).write({str(path)!r})"
        )
    if detect_rank()[1] > 1:
        raise ConfigError(
            "write on several ranks would write the same file on each; write it on one rank, before "
            "the run"
        )
    path = require_local(path)
    kind, compression = _parse_name(path)
    if path.is_dir() or not path.suffix or (kind is None and format == "tar"):
        return _write_folder(dataset, blocks, path, format, overwrite)
    chosen = format or kind
    if chosen is None or chosen == "tar":
        raise ConfigError(
            f"write: {path.name} tells no format; use one of {', '.join(_FORMATS_BY_ENDING)} (lines "
            "and CSV also with .gz or .zst), give format='parquet', or name a folder without an ending"
        )
    if compression and chosen in ("parquet", "arrow"):
        raise ConfigError(
            f"write: {chosen} compresses inside the file; write {path.with_suffix('').name!r}"
        )
    if path.exists() and not overwrite:
        raise ConfigError(f"write: {path} exists; give another name, or overwrite=True")
    if chosen == "jsonl":
        _write_lines(blocks, path, compression)
    else:
        _write_table(blocks, path, chosen, compression, find_stored_schema(dataset.tree))
    return [path]


def _parse_name(path: Path) -> tuple[FileFormat | None, str | None]:
    """Return the format and the compression that the name of a file tells.

    >>> _parse_name(Path("a.jsonl.zst")), _parse_name(Path("v1.2"))
    (('jsonl', 'zstd'), (None, None))
    """
    compression = _COMPRESSIONS.get(path.suffix.lower())
    inner = path.with_suffix("") if compression else path
    return _FORMATS_BY_ENDING.get(inner.suffix.lower()), compression


def _write_folder(
    dataset: BaseDataset[Any],
    blocks: Blocks,
    folder: Path,
    format: FileFormat | None,
    overwrite: bool,
) -> list[Path]:
    if format == "csv":
        raise ConfigError(
            "write(format='csv') writes one file: name it, such as 'a.csv'; folders hold 'arrow', "
            "'parquet', 'jsonl' or 'tar'"
        )
    is_indexed = dataset.tree.reason_not_indexed is None
    if is_indexed and format in (None, "arrow", "jsonl", "tar"):
        if overwrite:
            _delete_shards(folder)
        return write(dataset, folder, format or "arrow")
    if format == "tar":
        raise ConfigError(
            "write(format='tar'): only an indexed dataset is written as tar shards; leave out "
            "format=, or write it as Parquet first"
        )
    samples = chain.from_iterable(blocks())
    return write_rows(samples, folder, format or "parquet", overwrite=overwrite)


def _delete_shards(folder: Path) -> None:
    """Delete the shards of an earlier write; other files stay."""
    for pattern in ("shard-*", ".shard-*", MANIFEST_NAME):
        for entry in storage.world.store.list(f"{escape(folder.as_posix())}/{pattern}"):
            storage.world.disk.unlink(Path(entry.path))


@contextlib.contextmanager
def _open_compressed(path: Path, compression: str | None) -> Generator[Any]:
    """Open a file that appears atomically; what is written is compressed."""
    with open_output(path) as file:
        if compression == "gzip":
            with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                yield packed
        elif compression == "zstd":
            with import_arrow().CompressedOutputStream(_Unclosed(file), "zstd") as packed:
                yield packed
        else:
            yield file


class _Unclosed:
    """A file that stays open when Arrow closes it, because it is synced and renamed afterwards."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self.write, self.flush = file.write, file.flush

    def close(self) -> None:
        """Flush the file."""
        self.flush()


def _write_lines(blocks: Blocks, path: Path, compression: str | None) -> None:
    encode_line, number = LineEncoder(), 0
    with Progress(f"write {path.name}", None, "samples") as progress:
        with _open_compressed(path, compression) as file:
            for block in blocks():
                file.write(
                    b"".join(encode_line(at, sample)[0] for at, sample in enumerate(block, number))
                )
                number += len(block)
                progress.tell(number)


def _write_table(
    blocks: Blocks, path: Path, format: str, compression: str | None, schema: Any | None
) -> None:
    """Write a table of one schema.

    The first samples decide the schema, if the sources store none. If a later sample does not fit,
    the rest is read for its schema, and the file is written again with the schema of all. Only
    Parquet stores categories: an Arrow file has one dictionary for all batches of a column.
    """
    if schema is not None and format != "parquet":
        schema = decode_dictionaries(schema)
    for attempt in (1, 2):
        wider = schema
        with (
            Progress(f"write {path.name}", None, "samples") as progress,
            contextlib.suppress(_OtherSchemaError),
            _open_compressed(path, compression) as file,
            contextlib.ExitStack() as stack,
        ):
            writer = None
            if schema is not None:
                writer = stack.enter_context(_TableWriter(file, schema, format))
            for table in _iterate_tables(blocks):
                if format != "parquet":
                    table = cast_table(table, decode_dictionaries(table.schema))
                if format == "csv" and has_marked_samples(table.schema):
                    raise DataError(
                        "csv cannot hold arrays: write '.parquet', '.arrow' or '.jsonl'",
                        where="write",
                    )
                wider = table.schema if wider is None else _merge(wider, table.schema)
                if writer is None:
                    schema, writer = wider, stack.enter_context(_TableWriter(file, wider, format))
                if attempt == 2 or wider.equals(schema):  # else only the schema of the rest counts
                    writer.write(table)
                progress.more(len(table))
            if wider is None or writer is None:
                raise DataError("there are no samples to write", where=str(path))
            if not wider.equals(schema):
                raise _OtherSchemaError
            return
        schema = wider
    raise DataError(
        "the samples had other columns when they were read again: make the functions of the "
        "pipeline give the same samples every time",
        where=str(path),
    )


class _OtherSchemaError(Exception):
    """The samples have more columns, or wider types, than the file that was begun."""


def _merge(schema: Any, other: Any) -> Any:
    return schema if is_equal_schema(schema, other) else merge_schemas(schema, other)


class _TableWriter:
    """Writer of tables to an open file of one format."""

    def __init__(self, file: Any, schema: Any, format: str) -> None:
        self._file, self._schema, self._format = file, schema, format
        self._text_writer: Any = None
        with self._convert_errors():
            if format == "parquet":
                self._writer: Any = import_arrow("pyarrow.parquet").ParquetWriter(file, schema)
            elif format == "csv":
                self._writer = import_arrow("pyarrow.csv").CSVWriter(file, schema)
            else:
                self._writer = import_arrow("pyarrow.ipc").new_file(file, schema)

    def write(self, table: Any) -> None:
        """Write a table whose schema is equal, or narrower."""
        table = conform_to_schema(table, self._schema)
        with self._convert_errors():
            if self._format == "csv" and len(self._schema) == 1 and table[0].null_count:
                self._write_quoted(table)
            else:
                self._writer.write_table(table)

    def _write_quoted(self, table: Any) -> None:
        """Write the only column as quoted texts: a null is `""`, since empty lines are no rows."""
        pa, csv = import_arrow(), import_arrow("pyarrow.csv")
        schema = pa.schema([(self._schema.names[0], pa.string())])
        if self._text_writer is None:
            options = csv.WriteOptions(include_header=False)
            self._text_writer = csv.CSVWriter(self._file, schema, write_options=options)
        texts = import_arrow("pyarrow.compute").fill_null(table.cast(schema)[0], "")
        self._text_writer.write_table(pa.table([texts], schema))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        if self._text_writer is not None:
            self._text_writer.close()

    @contextlib.contextmanager
    def _convert_errors(self) -> Generator[None]:
        try:
            yield
        except list_arrow_errors() as error:
            instead = "JSON lines" if self._format == "parquet" else "Parquet"
            raise DataError(
                f"{self._format} cannot hold the samples ({error}): change the column in a map "
                f"step, or write {instead}",
                where="write",
            ) from error


def _iterate_tables(blocks: Blocks) -> Iterator[Any]:
    """Yield the samples as tables of about the bytes of a row group."""
    pa, done = import_arrow(), 0
    parts, size = list[Any](), 0
    for block in blocks():
        rows = block if isinstance(block, RecordBatchRows) else wrap_arrays(block, done)
        table = pa.table(to_columns(rows, done))
        table = table if rows is block else mark_samples(table)
        done += len(block)
        if parts and not is_equal_schema(table.schema, parts[0].schema):
            yield pa.concat_tables(parts)
            parts, size = list[Any](), 0
        parts.append(table)
        size += table.nbytes
        if size >= _GROUP_BYTES:
            yield pa.concat_tables(parts)
            parts, size = list[Any](), 0
    if parts:
        yield pa.concat_tables(parts)
