"""Feeds of the execution loop: positions of a compiled step, or the items of another stream."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from ...types import MAX_POSITION, Ints, Json
from ..base.cursors import make_cursor_error, parse_cursor_int
from ..base.rows import ProvenanceRows, join_rows, make_empty_rows
from .chunk_cursors import ChunkCursors, OffsetCursors, PositionCursors
from .compiled_step import CompiledStep
from .rank_sharding import RankSharding
from .stream import BufferedStream, Stream, UnaryStream

FIRST_PLAN, LAST_PLAN = (
    16,
    16384,
)  # positions planned at a time: few at first, so that a resume is quick
_MIN_HINTED = (
    32  # rows told at a time at least, so that one that needs much does not stop the others
)
_PLANNED_FOR_HINTS = 4096  # rows planned ahead where hints are sent


@dataclass(frozen=True, slots=True)
class WorkUnit:
    """A unit of work: items, and the cursors after each.

    `values` is None for positions, whose rows the job reads.
    """

    values: list[Any] | None
    rows: ProvenanceRows
    cursors: ChunkCursors

    def __len__(self) -> int:
        return len(self.rows)

    def split(self, n: int) -> list[WorkUnit]:
        """Split into units of `n` items."""
        return [
            WorkUnit(
                self.values and self.values[i : i + n],
                self.rows.slice(i, min(i + n, len(self))),
                OffsetCursors(self.cursors, i),
            )
            for i in range(0, len(self), n)
        ]


class Feed(Protocol):
    """Feeds of the execution loop: positions of a compiled step, or the items of another stream."""

    def next(self, n: int, /) -> WorkUnit | None: ...
    def cursor(self) -> Json: ...
    def seek(self, epoch: int, cursor: Json, /) -> None: ...
    def close(self) -> None: ...


def pass_size(step: CompiledStep, epoch: int) -> int | None:
    """Return the number of positions in a pass; None for an endless step."""
    return None if step.passes is None else step.passes.size(epoch)


def pass_start(step: CompiledStep, epoch: int) -> int | None:
    """Return the first position of a pass; None for an endless step, whose passes are all alike."""
    start = None if step.passes is None else step.passes.start(epoch)
    # A pass of an endless index is long.
    return None if start is None or start >= MAX_POSITION else start


def locate_in_pass(step: CompiledStep, epoch: int, offsets: Ints) -> ProvenanceRows:
    """Return the samples at offsets in a pass. Later passes of an endless step have later epochs."""
    start = pass_start(step, epoch)
    if start is None:
        rows = step.locate(offsets)
        return rows.later(np.full_like(offsets, epoch)) if epoch else rows
    return step.locate(offsets + start)


class PositionFeed:
    """The positions of a step, one pass at a time, in whole groups except at the end of a pass."""

    def __init__(self, step: CompiledStep, spread: RankSharding) -> None:
        self.step, self.spread = step, spread
        self._epoch, self._at, self._end, self._plan = 0, 0, 0, FIRST_PLAN
        self._size = pass_size(step, 0)
        self._rows = make_empty_rows(step.depth)
        self._used: int = 0
        self._unit_start: int = 0  # where the last one began
        self._hinted: int = 0
        self._hint_reserve = MAX_POSITION  # told of: more is too much for now

    def cursor(self) -> Json:
        return self._at

    def seek(self, epoch: int, cursor: Json, /) -> None:
        self._epoch = epoch
        self._at = 0 if cursor is None else parse_cursor_int(cursor)
        self._plan = FIRST_PLAN
        self._end = self._at
        self._size = pass_size(self.step, epoch)
        if self._size is not None and self._at > self._size:
            raise make_cursor_error(cursor, f"a position up to {self._size}")
        self._rows = make_empty_rows(self.step.depth)
        self._used = 0
        self._unit_start = 0
        self._hinted = 0
        self._hint_reserve = MAX_POSITION

    def next(self, n: int, /) -> WorkUnit | None:
        if self._used == len(self._rows):
            self._unit_start = self._used
            if not self._locate():
                return None
        group = self.spread.group
        n = min(-(-n // group) * group, len(self._rows) - self._used)
        unit = self._rows.slice(self._used, self._used + n)
        cursors = self._make_cursors(self._at)
        self._unit_start, self._used = self._used, self._used + n
        self._at = parse_cursor_int(cursors.at(n))
        return WorkUnit(None, unit, cursors)

    def _make_cursors(self, at: int) -> PositionCursors:
        return PositionCursors(at, self.spread.group, self.spread.stride, self._size)

    def next_hint(self) -> ProvenanceRows:
        """Return the rows of the next prefetch hint, as many again as were hinted and not used."""
        start = max(self._hinted, self._unit_start)
        known = start - self._used  # less than nothing where some of the last unit are not told of
        if known >= self._hint_reserve:
            return self._rows.slice(start, start)
        while len(self._rows) - self._unit_start < _PLANNED_FOR_HINTS and self._locate():
            pass
        start = max(self._hinted, self._unit_start)
        self._hinted = min(start + max(known, -known, _MIN_HINTED), len(self._rows))
        whole = self._hinted == len(self._rows)  # then the next are planned and told together
        self._hint_reserve = (
            max((self._hinted - self._used) * 7 // 8, _MIN_HINTED) if whole else MAX_POSITION
        )
        return self._rows.slice(start, max(start, self._hinted))

    def retract_hint(self, rows: int, /) -> None:
        """Take back a hint of so many rows; repeat it once half of the hinted rows are used."""
        self._hinted -= rows
        self._hint_reserve = max((self._hinted - self._used) // 2, _MIN_HINTED)

    def planned_rows(self) -> ProvenanceRows:
        """Return the planned rows from the last unit on."""
        return self._rows.slice(self._unit_start, len(self._rows))

    def _locate(self) -> bool:
        """Plan the next stretch of positions."""
        size, epoch = self._size, self._epoch
        if not self.spread.takes_all_in_order:
            located = partial(self.locate_offsets, epoch=epoch)
            first = pass_start(self.step, epoch) or 0
            offsets = self.spread.next_positions(self._end, epoch, first, size, self._plan, located)
        else:
            stop = self._end + -(-self._plan // self.spread.group) * self.spread.group
            offsets = np.arange(self._end, stop if size is None else min(stop, size))
        if not offsets.size:
            return False
        rows, gone = self.locate_offsets(offsets, epoch), self._unit_start
        self._end = parse_cursor_int(self._make_cursors(self._end).at(len(rows)))
        self._plan = min(
            max(LAST_PLAN, 256 * int(np.count_nonzero(np.bincount(rows.leaf)))), self._plan * 4
        )
        self._rows = join_rows([self.planned_rows(), rows]) if gone < len(self._rows) else rows
        self._unit_start = 0
        self._used = self._used - gone
        self._hinted = max(self._hinted - gone, 0)
        return True

    def offsets_at(self, cursors: Ints, epoch: int) -> Ints:
        """Return the offsets in a pass of items by their cursors."""
        return cursors

    def locate_offsets(self, offsets: Ints, epoch: int) -> ProvenanceRows:
        """Return the samples at offsets in a pass."""
        return locate_in_pass(self.step, epoch, offsets)

    def close(self) -> None:
        pass


class PositionListFeed:
    """Given positions of a pass of a step, in the given order."""

    def __init__(self, step: CompiledStep, epoch: int, offsets: Ints) -> None:
        self._rows = locate_in_pass(step, epoch, offsets)
        self._used = 0

    def cursor(self) -> Json:
        return self._used

    def seek(self, epoch: int, cursor: Json, /) -> None:
        self._used = 0 if cursor is None else parse_cursor_int(cursor)

    def next(self, n: int, /) -> WorkUnit | None:
        start, self._used = self._used, min(self._used + n, len(self._rows))
        return (
            WorkUnit(None, self._rows.slice(start, self._used), PositionCursors(start, 1, 1, None))
            if self._used > start
            else None
        )

    def close(self) -> None:
        pass


class StreamFeed(UnaryStream):
    """The items of another stream as units of work."""

    def __init__(self, stream: Stream) -> None:
        self.input = BufferedStream(stream)

    def next(self, n: int, /) -> WorkUnit | None:
        chunk = self.input.take(n)
        return WorkUnit(chunk.values, chunk.rows, chunk.cursors) if chunk.values else None

    def cursor(self) -> Json:
        return self.input.cursor()

    def input_at(self, epoch: int, cursor: Json, /) -> tuple[object, int, Json]:
        return self.input.stream, epoch, cursor

    def seek(self, epoch: int, cursor: Json, /) -> None:
        self.input.seek(epoch, cursor)

    def close(self) -> None:
        self.input.stream.close()
