"""Facts of the process and its machine: rank, worker, thread, time, cores, memory.

These functions ask the system directly; tests do not replace them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from typing import Any, Protocol, cast
from weakref import WeakSet

from ...errors import ConfigError

_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun; a batch script, one process, has the first
)


def detect_rank(complete: bool = False) -> tuple[int, int]:
    """Return the rank of this process and the world size.

    They come from torch.distributed or jax.distributed if one is initialised, else from the
    environment of the launcher (torchrun, MPI, srun), else they are 0 and 1. With `complete`,
    `WORLD_SIZE` without `RANK` is a `ConfigError`.
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
        or (complete and "RANK" not in os.environ and int(size) > 1)
    ):
        raise ConfigError(
            f"RANK={os.environ.get('RANK')} and WORLD_SIZE={os.environ.get('WORLD_SIZE')} in the "
            "environment: set both to numbers or neither, or give rank= and world_size="
        )
    return int(rank), int(size)


def find_rank_in_group(group: object) -> tuple[int, int]:
    """Return the rank of this process in a torch `DeviceMesh` or `ProcessGroup`, and its size."""
    torch = sys.modules.get("torch.distributed")
    if torch is not None and isinstance(group, int) and group == torch.GroupMember.NON_GROUP_MEMBER:
        ranks = list[int]()
    elif torch is not None and isinstance(group, torch.ProcessGroup):
        ranks = torch.get_process_group_ranks(group)
    elif torch is not None and isinstance(group, torch.device_mesh.DeviceMesh):
        # A submesh is the one that contains this process.
        ranks = cast("Any", group).mesh.flatten().tolist()
    else:
        raise ConfigError(
            f"mesh={group!r}: give a DeviceMesh or a ProcessGroup of torch, such as mesh['dp']"
        )
    if (rank := torch.get_rank()) not in ranks:
        raise ConfigError(f"mesh={group!r}: this process, rank {rank}, is no member of it")
    return ranks.index(rank), len(ranks)


def detect_dataloader_worker() -> tuple[int, int] | None:
    """Return id and number of the torch `DataLoader` workers, or None outside a worker."""
    torch = sys.modules.get("torch.utils.data")
    info = torch.get_worker_info() if torch is not None else None
    return None if info is None else (int(info.id), int(info.num_workers))


def get_thread_id() -> int:
    """Return the id of this thread."""
    return threading.get_ident()


def locate_thread(thread: int) -> str:
    """Return the function, file and line that a thread runs; empty if the thread has ended."""
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    if frame is None:
        return ""
    return f"{frame.f_code.co_name} ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})"


def read_cpu_seconds() -> float:
    """Return the CPU seconds of this thread."""
    return time.thread_time()


def read_environment_variable(name: str) -> str | None:
    """Return a variable of the environment, or None if it is not set."""
    return os.environ.get(name)


def make_lock() -> contextlib.AbstractContextManager[Any]:
    """Return a reentrant lock."""
    return threading.RLock()


def is_gil_enabled() -> bool:
    """Return whether the GIL is enabled, so that threads switch only at calls."""
    return getattr(sys, "_is_gil_enabled", lambda: True)()


def get_pid() -> int:
    """Return the id of this process, which changes at a fork."""
    return os.getpid()


class ItemBuffer(Protocol):
    """Buffer with items up to the offset `stop`."""

    stop: int


_fork_cleared_buffers: WeakSet[ItemBuffer] = WeakSet()


def clear_in_children(out: ItemBuffer) -> None:
    """Empty this buffer in forked children, which do not have its workers."""
    _fork_cleared_buffers.add(out)


def _clear_buffers() -> None:
    for out in _fork_cleared_buffers:
        out.stop = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_clear_buffers)


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def detect_installed_memory() -> int:
    """Return the memory of the machine, or the limit of the control group, in bytes."""
    limits = [1 << 33]
    with contextlib.suppress(OSError, ValueError, AttributeError):
        limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with contextlib.suppress(OSError, ValueError), open("/sys/fs/cgroup/memory.max") as file:
        limits.append(int(file.read()))
    return min(limits)


def count_local_ranks() -> int:
    """Return the number of ranks on this machine, as reported by the launcher."""
    names = (
        "LOCAL_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "MPI_LOCALNRANKS",
        "SLURM_NTASKS_PER_NODE",
    )
    return max(
        1, next((int(os.environ[name]) for name in names if os.environ.get(name, "").isdigit()), 1)
    )


def measure_resident_memory(pid: int | None = None) -> int:
    """Return the resident memory of a process in bytes; by default of this process.

    Without `/proc` it is the peak memory of this process, and 0 for other processes.
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
