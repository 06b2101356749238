"""Statistics of a run in progress.

Slow steps are planted, so much slower than the others that no machine hides them.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.engine.base.seams import LocalSched
from penstock.engine.runtime.run_monitor import RunMonitor
from penstock.stores.storage import override_world

EXECUTORS = [("inline", 0), ("threads", 2), ("processes", 2)]
EACH = [*EXECUTORS[:2], pytest.param("processes", 2, marks=pytest.mark.slow)]


def plain(x: int) -> int:
    return x + 1


def computes(x: int) -> int:
    return sum(range(200_000)) + x


def sleeps(x: int) -> int:
    time.sleep(0.005)
    return x


def three(slow: Any, top: bool = False) -> ps.Dataset:
    """Three sources; in one of them, or over all, there is a slow step."""
    parts = {name: ps.from_sequence(range(60)).map(plain) for name in ("web", "code", "books")}
    if not top:
        parts["code"] = parts["code"].map(slow)
    ds = ps.mix(parts, stop="all_exhausted")
    return (ds.map(slow) if top else ds).batch(6)


@pytest.mark.parametrize(("executor", "workers"), EACH)
@pytest.mark.parametrize("slow", [computes, sleeps])
def test_a_slow_step_of_one_source_is_found(executor: Any, workers: int, slow: Any) -> None:
    with ps.Loader(three(slow), workers=workers, executor=executor, profile=True) as loader:
        list(loader)
        found, stats = loader.verdict(), loader.stats()
    line = slow.__code__.co_firstlineno
    assert (found.step, found.source) == (
        f"map({slow.__name__}) at test_run_monitor.py:{line}",
        "code",
    )
    assert found.bound and f"{found.step} of 'code'" in str(found)
    first = stats["time"][0]
    assert first["items"] == 60 and first["seconds"] >= 60 * 0.005 * (slow is sleeps)
    assert slow is computes or first["processor"] < 0.5 * first["seconds"]
    assert stats["samples"] == {"web": 60, "code": 60, "books": 60} and stats["items"] == 30


@pytest.mark.parametrize(("executor", "workers"), EACH)
def test_a_slow_step_over_all_sources_is_told_by_source(executor: Any, workers: int) -> None:
    with ps.Loader(
        three(sleeps, top=True), workers=workers, executor=executor, profile=True
    ) as loader:
        list(loader)
        found, time = loader.verdict(), loader.stats()["time"]
    assert found.step and found.step.startswith("map(sleeps)") and found.source is None
    mine = {row["source"]: row for row in time if row["step"] == found.step}
    assert {name: row["items"] for name, row in mine.items()} == {
        "web": 60,
        "code": 60,
        "books": 60,
    }
    assert all(row["seconds"] >= 0.3 for row in mine.values())


class Slow:
    """Numbers that take a while to read."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, i: int) -> int:
        time.sleep(0.005)
        return i


@pytest.mark.parametrize(("executor", "workers"), EACH)
def test_a_slow_source_is_found(executor: Any, workers: int) -> None:
    parts = {"fast": ps.from_sequence(range(60)), "slow": ps.from_sequence(Slow())}
    with ps.Loader(
        ps.mix(parts, stop="all_exhausted").map(plain).batch(5),
        workers=workers,
        executor=executor,
        profile=True,
    ) as loader:
        list(loader)
        found = loader.verdict()
    assert (found.step, found.source) == ("read", "slow") and "reading" in str(found)


class Told(LocalSched):
    """A clock that goes a little on when it is asked."""

    time = 1.0

    def now(self) -> float:
        self.time += 1e-6
        return self.time


def test_a_run_whose_steps_take_long_is_not_bound_by_its_data() -> None:
    sched = Told()
    with (
        override_world(sched=sched),
        ps.Loader(ps.from_sequence(range(400)).map(plain).batch(4), profile=True) as loader,
    ):
        for _ in loader:
            sched.time += 1
        found = loader.verdict()
    assert not found.bound and found.waits < 0.1 and "not bound" in str(found)


def test_waits_are_counted() -> None:
    watch = RunMonitor("inline", 0, None, False)
    assert "Nothing can be said" in str(watch.verdict())
    for began, ended in ((0.5, 1.5), (2.0, 2.0001), (3.0, 4.0), (5.0, 5.5)):
        watch.record_wait(began, ended)
    assert watch.first == 1.0 and watch.waited == pytest.approx(1.5001)
    assert watch.stalls == 2 and watch.longest == 1.0
    assert watch.verdict().waits == pytest.approx(1.5001 / 4.0)


def test_that_threads_take_turns_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engine.runtime.run_monitor.count_cores", lambda: 4)
    with (
        ps.Loader(ps.from_sequence(range(9)), workers=3) as loader,
        caplog.at_level(logging.WARNING),
    ):
        watch, threads = loader._watch, loader._executor  # pyright: ignore[reportPrivateUsage]
        assert threads is not None
        vars(threads)["cpu_seconds"] = 10.0
        watch.record_wait(0.0, 1.0)
        watch.record_wait(1.0, 2.0)
        assert not caplog.records
        for end in (10.0, 10.5, 11.0):
            watch.record_wait(end - 0.5 if caplog.records else 2.0, end)
    assert len(caplog.records) == 1
    assert "use 1.1 of 4 cores" in caplog.text and "up to 3 times as fast" in caplog.text


def test_functions_on_threads_are_timed() -> None:
    with ps.Loader(ps.from_sequence(range(200)).map(computes), workers=2) as loader:
        list(loader)
        executor: Any = loader._executor  # pyright: ignore[reportPrivateUsage]
        assert executor.cpu_seconds > 0.01


def test_bytes_and_what_is_under_way() -> None:
    ds = ps.from_sequence(range(400)).map(lambda x: np.full(1_000, x)).batch(4)
    for executor, workers in EXECUTORS:
        with ps.Loader(ds, workers=workers, executor=executor, prefetch=3) as loader:  # pyright: ignore[reportArgumentType]
            steps = iter(loader)
            next(steps)
            stats = loader.stats()
            assert 0 <= stats["under_way"] <= 3 * (workers > 0) and stats["under_way_bytes"] >= 0
            list(steps)
            stats = loader.stats()
        assert stats["bytes"] == pytest.approx(400 * 8_000, rel=0.02)
        assert stats["under_way"] == 0 and stats["under_way_bytes"] == 0
        assert stats["elapsed_s"] > 0 and stats["waited_s"] >= stats["first_s"] > 0


def test_memory_is_told_by_process() -> None:
    with ps.Loader(
        ps.from_sequence(range(40)).map(plain), workers=2, executor="processes"
    ) as loader:
        next(iter(loader))
        found = loader.stats()["resident_bytes"]
    assert len(found) == 3 and found.pop("run") > 1 << 20
    assert all(name.isdigit() and size > 1 << 20 for name, size in found.items())
    assert set(loader.stats()["resident_bytes"]) == {"run"}  # closed


def test_stats_may_be_asked_at_any_time() -> None:
    loader = ps.Loader(ps.from_sequence(range(0), name="none"), profile=True)
    assert loader.stats()["elapsed_s"] == 0 and loader.stats()["time"] == []
    assert list(loader) == [] and loader.stats()["items"] == 0
    loader.close()
    assert loader.stats()["items"] == 0 and not loader.verdict().bound
