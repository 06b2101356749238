"""Folders and files that Megatron-Energon prepared: shards, splits, exclusions. A shard is a path
below the folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, cast

import numpy as np

from ..engine.base import seams
from ..engine.base.progress import Progress
from ..errors import ConfigError, DataError
from ..stores import located
from ..types import Ints
from . import checksummed, lines, meta, sidecar
from .braces import braces
from .chain import Chain, File, outline_of
from .lru import LRUCache
from .tar_file import ExcludingTar, open_indexed, open_tar

_HELD = 256 << 20  # bytes of indexes


@dataclass(frozen=True)
class Prepared:
    """What `.nv-meta` says of a folder: the samples of each shard, the shards of each split, what
    is excluded.

    `counts` is in the order of the folder's list, `splits` in that of its split file; an excluded
    shard is in none. `excluded` has the keys of single samples by shard. Energon counts these in
    `len`; here they are not there at all.
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
    ) -> Chain:
        """The samples of a split, in the order of its shards, as dicts of parts; only `columns` of
        them, if given."""
        shards = self.splits.get(split)
        if shards is None:
            raise ConfigError(
                f"{self.folder}: there is no split {split!r}; there are {', '.join(self.splits)}"
            )
        held = LRUCache(_HELD)
        with Progress("open shards", len(shards), "files") as progress:
            files: list[File] = [
                self._shard(shard, columns, cache, held) for shard in progress.each(shards)
            ]
        paths = [self.folder / shard for shard in shards]
        name = self.folder.absolute().name
        return Chain(
            files, outline_of(files, paths), format="energon", name=name, paths=paths, cache=cache
        )

    def _shard(
        self, shard: str, columns: Sequence[str] | None, cache: str | Path | None, held: LRUCache
    ) -> File:
        path = self.folder / shard
        keys = self.excluded.get(shard, frozenset())
        data = checksummed.of_data(path, held, cache)
        if not keys:
            return self._counted(
                shard,
                open_indexed(path, columns=columns, cache=cache, held=held, shard=shard, data=data),
            )
        file = open_tar(path, path, columns=columns, cache=cache, held=held, shard=shard, data=data)
        self._counted(shard, file)
        found = file.find(sorted(keys))
        if missing := sorted(self.required.get(shard, frozenset()) - found.keys()):
            raise DataError(
                f"the sample {missing[0]!r} is to be excluded, but is not here", where=str(path)
            )
        return ExcludingTar(file, found.values())

    def _counted(self, shard: str, file: File) -> File:
        if len(file) != self.counts[shard]:
            raise DataError(
                f"this shard holds {len(file):,} samples, its folder was prepared with "
                f"{self.counts[shard]:,}: "
                "prepare the folder again",
                where=str(self.folder / shard),
            )
        return file


def is_prepared(path: str | Path) -> bool:
    """Whether this is a folder with a `.nv-meta` in it."""
    try:
        return (located(path) / meta.META).is_dir()
    except (OSError, RuntimeError):  # what is wrong with the path is said where it is looked for
        return False


def load(folder: str | Path, split_config: str | None = None) -> Prepared:
    """Read what a folder was prepared with: its list of shards and its splits, `split.yaml` or else
    `split.json`."""
    root = located(folder)
    counts = _counts(root)
    where = (
        meta.config(root, split_config)
        if split_config
        else meta.first(root, "split.yaml", "split.json")
    )
    found = meta.mapping(meta.read(where), where)
    names = list(_names(found.get("exclude"), where))
    gone = {name for name, _ in names if name in counts}
    splits: dict[str, tuple[str, ...]] = {}
    for split, entries in meta.mapping(found.get("split_parts"), where, "split_parts").items():
        shards = [name for name, _ in _names(entries, where)]
        if unknown := next((name for name in shards if name not in counts), None):
            raise DataError(
                f"the split {split!r} names the shard {unknown!r}, which was not prepared",
                where=str(where),
            )
        splits[split] = tuple(name for name in shards if name not in gone)
    excluded: dict[str, set[str]] = {}
    required: dict[str, set[str]] = {}
    for name, exact in names:
        if name in counts:
            continue
        shard, key = _excluded(name, counts, where)
        excluded.setdefault(shard, set()).add(key)
        if exact:  # what a range of numbers means need not all be there
            required.setdefault(shard, set()).add(key)
    return Prepared(root, counts, splits, _frozen(excluded), _frozen(required))


