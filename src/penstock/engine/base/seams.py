"""The seams to the world: `Store` (ranged reads), `Disk` (durable writes), `Sched` (threads, time),
`Screen` (waits).

Everything else on the run path is a pure function. The real seams are here; the simulator in
`penstock.testing` puts its own in their place, and the same code then runs under torn writes, full
disks, dead threads and reordered results. A lint test holds that nothing else touches them.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NamedTuple, Protocol

from ...errors import storage
from .machine import environment, hold, keep_memory, place, thread
from .thread_pool import Task, ThreadPool
from .urls import is_url

_PIECE = 1 << 20  # bytes read at once of a file whose size is limited
_ONE = 1 << 30  # bytes that the system gives at once


class Stat(NamedTuple):
    """What identifies a version of a file: its size in bytes, its modification time in nanoseconds,
    its number in the file system, and when anything of it was last changed. Of what lies in a store
    there is no time, but a digest of its etag, below 0.
    """

    size: int
    mtime: int
    inode: int = 0
    ctime: int = 0


class Entry(NamedTuple):
    """Something in a folder: its path, whether it is a file (or a link to one), and whether it is a
    link. Of what is neither a file nor a folder, `odd` says what it is."""

    path: str
    file: bool
    link: bool
    odd: str = ""


class Store(Protocol):
    """Read-only data: what is there, which version, and byte ranges of it."""

    def list(self, pattern: str, /) -> list[Entry]: ...
    def stat(self, path: str, /) -> Stat: ...
    def read(self, path: str, start: int = 0, length: int | None = None, /) -> bytes: ...
    def many(self, path: str, ranges: Iterable[tuple[int, int]], /) -> list[bytes]: ...


class Disk(Protocol):
    """Files we write ourselves: small, replaced whole, never half there."""

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


class Hands(Protocol):
    """Some threads that compute tasks; results are asked for one by one. `close` waits for at most
    so many seconds."""

    def submit(self, task: Callable[[], Any], /) -> Task: ...
    def close(self, seconds: float | None = None, /) -> None: ...


class Sched(Protocol):
    """Who computes, and what time it is."""

    def now(self) -> float: ...
    def sleep(self, seconds: float, /) -> None: ...
    def spawn(self, workers: int, /) -> Hands: ...


class Screen(Protocol):
    """Where people see what takes long: lines, each of one piece of work, and how many seconds to
    wait between them."""

    def every(self) -> float: ...
    def show(self, work: object, line: str, over: bool, /) -> None: ...


class LocalStore:
    """Files of this machine."""

    def list(self, pattern: str, /) -> list[Entry]:
        """What fits a glob, sorted: its folders are listed, what lies in them is not looked at."""
        import fnmatch
        import glob

        above, name = os.path.split(pattern)
        if name == "**":
            above, name = pattern, "*"
        folders = glob.glob(f"{above}/", recursive=True) if glob.has_magic(above) else [above]
        found = list[Entry]()
        for folder in folders:
            with (
                contextlib.suppress(FileNotFoundError, NotADirectoryError),
                os.scandir(folder or ".") as inside,
            ):
                for one in inside:
                    if fnmatch.fnmatch(one.name, name) and (name[0] == "." or one.name[0] != "."):
                        path, link = os.path.join(folder, one.name), one.is_symlink()
                        odd = "" if one.is_file() or one.is_dir() else kind_of(path)
                        found.append(Entry(path, one.is_file(), link, odd))
        return sorted(found)

    def stat(self, path: str, /) -> Stat:
        found = os.stat(path)
        return Stat(
            found.st_size, found.st_mtime_ns, found.st_ino & (1 << 63) - 1, found.st_ctime_ns
        )

    def read(self, path: str, start: int = 0, length: int | None = None, /) -> bytes:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read() if length is None else file.read(length)

    def many(self, path: str, ranges: Iterable[tuple[int, int]], /) -> list[bytes]:
        keep_memory()
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return [
                os.pread(handle, size, at) if size <= _ONE else self.read(path, at, size)
                for at, size in ranges
            ]
        finally:
            os.close(handle)


def kind_of(path: str) -> str:
    """What something is that is no file: in words."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return "a link to nothing"
    kinds = {stat.S_ISDIR: "a folder", stat.S_ISFIFO: "a pipe", stat.S_ISSOCK: "a socket"}
    return next((kind for test, kind in kinds.items() if test(mode)), "a device")


def read_within(path: str, limit: int) -> bytes:
    """Read a whole file of a store or of this machine; `OSError` for what is no file, or larger
    than `limit` bytes."""
    store = world.store
    if isinstance(store, LocalStore) or not is_url(path):
        return read_regular(Path(path), limit)
    if (size := store.stat(path).size) > limit:
        raise too_large(path, size, limit)
    return store.read(path)


