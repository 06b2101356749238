"""Items on their way out: a stream, and the chunk of it that is being given out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..base.rows import Rows, empty_rows
from ..base.seams import world
from ..streams.step import Leaf
from ..streams.stream import Stream, Tap
from ..streams.trail import Chunk, Fixed
from ..streams.work import Pace
from ..types import Ints, Json


class Delivery:
    """Gives out the items of a stream one by one, and stands after the last of them.

    Whatever is thrown while a chunk is made (a bad sample, Ctrl-C), it stays there: the stream is put back before
    anything else is asked of it. `wide` is how many items may be made at a time, `most` how many by the user's wish.
    """

    def __init__(self, stream: Stream, leaves: Sequence[Leaf], wide: int, most: int | None) -> None:
        self.stream, self.leaves, self.wide, self.most = stream, leaves, wide, most
        self._tap, self._counts = Tap(stream), np.zeros(len(leaves), np.int64)
        self.seek(0, None)

    def seek(self, epoch: int, cursor: Json) -> None:
        self._tap.seek(epoch, cursor)
        self._chunk = Chunk([], empty_rows(0), Fixed(self._tap.cursor()))
        self._epoch, self._used, self._pace = epoch, 0, Pace(self.wide)
        self._ended = self._astray = False

    def cursor(self) -> Json:
        return self.moment()()

    def moment(self) -> Callable[[], Json]:
        """The cursor as it is now, to be made later."""
        trail, used = self._chunk.trail, self._used
        return lambda: trail.at(used)

    def next(self) -> Any:
        """The next item, or StopIteration for good."""
        self.ready()
        used = self._used
        value = self._chunk.values[used]
        self._used = used + 1  # the last thing: Python throws at calls, so the item is given or not begun
        return value

    def ready(self) -> None:
        """Make the next item now, and give it out later; StopIteration where there is none."""
        if self._used == len(self._chunk.values):
            self._fill()

    def _fill(self) -> None:
        if self._ended:
            raise StopIteration
        began = world.sched.now()
        n = self._pace.size if self.most is None else min(self._pace.size, self.most)
        if careful := self._astray:
            n = self._back()
        self._astray = True
        try:
            chunk = self._tap.take(n)
        except Exception:  # of this item, or of one that was made ahead
            if careful:
                raise
            chunk = self._tap.take(self._back())
        self._pace.took(len(chunk.values), world.sched.now() - began)
        self._ended = not chunk.values
        if self._ended:
            self._astray = False
            raise StopIteration
        self._counts = self.given()
        self._chunk, self._used, self._astray = chunk, 0, False

    def _back(self) -> int:
        """Put the stream back behind the last item given; how many to take now, so that what precedes a failure is
        given before it.
        """
        self._tap.seek(self._epoch, self.cursor())
        self._pace.size = 1
        return 1

    def given(self) -> Ints:
        """Samples given out by source, since this was opened."""
        given = self._chunk.rows.slice(0, self._used)
        return self._counts + np.bincount(given.leaf, minlength=len(self._counts))

    def upcoming(self) -> Any:
        """The next item, after `ready`."""
        return self._chunk.values[self._used]

    def rows(self) -> Rows:
        """The samples of the last item."""
        return self._chunk.rows.slice(self._used - 1, self._used) if self._used else empty_rows(0)

    def began(self) -> Json:
        """The cursor before the last item."""
        return self._chunk.trail.at(max(self._used - 1, 0))

    def keys(self) -> list[tuple[str, int, int]]:
        """Source, epoch and index of every sample in the last item."""
        rows = self.rows()
        names = [self.leaves[int(leaf)].name for leaf in rows.leaf]
        return list(zip(names, rows.epoch.tolist(), rows.index.tolist(), strict=True))
