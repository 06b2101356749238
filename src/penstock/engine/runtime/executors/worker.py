"""A worker process: it computes units as they are sent, one after the other, and ends with the
process that began it.

It knows nothing of order: whatever it is asked, it answers, and a unit that is computed twice comes
out the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import mmap
import os
import pickle
import select
import signal
import socket
import sys
import threading
import time
import traceback
import weakref
from bisect import bisect_right
from collections import deque
from functools import partial
from typing import Any

import numpy as np

from ....errors import ConfigError, DataError, type_and_message
from ...base.event_counts import EVENT_COUNTS
from ...base.rows import ProvenanceRows
from ...base.shared_buffers import allocators
from ...streams.job import Done, Job
from ...streams.step import Failed, failed
from .wire import (
    INLINE,
    Descriptor,
    Packed,
    Whole,
    Wire,
    packed,
    packed_here,
    shared_memory,
    unpacked,
    views,
)

ARENA = 1 << 36
"""How much may lie in one arena; of memory it takes what is written to."""
IDLE = 1 << 26
"""Bytes of unused memory that a worker keeps for later results: so many, or twice the recent use;
never more than the loader allows.
"""


class Arena:
    """Shared memory that results are written to, in ranges that are taken and given back."""

    def __init__(self, number: int, idle: int) -> None:
        size = ARENA
        while True:
            try:
                self.memory, self.fd = shared_memory(size)
                break
            except OSError:
                size //= 2
                if size < IDLE:
                    raise
        self.number, self.size, self._idle = number, size, idle
        self._free: list[tuple[int, int]] = [(0, size)]
        self._taken = dict[int, int]()  # start and length of ranges
        self._used, self._peak = 0, 0.0
        self.holders = dict[
            int, int
        ]()  # of ranges that arrays lie in: how many still use them, here and there
        self._dropped = deque[int]()
        self.address: int = np.frombuffer(self.memory, np.uint8, 1).__array_interface__["data"][0]

    def take(self, size: int) -> int | None:
        """Where so many bytes are free, the first such place; None where they are nowhere."""
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        for i, (start, length) in enumerate(self._free):
            if length >= size:
                self._free[i : i + 1] = [(start + size, length - size)] if length > size else []
                self._taken[start] = size
                self._used += size
                self._peak = max(self._used, 0.99 * self._peak)
                return start
        return None

    def array(self, size: int) -> Any:
        """uint8[size] in a range of its own, which is given back when nobody has it any more."""
        while self._dropped:
            self.give_back(self._dropped.popleft())
        if (start := self.take(size)) is None:
            return None
        self.holders[start] = 1
        found: Any = np.frombuffer(self.memory, np.uint8, size, start)
        # Memory may be collected in the middle of anything, so that is only noted.
        weakref.finalize(found, self._dropped.append, start).atexit = False
        return found

    def holding(self, buffer: memoryview) -> tuple[int, int, int] | None:
        """The range that a buffer lies in, its size, and where in it; None for memory of others."""
        at = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0] - self.address
        if 0 <= at < self.size:
            for start in self.holders:
                if start <= at and at + buffer.nbytes <= start + self._taken[start]:
                    return start, self._taken[start], at - start
        return None

    def give_back(self, start: int) -> None:
        """A range is needed no more, by one of those who had it."""
        left = self.holders.pop(start, 1) - 1
        if left:
            self.holders[start] = left
            return
        length = self._taken.pop(start)
        self._used -= length
        i = bisect_right(self._free, (start, 0))
        if i < len(self._free) and self._free[i][0] == start + length:
            length += self._free.pop(i)[1]
        if i and sum(self._free[i - 1]) == start:
            i -= 1
            before, more = self._free.pop(i)
            start, length = before, length + more
        self._free.insert(i, (start, length))
        if self.held() - self._used > min(max(IDLE, int(2 * self._peak)), self._idle):
            for start, length in self._free:
                with contextlib.suppress(
                    OSError, AttributeError
                ):  # where memory cannot be given back it is kept
                    self.memory.madvise(mmap.MADV_REMOVE, start, length)

    def held(self) -> int:
        """The bytes of memory that this takes, whether they are used or not."""
        return 512 * os.fstat(self.fd).st_blocks


class Toil:
    """What a worker knows: the jobs, the memory, and what there is to do."""

    def __init__(self, wire: Wire, idle: int) -> None:
        self.wire, self._idle = wire, idle
        self.arenas: list[Arena] = []
        self.jobs, self.todo = dict[int, Job | str](), deque[tuple[Any, ...]]()

    def run(self) -> None:
        allocators.append(self.array)
        self.wire.put(("ready", os.getpid()))
        self.wire.send()
        while True:
            while not self.todo or select.select([self.wire], [], [], 0)[0]:
                if not self.wire.read():
                    return
                for message, fd in self.wire.messages():
                    self._heard(*message, fd=fd)
            self._do(*self.todo.popleft())

    def _heard(self, verb: str, *told: Any, fd: Descriptor | None) -> None:
        match verb:
            case "run":
                self.todo.append(told)
            case "job":
                number, size, spans = told
                assert fd is not None
                head, *buffers = views(
                    [(mmap.mmap(fd.fileno(), size), 0, size)],
                    [(0, *span) for span in spans],
                    _nothing,
                )
                try:
                    self.jobs[number] = unpacked(head, buffers)
                except Exception as error:
                    self.jobs[number] = type_and_message(error)
            case "forget":
                self.jobs.pop(told[0], None)
            case "cancel":
                self.todo = deque(task for task in self.todo if task[0] not in told[0])
            case _:  # "free"
                ranges: list[tuple[int, int]] = told[0]
                for number, start in ranges:
                    self.arenas[number].give_back(start)

    def _do(
        self, task: int, job: int, packed_values: Whole | None, rows: ProvenanceRows, careful: bool
    ) -> None:
        try:
            values = None if packed_values is None else unpacked(*packed_values)
            work = self.jobs[job]
            if isinstance(work, str):
                raise ConfigError(
                    f"a worker process cannot rebuild the functions that it received ({work}), "
                    "because it imports their modules again; put them into the script itself, or "
                    "where this program imports its own modules from"
                )
            try:
                done = (
                    work.carefully(values, rows, partial(self._say, "at", task))
                    if careful
                    else work(values, rows)
                )
            finally:
                if news := EVENT_COUNTS.news():
                    self._say("counted", 0, news)
            found = _sendable(done)
        except BaseException as error:
            self._say("failed", task, told_of(error))
            return
        if found.size() <= INLINE:
            return self._say("done", task, *found.whole())
        # What was put together in shared memory lies there already; the rest is copied, one thing
        # behind the other.
        there = [
            next(filter(None, map(partial(_in, buffer), self.arenas)), None)
            for buffer in found.buffers
        ]
        rest = Packed(
            found.head,
            [buffer for buffer, at in zip(found.buffers, there, strict=True) if at is None],
        )
        arena, start = self._room(rest.size())
        rest.write(arena.memory, start)
        ranges, spans, copied = (
            [(arena.number, start, rest.size())],
            list[tuple[int, int, int]](),
            iter(rest.spans),
        )
        for at, buffer in zip((None, *there), (found.head, *found.buffers), strict=True):
            if at is None:
                spans.append((0, *next(copied)))
            else:
                number, begin, size, offset = at
                self.arenas[number].holders[begin] += 1
                spans.append((len(ranges), offset, memoryview(buffer).nbytes))
                ranges.append((number, begin, size))
        del done, found
        self._say("shared", task, ranges, spans)

    def _room(self, size: int) -> tuple[Arena, int]:
        """Where so many bytes can be written."""
        for arena in self.arenas:
            if (start := arena.take(size)) is not None:
                return arena, start
        arena = self._new()
        if (start := arena.take(size)) is None:
            raise MemoryError(
                f"an item has {size:,} bytes, more than worker processes can share; make "
                "smaller items"
            )
        return arena, start

    def _new(self) -> Arena:
        """One more arena, which the other side is told of."""
        self.arenas.append(arena := Arena(len(self.arenas), self._idle))
        self._say("arena", arena.number, arena.size, fd=os.dup(arena.fd))
        return arena

    def array(self, size: int) -> Any:
        """Shared memory for a large batch; None where there is no room."""
        for arena in self.arenas or [self._new()]:
            if (found := arena.array(size)) is not None:
                return found
        return None

    def _say(self, *message: Any, fd: int | None = None) -> None:
        self.wire.put(message, fd)
        self.wire.send()


def _sendable(done: Done) -> Packed:
    """Pickle what came out; an error names the sample that cannot be."""
    try:
        return packed_here(done)
    except Exception:
        firsts = done.rows.firsts()
        for value, flat in zip(done.values, firsts.tolist(), strict=False):
            try:
                packed_here(value)
            except Exception as error:
                cause = DataError(
                    f"it cannot be sent from a worker process: {error}; convert it to plain "
                    "values in a map"
                )
                raise failed(done.rows, flat, cause) from error
        raise


def _nothing(which: int) -> None:
    """Jobs stay where they are."""


def _in(buffer: memoryview, arena: Arena) -> tuple[int, int, int, int] | None:
    found = arena.holding(buffer)
    return None if found is None else (arena.number, *found)


def told_of(error: BaseException) -> bytes:
    """Return an exception for the parent process, with its traceback as text; as text only if it
    cannot be pickled.
    """
    place = None
    if isinstance(error, Failed):
        place = {
            "leaf": error.leaf,
            "epoch": error.epoch,
            "index": error.index,
            "grouped": error.grouped,
        }
    cause = error.cause if isinstance(error, Failed) else error
    trace = "".join(traceback.format_exception(cause))
    cause.add_note(f"in a worker process:\n{trace}")
    for each in (cause, RuntimeError(f"{type_and_message(cause)}\n{trace}")):
        with contextlib.suppress(Exception):
            found = packed((place, each))
            told = found.whole()
            unpacked(*told)
            return pickle.dumps(told)
    raise AssertionError("an error in words can be sent")


def _end_with(parent: int, life: int) -> None:
    """Have the system end this process when its parent is gone, also where a function holds the
    interpreter."""
    with contextlib.suppress(OSError, AttributeError):
        signal.signal(signal.SIGIO, signal.SIG_DFL)
        fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main(fd: int, life: int, parent: int, idle: int) -> None:
    """Run a worker on an open socket, with a bound on its unused memory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    _end_with(parent, life)
    gc.freeze()
    try:
        Toil(Wire(socket.socket(fileno=fd)), idle).run()
    except (BrokenPipeError, ConnectionError):
        pass
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
