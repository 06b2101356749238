"""Storage: the interfaces `Store` (ranged reads) and `Disk` (durable writes), and this machine's.

The simulator in `penstock.testing` replaces them, so that the same code runs under torn writes and
full disks. A lint test checks that no other module opens files for a run.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple, Protocol

from ..engine.base import seams
from ..engine.base.machine import get_thread_id
from ..errors import convert_storage_errors

_READ_CHUNK_BYTES = 1 << 20  # bytes read at once of a file whose size is limited
_MAX_INT64 = (1 << 63) - 1
_MAX_READ = 1 << 30  # bytes that the system returns at once
_LARGE_ALLOCATION = 16 << 20
_WAIT_LOG_SECONDS = 10.0  # after which the holder of a lock is logged
_MAX_LOCK_PAUSE = 0.02  # seconds between two tries to lock
LOCK_TIMEOUT_SECONDS = 3600.0
"""Seconds after which a process no longer waits for a lock, and does the work itself."""


class Stat(NamedTuple):
    """Identity of a version of a file.

    The size in bytes, the modification time in nanoseconds, the inode, and the time of the last
    change of its metadata. An object in a store has a negative digest of its etag as time.
    """

    size: int
    mtime: int
    inode: int = 0
    ctime: int = 0


class FolderEntry(NamedTuple):
    """Entry of a folder: its path, whether it is a file (or a link to one), and whether a link.

    `special` describes an entry that is neither a file nor a folder.
    """

    path: str
    file: bool
    link: bool
    special: str = ""


class Store(Protocol):
    """Read-only storage: listing, versions, and ranged reads."""

    def list(self, pattern: str, /) -> list[FolderEntry]: ...
    def stat(self, path: str, /) -> Stat: ...
    def read(self, path: str, start: int = 0, length: int | None = None, /) -> bytes: ...
    def many(self, path: str, ranges: Iterable[tuple[int, int]], /) -> list[bytes]: ...


class Disk(Protocol):
    """Writable storage for small files, replaced atomically."""

    def list(self, folder: Path, /) -> list[str]: ...
    def read(self, path: Path, limit: int | None = None, /) -> bytes: ...
    def write(self, path: Path, data: bytes, /) -> None: ...
    def sync(self, path: Path, /) -> None: ...
    def replace(self, source: Path, target: Path, /) -> None: ...
    def unlink(self, path: Path, /) -> None: ...
    def touch(self, path: Path, /) -> None: ...
    def free(self, path: Path, /) -> int: ...
    def create(
        self, target: Path, alone: bool, /
    ) -> contextlib.AbstractContextManager[BinaryIO]: ...
    def lock(self, path: Path, /) -> contextlib.AbstractContextManager[bool]: ...


class LocalStore:
    """Files of this machine."""

    def list(self, pattern: str, /) -> list[FolderEntry]:
        """Return the sorted matches of a glob; folders are listed, but not entered."""
        import fnmatch
        import glob

        above, name = os.path.split(pattern)
        if name == "**":
            above, name = pattern, "*"
        folders = glob.glob(f"{above}/", recursive=True) if glob.has_magic(above) else [above]
        entries = list[FolderEntry]()
        for folder in folders:
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                os.scandir(folder or ".") as inside,
            ):
                for item in inside:
                    if fnmatch.fnmatch(item.name, name) and (name[0] == "." or item.name[0] != "."):
                        path, link = os.path.join(folder, item.name), item.is_symlink()
                        is_file, is_folder = _is_file_or_folder(item)
                        special = "" if is_file or is_folder else describe_file_kind(path)
                        entries.append(FolderEntry(path, is_file, link, special))
        return sorted(entries)

    def stat(self, path: str, /) -> Stat:
        info = os.stat(path)
        # Indexes store 64 bits; a wrong clock may set times after 2262.
        mtime, ctime = (min(time, _MAX_INT64) for time in (info.st_mtime_ns, info.st_ctime_ns))
        return Stat(info.st_size, mtime, info.st_ino & _MAX_INT64, ctime)

    def read(self, path: str, start: int = 0, length: int | None = None, /) -> bytes:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read() if length is None else file.read(length)

    def many(self, path: str, ranges: Iterable[tuple[int, int]], /) -> list[bytes]:
        keep_memory()
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return [
                os.pread(handle, size, at) if size <= _MAX_READ else self.read(path, at, size)
                for at, size in ranges
            ]
        finally:
            os.close(handle)


def _is_file_or_folder(item: os.DirEntry[str]) -> tuple[bool, bool]:
    try:
        return item.is_file(), item.is_dir()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return False, False


def describe_file_kind(path: str) -> str:
    """Describe a path that is no regular file, in words."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        return f"a link to {'itself' if error.errno == errno.ELOOP else 'nothing'}"
    kinds = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}
    return next((kind for test, kind in kinds.items() if test(mode)), "a device")


