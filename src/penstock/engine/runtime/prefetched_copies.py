"""Prefetch of copies, for example to a device, while a training step runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import finalize

from ..base.seams import world
from ..base.thread_pool import Task
from .delivery import Delivery

_PATIENCE = 0.5  # seconds that closing waits for a copy under way
_PREFETCHED = 2  # items beside the one that is given: one on its way while another waits


class PrefetchedCopies:
    """Copies of the items of a delivery, made in order on a thread before they are requested.

    They are no part of any state: an item counts as given when the delivery says so.
    """

    def __init__(self, copy: Callable[[Any], Callable[[], Any]]) -> None:
        self._copy, self._thread = copy, world.sched.spawn(1)
        self._finish = finalize(self, self._thread.close, _PATIENCE)
        self._delivery: Delivery | None = None
        self._begun = deque[tuple[int, Task]]()  # with the number of the item

    def take(self, out: Delivery, item: Callable[[int], Any]) -> Any:
        """Return the copy of the next item; `item` returns the data to copy for a buffered item."""
        begun = self._begun
        if out is not self._delivery or (begun and begun[0][0] != out.items):
            self._delivery = out
            begun.clear()
        self._begin(out, item)
        out.buffer(1 + _PREFETCHED)
        self._begin(out, item)
        try:
            copied = begun[0][1].result()()
        except Exception:
            begun.clear()  # asked again, it is copied again
            raise
        begun.popleft()
        return copied

    def _begin(self, out: Delivery, item: Callable[[int], Any]) -> None:
        for place in range(out.used + len(self._begun), min(out.stop, out.used + 1 + _PREFETCHED)):
            copied = self._thread.submit(partial(self._copy, item(place)))
            self._begun.append((out.items + place - out.used, copied))

    def close(self) -> None:
        self._begun.clear()
        self._finish()
