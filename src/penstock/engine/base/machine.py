"""What the process and its machine are: which rank, worker and thread, what time it is, how many
cores and how much memory there are. Asked of the system where it is needed; nothing is put in its
place.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import os
import selectors
import sys
import threading
import time
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast
from weakref import WeakSet

from ...errors import ConfigError

_LARGE = 16 << 20
_LATE = 10.0  # seconds after which it is told for whom we wait
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI
    (
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
    ),  # srun; of a batch script, which is one process, only the first is there
)


@cache
def keep_memory() -> None:
    """Have the C library keep some tens of MiB that were freed, instead of giving them back and
    asking for them again
    with every few large objects: the GNU one learns that from the largest block that it saw freed.
    """
    bytes(_LARGE)  # never written to, so it takes no memory


def place(whole: bool = False) -> tuple[int, int]:
    """This process's rank and the world size: from torch.distributed or jax.distributed where one
    is running, else from the launcher's environment (torchrun, MPI, srun), else alone. It is
    refused where half of a `whole` one is named.
    """
    torch = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_available() and torch.is_initialized():
        return int(torch.get_rank()), int(torch.get_world_size())
    jax = sys.modules.get("jax._src.distributed")  # jax.process_index() would start the devices
    if jax is not None and jax.global_state.client is not None:
        return int(jax.global_state.process_id), int(jax.global_state.num_processes)
    for rank, size in _LAUNCHERS:
        if (
            not {"RANK", "WORLD_SIZE"} & os.environ.keys()
            and rank in os.environ
            and size in os.environ
        ):
            return int(os.environ[rank]), int(os.environ[size])
    rank, size = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if (
        not rank.isdecimal()
        or not size.isdecimal()
        or (whole and "RANK" not in os.environ and int(size) > 1)
    ):
        raise ConfigError(
            f"RANK={os.environ.get('RANK')} and WORLD_SIZE={os.environ.get('WORLD_SIZE')} in the "
            "environment: set both "
            "to numbers or neither, or give rank= and world_size="
        )
    return int(rank), int(size)


def rank_in(group: object) -> tuple[int, int]:
    """This process's rank in a torch `DeviceMesh` or `ProcessGroup`, and how many there are."""
    torch = sys.modules.get("torch.distributed")
    if torch is not None and isinstance(group, int) and group == torch.GroupMember.NON_GROUP_MEMBER:
        ranks = list[int]()
    elif torch is not None and isinstance(group, torch.ProcessGroup):
        ranks = torch.get_process_group_ranks(group)
    elif torch is not None and isinstance(group, torch.device_mesh.DeviceMesh):
        ranks = (
            cast("Any", group).mesh.flatten().tolist()
        )  # a part of a mesh is the one in which this process lies
    else:
        raise ConfigError(
            f"mesh={group!r}: a DeviceMesh or a ProcessGroup of torch, such as mesh['dp']"
        )
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
    """A block, of one thread at a time, in which the generators of the process begin from a seed (0
    to 2**32 - 1): `random`, `np.random`, and torch's for the CPU where it is loaded. After it they
    go on as before.
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


def seeded_like(thing: object) -> Any:
    """A new generator of random numbers, of the same kind as `thing`, that begins from seed 0: of
    `random.Random`, NumPy's and torch's (for the CPU). None for anything else.
    """
    import random

    import numpy as np

    torch: Any = sys.modules.get("torch")
    if torch and isinstance(thing, torch.Generator) and cast(Any, thing).device.type == "cpu":
        return torch.Generator().manual_seed(0)
    if not isinstance(thing, random.Random | np.random.Generator | np.random.RandomState):
        return None
    try:
        made: Any = copy.deepcopy(thing)
        if isinstance(made, np.random.Generator):
            made.bit_generator.state = type(made.bit_generator)(0).state
        else:
            made.seed(0)
    except Exception:  # a generator of the user's own, which takes no seed
        return None
    return made


def thread() -> int:
    """Which thread this is."""
    return threading.get_ident()


def place_in_code(thread: int) -> str:
    """What a thread is at, as function, file and line; empty where it is gone."""
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    if frame is None:
        return ""
    return f"{frame.f_code.co_name} ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})"


def processor_time() -> float:
    """Seconds that this thread has had of a processor."""
    return time.thread_time()


def clock() -> float:
    """Seconds since 1970, by the clock that the processes of a machine share."""
    return time.time()


def environment(name: str) -> str | None:
    """A variable of the environment, `None` where it is not set."""
    return os.environ.get(name)


def addresses(host: str) -> list[str]:
    """What a name of a host stands for, as this machine is told."""
    import socket

    return [str(found[4][0]) for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]


def is_unresolved(error: BaseException | None) -> bool:
    """Return whether an error, or one that led to it, says that a host name does not resolve."""
    import socket

    for _ in range(20):  # chains of errors may have cycles
        if error is None or isinstance(error, socket.gaierror):
            break
        error = error.__cause__ or error.__context__
    return isinstance(error, socket.gaierror)


def lock() -> contextlib.AbstractContextManager[Any]:
    """One thread at a time; the same one may enter again."""
    return threading.RLock()


def hold(handle: int, path: Path) -> None:
    """Lock a file that is open, for this process alone. After a while, log which process holds the
    lock."""
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        late = threading.Timer(_LATE, _tell_who, (path,))
        late.daemon = True
        late.start()
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        finally:
            late.cancel()


def _tell_who(path: Path) -> None:
    """Log which process holds a lock, as far as the system knows; for another thread of this
    process, nothing."""
    who = "another process"
    with contextlib.suppress(OSError, StopIteration):
        locks, number = Path("/proc/locks").read_text(), path.stat().st_ino
        pid = next(
            line.split()[4]
            for line in locks.splitlines()
            if "->" not in line and f":{number} " in line
        )
        if int(pid) == os.getpid():
            return
        who = f"process {pid} ({Path('/proc', pid, 'comm').read_text().strip()})"
    logging.getLogger("penstock").info(
        "waiting for %s, which holds the lock of %s; processes that share files prepare them one "
        "after the other",
        who,
        path,
    )


def readable(connection: Any, seconds: float) -> bool:
    """Whether something came in on a socket within so many seconds, or its other end is gone."""
    if getattr(connection, "pending", int)():  # decrypted already
        return True
    with getattr(selectors, "PollSelector", selectors.SelectSelector)() as found:
        found.register(connection, selectors.EVENT_READ)
        return bool(found.select(seconds))


def one_thread_at_a_time() -> bool:
    """Whether the interpreter runs no two threads at once, and goes to another only where something
    is called."""
    return getattr(sys, "_is_gil_enabled", lambda: True)()


def only_as_root(folder: Path) -> bool:
    """Whether this is the folder of another one, to whom nothing is refused to write there but that
    this is root."""
    try:
        return hasattr(os, "geteuid") and os.geteuid() == 0 != os.stat(folder).st_uid
    except OSError:
        return False


def process() -> int:
    """Which process this is: another one after a fork."""
    return os.getpid()


def is_running(process: int) -> bool:
    """Return whether this machine runs a process of this number."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # it is another user's
        return True
    return True


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


def parent() -> int:
    """Which process started this one."""
    return os.getppid()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def installed_memory() -> int:
    """Bytes of memory that this process may count on: the machine's, or what its control group
    allows."""
    found = [1 << 33]
    with contextlib.suppress(OSError, ValueError, AttributeError):
        found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with contextlib.suppress(OSError, ValueError), open("/sys/fs/cgroup/memory.max") as file:
        found.append(int(file.read()))
    return min(found)


def neighbours() -> int:
    """How many ranks run on this machine, as the launcher says."""
    names = (
        "LOCAL_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "MPI_LOCALNRANKS",
        "SLURM_NTASKS_PER_NODE",
    )
    return max(
        1, next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), 1)
    )


def resident(pid: int | None = None) -> int:
    """Bytes of memory a process holds (this one): now, or at most where the system gives only that;
    0 where it says nothing, as of other processes outside of Linux.
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
