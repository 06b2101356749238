"""The `index.json` of a folder of MDS shards: which files they are, and how their columns are
written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DataError

_ABOVE = 4  # folders above the folder of a shard that may hold its index


class Column(NamedTuple):
    """One column: how its values are written, and their size where all have the same."""

    name: str
    encoding: str
    size: int


class Shard(NamedTuple):
    """What an index says of one shard: the files it may be, its rows, its size unpacked, and
    digests of that."""

    basenames: list[str]
    rows: int
    size: int
    hashes: Mapping[str, str]
    columns: list[Column]


def indexes_of(shard: Path) -> Iterator[tuple[Path, str]]:
    """Yield the indexes beside and above a shard, nearest first, and the name that the shard has in
    each.

    `merge_index` of streaming writes one index above the folders of the shards.
    """
    index, name = shard.with_name("index.json"), shard.name
    for _ in range(_ABOVE + 1):
        if index.is_file():
            yield index, name
        folder = index.absolute().parent
        if folder == folder.parent:
            return
        index, name = folder.with_name("index.json"), f"{folder.name}/{name}"


def shards_of(found: Any, where: Path) -> list[Shard]:
    """The shards that an `index.json` lists."""
    try:
        return [_shard(one) for one in found["shards"]]
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise DataError(f"is no index of MDS shards: {error!r}", where=str(where)) from error


def _shard(one: Any) -> Shard:
    if (one["version"], one["format"]) != (2, "mds"):
        raise ValueError(
            f"version {one['version']!r} of {one['format']!r}; what is read is version 2 of 'mds'"
        )
    raw, packed = one["raw_data"], one.get("zip_data")
    names = [str(raw["basename"]), *([str(packed["basename"])] if packed else [])]
    return Shard(
        names, int(one["samples"]), int(raw["bytes"]), dict(raw["hashes"]), columns_of(one)
    )


def columns_of(one: Any) -> list[Column]:
    """The columns that the description of a shard names."""
    columns = zip(one["column_names"], one["column_encodings"], one["column_sizes"], strict=True)
    return [Column(str(name), str(encoding), int(size or 0)) for name, encoding, size in columns]
