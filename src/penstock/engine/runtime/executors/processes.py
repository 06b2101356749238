"""Worker processes: functions that hold the interpreter run side by side, and one that dies costs
nothing.

Units are pure, so whatever was lost is computed again, and the stream never shows it.
"""

from __future__ import annotations

import logging
import mmap
import os
import pickle
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ....errors import ConfigError, DataError, convert_storage_errors, make_storage_error
from ....types import DataLocation
from ...base.event_counts import EVENT_COUNTS
from ...base.machine import measure_resident_memory
from ...base.rows import ProvenanceRows
from ...base.thread_pool import ThreadTask
from ...streams.job import Done, Job
from .known import DEATHS, Deadly, Lessons, cannot_be_sent
from .member import Member, Sent, Taught, begun
from .wire import Descriptor, Packed, heard, packed, unpacked, views

_ROOM = 1 << 62  # bytes, where no bound was said: as many as workers like to keep
_LOOK = 1.0  # seconds between two looks at workers that say nothing
_JOBS = 1024  # that workers remember
# times in a row that all workers are killed before they begin; one that ends by itself counts
# thrice
_STILLBORN = 10


def sendable(value: Any) -> Packed:
    """A value, ready to go to a worker; an error where that cannot be."""
    try:
        return packed(value)
    except (TypeError, AttributeError, pickle.PicklingError, RecursionError) as error:
        raise cannot_be_sent("processes", error) from error


