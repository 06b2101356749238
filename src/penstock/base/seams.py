"""The seams to the world: `Store` (ranged reads), `Disk` (durable writes), `Sched` (threads and time), `Screen` (who
waits).

Everything else on the run path is a pure function. The real seams are here; the simulator in
`penstock.testing` puts its own in their place, and the same code then runs under torn writes,
full disks, dead threads and reordered results. A lint test holds that nothing else touches them.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast
from weakref import WeakSet

from ..errors import ConfigError


class Stat(NamedTuple):
    """What identifies a version of a file: its size in bytes and its modification time in nanoseconds."""

    size: int
    mtime: int


class Entry(NamedTuple):
    """Something in a folder: its path, whether it is a file (or a link to one), and whether it is a link."""

    path: str
    file: bool
    link: bool


class Store(Protocol):
    """Read-only data: what is there, which version, and byte ranges of it."""

    def list(self, pattern: str, /) -> list[Entry]: ...
    def stat(self, path: str, /) -> Stat: ...
    def read(self, path: str, start: int = 0, length: int | None = None, /) -> bytes: ...


class Disk(Protocol):
    """Files we write ourselves: small, replaced whole, never half there."""

    def list(self, folder: Path, /) -> list[str]: ...
    def read(self, path: Path, /) -> bytes: ...
    def write(self, path: Path, data: bytes, /) -> None: ...
    def sync(self, path: Path, /) -> None: ...
    def replace(self, source: Path, target: Path, /) -> None: ...
    def unlink(self, path: Path, /) -> None: ...
    def free(self, path: Path, /) -> int: ...
    def lock(self, path: Path, /) -> contextlib.AbstractContextManager[None]: ...


class Hands(Protocol):
    """Some threads that compute tasks; results are asked for one by one."""

    def submit(self, task: Callable[[], Any], /) -> Future[Any]: ...
    def close(self) -> None: ...


class Sched(Protocol):
    """Who computes, and what time it is."""

    def now(self) -> float: ...
    def sleep(self, seconds: float, /) -> None: ...
    def spawn(self, workers: int, /) -> Hands: ...


class Screen(Protocol):
    """Where people see what takes long: lines, each of one piece of work, and how many seconds to wait between them."""

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
            with contextlib.suppress(OSError), os.scandir(folder or ".") as inside:
                for one in inside:
                    if fnmatch.fnmatch(one.name, name) and (name[0] == "." or one.name[0] != "."):
                        found.append(Entry(os.path.join(folder, one.name), one.is_file(), one.is_symlink()))
        return sorted(found)

    def stat(self, path: str, /) -> Stat:
        found = os.stat(path)
        return Stat(found.st_size, found.st_mtime_ns)

    def read(self, path: str, start: int = 0, length: int | None = None, /) -> bytes:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read() if length is None else file.read(length)


class LocalDisk:
    """The file system, with the calls that make a write survive a crash."""

    def list(self, folder: Path, /) -> list[str]:
        """The names in a folder, sorted; none in one that is not there."""
        return sorted(os.listdir(folder)) if folder.exists() else []

    def read(self, path: Path, /) -> bytes:
        return path.read_bytes()

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

    def free(self, path: Path, /) -> int:
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize

    @contextlib.contextmanager
    def lock(self, path: Path, /) -> Generator[None]:
        """One process of this machine at a time, where the file system can tell; the lock goes with its process."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError, ImportError):
                import fcntl

                path.parent.mkdir(parents=True, exist_ok=True)
                handle = os.open(path.with_name(f"{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
                stack.callback(os.close, handle)
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield


class _Threads:
    def __init__(self, workers: int) -> None:
        self._name = f"penstock-{id(self):x}"
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix=self._name)

    def submit(self, task: Callable[[], Any], /) -> Future[Any]:
        return self._pool.submit(task)

    def close(self) -> None:
        # What is let go of without being closed may be collected on one of these threads, which cannot wait for itself.
        own = threading.current_thread().name.startswith(f"{self._name}_")
        self._pool.shutdown(wait=not own, cancel_futures=True)


class LocalSched:
    """Threads of this process, and its monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float, /) -> None:
        time.sleep(seconds)

    def spawn(self, workers: int, /) -> Hands:
        return _Threads(workers)


class LocalScreen:
    """One line that is written over in a terminal or a notebook, lines of a log elsewhere; `PENSTOCK_PROGRESS=0` turns
    both off.
    """

    def __init__(self) -> None:
        self._lines, self._wide, self._lock = dict[int, str](), 0, threading.Lock()

    def every(self) -> float:
        return math.inf if environment("PENSTOCK_PROGRESS") == "0" else 0.2 if _overwritten() else 10.0

    def show(self, work: object, line: str, over: bool, /) -> None:
        if math.isinf(self.every()):
            return
        with self._lock, contextlib.suppress(OSError, ValueError):  # a terminal that is gone stops no work
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
    *, store: Store | None = None, disk: Disk | None = None, sched: Sched | None = None, screen: Screen | None = None
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
    """Write a file so that a crash at any point leaves the old one or the new one, never neither, never a part.

    Temporary file beside it, fsync, rename, fsync of the folder; the temporary file goes on any error.
    """
    disk = world.disk
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        disk.write(temporary, data)
        disk.sync(temporary)
        disk.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        raise
    disk.sync(path.parent)


_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun; of a batch script, which is one process, only the first is there
)


def place() -> tuple[int, int]:
    """This process's rank and the world size: from torch.distributed or jax.distributed where one is running, else from
    the launcher's environment (torchrun, MPI, srun), else alone.
    """
    torch = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_available() and torch.is_initialized():
        return int(torch.get_rank()), int(torch.get_world_size())
    jax = sys.modules.get("jax._src.distributed")  # jax.process_index() would start the devices
    if jax is not None and jax.global_state.client is not None:
        return int(jax.global_state.process_id), int(jax.global_state.num_processes)
    for rank, size in _LAUNCHERS:
        if not {"RANK", "WORLD_SIZE"} & os.environ.keys() and rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def rank_in(group: object) -> tuple[int, int]:
    """This process's rank in a torch `DeviceMesh` or `ProcessGroup`, and how many there are."""
    torch = sys.modules.get("torch.distributed")
    if torch is not None and group == torch.GroupMember.NON_GROUP_MEMBER:
        ranks = list[int]()
    elif torch is not None and isinstance(group, torch.ProcessGroup):
        ranks = torch.get_process_group_ranks(group)
    elif torch is not None and isinstance(group, torch.device_mesh.DeviceMesh):
        ranks = cast("Any", group).mesh.flatten().tolist()  # a part of a mesh is the one in which this process lies
    else:
        raise ConfigError(f"mesh={group!r}: a DeviceMesh or a ProcessGroup of torch, such as mesh['dp']")
    if (own := torch.get_rank()) not in ranks:
        raise ConfigError(f"mesh={group!r}: this process, rank {own}, is no member of it")
    return ranks.index(own), len(ranks)


def worker() -> tuple[int, int] | None:
    """Which worker of a torch `DataLoader` this process is, and of how many; None if it is none."""
    torch = sys.modules.get("torch.utils.data")
    info = torch.get_worker_info() if torch is not None else None
    return None if info is None else (int(info.id), int(info.num_workers))


_seeding = threading.RLock()


@contextlib.contextmanager
def seeded_globals(seed: int) -> Generator[None]:
    """A block, of one thread at a time, in which the generators of the process begin from a seed (0 to 2**32 - 1):
    `random`, `np.random`, and torch's for the CPU where it is loaded. After it they go on as before.
    """
    import random

    import numpy as np

    torch: Any = sys.modules.get("torch")
    with _seeding:
        kept = random.getstate(), np.random.get_state(), torch.get_rng_state() if torch else None
        try:
            random.seed(seed)
            np.random.seed(seed)
            if torch:
                torch.default_generator.manual_seed(seed)
            yield
        finally:
            random.setstate(kept[0])
            np.random.set_state(kept[1])
            if torch:
                torch.set_rng_state(kept[2])


def thread() -> int:
    """Which thread this is."""
    return threading.get_ident()


def processor_time() -> float:
    """Seconds that this thread has had of a processor."""
    return time.thread_time()


def clock() -> float:
    """Seconds since 1970, by the clock that the processes of a machine share."""
    return time.time()


def environment(name: str) -> str | None:
    """A variable of the environment, `None` where it is not set."""
    return os.environ.get(name)


def lock() -> contextlib.AbstractContextManager[Any]:
    """One thread at a time; the same one may enter again."""
    return threading.RLock()


def process() -> int:
    """Which process this is: another one after a fork."""
    return os.getpid()


class Stopped(Protocol):
    """What has items at hand up to `stop`."""

    stop: int


_kept: WeakSet[Stopped] = WeakSet()


def kept_from_children(out: Stopped) -> None:
    """Have nothing at hand in processes that are forked from here: its workers are not there."""
    _kept.add(out)


def _forked() -> None:
    for out in _kept:
        out.stop = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def installed_memory() -> int:
    """Bytes of memory that this process may count on: the machine's, or what its control group allows."""
    found = [1 << 33]
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with contextlib.suppress(OSError, ValueError), open("/sys/fs/cgroup/memory.max") as file:
        found.append(int(file.read()))
    return min(found)


def neighbours() -> int:
    """How many ranks run on this machine, as the launcher says."""
    names = "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"
    return max(1, next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), 1))


def resident(pid: int | None = None) -> int:
    """Bytes of memory a process holds (this one): now, or at most where the system gives only that; 0 where it says
    nothing, as of other processes outside of Linux.
    """
    try:
        with open(f"/proc/{pid or 'self'}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        if pid is not None:
            return 0
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
