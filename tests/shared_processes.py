"""Worker processes that many loaders use in turn, so that a test can open hundreds of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.engine.runtime import executors
from penstock.engine.runtime.executors.processes import Processes


class Lent:
    """Processes that are shared by loaders, and do not end with one of them."""

    def __init__(self, owner: Processes) -> None:
        self.submit, self.reach = owner.submit, owner.reach

    def close(self) -> None:
        pass


@contextmanager
def shared_processes(workers: int = 2) -> Iterator[None]:
    """Within, every loader with executor="processes" has these."""
    owner, hired = Processes(workers), executors.hired

    def lent(executor: Any, workers: int, *more: Any) -> Any:
        return (
            Lent(owner) if executor == "processes" and workers else hired(executor, workers, *more)
        )

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("penstock.loader.hired", lent)
            yield
    finally:
        owner.close()
