"""Cursors of chunks: for each item of a chunk, the cursor after it. No step writes its own.

A cursor is plain JSON. `ChunkCursors` are immutable and hold numbers and other `ChunkCursors`,
never data; a cursor is built on request.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ...types import Json
from ..base.rows import ProvenanceRows


class ChunkCursors(Protocol):
    """Computes the cursor after the first `count` items of a chunk."""

    def at(self, count: int, /) -> Json: ...


class Chunk(NamedTuple):
    """Consecutive items: values, provenance, and cursors."""

    values: list[Any]
    rows: ProvenanceRows
    cursors: ChunkCursors


@dataclass(frozen=True, slots=True)
class ConstantCursor:
    """One cursor that is known already."""

    cursor: Json

    def at(self, count: int, /) -> Json:
        return self.cursor


@dataclass(frozen=True, slots=True)
class PositionCursors:
    """Cursors of consecutive positions: groups of `group` samples, `step` positions apart, up to
    `size`.
    """

    start: int
    group: int
    step: int
    size: int | None

    def at(self, count: int, /) -> Json:
        end = self.start + -(-count // self.group) * self.step
        return end if self.size is None else min(end, self.size)


@dataclass(frozen=True, slots=True)
class OffsetCursors:
    """Cursors of a chunk from its `by`-th item on."""

    cursors: ChunkCursors
    by: int

    def at(self, count: int, /) -> Json:
        return self.cursors.at(self.by + count)


@dataclass(frozen=True, slots=True)
class ContinuedCursors:
    """Cursors that begin with the last one of the previous chunk: a boundary has one cursor, not
    two.
    """

    previous: ChunkCursors
    length: int
    cursors: ChunkCursors

    def at(self, count: int, /) -> Json:
        return self.cursors.at(count) if count else self.previous.at(self.length)


@dataclass(frozen=True, slots=True)
class JoinedCursors:
    """Cursors of consecutive chunks; `starts[i]` items come before `parts[i]`."""

    parts: Sequence[ChunkCursors]
    starts: Sequence[int]

    def at(self, count: int, /) -> Json:
        i = max(0, bisect_right(self.starts, max(count - 1, 0)) - 1)
        return self.parts[i].at(count - self.starts[i])


@dataclass(frozen=True, slots=True)
class GroupedCursors:
    """Cursors of items that are made of `n` items each."""

    cursors: ChunkCursors
    n: int
    total: int

    def at(self, count: int, /) -> Json:
        return self.cursors.at(min(count * self.n, self.total))


@dataclass(frozen=True, slots=True)
class PassEndCursors:
    """Cursors of `length` items; the last item ends a pass, at the cursor `end`."""

    cursors: ChunkCursors
    length: int
    end: Json

    def at(self, count: int, /) -> Json:
        return self.cursors.at(count) if count < self.length else self.end


@dataclass(frozen=True, slots=True)
class OriginCursors:
    """Cursors of items after filters and flat-maps: item i came from input item `origin[i]`.

    With `many`, one input item may yield several. The cursor is then a pair: the input's cursor,
    and the number of delivered pieces of its next item.
    """

    cursors: ChunkCursors
    origin: Sequence[int]
    many: bool

    def at(self, count: int, /) -> Json:
        if count == 0:
            return [self.cursors.at(0), 0] if self.many else self.cursors.at(0)
        last = self.origin[count - 1]
        if not self.many:
            return self.cursors.at(last + 1)
        if count == len(self.origin) or self.origin[count] != last:
            return [self.cursors.at(last + 1), 0]
        out = 1
        while count - out > 0 and self.origin[count - out - 1] == last:
            out += 1
        return [self.cursors.at(last), out]
