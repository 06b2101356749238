"""Derived files: the one cache of everything that Penstock computes from data and stores.

All kinds (`Kind`) follow the same rules.

**Content.** A 96-byte header and a body. The header stores magic, format version, kind, the
fingerprint of the data, a count, the size and CRC-32 of the body, and its own checksum. The
fingerprint is the version of the data file, or the hash of a key. A copy (unpacked, converted or
fetched data, integers) is a plain file that readers map. Its header, with the checksums of its
blocks as body, is the *stamp* beside it.

**Place.** Indexes lie beside the data. They lie in the cache folder if the user named one, or the
data is remote. So they do if the folder of the data is read-only, or belongs to the system or to
another user. Everything else lies in the cache folder.

**Lock.** One process makes a file while the others wait for it. A file beside the data is locked by
its data, so that no lock file appears there; others by an empty folder in `.making`. Each file has
its own lock, and files depend on each other without cycles, so locks cannot deadlock.
`storage.LOCK_TIMEOUT_SECONDS` limits the wait.

**Making again.** A file of another format version or of changed data is made again; one log line
names the data, unless the content stays equal. So is a damaged file in the cache folder. A damaged
file beside the data is an error, as Penstock may not have written it. So is a copy whose blocks
changed. Checksums in a file excuse a moved data file (`checksummed`).

**Writing** goes to a temporary name, fsync and rename. `optional` files are used without being
stored if nothing can be written; for others this is an error.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import struct
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from contextvars import ContextVar
from enum import IntEnum
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from ..errors import DataError, StorageError, convert_storage_errors, make_storage_error
from ..stores import get_default_cache, is_remote, storage
from ..stores.storage import Stat
from ..stores.urls import require_local
from ..types import Json
from . import file_versions, sums
from .rows import encode_path, map_file, resolve_absolute_paths


class Kind(IntEnum):
    """Kinds of derived files, as headers store them; 5 is retired."""

    LINES = 1  # offsets of lines or records
    COPY = 2  # an unpacked or fetched copy
    CSV_TABLE = 3  # a CSV file as an Arrow table
    LENGTHS = 4  # lengths of lists, or token counts
    SELECTED_ROWS = 6  # numbers of the rows that `where` selects
    FACT = 7  # a JSON value about some versions of files
    CATALOG = 8  # what opening many files needs
    CATALOG_CHECK = 9  # time of the last comparison of a catalog with its files
    CHECKSUMS = 10  # checksums of the blocks of a file
    DOCUMENT_ENDS = 11  # ends of documents of tokens
    INTEGERS = 12  # integers that are derived from lengths, such as sums
    TAR_INDEX = 13  # offsets of the samples of an archive and of their parts
    COLUMN_VALUES = 14  # distinct values of columns, and those of each row, for `partition_by`

    @property
    def optional(self) -> bool:
        """True if a run can do without the file when nothing can be written."""
        return self in (
            Kind.SELECTED_ROWS,
            Kind.COLUMN_VALUES,
            Kind.FACT,
            Kind.CATALOG,
            Kind.CATALOG_CHECK,
        )


HEADER_BYTES = 96

_HEADER_STRUCT = struct.Struct("<8sIIQqQqQQQ")
_FINGERPRINT_STRUCT = struct.Struct("<QqQq")
_MAGIC = b"PENSTOCK"
_VERSION = 3
_MAX_NAME_BYTES = 200  # bytes of a name, to which more is added
_UNWRITABLE_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)
_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PROCESS_LIMIT_ERRNOS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
_MAX_LOGGED_FILES = 5  # files that one log line names
_CHANGED = "changed since indexed or converted, so this is done again"
_OTHER_VERSION = "indexed or converted by another version of Penstock, so this is done again"
_DAMAGED = "damaged, so this is made again"
_PENDING_LOGS: ContextVar[dict[tuple[str, str], None] | None] = ContextVar("pending", default=None)
_LOGGED_CHANGES = dict[Path, Stat]()
_SYSTEM_FOLDERS = tuple(
    map(Path, "/bin /boot /dev /etc /lib /lib64 /proc /run /sbin /sys /usr".split())
)

T = TypeVar("T")
MakeBody = Callable[[], tuple[int, bytes | bytearray]]
"""Returns the count and the body of a derived file."""


class Header(NamedTuple):
    """The header of a derived file.

    `data` is the fingerprint. `total` counts rows, or bytes of the file that this one describes.
    `length` and `crc` are the size and the CRC-32 of the body.
    """

    kind: int
    data: Stat
    total: int
    length: int
    crc: int

    def encode(self) -> bytes:
        """Return the header as 96 bytes."""
        head = _HEADER_STRUCT.pack(_MAGIC, _VERSION, self.kind, *self.data, *self[2:])
        return head + _compute_checksum(head)


def decode_header(head: bytes) -> Header | None:
    """Decode a header; return `None` if it is damaged, or no header of this format version.

    >>> decode_header(Header(Kind.LINES, Stat(120, 99), 7, 64, 0).encode()).total
    7
    >>> decode_header(b"something else") is None
    True
    """
    checksum = head[_HEADER_STRUCT.size : HEADER_BYTES]
    if len(head) < HEADER_BYTES or _compute_checksum(head[: _HEADER_STRUCT.size]) != checksum:
        return None
    magic, version, kind, size, mtime, inode, ctime, *rest = _HEADER_STRUCT.unpack_from(head)
    is_ours = (magic, version) == (_MAGIC, _VERSION)
    return Header(kind, Stat(size, mtime, inode, ctime), *rest) if is_ours else None


class OtherVersionError(DataError):
    """A derived file has the format of another version of Penstock."""


def hash_key(key: Json) -> Stat:
    """Return the fingerprint of a key: of everything that a derived file follows from."""
    digest = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=32).digest()
    return Stat(*_FINGERPRINT_STRUCT.unpack(digest))


class DerivedFile(NamedTuple):
    """A derived file: its kind, its place, and what it is derived from.

    Attributes:
        kind: Its kind.
        data: File that it is derived from, or that stands for several.
        path: Its place; of a copy, the place of the stamp.
        fallback: Its place if the folder of `path` is read-only; `path` if that is in the cache.
        fingerprint: The hash of a key; by default it is the version of `data`.
        checksummed: Accept a file of data that only moved (other inode or ctime, same size and
            mtime), because the body contains checksums of the data.
    """

    kind: Kind
    data: Path
    path: Path
    fallback: Path
    fingerprint: Stat | None = None
    checksummed: bool = False

    def read_fingerprint(self) -> Stat:
        """Return the fingerprint of the data as it is now."""
        return file_versions.stat_file(self.data) if self.fingerprint is None else self.fingerprint

    def fits(self, header: Header) -> bool:
        """Return whether a header has the fingerprint of the data."""
        fields = 2 if self.checksummed else 4
        return header.data[:fields] == self.read_fingerprint()[:fields]

    def is_in_cache(self, path: Path) -> bool:
        """Return whether one of its places is in the cache, where Penstock writes all files."""
        return path == self.fallback and path.parent != self.data.parent

    def list_existing(self) -> list[Path]:
        """Return the places where the file exists, best first."""
        with convert_storage_errors(self.path):
            return [path for path in dict.fromkeys((self.path, self.fallback)) if path.exists()]


# ---------------------------------------------------------------- places


def place_index(
    kind: Kind,
    data: Path,
    suffix: str,
    cache: str | Path | None,
    *,
    beside: bool = True,
    fingerprint: Stat | None = None,
    checksummed: bool = False,
) -> DerivedFile:
    """Return a derived file beside its data if that is allowed, else in the cache.

    Args:
        kind: Its kind.
        data: File that it is derived from.
        suffix: Ending of its name.
        cache: Cache folder.
        beside: Prefer the folder of the data.
        fingerprint: See `DerivedFile`.
        checksummed: See `DerivedFile`.
    """
    fallback = cache_path(data, cache, f".{data.name}.penstock-{suffix}")
    path = index_path(data, cache, suffix) if beside else fallback
    return DerivedFile(kind, data, path, fallback, fingerprint, checksummed)


def index_path(data: Path, cache: str | Path | None, suffix: str = "lines") -> Path:
    """Return the place of an index: beside the file if that is allowed, else in the cache.

    An explicit `cache` and a file in an object store always use the cache.
    """
    in_cache = cache_path(data, cache, f".{data.name}.penstock-{suffix}")
    if is_remote(data):
        return in_cache
    beside = data.with_name(in_cache.name)
    return (
        beside
        if cache is None
        and (beside.exists() or not (in_cache.exists() or _is_protected(data.parent)))
        else in_cache
    )


def cache_folder(data: Path, cache: str | Path | None) -> Path:
    """Return the cache folder of a file: `<cache>/<digest of its absolute path>`."""
    root = get_default_cache() if cache is None else require_local(cache)
    return root / hashlib.blake2b(encode_path(data.absolute()), digest_size=12).hexdigest()


def cache_path(data: Path, cache: str | Path | None, name: str) -> Path:
    """Return the place of a derived file in the cache.

    A name over the limit of 255 bytes is replaced by its hash.
    """
    if len(encode_path(Path(name))) > _MAX_NAME_BYTES:
        digest = hashlib.blake2b(encode_path(Path(name)), digest_size=12).hexdigest()
        name = f".{digest}{Path(name).suffix}"
    return cache_folder(data, cache) / name


def stamp_path(copy: Path) -> Path:
    """Return the path of the stamp of a copy."""
    return copy.with_name(f"{copy.name}.penstock-stamp")


def _is_protected(folder: Path) -> bool:
    """Return whether a folder belongs to the system, or only root may write to it."""
    path = folder.absolute()
    return any(
        path.is_relative_to(system) for system in _SYSTEM_FOLDERS
    ) or storage.is_root_in_foreign_folder(path)


# ---------------------------------------------------------------- finding and making


def ensure(file: DerivedFile, make: MakeBody, *, rebuild: bool = False) -> Path:
    """Return the path of a current derived file; one process makes it if necessary.

    Args:
        file: The file.
        make: Returns the count and the body.
        rebuild: Make it even if a current one exists.

    Raises:
        DataError: The file is damaged and lies beside the data, or the data changes meanwhile.
        StorageError: The file cannot be written.
    """

    def check(path: Path) -> Path | None:
        # A body in the cache is checked now, as it can be made again; others by their readers.
        header = read(file, path)[0] if file.is_in_cache(path) else _read_header(file, path)
        return path if file.fits(header) else None

    return find_or_make(
        file,
        lambda: None if rebuild else find(file, check),
        lambda locked: _make(file, make, locked, rebuild)[0] or file.path,
    )


def load(file: DerivedFile, make: MakeBody) -> bytes | bytearray | memoryview:
    """Return the body of a derived file; one process makes it if necessary.

    The arguments and errors are those of `ensure`. If the file is optional and cannot be written,
    the body is made and not stored.
    """

    def check(path: Path) -> memoryview | None:
        header, body = read(file, path)
        return body if file.fits(header) else None

    return find_or_make(
        file, lambda: find(file, check), lambda locked: _make(file, make, locked, False)[1]
    )


def load_fact(
    paths: Sequence[Path],
    stats: Sequence[Stat],
    what: str,
    make: Callable[[], T],
    cache: str | Path | None,
) -> T | Any:
    """Return the JSON value of `make` for these versions of files, from the cache if possible.

    Args:
        paths: The files.
        stats: Their versions.
        what: Name of the fact.
        make: Computes the fact.
        cache: Cache folder.
    """
    if not paths:
        return make()
    names = list(resolve_absolute_paths(paths))
    name = hashlib.blake2b(json.dumps([what, names]).encode(), digest_size=8).hexdigest()
    fingerprint = hash_key([what, names, [list(stat) for stat in stats]])
    place = cache_path(paths[0], cache, f".{name}.penstock-known")
    file = DerivedFile(Kind.FACT, paths[0], place, place, fingerprint)
    return json.loads(bytes(load(file, lambda: (len(paths), json.dumps(make()).encode()))))


def ensure_copy(
    copy: Path,
    kind: Kind,
    data: Path,
    write_copy: Callable[[BinaryIO], None],
    *,
    fingerprint: Stat | None = None,
    rebuild: bool = False,
) -> Path:
    """Return the path of a current copy of the data in another form; write it if necessary.

    The stamp is removed before the copy and written after it. A crash between the two leaves a copy
    without a stamp, which the next call writes again.

    Args:
        copy: Place of the copy, in the cache.
        kind: Its kind.
        data: File that it is derived from.
        write_copy: Writes the copy to an open file.
        fingerprint: See `DerivedFile`.
        rebuild: Write the copy even if a current one exists.

    Raises:
        DataError: The copy is damaged.
        StorageError: The copy cannot be written.
    """
    stamp = stamp_path(copy)
    file = DerivedFile(kind, data, stamp, stamp, fingerprint)

    def check(path: Path) -> Header | None:
        header = read(file, path)[0]
        return header if copy.exists() and file.fits(header) else None

    def make(locked: bool) -> Header:
        def write_both() -> tuple[int, bytes]:
            with _convert_write_errors(copy), storage.world.disk.create(copy, locked) as target:
                if fingerprint is None:
                    size = file_versions.stat_file(data).size
                    require_free_space(copy.parent, size, f"to unpack or convert {data}")
                write_copy(target)
                size = target.seek(0, 2)
                target.seek(0)
                chunks = iter(lambda: target.read(sums.CHUNK_BYTES), b"")
                checksums = sums.compute_checksums(chunks).tobytes()
                storage.world.disk.unlink(stamp)  # it does not belong to the new copy
            return size, checksums

        _make(file, write_both, locked, rebuild)
        return read(file, stamp)[0]

    header = find_or_make(file, lambda: None if rebuild else find(file, check), make)
    if file_versions.stat_file(copy).size != header.total:
        raise make_damage_error(copy, data)
    return copy


def find_or_make(file: DerivedFile, find: Callable[[], T | None], make: Callable[[bool], T]) -> T:
    """Return what `find` returns; else what one process makes while the others wait.

    `make` is given whether this process holds the lock.
    """
    if (existing := find()) is not None:
        return existing
    with _lock(file) as locked:
        return make(locked) if (existing := find()) is None else existing


def _lock(file: DerivedFile) -> contextlib.AbstractContextManager[bool]:
    """Lock a derived file for one process; enter with `False` if it cannot be locked."""
    if file.path.parent == file.data.parent and file.fingerprint is None:
        return storage.world.disk.lock(file.data)
    name = hashlib.blake2b(encode_path(file.fallback), digest_size=6).hexdigest()
    folder = file.fallback.parent / ".making" / name
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return storage.world.disk.lock(folder)


def find(file: DerivedFile, check: Callable[[Path], T | None]) -> T | None:
    """Return the first result of `check` for a file of this version at one of its places."""
    for path in file.list_existing():
        try:
            if (found := check(path)) is not None:
                return found
        except OtherVersionError:
            continue
        except DataError:
            if not file.is_in_cache(path):
                raise
        except StorageError:
            if path.exists():  # else another process replaces it
                raise
    return None


def _make(
    file: DerivedFile, make: MakeBody, locked: bool, rebuild: bool
) -> tuple[Path | None, bytes | bytearray]:
    """Make and store a derived file; return its path, or `None` if it is not stored, and body."""
    previous = None if rebuild else log_unusable(file)
    before = file.read_fingerprint()
    total, body = make()
    if file.fingerprint is None:
        file_versions.require_unchanged(file.data, before, name=str(file.data))
        if previous and previous[2:] != (total, len(body), zlib.crc32(body)):
            log_changed({file.data: before})
    return store(file, before, total, body, locked, rebuild=rebuild), body


def store(
    file: DerivedFile,
    fingerprint: Stat,
    total: int,
    body: bytes | bytearray,
    locked: bool,
    *,
    rebuild: bool = False,
) -> Path | None:
    """Write a file atomically, to the cache if its folder is read-only; return its path.

    Args:
        file: The file.
        fingerprint: Fingerprint of the data that it was made from.
        total: Count.
        body: Body.
        locked: Whether this process holds the lock.
        rebuild: Write only to `file.path` if a file exists there, which readers find first.

    Returns:
        The path, or `None` if the file is optional and cannot be written.
    """
    places = list(dict.fromkeys((file.path, file.fallback)))
    if rebuild and file.path.exists():
        places = [file.path]
    for path in places:
        try:
            with storage.world.disk.create(path, locked and path == file.path) as target:
                header = Header(file.kind, fingerprint, total, len(body), zlib.crc32(body))
                target.write(header.encode())
                target.write(body)
            return path
        except OSError as error:
            if path != places[-1] and error.errno in _UNWRITABLE_ERRNOS:
                continue
            if file.kind.optional:
                return None
            raise _make_write_error(error, path) from error
    return None


@contextlib.contextmanager
def _convert_write_errors(path: Path) -> Generator[None]:
    """Convert errors of the operating system while a file of the cache is written."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise _make_write_error(error, path) from error