def read_regular(path: Path, limit: int) -> bytes:
    """Read a file of this machine, at most `limit` bytes; a pipe or a device is refused, and not
    waited for."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, f"it is {kind_of(str(path))}, not a file", str(path))
        if found.st_size > limit:
            raise too_large(str(path), found.st_size, limit)
        data = bytearray()
        while piece := file.read(_PIECE):  # of /proc no size is told
            data += piece
            if len(data) > limit:
                raise too_large(str(path), len(data), limit)
        return bytes(data)


def too_large(path: str, size: int, limit: int) -> OSError:
    """Return the error for a file that is larger than such a file can be."""
    return OSError(
        errno.EFBIG, f"it has {size:,} bytes, and at most {limit:,} are read of such a file", path
    )


class LocalDisk:
    """The file system, with the calls that make a write survive a crash."""

    def list(self, folder: Path, /) -> list[str]:
        """The names in a folder, sorted; none in one that is not there."""
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
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    @contextlib.contextmanager
    def create(self, target: Path, alone: bool, /) -> Generator[BinaryIO]:
        """A new file, which is at `target` once the block ended well, whole and durable; before
        that it has no name
        where the system can do so, and nothing of it outlives this process. `alone`: nobody else
            makes it now.
        """
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = target.with_name(f".{target.name}.{'' if alone else os.urandom(4).hex()}tmp")
        if alone:
            self.unlink(name)  # of a process that was killed
        nameless = -1
        with contextlib.suppress(OSError, AttributeError):
            if os.path.isdir("/proc/self/fd"):
                nameless = os.open(target.parent, os.O_TMPFILE | os.O_RDWR, 0o666)
        try:
            with open(name if nameless < 0 else nameless, "w+b") as file:
                yield file
                file.flush()
                self.sync(name if nameless < 0 else Path(f"/proc/self/fd/{nameless}"))
                if nameless < 0 or not _named(nameless, target, name):
                    self.replace(name, target)
        except BaseException:
            with contextlib.suppress(OSError):
                self.unlink(name)
            raise
        self.sync(target.parent)

    def lock(self, path: Path, /) -> contextlib.AbstractContextManager[bool]:
        """One thread of one process of this machine at a time, where the file system can tell:
        whether it could.

        The file or folder itself is locked, so nothing is made for it, and the lock goes with its
        process.
        """
        return _FileLock(path)


class _FileLock:
    """A lock of a file or folder.

    An interrupt that comes when it was just taken, or is about to be let go, may leave it locked
    for as long as the exception is kept. A thread that takes it again lets that one go first, as
    none takes a lock twice.
    """

    _taken: ClassVar[dict[tuple[str, int], _FileLock]] = {}

    def __init__(self, path: Path) -> None:
        self._path, self._key, self._handles = path, (str(path), thread()), list[int]()

    def __enter__(self) -> bool:
        if (left := self._taken.get(self._key)) is not None:
            left._close()
        self._taken[self._key] = self
        try:
            how = os.O_RDONLY | os.O_NONBLOCK  # a pipe would be waited for
            self._handles.extend(
                map(os.open, [self._path], [how])
            )  # opened and kept in one call of C
            hold(self._handles[0], self._path)
            return True
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

                fcntl.flock(handle, fcntl.LOCK_UN)  # a process that was forked meanwhile has it too
            nothing = list[int]()
            self._handles = nothing  # and no interrupt comes before it is closed
            os.close(handle)
        self._taken.pop(self._key, None)

    def __exit__(self, *_: object) -> None:
        self._close()


def _named(handle: int, target: Path, name: Path) -> bool:
    """Give a file without a name its place, if there is nothing yet; else `name`."""
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.link(f"/proc/self/fd/{handle}", target.name, dst_dir_fd=folder)
    except FileExistsError:
        os.link(f"/proc/self/fd/{handle}", name.name, dst_dir_fd=folder)
        return False
    finally:
        os.close(folder)
    return True


class LocalSched:
    """Threads of this process, and its monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float, /) -> None:
        time.sleep(seconds)

    def spawn(self, workers: int, /) -> Hands:
        return ThreadPool(workers)


class LocalScreen:
    """One line that is written over in a terminal or a notebook, lines of a log elsewhere;
    `PENSTOCK_PROGRESS=0` turns both off."""

    def __init__(self) -> None:
        self._lines, self._wide, self._lock = dict[int, str](), 0, threading.Lock()

    def every(self) -> float:
        return (
            math.inf if environment("PENSTOCK_PROGRESS") == "0" else 0.2 if _overwritten() else 10.0
        )

    def show(self, work: object, line: str, over: bool, /) -> None:
        if math.isinf(self.every()):
            return
        with (
            self._lock,
            contextlib.suppress(OSError, ValueError),
        ):  # a terminal that is gone stops no work
            self._lines[id(work)] = line
            if over:
                del self._lines[id(work)]
            if stream := _overwritten():
                text = " | ".join(self._lines.values())[: shutil.get_terminal_size().columns - 1]
                stream.write("\r" + text.ljust(self._wide) + ("" if text else "\r"))
                stream.flush()
                self._wide = len(text)
            elif (log := logging.getLogger("penstock")).hasHandlers():
                log.info("%s", line)
            else:  # who set up no logging sees it all the same
                sys.stderr.write(f"{line}\n")


def _overwritten() -> Any:
    """The terminal or the notebook that shows lines of this process alone, if there is one."""
    if place()[1] > 1:
        return None
    if sys.stderr and sys.stderr.isatty():
        return sys.stderr
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return sys.stdout if hasattr(shell, "kernel") else None


@dataclass
class World:
    """The seams in use. Real by default; `pretend` swaps them for a test."""

    store: Store
    disk: Disk
    sched: Sched
    screen: Screen


world = World(LocalStore(), LocalDisk(), LocalSched(), LocalScreen())


@contextlib.contextmanager
def pretend(
    *,
    store: Store | None = None,
    disk: Disk | None = None,
    sched: Sched | None = None,
    screen: Screen | None = None,
) -> Generator[None]:
    """Run a block on other seams: a simulated disk that tears writes, a scheduler that reorders."""
    before = dict(vars(world))
    given = {"store": store, "disk": disk, "sched": sched, "screen": screen}
    vars(world).update({name: seam for name, seam in given.items() if seam is not None})
    try:
        yield
    finally:
        vars(world).update(before)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that a crash at any point leaves the old one or the new one, never neither,
    never a part.

    Temporary file beside it, fsync, rename, fsync of the folder; the temporary file goes on any
    error.
    """
    disk = world.disk
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    with storage(path):
        try:
            disk.write(temporary, data)
            disk.sync(temporary)
            disk.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                disk.unlink(temporary)
            raise
        disk.sync(path.parent)
