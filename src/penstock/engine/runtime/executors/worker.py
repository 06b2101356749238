"""The main loop of a worker process: it computes tasks one after the other, in the order received.

It knows nothing of the order of samples: tasks are pure, so a task that is computed twice gives the
same result. The process ends with its parent.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import mmap
import os
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from ....arrays.shared_buffers import allocators
from ....errors import ConfigError, DataError, type_and_message
from ...base.event_counts import EVENT_COUNTS
from ...base.rows import ProvenanceRows
from ...streams.function_call import make_sample_failure
from ...streams.job import Job, UnitResult
from .connection import Connection, Descriptor
from .serialization import (
    INLINE,
    InlineValue,
    Serialized,
    deserialize,
    serialize_error,
    serialize_result,
)
from .shared_memory import Arena


class WorkerProcess:
    """Jobs that are known here, tasks that wait, and the shared memory for results."""

    def __init__(self, connection: Connection, idle: int) -> None:
        self._connection, self._idle = connection, idle
        self._arena: Arena | None = None
        self._jobs, self._tasks = dict[int, Job | str](), deque[tuple[Any, ...]]()

    def run(self) -> None:
        """Receive and compute until the parent closes the connection."""
        allocators.append(self._shared_array)
        self._send("ready")
        while True:
            while not self._tasks or select.select([self._connection], [], [], 0)[0]:
                if not self._connection.read():
                    return
                for message, descriptor in self._connection.messages():
                    self._receive(*message, descriptor=descriptor)
            self._compute(*self._tasks.popleft())

    def _receive(self, verb: str, *values: Any, descriptor: Descriptor | None) -> None:
        match verb:
            case "run":
                self._tasks.append(values)
            case "job":
                assert descriptor is not None
                self._learn(descriptor, *values)
            case "forget":
                self._jobs.pop(values[0], None)
            case "cancel":
                self._tasks = deque(task for task in self._tasks if task[0] != values[0])
            case _:  # "free"
                starts: list[int] = values[0]
                for start in starts:
                    self._open_arena().free(start)

    def _learn(
        self, descriptor: Descriptor, number: int, size: int, spans: Sequence[tuple[int, int]]
    ) -> None:
        """Rebuild a job; its arrays stay views of the memory that all workers share."""
        memory = mmap.mmap(descriptor.fileno(), size)
        view = memoryview(memory)
        pickled, *buffers = (view[offset : offset + length] for offset, length in spans)
        try:
            self._jobs[number] = deserialize(pickled, buffers)
        except Exception as error:
            self._jobs[number] = type_and_message(error)

    def _compute(
        self, task: int, job: int, serialized: InlineValue | None, rows: ProvenanceRows
    ) -> None:
        try:
            values = None if serialized is None else deserialize(*serialized)
            work = self._jobs[job]
            if isinstance(work, str):
                raise ConfigError(
                    f"a worker process cannot rebuild the functions that it received ({work}), "
                    "because it imports their modules again; put them into the script itself, or "
                    "where this program imports its own modules from"
                )
            try:
                done = work(values, rows)
            finally:
                if counts := EVENT_COUNTS.news():
                    self._send("counts", counts)
            result = _serialize_done(done)
            inline = result.size() <= INLINE
            kind, *parts = ("inline", *result.inline()) if inline else self._share(result)
        except BaseException as error:
            kind, parts = "error", [serialize_error(error)]
        self._send(kind, task, *parts)

    def _share(self, result: Serialized) -> tuple[Any, ...]:
        """Put a result into shared memory; return the message that says where its parts are.

        Arrays that were allocated there stay where they are. The other parts are copied into one
        range, or into the message if no gap is large enough.
        """
        arena = self._open_arena()
        found = [arena.find(buffer) for buffer in result.buffers]
        rest = [buffer for buffer, place in zip(result.buffers, found, strict=True) if not place]
        copied = Serialized(result.pickled, rest)
        if (start := arena.allocate(copied.size())) is None:
            return "inline", *result.inline()
        copied.write(arena.memory, start)
        ranges, unplaced = [(start, copied.size())], iter(copied.spans)
        spans = [(0, *next(unplaced))]
        for buffer, place in zip(result.buffers, found, strict=True):
            if place is None:
                spans.append((0, *next(unplaced)))
            else:
                arena.holders[place.start] += 1
                spans.append((len(ranges), place.offset, buffer.nbytes))
                ranges.append((place.start, place.size))
        return "shared", ranges, spans

    def _open_arena(self) -> Arena:
        if self._arena is None:
            arena = Arena(self._idle)
            self._send("arena", arena.size, fd=os.dup(arena.fd))
            self._arena = arena
        return self._arena

    def _shared_array(self, size: int) -> Any:
        """Return shared memory for a large batch; None without a gap for it."""
        return self._open_arena().array(size)

    def _send(self, *message: Any, fd: int | None = None) -> None:
        self._connection.put(message, fd)
        self._connection.send()


def _serialize_done(done: UnitResult) -> Serialized:
    """Pickle a result; an error names the sample that cannot be pickled."""
    try:
        return serialize_result(done)
    except Exception:
        firsts = done.rows.firsts()
        for value, flat in zip(done.values, firsts.tolist(), strict=False):
            try:
                serialize_result(value)
            except Exception as error:
                cause = DataError(
                    f"it cannot be sent from a worker process: {error}; convert it to plain "
                    "values in a map"
                )
                raise make_sample_failure(done.rows, flat, cause) from error
        raise


def _end_with(parent: int, lifeline: int) -> None:
    """End this process with its parent, even while a function holds the interpreter lock."""
    with contextlib.suppress(OSError, AttributeError):
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(fd: int, lifeline: int, parent: int, idle: int) -> None:
    """Run a worker process.

    Args:
        fd: its end of the connection.
        lifeline: a pipe that closes with the parent.
        parent: the process id of the parent.
        idle: a bound on the unused bytes of its shared memory.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    _end_with(parent, lifeline)
    gc.freeze()
    try:
        WorkerProcess(Connection(socket.socket(fileno=fd)), idle).run()
    except (BrokenPipeError, ConnectionError):
        pass
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