def _make_write_error(error: OSError, path: Path) -> StorageError:
    if error.errno in _PROCESS_LIMIT_ERRNOS:
        return make_storage_error(error, path)
    remedy = "free space" if error.errno in _FULL_ERRNOS else "make its folder writable"
    converted = StorageError(
        f"{path} cannot be written ({error.strerror or error}): {remedy}, or give cache=FOLDER or "
        "the environment variable PENSTOCK_CACHE=FOLDER"
    )
    converted.errno = error.errno
    return converted


def require_free_space(folder: Path, need: int, purpose: str) -> None:
    """Raise `StorageError` if the disk of a folder has fewer than `need` bytes free."""
    if (free := storage.world.disk.free(folder)) < need:
        raise StorageError(
            f"{folder} has {free / 2**20:,.0f} MiB free, {need / 2**20:,.0f} MiB are needed "
            f"{purpose}: free some, or give cache= a folder on another disk"
        )


# ---------------------------------------------------------------- reading


def read_body(
    path: Path, kind: int, data: Path, *, require_current: bool = False
) -> tuple[int, memoryview]:
    """Return the count and the memory-mapped body of a derived file, after checking its CRC-32.

    Args:
        path: The derived file.
        kind: Expected kind.
        data: File that it is derived from.
        require_current: Also require that the data is the version that the file was made from. If
            the data is replaced, a slower process may have written the file after it was found.

    Raises:
        DataError: The file is damaged, or the data changed.
    """
    header, body = read(DerivedFile(Kind(kind), data, path, path), path)
    if require_current:
        file_versions.require_unchanged(data, header.data, name=str(data))
    return header.total, body


