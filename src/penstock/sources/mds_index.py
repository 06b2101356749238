"""The `index.json` of a folder of MDS shards: which files they are, and how their columns are written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import DataError


class Column(NamedTuple):
    """One column: how its values are written, and their size where all have the same."""

    name: str
    encoding: str
    size: int


class Shard(NamedTuple):
    """What an index says of one shard: the files it may be, its rows, its size unpacked, and digests of that."""

    basenames: list[str]
    rows: int
    size: int
    hashes: Mapping[str, str]
    columns: list[Column]


def shards_of(found: Any, where: Path) -> list[Shard]:
    """The shards that an `index.json` lists."""
    try:
        return [_shard(one) for one in found["shards"]]
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise DataError(f"is no index of MDS shards: {error!r}", where=str(where)) from error


def _shard(one: Any) -> Shard:
    if (one["version"], one["format"]) != (2, "mds"):
        raise ValueError(f"version {one['version']!r} of {one['format']!r}; what is read is version 2 of 'mds'")
    raw, packed = one["raw_data"], one.get("zip_data")
    names = [str(raw["basename"]), *([str(packed["basename"])] if packed else [])]
    return Shard(names, int(one["samples"]), int(raw["bytes"]), dict(raw["hashes"]), columns_of(one))


def columns_of(one: Any) -> list[Column]:
    """The columns that the description of a shard names."""
    columns = zip(one["column_names"], one["column_encodings"], one["column_sizes"], strict=True)
    return [Column(str(name), str(encoding), int(size or 0)) for name, encoding, size in columns]
