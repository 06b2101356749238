"""Samples of a tar archive, read through an index; nearby parts are read together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..stores import ByteRange, is_remote
from ..types import Ints
from . import derived_files, file_versions, tar_index
from .chain import choose_max_gap
from .checksummed import ChecksummedFile
from .derived_files import Kind
from .lru import LRUCache
from .tar_headers import (
    MERGED_KEYS_WARNING,
    HeaderIndexedTar,
    make_foreign_index_error,
    make_missing_parts_error,
    warn_of_merged,
)
from .tar_layout import TarIndex, decode, find_first_merged, group_reads

_COSTLY_READ_BYTES = 4 << 20  # bytes per read if reads are costly: from a store, or with checksums
_CHEAP_READ_BYTES = 64 << 10  # bytes per read otherwise
_MIN_SINGLE_READ_BYTES = (
    16 << 10
)  # smallest part, in bytes, that is cheaper to read alone than to copy


class Tar:
    """One archive; a sample is a dict of `__key__`, `__shard__` and its parts as bytes.

    `__shard__` is the name of the archive. `columns` selects parts; a sample that has none of them is
    an error. No file stays open between reads.
    """

    def __init__(
        self,
        path: Path,
        *,
        index: Path,
        origin: Path,
        shard: str,
        columns: Sequence[str] | None,
        cache: LRUCache,
        data: ChecksummedFile,
    ) -> None:
        self.columns = columns
        self.shard = shard
        self._path, self._index, self._origin, self._cache, self._data = (
            path,
            index,
            origin,
            cache,
            data,
        )
        self._stat, self._far = file_versions.stat_file(path), is_remote(path)
        places = self._layout()
        self._rows = len(places.digests)
        if (row := find_first_merged(places)) is not None and cache.is_first(MERGED_KEYS_WARNING):
            kinds: list[int] = places.kinds[places.first[row] : places.first[row + 1]].tolist()
            warn_of_merged(str(origin), places.key(row), [places.names[kind] for kind in kinds])

    def __len__(self) -> int:
        return self._rows

    def read(self, indices: Ints, /) -> list[Any]:
        """Return the samples at `indices`; neighbours are read together."""
        with file_versions.guard_unchanged(self._path, self._stat, name=str(self._origin)):
            if indices.size < 2 or bool((indices[1:] >= indices[:-1]).all()):
                return self._samples(indices)
            order = np.argsort(indices, kind="stable")
            ordered: list[Any] = [None] * len(order)
            for position, sample in zip(order.tolist(), self._samples(indices[order]), strict=True):
                ordered[position] = sample
            return ordered

    def ranges(self, indices: Ints, /) -> list[ByteRange]:
        """Return the byte ranges that these samples need; none for a local archive."""
        if not self._far or not indices.size:
            return []
        members, _ = self._selected(np.sort(indices))
        starts, ends, _ = self._near(members)
        return [
            ByteRange(str(self._path), low, high)
            for low, high in zip(starts.tolist(), ends.tolist(), strict=True)
        ]

    def find(self, keys: Iterable[str]) -> dict[str, int]:
        """Return the index of each of these keys that the archive contains."""
        unique, places = list(dict.fromkeys(keys)), self._layout()
        order = np.argsort(places.digests)
        key_digests = tar_index.digest_keys(unique)
        rows: dict[str, int] = {}
        positions = np.searchsorted(places.digests, key_digests, sorter=order)
        for key, digest, position in zip(
            unique, key_digests.tolist(), positions.tolist(), strict=True
        ):
            for row in (
                row
                for row in order[position : position + 4].tolist()
                if int(places.digests[row]) == digest
            ):
                if places.key(row) == key:
                    rows[key] = row
        return rows

    def _layout(self) -> TarIndex:
        """Return the content of the index."""
        return self._cache.get(self._index, self._load)

    def _load(self) -> tuple[int, TarIndex]:
        rows, body = derived_files.read_body(
            self._index, Kind.TAR_INDEX, self._origin, require_current=True
        )
        try:
            return len(body), decode(rows, body, self._stat.size)
        except (ValueError, TypeError, RecursionError) as error:
            raise make_foreign_index_error(self._index, self._origin) from error

    def _samples(self, rows: Ints) -> list[Any]:
        """Return samples in archive order."""
        places = self._layout()
        members, counts = self._selected(rows)
        bodies, names, kinds = self._parts(members), places.names, places.kinds[members].tolist()
        shard, samples, first = self.shard, list[Any](), 0
        for key, count in zip(places.spelt(rows), counts.tolist(), strict=True):
            sample: dict[str, Any] = {"__key__": key, "__shard__": shard}
            for member in range(first, first + count):
                sample[names[kinds[member]]] = bodies[member]
            first += count
            samples.append(sample)
        return samples

    def _selected(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return the selected members of these samples, and their number per sample."""
        places = self._layout()
        members, counts = places.members(rows)
        if self.columns is None:
            return members, counts
        codes = [code for code, name in enumerate(places.names) if name in self.columns]
        is_selected = np.isin(places.kinds[members], codes)
        selected_counts = np.bincount(
            np.repeat(np.arange(len(rows)), counts)[is_selected], minlength=len(rows)
        )
        if len(rows) and not selected_counts.all():
            row = int(rows[selected_counts.argmin()])
            sample_kinds: list[int] = places.kinds[
                places.first[row] : places.first[row + 1]
            ].tolist()
            parts = [places.names[code] for code in sample_kinds]
            raise make_missing_parts_error(
                self.columns, parts, f"{self._origin}, {places.key(row)}"
            )
        return members[is_selected], selected_counts

    def _near(self, members: Ints) -> tuple[Ints, Ints, Ints]:
        places = self._layout()
        starts, sizes = places.data[members], places.sizes[members]
        if self._far or self._data.known():
            return group_reads(
                starts, sizes, choose_max_gap(self._path), _COSTLY_READ_BYTES, _COSTLY_READ_BYTES
            )
        return group_reads(
            starts, sizes, _MIN_SINGLE_READ_BYTES, _MIN_SINGLE_READ_BYTES, _CHEAP_READ_BYTES
        )

    def _parts(self, members: Ints) -> list[bytes]:
        """Return the bytes of members, which are in archive order."""
        if not members.size:
            return []
        lows, highs, counts = self._near(members)
        bodies = self._data.many(lows.tolist(), (highs - lows).tolist())
        if len(lows) == len(members):
            return bodies
        places = self._layout()
        first, starts, sizes, parts = (
            0,
            places.data[members].tolist(),
            places.sizes[members].tolist(),
            list[bytes](),
        )
        for body, low, count in zip(bodies, lows.tolist(), counts.tolist(), strict=True):
            if count == 1:
                parts.append(body)
            else:
                spans = zip(
                    starts[first : first + count], sizes[first : first + count], strict=True
                )
                parts += [body[start - low : start - low + size] for start, size in spans]
            first += count
        return parts


