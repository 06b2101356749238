"""Sidecar files: data derived from a file, kept beside it or in a cache.

A sidecar is a 96-byte stamp and a body. The stamp stores magic, version, kind, the version of the
data file (size, times, inode), a count, the size and CRC-32 of the body, and its own checksum. The
reader rebuilds a stale sidecar and raises `DataError` for a damaged one. One process writes a
sidecar atomically; the others wait for the lock and read it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import struct
import zlib
from collections.abc import Callable, Generator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from ..errors import DataError, PenstockError, StorageError, convert_storage_errors
from ..stores import get_default_cache, is_remote, storage
from ..stores.storage import Stat
from ..stores.urls import require_local
from . import file_versions, sums
from .rows import encode_path, map_file, resolve_absolute_paths

LINES, UNPACKED, TABLE, LENGTHS, _, ROWS, KNOWN, CATALOG, LOOKED, SUMS, DOCUMENTS, TOTALS, TAR = (
    range(1, 14)
)
"""Kinds of sidecars:

- `LINES`: offsets of lines
- `UNPACKED`: an unpacked copy
- `TABLE`: a CSV file as an Arrow table
- `LENGTHS`: lengths of lists
- 5: retired; stored the offsets of tar samples
- `ROWS`: numbers of the selected rows
- `KNOWN`: facts about many files
- `CATALOG`: what opening many files needs
- `LOOKED`: the time of the last comparison of a catalog with its files
- `SUMS`: checksums of the blocks of a file
- `DOCUMENTS`: ends of documents of tokens
- `TOTALS`: sums of lengths
- `TAR`: offsets of the samples of a tar archive and of their parts
"""

HEADER_BYTES = 96

_HEADER_STRUCT = struct.Struct("<8sIIQqQqQQQ")
_MAGIC = b"PENSTOCK"
_VERSION = 3
_MAX_NAME_BYTES = 200  # bytes of a name, to which more is added
_UNWRITABLE_ERRNOS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)
_MAX_LOGGED_FILES = 5  # files that one log line names
_CHANGED_FILES: ContextVar[dict[str, None] | None] = ContextVar("changed", default=None)
_SYSTEM_FOLDERS = tuple(
    map(Path, "/bin /boot /dev /etc /lib /lib64 /proc /run /sbin /sys /usr".split())
)

T = TypeVar("T")
MakeBody = Callable[[], tuple[int, bytes]]
"""Returns the count and the body of a sidecar."""


class Stamp(NamedTuple):
    """The header of a sidecar.

    `total` counts rows, or bytes of the file that the sidecar describes. `length` and `crc` are the
    size and the CRC-32 of the body.
    """

    kind: int
    data: Stat
    total: int
    length: int
    crc: int


def encode(stamp: Stamp) -> bytes:
    """Encode a stamp as 96 bytes."""
    head = _HEADER_STRUCT.pack(_MAGIC, _VERSION, stamp.kind, *stamp.data, *stamp[2:])
    return head + _compute_checksum(head)


def decode(head: bytes) -> Stamp | None:
    """Decode a stamp; return `None` if the bytes are damaged or no stamp of this version.

    >>> decode(encode(Stamp(LINES, Stat(120, 99), 7, 64, 0))).total
    7
    >>> decode(b"something else") is None
    True
    """
    if (
        len(head) < HEADER_BYTES
        or _compute_checksum(head[: _HEADER_STRUCT.size])
        != head[_HEADER_STRUCT.size : HEADER_BYTES]
    ):
        return None
    magic, version, kind, size, mtime, inode, ctime, *rest = _HEADER_STRUCT.unpack_from(head)
    return (
        Stamp(kind, Stat(size, mtime, inode, ctime), *rest)
        if (magic, version) == (_MAGIC, _VERSION)
        else None
    )


def ensure_sidecar(
    data: Path,
    suffix: str,
    kind: int,
    make: MakeBody,
    cache: str | Path | None,
    *,
    rebuild: bool = False,
    beside: bool = True,
    checksummed: bool = False,
) -> Path:
    """Return the path of a current sidecar; one process makes it if it is missing or stale.

    A rebuild logs a line if the body differs from the previous one. A copy of the data with other
    times yields the same body, and logs nothing.

    Args:
        data: File that the sidecar is derived from.
        suffix: Ending of its name.
        kind: Kind of sidecar.
        make: Returns the count and the body.
        cache: Cache folder.
        rebuild: Make the sidecar even if a current one exists.
        beside: Prefer the folder of the data, unless that is read-only.
        checksummed: Accept a sidecar of a file that only moved (other inode or ctime, same size and
            mtime), because the body contains checksums of the data.

    Raises:
        DataError: An existing sidecar is damaged.
        StorageError: The sidecar cannot be written.
    """
    fallback = cached_index_path(data, cache, suffix)
    path = index_path(data, cache, suffix) if beside else fallback
    candidates = [] if rebuild else [path, fallback]

    def find() -> Path | None:
        with convert_storage_errors(path):
            return next(
                (
                    candidate
                    for candidate in candidates
                    if candidate.exists()
                    and is_current(candidate, kind, data, checksummed=checksummed)
                ),
                None,
            )

    def save(version: Stat, total: int, body: bytes, locked: bool) -> Path:
        shadowed = rebuild and path.exists()  # readers would find the old file at `path` first
        note_change(candidates, kind, data, total, body)
        return write(
            path, kind, version, total, body, locked, fallback=None if shadowed else fallback
        )

    return _find_or_make(data, _lock_data_file(data, path), find, lambda _: make(), save)


def load_or_rebuild_body(path: Path, kind: int, data: Path, make: MakeBody) -> bytes | memoryview:
    """Return the body of an expendable cache file; rebuild it if stale, damaged or missing.

    If the cache folder is not writable, the body is made and not stored.
    """

    def find() -> memoryview | None:
        with contextlib.suppress(PenstockError):
            return (
                read_body(path, kind, data)[1]
                if path.exists() and is_current(path, kind, data)
                else None
            )
        return None

    def save(version: Stat, total: int, body: bytes, locked: bool) -> bytes:
        with contextlib.suppress(StorageError):
            write(path, kind, version, total, body, locked)
        return body

    return _find_or_make(data, lock_folder(path.parent), find, lambda _: make(), save)


def load_or_compute_fact(
    paths: Sequence[Path],
    stats: Sequence[Stat],
    what: str,
    make: Callable[[], T],
    cache: str | Path | None,
) -> T | Any:
    """Return the JSON value of `make` for these versions of files, from the cache if possible.

    The name of the cache file contains the paths, sizes and times of all files, so a stale fact is
    never used.

    Args:
        paths: The files.
        stats: Their versions.
        what: Name of the fact.
        make: Computes the fact.
        cache: Cache folder.
    """
    if not paths:
        return make()
    versions = [
        [path_text, *stat]
        for path_text, stat in zip(resolve_absolute_paths(paths), stats, strict=True)
    ]
    key = hashlib.blake2b(json.dumps([what, versions]).encode(), digest_size=8).hexdigest()
    target = cache_folder(paths[0], cache) / f".{key}.penstock-known"

    def encode_fact() -> tuple[int, bytes]:
        return len(paths), json.dumps(make()).encode()

    return json.loads(bytes(load_or_rebuild_body(target, KNOWN, paths[0], encode_fact)))


def _find_or_make(
    data: Path,
    lock: contextlib.AbstractContextManager[bool],
    find: Callable[[], T | None],
    make: Callable[[bool], tuple[int, bytes]],
    save: Callable[[Stat, int, bytes, bool], T],
) -> T:
    """Return what `find` returns; else make and save it in one process while the others wait.

    `make` and `save` are given whether this process holds the lock.
    """
    if (existing := find()) is not None:
        return existing
    with lock as locked:
        if (existing := find()) is not None:
            return existing
        before = file_versions.stat_file(data)
        total, body = make(locked)
        file_versions.require_unchanged(data, before, name=str(data))
        return save(before, total, body, locked)


def _lock_data_file(data: Path, target: Path) -> contextlib.AbstractContextManager[bool]:
    """Lock a data file against other processes that derive something from it.

    If the target lies beside the data, this locks the data file itself, so that no lock file appears
    there. Otherwise it locks a folder of the cache.
    """
    return (
        storage.world.disk.lock(data)
        if target.parent == data.parent
        else lock_folder(target.parent / ".making")
    )


def lock_folder(folder: Path) -> contextlib.AbstractContextManager[bool]:
    """Lock a cache folder for one writing process; enter with `False` if it cannot be locked."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return storage.world.disk.lock(folder)


