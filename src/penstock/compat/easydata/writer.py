"""Shard writer with EasyData's settings: sizes as "500MB", or a number of shards."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from ...errors import ConfigError
from ...writing import RowFormat, write_rows
from .config import SaveStageConfig

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
}


def write_shards(
    rows: Iterable[Any], folder: Path, config: SaveStageConfig, total: int | None
) -> list[Path]:
    """Write rows to `shard-00000...` in a folder, and return the files.

    `total` is the number of rows, if known.
    """
    max_bytes, counts = size_of(config.max_shard_size), _counts(config.num_shards, total)
    form = cast(RowFormat, config.format)
    return write_rows(
        rows, folder, form, config.compression, max_bytes, counts, total, config.overwrite
    )


def size_of(given: str | int) -> int:
    """Parse a number of bytes, such as "500MB" or "1GiB".

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
        raise ConfigError(
            f"max_shard_size={given!r}: give a number of bytes, such as '500MB' or '1GiB'"
        )
    return size


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
