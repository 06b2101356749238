"""Threads that compute for others, safe for a main thread that signals interrupt.

CPython runs signal handlers on the main thread, after a call or a backward jump, and what a handler raises
(`KeyboardInterrupt`) appears there. Inside `Condition`, `Event`, `Future` and `Thread.start`, which are Python code, it
leaves a lock held for ever. So this module takes no such lock on the thread that submits and waits: it uses queues
written in C, which are reentrant, and attribute stores. Between a store and the end of the next C call no handler runs,
so the pair is atomic.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from _thread import get_ident, start_new_thread
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

_LAST = 1.0  # seconds for a thread to be gone whose work is over


class Promise:
    """A result that one thread settles and others wait for."""

    def __init__(self) -> None:
        self._outcome: tuple[Any, BaseException | None] | None = None
        self._waiting = deque[SimpleQueue[None]]()

    def done(self) -> bool:
        """Return whether the result is there."""
        return self._outcome is not None

    def failed(self) -> bool:
        """Return whether the result is there, and is an error."""
        return self._outcome is not None and self._outcome[1] is not None

    def settle(self, value: Any, error: BaseException | None = None) -> None:
        """Store the result, or the error, and wake all who wait."""
        self._outcome = value, error
        with suppress(IndexError):
            while True:
                self._waiting.popleft().put(None)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the result, at most so many seconds; return whether it is there."""
        if self._outcome is None:
            bell = SimpleQueue[None]()
            self._waiting.append(bell)
            if self._outcome is None:  # else `settle` may have missed the bell
                with suppress(Empty):
                    bell.get(timeout=seconds)
        return self._outcome is not None

    def result(self) -> Any:
        """Wait for the result and return it, or raise the error."""
        while self._outcome is None:
            self.wait()
        value, error = self._outcome
        if error is None:
            return value
        try:
            raise error
        finally:
            del self, error  # the traceback would keep this frame, and the frame the error


class Task(Promise):
    """A function that a thread of a pool calls."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self._call: Callable[[], Any] | None = call
        self.cancelled = False

    def cancel(self) -> None:
        """Have the function not called, if it has not begun. Whoever waits gets a `CancelledError`."""
        self.cancelled = True

    def run(self) -> None:
        """Call the function, on the thread that computes."""
        call, self._call = self._call, None
        if call is not None:
            self.settle(*((None, CancelledError()) if self.cancelled else _outcome(call)))


def _outcome(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:
        return None, error


class Life(Task):
    """The work of one thread, from its beginning to its end. The program waits for it at exit, unless `daemon`."""

    def __init__(self, call: Callable[[], Any], name: str, daemon: bool = False) -> None:
        super().__init__(call)
        self.begun, self.thread = False, threading.Thread(target=self.run, name=name, daemon=daemon)

    def begin(self) -> None:
        """Begin it."""
        start, nothing = self._start, ()
        self.begun = True  # and no interrupt comes before the thread is there
        start_new_thread(start, nothing)

    def _start(self) -> None:
        """Start the thread, from another that no signal interrupts: `Thread.start` waits for an `Event`."""
        try:
            self.thread.start()
        except RuntimeError:  # there is no room for one more, so this one does the work
            self.run()

    def end(self, seconds: float | None) -> None:
        """Wait for the end, at most so many seconds."""
        if self.begun and self.wait(seconds) and self.thread.ident:
            self.thread.join(_LAST)


class _Crew:
    """What the threads of a pool share. They do not hold the pool, so that one without an owner is collected."""

    def __init__(self) -> None:
        self.tasks, self.bell, self.idle = deque[Task](), SimpleQueue[object](), SimpleQueue[None]()
        self.closed = self.full = False
        self.lives, self.process = list[Life](), 0
        self.owner: Callable[[], object | None] = object

    def work(self) -> None:
        """Run tasks until no more will come, on a thread of the pool."""
        _working[get_ident()] = self
        try:
            while True:
                self.bell.get()
                with suppress(IndexError):
                    while True:  # also a task whose bell was never rung, because of an interrupt
                        self.tasks.popleft().run()
                if self.closed or _exit.begun or self.owner() is None:
                    break
                if not self.full:
                    self.idle.put(None)
            self.bell.put(None)  # for the next thread
        finally:
            del _working[get_ident()]


class Pool:
    """So many threads, which begin when they are needed."""

    def __init__(self, workers: int) -> None:
        self._workers, self._crew = workers, _Crew()
        self._crew.owner = weakref.ref(self, self._crew.bell.put)  # in C, as it may be called in the middle of anything

    def submit(self, call: Callable[[], Any], /) -> Task:
        """Have a function called."""
        crew, task = self._crew, Task(call)
        if crew.closed or _exit.begun:
            raise RuntimeError("the threads have ended, and compute nothing any more")
        crew.tasks.append(task)
        crew.bell.put(None)
        if not crew.full:
            try:
                crew.idle.get_nowait()
            except Empty:
                self._hire(crew)
        return task

    def _hire(self, crew: _Crew) -> None:
        """Begin one more thread."""
        crew.process = os.getpid()
        crew.lives[:] = [life for life in crew.lives if life.begun]
        if len(crew.lives) < self._workers:
            life = Life(crew.work, f"penstock-{id(crew):x}_{len(crew.lives)}")
            crew.lives.append(life)
            try:
                life.begin()
            except RuntimeError:  # there is no room for it
                life.begun = False
                if len(crew.lives) == 1:
                    raise
        crew.full = len(crew.lives) >= self._workers

    def close(self, seconds: float | None = None, /) -> None:
        """Begin no more tasks. Wait for those that run, at most so many seconds."""
        crew = self._crew
        crew.closed = True
        for task in list(crew.tasks):
            task.cancel()
            task.run()
        crew.tasks.clear()
        crew.bell.put(None)
        # The collector may close a pool on one of its own threads, which cannot wait for itself.
        if _working.get(get_ident()) is crew or crew.process != os.getpid():
            return
        until = None if seconds is None else time.monotonic() + seconds
        for life in crew.lives:
            life.end(None if until is None else max(0.0, until - time.monotonic()))


class _Exit:
    """Whether the program ends."""

    begun = False

    def begin(self) -> None:
        """End all threads. Those that wait for a store that is down stop to wait."""
        self.begun = True
        for crew in list(_working.values()):
            crew.bell.put(None)


_exit, _working = _Exit(), dict[int, _Crew]()
# What `atexit` is told comes after threads were waited for.
getattr(threading, "_register_atexit", atexit.register)(_exit.begin)


def given_up() -> bool:
    """Return whether nobody waits any more for what this thread computes: its pool is closed, or the program ends."""
    crew = _working.get(get_ident())
    return _exit.begun or (crew is not None and crew.closed)
