"""Executors of a run: inline, threads, processes or Ray, each a
`penstock.engine.streams.job.Executor`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from ....errors import ConfigError
from ...streams.job import Executor
from .threads import Threads

ExecutorName: TypeAlias = Literal["inline", "threads", "processes", "ray"]

EXECUTORS: tuple[ExecutorName, ...] = get_args(ExecutorName)


def hired(
    executor: ExecutorName, workers: int, timeout: float | None = None, room: int | None = None
) -> Executor | None:
    """So many workers; None where there are none. `room` is how many bytes may be made ahead."""
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
    if executor == "ray":
        from .cluster import Cluster

        return Cluster(workers, timeout)
    from .processes import Processes

    return Processes(workers, timeout, room)
