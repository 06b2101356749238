"""Prepare folders of tars and `.jsonl` files as Energon does, so that either library reads them."""

from __future__ import annotations

import json
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ConfigError, DataError
from ...sources import file_versions, lines, meta
from ...sources.braces import expand_braces
from ...sources.lru import LRUCache
from ...sources.tar_index import scan_headers
from ...stores.storage import write_atomically
from ...stores.urls import require_local
from .caching import SQLITE_INDEX

VERSION = "7.4.1"
"""The release of Energon whose files these are."""

_MOST_PARTS = 50
_TABLES = """
CREATE TABLE samples (
    tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, sample_index INTEGER NOT NULL,
    byte_offset INTEGER, byte_size INTEGER);
CREATE TABLE sample_parts (
    tar_file_id INTEGER, sample_index INTEGER, part_name TEXT,
    content_byte_offset INTEGER, content_byte_size INTEGER);
"""
_INDEXES = """
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full ON sample_parts(
    tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size);
"""


def prepare_dataset(
    parent_path: Any,
    paths: Sequence[str] = (),
    *,
    split_parts_ratio: Sequence[tuple[str, float]] | None = None,
    split_parts_patterns: Sequence[tuple[str, str]] | None = None,
    split_config: str = "split.yaml",
    shuffle_seed: int | None = 42,
    progress_fn: Callable[[Iterator[Any], int], Iterator[Any]] | None = None,
    workers: int = 32,
    tar_index_only: bool = False,
    media_filter: Any = None,
    fix_duplicates: bool = False,
    index_sqlite_tmp_path: Any = None,
) -> set[str] | int:
    """Index the shards of a folder, and write its list of shards and its splits.

    Args:
        parent_path: the folder, or a `.jsonl` file.
        paths: shards, relative to the folder; braces are expanded.
        split_parts_ratio: pairs of a split and its share of the shards.
        split_parts_patterns: pairs of a split and a regular expression for its shards.
        split_config: name of the file of the splits.
        shuffle_seed: seed of the order in which shards go into splits; None keeps their order.
        progress_fn: wraps the iterator over the shards.
        workers: not used.
        tar_index_only: whether to write only the indexes beside the shards.
        media_filter: not supported.
        fix_duplicates: not supported.
        index_sqlite_tmp_path: not used.

    Returns:
        The names of the parts, at most 50; for a `.jsonl` file the number of rows.

    Raises:
        ConfigError: without splits, for a shard without samples, and for settings that are not
            supported.
        DataError: for a damaged shard, and for keys that occur twice.
    """
    root = require_local(str(parent_path))
    if root.suffix == ".jsonl":
        return prepare_jsonl(root)
    if media_filter is not None or fix_duplicates:
        raise ConfigError(
            "prepare: media metadata and fix_duplicates are not supported: run `energon prepare`, "
            "whose folders Penstock reads"
        )
    if split_parts_ratio is None and split_parts_patterns is None and not tar_index_only:
        raise ConfigError("prepare: give split_parts_ratio or split_parts_patterns")
    shards = [name for path in paths for name in expand_braces(str(path))]
    folder = root / meta.META_FOLDER
    folder.mkdir(exist_ok=True)
    numbers: Iterable[int] = iter(range(len(shards)))
    if progress_fn is not None:
        numbers = progress_fn(iter(range(len(shards))), len(shards))
    counts, parts = _write_indexes(root, shards, numbers)
    write_atomically(folder / "index.uuid", str(uuid.uuid4()).encode())
    if tar_index_only:
        return parts
    _write_json(folder / ".info.json", {"energon_version": VERSION, "shard_counts": counts})
    splits = (
        _split_by_share(shards, split_parts_ratio, shuffle_seed)
        if split_parts_ratio is not None
        else _split_by_pattern(shards, split_parts_patterns or ())
    )
    _write_splits(folder / Path(split_config).name, splits)
    return parts


