"""Delivery of the items of a stream, one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from ...errors import ConfigError
from ...types import Ints, Json
from ..base.rows import ProvenanceRows, make_empty_rows
from ..base.seams import world
from ..steps.packed import PackedOp
from ..streams.budget import ItemSize, estimate_total_bytes
from ..streams.chunk_cursors import Chunk, ConstantCursor, OffsetCursors
from ..streams.execution import Pace
from ..streams.function_call import Leaf
from ..streams.stream import BufferedStream, Stream, join_chunks

_CACHED = 8 << 20


class OutputForm(Protocol):
    """Output form of items, such as the tensors of a framework; integrations provide them."""

    @property
    def copies(self) -> bool:
        """True if items are also copied in advance, to a device or to pinned memory."""
        ...

    @property
    def implied_rank(self) -> tuple[int, int] | None:
        """The rank and world size that the device layout implies, if it implies any."""
        ...

    def values(self, items: list[Any], /) -> list[Any]:
        """Convert items in memory."""
        ...

    def copy(self, item: Any, /) -> Callable[[], Any]:
        """Begin to copy an item, on the copying thread.

        The result returns the copy, on the thread that receives it.
        """
        ...


class Delivery:
    """Delivers the items of a stream one by one; its position follows the last one.

    An exception while a chunk is made (a bad sample, Ctrl-C) keeps the position: the stream is
    sought back before the next request. `max_items` limits the items made at a time, `most` is the
    user's limit, and `max_bytes` the bytes. `form` converts the items. `cropping` are the packs that
    cut off the ends of documents.

    `values[used:stop]` are buffered. The consumer calls nothing between reading and counting one:
    Python throws, and goes to another thread, at calls only, so an item is given once or not begun.
    `stop = 0` keeps all of them back.
    """

    def __init__(
        self,
        stream: Stream,
        leaves: Sequence[Leaf],
        wide: int,
        most: int | None,
        room: int,
        form: OutputForm | None,
        cropping: Sequence[PackedOp] = (),
    ) -> None:
        self.stream = stream
        self.leaves = leaves
        self.max_items = wide
        self.most = most
        self.max_bytes = room
        self._form = form
        self._input = BufferedStream(stream)
        self._cropping = cropping
        self._counts = np.zeros((2, len(leaves)), np.int64)
        self._items = 0
        self.bytes = 0.0
        self._busy = False
        self.seek(0, None)

    def seek(self, epoch: int, cursor: Json) -> None:
        self._input.seek(epoch, cursor)
        self._set_chunk(
            (Chunk([], make_empty_rows(0), ConstantCursor(self._input.cursor())),),
            0,
            self._counts,
            self._items,
        )
        self._epoch, self._pace, self._item_size = epoch, Pace(self.max_items), ItemSize()
        self._ended = self._is_off_position = False

    def cursor(self) -> Json:
        return self.capture_cursor()()

    def capture_cursor(self) -> Callable[[], Json]:
        """Return a function that returns the present cursor later."""
        cursors, used = self._chunk.cursors, self.used
        return lambda: cursors.at(used)

    def next(self) -> Any:
        """Return the next item; raise `StopIteration` at the end of the pass."""
        if self.used >= self.stop:
            self.fill()
        used = self.used
        value = self.values[used]
        self.used = used + 1
        return value

    def _set_chunk(self, parts: tuple[Chunk, ...], used: int, counts: Ints, items: int) -> None:
        chunk = join_chunks([*parts])
        stop = len(chunk.values)
        # No call from here on.
        self._counts, self._items, self._parts, self._chunk = counts, items, parts, chunk
        self.values, self.used, self.stop = chunk.values, used, stop

    def fill(self) -> None:
        """Buffer an item; raise `StopIteration` if there is none."""
        self.require_idle("next()")
        self.stop = len(self.values)
        if self.used < self.stop:
            return
        self._busy = True
        try:
            self._fill()
        finally:
            self._busy = False

    def require_idle(self, call: str) -> None:
        """Raise `ConfigError` for a call while items are made: both would move the stream."""
        if self._busy:
            raise ConfigError(
                f"{call} during next() of the same run is not possible (from a signal handler, a "
                "function of the pipeline or another thread); set a flag in a signal handler, "
                "and read it between two items"
            )

    def _fill(self) -> None:
        if self._ended:
            raise StopIteration
        careful = self._is_off_position
        n = self._seek_after_last_item() if careful else self._items_to_take
        self._is_off_position = True
        try:
            chunk = self._take(n)
        except Exception:  # of this item, or of one that was made ahead
            if careful:
                raise
            chunk = self._take(self._seek_after_last_item())
        if self._ended:
            self._is_off_position = False
            raise StopIteration
        self._set_chunk((chunk,), 0, self.count_by_source(), self.items)
        self._is_off_position = False

    def buffer(self, n: int) -> None:
        """Buffer up to `n` items. An error is raised when its item is due."""
        self.require_idle("next()")
        self._busy = True
        try:
            self._buffer(n)
        finally:
            self._busy = False

    def _buffer(self, n: int) -> None:
        while self.stop - self.used < n and not (self._ended or self._is_off_position):
            self._is_off_position = True
            try:
                chunk = self._take(self._items_to_take)
            except Exception:
                return
            if not self._ended:
                first = max(self.used - 1, 0)  # what was given last can still be asked about
                parts = (*_drop_items(self._parts, first), chunk)
                self._set_chunk(parts, self.used - first, self._count(first), self._items + first)
            self._is_off_position = False

    @property
    def _items_to_take(self) -> int:
        """The number of items to take now."""
        size = self._pace.size
        return min(
            size,
            self._item_size.items(min(self.max_bytes, _CACHED)),
            size if self.most is None else self.most,
        )

    def _take(self, n: int) -> Chunk:
        """Take the next items, in the requested form."""
        began = world.sched.now()
        chunk = self._input.take_buffered(n)
        self._ended = not chunk.values
        self._pace.learn(len(chunk.values), world.sched.now() - began)
        size = estimate_total_bytes(chunk.values)
        self._item_size.learn(size, len(chunk.values))
        self.bytes += size
        return (
            chunk
            if self._form is None or self._ended
            else chunk._replace(values=self._form.values(chunk.values))
        )

    def _seek_after_last_item(self) -> int:
        """Seek after the last delivered item; return the number of items to take next.

        With one at a time, items before a failure are delivered first.
        """
        self._input.seek(self._epoch, self.cursor())
        self._pace.size = 1
        return 1

    def count_by_source(self) -> Ints:
        """Return delivered samples and cropped tokens by source, since this was opened."""
        return self._count(self.used)

    def _count(self, used: int) -> Ints:
        given, sources = self._chunk.rows.slice(0, used), len(self.leaves)
        samples = np.bincount(given.leaf, minlength=sources)
        cropped = np.zeros(sources, np.int64)
        for pack in self._cropping:
            np.add.at(cropped, given.leaf, pack.measure_crops(given))
        return self._counts + np.stack([samples, cropped])

    def reset_counts(self) -> None:
        """Reset the counts of delivered items and samples."""
        self._counts, self._items = self._counts - self.count_by_source(), -self.used

    @property
    def items(self) -> int:
        """The number of delivered items, since this was opened."""
        return self._items + self.used

    def last_rows(self) -> ProvenanceRows:
        """Return the samples of the last item."""
        return self.rows_of(self.used - 1) if self.used else make_empty_rows(0)

    def rows_of(self, item: int) -> ProvenanceRows:
        """Return the samples of a buffered item."""
        return self._chunk.rows.slice(item, item + 1)

    def last_item_start(self) -> Json:
        """Return the cursor before the last item."""
        return self.cursor_before(max(self.used - 1, 0))

    def cursor_before(self, item: int) -> Json:
        """Return the cursor before a buffered item."""
        return self._chunk.cursors.at(item)

    def keys(self) -> list[tuple[str, int, int]]:
        """Return source, epoch and index of every sample in the last item."""
        return name_samples(self.last_rows(), self.leaves)


def name_samples(rows: ProvenanceRows, leaves: Sequence[Leaf]) -> list[tuple[str, int, int]]:
    """Return source, epoch and index of every sample of some rows."""
    names = [leaves[int(leaf)].name for leaf in rows.leaf]
    return list(zip(names, rows.epoch.tolist(), rows.index.tolist(), strict=True))


def _drop_items(parts: Sequence[Chunk], first: int) -> Iterator[Chunk]:
    """Yield consecutive chunks without their first items."""
    for values, rows, cursors in parts:
        if first < (n := len(values)):
            yield Chunk(values[first:], rows.slice(first, n), OffsetCursors(cursors, first))
        first = max(first - n, 0)
