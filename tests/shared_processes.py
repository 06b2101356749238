"""Worker processes that many loaders use in turn, so that a test can open hundreds of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.engine.runtime import executors
from penstock.engine.runtime.executors.pool import WorkerPool
from penstock.engine.runtime.executors.processes import ProcessTransport


class BorrowedPool:
    """A pool that is shared by loaders, and does not end with one of them."""

    def __init__(self, owner: WorkerPool) -> None:
        self.submit, self.reach = owner.submit, owner.reach

    def close(self) -> None:
        pass


@contextmanager
def shared_processes(workers: int = 2) -> Iterator[None]:
    """Within, every loader with executor="processes" has these."""
    owner = WorkerPool(ProcessTransport(idle=1 << 60), workers)
    make_executor = executors.make_executor

    def borrow(executor: Any, workers: int, *options: Any) -> Any:
        if executor == "processes" and workers:
            return BorrowedPool(owner)
        return make_executor(executor, workers, *options)

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("penstock.loader.make_executor", borrow)
            yield
    finally:
        owner.close()
