"""Folders and files that Megatron-Energon prepared: shards, splits, exclusions.

A shard is named by its path below the folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, cast

import numpy as np

from ..engine.base.progress import Progress
from ..errors import ConfigError, DataError, convert_storage_errors
from ..stores import parse_location, storage
from ..types import Ints
from . import checksummed, file_versions, lines, meta
from .braces import expand_braces
from .chain import IndexedFile, JoinedFiles, outline_files
from .lru import LRUCache
from .tar_file import ExcludingTar, open_indexed, open_tar

_INDEX_CACHE = 256 << 20  # bytes


@dataclass(frozen=True)
class PreparedFolder:
    """The `.nv-meta` of a folder.

    Energon counts single excluded samples in `len`; here they do not exist.

    Attributes:
        folder: The folder.
        counts: Samples per shard, in the order of the folder's list.
        splits: Shards per split, in the order of the split file, without excluded shards.
        excluded: Keys of excluded samples per shard.
        required: Excluded keys that must exist.
    """

    folder: Path
    counts: Mapping[str, int]
    splits: Mapping[str, tuple[str, ...]]
    excluded: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    required: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])

    def open(
        self,
        split: str = "train",
        columns: Sequence[str] | None = None,
        cache: str | Path | None = None,
    ) -> JoinedFiles:
        """Return the samples of a split in the order of its shards, as dicts of parts.

        Args:
            split: Name of the split.
            columns: Parts to read; all by default.
            cache: Cache folder.

        Raises:
            ConfigError: The folder has no such split.
        """
        shards = self.splits.get(split)
        if shards is None:
            raise ConfigError(
                f"{self.folder}: there is no split {split!r}; there are {', '.join(self.splits)}"
            )
        index_cache = LRUCache(_INDEX_CACHE)
        with Progress("open shards", len(shards), "files") as progress:
            files: list[IndexedFile] = [
                self._shard(shard, columns, cache, index_cache) for shard in progress.each(shards)
            ]
        paths = [self.folder / shard for shard in shards]
        name = self.folder.absolute().name
        return JoinedFiles(
            files,
            outline_files(files, paths),
            format="energon",
            name=name,
            paths=paths,
            cache=cache,
            selection=self._describe_exclusions(shards),
        )

    def _describe_exclusions(self, shards: Sequence[str]) -> str:
        """Return the excluded samples of some shards as text; empty without any."""
        excluded = {
            shard: sorted(self.excluded[shard]) for shard in shards if shard in self.excluded
        }
        return json.dumps(excluded, sort_keys=True) if excluded else ""

    def _shard(
        self,
        shard: str,
        columns: Sequence[str] | None,
        cache: str | Path | None,
        index_cache: LRUCache,
    ) -> IndexedFile:
        path = self.folder / shard
        keys = self.excluded.get(shard, frozenset())
        data = checksummed.open_checked_data(path, index_cache, cache)
        if not keys:
            return self._with_expected_count(
                shard,
                open_indexed(
                    path, columns=columns, cache=cache, cached=index_cache, shard=shard, data=data
                ),
            )
        file = open_tar(
            path, path, columns=columns, cache=cache, cached=index_cache, shard=shard, data=data
        )
        self._with_expected_count(shard, file)
        rows_by_key = file.find(sorted(keys))
        if missing := sorted(self.required.get(shard, frozenset()) - rows_by_key.keys()):
            raise DataError(
                f"the excluded sample {missing[0]!r} does not exist in this shard: correct "
                "`exclude`, or prepare the folder again",
                where=str(path),
            )
        return ExcludingTar(file, rows_by_key.values())

    def _with_expected_count(self, shard: str, file: IndexedFile) -> IndexedFile:
        if len(file) != self.counts[shard]:
            raise DataError(
                f"this shard holds {len(file):,} samples, its folder was prepared with "
                f"{self.counts[shard]:,}: prepare the folder again",
                where=str(self.folder / shard),
            )
        return file


def is_prepared(path: str | Path) -> bool:
    """Return whether a folder contains `.nv-meta`."""
    try:
        return (parse_location(path) / meta.META_FOLDER).is_dir()
    except (OSError, RuntimeError):  # `find` reports what is wrong with the path
        return False


def load(folder: str | Path, split_config: str | None = None) -> PreparedFolder:
    """Read the list of shards and the splits of a prepared folder.

    Args:
        folder: The folder.
        split_config: Name of the split file; by default `split.yaml`, or else `split.json`.
    """
    root = parse_location(folder)
    counts = _read_shard_counts(root)
    split_path = (
        meta.config(root, split_config)
        if split_config
        else meta.find_first_existing(root, "split.yaml", "split.json")
    )
    config = meta.require_mapping(meta.read(split_path), split_path)
    names = list(_expand_names(config.get("exclude"), split_path))
    excluded_shards = {name for name, _ in names if name in counts}
    splits: dict[str, tuple[str, ...]] = {}
    for split, entries in meta.require_mapping(
        config.get("split_parts"), split_path, "split_parts"
    ).items():
        shards = [name for name, _ in _expand_names(entries, split_path)]
        if unknown := next((name for name in shards if name not in counts), None):
            raise DataError(
                f"the split {split!r} names the shard {unknown!r}, which was not prepared",
                where=str(split_path),
            )
        splits[split] = tuple(name for name in shards if name not in excluded_shards)
    excluded: dict[str, set[str]] = {}
    required: dict[str, set[str]] = {}
    for name, is_literal in names:
        if name in counts:
            continue
        shard, key = _parse_excluded_sample(name, counts, split_path)
        excluded.setdefault(shard, set()).add(key)
        if is_literal:  # a brace range may name samples that do not exist
            required.setdefault(shard, set()).add(key)
    return PreparedFolder(root, counts, splits, _freeze_sets(excluded), _freeze_sets(required))


class PreparedJsonLines:
    """A prepared file of JSON Lines.

    Samples are `{"__key__": "<row>", "__shard__": name, "json": row}`.
    """

    def __init__(self, path: Path, rows: IndexedFile) -> None:
        self._name, self._rows = path.name, rows
        self.columns = None

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, indices: Ints, /) -> list[Any]:
        """Return the samples at `indices`."""
        rows = zip(indices.tolist(), self._rows.read(indices), strict=True)
        return [
            {"__key__": str(index), "__shard__": self._name, "json": row} for index, row in rows
        ]


def open_jsonl(path: str | Path, cache: str | Path | None = None) -> JoinedFiles:
    """Open a prepared `X.jsonl`; an `X.jsonl.idx` beside it must match."""
    file = parse_location(path)
    if not file.is_file() or file.suffix.lower() != ".jsonl":
        raise ConfigError(
            f"{str(path)!r} is neither a folder that contains {meta.META_FOLDER} nor a .jsonl file"
        )
    rows = lines.open_lines(
        file, file, text=False, columns=None, cache=cache, mapped_files=LRUCache(1)
    )
    index = file.with_name(f"{file.name}.idx")
    if index.exists():
        size = file_versions.stat_file(index).size
        with convert_storage_errors(index):
            index_bytes = (
                storage.world.store.read(str(index)) if size == 8 * (len(rows) + 1) else b""
            )
        offsets = np.frombuffer(index_bytes, "=u8")
        if len(offsets) != len(rows) + 1 or int(offsets[-1]) != file_versions.stat_file(file).size:
            raise DataError(
                f"{index} is not the index of this file, which has {len(rows):,} rows: prepare it "
                "again, or delete it",
                where=str(file),
            )
    files = [PreparedJsonLines(file, rows)]
    return JoinedFiles(
        files,
        outline_files(files, [file]),
        format="energon",
        name=file.stem,
        paths=[file],
        cache=cache,
    )


def _read_shard_counts(root: Path) -> dict[str, int]:
    info_path = meta.find_first_existing(root, ".info.json", ".info.yaml")
    counts: dict[str, int] = {}
    for name, count in meta.require_mapping(
        meta.require_mapping(meta.read(info_path), info_path).get("shard_counts"),
        info_path,
        "shard_counts",
    ).items():
        if type(count) is not int or count < 0:
            raise DataError(f"the shard {name!r} has {count!r} samples", where=str(info_path))
        shard_path = PurePosixPath(name)
        if shard_path.is_absolute() or ".." in shard_path.parts or "\\" in name or "\0" in name:
            raise DataError(
                f"the shard {name!r} does not lie below this folder: move it there",
                where=str(info_path),
            )
        if shard_path.suffix.lower() != ".tar":
            raise DataError(
                f"the shard {name!r} is no plain .tar: unpack it and prepare the folder again",
                where=str(info_path),
            )
        counts[name] = count
    return counts


def _parse_excluded_sample(name: str, counts: Mapping[str, int], where: Path) -> tuple[str, str]:
    """Return shard and key of an excluded sample, written `shard.tar/key`."""
    for position in (position for position, letter in enumerate(name) if letter == "/"):
        if name[:position] in counts:
            return name[:position], name[position + 1 :]
    raise DataError(
        f"the excluded name {name!r} is neither a shard nor a sample of one: correct `exclude`",
        where=str(where),
    )


def _expand_names(entries: Any, where: Path) -> Iterator[tuple[str, bool]]:
    """Yield the names of a list with braces expanded, and whether each was written literally."""
    if entries is not None and not isinstance(entries, list):
        raise DataError(f"a list of names is required, not {entries!r}", where=str(where))
    for entry in cast("list[Any]", entries or ()):
        try:
            names = list(expand_braces(str(entry)))
        except ConfigError as error:
            raise DataError(str(error), where=str(where)) from error
        yield from ((name, name == entry) for name in names)


def _freeze_sets(sets: Mapping[str, set[str]]) -> dict[str, frozenset[str]]:
    return {shard: frozenset(keys) for shard, keys in sets.items()}
