"""Actors of a Ray cluster as workers: tasks and results travel through Ray's object store.

Arrays that come out of the object store are read-only.
"""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from logging import getLogger
from queue import Empty, SimpleQueue
from typing import Any

from ....errors import ConfigError, install_command
from ....types import DataLocation
from ...base.rows import ProvenanceRows
from ...base.seams import world
from ...streams.job import Job, UnitResult
from .pool import Answer, Event, KnownJob, Lost, PoolTask, Ready, Worker
from .serialization import deserialize_error, make_unpicklable_error, serialize_error

START_SECONDS = 20.0
"""Seconds after which the log says why actors have not started."""


class Actor:
    """Computes tasks on a node, in the order received."""

    def __init__(self) -> None:
        self._jobs = dict[int, Job]()

    def ready(self) -> None:
        """Return once the actor runs."""

    def forget(self, number: int) -> None:
        """Drop a job."""
        self._jobs.pop(number, None)

    def compute(
        self, number: int, job: list[Any], values: list[Any] | None, rows: ProvenanceRows
    ) -> Any:
        """Return the result of a task, or its error serialized.

        `job` holds the reference of the job with this number.
        """
        try:
            if number not in self._jobs:
                self._jobs[number] = _ray().get(job[0])
            return self._jobs[number](values, rows)
        except BaseException as error:
            return serialize_error(error)


class RayWorker(Worker):
    """An actor."""

    def __init__(self, actor: Any, transport: RayTransport) -> None:
        super().__init__()
        self.actor, self._transport = actor, transport
        self.started, self._cause = world.sched.now(), ""
        self._refs = dict[int, Any]()
        transport.post_result(self, 0, actor.ready.remote())

    def describe(self) -> str:
        return "an actor"

    def forget(self, job: KnownJob) -> None:
        self.actor.forget.remote(job.number)

    def compute(self, task: PoolTask) -> None:
        job = task.job
        ref = self.actor.compute.remote(job.number, job.serialized, task.values, task.rows)
        self._refs[task.number] = ref
        self._transport.post_result(self, task.number, ref)

    def cancel(self, task: PoolTask) -> None:
        with suppress(Exception):
            _ray().cancel(self._refs[task.number])

    def decode(self, task: int, result: Future[Any]) -> Event:
        """Return the event for the result of a call; `ready` counts as task 0."""
        self._refs.pop(task, None)
        error, exceptions = result.exception(), _ray().exceptions
        if error is None:
            value = result.result()
            if not task:
                return Ready(self)
            if isinstance(value, bytes):
                return Answer(self, task, error=deserialize_error(value))
            return Answer(self, task, UnitResult(*value))
        answers = exceptions.RayTaskError, exceptions.TaskCancelledError
        if isinstance(error, exceptions.RayError) and not isinstance(error, answers):
            self._cause = type(error).__name__
            return Lost(self)
        return Answer(self, task, error=error)

    def end(self) -> str:
        self._transport.workers.discard(self)
        with suppress(Exception):
            _ray().kill(self.actor)
        return f"died ({self._cause})"


class RayTransport:
    """Starts actors, wherever the cluster has room.

    A running cluster is joined (`RAY_ADDRESS`, `ray.init`); without one, Ray starts on this machine.
    """

    worker, worker_plural = "actor", "actors"
    reach: DataLocation = "elsewhere"

    def __init__(self) -> None:
        ray = _ray()
        if not ray.is_initialized():
            ray.init(log_to_driver=False, include_dashboard=False)
        self._actor_class = ray.remote(num_cpus=1, max_restarts=0)(Actor)
        self._results = SimpleQueue[tuple[RayWorker, int, Future[Any]] | None]()
        self.workers, self._warned = set[RayWorker](), False

    def serialize_job(self, job: Job) -> list[Any]:
        try:
            return [_ray().put(job)]  # a reference in a list is passed as it is
        except (TypeError, AttributeError) as error:
            raise make_unpicklable_error("ray", error) from error

    def serialize_values(self, values: list[Any] | None) -> Any:
        return values

    def start(self) -> RayWorker:
        worker = RayWorker(self._actor_class.remote(), self)
        self.workers.add(worker)
        return worker

    def post_result(self, worker: RayWorker, task: int, ref: Any) -> None:
        """Queue the result of a call once Ray has it, on a thread of Ray."""

        def post(result: Future[Any]) -> None:
            self._results.put((worker, task, result))

        ref.future().add_done_callback(post)

    def wait(self, seconds: float) -> list[Event]:
        results = list[tuple[RayWorker, int, Future[Any]] | None]()
        with suppress(Empty):
            results.append(self._results.get(block=seconds > 0, timeout=seconds))
            while True:
                results.append(self._results.get_nowait())
        events = [worker.decode(task, done) for worker, task, done in filter(None, results)]
        if not results:
            self._warn_of_missing_cpus()
        return events

    def wake(self) -> None:
        self._results.put(None)

    def close(self) -> None:
        self.workers.clear()

    def _warn_of_missing_cpus(self) -> None:
        """Log once that actors have no CPU to start on."""
        ray, late = _ray(), world.sched.now() - START_SECONDS
        missing = sum(not worker.ready and worker.started < late for worker in self.workers)
        # With a free CPU, they are on their way.
        if self._warned or not missing or ray.available_resources().get("CPU", 0) >= 1:
            return
        self._warned = True
        getLogger("penstock").warning(
            "%d of %d actors have not started after %g s: each takes a CPU, and the cluster has "
            "%g in all; the run waits for them: take fewer workers, or add nodes to the cluster",
            missing,
            len(self.workers),
            START_SECONDS,
            ray.cluster_resources().get("CPU", 0),
        )


def _ray() -> Any:
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError(f"executor='ray' needs Ray: {install_command('ray')}") from None
    return ray
