"""Files kept beside data or in a cache: stamped, made again when the data changed, an error when
damaged.

A kept file is a stamp and a body. The stamp is 96 bytes: magic, version, kind, the version of the
    data that the body
was made from (size, times, number in the file system), a count, the size and the CRC-32 of the
body, and a checksum of all that. It is written whole or not at all, by one process at a time; the
others wait for it and read it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import struct
import zlib
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

from ..engine.base import machine, seams
from ..engine.base.seams import Stat
from ..engine.base.urls import local
from ..errors import DataError, PenstockError, StorageError, storage
from ..stores import home, is_remote
from . import sums
from .rows import mapped, spelled

LINES, UNPACKED, TABLE, LENGTHS, _, ROWS, KNOWN, CATALOG, LOOKED, SUMS, DOCUMENTS, TOTALS, TAR = (
    range(1, 14)
)
"""Kinds of kept files: offsets of lines, an unpacked copy, a CSV file as an Arrow table, lengths of
lists, the numbers of rows that were chosen, what was found out about many files, what opening them
needs, when that was last compared with them, the checksums of a file's blocks, where documents of
tokens end, sums of lengths, and where the samples of a tar archive and their parts lie (the fifth
held where they begin)."""

HEADER = 96

_FIELDS = struct.Struct("<8sIIQqQqQQQ")
_MAGIC = b"PENSTOCK"
_VERSION = 3
_NAME = 200  # bytes of a name, to which more is added
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)
_RELINKED = set[str]()
_NAMED = 5  # files that a line of the log names
_CHANGED: ContextVar[dict[str, None] | None] = ContextVar("changed", default=None)
_SYSTEM = tuple(map(Path, "/bin /boot /dev /etc /lib /lib64 /proc /run /sbin /sys /usr".split()))

T = TypeVar("T")
Make = Callable[[bool], tuple[int, bytes]]
"""Gives the count and the body of what is to be kept; it is told whether nobody else makes it at
the same time."""


class Stamp(NamedTuple):
    """What the header of a kept file says: its kind, the data it was made from, how much it holds
    (rows, or bytes of the file it belongs to), and the bytes that follow with their CRC-32."""

    kind: int
    data: Stat
    total: int
    length: int
    crc: int


def encode(stamp: Stamp) -> bytes:
    """The 96 bytes of a stamp."""
    head = _FIELDS.pack(_MAGIC, _VERSION, stamp.kind, *stamp.data, *stamp[2:])
    return head + _checksum(head)


def decode(head: bytes) -> Stamp | None:
    """The stamp in these bytes, `None` where it is not one of ours or is damaged.

    >>> decode(encode(Stamp(LINES, Stat(120, 99), 7, 64, 0))).total
    7
    >>> decode(b"something else") is None
    True
    """
    if len(head) < HEADER or _checksum(head[: _FIELDS.size]) != head[_FIELDS.size : HEADER]:
        return None
    magic, version, kind, size, mtime, inode, ctime, *rest = _FIELDS.unpack_from(head)
    return (
        Stamp(kind, Stat(size, mtime, inode, ctime), *rest)
        if (magic, version) == (_MAGIC, _VERSION)
        else None
    )


def kept(
    path: Path,
    kind: int,
    data: Path,
    make: Make,
    *,
    otherwise: Path | None = None,
    rebuild: bool = False,
    summed: bool = False,
) -> Path:
    """Where what `make` gives for this data is kept: as it was found there, or made now, by one
    process.

    It goes to `otherwise` where its folder may not be written to. If the data changed, it is made
    again, with a line in the log unless the same comes out, as of a copy of the data with other
    times. What is `summed` holds checksums of the data, and serves a file that only moved (its
    number and when it was changed, but neither size nor time of its content).
    """

    places = [] if rebuild else [path, *([otherwise] if otherwise else [])]

    def there() -> Path | None:
        with storage(path):
            return next(
                (at for at in places if at.exists() and check(at, kind, data, summed=summed)), None
            )

    def save(now: Stat, total: int, body: bytes, alone: bool) -> Path:
        hidden = rebuild and path.exists()  # what is there would be found first
        note_change(places, kind, data, total, body)
        return keep(path, kind, now, total, body, alone, otherwise=None if hidden else otherwise)

    return _once(data, _lock(data, path), there, make, save)


def again(path: Path, kind: int, data: Path, make: Make) -> bytes | memoryview:
    """The body of a file in the cache that nobody misses: it is made again where it is stale or
    damaged, or where there is no place to keep it.
    """

    def there() -> memoryview | None:
        with contextlib.suppress(PenstockError):
            return body(path, kind, data)[1] if path.exists() and check(path, kind, data) else None
        return None

    def save(now: Stat, total: int, body: bytes, alone: bool) -> bytes:
        with contextlib.suppress(StorageError):
            keep(path, kind, now, total, body, alone)
        return body

    return _once(data, locked(path.parent), there, make, save)


def _once(
    data: Path,
    lock: contextlib.AbstractContextManager[bool],
    there: Callable[[], T | None],
    make: Make,
    save: Callable[[Stat, int, bytes, bool], T],
) -> T:
    """What is there, or is made and saved by one process while the others wait."""
    if (found := there()) is not None:
        return found
    with lock as alone:
        if (found := there()) is not None:
            return found
        before = stat(data)
        total, body = make(alone)
        unchanged(data, before, name=str(data))
        return save(before, total, body, alone)


def _lock(data: Path, kept: Path) -> contextlib.AbstractContextManager[bool]:
    """One process at a time that makes something of this file. The file itself is locked where what
    is made goes beside it, so that nothing else is made there."""
    return (
        seams.world.disk.lock(data)
        if kept.parent == data.parent
        else locked(kept.parent / ".making")
    )


def locked(folder: Path) -> contextlib.AbstractContextManager[bool]:
    """One process at a time that makes something in a folder of the cache; whether the folder could
    be locked."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return seams.world.disk.lock(folder)


