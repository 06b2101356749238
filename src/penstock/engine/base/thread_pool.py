"""A thread pool that is safe for a main thread that signals interrupt.

CPython runs signal handlers on the main thread, after a call or a backward jump, and raises their
exceptions (`KeyboardInterrupt`) there. `Condition`, `Event`, `concurrent.futures.Future` and
`Thread.start` are Python code, in which such an exception leaves a lock held forever. So the thread
that submits and waits uses no such lock, but queues written in C, which are reentrant, and
attribute stores. No handler runs between a store and the end of the next C call, so the pair is
atomic.
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

from ...errors import make_thread_error

_JOIN_SECONDS = 1.0  # for a thread whose function has returned


class Future:
    """Result that one thread sets and other threads wait for."""

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
        """Set the result or the error, and wake all waiting threads."""
        self._outcome = value, error
        with suppress(IndexError):
            while True:
                self._waiters.popleft().put(None)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the result, with a timeout in seconds; return whether it exists.

        Raises:
            RuntimeError: in a process that was forked after the work began, as the thread that
                computes it is in the parent.
        """
        if self._outcome is None:
            if self._process != os.getpid():
                raise RuntimeError(
                    "this process was forked while a thread of its parent computed this result; "
                    "compute it again here"
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
            del self, error  # avoid a reference cycle of traceback, frame and error


class Task(Future):
    """Function call that runs on a thread."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self._call: Callable[[], Any] | None = call
        self.cancelled = False

    def cancel(self) -> None:
        """Skip the call if it has not begun; waiting threads get a `CancelledError`."""
        self.cancelled = True

    def run(self) -> None:
        """Run the call, on the computing thread."""
        call, self._call = self._call, None
        if call is not None:
            self.finish(*((None, CancelledError()) if self.cancelled else _capture_outcome(call)))


def _capture_outcome(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return call(), None
    except BaseException as error:
        return None, error


class ThreadTask(Task):
    """Call on its own thread; the program waits for it at exit, unless `daemon`."""

    def __init__(self, call: Callable[[], Any], name: str, daemon: bool = False) -> None:
        super().__init__(call)
        self.started = False
        self.thread = threading.Thread(target=self.run, name=name, daemon=daemon)

    def start(self) -> None:
        """Start the thread."""
        start, no_arguments = self._start, ()
        self.started = True  # no interrupt can come between this store and the start
        start_new_thread(start, no_arguments)

    def _start(self) -> None:
        """Start the thread from a helper thread, which no signal interrupts.

        `Thread.start` waits for an `Event`, so it must not run on the main thread.
        """
        try:
            self.thread.start()
        except RuntimeError:  # the limit of threads is reached, so this thread runs the call
            self.run()

    def join(self, seconds: float | None) -> None:
        """Wait for the end of the thread, with a timeout in seconds."""
        if self.started and self.wait(seconds) and self.thread.ident:
            self.thread.join(_JOIN_SECONDS)


class _PoolQueue:
    """State shared by the threads of a pool; they do not reference the pool, so it is collected."""

    def __init__(self) -> None:
        self.tasks = deque[Task]()
        self.wakeups = SimpleQueue[object]()
        self.idle = SimpleQueue[None]()
        self.closed = self.full = False
        self.workers, self.process = list[ThreadTask](), 0
        self.pool: Callable[[], object | None] = object

    def is_abandoned(self) -> bool:
        """Return whether the program ends, or no thread waits for the tasks."""
        return self.closed or _shutdown.begun or self.pool() is None

    def work(self) -> None:
        """Run tasks until the pool is abandoned, on a thread of the pool."""
        _queue_of_thread[get_ident()] = self
        try:
            while True:
                self.wakeups.get()
                with suppress(IndexError):
                    while True:  # an interrupt may leave a task without a wakeup
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
    """Pool of at most `workers` threads, started on demand."""

    def __init__(self, workers: int) -> None:
        self._workers, self._queue = workers, _PoolQueue()
        # The callback is C code, as the garbage collector may call it anywhere.
        self._queue.pool = weakref.ref(self, self._queue.wakeups.put)

    def submit(self, call: Callable[[], Any], /) -> Task:
        """Run a call on a thread of the pool."""
        queue, task = self._queue, Task(call)
        if queue.closed or _shutdown.begun:
            raise RuntimeError("the thread pool is closed; open a new one")
        queue.tasks.append(task)
        queue.wakeups.put(None)
        if not queue.full:
            try:
                queue.idle.get_nowait()
            except Empty:
                self._start_worker(queue)
        return task

    def _start_worker(self, queue: _PoolQueue) -> None:
        """Start one more thread."""
        queue.process = os.getpid()
        queue.workers[:] = [worker for worker in queue.workers if worker.started]
        if len(queue.workers) < self._workers:
            worker = ThreadTask(queue.work, f"penstock-{id(queue):x}_{len(queue.workers)}")
            queue.workers.append(worker)
            try:
                worker.start()
            except RuntimeError as error:  # the limit of threads is reached
                worker.started = False
                if len(queue.workers) == 1:
                    raise make_thread_error(error) from error
        queue.full = len(queue.workers) >= self._workers

    def close(self, seconds: float | None = None, /) -> None:
        """Cancel the tasks that have not begun, and wait for the others, up to a timeout."""
        queue = self._queue
        queue.closed = True
        for task in list(queue.tasks):
            task.cancel()
            task.run()
        queue.tasks.clear()
        queue.wakeups.put(None)
        # The garbage collector may close a pool on its own thread, which cannot wait for itself.
        if _queue_of_thread.get(get_ident()) is queue or queue.process != os.getpid():
            return
        until = None if seconds is None else time.monotonic() + seconds
        for worker in queue.workers:
            worker.join(None if until is None else max(0.0, until - time.monotonic()))


class _ShutdownFlag:
    """The flag that the program is ending."""

    begun = False

    def begin(self) -> None:
        """End all threads after their current task; storage requests are not retried."""
        self.begun = True
        for queue in list(_queue_of_thread.values()):
            queue.wakeups.put(None)


_shutdown, _queue_of_thread = _ShutdownFlag(), dict[int, _PoolQueue]()
# `atexit` calls its functions after the threads were joined.
getattr(threading, "_register_atexit", atexit.register)(_shutdown.begin)


def is_abandoned() -> bool:
    """Return whether no thread needs this thread's result, as its pool or the program ends."""
    queue = _queue_of_thread.get(get_ident())
    return _shutdown.begun or (queue is not None and queue.closed)
