"""Prefetch on a thread: the next batch is computed, or copied to a device, during a training step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias
from weakref import finalize

from ...engine.base.seams import TaskPool, world
from ...engine.base.thread_pool import Task
from ...engine.runtime.states import OnMismatch
from ...engine.streams.execution import Pace
from ...errors import ConfigError

_CLOSE_SECONDS = 0.3  # that closing waits for a running function
_MAX_TASKS = 64  # that wait for the thread

LazyState: TypeAlias = Callable[[], dict[str, Any]]
"""Makes the state of an earlier position."""


class Resumable(Protocol):
    """An iterator with a state; `capture_state` costs nothing until its result is called."""

    def __next__(self) -> Any: ...
    def capture_state(self) -> LazyState: ...
    def load_state_dict(
        self, state: Mapping[str, Any], on_mismatch: OnMismatch = "error", /
    ) -> None: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class _Item:
    """A value with the state after it, an error, or (neither) the end."""

    value: Any = None
    state: LazyState | None = None
    error: Exception | None = None


class PrefetchIterator(Iterator[Any]):
    """Iterate over another iterator in its order, up to `n` items in advance; apply `fn` to each.

    One thread does both, so the consumer waits only if it is faster. The state is the one after the
    last *delivered* item: after a resume, the prefetched ones are made again. An error is raised
    when its item is due, and the next call tries the same item again. Several of these in a row are
    stages that overlap: read, then copy.

    >>> import penstock as ps
    >>> it = PrefetchIterator(iter(ps.from_sequence(range(5))), 2, fn=str)
    >>> next(it), next(it)
    ('0', '1')
    >>> state = it.state_dict()
    >>> again = PrefetchIterator(iter(ps.from_sequence(range(5))), 4, fn=str)
    >>> again.load_state_dict(state)
    >>> list(again)
    ['2', '3', '4']
    >>> it.close(), again.close()
    (None, None)
    """

    def __init__(self, source: Resumable, n: int, fn: Callable[[Any], Any] | None = None) -> None:
        if n < 1:
            raise ConfigError(f"PrefetchIterator(n={n}): give at least one item")
        self._source, self._n, self._fn = source, n, fn
        self._thread: TaskPool = world.sched.spawn(1)
        self._finish = finalize(self, self._thread.close, _CLOSE_SECONDS)
        self._reset()

    def _reset(self) -> None:
        state, pace = self._source.capture_state(), Pace()
        ready, tasks = deque[_Item](), deque[tuple[Task, int]]()
        self._unfinished: _Item | None = None
        # delivered: True if the first of the ready items was
        self._delivered = self._ended = False
        self._state, self._pace, self._ready, self._tasks = state, pace, ready, tasks

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        if self._delivered:
            self._delivered = False
            self._ready.popleft()
        while not self._ready:
            if not self._tasks:
                self.start()
            task, _ = self._tasks[0]
            task.wait()
            self._tasks.popleft()
            with suppress(CancelledError):
                task.result()
        self.start()
        item = self._ready[0]
        # No call from here on: an interrupt after it would lose the item.
        self._delivered = True
        if item.error is not None:
            raise item.error
        if item.state is None:
            self._ended = True
            raise StopIteration
        self._state = item.state
        return item.value

    def start(self) -> None:
        """Begin to prefetch, without waiting."""
        tasks = self._tasks
        while tasks and tasks[0][0].done() and not tasks[0][0].failed():
            tasks.popleft()
        free = self._n + self._delivered - len(self._ready) - sum(size for _, size in tasks)
        size = min(self._pace.size, max(1, self._n // 2))
        while free >= size and len(tasks) < _MAX_TASKS and not self._ended:
            free -= size
            tasks.append((self._thread.submit(lambda: self._make_items(size)), size))

    def _make_items(self, count: int) -> None:
        """Make the next items, on the thread. Tasks are alike: the first to run makes the first."""
        began = world.sched.now()
        for _ in range(count):
            try:
                self._ready.append(self._make_item())
            except StopIteration:
                self._ready.append(_Item())
            except Exception as error:
                self._ready.append(_Item(error=error))
        self._pace.learn(count, world.sched.now() - began)

    def _make_item(self) -> _Item:
        """Make one item; its sample is kept for another try if `fn` fails."""
        if self._unfinished is None:
            self._unfinished = _Item(next(self._source), self._source.capture_state())
        value, state = self._unfinished.value, self._unfinished.state
        item = _Item(value if self._fn is None else self._fn(value), state)
        self._unfinished = None
        return item

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last delivered item."""
        return self._state()

    def capture_state(self) -> LazyState:
        """Return a function that returns the present state later."""
        return self._state

    def load_state_dict(
        self, state: Mapping[str, Any], on_mismatch: OnMismatch = "error", /
    ) -> None:
        """Continue from a state; if it does not fit, everything stays as it was."""
        before = self._state
        self._stop()
        try:
            self._source.load_state_dict(state, on_mismatch)
        except BaseException:
            self._source.load_state_dict(before())
            raise
        finally:
            self._reset()

    def _stop(self) -> None:
        """Wait until the thread is idle."""
        for task, _ in self._tasks:
            task.cancel()
        with suppress(RuntimeError):  # the thread is closed
            # behind a task that an interrupt kept out of the list, too
            self._thread.submit(lambda: None).wait()
        for task, _ in self._tasks:
            task.wait()
        self._tasks.clear()

    def close(self) -> None:
        """Stop the thread without waiting long for a running function, and close the source."""
        self._finish()
        self._source.close()
