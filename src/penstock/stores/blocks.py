"""The cache of a node: blocks of objects in a folder that its processes share, each with checksums,
within a limit.

A block is a file: a head, the CRC-32 of every 4 KiB, the bytes. It is there whole or not at all;
    who reads it compares
what it reads. One process fetches a block, the others wait for it. Locks are the kernel's, and go
with their process.
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
from ..engine.base.event_counts import EVENTS
from ..engine.base.urls import local
from ..errors import ConfigError
from .client import ObjectInfo

LIMIT = "PENSTOCK_CACHE_LIMIT"
"""How many bytes of blocks a cache holds at most, in the environment: 200GB, say."""

SIZE = 1 << 20  # bytes of a block
_SUM = 4 << 10
_HEAD = struct.Struct(
    "<8sIII"
)  # magic, version, bytes, CRC-32 of the name of the block and of the checksums
_MAGIC, _VERSION = b"PENSTOCB", 2
_RUN = 8  # blocks fetched at once
_LOCKS = 64
_AGAIN = 60.0  # seconds after which a cache that took no more is tried again
_UNITS = {
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

Ask = Callable[[int, int], bytes | memoryview]


class Block(NamedTuple):
    """A block that is there: its file, its size on disk, and when it was last wanted."""

    path: Path
    size: int
    used: int


class Blocks:
    """The blocks in a cache folder."""

    def __init__(self, cache: str | Path) -> None:
        self.folder = local(cache) / "blocks"
        self._failed: float | None = None  # when it took no more; until it takes something again

    def read(self, of: ObjectInfo, start: int, stop: int, ask: Ask) -> bytes | memoryview:
        """Bytes of an object: from blocks that are here, others asked for and kept."""
        key = hashlib.blake2b(
            f"{of.url}\0{of.size}\0{of.etag or of.modified}".encode(), digest_size=16
        ).hexdigest()
        numbers = range(start // SIZE, -(-stop // SIZE))
        found = {number: self._part(key, number, start, stop) for number in numbers}
        fetched = 0
        for run in _runs([number for number, part in found.items() if part is None]):
            if not self._takes(
                run, of.size
            ):  # what is not kept is asked for as it is wanted, not by whole blocks
                data = ask(max(start, run[0] * SIZE), min(stop, (run[-1] + 1) * SIZE))
                found |= {**dict.fromkeys(run, b""), run[0]: data}
                fetched += len(run)
                continue
            with self._alone(key, run):
                again = {number: self._part(key, number, start, stop) for number in run}
                for lacking in _runs([number for number, part in again.items() if part is None]):
                    again |= self._fetched(of, key, lacking, start, stop, ask)
                    fetched += len(lacking)
            found |= again
        EVENTS.add("cache_misses", fetched)
        EVENTS.add("cache_hits", len(numbers) - fetched)
        parts = [part for number in numbers if (part := found[number]) is not None]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _fetched(
        self, of: ObjectInfo, key: str, run: Sequence[int], start: int, stop: int, ask: Ask
    ) -> dict[int, bytes | memoryview | None]:
        low, high = run[0] * SIZE, min((run[-1] + 1) * SIZE, of.size)
        data = memoryview(ask(low, high))
        whole = {
            number: data[(number - run[0]) * SIZE : (number - run[0] + 1) * SIZE] for number in run
        }
        self._keep(key, whole)
        return {
            number: part[max(start - number * SIZE, 0) : stop - number * SIZE]
            for number, part in whole.items()
        }

    def _path(self, key: str, number: int) -> Path:
        return self.folder / key[:2] / f"{key}-{number:x}"

    def _part(self, key: str, number: int, start: int, stop: int) -> bytes | memoryview | None:
        """What of a block is wanted, `None` where it is not here, or damaged."""
        path, base = self._path(key, number), number * SIZE
        found = part(path, max(start - base, 0), min(stop - base, SIZE))
        if found is not None:
            with contextlib.suppress(OSError):
                seams.world.disk.touch(path)
        return found

    @contextlib.contextmanager
    def _alone(self, key: str, run: Sequence[int]) -> Generator[None]:
        """Nobody else fetches these blocks."""
        places = sorted({zlib.crc32(f"{key}{number}".encode()) % _LOCKS for number in run})
        with contextlib.ExitStack() as stack:
            for place in places:
                stack.enter_context(self._lock(f"{place:02x}"))
            yield

    def _lock(self, name: str) -> contextlib.AbstractContextManager[bool]:
        path = self.folder / "locks" / name
        with contextlib.suppress(OSError):
            if not path.exists():
                self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                seams.world.disk.write(path, b"")
        return seams.world.disk.lock(path)

    def _takes(self, run: Sequence[int], size: int) -> bool:
        """Whether blocks of an object of this size can be kept."""
        if self._failed is not None:
            if (now := seams.world.sched.now()) < self._failed + _AGAIN:
                return False
            self._failed = now  # one thread tries
        need = sum(on_disk(min(SIZE, size - number * SIZE)) for number in run)
        with self._writing():
            used = self._used()
            self._note(used)  # fails where nothing can be written
            return need <= self.limit(used)
        return False

    def _keep(self, key: str, whole: dict[int, memoryview]) -> None:
        """Keep blocks, where there is room or room can be made; without a word where there is
        none."""
        disk, need = seams.world.disk, sum(on_disk(len(data)) for data in whole.values())
        with self._writing():
            used = self._used()
            if need <= (most := self.limit(used)) < used + need:
                used = self.shrink(min(most - need, most - most // 8))
            if used + need > most:
                return
            self._note(used + need)  # before: a crash counts too much, never too little
            for number, data in whole.items():
                path = self._path(key, number)
                if path.is_dir():
                    raise IsADirectoryError(errno.EISDIR, f"{path} is a folder: delete it")
                name = path.with_name(f".{path.name}.{machine.process()}.tmp")
                try:
                    disk.write(name, encoded(path, data))
                    disk.replace(name, path)
                finally:
                    with contextlib.suppress(OSError):
                        disk.unlink(name)
            self._failed = None

    @contextlib.contextmanager
    def _writing(self) -> Generator[None]:
        """Nobody else writes blocks; where they cannot be written, that is said once."""
        with self._lock("all"):
            try:
                yield
            except OSError as error:
                with contextlib.suppress(OSError):
                    self.shrink(1 << 62)
                before, self._failed = self._failed, seams.world.sched.now()
                if before is None:
                    warnings.warn(
                        f"{self.folder} takes no more ({error.strerror or error}): until there is "
                        "room again, what is "
                        "read is not kept",
                        stacklevel=4,
                    )

    def limit(self, used: int) -> int:
        """How many bytes of blocks there may be: as the environment says, or half of what the disk
        has for them."""
        if told := machine.environment(LIMIT):
            try:
                return parse_size(told)
            except ConfigError as error:
                raise ConfigError(f"{LIMIT} in the environment: {error}") from None
        there = next(one for one in (self.folder, *self.folder.absolute().parents) if one.exists())
        return (used + seams.world.disk.free(there)) // 2

    def _used(self) -> int:
        """The bytes of all blocks, as they were last noted."""
        path = self.folder / "used"
        with contextlib.suppress(OSError):
            if path.exists() and not path.is_file():
                seams.world.disk.unlink(path)
            data = seams.world.disk.read(path)
            if len(data) == 12 and zlib.crc32(data[:8]) == int.from_bytes(data[8:], "little"):
                return int.from_bytes(data[:8], "little")
        return self.shrink(1 << 62)

    def _note(self, used: int) -> None:
        told = used.to_bytes(8, "little")
        seams.world.disk.write(self.folder / "used", told + zlib.crc32(told).to_bytes(4, "little"))

    def shrink(self, most: int) -> int:
        """Let go of the blocks that nobody wanted for the longest time, until this many bytes are
        left, and of what killed processes left half written; how many bytes there are now."""
        for entry in seams.world.store.list(f"{_plain(self.folder)}/??/.*.tmp"):
            with contextlib.suppress(OSError):
                seams.world.disk.unlink(Path(entry.path))
        found = sorted(self.all(), key=lambda block: block.used)
        used = sum(block.size for block in found)
        for block in found:
            if used <= most:
                break
            with contextlib.suppress(OSError):
                seams.world.disk.unlink(block.path)
                used -= block.size
        self._note(used)
        return used

    def all(self) -> Iterator[Block]:
        """The blocks that are here."""
        for entry in seams.world.store.list(f"{_plain(self.folder)}/??/*-*"):
            with contextlib.suppress(OSError):
                found = seams.world.store.stat(entry.path)
                yield Block(Path(entry.path), found.size, found.mtime)

    def clear(self) -> int:
        """Let go of all blocks; how many bytes that were."""
        with self._lock("all"):
            before = sum(block.size for block in self.all())
            self.shrink(0)
            return before

    def verify(self) -> tuple[int, list[Path]]:
        """Compare every block with its checksums: how many there are, and those that were damaged
        and are gone now."""
        many, bad = 0, list[Path]()
        for block in self.all():
            many += 1
            length = length_of(block.path)
            if (length is None or part(block.path, 0, length) is None) and block.path.exists():
                seams.world.disk.unlink(block.path)
                bad.append(block.path)
        return many, bad


def encoded(path: Path, data: bytes | memoryview) -> bytes:
    """A block as it is kept at its place; at that of another one it would be no block."""
    view = memoryview(data)
    sums = struct.pack(
        f"<{-(-len(view) // _SUM)}I",
        *(zlib.crc32(view[a : a + _SUM]) for a in range(0, len(view), _SUM)),
    )
    return b"".join([_HEAD.pack(_MAGIC, _VERSION, len(view), _digest(path, sums)), sums, view])


def _digest(path: Path, sums: bytes) -> int:
    return zlib.crc32(sums, zlib.crc32(path.name.encode()))


def on_disk(length: int) -> int:
    """The size of the file of a block."""
    return _HEAD.size + 4 * -(-length // _SUM) + length


def part(path: Path, start: int, stop: int) -> bytes | memoryview | None:
    """Bytes of a kept block, as they were when it was written; `None` where it is not there, or
    they are not."""
    if not path.is_file():  # a pipe would be waited for
        return None
    read, most = seams.world.store.read, _HEAD.size + 4 * (SIZE // _SUM)
    low, high = start // _SUM * _SUM, -(-stop // _SUM) * _SUM
    try:
        head = read(str(path), 0, most)
        if len(head) < _HEAD.size:
            return None
        magic, version, length, crc = _HEAD.unpack_from(head)
        many = -(-length // _SUM)
        sums = head[_HEAD.size : _HEAD.size + 4 * many]
        stop = min(stop, length)
        if (magic, version, crc) != (_MAGIC, _VERSION, _digest(path, sums)) or len(
            sums
        ) != 4 * many:
            return None
        begin = _HEAD.size + len(sums)
        data = memoryview(read(str(path), begin + low, min(high, length) - low))
    except OSError:
        return None
    if len(data) != min(high, length) - low:
        return None
    then = struct.unpack_from(f"<{-(-len(data) // _SUM)}I", sums, low // _SUM * 4)
    if any(zlib.crc32(data[a * _SUM : (a + 1) * _SUM]) != crc for a, crc in enumerate(then)):
        return None
    return data[start - low : stop - low]


def length_of(path: Path) -> int | None:
    """How many bytes a block says it has; `None` where its file cannot be so long."""
    if not path.is_file():
        return None
    with contextlib.suppress(OSError, struct.error):
        length = _HEAD.unpack(seams.world.store.read(str(path), 0, _HEAD.size))[2]
        return length if seams.world.store.stat(str(path)).size == on_disk(length) else None
    return None


def parse_size(text: str) -> int:
    """A size as people write it.

    >>> parse_size("200GB"), parse_size("1.5 GiB"), parse_size("4096")
    (200000000000, 1610612736, 4096)
    """
    digits = text.strip().lower().removesuffix("b")
    unit = digits.lstrip("0123456789._ ")
    try:
        return int(float(digits.removesuffix(unit).strip()) * _UNITS[unit])
    except (KeyError, ValueError, OverflowError):
        raise ConfigError(f"{text!r} is no size: write 200GB, say") from None


def _runs(numbers: Sequence[int]) -> Iterator[list[int]]:
    """Neighbours, some of them at a time."""
    run = list[int]()
    for number in numbers:
        if run and (number != run[-1] + 1 or len(run) == _RUN):
            yield run
            run = []
        run.append(number)
    if run:
        yield run


def _plain(folder: Path) -> str:
    return escape(str(folder))