class ExcludingTar:
    """An archive without some of its samples."""

    def __init__(self, file: Tar, rows: Iterable[int]) -> None:
        self.columns = file.columns
        self._file = file
        self._rows: Ints = np.setdiff1d(
            np.arange(len(file), dtype=np.int64), np.asarray(list(rows), np.int64)
        )

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, indices: Ints, /) -> list[Any]:
        """Return the samples at `indices`, counted without the excluded ones."""
        return self._file.read(self._rows[indices])

    def ranges(self, indices: Ints, /) -> list[ByteRange]:
        """Return the byte ranges that these samples need."""
        return self._file.ranges(self._rows[indices])


def open_tar(
    path: Path,
    origin: Path,
    *,
    columns: Sequence[str] | None,
    cache: str | Path | None,
    cached: LRUCache,
    shard: str = "",
    rebuild: bool = False,
    data: ChecksummedFile | None = None,
) -> Tar:
    """Open one archive with Penstock's index.

    Args:
        path: The plain, unpacked archive.
        origin: The file that the user named.
        columns: Parts to read; all by default.
        cache: Cache folder.
        cached: Cache of indexes.
        shard: Value of `__shard__`; by default the name of the archive.
        rebuild: Build the index again.
        data: The bytes of the archive.
    """
    index = tar_index.ensure_tar_index(path, origin, cache=cache, rebuild=rebuild)
    data = data or ChecksummedFile(path, origin, cached)
    return Tar(
        path,
        index=index,
        origin=origin,
        shard=shard or origin.name,
        columns=columns,
        cache=cached,
        data=data,
    )


def open_indexed(
    path: Path,
    *,
    columns: Sequence[str] | None,
    cache: str | Path | None,
    cached: LRUCache,
    shard: str = "",
    data: ChecksummedFile | None = None,
) -> Tar | HeaderIndexedTar:
    """Open one archive like `open_tar`, or with Energon's index if Penstock's is missing."""
    index = None
    if not derived_files.index_path(path, cache, "tar").exists():
        index = tar_index.find_energon_index(path, file_versions.stat_file(path))
    if index is None:
        return open_tar(
            path, path, columns=columns, cache=cache, cached=cached, shard=shard, data=data
        )
    data = data or ChecksummedFile(path, path, cached)
    return HeaderIndexedTar(
        path, index=index, shard=shard or path.name, columns=columns, cache=cached, data=data
    )
