"""Items made before they are asked for, on a thread of their own: what lets the next batch be
computed, or copied to a device, while the training step runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, Protocol
from weakref import finalize

from ...errors import ConfigError
from ..base.seams import TaskPool, world
from ..base.thread_pool import Task
from ..streams.work import Pace
from .states import OnMismatch

_PATIENCE = 0.3  # seconds that closing waits for a function under way
_TURNS = 64  # pieces of work that wait for the thread at most

Moment = Callable[[], dict[str, Any]]


class Resumable(Protocol):
    """An iterator that can say where it stands: `moment` costs nothing and gives the state when it
    is called."""

    def __next__(self) -> Any: ...
    def moment(self) -> Moment: ...
    def load_state_dict(
        self, state: Mapping[str, Any], on_mismatch: OnMismatch = "error", /
    ) -> None: ...
    def close(self) -> None: ...


class _Given:
    """What one turn came to: a value with its moment, an error, or (neither) the end."""

    __slots__ = ("error", "moment", "value")

    def __init__(
        self, value: Any = None, moment: Moment | None = None, error: Exception | None = None
    ) -> None:
        self.value, self.moment, self.error = value, moment, error


class Ahead(Iterator[Any]):
    """Iterate over another iterator in its order, up to `n` items in advance; apply `fn` to each.

    One thread does both, so the consumer waits only where it is faster. The state is the one after
    the last item *given out*; what was made ahead of that is made again after a resume. An error
    comes at its place, and asking again tries the same item again. One `Ahead` behind another makes
    stages that overlap: read, then copy.

    >>> import penstock as ps
    >>> it = Ahead(iter(ps.from_sequence(range(5))), 2, fn=str)
    >>> next(it), next(it)
    ('0', '1')
    >>> state = it.state_dict()
    >>> again = Ahead(iter(ps.from_sequence(range(5))), 4, fn=str)
    >>> again.load_state_dict(state)
    >>> list(again)
    ['2', '3', '4']
    >>> it.close(), again.close()
    (None, None)
    """

    def __init__(self, source: Resumable, n: int, fn: Callable[[Any], Any] | None = None) -> None:
        if n < 1:
            raise ConfigError(f"Ahead(n={n}): give at least one item")
        self._source, self._n, self._fn = source, n, fn
        self._hands: TaskPool = world.sched.spawn(1)
        self._finish = finalize(self, self._hands.close, _PATIENCE)
        self._reset()

    def _reset(self) -> None:
        moment, pace = self._source.moment(), Pace()
        ready, turns = deque[_Given](), deque[tuple[Task, int]]()
        self._held: _Given | None = None
        self._given = self._over = (
            False  # given: whether the first of those that are ready was given out
        )
        self._moment, self._pace, self._ready, self._turns = moment, pace, ready, turns

    def __next__(self) -> Any:
        if self._over:
            raise StopIteration
        if self._given:
            self._given = False
            self._ready.popleft()
        while not self._ready:
            if not self._turns:
                self.start()
            turn, _ = self._turns[0]
            turn.wait()
            self._turns.popleft()
            with suppress(CancelledError):
                turn.result()
        self.start()
        given = self._ready[0]
        # No call from here on: an interrupt behind it would lose the item.
        self._given = True
        if given.error is not None:
            raise given.error
        if given.moment is None:
            self._over = True
            raise StopIteration
        self._moment = given.moment
        return given.value

    def start(self) -> None:
        """Begin, without waiting for anything."""
        turns = self._turns
        while turns and turns[0][0].done() and not turns[0][0].failed():
            turns.popleft()
        room = self._n + self._given - len(self._ready) - sum(k for _, k in turns)
        k = min(self._pace.size, max(1, self._n // 2))
        while room >= k and len(turns) < _TURNS and not self._over:
            room -= k
            turns.append((self._hands.submit(lambda k=k: self._turn(k)), k))

    def _turn(self, k: int) -> None:
        """The next `k` items, on the thread. Whichever turn runs first makes the first ones."""
        began = world.sched.now()
        for _ in range(k):
            try:
                self._ready.append(self._made())
            except StopIteration:
                self._ready.append(_Given())
            except Exception as error:
                self._ready.append(_Given(error=error))
        self._pace.took(k, world.sched.now() - began)

    def _made(self) -> _Given:
        """One item; kept for another try where `fn` fails on it."""
        if self._held is None:
            self._held = _Given(next(self._source), self._source.moment())
        value, moment = self._held.value, self._held.moment
        given = _Given(value if self._fn is None else self._fn(value), moment)
        self._held = None
        return given

    def state_dict(self) -> dict[str, Any]:
        """Where we stand, after the last item given out."""
        return self._moment()

    def moment(self) -> Moment:
        """The same, to be written down later."""
        return self._moment

    def load_state_dict(
        self, state: Mapping[str, Any], on_mismatch: OnMismatch = "error", /
    ) -> None:
        """Go where a state says; everything stays as it was if the state does not fit."""
        before = self._moment
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
        for turn, _ in self._turns:
            turn.cancel()
        with suppress(RuntimeError):  # it is closed
            self._hands.submit(
                _nothing
            ).wait()  # behind a turn that an interrupt left out of the list, too
        for turn, _ in self._turns:
            turn.wait()
        self._turns.clear()

    def close(self) -> None:
        """Stop the thread, and close what it reads from. A function that does not return soon is
        not waited for."""
        self._finish()
        self._source.close()


def _nothing() -> None: ...
