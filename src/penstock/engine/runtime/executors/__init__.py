"""Executors of a run, each a `penstock.engine.streams.job.Executor`.

`Threads` computes in this process. `WorkerPool` computes elsewhere, over one of two transports:
`processes` starts worker processes, whose main loop is in `worker`, and `ray_actors` starts actors.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from ....errors import ConfigError
from ...streams.job import Executor
from .threads import Threads

ExecutorName: TypeAlias = Literal["inline", "threads", "processes", "ray"]

EXECUTORS: tuple[ExecutorName, ...] = get_args(ExecutorName)

_UNBOUNDED = 1 << 62  # bytes


def make_executor(
    executor: ExecutorName, workers: int, timeout: float | None = None, memory: int | None = None
) -> Executor | None:
    """Return an executor with some workers; None without workers.

    `memory` bounds the bytes in flight. Half of it, worker processes may keep as unused memory.
    """
    if timeout is not None and (timeout <= 0 or not workers):
        raise ConfigError(
            f"timeout={timeout}: give more than 0 seconds, and workers=1 at least with the executor "
            "'threads', 'processes' or 'ray'; a thread that takes longer is reported, another "
            "worker is replaced"
        )
    if not workers:
        return None
    if executor == "threads":
        return Threads(workers, timeout)
    from .pool import WorkerPool

    if executor == "ray":
        from .ray_actors import RayTransport

        return WorkerPool(RayTransport(), workers, timeout)
    from .processes import ProcessTransport

    transport = ProcessTransport(idle=(memory or _UNBOUNDED) // 2 // workers)
    return WorkerPool(transport, workers, timeout)
