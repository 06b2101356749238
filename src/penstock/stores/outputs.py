"""Output files of commands and audits, written atomically; pipes, devices and links keep working.

Record batches are written in the format that the name of the file ends in.
"""

from __future__ import annotations

import contextlib
import json
import os.path
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, BinaryIO

from ..arrays.columnar import import_arrow
from ..errors import ConfigError, convert_storage_errors
from . import storage
from .storage import describe_file_kind
from .urls import require_local


@contextlib.contextmanager
def open_output(path: Path) -> Generator[BinaryIO]:
    """Open an output path for writing.

    A file appears atomically, and durably, when the block ends without error. The target of a link
    is written, and the link stays. Pipes and devices are written directly.
    """
    with convert_storage_errors(path := require_local(path)), _open_atomically(path) as file:
        yield file


@contextlib.contextmanager
def _open_atomically(path: Path) -> Generator[BinaryIO]:
    # Renaming a temporary file would replace the device, or the link, itself.
    if path.exists() and not path.is_file():
        if path.is_dir():
            raise ConfigError(
                f"{path}: the output is {describe_file_kind(str(path))}; name a file to write"
            )
        with path.open("wb") as file:
            yield file
        return
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    target.parent.mkdir(parents=True, exist_ok=True)
    with storage.world.disk.create(target, False) as file:
        yield file


ENDINGS = (".parquet", ".arrow", ".csv", ".jsonl")
Write = Callable[[Any], None]


@contextlib.contextmanager
def writer(path: Path, schema: Any) -> Generator[Write]:
    """Writes record batches to a file, in the form that its name ends in."""
    path = require_local(path)
    if path.suffix not in ENDINGS:
        raise ConfigError(
            f"{path}: the ending of the name gives the format of the lines; use one of "
            f"{', '.join(ENDINGS)}"
        )
    with open_output(path) as file, written(file, schema, path.suffix) as write:
        yield write


@contextlib.contextmanager
def written(file: BinaryIO, schema: Any, form: str) -> Generator[Write]:
    """Writes record batches to an open file."""
    pa = import_arrow()
    if form == ".jsonl":
        yield lambda batch: _write_lines(file, batch)
        return
    if form == ".parquet":
        texts = [field.name for field in schema if not pa.types.is_integer(field.type)]
        packed = {"compression": "zstd", "compression_level": 1, "use_dictionary": texts}
        made = import_arrow("pyarrow.parquet").ParquetWriter(file, schema, **packed)
    elif form == ".csv":
        schema = pa.schema([(field.name, _plain(field.type)) for field in schema])
        made = import_arrow("pyarrow.csv").CSVWriter(file, schema)
    else:
        made = pa.ipc.new_file(file, schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))
    with made:
        yield (
            (lambda batch: made.write_batch(batch.cast(schema)))
            if form == ".csv"
            else made.write_batch
        )


def _plain(kind: Any) -> Any:
    return kind.value_type if import_arrow().types.is_dictionary(kind) else kind


def _write_lines(file: BinaryIO, batch: Any) -> None:
    """A JSON object a line, put together column by column."""
    if not len(batch):
        return
    pa, pc = import_arrow(), import_arrow("pyarrow.compute")
    parts = list[Any]()
    for number, name in enumerate(batch.schema.names):
        parts += [f"{', ' if number else '{'}{json.dumps(name)}: ", _spelled(batch.column(name))]
    joined = pc.binary_join_element_wise(
        *(_large(part) for part in [*parts, "}\n"]), pa.scalar("", pa.large_string())
    )
    data = joined.buffers()[2]
    file.write(data)


def _large(part: Any) -> Any:
    return (
        import_arrow().scalar(part, import_arrow().large_string())
        if isinstance(part, str)
        else part
    )


def _spelled(column: Any) -> Any:
    """The values of a column as JSON."""
    pa, pc = import_arrow(), import_arrow("pyarrow.compute")
    if pa.types.is_dictionary(column.type):
        texts = pa.array(
            [json.dumps(text) for text in column.dictionary.to_pylist()], pa.large_string()
        )
        found = texts.take(column.indices)
    elif pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        found = column.cast(pa.large_string())
    else:
        found = pa.array([json.dumps(value) for value in column.to_pylist()], pa.large_string())
    return pc.fill_null(found, pa.scalar("null", pa.large_string()))
