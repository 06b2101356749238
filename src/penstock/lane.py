"""One lane of a run: a stream, and the chunk of it that is being given out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .nodes import Flow
from .run import Opener
from .seams import world
from .streams import Tap
from .trail import Chunk
from .types import Ints, Json
from .work import Pace


class Lane:
    """One lane: a stream, and the chunk of it that is being given out."""

    def __init__(self, opener: Opener, flow: Flow) -> None:
        self.opener, self.builder, self.tap = opener, opener.builder, Tap(opener.open(flow))
        self.counts = np.zeros(len(self.builder.leaves), np.int64)
        self.seek(0, None)

    def seek(self, epoch: int, cursor: Json) -> None:
        self.tap.seek(epoch, cursor)
        self._chunk: Chunk | None = None
        self._used, self._pace, self.ended = 0, Pace(), False

    def cursor(self) -> Json:
        return self.tap.cursor() if self._chunk is None else self._chunk.trail.at(self._used)

    def moment(self) -> Callable[[], Json]:
        """The cursor as it is now, to be made later."""
        if self._chunk is None:
            cursor = self.tap.cursor()
            return lambda: cursor
        trail, used = self._chunk.trail, self._used
        return lambda: trail.at(used)

    def next(self) -> Any:
        """The next item, or StopIteration for good."""
        chunk = self._chunk
        if chunk is None or self._used == len(chunk.values):
            chunk = self._fill()
        value = chunk.values[self._used]
        self._used += 1
        return value

    def start(self) -> None:
        """Make the next item now, and give it out later."""
        if not self.ended and (self._chunk is None or self._used == len(self._chunk.values)):
            self._fill()

    def _fill(self) -> Chunk:
        if self.ended:
            raise StopIteration
        began = world.sched.now()
        try:
            most = self.opener.hired.most
            chunk = self.tap.take(self._pace.size if most is None else min(self._pace.size, most))
        except Exception:
            if self._pace.size == 1:
                raise
            self._pace.size = 1  # what comes before the failure is delivered before it
            chunk = self.tap.take(1)
        self._pace.took(len(chunk.values), world.sched.now() - began)
        if not chunk.values:
            self.ended = True
            raise StopIteration
        self._count()
        self._chunk, self._used = chunk, 0
        return chunk

    def _count(self) -> None:
        """Add the items given out of the chunk to the counts by source."""
        if self._chunk is not None and self._used:
            given = self._chunk.rows.slice(0, self._used)
            self.counts += np.bincount(given.leaf, minlength=len(self.counts))

    def given(self) -> Ints:
        """Samples given out by source, since this lane was opened."""
        if self._chunk is None or not self._used:
            return self.counts
        given = self._chunk.rows.slice(0, self._used)
        return self.counts + np.bincount(given.leaf, minlength=len(self.counts))

    def keys(self) -> list[tuple[str, int, int]]:
        """Source, epoch and index of every sample in the last item."""
        if self._chunk is None or not self._used:
            return []
        rows = self._chunk.rows.slice(self._used - 1, self._used)
        names = [self.builder.leaves[int(leaf)].name for leaf in rows.leaf]
        return list(zip(names, rows.epoch.tolist(), rows.index.tolist(), strict=True))
