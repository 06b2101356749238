"""Actors of a Ray cluster: functions run on its CPU nodes, results come back through its object
store.

The units are those of any executor, so the stream is the same; an actor or a node that dies costs
nothing but the time to do its work again. Arrays that come out of the object store cannot be
written to.
"""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from ....errors import ConfigError, DataError, install_command
from ....types import DataLocation
from ...base.rows import ProvenanceRows
from ...streams.job import Done, Grouping, Job
from .known import DEATHS, Deadly, Lessons, cannot_be_sent
from .wire import heard
from .worker import told_of

_JOBS = 64
_PATIENCE = 20.0
"""Seconds in which actors begin; of those that do not, it is said why."""


class Actor:
    """What runs on a node: it computes units of the jobs that it was shown."""

    def __init__(self) -> None:
        self._jobs = OrderedDict[int, Job]()

    def begun(self) -> None:
        """Nothing: who has its answer knows that the actor has a place."""

    def compute(
        self, number: int, job: list[Any], values: list[Any] | None, rows: ProvenanceRows
    ) -> Any:
        """A unit: what it came to, or the error, told."""
        if number not in self._jobs:
            self._jobs[number] = _ray().get(job[0])
            while len(self._jobs) > _JOBS:
                self._jobs.popitem(last=False)
        try:
            return self._jobs[number](values, rows)
        except BaseException as error:
            return told_of(error)


class Lesson(NamedTuple):
    """A job, and where the object store has it."""

    number: int
    job: Job
    put: list[Any]


class Posted:
    """A unit that an actor computes."""

    def __init__(
        self, owner: Cluster, job: Job, values: list[Any] | None, rows: ProvenanceRows
    ) -> None:
        self.owner, self.job, self.values, self.rows = owner, job, values, rows
        self.ref: Any = None
        self.actor: Any = None
        self.begun: Any = None
        self.found: Done | BaseException | None = None

    def done(self) -> bool:
        return self.found is not None or bool(_ray().wait([self.ref], timeout=0)[0])

    def result(self) -> Done:
        if self.found is None:
            self.found = self.owner.found(self)
        if isinstance(self.found, BaseException):
            raise self.found
        return self.found

    def cancel(self) -> None:
        self.owner.answered(self)
        with suppress(Exception):
            _ray().cancel(self.ref)


