"""Every test has a home folder of its own, and a store that waits for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.engine.base import seams
from penstock.stores import CompositeStore, storage


class Clock(seams.LocalSched):
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def now(self) -> float:
        return sum(self.slept)

    def sleep(self, seconds: float, /) -> None:
        self.slept.append(seconds)


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(folder))
    for name in ("PENSTOCK_CACHE", "PENSTOCK_CACHE_LIMIT", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture(autouse=True)
def clock() -> Iterator[Clock]:
    found = Clock()
    store = CompositeStore(storage.LocalStore())
    with storage.override_world(store=store, sched=found):
        yield found
    store.close()
