"""The `index.json` of a folder of MDS shards: files and column encodings."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import MALFORMED_INPUT_ERRORS, DataError

_JPEG_QUALITY = re.compile(r"(?<=^jpeg):\d{1,3}$")  # the writer's quality, in "jpeg:95"
_MAX_PARENT_FOLDERS = 4  # folders above the folder of a shard that may hold its index


class ShardColumn(NamedTuple):
    """One column: its encoding, and the size of its values if it is fixed, else 0."""

    name: str
    encoding: str
    size: int


class ShardEntry(NamedTuple):
    """One shard in an index: possible files, rows, unpacked size, and digests."""

    basenames: list[str]
    rows: int
    size: int
    hashes: Mapping[str, str]
    columns: list[ShardColumn]


def find_indexes(shard: Path) -> Iterator[tuple[Path, str]]:
    """Yield the indexes beside and above a shard, nearest first, and the shard's name in each.

    `merge_index` of streaming writes one index above the folders of the shards.
    """
    index, name = shard.with_name("index.json"), shard.name
    for _ in range(_MAX_PARENT_FOLDERS + 1):
        if index.is_file():
            yield index, name
        folder = index.absolute().parent
        if folder == folder.parent:
            return
        index, name = folder.with_name("index.json"), f"{folder.name}/{name}"


def list_companions(shard: Path) -> list[Path]:
    """Return the nearest index of a shard, which describes its rows."""
    return [index for index, _ in itertools.islice(find_indexes(shard), 1)]


def parse_shards(content: Any, path: Path) -> list[ShardEntry]:
    """Return the shards of an `index.json`."""
    try:
        return [_parse_shard(entry) for entry in content["shards"]]
    except MALFORMED_INPUT_ERRORS as error:
        raise DataError(f"it is no index of MDS shards: {error!r}", where=str(path)) from error


def _parse_shard(entry: Any) -> ShardEntry:
    if (entry["version"], entry["format"]) != (2, "mds"):
        raise ValueError(
            f"version {entry['version']!r} of {entry['format']!r}; Penstock reads version 2 of 'mds'"
        )
    raw, packed = entry["raw_data"], entry.get("zip_data")
    names = [str(raw["basename"]), *([str(packed["basename"])] if packed else [])]
    return ShardEntry(
        names, int(entry["samples"]), int(raw["bytes"]), dict(raw["hashes"]), parse_columns(entry)
    )


def parse_columns(entry: Any) -> list[ShardColumn]:
    """Return the columns in the description of a shard."""
    columns = zip(
        entry["column_names"], entry["column_encodings"], entry["column_sizes"], strict=True
    )
    return [
        ShardColumn(str(name), _JPEG_QUALITY.sub("", str(encoding)), int(size or 0))
        for name, encoding, size in columns
    ]