def check(path: Path, kind: int, data: Path, *, summed: bool = False) -> bool:
    """Return whether a kept file was made from the data as it is now; raise `DataError` if it is
    damaged."""
    _is_file(path, data)
    with storage(path):
        stamp = decode(seams.world.store.read(str(path), 0, HEADER))
        now, size = stat(data), stat(path).size
    if stamp is None or stamp.kind != kind or size != HEADER + stamp.length:
        raise damaged(path, data)
    return stamp.data[:2] == now[:2] if summed else stamp.data == now


def body(path: Path, kind: int, data: Path, *, now: bool = False) -> tuple[int, memoryview]:
    """Count and body of a kept file, mapped, once its digest was found right; a `DataError` where
    it is not.

    With `now` the data must be what it was made from: where data is replaced, a process that was
        slower may have
    written it after `check`.
    """
    _is_file(path, data)
    with storage(path):
        whole = memoryview(mapped(path))
    stamp, found = decode(bytes(whole[:HEADER])), whole[HEADER:]
    if (
        stamp is None
        or stamp.kind != kind
        or (len(found), zlib.crc32(found)) != (stamp.length, stamp.crc)
    ):
        raise damaged(path, data)
    if now:
        unchanged(data, stamp.data, name=str(data))
    return stamp.total, found


def keep(
    path: Path,
    kind: int,
    data: Stat,
    total: int,
    body: bytes,
    alone: bool,
    *,
    otherwise: Path | None = None,
) -> Path:
    """Write a kept file whole, to `otherwise` where its folder may not be written to. Returns where
    it went."""
    try:
        with seams.world.disk.create(path, alone) as file:
            file.write(encode(Stamp(kind, data, total, len(body), zlib.crc32(body))))
            file.write(body)
    except OSError as error:
        if otherwise is None or otherwise == path or error.errno not in _REFUSED:
            raise StorageError(
                f"{path} cannot be written ({error.strerror or error}): free space, or give "
                "cache=FOLDER"
            ) from error
        return keep(otherwise, kind, data, total, body, False)  # the lock was for the other place
    return path


def copy(
    target: Path, kind: int, data: Path, write: Callable[[BinaryIO], None], *, rebuild: bool
) -> Path:
    """The file made from `data` by `write`: as it was kept, or made now. It is there whole, or not
    at all.

    Its stamp, with the checksums of its blocks, is a file of its own that is written after it: a
        crash between the two
    leaves a file without a stamp, which is made again.
    """

    def make(alone: bool) -> tuple[int, bytes]:
        with storage(target), seams.world.disk.create(target, alone) as file:
            room(target.parent, stat(data).size, f"to unpack or convert {data}")
            write(file)
            size = file.seek(0, 2)
            file.seek(0)
            return size, sums.of(iter(lambda: file.read(sums.CHUNK), b"")).tobytes()

    note = stamp_of(target)

    def there() -> Path | None:
        return (
            note
            if not rebuild and target.exists() and note.exists() and check(note, kind, data)
            else None
        )

    def save(now: Stat, total: int, body: bytes, alone: bool) -> Path:
        note_change([] if rebuild else [note], kind, data, total, body)
        return keep(note, kind, now, total, body, alone)

    _once(data, _lock(data, target), there, make, save)
    if stat(target).size != body(note, kind, data)[0]:
        raise damaged(target, data)
    return target


def stamp_of(target: Path) -> Path:
    """Where the stamp of a file lies that was made from another one."""
    return target.with_name(f"{target.name}.penstock-stamp")


def _is_file(path: Path, data: Path) -> None:
    """Refuse a pipe, say, of which opening alone would never end."""
    if path.exists() and not path.is_file():
        raise damaged(path, data)


def damaged(path: Path, data: Path) -> DataError:
    """What is raised where a kept file cannot be what was written."""
    remedy = "delete it" if path == data else _remedy(path, data)
    return DataError(
        f"{path}, kept for this file, is damaged or not ours: {remedy}", where=str(data)
    )