def read(file: DerivedFile, path: Path) -> tuple[Header, memoryview]:
    """Return the header and the memory-mapped body of a file at one of its places.

    Raises:
        DataError: The file is damaged.
    """
    _require_file(path, file.data)
    with convert_storage_errors(path):
        mapping = memoryview(map_file(path))
    header, body = _check_header(bytes(mapping[:HEADER_BYTES]), path, file), mapping[HEADER_BYTES:]
    if (len(body), zlib.crc32(body)) != (header.length, header.crc):
        raise make_damage_error(path, file.data)
    return header, body


def read_count(file: DerivedFile) -> int | None:
    """Return the count in a derived file, or `None` if there is no usable one."""
    try:
        header = _read_header(file, file.path) if file.path.exists() else None
    except DataError:
        return None
    return header.total if header is not None and file.fits(header) else None


def _read_header(file: DerivedFile, path: Path) -> Header:
    """Return the header of a file; check nothing else but the size."""
    _require_file(path, file.data)
    version = file_versions.stat_file(path)
    try:
        with convert_storage_errors(path):
            head = storage.world.store.read(str(path), 0, HEADER_BYTES)
        header = _check_header(head, path, file)
        if version.size != HEADER_BYTES + header.length:
            raise make_damage_error(path, file.data)
    except DataError:
        if file_versions.stat_file(path) == version:
            raise
        return _read_header(file, path)  # another process replaced it between the two reads
    return header