class Crew:
    """The workers, and what is under way.

    One thread, the attendant, begins workers, talks to them and ends them. Whoever submits, waits,
    cancels or closes only puts into its inbox: signals interrupt the main thread alone, and never
    in the middle of a message.
    """

    def __init__(self, workers: int, timeout: float | None, idle: int) -> None:
        self.owner, self.timeout, self._idle, self._many = os.getpid(), timeout, idle, workers
        self._number, self._stillborn, self._closed, self._asleep = 0, 0, False, False
        self.deaths = 0
        self._known, self._bad = Lessons(_JOBS, self._taught, self._forget), Deadly()
        self._inbox = deque[tuple[Callable[[Any], None], Any]]()
        with convert_storage_errors("worker processes"):
            self._bell, self._rope = socket.socketpair()
        for end in (self._bell, self._rope):
            end.setblocking(False)
        self._poll, self._workers = select.poll(), list[Member]()
        self._parent = list[int]()  # a pipe that closes with this process
        self._attendant = ThreadTask(self._attend, f"penstock-{id(self):x}", daemon=True)

    def begin(self) -> None:
        """Begin the workers. Until `close` they live as long as this process."""
        _crews.add(self)
        self._attendant.start()

    # ------------------------------------------------------------ on any thread

    def submit(self, job: Job, values: list[Any] | None, rows: ProvenanceRows) -> Sent:
        """Give a unit to the worker that has least to do."""
        self.require_open()
        self._number += 1
        with convert_storage_errors("worker processes"):
            sent = None if values is None else sendable(values).whole()
            task = Sent(self, self._number, self._known.of(job), sent, rows)
        self._post(self._send, task)
        self.require_open()  # again: a task posted after the end would never finish
        return task

    def require_open(self) -> None:
        """Raise `RuntimeError` after the workers have ended."""
        if self._closed:
            raise RuntimeError("the worker processes are closed")

    def cancel(self, task: Sent) -> None:
        """Want a task no more."""
        if not task.done():
            self._post(self._cancel, task)

    def _taught(self, job: Job) -> Taught:
        self._number += 1
        return Taught(self._number, job, sendable(job))

    def _forget(self, old: Taught) -> None:
        self._post(self._forgotten, old)

    def _post(self, what: Callable[[Any], None], about: Any) -> None:
        """Have the attendant do something."""
        self._inbox.append((what, about))
        if self._asleep:
            self._wake()

    def _wake(self) -> None:
        with suppress(OSError):  # it is full of calls, or closed
            self._rope.send(b"!")

    def close(self) -> None:
        """End all workers, whatever they are doing."""
        if os.getpid() != self.owner:
            return
        self._closed = True
        self._wake()
        self._known.clear()
        if (
            threading.current_thread() is not self._attendant.thread
        ):  # which may collect who holds this
            self._attendant.join(None)

    def resident(self) -> dict[str, int]:
        """The memory that workers hold, by the number of the process."""
        found = {
            str(worker.process.pid): measure_resident_memory(worker.process.pid)
            for worker in [*self._workers]
        }
        return {} if self._closed else found

    def forked(self) -> None:
        """In a child of this process: hold nothing open that tells workers that their parent
        lives."""
        if self._closed:  # these numbers are other files by now
            return
        for worker in self._workers:
            worker.process.returncode = 0  # it is no child of this one
            worker.wire.close()
        for fd in self._parent:
            os.close(fd)

    # ------------------------------------------------------------ on the attendant's thread

    def _attend(self) -> None:
        self._poll.register(self._bell, select.POLLIN)
        try:
            while not self._closed:
                try:
                    self._round()
                except (
                    OSError
                ) as error:  # of a worker that cannot begin, or of memory that is not there
                    self._fail(make_storage_error(error, "worker processes"))
                except BaseException as error:
                    self._fail(error)
        finally:
            self._closed = True
            self._fail(RuntimeError("the worker processes are closed"))
            for end in (self._bell, self._rope):
                end.close()
            for fd in self._parent:
                os.close(fd)

    def _round(self) -> None:
        """Do what was asked; take what has come, and wait some time for something."""
        if not self._parent:
            self._parent += os.pipe()
        while len(self._workers) < self._many:
            self._workers.append(self._started())
        while self._inbox:
            what, about = self._inbox.popleft()
            what(about)
        for worker in self._workers:
            self._flush(worker)
        by = {worker.wire.fileno(): worker for worker in self._workers}
        self._asleep = True
        found = self._poll.poll(0 if self._inbox or self._closed else _LOOK * 1000)
        self._asleep = False
        for fd, event in found:
            worker = by.get(fd)
            if worker is None:
                self._bell.recv(1 << 12)
                continue
            if event & select.POLLOUT:
                self._flush(worker)
            if event & ~select.POLLOUT:
                there = worker.wire.read()
                for message, attached in worker.wire.messages():
                    self._heard(worker, attached, *message)
                if not there:
                    self._lost(worker, "died")
        if not found:
            self._look()

    def _fail(self, error: BaseException) -> None:
        """End all workers, and fail what is under way."""
        tasks = [task for worker in self._workers for task in worker.tasks.values()]
        while self._inbox:  # to which other threads append
            what, about = self._inbox.popleft()
            if what == self._send:
                tasks.append(about)
        for worker in self._workers:
            self._let_go(worker)
            worker.tasks.clear()  # which know this crew
            worker.arenas.clear()  # what is still looked at stays
        self._workers.clear()
        for task in tasks:
            if not task.done():
                task.finish(None, error)

    def _started(self) -> Member:
        worker = begun(self._parent[0], self._idle)
        self._poll.register(worker.wire.end, select.POLLIN)
        return worker

    def _send(self, task: Sent) -> None:
        if (bad := self._bad.among(task.job.number, task.rows)) is not None:
            task.finish(None, bad)
        else:
            self._give(task, min(self._workers, key=lambda worker: len(worker.tasks)), False)

    def _forgotten(self, old: Taught) -> None:
        for worker in self._workers:
            if old.number in worker.jobs:
                worker.jobs.discard(old.number)
                worker.wire.put(("forget", old.number))

    def _give(self, task: Sent, worker: Member, careful: bool) -> None:
        job = task.job
        if job.number not in worker.jobs:
            worker.wire.put(("job", job.number, job.size, job.spans), os.dup(job.memory().fileno()))
            worker.jobs.add(job.number)
        if not worker.tasks:
            worker.since = time.monotonic()
        worker.tasks[task.number] = task
        worker.wire.put(("run", task.number, job.number, task.values, task.rows, careful))
        self._flush(worker)

    def _cancel(self, task: Sent) -> None:
        for worker in self._workers:
            if task.number in worker.tasks:
                worker.wire.put(("cancel", [task.number]))
                if next(iter(worker.tasks)) != task.number:
                    del worker.tasks[task.number]

    def _flush(self, worker: Member) -> None:
        if worker.free:
            worker.wire.put(("free", [worker.free.popleft() for _ in range(len(worker.free))]))
        with suppress(ConnectionError):  # it is gone, which reading tells
            worker.wire.send()
        self._poll.modify(
            worker.wire.end, select.POLLIN | (select.POLLOUT if worker.wire.waiting else 0)
        )

    def _heard(
        self, worker: Member, fd: Descriptor | None, verb: str, number: int, *told: Any
    ) -> None:
        worker.since = time.monotonic()
        if verb == "ready":
            worker.ready, self._stillborn = True, 0
            return
        if verb == "counted":
            EVENT_COUNTS.add_all(told[0])
            return
        if verb == "at":
            if number in worker.tasks:
                worker.tasks[number].at = told
            return
        if verb == "arena":
            assert fd is not None
            worker.arenas[number] = mmap.mmap(fd.fileno(), told[0])
            return
        task = worker.tasks.pop(number, None)
        if verb == "shared":
            ranges, spans = told
            places = [(worker.arenas[arena], start, size) for arena, start, size in ranges]
            free = worker.free
            head, *buffers = views(places, spans, lambda i: free.append(ranges[i][:2]))
        else:
            head, *buffers = (told[0], *told[1]) if verb == "done" else (None,)
        if task is None:  # cancelled
            return
        try:
            done, failure = (
                (None, heard(told[0]))
                if verb == "failed"
                else (Done(*unpacked(head, buffers)), None)
            )
        except Exception as error:  # of a class that cannot be made again here
            error.add_note("this process could not unpickle the result of a worker process")
            done, failure = None, error
        task.finish(done, failure)

    # ------------------------------------------------------------ death

    def _look(self) -> None:
        """Look after workers that say nothing: one that is stopped, or takes too long, is
        replaced."""
        now = time.monotonic()
        for worker in list(self._workers):
            if worker.tasks and worker.stopped():
                self._lost(worker, "was stopped")
            elif (
                worker.tasks and worker.ready and self.timeout and now - worker.since > self.timeout
            ):
                self._lost(worker, f"took longer than timeout={self.timeout:g} s")

    def _lost(self, worker: Member, why: str) -> None:
        """Put another in the place of a worker, and have it do what was given to that one."""
        self._let_go(worker)
        code = worker.process.returncode
        how = (
            f"{why} ({'signal' if code < 0 else 'exit code'} {abs(code)})" if why == "died" else why
        )
        tasks = list(worker.tasks.values())
        if not worker.ready:
            self._stillborn += 1 if code < 0 else 3
            if self._stillborn >= _STILLBORN * len(self._workers):
                raise ConfigError(
                    f"worker processes, one after the other, {how} before they started; read the "
                    "cause in their standard error"
                )
        over = f" over {tasks[0].over()}" if tasks else ""
        self.deaths += 1
        logging.getLogger("penstock").warning(
            "worker process %d %s%s; a new worker replaces it and repeats its work",
            worker.process.pid,
            how,
            over,
        )
        new = self._workers[self._workers.index(worker)] = self._started()
        for i, task in enumerate(tasks):
            if i == 0 and worker.ready:
                self._accuse(task, how)
            if not task.done():
                self._give(task, new, task.deaths > 0)

    def _accuse(self, task: Sent, how: str) -> None:
        """A worker was lost over a task: was it often enough to blame a sample?"""
        task.deaths += 1
        if task.at is not None:
            task.suspects[task.at] += 1
            if task.deaths >= DEATHS and task.suspects[task.at] >= DEATHS - 1:
                task.finish(
                    None, self._bad.note(task.job.number, task.at, f"worker process {how},")
                )
            task.at = None
        elif task.deaths > DEATHS:
            rows = task.rows
            error = DataError(
                f"worker processes {how} {task.deaths} times over one unit of work, between "
                f"samples: {len(rows)} items from leaf {int(rows.leaf[0])}, pass "
                f"{int(rows.epoch[0])}, index {int(rows.index[0])} on; see their standard error, "
                "and the memory of the machine"
            )
            task.finish(None, error)

    def _let_go(self, worker: Member) -> None:
        """End a worker; once more does nothing."""
        if worker.wire.fileno() >= 0:
            with suppress(KeyError):
                self._poll.unregister(worker.wire.end)
        worker.end()


_crews: weakref.WeakSet[Crew] = weakref.WeakSet()


def _forked() -> None:
    for crew in list(_crews):
        crew.forked()
    _crews.clear()


os.register_at_fork(after_in_child=_forked)


class Processes:
    """So many worker processes. They end with `close`, with this object, and with the process that
    began them.

    `timeout`: a sample that takes so many seconds costs its worker; after three, it is bad. `room`:
        of so many bytes
    that may be made ahead, half may be held by workers and lie idle.
    """

    def __init__(self, workers: int, timeout: float | None = None, room: int | None = None) -> None:
        crew = self._crew = Crew(workers, timeout, (room or _ROOM) // 2 // workers)
        self._finish = weakref.finalize(self, crew.close)
        crew.begin()

    def submit(self, job: Job, values: list[Any] | None, rows: ProvenanceRows, /) -> Sent:
        return self._crew.submit(job, values, rows)

    @property
    def reach(self) -> DataLocation:
        return "machine"

    @property
    def deaths(self) -> int:
        return self._crew.deaths

    def resident(self) -> dict[str, int]:
        return self._crew.resident()

    def close(self) -> None:
        self._crew.close()
        self._finish.detach()
