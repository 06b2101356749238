"""The pool over a transport without processes: lost workers, blame, timeouts and forgotten jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import pytest

from penstock.engine.base.rows import ProvenanceRows
from penstock.engine.runtime.executors import pool as pool_module
from penstock.engine.runtime.executors.pool import (
    Answer,
    Event,
    KnownJob,
    Lost,
    PoolTask,
    Ready,
    Worker,
    WorkerPool,
)
from penstock.engine.streams.function_call import SampleFailure
from penstock.engine.streams.job import MAX_WORKER_DEATHS, Job, WorkerLost
from penstock.types import DataLocation


class FakeWorker(Worker):
    """A worker that computes at once, dies, or hangs, as a function says."""

    def __init__(self, transport: FakeTransport) -> None:
        super().__init__()
        self.transport, self.dead = transport, False
        self.jobs = set[int]()

    def describe(self) -> str:
        return "worker 7"

    def learn(self, job: KnownJob) -> None:
        self.jobs.add(job.number)

    def forget(self, job: KnownJob) -> None:
        self.jobs.remove(job.number)

    def compute(self, task: PoolTask) -> None:
        assert task.job.number in self.jobs
        if self.dead:
            return
        behaviour = self.transport.behave(task.rows.index.tolist())
        if behaviour == "die":
            self.dead = True
            self.transport.events.put(Lost(self))
        elif behaviour == "answer":
            done = task.job.job(task.values, task.rows)
            self.transport.events.put(Answer(self, task.number, done))

    def cancel(self, task: PoolTask) -> None:
        pass

    def end(self) -> str:
        self.dead = True
        return "died (signal 9)"


class FakeTransport:
    worker, worker_plural = "worker", "workers"
    reach: DataLocation = "process"

    def __init__(self, behave: Callable[[list[int]], str]) -> None:
        self.behave, self.events = behave, SimpleQueue[Event | None]()
        self.started = list[FakeWorker]()

    def serialize_job(self, job: Job) -> Any:
        return None

    def serialize_values(self, values: list[Any] | None) -> Any:
        return values

    def start(self) -> FakeWorker:
        worker = FakeWorker(self)
        self.started.append(worker)
        self.events.put(Ready(worker))
        return worker

    def wait(self, seconds: float) -> list[Event]:
        try:
            event = self.events.get(block=seconds > 0, timeout=seconds)
        except Empty:
            return []
        return [event] if event else []

    def wake(self) -> None:
        self.events.put(None)

    def close(self) -> None:
        pass


class Double:
    """Reads rows: twice the index of each."""

    def values(self, rows: ProvenanceRows, /) -> list[int]:
        return [2 * int(index) for index in rows.index]


@pytest.fixture
def open_pool() -> Iterator[Callable[..., WorkerPool]]:
    pools = list[WorkerPool]()

    def make(behave: Callable[[list[int]], str], count: int = 2, **options: Any) -> WorkerPool:
        pools.append(WorkerPool(FakeTransport(behave), count, **options))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def rows(*indices: int) -> ProvenanceRows:
    zero = np.zeros(len(indices), np.int64)
    return ProvenanceRows(zero, zero, np.asarray(indices), zero)


def make_job() -> Job:
    return Job(Double(), [], names=["web"])


def test_tasks_of_a_lost_worker_are_computed_by_another(
    open_pool: Callable[..., WorkerPool], caplog: pytest.LogCaptureFixture
) -> None:
    dice = iter(["die", *["answer"] * 99])
    pool, job = open_pool(lambda _: next(dice), count=1), make_job()
    tasks = [pool.submit(job, None, rows(i)) for i in range(20)]
    assert [task.result().values for task in tasks] == [[2 * i] for i in range(20)]
    assert pool.deaths == 1 and len(pool.workers) == 1
    assert "worker 7 died (signal 9) over web[0] (pass 0); a new worker replaces it" in caplog.text


def test_a_unit_of_several_items_fails_at_once_and_the_others_do_not(
    open_pool: Callable[..., WorkerPool],
) -> None:
    pool, job = open_pool(lambda indices: "die" if 5 in indices else "answer"), make_job()
    lost, others = pool.submit(job, None, rows(4, 5)), pool.submit(job, None, rows(6, 7))
    with pytest.raises(WorkerLost, match="a worker died .* over 2 samples from web.4. .pass 0. on"):
        lost.result()
    assert others.result().values == [12, 14]
    assert pool.deaths == 1


@pytest.mark.parametrize("together", [True, False])
def test_a_sample_over_which_three_workers_are_lost_fails_every_unit_that_holds_it(
    open_pool: Callable[..., WorkerPool], together: bool
) -> None:
    pool, job = open_pool(lambda indices: "die" if 5 in indices else "answer"), make_job()
    if together:
        with pytest.raises(WorkerLost):
            pool.submit(job, None, rows(4, 5)).result()
    for unit in (rows(5), rows(5), rows(4, 5, 6)):
        with pytest.raises(SampleFailure) as caught:
            pool.submit(job, None, unit).result()
        assert (caught.value.leaf, caught.value.epoch, caught.value.index) == (0, 0, 5)
        assert "lost 3 times in a row over this sample: it died" in str(caught.value.cause)
    assert pool.deaths == MAX_WORKER_DEATHS
    assert pool.submit(job, None, rows(4)).result().values == [8]


def test_a_worker_that_hangs_is_replaced(
    open_pool: Callable[..., WorkerPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "CHECK_SECONDS", 0.01)
    hung = list[int]()

    def behave(indices: list[int]) -> str:
        if indices == [3] and not hung:
            hung.append(3)
            return "hang"
        return "answer"

    pool, job = open_pool(behave, timeout=0.05), make_job()
    tasks = [pool.submit(job, None, rows(i)) for i in range(6)]
    assert [task.result().values for task in tasks] == [[2 * i] for i in range(6)]
    assert pool.deaths == 1


def test_workers_forget_the_jobs_that_were_not_used_for_long(
    open_pool: Callable[..., WorkerPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "KNOWN_JOBS", 3)
    pool = open_pool(lambda _: "answer", count=1)
    jobs = [make_job() for _ in range(10)]
    for job in (*jobs, jobs[0]):
        assert pool.submit(job, None, rows(1)).result().values == [2]
    (worker,) = pool.workers
    assert isinstance(worker, FakeWorker) and len(worker.jobs) == len(worker.known) == 3


def test_tasks_in_flight_fail_when_the_pool_is_closed(open_pool: Callable[..., WorkerPool]) -> None:
    pool = open_pool(lambda _: "hang")
    task = pool.submit(make_job(), None, rows(1))
    time.sleep(0.05)
    pool.close()
    with pytest.raises(RuntimeError, match="the workers are closed"):
        task.result()
