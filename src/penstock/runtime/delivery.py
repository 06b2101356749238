"""Items on their way out: a stream, and the chunk of it that is being given out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.rows import Rows, empty_rows
from ..base.seams import world
from ..streams.budget import Weight, bytes_of_all
from ..streams.step import Leaf
from ..streams.stream import Stream, Tap
from ..streams.trail import Chunk, Fixed
from ..streams.work import Pace
from ..types import Ints, Json


class Delivery:
    """Gives out the items of a stream one by one, and stands after the last of them.

    Whatever is thrown while a chunk is made (a bad sample, Ctrl-C), it stays there: the stream is put back before
    anything else is asked of it. `wide` is how many items may be made at a time, `most` how many by the user's wish,
    `room` how many bytes.

    `values[used:stop]` are at hand. Who takes one calls nothing between looking and counting it: Python throws, and
    goes to another thread, at calls only, so an item is given once or not begun. `stop = 0` keeps all of them back.
    """

    def __init__(self, stream: Stream, leaves: Sequence[Leaf], wide: int, most: int | None, room: int) -> None:
        self.stream, self.leaves, self.wide, self.most, self.room = stream, leaves, wide, most, room
        self._tap, self._counts, self._items, self.bytes = Tap(stream), np.zeros(len(leaves), np.int64), 0, 0.0
        self.seek(0, None)

    def seek(self, epoch: int, cursor: Json) -> None:
        self._tap.seek(epoch, cursor)
        self._hold(Chunk([], empty_rows(0), Fixed(self._tap.cursor())))
        self._epoch, self._pace, self._weight = epoch, Pace(self.wide), Weight()
        self._ended = self._astray = False

    def cursor(self) -> Json:
        return self.moment()()

    def moment(self) -> Callable[[], Json]:
        """The cursor as it is now, to be made later."""
        trail, used = self._chunk.trail, self.used
        return lambda: trail.at(used)

    def next(self) -> Any:
        """The next item, or StopIteration for good."""
        if self.used >= self.stop:
            self.fill()
        used = self.used
        value = self.values[used]
        self.used = used + 1
        return value

    def _hold(self, chunk: Chunk) -> None:
        self._chunk, self.values, self.used, self.stop = chunk, chunk.values, 0, len(chunk.values)

    def fill(self) -> None:
        """Have an item at hand; StopIteration where there is none."""
        self.stop = len(self.values)
        if self.used < self.stop:
            return
        if self._ended:
            raise StopIteration
        began = world.sched.now()
        n = min(self._pace.size, self._weight.items(self.room), self._pace.size if self.most is None else self.most)
        if careful := self._astray:
            n = self._back()
        self._astray = True
        try:
            chunk = self._tap.some(n)
        except Exception:  # of this item, or of one that was made ahead
            if careful:
                raise
            chunk = self._tap.some(self._back())
        self._pace.took(len(chunk.values), world.sched.now() - began)
        self._ended = not chunk.values
        if self._ended:
            self._astray = False
            raise StopIteration
        self._counts, self._items = self.given(), self.items
        size = bytes_of_all(chunk.values)
        self._weight.learn(size, len(chunk.values))
        self.bytes += size
        self._hold(chunk)
        self._astray = False

    def _back(self) -> int:
        """Put the stream back behind the last item given; how many to take now, so that what precedes a failure is
        given before it.
        """
        self._tap.seek(self._epoch, self.cursor())
        self._pace.size = 1
        return 1

    def given(self) -> Ints:
        """Samples given out by source, since this was opened."""
        given = self._chunk.rows.slice(0, self.used)
        return self._counts + np.bincount(given.leaf, minlength=len(self._counts))

    @property
    def items(self) -> int:
        """Items given out, since this was opened."""
        return self._items + self.used

    def rows(self) -> Rows:
        """The samples of the last item."""
        return self._chunk.rows.slice(self.used - 1, self.used) if self.used else empty_rows(0)

    def began(self) -> Json:
        """The cursor before the last item."""
        return self._chunk.trail.at(max(self.used - 1, 0))

    def keys(self) -> list[tuple[str, int, int]]:
        """Source, epoch and index of every sample in the last item."""
        return named(self.rows(), self.leaves)


def named(rows: Rows, leaves: Sequence[Leaf]) -> list[tuple[str, int, int]]:
    """Source, epoch and index of every sample of these rows."""
    names = [leaves[int(leaf)].name for leaf in rows.leaf]
    return list(zip(names, rows.epoch.tolist(), rows.index.tolist(), strict=True))