def prepare_jsonl(path: Path) -> int:
    """Write the index of a `.jsonl` file beside it, and return the number of rows.

    Args:
        path: the file.
    """
    rows = lines.open_lines(
        path, path, text=False, columns=None, cache=None, mapped_files=LRUCache(1)
    )
    offsets, at = [0], 0
    with path.open("rb") as file:
        for line in file:
            at += len(line)
            if line.strip():
                offsets.append(at)
    if len(offsets) != len(rows) + 1:
        raise DataError("the rows of the file cannot be counted", where=str(path))
    offsets[-1] = at
    write_atomically(path.with_name(f"{path.name}.idx"), np.array(offsets, "=u8").tobytes())
    return len(rows)


def _write_indexes(
    root: Path, shards: Sequence[str], numbers: Iterable[int]
) -> tuple[dict[str, int], set[str]]:
    """Write the index beside each shard, and that by keys; return counts and names of parts."""
    counts, parts = dict[str, int](), set[str]()
    target = root / meta.META_FOLDER / SQLITE_INDEX
    temporary = target.with_name(f".{SQLITE_INDEX}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(temporary)) as index:
            index.executescript(_TABLES)
            for number in numbers:
                shard = shards[number]
                path = root / shard
                contents = scan_headers(path, file_versions.stat_file(path).size, str(path))
                if not contents.keys:
                    raise ConfigError(f"{path}: there are no samples in this shard: leave it out")
                _index_shard(index, number, path, contents)
                counts[shard] = len(contents.keys)
                if len(parts) < _MOST_PARTS:
                    parts.update(contents.parts)
                write_atomically(
                    path.with_name(f"{path.name}.idx"), np.array(contents.starts, "=u8").tobytes()
                )
            index.executescript(_INDEXES)
            index.commit()
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
    return counts, parts


def _index_shard(index: sqlite3.Connection, number: int, path: Path, contents: Any) -> None:
    starts, first = contents.starts, contents.first
    try:
        index.executemany(
            "INSERT INTO samples VALUES (?, ?, ?, ?, ?)",
            (
                (number, key, row, starts[row], starts[row + 1] - starts[row])
                for row, key in enumerate(contents.keys)
            ),
        )
    except sqlite3.IntegrityError:
        known = dict(index.execute("SELECT sample_key, tar_file_id FROM samples"))
        twice = next((key for key in contents.keys if known.get(key, number) != number), "")
        raise DataError(
            f"the sample {twice!r} is in an earlier shard too: rename it, since keys name the "
            "samples of all shards",
            where=str(path),
        ) from None
    index.executemany(
        "INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)",
        (
            (number, row, contents.parts[at], contents.data[at], contents.sizes[at])
            for row in range(len(contents.keys))
            for at in range(first[row], first[row + 1])
        ),
    )


def _split_by_share(
    shards: Sequence[str], shares: Sequence[tuple[str, float]], seed: int | None
) -> dict[str, list[str]]:
    ordered: list[str] = list(shards)
    if seed is not None:
        ordered = [str(shards[i]) for i in np.random.default_rng(seed).permutation(len(shards))]
    total = sum(share for _, share in shares)
    splits, start, part = dict[str, list[str]](), 0, 0.0
    for name, share in shares:
        part += share
        stop = int(len(shards) * part / total + 1e-9)
        splits[name] = ordered[start:stop]
        start = stop
    return splits


def _split_by_pattern(
    shards: Sequence[str], patterns: Sequence[tuple[str, str]]
) -> dict[str, list[str]]:
    splits = dict[str, list[str]]()
    for name, pattern in patterns:
        compiled = [re.compile(option) for option in expand_braces(pattern)]
        splits[name] = [shard for shard in shards if any(p.match(shard) for p in compiled)]
    return splits


def _write_splits(path: Path, splits: Mapping[str, Sequence[str]]) -> None:
    """Write the file of the splits: JSON if its name says so, else YAML that users can edit."""
    if path.suffix == ".json":
        _write_json(path, {"split_parts": splits, "exclude": []})
        return
    rows = ["split_parts:"]
    for name, shards in splits.items():
        rows.append(f"  {json.dumps(name)}:" if shards else f"  {json.dumps(name)}: []")
        rows += [f"  - {json.dumps(shard)}" for shard in shards]
    write_atomically(path, "\n".join([*rows, "exclude: []", ""]).encode())


def _write_json(path: Path, value: Any) -> None:
    """Write JSON, which is YAML too."""
    write_atomically(path, json.dumps(value, indent=2).encode())