def note_change(places: Sequence[Path], kind: int, data: Path, total: int, body: bytes) -> None:
    """Log that data changed since a file was made from it, in the first of these places, that is
    now made again."""
    for path in places:
        if path.exists():
            with storage(path):
                stamp = decode(seams.world.store.read(str(path), 0, HEADER))
            if stamp is not None and stamp[2:] != (total, len(body), zlib.crc32(body)):
                log_changed(data)
            return


def log_changed(*files: Path) -> None:
    """Log that files changed since they were indexed: at once, or at the end of a block of
    `one_log_line`."""
    if (changed := _CHANGED.get()) is not None:
        changed.update(dict.fromkeys(map(str, files)))
        return
    names = ", ".join(map(str, files[:_NAMED])) + (
        f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
    )
    logging.getLogger("penstock").warning(
        "changed since indexed or converted, so this is done again: %s", names
    )


@contextlib.contextmanager
def one_log_line() -> Generator[None]:
    """Collect the files that changed since they were indexed, and log them together when the block
    ends."""
    if _CHANGED.get() is not None:
        yield
        return
    changed = dict[str, None]()
    before = _CHANGED.set(changed)
    try:
        yield
    finally:
        _CHANGED.reset(before)
        if changed:
            log_changed(*map(Path, changed))


def stat(path: Path) -> Stat:
    """The version of a file."""
    with storage(path):
        return seams.world.store.stat(str(path))


def unchanged(path: Path, then: Stat, *, name: str) -> None:
    """Refuse data that was replaced or grew since it was opened: rows already read would not fit
    those to come.

    A new link or owner changes `ctime` alone, some network file systems number files anew: only
        both tell of a swap. A
    new `ctime` alone is said once, as content that was written over with its time put back has that
    too.
    """
    if (now := stat(path)) == then:
        return
    if is_remote(path) and now != then:
        raise StorageError(
            f"{name} was changed while it was in use: open it again, and keep data still during a "
            "run"
        )
    if now[:2] != then[:2] or (now.inode != then.inode and now.ctime != then.ctime):
        raise DataError(
            f"the file changed while it was in use (it had {_version(then)}, now {_version(now)}): "
            "open it again, "
            "and keep data still during a run",
            where=name,
        )
    if now.inode == then.inode and name not in _RELINKED:
        _RELINKED.add(name)
        logging.getLogger("penstock").warning(
            "%s: it got another link, name or owner while it was in use, or other content with its "
            "time put back: keep "
            "data still during a run",
            name,
        )


@contextlib.contextmanager
def still(path: Path, then: Stat, *, name: str) -> Generator[None]:
    """Refuse data that was replaced or grew since it was opened, and again once it was read: it may
    be replaced between the two. Stores are asked for bytes of a version, so once is enough for
    them.
    """
    unchanged(path, then, name=name)
    try:
        yield
    finally:
        if not is_remote(path):
            unchanged(path, then, name=name)


def folder(data: Path, cache: str | Path | None) -> Path:
    """Where things made from this file are kept: `<cache>/<digest of its absolute path>`."""
    root = home() if cache is None else local(cache)
    return root / hashlib.blake2b(spelled(data.absolute()), digest_size=12).hexdigest()


def place(data: Path, cache: str | Path | None, what: str = "lines") -> Path:
    """Where the index of this file is, or will be if it can: beside it, in the cache where that was
    given."""
    there = index(data, cache, what)
    if is_remote(data):
        return there
    beside = data.with_name(there.name)
    return (
        beside
        if cache is None and (beside.exists() or not (there.exists() or _foreign(data.parent)))
        else there
    )


def index(data: Path, cache: str | Path | None, what: str) -> Path:
    """Where the index of this file is in the cache."""
    return cached(data, cache, f".{data.name}.penstock-{what}")


def cached(data: Path, cache: str | Path | None, name: str) -> Path:
    """Where something of this name that was made from this file is kept. Systems take names of up
    to 255 bytes."""
    if len(spelled(Path(name))) > _NAME:
        name = f".{hashlib.blake2b(spelled(Path(name)), digest_size=12).hexdigest()}{Path(name).suffix}"
    return folder(data, cache) / name


def room(where: Path, need: int, why: str) -> None:
    """Refuse to begin what would fill the disk."""
    if (free := seams.world.disk.free(where)) < need:
        raise StorageError(
            f"{where} has {free / 2**20:,.0f} MiB free, {need / 2**20:,.0f} MiB are needed {why}: "
            "free some, or give "
            "cache= a folder on another disk"
        )


def _foreign(folder: Path) -> bool:
    """Whether this is a folder of the system, or one in which only root's rights would let us
    write."""
    where = folder.absolute()
    return any(where.is_relative_to(system) for system in _SYSTEM) or machine.only_as_root(where)


def _checksum(head: bytes) -> bytes:
    return hashlib.blake2b(head, digest_size=HEADER - _FIELDS.size).digest()


def _remedy(path: Path, data: Path) -> str:
    return f"run `penstock index --rebuild {data}`, or delete {path}, and it is made again"


def _version(found: Stat) -> str:
    if found.mtime < 0:
        return f"{found.size:,} bytes, version {-found.mtime:x}"
    return f"{found.size:,} bytes, modified at {found.mtime / 1e9:.3f}"
