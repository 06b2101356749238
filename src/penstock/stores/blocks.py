"""Disk cache of remote blocks, shared by the processes of a node.

A block is a file: a header, the CRC-32 of every 4 KiB, and the bytes. Writes are atomic, and every
read compares the checksums. One process fetches a block while the others wait for it. The kernel
releases the locks of a process that dies.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import struct
import warnings
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from glob import escape
from pathlib import Path
from typing import NamedTuple

from ..engine.base import machine, seams
from ..engine.base.event_counts import EVENT_COUNTS
from ..errors import ConfigError
from . import storage
from .client import ObjectInfo
from .urls import require_local

CACHE_LIMIT_VARIABLE = "PENSTOCK_CACHE_LIMIT"
"""Environment variable with the size limit of the cache, such as `200GB`."""

BLOCK_BYTES = 1 << 20  # bytes of a block
_CHECKSUM_BYTES = 4 << 10
# Magic, version, length, CRC-32 of the block's file name and its checksums.
_HEADER_STRUCT = struct.Struct("<8sIII")
_MAGIC, _VERSION = b"PENSTOCB", 2
_MAX_BLOCKS_PER_REQUEST = 8  # blocks in one request
_LOCK_COUNT = 64
_RETRY_WRITES_AFTER = 60.0  # seconds
_SIZE_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}

FetchRange = Callable[[int, int], bytes | memoryview]


class CachedBlock(NamedTuple):
    """A cached block: its file, its size on disk, and the time of its last use."""

    path: Path
    size: int
    used: int


class BlockCache:
    """The block cache in a folder.

    Args:
        cache: the cache folder.
    """

    def __init__(self, cache: str | Path) -> None:
        self.folder = require_local(cache) / "blocks"
        self._failed_at: float | None = None  # time of the last failed write, until one succeeds

    def read(
        self, info: ObjectInfo, start: int, stop: int, fetch: FetchRange
    ) -> bytes | memoryview:
        """Return bytes of an object from cached blocks; fetch and cache the missing blocks.

        Args:
            info: the object and the version to read.
            start: first byte.
            stop: byte after the last.
            fetch: fetches the bytes between two offsets.
        """
        key = hashlib.blake2b(
            f"{info.url}\0{info.size}\0{info.etag or info.modified}".encode(), digest_size=16
        ).hexdigest()
        numbers = range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES))
        parts_by_number = {number: self._read_part(key, number, start, stop) for number in numbers}
        misses = 0
        for run in _group_consecutive(
            [number for number, block_bytes in parts_by_number.items() if block_bytes is None]
        ):
            if not self._has_room(run, info.size):  # fetch only the requested bytes
                data = fetch(
                    max(start, run[0] * BLOCK_BYTES), min(stop, (run[-1] + 1) * BLOCK_BYTES)
                )
                parts_by_number |= {**dict.fromkeys(run, b""), run[0]: data}
                misses += len(run)
                continue
            with self._block_locks(key, run):
                checked = {number: self._read_part(key, number, start, stop) for number in run}
                for missing in _group_consecutive(
                    [number for number, block_bytes in checked.items() if block_bytes is None]
                ):
                    checked |= self._fetch(info, key, missing, start, stop, fetch)
                    misses += len(missing)
            parts_by_number |= checked
        EVENT_COUNTS.add("cache_misses", misses)
        EVENT_COUNTS.add("cache_hits", len(numbers) - misses)
        parts = [
            block_bytes
            for number in numbers
            if (block_bytes := parts_by_number[number]) is not None
        ]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _fetch(
        self,
        info: ObjectInfo,
        key: str,
        run: Sequence[int],
        start: int,
        stop: int,
        fetch: FetchRange,
    ) -> dict[int, bytes | memoryview | None]:
        low, high = run[0] * BLOCK_BYTES, min((run[-1] + 1) * BLOCK_BYTES, info.size)
        data = memoryview(fetch(low, high))
        blocks = {
            number: data[(number - run[0]) * BLOCK_BYTES : (number - run[0] + 1) * BLOCK_BYTES]
            for number in run
        }
        self._store(key, blocks)
        return {
            number: block[max(start - number * BLOCK_BYTES, 0) : stop - number * BLOCK_BYTES]
            for number, block in blocks.items()
        }

    def _path(self, key: str, number: int) -> Path:
        return self.folder / key[:2] / f"{key}-{number:x}"

    def _read_part(self, key: str, number: int, start: int, stop: int) -> bytes | memoryview | None:
        """Return the requested bytes of a block; `None` if it is missing or corrupted."""
        path, block_start = self._path(key, number), number * BLOCK_BYTES
        data = read_block(path, max(start - block_start, 0), min(stop - block_start, BLOCK_BYTES))
        if data is not None:
            with contextlib.suppress(OSError):
                storage.world.disk.touch(path)
        return data

    @contextlib.contextmanager
    def _block_locks(self, key: str, run: Sequence[int]) -> Generator[None]:
        """Lock these blocks, so that no other process fetches them."""
        lock_numbers = sorted(
            {zlib.crc32(f"{key}{number}".encode()) % _LOCK_COUNT for number in run}
        )
        with contextlib.ExitStack() as stack:
            for lock_number in lock_numbers:
                stack.enter_context(self._lock(f"{lock_number:02x}"))
            yield

    def _lock(self, name: str) -> contextlib.AbstractContextManager[bool]:
        path = self.folder / "locks" / name
        with contextlib.suppress(OSError):
            if not path.exists():
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                storage.world.disk.write(path, b"")
        return storage.world.disk.lock(path)

    def _has_room(self, run: Sequence[int], size: int) -> bool:
        """Return whether the cache has room for these blocks of an object."""
        if self._failed_at is not None:
            if (current_time := seams.world.sched.now()) < self._failed_at + _RETRY_WRITES_AFTER:
                return False
            self._failed_at = current_time  # only this thread retries
        new_bytes = sum(
            compute_file_size(min(BLOCK_BYTES, size - number * BLOCK_BYTES)) for number in run
        )
        with self._write_lock():
            used_bytes = self._used_bytes()
            self._record_usage(used_bytes)  # raises if the folder is not writable
            return new_bytes <= self.limit(used_bytes)
        return False

    def _store(self, key: str, blocks: dict[int, memoryview]) -> None:
        """Write blocks to the cache, evicting others; silently skip blocks over the limit."""
        disk, new_bytes = (
            storage.world.disk,
            sum(compute_file_size(len(data)) for data in blocks.values()),
        )
        with self._write_lock():
            used = self._used_bytes()
            if new_bytes <= (limit := self.limit(used)) < used + new_bytes:
                used = self.shrink(min(limit - new_bytes, limit - limit // 8))
            if used + new_bytes > limit:
                return
            self._record_usage(used + new_bytes)  # first: a crash may overcount, never undercount
            for number, data in blocks.items():
                path = self._path(key, number)
                if path.is_dir():
                    raise IsADirectoryError(errno.EISDIR, f"{path} is a folder: delete it")
                temporary = path.with_name(f".{path.name}.{machine.get_pid()}.tmp")
                try:
                    disk.write(temporary, encode_block(path, data))
                    disk.replace(temporary, path)
                finally:
                    with contextlib.suppress(OSError):
                        disk.unlink(temporary)
            self._failed_at = None

    @contextlib.contextmanager
    def _write_lock(self) -> Generator[None]:
        """Lock the cache for writing; warn once if it cannot be written."""
        with self._lock("all"):
            try:
                yield
            except OSError as error:
                with contextlib.suppress(OSError):
                    self.shrink(1 << 62)
                before, self._failed_at = self._failed_at, seams.world.sched.now()
                if before is None:
                    warnings.warn(
                        f"{self.folder} cannot be written ({error.strerror or error}): remote data "
                        "is not cached until there is room again",
                        stacklevel=4,
                    )

    def limit(self, used: int) -> int:
        """Return the size limit in bytes: from the environment, or half of the available space.

        Args:
            used: the bytes that the cache holds now.

        Raises:
            ConfigError: if the environment variable is not a size.
        """
        if limit := machine.read_environment_variable(CACHE_LIMIT_VARIABLE):
            try:
                return parse_size(limit)
            except ConfigError as error:
                raise ConfigError(f"{CACHE_LIMIT_VARIABLE} in the environment: {error}") from None
        existing = next(
            folder for folder in (self.folder, *self.folder.absolute().parents) if folder.exists()
        )
        return (used + storage.world.disk.free(existing)) // 2

    def _used_bytes(self) -> int:
        """Return the size of all blocks, as last recorded."""
        path = self.folder / "used"
        with contextlib.suppress(OSError):
            if path.exists() and not path.is_file():
                storage.world.disk.unlink(path)
            data = storage.world.disk.read(path)
            if len(data) == 12 and zlib.crc32(data[:8]) == int.from_bytes(data[8:], "little"):
                return int.from_bytes(data[:8], "little")
        return self.shrink(1 << 62)

    def _record_usage(self, used: int) -> None:
        encoded = used.to_bytes(8, "little")
        storage.world.disk.write(
            self.folder / "used", encoded + zlib.crc32(encoded).to_bytes(4, "little")
        )

    def shrink(self, max_bytes: int) -> int:
        """Evict the least recently used blocks, and the temporary files of killed processes.

        Args:
            max_bytes: the size of the cache afterwards, in bytes.

        Returns:
            The size that remains, in bytes.
        """
        for entry in storage.world.store.list(f"{_escape_folder(self.folder)}/??/.*.tmp"):
            with contextlib.suppress(OSError):
                storage.world.disk.unlink(Path(entry.path))
        blocks = sorted(self.all(), key=lambda block: block.used)
        used = sum(block.size for block in blocks)
        for block in blocks:
            if used <= max_bytes:
                break
            with contextlib.suppress(OSError):
                storage.world.disk.unlink(block.path)
                used -= block.size
        self._record_usage(used)
        return used

    def all(self) -> Iterator[CachedBlock]:
        """Iterate over the cached blocks."""
        for entry in storage.world.store.list(f"{_escape_folder(self.folder)}/??/*-*"):
            with contextlib.suppress(OSError):
                stat = storage.world.store.stat(entry.path)
                yield CachedBlock(Path(entry.path), stat.size, stat.mtime)

    def clear(self) -> int:
        """Delete all blocks; return the number of bytes freed."""
        with self._lock("all"):
            before = sum(block.size for block in self.all())
            self.shrink(0)
            return before

    def verify(self) -> tuple[int, list[Path]]:
        """Compare every block with its checksums and delete the corrupted ones.

        Returns:
            The number of blocks, and the files that were corrupted.
        """
        count, corrupted = 0, list[Path]()
        for block in self.all():
            count += 1
            length = read_block_length(block.path)
            if (
                length is None or read_block(block.path, 0, length) is None
            ) and block.path.exists():
                storage.world.disk.unlink(block.path)
                corrupted.append(block.path)
        return count, corrupted


def encode_block(path: Path, data: bytes | memoryview) -> bytes:
    """Return the content of a block file; it is valid under this path only.

    Args:
        path: the file of the block.
        data: its bytes.
    """
    view = memoryview(data)
    sums = struct.pack(
        f"<{-(-len(view) // _CHECKSUM_BYTES)}I",
        *(zlib.crc32(view[a : a + _CHECKSUM_BYTES]) for a in range(0, len(view), _CHECKSUM_BYTES)),
    )
    return b"".join(
        [
            _HEADER_STRUCT.pack(_MAGIC, _VERSION, len(view), _compute_checksum(path, sums)),
            sums,
            view,
        ]
    )


def _compute_checksum(path: Path, sums: bytes) -> int:
    return zlib.crc32(sums, zlib.crc32(path.name.encode()))


def compute_file_size(length: int) -> int:
    """Return the size of the file of a block with this many bytes."""
    return _HEADER_STRUCT.size + 4 * -(-length // _CHECKSUM_BYTES) + length


def read_block(path: Path, start: int, stop: int) -> bytes | memoryview | None:
    """Return bytes of a block file; `None` if it is missing or corrupted.

    Args:
        path: the file of the block.
        start: first byte within the block.
        stop: byte after the last.
    """
    if not path.is_file():  # reading a pipe would block
        return None
    read_bytes, max_header = (
        storage.world.store.read,
        _HEADER_STRUCT.size + 4 * (BLOCK_BYTES // _CHECKSUM_BYTES),
    )
    low, high = (
        start // _CHECKSUM_BYTES * _CHECKSUM_BYTES,
        -(-stop // _CHECKSUM_BYTES) * _CHECKSUM_BYTES,
    )
    try:
        head = read_bytes(str(path), 0, max_header)
        if len(head) < _HEADER_STRUCT.size:
            return None
        magic, version, length, crc = _HEADER_STRUCT.unpack_from(head)
        checksum_count = -(-length // _CHECKSUM_BYTES)
        sums = head[_HEADER_STRUCT.size : _HEADER_STRUCT.size + 4 * checksum_count]
        stop = min(stop, length)
        if (magic, version, crc) != (_MAGIC, _VERSION, _compute_checksum(path, sums)) or len(
            sums
        ) != 4 * checksum_count:
            return None
        begin = _HEADER_STRUCT.size + len(sums)
        data = memoryview(read_bytes(str(path), begin + low, min(high, length) - low))
    except OSError:
        return None
    if len(data) != min(high, length) - low:
        return None
    expected = struct.unpack_from(
        f"<{-(-len(data) // _CHECKSUM_BYTES)}I", sums, low // _CHECKSUM_BYTES * 4
    )
    if any(
        zlib.crc32(data[a * _CHECKSUM_BYTES : (a + 1) * _CHECKSUM_BYTES]) != crc
        for a, crc in enumerate(expected)
    ):
        return None
    return data[start - low : stop - low]


def read_block_length(path: Path) -> int | None:
    """Return the length in a block's header; `None` if it does not match the file size."""
    if not path.is_file():
        return None
    with contextlib.suppress(OSError, struct.error):
        length = _HEADER_STRUCT.unpack(storage.world.store.read(str(path), 0, _HEADER_STRUCT.size))[
            2
        ]
        return (
            length
            if storage.world.store.stat(str(path)).size == compute_file_size(length)
            else None
        )
    return None


def parse_size(text: str) -> int:
    """Return a size such as `200GB` or `1.5 GiB` in bytes.

    Raises:
        ConfigError: if the text is not a size.

    >>> parse_size("200GB"), parse_size("1.5 GiB"), parse_size("4096")
    (200000000000, 1610612736, 4096)
    """
    digits = text.strip().lower().removesuffix("b")
    unit = digits.lstrip("0123456789._ ")
    try:
        return int(float(digits.removesuffix(unit).strip()) * _SIZE_UNITS[unit])
    except (KeyError, ValueError, OverflowError):
        raise ConfigError(f"{text!r} is not a size: write one such as 200GB") from None


def _group_consecutive(numbers: Sequence[int]) -> Iterator[list[int]]:
    """Yield runs of consecutive numbers, each of at most `_MAX_BLOCKS_PER_REQUEST`."""
    run = list[int]()
    for number in numbers:
        if run and (number != run[-1] + 1 or len(run) == _MAX_BLOCKS_PER_REQUEST):
            yield run
            run = []
        run.append(number)
    if run:
        yield run


def _escape_folder(folder: Path) -> str:
    return escape(str(folder))