def _check_header(head: bytes, path: Path, file: DerivedFile) -> Header:
    """Decode the header of a file; raise if it is damaged, of another kind or version."""
    if head[:8] == _MAGIC and len(head) >= 12 and head[8:12] != _VERSION.to_bytes(4, "little"):
        raise OtherVersionError(
            f"another version of Penstock made {path}: {_describe_remedy(path, file.data)}",
            where=str(file.data),
        )
    header = decode_header(head)
    if header is None or header.kind != file.kind:
        raise make_damage_error(path, file.data)
    return header


def _require_file(path: Path, data: Path) -> None:
    """Raise if the path is no regular file: opening a pipe, for example, would block forever."""
    if path.exists() and not path.is_file():
        raise make_damage_error(path, data)


def make_damage_error(path: Path, data: Path) -> DataError:
    """Build the error for a file that Penstock cannot have written like this."""
    return DataError(
        f"{path}, kept for this file, is damaged, or Penstock did not write it: "
        f"{_describe_remedy(path, data)}",
        where=str(data),
    )


def _describe_remedy(path: Path, data: Path) -> str:
    if not is_remote(data) and not data.exists():  # the name of a key
        return "delete it"
    return f"run `penstock index --rebuild {data}`, or delete {path}, and it is made again"


def _compute_checksum(head: bytes) -> bytes:
    return hashlib.blake2b(head, digest_size=HEADER_BYTES - _HEADER_STRUCT.size).digest()