def is_current(path: Path, kind: int, data: Path, *, checksummed: bool = False) -> bool:
    """Return whether a sidecar was made from the present version of the data.

    Args:
        path: The sidecar.
        kind: Expected kind.
        data: File that the sidecar is derived from.
        checksummed: Compare size and mtime alone.

    Raises:
        DataError: The sidecar is damaged.
    """
    _require_file(path, data)
    with convert_storage_errors(path):
        stamp = decode(storage.world.store.read(str(path), 0, HEADER_BYTES))
        current, size = file_versions.stat_file(data), file_versions.stat_file(path).size
    if stamp is None or stamp.kind != kind or size != HEADER_BYTES + stamp.length:
        raise make_damage_error(path, data)
    return stamp.data[:2] == current[:2] if checksummed else stamp.data == current


def read_body(
    path: Path, kind: int, data: Path, *, require_current: bool = False
) -> tuple[int, memoryview]:
    """Return the count and the memory-mapped body of a sidecar, after checking its CRC-32.

    Args:
        path: The sidecar.
        kind: Expected kind.
        data: File that the sidecar is derived from.
        require_current: Also require that the data is the version that the sidecar was made from.
            If the data is replaced, a slower process may have written the sidecar after
            `is_current` was called.

    Raises:
        DataError: The sidecar is damaged, or the data changed.
    """
    _require_file(path, data)
    with convert_storage_errors(path):
        mapping = memoryview(map_file(path))
    stamp, content = decode(bytes(mapping[:HEADER_BYTES])), mapping[HEADER_BYTES:]
    if (
        stamp is None
        or stamp.kind != kind
        or (len(content), zlib.crc32(content)) != (stamp.length, stamp.crc)
    ):
        raise make_damage_error(path, data)
    if require_current:
        file_versions.require_unchanged(data, stamp.data, name=str(data))
    return stamp.total, content


