"""What we keep beside data or in a cache: stamped files, refused when they are stale, damaged or not ours.

A stamp is 64 bytes: magic, version, kind, size and modification time of the data it was made from, a count, the number
of bytes that follow, and a checksum of all that. A line index is a stamp with the offsets behind it; a file made from
another one (unpacked, converted) has its stamp in a small file of its own, written last.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import struct
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from ..base import seams
from ..base.seams import Stat
from ..errors import DataError, StorageError

LINES, UNPACKED, TABLE, LENGTHS, TAR, ROWS, KNOWN, CATALOG, LOOKED = range(1, 10)
"""Kinds of stamped files: offsets of lines, an unpacked copy, a CSV file as an Arrow table, lengths of lists, offsets
and digests of the samples of a tar archive, the numbers of rows that were chosen, what was found out about many files,
what opening them needs, and when that was last compared with them."""

HEADER = 64

_FIELDS = struct.Struct("<8sIIQqQQ")
_MAGIC = b"PENSTOCK"
_VERSION = 1
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS)


class Stamp(NamedTuple):
    """What the header of a kept file says: its kind, the data it was made from, how much it holds (rows,
    or bytes of the file it belongs to), the bytes that follow."""

    kind: int
    data: Stat
    total: int
    length: int


def encode(stamp: Stamp) -> bytes:
    """The 64 bytes of a stamp."""
    head = _FIELDS.pack(_MAGIC, _VERSION, stamp.kind, *stamp.data, stamp.total, stamp.length)
    return head + _checksum(head)


def decode(head: bytes) -> Stamp | None:
    """The stamp in these bytes, `None` where it is not one of ours or is damaged.

    >>> decode(encode(Stamp(LINES, Stat(120, 99), 7, 64))).total
    7
    >>> decode(b"something else") is None
    True
    """
    if len(head) < HEADER or _checksum(head[: _FIELDS.size]) != head[_FIELDS.size : HEADER]:
        return None
    magic, version, kind, size, mtime, total, length = _FIELDS.unpack_from(head)
    return Stamp(kind, Stat(size, mtime), total, length) if (magic, version) == (_MAGIC, _VERSION) else None


def check(kept: Path, kind: int, data: Path) -> Stamp:
    """The stamp of a kept file; a `DataError` where it does not belong to the data as it is now."""
    with storage(kept):
        stamp = decode(seams.world.store.read(str(kept), 0, HEADER))
        now, size = stat(data), stat(kept).size
    remedy = f"run `penstock index --rebuild {data}`, or delete {kept}, "
    remedy += f"or call index_lines({str(data)!r}, rebuild=True)"
    if stamp is None or stamp.kind != kind or size != HEADER + stamp.length:
        raise DataError(f"{kept}, kept for this file, is damaged or not ours: {remedy}", where=str(data))
    if stamp.data != now:
        raise stale(kept, data, stamp.data, now, remedy)
    return stamp


def stale(kept: Path, data: Path, then: Stat, now: Stat, remedy: str) -> DataError:
    """What is raised where a file is not the one any more that something was kept for."""
    return DataError(
        f"{kept} was made for another version of this file ({_version(then)}; now it has {_version(now)}): {remedy}",
        where=str(data),
    )


def stat(path: Path) -> Stat:
    """Size and modification time."""
    try:
        return seams.world.store.stat(str(path))
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error


def unchanged(path: Path, then: Stat, *, name: str) -> None:
    """Refuse data that was replaced or grew since it was opened: rows already read would not fit those to come."""
    if (now := stat(path)) != then:
        raise DataError(
            f"the file changed while it was in use (it had {_version(then)}, now {_version(now)}): open it again, "
            "and keep data still during a run",
            where=name,
        )


def folder(data: Path, cache: str | Path | None) -> Path:
    """Where things made from this file are kept: `<cache>/<digest of its absolute path>`."""
    root = Path("~/.cache/penstock" if cache is None else cache).expanduser()
    return root / hashlib.blake2b(str(data.absolute()).encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()


def place(data: Path, cache: str | Path | None, what: str = "lines") -> Path:
    """Where the index of this file is, or will be if it can."""
    name = f".{data.name}.penstock-{what}"
    beside, cached = data.with_name(name), folder(data, cache) / name
    return beside if cache is None and (beside.exists() or not cached.exists()) else cached


def keep(path: Path, stamp: Stamp, body: bytes = b"", *, otherwise: Path | None = None) -> Path:
    """Write a stamped file whole, to `otherwise` where its folder may not be written to. Returns where it went."""
    try:
        seams.write_whole(path, encode(stamp) + body)
    except OSError as error:
        if otherwise is None or otherwise == path or error.errno not in _REFUSED:
            raise StorageError(
                f"{path} cannot be written ({error.strerror or error}): free space, or give cache=FOLDER"
            ) from error
        return keep(otherwise, stamp, body)
    return path


def make(target: Path, kind: int, data: Path, write: Callable[[BinaryIO], None], *, rebuild: bool) -> Path:
    """The file made from `data` by `write`: as it was kept, or made now. It is there whole, or not at all.

    Its stamp is written after it, so a crash at any point leaves a file without a stamp, which is made again.
    """
    note = target.with_name(f"{target.name}.penstock-stamp")
    if note.exists() and target.exists() and not rebuild:
        stamp = check(note, kind, data)
        if stat(target).size != stamp.total:
            raise DataError(
                f"{target}, made from this file, is damaged: delete it, or call "
                f"index_lines({str(data)!r}, rebuild=True)",
                where=str(data),
            )
        return target
    before = stat(data)
    with storage(target):
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        room(target.parent, before.size, f"to unpack or convert {data}")
        with _temporary(target) as file:
            write(file)
    unchanged(data, before, name=str(data))
    keep(note, Stamp(kind, before, stat(target).size, 0))
    return target


def room(where: Path, need: int, why: str) -> None:
    """Refuse to begin what would fill the disk."""
    if (free := seams.world.disk.free(where)) < need:
        raise StorageError(
            f"{where} has {free / 2**20:,.0f} MiB free, {need / 2**20:,.0f} MiB are needed {why}: free some, or give "
            "cache= a folder on another disk"
        )


@contextlib.contextmanager
def storage(path: Path) -> Generator[None]:
    """Failures of the file system, as errors that name the file."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error


@contextlib.contextmanager
def _temporary(target: Path) -> Generator[BinaryIO]:
    """A new file that takes the place of `target` when the block ends well, and goes when it does not."""
    disk = seams.world.disk
    made = tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp", delete=False)
    path = Path(made.name)
    try:
        with made:
            yield cast(BinaryIO, made)
        disk.sync(path)
        disk.replace(path, target)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(path)
        raise
    disk.sync(target.parent)


def _checksum(head: bytes) -> bytes:
    return hashlib.blake2b(head, digest_size=HEADER - _FIELDS.size).digest()


def _version(found: Stat) -> str:
    return f"{found.size:,} bytes, modified at {found.mtime / 1e9:.3f}"
