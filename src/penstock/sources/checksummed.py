"""Files whose blocks are compared with stored checksums as they are read."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..engine.base.progress import Progress
from ..errors import convert_storage_errors
from ..stores import is_remote, storage
from . import derived_files, file_versions, sums
from .derived_files import Kind
from .lru import LRUCache, SharedCaches
from .sums import BlockChecksums

FIRST_REQUEST_BYTES = 64 << 10
"""Bytes at the beginning of a remote file that one request fetches."""


class ChecksummedFile:
    """The bytes of a file, each block compared with its checksum.

    Without `sums_path`, the derived file that stores the checksums, the bytes are not compared.
    """

    def __init__(
        self,
        path: Path,
        origin: Path,
        cache: LRUCache,
        sums_path: Path | None = None,
        kind: int = 0,
    ) -> None:
        self.path, self.origin, self._cache = path, origin, cache
        self._sums_path, self._kind = sums_path, kind

    def known(self) -> bool:
        """Return whether the file has checksums."""
        return self._sums_path is not None

    def read(self, start: int, length: int) -> bytes:
        """Return `length` bytes from `start` on; raise `DataError` if the file is shorter."""
        return sums.read(self.path, start, length, self._sums(), str(self.origin))

    def head(self, start: int, length: int) -> bytes:
        """Return bytes near the beginning of the file.

        Several parts of the head are needed, so one request fetches and caches it from a store.
        """
        head_size = min(FIRST_REQUEST_BYTES, file_versions.stat_file(self.path).size)
        if not is_remote(self.path) or start + length > head_size:
            return self.read(start, length)
        head: bytes = self._cache.get((self.path, "head"), lambda: (1, self.read(0, head_size)))
        return head[start : start + length]

    def many(self, starts: Sequence[int], lengths: Sequence[int]) -> list[bytes]:
        """Return the bytes of several ranges."""
        if self._sums_path is not None:
            return list(map(self.read, starts, lengths))
        with convert_storage_errors(self.path):
            ranges = storage.world.store.many(str(self.path), zip(starts, lengths, strict=True))
        if list(map(len, ranges)) != lengths:
            wrong = next(
                number for number, data in enumerate(ranges) if len(data) != lengths[number]
            )
            raise sums.make_truncation_error(
                len(ranges[wrong]), starts[wrong], lengths[wrong], str(self.origin)
            )
        return ranges

    def compare(self, start: int, stop: int, content: memoryview | None = None) -> None:
        """Raise `DataError` if a byte range differs from its checksums.

        Args:
            start: First byte.
            stop: End of the range.
            content: The bytes of the file, if they are mapped.
        """
        checksums = self._sums()
        if checksums is None or stop <= start:
            return None
        low = start // sums.BLOCK_BYTES * sums.BLOCK_BYTES
        if content is not None:
            return sums.require_equal_checksums(
                content[low : -(-stop // sums.BLOCK_BYTES) * sums.BLOCK_BYTES],
                low,
                checksums,
                str(self.origin),
            )
        for offset in range(low, stop, sums.CHUNK_BYTES):
            self.read(offset, min(sums.CHUNK_BYTES, stop - offset))
        return None

    def _sums(self) -> BlockChecksums | None:
        sums_path = self._sums_path
        return (
            None
            if sums_path is None
            else self._cache.get((sums_path, "sums"), lambda: (1, self._mapped(sums_path)))
        )

    def _mapped(self, sums_path: Path) -> BlockChecksums:
        return np.frombuffer(derived_files.read_body(sums_path, self._kind, self.origin)[1], "<u4")

    def compare_all(self) -> bool:
        """Compare the full file, unless that was done since its last change; return true."""
        if self._sums_path is not None:
            version = file_versions.stat_file(self.path)
            self._cache.get(
                (self._sums_path, "compared", version), lambda: (1, self.compare(0, version.size))
            )
        return True

    def open(self) -> io.BufferedReader:
        """Return an open file that compares what it reads."""
        return io.BufferedReader(_ChecksummedReader(self), sums.BLOCK_BYTES)


class OpenRequest(NamedTuple):
    """The arguments for opening one file: its bytes, the columns to read, and the caches."""

    data: ChecksummedFile
    columns: Sequence[str] | None
    cache: str | Path | None
    shared: SharedCaches
    rebuild: bool = False

    @property
    def path(self) -> Path:
        """Path of the plain, unpacked file."""
        return self.data.path

    @property
    def origin(self) -> Path:
        """Path of the file that the user named."""
        return self.data.origin


class _ChecksummedReader(io.RawIOBase):
    """Raw reader with seek of a checksummed file."""

    def __init__(self, data: ChecksummedFile) -> None:
        super().__init__()
        self._data, self._at, self._size = data, 0, file_versions.stat_file(data.path).size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at}.get(whence, self._size)
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        count = max(0, min(len(buffer), self._size - self._at))
        buffer[:count] = self._data.read(self._at, count)
        self._at += count
        return count


def open_checked_copy(copy: Path, origin: Path, cache: LRUCache, kind: int) -> ChecksummedFile:
    """Return the checksummed view of a derived copy, whose stamp contains the checksums."""
    return ChecksummedFile(copy, origin, cache, derived_files.stamp_path(copy), kind)


def open_checked_data(path: Path, files: LRUCache, cache: str | Path | None) -> ChecksummedFile:
    """Return the view of a user's file, compared with its checksums if there are any."""
    has_sums = derived_files.index_path(path, cache, "sums").exists()
    return ChecksummedFile(
        path,
        path,
        files,
        ensure_checksums(path, cache, False) if has_sums else None,
        Kind.CHECKSUMS,
    )


def ensure_checksums(path: Path, cache: str | Path | None, rebuild: bool) -> Path:
    """Return the path of the checksums of a file; make them if necessary."""

    def compute() -> tuple[int, bytes]:
        size = file_versions.stat_file(path).size
        with (
            Progress(f"checksums of {path.name}", size, "bytes") as progress,
            convert_storage_errors(path),
        ):
            checksums = sums.compute_checksums(
                storage.world.store.read(str(path), offset, sums.CHUNK_BYTES)
                for offset in progress.chunks(sums.CHUNK_BYTES)
            )
        return size, checksums.tobytes()

    file = derived_files.place_index(Kind.CHECKSUMS, path, "sums", cache, checksummed=True)
    return derived_files.ensure(file, compute, rebuild=rebuild)
