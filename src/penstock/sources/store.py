"""Folders that say what is in them: those that `penstock.write` wrote, and those of Hugging Face's
`save_to_disk`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from ..engine.base import seams
from ..errors import ConfigError, DataError, StorageError
from ..stores import located
from . import meta, sidecar
from .rows import arrow

MANIFEST = ".shards.json"
"""What is written beside the shards: what they are of, and at the end what each file holds."""

KEYS = "__key__"
"""The column of Arrow shards that tells of which samples a row is made."""


_STATE, _IDS = "state.json", "input_ids"


class Written(NamedTuple):
    """The files of a folder in order, their format, the column whose lists tell how long a row is,
    if there is one, and the column that is all of a row, where rows are no mappings."""

    files: list[Path]
    format: str
    columns: list[str] | None
    lengths: str | None
    bare: str | None


def says_itself(path: str | Path) -> bool:
    """Whether a folder was written by `penstock.write`."""
    try:
        return (located(path) / MANIFEST).is_file()
    except (OSError, RuntimeError):  # what is wrong with the path is said where it is looked for
        return False


def written(paths: Sequence[str | Path]) -> Written | None:
    """What a folder holds, None where this is none that was written here; all its files must be
    there, whole."""
    if len(paths) != 1 or not says_itself(paths[0]):
        return None
    folder = located(paths[0])
    path = folder / MANIFEST
    data = meta.read_bytes(path)
    try:
        found = json.loads(data)
        listed = found.get("shards")
        files = [
            (folder / _name(file["file"]), int(file["bytes"]))
            for shard in listed or ()
            for file in shard
        ]
        table: dict[str, Any] = found.get("table") or {}
        columns = [*table["columns"]] if table else None
        made = Written(
            [p for p, _ in files],
            str(found["format"]),
            columns,
            table.get("lengths"),
            table.get("bare"),
        )
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise DataError(
            f"it is damaged: delete the folder, and write it again ({error!r})", where=str(path)
        ) from error
    if listed is None:
        raise ConfigError(
            f"{folder} was not written to its end: call penstock.write again, and it goes on"
        )
    for file, size in files:
        if not file.is_file() or sidecar.stat(file).size != size:
            raise DataError(
                f"it is not there as it was written, with {size:,} bytes: call penstock.write "
                "again, and it is "
                "written again",
                where=str(file),
            )
    return made


def token_column(files: Sequence[Path], kind: str) -> str | None:
    """The column of token ids of a dataset that Hugging Face's `save_to_disk` wrote, if it has
    one."""
    if kind != "arrow" or not files or not (files[0].parent / _STATE).is_file():
        return None
    pa: Any = arrow()
    try:
        schema = arrow("pyarrow.ipc").read_schema(pa.py_buffer(_head(files[0])))
        held: Any = dict(zip(schema.names, schema.types, strict=False)).get(_IDS)
    except StorageError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"cannot be read: {error}", where=str(files[0])) from error
    if held is None or not (pa.types.is_list(held) or pa.types.is_large_list(held)):
        return None
    return _IDS if pa.types.is_integer(held.value_type) else None


def _head(path: Path) -> bytes:
    """The message with which a stream of Arrow begins: a mark, its length, and that many bytes."""
    read, size = seams.world.store.read, sidecar.stat(path).size
    begin = read(str(path), 0, 8)
    length = int.from_bytes(begin[4:], "little")
    if begin[:4] != b"\xff" * 4 or length > size - 8:
        raise ValueError("it does not begin as a stream of Arrow does")
    return read(str(path), 0, 8 + length)


def _name(given: Any) -> str:
    """The name of a file, which may not lead anywhere else."""
    name = cast(str, given)
    if Path(name).name != name:
        raise ValueError(f"{name!r} is no name of a file")
    return name
