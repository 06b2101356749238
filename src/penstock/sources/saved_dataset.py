"""Folders with a manifest: those of `penstock.write` and of Hugging Face's `save_to_disk`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from ..arrays.columnar import import_arrow, list_content_errors
from ..errors import MALFORMED_INPUT_ERRORS, ConfigError, DataError, StorageError
from ..stores import parse_location, storage
from . import file_versions, meta

MANIFEST_NAME = ".shards.json"
"""File beside the shards that describes their input and, once complete, each file."""

KEYS_COLUMN = "__key__"
"""Column of Arrow shards that lists the keys of the samples of a row."""


_STATE, _IDS = "state.json", "input_ids"


class SavedDataset(NamedTuple):
    """The contents of a manifest.

    `lengths` names the column whose list lengths are the lengths of the rows, if any. `bare` names the
    single column if rows are no mappings.
    """

    files: list[Path]
    format: str
    columns: list[str] | None
    lengths: str | None
    bare: str | None


def is_saved_dataset(path: str | Path) -> bool:
    """Return whether `penstock.write` wrote a folder."""
    try:
        return (parse_location(path) / MANIFEST_NAME).is_file()
    except (OSError, RuntimeError):  # `find` reports what is wrong with the path
        return False


def read_saved(paths: Sequence[str | Path]) -> SavedDataset | None:
    """Return the dataset of a folder that `penstock.write` wrote, or `None` for any other path.

    Raises:
        ConfigError: The folder is incomplete.
        DataError: The manifest is damaged, or a file is missing or has another size.
    """
    if len(paths) != 1 or not is_saved_dataset(paths[0]):
        return None
    folder = parse_location(paths[0])
    path = folder / MANIFEST_NAME
    data = meta.read_bytes(path)
    try:
        manifest = json.loads(data)
        shards = manifest.get("shards")
        files = [
            (folder / _require_file_name(file["file"]), int(file["bytes"]))
            for shard in shards or ()
            for file in shard
        ]
        table: dict[str, Any] = manifest.get("table") or {}
        columns = [*table["columns"]] if table else None
        dataset = SavedDataset(
            [file_path for file_path, _ in files],
            str(manifest["format"]),
            columns,
            table.get("lengths"),
            table.get("bare"),
        )
    except MALFORMED_INPUT_ERRORS as error:
        raise DataError(
            f"the manifest is damaged ({error!r}): delete the folder, and write it again",
            where=str(path),
        ) from error
    if shards is None:
        raise ConfigError(
            f"{folder} is incomplete: call penstock.write again, which resumes the write"
        )
    for file, size in files:
        if not file.is_file() or file_versions.stat_file(file).size != size:
            raise DataError(
                f"the file is missing, or has not the {size:,} bytes that were written: call "
                "penstock.write again, which writes it again",
                where=str(file),
            )
    return dataset


def find_token_column(files: Sequence[Path], kind: str) -> str | None:
    """Return the token column of a dataset written by Hugging Face's `save_to_disk`, or `None`."""
    if kind != "arrow" or not files or not (files[0].parent / _STATE).is_file():
        return None
    pa: Any = import_arrow()
    try:
        schema = import_arrow("pyarrow.ipc").read_schema(
            pa.py_buffer(_read_schema_message(files[0]))
        )
        column_type: Any = dict(zip(schema.names, schema.types, strict=False)).get(_IDS)
    except StorageError:
        raise
    except (*list_content_errors(), OSError, ValueError) as error:
        raise DataError(f"cannot be read: {error}", where=str(files[0])) from error
    if column_type is None or not (
        pa.types.is_list(column_type) or pa.types.is_large_list(column_type)
    ):
        return None
    return _IDS if pa.types.is_integer(column_type.value_type) else None


def _read_schema_message(path: Path) -> bytes:
    """Return the schema message of an Arrow stream: a marker, its length, and that many bytes."""
    read, size = storage.world.store.read, file_versions.stat_file(path).size
    prefix = read(str(path), 0, 8)
    length = int.from_bytes(prefix[4:], "little")
    if prefix[:4] != b"\xff" * 4 or length > size - 8:
        raise ValueError("it does not begin as an Arrow stream does")
    return read(str(path), 0, 8 + length)


def _require_file_name(value: Any) -> str:
    """Return a file name, which must not lead out of its folder."""
    name = cast(str, value)
    if Path(name).name != name:
        raise ValueError(f"{name!r} is no name of a file")
    return name
