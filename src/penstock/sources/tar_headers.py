"""Samples of a tar archive through an index that contains sample offsets only.

Headers are read together with the samples. This reads archives for which Energon left an index, and
compares the index with the archive.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..stores import ByteRange, is_remote
from ..types import Ints
from . import file_versions, tar_index
from .chain import choose_max_gap, merge_row_ranges, read_in_file_order
from .checksummed import ChecksummedFile
from .lru import LRUCache
from .tar import MemberIterator, ReadBytes, parse_sample_part
from .tar_index import ReadAheadWindow
from .tar_layout import looks_merged

_BLOCK_BYTES = 4 << 20  # bytes of samples read together
_MAX_FULL_READ_BYTES = (
    64 << 10
)  # samples up to this size are read in full even if `columns` selects parts


class HeaderIndexedTar:
    """One archive with the samples of `Tar`, whose offsets are in `index`."""

    def __init__(
        self,
        path: Path,
        *,
        index: Path,
        shard: str,
        columns: Sequence[str] | None,
        cache: LRUCache,
        data: ChecksummedFile,
    ) -> None:
        self.columns = columns
        self.shard = shard
        self._path, self._index, self._cache, self._data = path, index, cache, data
        self._stat = file_versions.stat_file(path)
        self._rows = file_versions.stat_file(index).size // 8 - 1

    def __len__(self) -> int:
        return self._rows

    def read(self, indices: Ints, /) -> list[Any]:
        """Return the samples at `indices`; neighbours are read together."""
        with file_versions.guard_unchanged(self._path, self._stat, name=str(self._path)):
            if not indices.size:
                return []
            offsets: Ints = self._cache.get(self._index, self._offsets)
            starts, ends = offsets[indices], offsets[indices + 1]
            if bool((starts >= ends).any()) or int(ends.max()) > self._stat.size:
                raise self._foreign()
            return read_in_file_order(starts, ends, self._samples)

    def ranges(self, indices: Ints, /) -> list[ByteRange]:
        """Return the remote byte ranges that these samples need; none with `columns`."""
        if not is_remote(self._path) or self.columns is not None:
            return []
        offsets: Ints = self._cache.get(self._index, self._offsets)
        return merge_row_ranges(self._path, offsets[indices], offsets[indices + 1])

    def _offsets(self) -> tuple[int, Ints]:
        """Load the offsets of the samples and of the end."""
        offsets = tar_index.read_energon_offsets(self._index)
        return offsets.nbytes, offsets

    def _samples(self, starts: Ints, ends: Ints) -> Iterator[dict[str, Any]]:
        """Yield samples in archive order, read in blocks of neighbours."""
        starts_block = (starts[1:] > ends[:-1] + choose_max_gap(self._path)) | (
            starts[1:] // _BLOCK_BYTES != starts[:-1] // _BLOCK_BYTES
        )
        boundaries = [0, *(starts_block.nonzero()[0] + 1).tolist(), len(starts)]
        firsts, lasts = starts.tolist(), ends.tolist()
        for low, high in pairwise(boundaries):
            base, stop = firsts[low], lasts[high - 1]
            if self.columns is not None and stop - base > _MAX_FULL_READ_BYTES:
                for first, last in zip(firsts[low:high], lasts[low:high], strict=True):
                    yield self._sample(
                        ReadAheadWindow(self._path, read=self._read_up_to_end),
                        self._data.read,
                        first,
                        last,
                    )
                continue
            block = self._data.read(base, stop - base)

            def get(at: int, length: int, block: bytes = block, base: int = base) -> bytes:
                return block[at - base : at - base + length]

            for first, last in zip(firsts[low:high], lasts[low:high], strict=True):
                yield self._sample(get, get, first, last)

    def _sample(self, headers: ReadBytes, data: ReadBytes, start: int, stop: int) -> dict[str, Any]:
        name, columns = str(self._path), self.columns
        members = MemberIterator(headers, start, stop, name)
        sample: dict[str, Any] = {"__key__": None, "__shard__": self.shard}
        parts: list[str] = []
        try:
            for member in members:
                key_and_part = parse_sample_part(member, name)
                if key_and_part is None:
                    continue
                key, part = key_and_part
                if sample["__key__"] not in (None, key) or part in sample:
                    raise self._foreign()
                sample["__key__"] = key
                parts.append(part)
                if columns is None or part in columns:
                    sample[part] = data(member.data, member.size)
        except DataError as error:
            raise self._foreign() from error
        if members.at != stop or not parts or not self._ends(stop, sample["__key__"]):
            raise self._foreign()
        if looks_merged(parts) and self._cache.is_first(MERGED_KEYS_WARNING):
            warn_of_merged(name, sample["__key__"], parts)
        if columns is not None and len(sample) == 2:
            raise make_missing_parts_error(columns, parts, f"{name}, {sample['__key__']}")
        return sample

    def _ends(self, stop: int, key: str) -> bool:
        """Return whether another sample, or the end, begins at `stop`."""
        name = str(self._path)
        after = (
            parse_sample_part(member, name)
            for member in MemberIterator(ReadAheadWindow(self._path), stop, self._stat.size, name)
        )
        following = next(filter(None, after), None)
        return following is None or following[0] != key

    def _read_up_to_end(self, at: int, length: int) -> bytes:
        return self._data.read(at, min(length, self._stat.size - at))

    def _foreign(self) -> DataError:
        return make_foreign_index_error(self._index, self._path)


def make_foreign_index_error(index: Path, origin: Path) -> DataError:
    """Build the error for an index that does not belong to the archive."""
    return DataError(
        f"the offsets in {index} do not fit this archive: run `penstock index --rebuild {origin}`, "
        f"or delete {index}",
        where=str(origin),
    )


def make_missing_parts_error(columns: Sequence[str], parts: Sequence[str], where: str) -> DataError:
    """Build the error for a sample that has none of the selected parts."""
    return DataError(
        f"this sample has none of the parts {', '.join(columns)}; it has {', '.join(parts)}",
        where=where,
    )


MERGED_KEYS_WARNING = "merged keys"
"""Name of a warning that a source logs once."""


def warn_of_merged(name: str, key: str, parts: Sequence[str]) -> None:
    """Warn that the files of several samples may have been merged into one."""
    files = ", ".join(f"{key}.{part}" for part in parts[:4])
    warnings.warn(
        f"{name}: the sample {key!r} is made of {files}{', ...' if len(parts) > 4 else ''}: a key "
        "ends at the first dot of a name, so if these are separate samples, name them without it",
        stacklevel=2,
    )
