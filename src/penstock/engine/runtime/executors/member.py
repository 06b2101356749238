"""One worker process, as it is seen from the process that began it."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter, OrderedDict, deque
from typing import Protocol

from ...base.rows import ProvenanceRows
from ...base.thread_pool import Future
from ...streams.job import Done, Job
from .wire import Descriptor, Packed, Whole, Wire, shared_memory

_LOOK = 1.0  # seconds between two looks at whether the workers are still there

BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[5]); from "
    "penstock.engine.runtime.executors.worker import main; "
    "main(*map(int, sys.argv[1:5]))"
)


class Attends(Protocol):
    """Who talks to the workers."""

    def cancel(self, task: Sent, /) -> None: ...
    def require_open(self) -> None: ...


class Taught:
    """A job that workers were taught, and what it is made of: as long as that lives, nothing else
    has its identity."""

    def __init__(self, number: int, job: Job, found: Packed) -> None:
        self.number, self.job, self.spans, self.size = number, job, found.spans, found.size()
        self._found: Packed | None = found
        self._memory: Descriptor | None = None

    def memory(self) -> Descriptor:
        """The memory that workers read it from."""
        if self._memory is None:
            assert self._found is not None
            shared, fd = shared_memory(self.size)
            self._memory = Descriptor(fd)
            self._found.write(shared)
            self._found = None
        return self._memory


class Sent(Future):
    """A unit that workers compute."""

    def __init__(
        self, crew: Attends, number: int, job: Taught, values: Whole | None, rows: ProvenanceRows
    ) -> None:
        super().__init__()
        self.crew, self.number, self.job, self.values, self.rows = crew, number, job, values, rows
        self.at: tuple[int, int, int] | None = None  # the sample that a careful worker began last
        self.deaths, self.suspects = 0, Counter[tuple[int, int, int]]()

    def over(self) -> str:
        """Describe the work for people: the sample begun last if it is known, else all samples."""
        named, rows = self.job.job.named, self.rows
        if self.at is not None:
            return named(*self.at)
        first = named(int(rows.leaf[0]), int(rows.epoch[0]), int(rows.index[0]))
        return first if len(rows.leaf) == 1 else f"{len(rows.leaf)} samples from {first} on"

    def result(self) -> Done:
        while not self.wait(_LOOK):
            self.crew.require_open()
        return super().result()

    def cancel(self) -> None:
        self.crew.cancel(self)


class Member:
    """A worker: what it was given and has not answered, first things first; what it knows; the
    memory it shares."""

    def __init__(self, process: subprocess.Popen[bytes], wire: Wire) -> None:
        self.process, self.wire, self.ready = process, wire, False
        self.tasks, self.jobs = OrderedDict[int, Sent](), set[int]()
        self.arenas, self.free = dict[int, mmap.mmap](), deque[tuple[int, int]]()
        self.since = time.monotonic()

    def end(self) -> None:
        """End it, whatever it is doing; once more does nothing."""
        self.process.kill()
        self.process.wait()
        self.wire.close()

    def stopped(self) -> bool:
        """Whether it is stopped, where the system says."""
        try:
            with open(f"/proc/{self.process.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
        except (OSError, IndexError):
            return False


def begun(life: int, idle: int) -> Member:
    """Start a worker. It ends when the last holder of the other end of `life` closes it;
    `worker.main` explains `idle`.
    """
    here, there = socket.socketpair()
    here.setblocking(False)
    fds = there.fileno(), life
    arguments = [*map(str, (*fds, os.getpid(), idle)), json.dumps(sys.path)]
    # A Ctrl-C is for this process alone; until the worker says so itself it is held back.
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
    return Member(process, Wire(here))