class JsonLines:
    """A prepared file of JSON lines: samples `{"__key__": "<row>", "__shard__": name, "json":
    row}`."""

    def __init__(self, path: Path, rows: File) -> None:
        self._name, self._rows = path.name, rows
        self.columns = None

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, indices: Ints, /) -> list[Any]:
        """The samples at `indices`."""
        rows = zip(indices.tolist(), self._rows.read(indices), strict=True)
        return [
            {"__key__": str(index), "__shard__": self._name, "json": row} for index, row in rows
        ]


def open_jsonl(path: str | Path, cache: str | Path | None = None) -> Chain:
    """The samples of a prepared `X.jsonl`; the `X.jsonl.idx` beside it, if there is one, must fit
    it."""
    file = located(path)
    if not file.is_file() or file.suffix.lower() != ".jsonl":
        raise ConfigError(
            f"{str(path)!r} is neither a folder with a {meta.META} in it nor a .jsonl file"
        )
    rows = lines.open_lines(
        file, file, text=False, columns=None, cache=cache, mapped_files=LRUCache(1)
    )
    index = file.with_name(f"{file.name}.idx")
    if index.exists():
        size = sidecar.stat(index).size
        with sidecar.storage(index):
            known = seams.world.store.read(str(index)) if size == 8 * (len(rows) + 1) else b""
        offsets = np.frombuffer(known, "=u8")
        if len(offsets) != len(rows) + 1 or int(offsets[-1]) != sidecar.stat(file).size:
            raise DataError(
                f"{index} is not the index of this file, which has {len(rows):,} rows: prepare it "
                "again, or delete it",
                where=str(file),
            )
    files = [JsonLines(file, rows)]
    return Chain(
        files,
        outline_of(files, [file]),
        format="energon",
        name=file.stem,
        paths=[file],
        cache=cache,
    )


def _counts(root: Path) -> dict[str, int]:
    where = meta.first(root, ".info.json", ".info.yaml")
    counts: dict[str, int] = {}
    for name, count in meta.mapping(
        meta.mapping(meta.read(where), where).get("shard_counts"), where, "shard_counts"
    ).items():
        if type(count) is not int or count < 0:
            raise DataError(f"the shard {name!r} has {count!r} samples", where=str(where))
        place = PurePosixPath(name)
        if place.is_absolute() or ".." in place.parts or "\\" in name or "\0" in name:
            raise DataError(
                f"the shard {name!r} does not lie below this folder, and is not read",
                where=str(where),
            )
        if place.suffix.lower() != ".tar":
            raise DataError(
                f"the shard {name!r} is no plain .tar: unpack it and prepare the folder again",
                where=str(where),
            )
        counts[name] = count
    return counts


def _excluded(name: str, counts: Mapping[str, int], where: Path) -> tuple[str, str]:
    """Shard and key of an excluded sample, written `shard.tar/key`."""
    for at in (at for at, letter in enumerate(name) if letter == "/"):
        if name[:at] in counts:
            return name[:at], name[at + 1 :]
    raise DataError(
        f"{name!r} is to be excluded, but is neither a shard nor a sample of one", where=str(where)
    )


def _names(entries: Any, where: Path) -> Iterator[tuple[str, bool]]:
    """The names that a list means, braces written out, and whether each was written as it is."""
    if entries is not None and not isinstance(entries, list):
        raise DataError(f"there must be a list of names where {entries!r} stands", where=str(where))
    for entry in cast("list[Any]", entries or ()):
        try:
            written = list(braces(str(entry)))
        except ConfigError as error:
            raise DataError(str(error), where=str(where)) from error
        yield from ((name, name == entry) for name in written)


def _frozen(found: Mapping[str, set[str]]) -> dict[str, frozenset[str]]:
    return {shard: frozenset(keys) for shard, keys in found.items()}
