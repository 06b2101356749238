"""Worker processes: functions that hold the interpreter lock run in parallel.

Messages travel over a socket, results above 16 KiB in shared memory: the worker writes them, and
they arrive as views, without a copy.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import weakref
from collections import deque
from contextlib import suppress
from typing import Any

from ....errors import convert_storage_errors
from ....types import DataLocation
from ...base.event_counts import EVENT_COUNTS
from ...base.machine import measure_resident_memory
from ...streams.job import Job, UnitResult
from .connection import Connection, Descriptor
from .pool import Answer, Event, KnownJob, Lost, PoolTask, Ready, Worker
from .serialization import (
    Serialized,
    deserialize,
    deserialize_error,
    make_unpicklable_error,
    serialize,
)
from .shared_memory import create_shared_memory, view_ranges

BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[5]); from "
    "penstock.engine.runtime.executors.worker import main; "
    "main(*map(int, sys.argv[1:5]))"
)


class SharedJob:
    """A serialized job; the dispatcher writes it to memory for all workers when one needs it."""

    def __init__(self, serialized: Serialized) -> None:
        self.spans, self.size = serialized.spans, serialized.size()
        self._content: Serialized | Descriptor = serialized

    def open(self) -> int:
        """Return a new descriptor of the memory."""
        if isinstance(self._content, Serialized):
            memory, fd = create_shared_memory(self.size)
            self._content.write(memory)
            self._content = Descriptor(fd)
        return os.dup(self._content.fileno())


class ProcessWorker(Worker):
    """A worker process, and the memory that it shares."""

    def __init__(self, process: subprocess.Popen[bytes], connection: Connection) -> None:
        super().__init__()
        self.process, self.connection = process, connection
        self._arena: mmap.mmap | None = None
        self._free = deque[int]()  # starts of ranges that are no longer viewed

    def describe(self) -> str:
        return f"worker process {self.process.pid}"

    def learn(self, job: KnownJob) -> None:
        shared: SharedJob = job.serialized
        self.connection.put(("job", job.number, shared.size, shared.spans), shared.open())

    def forget(self, job: KnownJob) -> None:
        self.connection.put(("forget", job.number))

    def compute(self, task: PoolTask) -> None:
        self.connection.put(("run", task.number, task.job.number, task.values, task.rows))

    def cancel(self, task: PoolTask) -> None:
        self.connection.put(("cancel", task.number))

    def flush(self) -> bool:
        """Send what the worker accepts now; return whether messages are left."""
        if self._free:
            starts = [self._free.popleft() for _ in range(len(self._free))]
            self.connection.put(("free", starts))
        with suppress(ConnectionError):  # it died, which reading finds out
            self.connection.send()
        return self.connection.has_output

    def receive(self) -> list[Event]:
        """Read what has arrived."""
        alive = self.connection.read()
        events = list[Event]()
        for message, descriptor in self.connection.messages():
            if (event := self._decode(descriptor, *message)) is not None:
                events.append(event)
        return events if alive else [*events, Lost(self)]

    def _decode(self, descriptor: Descriptor | None, verb: str, *values: Any) -> Event | None:
        match verb:
            case "ready":
                return Ready(self)
            case "counts":
                EVENT_COUNTS.add_all(values[0])
            case "arena":
                assert descriptor is not None
                self._arena = mmap.mmap(descriptor.fileno(), values[0])
            case _:
                try:
                    return self._answer(verb, *values)
                except Exception as error:  # of a class that cannot be unpickled here
                    error.add_note("this process could not unpickle the result of a worker process")
                    return Answer(self, values[0], error=error)
        return None

    def _answer(self, verb: str, number: int, *values: Any) -> Answer:
        if verb == "error":
            return Answer(self, number, error=deserialize_error(values[0]))
        if verb == "inline":
            pickled, buffers = values
        else:  # "shared"
            (ranges, spans), free = values, self._free  # views must not refer to this worker
            assert self._arena is not None
            pickled, *buffers = view_ranges(
                self._arena, ranges, spans, lambda i: free.append(ranges[i][0])
            )
        return Answer(self, number, UnitResult(*deserialize(pickled, buffers)))

    def end(self) -> str:
        self.process.kill()
        code = self.process.wait()
        self.connection.close()
        self._arena = None  # results keep what they view
        return f"died ({'signal' if code < 0 else 'exit code'} {abs(code)})"

    def is_stopped(self) -> bool:
        try:
            with open(f"/proc/{self.process.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
        except (OSError, IndexError):
            return False

    def resident(self) -> dict[str, int]:
        return {str(self.process.pid): measure_resident_memory(self.process.pid)}


class ProcessTransport:
    """Starts worker processes, and talks to them over sockets.

    `idle` bounds the unused bytes of shared memory of each. The workers end when this process does:
    each watches a pipe that closes with it.
    """

    worker, worker_plural = "worker process", "worker processes"
    reach: DataLocation = "machine"

    def __init__(self, idle: int) -> None:
        self._idle, self._pipe = idle, list[int]()
        self._workers = dict[int, ProcessWorker]()  # by the number of the socket
        with convert_storage_errors("worker processes"):
            self._bell, self._rope = socket.socketpair()  # a byte in it ends `wait`
        for end in (self._bell, self._rope):
            end.setblocking(False)
        _transports.add(self)

    def serialize_job(self, job: Job) -> SharedJob:
        return SharedJob(_serialize(job))

    def serialize_values(self, values: list[Any] | None) -> Any:
        return None if values is None else _serialize(values).inline()

    def start(self) -> ProcessWorker:
        if not self._pipe:
            self._pipe += os.pipe()
        here, there = socket.socketpair()
        here.setblocking(False)
        fds = there.fileno(), self._pipe[0]
        arguments = [*map(str, (*fds, os.getpid(), self._idle)), json.dumps(sys.path)]
        # Ctrl-C is for this process alone; the worker ignores it once it has started.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", BOOT, *arguments],
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                env={"OMP_NUM_THREADS": "1", **os.environ},
            )
        except BaseException:
            here.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            there.close()
        worker = self._workers[here.fileno()] = ProcessWorker(process, Connection(here))
        return worker

    def wait(self, seconds: float) -> list[Event]:
        """Send what is queued, and read what arrives within some seconds."""
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        for fd, worker in self._workers.copy().items():
            if worker.connection.fileno() < 0:  # it was ended
                del self._workers[fd]
            else:
                poll.register(fd, select.POLLIN | (select.POLLOUT if worker.flush() else 0))
        events = list[Event]()
        for fd, ready in poll.poll(seconds * 1000):
            if (worker := self._workers.get(fd)) is None:
                self._bell.recv(1 << 12)
            elif ready & ~select.POLLOUT:
                events += worker.receive()
        return events

    def wake(self) -> None:
        with suppress(OSError):  # it is full of calls, or closed
            self._rope.send(b"!")

    def close(self) -> None:
        for end in (self._bell, self._rope):
            end.close()
        self._workers.clear()
        while self._pipe:
            os.close(self._pipe.pop())

    def close_after_fork(self) -> None:
        """Close, in a fork of this process, what would keep the workers alive."""
        for worker in self._workers.values():
            worker.process.returncode = 0  # it is no child of the fork
            worker.connection.close()
        while self._pipe:
            os.close(self._pipe.pop())


def _serialize(value: Any) -> Serialized:
    try:
        return serialize(value)
    except (TypeError, AttributeError, pickle.PicklingError, RecursionError) as error:
        raise make_unpicklable_error("processes", error) from error


_transports: weakref.WeakSet[ProcessTransport] = weakref.WeakSet()


def _close_after_fork() -> None:
    for transport in list(_transports):
        transport.close_after_fork()
    _transports.clear()


os.register_at_fork(after_in_child=_close_after_fork)
