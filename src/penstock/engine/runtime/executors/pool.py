"""Worker pool: tasks are computed outside this process, and lost workers are replaced.

The way of a task, from submission to delivery:

1. `WorkerPool.submit` serializes the values of a unit, and each job once. The task goes to the
   dispatcher, a thread that alone starts workers, talks to them and ends them: signals interrupt
   the main thread only, so they never interrupt a message.
2. The dispatcher sends the task to the worker with the fewest tasks (`_give`), and before it the
   job, if that worker does not know it.
3. The worker computes its tasks in order. Its result or error completes the task (`_handle`).
4. `PoolTask.result` returns on the thread that delivers.

If a worker dies, is stopped or exceeds the timeout, its tasks go to a new worker (`_replace`);
tasks are pure, so nothing is lost. Only the task that it was computing may be to blame (`_blame`).
With several items it fails with `WorkerLost`: the execution loop then submits them one by one. With
a single item it is repeated until `DEATHS` workers were lost over that sample, which then fails
every task that holds it.

A `Transport` starts workers and carries messages: `ProcessTransport` or `RayTransport`.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from logging import getLogger
from typing import Any, NamedTuple, Protocol, TypeAlias

from ....errors import ConfigError, DataError, convert_storage_errors, make_storage_error
from ....types import DataLocation
from ...base.rows import ProvenanceRows
from ...base.thread_pool import Future, ThreadTask
from ...streams.function_call import SampleFailure
from ...streams.job import MAX_WORKER_DEATHS, Job, UnitResult, WorkerLost

CHECK_SECONDS = 1.0
"""Seconds of silence after which the dispatcher looks after the workers."""
KNOWN_JOBS = 1024
"""Jobs that workers remember; the least recently used one is dropped."""
FAILED_STARTS = 5
"""Times in a row that all workers may be lost before they are ready."""

Sample: TypeAlias = tuple[int, int, int]
"""Leaf, epoch and index."""


class Ready(NamedTuple):
    """A worker has started."""

    worker: Worker


class Answer(NamedTuple):
    """A worker has computed a task, or has failed to."""

    worker: Worker
    task: int
    done: UnitResult | None = None
    error: BaseException | None = None


class Lost(NamedTuple):
    """A worker has died."""

    worker: Worker


Event: TypeAlias = Ready | Answer | Lost


class KnownJob(NamedTuple):
    """A job that was serialized for workers. It keeps the parts of the job, so their ids stay."""

    number: int
    job: Job
    serialized: Any


class PoolTask(Future):
    """A unit that workers compute."""

    def __init__(
        self, dispatcher: Dispatcher, number: int, job: KnownJob, values: Any, rows: ProvenanceRows
    ) -> None:
        super().__init__()
        self._dispatcher = dispatcher
        self.number, self.job, self.values, self.rows = number, job, values, rows

    def samples(self) -> list[Sample]:
        """Return the first sample of each item."""
        rows, firsts = self.rows, self.rows.firsts()[:-1]
        columns = rows.leaf[firsts], rows.epoch[firsts], rows.index[firsts]
        return [*zip(*(column.tolist() for column in columns), strict=True)]

    def describe(self) -> str:
        """Name the samples."""
        count, samples = len(self.rows.leaf), self.samples()
        first = self.job.job.name_sample(*samples[0]) if samples else "nothing"
        return f"{count} samples from {first} on" if count > 1 else first

    def result(self) -> UnitResult:
        while not self.wait(CHECK_SECONDS):
            self._dispatcher.require_open()
        return super().result()

    def cancel(self) -> None:
        self._dispatcher.cancel(self)


class Worker(ABC):
    """A worker as the dispatcher sees it.

    Attributes:
        ready: True after it has started.
        since: the time of its last message, or of its first task.
        tasks: what it was given and has not answered, in order.
        known: the numbers of the jobs that it knows.
    """

    def __init__(self) -> None:
        self.ready, self.since = False, time.monotonic()
        self.tasks, self.known = OrderedDict[int, PoolTask](), set[int]()

    @abstractmethod
    def describe(self) -> str:
        """Name the worker."""

    def learn(self, job: KnownJob) -> None:  # noqa: B027
        """Send a job, unless its tasks carry it."""

    @abstractmethod
    def forget(self, job: KnownJob) -> None:
        """Have a job dropped."""

    @abstractmethod
    def compute(self, task: PoolTask) -> None:
        """Send a task."""

    @abstractmethod
    def cancel(self, task: PoolTask) -> None:
        """Have a task dropped if it has not begun."""

    @abstractmethod
    def end(self) -> str:
        """Kill the worker whatever it is doing; return how it died. Idempotent."""

    def is_stopped(self) -> bool:
        """Return whether the system has stopped the worker."""
        return False

    def resident(self) -> dict[str, int]:
        """Return the bytes of memory of the worker, if visible from here."""
        return {}


class Transport(Protocol):
    """A way to start workers and to exchange messages with them.

    Only the dispatcher calls `start`, `wait` and `close`. `worker` and `worker_plural` name them in messages.
    """

    worker: str
    worker_plural: str
    reach: DataLocation

    def serialize_job(self, job: Job) -> Any: ...
    def serialize_values(self, values: list[Any] | None) -> Any: ...
    def start(self) -> Worker: ...
    def wait(self, seconds: float) -> Sequence[Event]: ...
    def wake(self) -> None: ...
    def close(self) -> None: ...


class WorkerPool:
    """An executor of `count` workers. They end with `close`, with this object and with the process.

    `timeout`: a sample that takes more seconds costs its worker.
    """

    def __init__(self, transport: Transport, count: int, timeout: float | None = None) -> None:
        dispatcher = self._dispatcher = Dispatcher(transport, count, timeout)
        self._finish = weakref.finalize(self, dispatcher.close)
        self.reach: DataLocation = transport.reach
        dispatcher.start()

    def submit(self, job: Job, values: list[Any] | None, rows: ProvenanceRows, /) -> PoolTask:
        return self._dispatcher.submit(job, values, rows)

    @property
    def workers(self) -> list[Worker]:
        """The present workers."""
        return [*self._dispatcher.workers]

    @property
    def deaths(self) -> int:
        return self._dispatcher.deaths

    def resident(self) -> dict[str, int]:
        return {pid: size for worker in self.workers for pid, size in worker.resident().items()}

    def close(self) -> None:
        self._dispatcher.close()
        self._finish.detach()


class Dispatcher:
    """The thread that talks to the workers, and what other threads post to it."""

    def __init__(self, transport: Transport, count: int, timeout: float | None) -> None:
        self._transport, self._count, self._timeout = transport, count, timeout
        self._process, self._number, self._failed_starts = os.getpid(), 0, 0
        self._closed = self._asleep = False
        self._jobs = OrderedDict[tuple[int, ...], KnownJob]()
        self._losses = Counter[Sample]()  # workers, by the samples that they were computing
        self._deadly = dict[tuple[int, Sample], str]()  # how workers died, by job and sample
        self._inbox = deque[tuple[Callable[[Any], None], Any]]()
        self.workers, self.deaths = list[Worker](), 0
        self._thread = ThreadTask(self._run, f"penstock-{id(self):x}", daemon=True)

    # ------------------------------------------------------------ on any thread

    def start(self) -> None:
        """Start the thread, and with it the workers."""
        self._thread.start()

    def submit(self, job: Job, values: list[Any] | None, rows: ProvenanceRows) -> PoolTask:
        """Have a unit computed."""
        self.require_open()
        with convert_storage_errors(f"{self._transport.worker_plural}"):
            serialized = self._transport.serialize_values(values)
            known = self._know(job)
        self._number += 1
        task = PoolTask(self, self._number, known, serialized, rows)
        self._post(self._assign, task)
        self.require_open()  # again: a task that is posted after the end would never complete
        return task

    def cancel(self, task: PoolTask) -> None:
        """Have a task dropped."""
        if not task.done():
            self._post(self._cancel, task)

    def require_open(self) -> None:
        """Raise `RuntimeError` after the workers have ended."""
        if self._closed:
            raise RuntimeError(f"the {self._transport.worker_plural} are closed")

    def close(self) -> None:
        """Kill all workers."""
        if os.getpid() != self._process:  # of a fork, which has no workers
            return
        self._closed = True
        self._transport.wake()
        self._jobs.clear()
        # The garbage collector may close a pool on the dispatcher's own thread.
        if threading.current_thread() is not self._thread.thread:
            self._thread.join(None)

    def _know(self, job: Job) -> KnownJob:
        """Return a job as workers know it. The jobs of lanes are made of the same parts."""
        key = (id(job.reader), *map(id, job.steps))
        if key not in self._jobs:
            self._number += 1
            copy = replace(job, steps=[*job.steps])
            self._jobs[key] = KnownJob(self._number, copy, self._transport.serialize_job(copy))
            while len(self._jobs) > KNOWN_JOBS:
                self._post(self._forget, self._jobs.popitem(last=False)[1])
        self._jobs.move_to_end(key)
        return self._jobs[key]

    def _post(self, call: Callable[[Any], None], argument: Any) -> None:
        self._inbox.append((call, argument))
        if self._asleep:
            self._transport.wake()

    # ------------------------------------------------------------ on the dispatcher's thread

    def _run(self) -> None:
        try:
            while not self._closed:
                try:
                    self._dispatch()
                except OSError as error:  # no process, file or memory left
                    self._fail(make_storage_error(error, f"{self._transport.worker_plural}"))
                except BaseException as error:
                    self._fail(error)
        finally:
            self._closed = True
            self._fail(RuntimeError(f"the {self._transport.worker_plural} are closed"))
            self._transport.close()

    def _dispatch(self) -> None:
        """Start missing workers, do what was posted, and wait for messages."""
        while len(self.workers) < self._count:
            self.workers.append(self._transport.start())
        while self._inbox:
            call, argument = self._inbox.popleft()
            call(argument)
        self._asleep = True
        events = self._transport.wait(0 if self._inbox or self._closed else CHECK_SECONDS)
        self._asleep = False
        for event in events:
            self._handle(event)
        if not events and not self._inbox:
            self._check_workers()

    def _fail(self, error: BaseException) -> None:
        """Kill all workers, and fail all tasks."""
        tasks = [task for worker in self.workers for task in worker.tasks.values()]
        while self._inbox:  # other threads may append
            call, argument = self._inbox.popleft()
            if call == self._assign:
                tasks.append(argument)
        for worker in self.workers:
            worker.end()
            worker.tasks.clear()  # they refer to this object
        self.workers.clear()
        for task in tasks:
            if not task.done():
                task.finish(None, error)

    def _assign(self, task: PoolTask) -> None:
        job, rows = task.job.number, task.rows
        for (number, sample), how in self._deadly.items():
            leaf, epoch, index = sample
            same = (rows.leaf == leaf) & (rows.epoch == epoch) & (rows.index == index)
            if number == job and same.any():
                return task.finish(None, self._deadly_sample(sample, how))
        return self._give(min(self.workers, key=lambda worker: len(worker.tasks)), task)

    def _give(self, worker: Worker, *tasks: PoolTask) -> None:
        if not worker.tasks:
            worker.since = time.monotonic()
        # `_fail` finds them even if sending one runs out of memory or descriptors.
        worker.tasks.update((task.number, task) for task in tasks)
        for task in tasks:
            if task.job.number not in worker.known:
                worker.learn(task.job)
                worker.known.add(task.job.number)
            worker.compute(task)

    def _cancel(self, task: PoolTask) -> None:
        for worker in self.workers:
            if task.number in worker.tasks:
                worker.cancel(task)
                if next(iter(worker.tasks)) != task.number:  # the first one has begun
                    del worker.tasks[task.number]

    def _forget(self, job: KnownJob) -> None:
        for worker in self.workers:
            if job.number in worker.known:
                worker.known.discard(job.number)
                worker.forget(job)

    def _handle(self, event: Event) -> None:
        worker = event.worker
        if worker not in self.workers:  # it was replaced
            return
        worker.since = time.monotonic()
        match event:
            case Ready():
                worker.ready, self._failed_starts = True, 0
            case Lost():
                self._replace(worker)
            case Answer(_, number, done, error):
                if (task := worker.tasks.pop(number, None)) is not None:  # else it was cancelled
                    task.finish(done, error)

    # ------------------------------------------------------------ lost workers

    def _check_workers(self) -> None:
        """Replace silent workers that are stopped or take too long."""
        now, timeout = time.monotonic(), self._timeout
        for worker in [*self.workers]:
            if worker.tasks and worker.is_stopped():
                self._replace(worker, "was stopped")
            elif worker.tasks and worker.ready and timeout and now - worker.since > timeout:
                self._replace(worker, f"took longer than timeout={timeout:g} s")

    def _replace(self, worker: Worker, how: str | None = None) -> None:
        """Give the tasks of a lost worker to a new one."""
        died = worker.end()
        how = how or died
        self.deaths += 1
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= FAILED_STARTS * self._count:
                raise ConfigError(
                    f"{self._transport.worker_plural}, one after the other, {how} before they started; "
                    "read the cause in their standard error"
                )
        tasks = [*worker.tasks.values()]
        over = f" over {tasks[0].describe()}" if tasks else ""
        getLogger("penstock").warning(
            "%s %s%s; a new worker replaces it and repeats its work", worker.describe(), how, over
        )
        new = self.workers[self.workers.index(worker)] = self._transport.start()
        if tasks and worker.ready:
            self._blame(tasks[0], how)
        self._give(new, *(task for task in tasks if not task.done()))

    def _blame(self, task: PoolTask, how: str) -> None:
        """Count a worker that was lost over a task; fail the task if that tells something."""
        samples = task.samples()
        self._losses.update(samples)
        if len(samples) != 1:
            error = WorkerLost(
                f"a {self._transport.worker} {how} over {task.describe()}, but over none of these "
                "samples alone; see the standard error of the workers, and the memory of the "
                "machine"
            )
            task.finish(None, error)
        elif self._losses[samples[0]] >= MAX_WORKER_DEATHS:
            self._deadly[task.job.number, samples[0]] = how
            task.finish(None, self._deadly_sample(samples[0], how))

    def _deadly_sample(self, sample: Sample, how: str) -> SampleFailure:
        """Return a new error each time, as a raised one refers to the frames it passed."""
        error = DataError(
            f"its {self._transport.worker} was lost {MAX_WORKER_DEATHS} times in a row over this sample: it "
            f"{how}; fix the function, or remove the sample"
        )
        return SampleFailure(*sample, error)
