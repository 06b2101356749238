"""Folders with a manifest: those of `penstock.write` and of Hugging Face's `save_to_disk`."""

from __future__ import annotations

import json
import re
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


_SHARD_NAME = re.compile(r"shard-\d{6,}(_\d+)?\.\w+")
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

    Args:
        paths: The folder, or files of it, such as the list that `penstock.write` returns.

    Raises:
        ConfigError: The folder is incomplete.
        DataError: The manifest is damaged, or a file is missing or has another size.
    """
    locations = [parse_location(path) for path in paths]
    are_shards = bool(locations) and all(_SHARD_NAME.fullmatch(path.name) for path in locations)
    if len({path.parent for path in locations} if are_shards else locations) != 1:
        return None
    folder = locations[0].parent if are_shards else locations[0]
    if not is_saved_dataset(folder):
        return None
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
        if are_shards:
            sizes = dict(files)
            if not sizes.keys() >= {*locations}:
                return None  # such as shards of a folder that is incomplete
            files = [(path, sizes[path]) for path in locations]
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
    return _IDS if column_type is not None and is_integer_list(column_type) else None


def is_integer_list(arrow_type: Any) -> bool:
    """Return whether the values of an Arrow type are lists of integers."""
    types: Any = import_arrow("pyarrow.types")
    is_list = types.is_list(arrow_type) or types.is_large_list(arrow_type)
    return is_list and types.is_integer(arrow_type.value_type)


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
