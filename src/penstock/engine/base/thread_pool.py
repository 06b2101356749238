"""A thread pool that is safe for a main thread that signals interrupt.

CPython runs signal handlers on the main thread, after a call or a backward jump, and raises there
what a handler raises (`KeyboardInterrupt`). Inside `Condition`, `Event`,
`concurrent.futures.Future` and `Thread.start`, which are Python
code, such an exception leaves a lock held forever. So the thread that submits and waits takes no
    such lock: it uses
queues written in C, which are reentrant, and attribute stores. Between a store and the end of the
next C call no handler runs, so the pair is atomic.
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

_JOIN_SECONDS = 1.0  # for a thread whose function has returned


class Future:
    """A result that one thread sets and other threads wait for."""

    def __init__(self) -> None:
        self._outcome: tuple[Any, BaseException | None] | None = None
        self._waiters, self._process = deque[SimpleQueue[None]](), os.getpid()

    def done(self) -> bool:
        """Return whether there is a result or an error."""
        return self._outcome is not None

    def failed(self) -> bool:
        """Return whether there is an error."""
        return self._outcome is not None and self._outcome[1] is not None

    def finish(self, value: Any, error: BaseException | None = None) -> None:
        """Set the result or the error, and wake all threads that wait."""
        self._outcome = value, error
        with suppress(IndexError):
            while True:
                self._waiters.popleft().put(None)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the result, at most so many seconds; return whether it is there.

        Raises:
            RuntimeError: in a process that was forked after the work began, which has no thread
                that does it.
        """
        if self._outcome is None:
            if self._process != os.getpid():
                raise RuntimeError(
                    "this process was forked while a thread of its parent computed this"
                )
            wakeup = SimpleQueue[None]()
            self._waiters.append(wakeup)
            if self._outcome is None:  # else `finish` may have missed the waiter
                with suppress(Empty):
                    wakeup.get(timeout=seconds)
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


class Task(Future):
    """A function call that a thread makes."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self._call: Callable[[], Any] | None = call
        self.cancelled = False

    def cancel(self) -> None:
        """Skip the call if it has not begun. Threads that wait get a `CancelledError`."""
        self.cancelled = True

    def run(self) -> None:
        """Make the call, on the thread that computes."""
        call, self._call = self._call, None
        if call is not None:
            self.finish(*((None, CancelledError()) if self.cancelled else _outcome(call)))


def _outcome(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:
        return None, error


class ThreadTask(Task):
    """A call on a thread of its own. The program waits for it at exit, unless `daemon`."""

    def __init__(self, call: Callable[[], Any], name: str, daemon: bool = False) -> None:
        super().__init__(call)
        self.started, self.thread = (
            False,
            threading.Thread(target=self.run, name=name, daemon=daemon),
        )

    def start(self) -> None:
        """Start the thread."""
        start, no_arguments = self._start, ()
        self.started = True  # and no interrupt comes before the thread is there
        start_new_thread(start, no_arguments)

    def _start(self) -> None:
        """Start the thread from another one, which no signal interrupts: `Thread.start` waits for
        an `Event`."""
        try:
            self.thread.start()
        except (
            RuntimeError
        ):  # the system has no room for one more thread, so this one makes the call
            self.run()

    def join(self, seconds: float | None) -> None:
        """Wait for the end of the thread, at most so many seconds."""
        if self.started and self.wait(seconds) and self.thread.ident:
            self.thread.join(_JOIN_SECONDS)


class _Queue:
    """The state that the threads of a pool share. They do not hold the pool, so an unused pool is
    collected."""

    def __init__(self) -> None:
        self.tasks, self.wakeups, self.idle = (
            deque[Task](),
            SimpleQueue[object](),
            SimpleQueue[None](),
        )
        self.closed = self.full = False
        self.workers, self.process = list[ThreadTask](), 0
        self.pool: Callable[[], object | None] = object

    def is_abandoned(self) -> bool:
        """Return whether the program ends, or no thread waits for the tasks any more."""
        return self.closed or _shutdown.begun or self.pool() is None

    def work(self) -> None:
        """Run tasks until no more will come, on a thread of the pool."""
        _queue_of_thread[get_ident()] = self
        try:
            while True:
                self.wakeups.get()
                with suppress(IndexError):
                    while True:  # also a task without a wakeup, because of an interrupt
                        task = self.tasks.popleft()
                        if self.is_abandoned():
                            task.cancel()
                        task.run()
                        del task
                if self.is_abandoned():
                    break
                if not self.full:
                    self.idle.put(None)
            self.wakeups.put(None)  # for the next thread
        finally:
            del _queue_of_thread[get_ident()]


class ThreadPool:
    """A pool of at most `workers` threads, which start when they are needed."""

    def __init__(self, workers: int) -> None:
        self._workers, self._queue = workers, _Queue()
        self._queue.pool = weakref.ref(
            self, self._queue.wakeups.put
        )  # written in C: the collector may call it anywhere

    def submit(self, call: Callable[[], Any], /) -> Task:
        """Have a thread make a call."""
        queue, task = self._queue, Task(call)
        if queue.closed or _shutdown.begun:
            raise RuntimeError("the threads have ended, and compute nothing any more")
        queue.tasks.append(task)
        queue.wakeups.put(None)
        if not queue.full:
            try:
                queue.idle.get_nowait()
            except Empty:
                self._start_worker(queue)
        return task

    def _start_worker(self, queue: _Queue) -> None:
        """Start one more thread."""
        queue.process = os.getpid()
        queue.workers[:] = [worker for worker in queue.workers if worker.started]
        if len(queue.workers) < self._workers:
            worker = ThreadTask(queue.work, f"penstock-{id(queue):x}_{len(queue.workers)}")
            queue.workers.append(worker)
            try:
                worker.start()
            except RuntimeError:  # the system has no room for it
                worker.started = False
                if len(queue.workers) == 1:
                    raise
        queue.full = len(queue.workers) >= self._workers

    def close(self, seconds: float | None = None, /) -> None:
        """Cancel the tasks that have not begun, and wait for the others, at most so many
        seconds."""
        queue = self._queue
        queue.closed = True
        for task in list(queue.tasks):
            task.cancel()
            task.run()
        queue.tasks.clear()
        queue.wakeups.put(None)
        # The collector may close a pool on one of its own threads, which cannot wait for itself.
        if _queue_of_thread.get(get_ident()) is queue or queue.process != os.getpid():
            return
        until = None if seconds is None else time.monotonic() + seconds
        for worker in queue.workers:
            worker.join(None if until is None else max(0.0, until - time.monotonic()))


class _Shutdown:
    """The flag that the program is ending."""

    begun = False

    def begin(self) -> None:
        """End all threads after the task that each runs. Requests to a store that is down are not
        retried."""
        self.begun = True
        for queue in list(_queue_of_thread.values()):
            queue.wakeups.put(None)


_shutdown, _queue_of_thread = _Shutdown(), dict[int, _Queue]()
# `atexit` calls its functions after the threads were joined.
getattr(threading, "_register_atexit", atexit.register)(_shutdown.begin)


def is_abandoned() -> bool:
    """Return whether no thread waits any more for this thread's result: its pool is closed, or the
    program ends."""
    queue = _queue_of_thread.get(get_ident())
    return _shutdown.begun or (queue is not None and queue.closed)
