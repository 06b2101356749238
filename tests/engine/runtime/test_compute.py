"""Work on a whole dataset: the results of all jobs in order, whoever computes them, and no worker left after it."""

from __future__ import annotations

import os
import threading
from multiprocessing.resource_tracker import ensure_running
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.engine.runtime.compute import compute
from penstock.stores.storage import override_world
from penstock.testing.simulate import SimulatedScheduler


@pytest.fixture
def before() -> list[psutil.Process]:
    """Return the children of this process: those of earlier tests may go on, such as daemons of Ray."""
    ensure_running()  # a process of Python itself, which stays
    return psutil.Process().children()


def left(before: list[psutil.Process]) -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child not in before]


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_results_are_in_order(executor: Any, before: list[psutil.Process]) -> None:
    items = [f"item {i}" for i in range(37)]
    assert compute("shout", "items", str.upper, items, executor, 2) == list(map(str.upper, items))
    assert compute("shout", "items", str.upper, [], executor) == []
    with pytest.raises(ps.ConfigError, match="workers=0"):
        compute("shout", "items", str.upper, items, executor, 0)
    assert not left(before) and not any("penstock" in one.name for one in threading.enumerate())


@examples(30)
@given(n=st.integers(0, 40), workers=st.integers(1, 5), seed=st.integers(0, 1 << 30))
def test_in_whatever_order_jobs_are_computed(n: int, workers: int, seed: int) -> None:
    with override_world(sched=SimulatedScheduler(seed)):
        assert compute("add", "numbers", lambda x: x + 1, range(n), "threads", workers) == list(
            range(1, n + 1)
        )


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_an_error_ends_it(executor: Any, before: list[psutil.Process]) -> None:
    def some(x: int) -> int:
        if x == 3:
            raise KeyError("three")
        return x

    with pytest.raises(KeyError, match="three"):
        compute("count", "numbers", some, range(100), executor, 2)
    assert not left(before)


def test_storage_that_fails_is_asked_again(tmp_path: Path) -> None:
    def late(path: Path) -> int:
        with override_world(sched=SimulatedScheduler(0)):  # the pause takes no time
            if not path.exists():
                path.touch()
                raise OSError(5, "the disk is away")
            return path.stat().st_size

    with override_world(sched=SimulatedScheduler(0)):
        assert compute("look", "files", late, [tmp_path / "a", tmp_path / "b"]) == [0, 0]


def test_a_job_that_kills_its_workers_is_named(before: list[psutil.Process]) -> None:
    def deadly(name: str) -> str:
        if name == "c":
            os._exit(1)
        return name

    with pytest.raises(ps.DataError, match="3 times in a row") as caught:
        compute("open", "files", deadly, "abcdef", "processes", 2)
    assert "penstock: the job was 'c'" in caught.value.__notes__
    assert not left(before)