class Cluster:
    """So many actors, wherever the cluster has room. A cluster that is running is joined
    (`RAY_ADDRESS`, `ray.init`); where there is none, one is begun on this machine.

    `timeout`: a unit that takes so many seconds costs its actor.
    """

    def __init__(self, workers: int, timeout: float | None = None) -> None:
        ray = _ray()
        if not ray.is_initialized():
            ray.init(log_to_driver=False, include_dashboard=False)
        self._timeout, self._kind = timeout, ray.remote(num_cpus=1, max_restarts=0)(Actor)
        self._known, self._bad, self._number = (
            Lessons(_JOBS, self._put, lambda old: None),
            Deadly(),
            0,
        )
        self._actors = [self._kind.remote() for _ in range(workers)]
        self._begun = [actor.begun.remote() for actor in self._actors]
        # What each actor has before it. A unit that an interrupt kept from being waited for is
        # collected.
        self._load, self._told = [weakref.WeakSet[Posted]() for _ in range(workers)], False
        self._finish, self.deaths = weakref.finalize(self, _end, self._actors), 0

    def submit(self, job: Job, values: list[Any] | None, rows: ProvenanceRows, /) -> Posted:
        task = Posted(self, job, values, rows)
        task.found = self._bad.among(self._known.of(job).number, rows)
        if task.found is None:
            self._send(task)
        return task

    @property
    def reach(self) -> DataLocation:
        return "elsewhere"

    def resident(self) -> dict[str, int]:
        return {}  # actors may be on other machines; the dashboard of the cluster shows them

    def close(self) -> None:
        self._finish()

    def _put(self, job: Job) -> Lesson:
        self._number += 1
        try:
            return Lesson(self._number, job, [_ray().put(job)])
        except (TypeError, AttributeError) as error:
            raise cannot_be_sent("ray", error) from error

    def _send(self, task: Posted) -> None:
        place = min(range(len(self._actors)), key=lambda place: len(self._load[place]))
        job = self._known.of(task.job)
        task.actor, task.begun = self._actors[place], self._begun[place]
        task.ref = task.actor.compute.remote(job.number, job.put, task.values, task.rows)
        self._load[place].add(task)

    def answered(self, task: Posted) -> None:
        """Count a unit no more, as its actor has it behind it or nobody wants it."""
        for load in self._load:
            load.discard(task)

    def found(self, task: Posted) -> Done | BaseException:
        """What a unit came to; an actor that is lost over it is replaced."""
        if (found := self._waited(task)) is not None:
            return found
        self._send(task)
        return self._waited(task) or self._blamed(task)

    def _waited(self, task: Posted) -> Done | BaseException | None:
        """What came of it; None where the actor, its node or the result was lost."""
        ray: Any = _ray()
        while not ray.wait([task.begun], timeout=_PATIENCE)[
            0
        ]:  # no time of the unit, and a cluster may grow
            self._tell()
        try:
            told = ray.get(task.ref, timeout=self._timeout)
        except (
            ray.exceptions.RayActorError,
            ray.exceptions.ObjectLostError,
            ray.exceptions.RaySystemError,
        ) as error:
            self._replace(task.actor, type(error).__name__)
            return None
        except ray.exceptions.GetTimeoutError:
            self._replace(task.actor, f"took longer than timeout={self._timeout:g} s")
            return None
        self.answered(task)
        return heard(told) if isinstance(told, bytes) else Done(*told)

    def _tell(self) -> None:
        """Say once that actors find no room."""
        ray, many = _ray(), len(self._begun)
        if (
            self._told or ray.available_resources().get("CPU", 0) >= 1
        ):  # there is room, and they are on their way
            return
        self._told = True
        begun, _ = ray.wait(self._begun, num_returns=many, timeout=0)
        logging.getLogger("penstock").warning(
            "%d of %d actors have not started after %g s: each takes a CPU, and the cluster has "
            "%g in all; the run waits for them: take fewer workers, or add nodes to the cluster",
            many - len(begun), many, _PATIENCE, ray.cluster_resources().get("CPU", 0),
        )  # fmt: skip

    def _replace(self, actor: Any, why: str) -> None:
        if actor not in self._actors:  # another unit told of it already
            return
        self.deaths += 1
        logging.getLogger("penstock").warning(
            "an actor was lost (%s); a new actor replaces it and repeats its work", why
        )
        place = self._actors.index(actor)
        with suppress(Exception):
            _ray().kill(actor)
        self._actors[place], self._load[place] = self._kind.remote(), weakref.WeakSet[Posted]()
        self._begun[place] = self._actors[place].begun.remote()

    def _blamed(self, task: Posted) -> Done | BaseException:
        """Find the sample over which actors are lost, one by one, up to where samples are
        grouped."""
        steps = task.job.steps
        before = next((i for i, step in enumerate(steps) if isinstance(step, Grouping)), len(steps))
        alone = replace(task.job, steps=steps[:before])
        for i in range(len(task.rows)):
            one = Posted(
                self, alone, task.values and task.values[i : i + 1], task.rows.slice(i, i + 1)
            )
            for _ in range(DEATHS):
                self._send(one)
                if self._waited(one) is not None:
                    break
            else:
                row = one.rows
                at = int(row.leaf[0]), int(row.epoch[0]), int(row.index[0])
                return self._bad.note(self._known.of(task.job).number, at, "actor was lost")
        self._send(task)
        found = self._waited(task)
        return (
            DataError(
                "a unit of work kills its actors, but none of its samples alone does; see the "
                "actor logs, and the memory of the nodes"
            )
            if found is None
            else found
        )


def _end(actors: list[Any]) -> None:
    ray = _ray()
    if ray.is_initialized():
        for actor in actors:
            with suppress(Exception):
                ray.kill(actor)


def _ray() -> Any:
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError(f"executor='ray' needs Ray: {install_command('ray')}") from None
    return ray
