"""Threads, and what is said of functions that hold the interpreter."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import penstock as ps
from penstock.runtime.executors.threads import Threads, held


@pytest.mark.parametrize(
    ("workers", "cores", "spent", "waited", "want"),
    [
        (2, 2, 10.0, 9.0, True),
        (4, 8, 9.0, 6.0, True),
        (2, 2, 19.0, 9.0, False),  # they run side by side
        (2, 2, 1.0, 9.0, False),  # they wait for storage
        (2, 2, 10.0, 2.0, False),  # nobody waits for them
        (1, 2, 10.0, 9.0, False),  # alone
        (2, 1, 10.0, 9.0, False),  # there is one core
    ],
)
def test_when_threads_take_turns(workers: int, cores: int, spent: float, waited: float, want: bool) -> None:
    assert held(workers, cores, spent, waited, 10.0) is want


def test_it_is_said_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.runtime.executors.threads.cores", lambda: 4)
    threads = Threads(3)
    threads.spent = 10.0
    with caplog.at_level(logging.WARNING):
        threads.waited(1.0, 10.0)
        assert not caplog.records
        for _ in range(3):
            threads.waited(9.0, 10.0)
    threads.close()
    assert len(caplog.records) == 1
    assert "use 1.0 of 4 cores" in caplog.text and "up to 3 times as fast" in caplog.text


def test_functions_are_timed() -> None:
    def busy(x: int) -> Any:
        return sum(range(20_000)) + x

    with ps.Loader(ps.from_sequence(range(200)).map(busy), workers=2) as loader:
        list(loader)
        executor: Any = loader._executor  # pyright: ignore[reportPrivateUsage]
        assert executor.spent > 0.01