def write(
    path: Path,
    kind: int,
    data: Stat,
    total: int,
    body: bytes,
    locked: bool,
    *,
    fallback: Path | None = None,
) -> Path:
    """Write a sidecar atomically, to `fallback` if its folder is read-only; return its path."""
    try:
        with storage.world.disk.create(path, locked) as file:
            file.write(encode(Stamp(kind, data, total, len(body), zlib.crc32(body))))
            file.write(body)
    except OSError as error:
        if fallback is None or fallback == path or error.errno not in _UNWRITABLE_ERRNOS:
            raise StorageError(
                f"{path} cannot be written ({error.strerror or error}): free space, or give "
                "cache=FOLDER"
            ) from error
        return write(fallback, kind, data, total, body, False)  # the lock was for `path`
    return path


def ensure_copy(
    target: Path, kind: int, data: Path, write_copy: Callable[[BinaryIO], None], *, rebuild: bool
) -> Path:
    """Return the path of a current copy of the data in another form; write it if necessary.

    The copy is written atomically. Its stamp, with the checksums of its blocks, is a separate file
    that is written afterwards. A crash between the two leaves a copy without a stamp, which the
    next call rebuilds.

    Args:
        target: Place of the copy.
        kind: Kind of sidecar.
        data: File that the copy is derived from.
        write_copy: Writes the copy to an open file.
        rebuild: Write the copy even if a current one exists.

    Raises:
        DataError: The copy or its stamp is damaged.
        StorageError: The copy cannot be written.
    """

    def make(locked: bool) -> tuple[int, bytes]:
        with convert_storage_errors(target), storage.world.disk.create(target, locked) as file:
            require_free_space(
                target.parent, file_versions.stat_file(data).size, f"to unpack or convert {data}"
            )
            write_copy(file)
            size = file.seek(0, 2)
            file.seek(0)
            return size, sums.compute_checksums(
                iter(lambda: file.read(sums.CHUNK_BYTES), b"")
            ).tobytes()

    stamp_file = stamp_path(target)

    def find() -> Path | None:
        return (
            stamp_file
            if not rebuild
            and target.exists()
            and stamp_file.exists()
            and is_current(stamp_file, kind, data)
            else None
        )

    def save(version: Stat, total: int, body: bytes, locked: bool) -> Path:
        note_change([] if rebuild else [stamp_file], kind, data, total, body)
        return write(stamp_file, kind, version, total, body, locked)

    _find_or_make(data, _lock_data_file(data, target), find, make, save)
    if file_versions.stat_file(target).size != read_body(stamp_file, kind, data)[0]:
        raise make_damage_error(target, data)
    return target


def stamp_path(target: Path) -> Path:
    """Return the path of the stamp of a derived copy."""
    return target.with_name(f"{target.name}.penstock-stamp")