def read_regular(path: Path, limit: int) -> bytes:
    """Read a local file of at most `limit` bytes; pipes and devices raise without waiting."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise OSError(
                errno.EINVAL, f"it is {describe_file_kind(str(path))}, not a file", str(path)
            )
        if info.st_size > limit:
            raise make_too_large_error(str(path), info.st_size, limit)
        data = bytearray()
        while piece := file.read(_READ_CHUNK_BYTES):  # files of /proc report size 0
            data += piece
            if len(data) > limit:
                raise make_too_large_error(str(path), len(data), limit)
        return bytes(data)


def make_too_large_error(path: str, size: int, limit: int) -> OSError:
    """Return the error for a file that exceeds its limit."""
    return OSError(
        errno.EFBIG, f"it has {size:,} bytes, and at most {limit:,} are read of such a file", path
    )


class LocalDisk:
    """The local file system, with durable writes."""

    def list(self, folder: Path, /) -> list[str]:
        """Return the sorted names in a folder; a missing folder is empty."""
        try:
            return sorted(os.listdir(folder))
        except FileNotFoundError:
            return []

    def read(self, path: Path, limit: int | None = None, /) -> bytes:
        return path.read_bytes() if limit is None else read_regular(path, limit)

    def write(self, path: Path, data: bytes, /) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def sync(self, path: Path, /) -> None:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def replace(self, source: Path, target: Path, /) -> None:
        os.replace(source, target)

    def unlink(self, path: Path, /) -> None:
        path.unlink(missing_ok=True)

    def touch(self, path: Path, /) -> None:
        os.utime(path)

    def free(self, path: Path, /) -> int:
        info = os.statvfs(path)
        return info.f_bavail * info.f_frsize

    @contextlib.contextmanager
    def create(self, target: Path, alone: bool, /) -> Generator[BinaryIO]:
        """Create a file that appears at `target` atomically and durably when the block ends.

        Until then the file has no name, if the system supports that, so a crash leaves nothing
        behind. `alone` promises that no other process creates the file now.
        """
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = target.with_name(f".{target.name}.{'' if alone else os.urandom(4).hex()}tmp")
        if alone:
            self.unlink(name)  # the leftover of a killed process
        nameless = -1
        with contextlib.suppress(OSError, AttributeError):
            if os.path.isdir("/proc/self/fd"):
                nameless = os.open(target.parent, os.O_TMPFILE | os.O_RDWR, 0o666)
        try:
            with open(name if nameless < 0 else nameless, "w+b") as file:
                yield file
                file.flush()
                self.sync(name if nameless < 0 else Path(f"/proc/self/fd/{nameless}"))
                if nameless < 0 or not _link_or_name(nameless, target, name):
                    self.replace(name, target)
        except BaseException:
            with contextlib.suppress(OSError):
                self.unlink(name)
            raise
        self.sync(target.parent)

    def lock(self, path: Path, /) -> contextlib.AbstractContextManager[bool]:
        """Lock a file or folder for one thread of one process of this machine.

        The context value is False if the file system has no locks, or if another process holds the
        lock for `LOCK_TIMEOUT_SECONDS`. The file or folder itself is locked, so no lock file is
        needed, and the lock ends with its process.
        """
        return _FileLock(path)


class _FileLock:
    """Lock of a file or folder.

    An interrupt just after locking, or just before unlocking, may leave the file locked while the
    exception exists. A thread that locks the file again releases that lock first, as no thread
    nests locks.
    """

    _taken: ClassVar[dict[tuple[str, int], _FileLock]] = {}

    def __init__(self, path: Path) -> None:
        self._path, self._key, self._handles = path, (str(path), get_thread_id()), list[int]()

    def __enter__(self) -> bool:
        if (leftover := self._taken.get(self._key)) is not None:
            leftover._close()
        self._taken[self._key] = self
        try:
            flags = os.O_RDONLY | os.O_NONBLOCK  # opening a pipe would block
            # Opened and stored in one C call, which no interrupt can divide.
            self._handles.extend(map(os.open, [self._path], [flags]))
            if _lock_file(self._handles[0], self._path):
                return True
            self._close()
            return False
        except (OSError, ImportError):
            self._close()
            return False
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        if self._handles:
            handle = self._handles[0]
            with contextlib.suppress(ImportError):
                import fcntl

                fcntl.flock(handle, fcntl.LOCK_UN)  # a forked process shares the lock
            empty = list[int]()
            self._handles = empty  # no interrupt can come between this store and the close
            os.close(handle)
        self._taken.pop(self._key, None)

    def __exit__(self, *_: object) -> None:
        self._close()


def _link_or_name(handle: int, target: Path, name: Path) -> bool:
    """Link an unnamed file to `target`; if that exists, link it to `name` and return False."""
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.link(f"/proc/self/fd/{handle}", target.name, dst_dir_fd=folder)
    except FileExistsError:
        os.link(f"/proc/self/fd/{handle}", name.name, dst_dir_fd=folder)
        return False
    finally:
        os.close(folder)
    return True


def _lock_file(handle: int, path: Path) -> bool:
    """Lock an open file exclusively; return false if another process holds the lock too long.

    The holder of the lock is logged after some seconds of waiting, and at the timeout.
    """
    import fcntl

    start, pause, is_logged = time.monotonic(), 0.001, False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            waited = time.monotonic() - start
        if waited >= _WAIT_LOG_SECONDS and not is_logged:
            _log_lock_holder(path)
            is_logged = True
        if waited >= LOCK_TIMEOUT_SECONDS:
            logging.getLogger("penstock").warning(
                "%s holds the lock of %s for over %.0f seconds: this process does the work itself",
                _describe_lock_holder(path) or "another thread",
                path,
                LOCK_TIMEOUT_SECONDS,
            )
            return False
        time.sleep(pause)
        pause = min(2 * pause, _MAX_LOCK_PAUSE)


def _log_lock_holder(path: Path) -> None:
    """Log which process holds a lock, unless it is this one."""
    if holder := _describe_lock_holder(path):
        logging.getLogger("penstock").info(
            "waiting for %s, which holds the lock of %s; processes that share files prepare them "
            "one after the other",
            holder,
            path,
        )


def _describe_lock_holder(path: Path) -> str | None:
    """Describe the process that holds a lock, as far as the system knows it; not this one."""
    with contextlib.suppress(OSError, StopIteration):
        locks, number = Path("/proc/locks").read_text(), path.stat().st_ino
        pid = next(
            line.split()[4]
            for line in locks.splitlines()
            if "->" not in line and f":{number} " in line
        )
        if int(pid) == os.getpid():
            return None
        return f"process {pid} ({Path('/proc', pid, 'comm').read_text().strip()})"
    return "another process"


@dataclass
class World:
    """The storage in use; `override_world` replaces it in tests."""

    store: Store
    disk: Disk


world = World(LocalStore(), LocalDisk())


@contextlib.contextmanager
def override_world(
    *,
    store: Store | None = None,
    disk: Disk | None = None,
    sched: seams.Sched | None = None,
    screen: seams.Screen | None = None,
) -> Generator[None]:
    """Run a block with other interfaces, such as a disk that tears writes."""
    given = (
        (world, {"store": store, "disk": disk}),
        (seams.world, {"sched": sched, "screen": screen}),
    )
    before = [dict(vars(place)) for place, _ in given]
    for place, interfaces in given:
        vars(place).update({name: one for name, one in interfaces.items() if one is not None})
    try:
        yield
    finally:
        for (place, _), saved in zip(given, before, strict=True):
            vars(place).update(saved)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically: after a crash the old or the new version exists, never a part.

    The steps are: temporary file in the same folder, fsync, rename, fsync of the folder. After an
    error the temporary file is removed.
    """
    disk = world.disk
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    with convert_storage_errors(path):
        try:
            disk.write(temporary, data)
            disk.sync(temporary)
            disk.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                disk.unlink(temporary)
            raise
        disk.sync(path.parent)


# ---------------------------------------------------------------- the system


@cache
def keep_memory() -> None:
    """Make the C library cache tens of MiB of freed memory, instead of returning it to the system.

    The GNU C library adapts its threshold to the largest block that was freed.
    """
    bytes(_LARGE_ALLOCATION)  # never written to, so it uses no memory


def read_wall_time() -> float:
    """Return the seconds since 1970, by the clock that all processes of a machine share."""
    return time.time()


def is_root_in_foreign_folder(folder: Path) -> bool:
    """Return whether this process runs as root and another user owns the folder."""
    try:
        return hasattr(os, "geteuid") and os.geteuid() == 0 != os.stat(folder).st_uid
    except OSError:
        return False


def is_running(process: int) -> bool:
    """Return whether this machine runs a process with this id."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # a process of another user
        return True
    return True


def get_parent_pid() -> int:
    """Return the id of the parent process."""
    return os.getppid()