# ---------------------------------------------------------------- log lines


def log_unusable(file: DerivedFile) -> Header | None:
    """Log that an existing file is damaged or of another version; else return its header."""
    for path in file.list_existing():
        try:
            return read(file, path)[0]
        except OtherVersionError:
            return _log(_OTHER_VERSION, file.data)
        except DataError:
            return log_damaged(path)
    return None


def log_changed(changes: Mapping[Path, Stat]) -> None:
    """Log that files changed since something was derived from them; once a version and process.

    Args:
        changes: Fingerprint of each file by its path.
    """
    files = [file for file, version in changes.items() if _LOGGED_CHANGES.get(file) != version]
    _LOGGED_CHANGES.update(changes)
    if files:
        _log(_CHANGED, *files)


def log_damaged(path: Path) -> None:
    """Log that a file in the cache is damaged and made again."""
    _log(_DAMAGED, path)


@contextlib.contextmanager
def merge_logs() -> Generator[None]:
    """Collect why derived files are made again; log one line a reason when the block ends."""
    if _PENDING_LOGS.get() is not None:
        yield
        return
    pending = dict[tuple[str, str], None]()
    before = _PENDING_LOGS.set(pending)
    try:
        yield
    finally:
        _PENDING_LOGS.reset(before)
        for reason in dict.fromkeys(reason for reason, _ in pending):
            _log(reason, *(Path(name) for other, name in pending if other == reason))


def _log(reason: str, *files: Path) -> None:
    """Log a reason with the files that it concerns, or collect it for `merge_logs`."""
    if (pending := _PENDING_LOGS.get()) is not None:
        pending.update(dict.fromkeys((reason, str(file)) for file in files))
        return
    names = ", ".join(map(str, files[:_MAX_LOGGED_FILES])) + (
        f" and {len(files) - _MAX_LOGGED_FILES} more" if len(files) > _MAX_LOGGED_FILES else ""
    )
    logging.getLogger("penstock").warning("%s: %s", reason, names)