def _require_file(path: Path, data: Path) -> None:
    """Raise if the path is no regular file: opening a pipe, for example, would block forever."""
    if path.exists() and not path.is_file():
        raise make_damage_error(path, data)


def make_damage_error(path: Path, data: Path) -> DataError:
    """Build the error for a sidecar that Penstock cannot have written like this."""
    remedy = "delete it" if path == data else _describe_remedy(path, data)
    return DataError(
        f"{path}, kept for this file, is damaged, or Penstock did not write it: {remedy}",
        where=str(data),
    )


def note_change(paths: Sequence[Path], kind: int, data: Path, total: int, body: bytes) -> None:
    """Log that the data changed, if the first existing sidecar of these has another body."""
    for path in paths:
        if path.exists():
            with convert_storage_errors(path):
                stamp = decode(storage.world.store.read(str(path), 0, HEADER_BYTES))
            if stamp is not None and stamp[2:] != (total, len(body), zlib.crc32(body)):
                log_changed(data)
            return


def log_changed(*files: Path) -> None:
    """Log that files changed since they were indexed, or collect them for `merge_change_logs`."""
    if (changed := _CHANGED_FILES.get()) is not None:
        changed.update(dict.fromkeys(map(str, files)))
        return
    names = ", ".join(map(str, files[:_MAX_LOGGED_FILES])) + (
        f" and {len(files) - _MAX_LOGGED_FILES} more" if len(files) > _MAX_LOGGED_FILES else ""
    )
    logging.getLogger("penstock").warning(
        "changed since indexed or converted, so this is done again: %s", names
    )


@contextlib.contextmanager
def merge_change_logs() -> Generator[None]:
    """Collect the files that changed since they were indexed; log one line when the block ends."""
    if _CHANGED_FILES.get() is not None:
        yield
        return
    changed = dict[str, None]()
    before = _CHANGED_FILES.set(changed)
    try:
        yield
    finally:
        _CHANGED_FILES.reset(before)
        if changed:
            log_changed(*map(Path, changed))


def cache_folder(data: Path, cache: str | Path | None) -> Path:
    """Return the cache folder of a file: `<cache>/<digest of its absolute path>`."""
    root = get_default_cache() if cache is None else require_local(cache)
    return root / hashlib.blake2b(encode_path(data.absolute()), digest_size=12).hexdigest()


def index_path(data: Path, cache: str | Path | None, suffix: str = "lines") -> Path:
    """Return the place of an index: beside the file if that is allowed, else in the cache.

    An explicit `cache` and a file in an object store always use the cache.
    """
    in_cache = cached_index_path(data, cache, suffix)
    if is_remote(data):
        return in_cache
    beside = data.with_name(in_cache.name)
    return (
        beside
        if cache is None
        and (beside.exists() or not (in_cache.exists() or _is_protected(data.parent)))
        else in_cache
    )


def cached_index_path(data: Path, cache: str | Path | None, suffix: str) -> Path:
    """Return the place of an index in the cache."""
    return cache_path(data, cache, f".{data.name}.penstock-{suffix}")


def cache_path(data: Path, cache: str | Path | None, name: str) -> Path:
    """Return the place of a derived file in the cache.

    A name over the limit of 255 bytes is replaced by its hash.
    """
    if len(encode_path(Path(name))) > _MAX_NAME_BYTES:
        digest = hashlib.blake2b(encode_path(Path(name)), digest_size=12).hexdigest()
        name = f".{digest}{Path(name).suffix}"
    return cache_folder(data, cache) / name


def require_free_space(folder: Path, need: int, purpose: str) -> None:
    """Raise `StorageError` if the disk of a folder has fewer than `need` bytes free."""
    if (free := storage.world.disk.free(folder)) < need:
        raise StorageError(
            f"{folder} has {free / 2**20:,.0f} MiB free, {need / 2**20:,.0f} MiB are needed "
            f"{purpose}: free some, or give cache= a folder on another disk"
        )


def _is_protected(folder: Path) -> bool:
    """Return whether a folder belongs to the system, or only root may write to it."""
    path = folder.absolute()
    return any(
        path.is_relative_to(system) for system in _SYSTEM_FOLDERS
    ) or storage.is_root_in_foreign_folder(path)


def _compute_checksum(head: bytes) -> bytes:
    return hashlib.blake2b(head, digest_size=HEADER_BYTES - _HEADER_STRUCT.size).digest()


def _describe_remedy(path: Path, data: Path) -> str:
    return f"run `penstock index --rebuild {data}`, or delete {path}, and it is made again"
