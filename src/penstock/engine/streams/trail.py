"""Cursors that no step writes: a trail knows, for a chunk of items, the cursor after each of them.

A cursor is plain JSON. Trails are immutable and hold numbers and other trails, never data; a cursor
is built on request.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ...types import Json
from ..base.rows import ProvenanceRows


class ChunkCursors(Protocol):
    """The cursor after the first `count` items of a chunk."""

    def at(self, count: int, /) -> Json: ...


class Chunk(NamedTuple):
    """Some items in a row: values, provenance, and the way back."""

    values: list[Any]
    rows: ProvenanceRows
    cursors: ChunkCursors


@dataclass(frozen=True, slots=True)
class ConstantCursor:
    """A cursor that is known already."""

    cursor: Json

    def at(self, count: int, /) -> Json:
        return self.cursor


@dataclass(frozen=True, slots=True)
class PositionCursors:
    """Positions in a row: whole groups of `group` samples, `step` positions apart, up to `size`."""

    start: int
    group: int
    step: int
    size: int | None

    def at(self, count: int, /) -> Json:
        end = self.start + -(-count // self.group) * self.step
        return end if self.size is None else min(end, self.size)


@dataclass(frozen=True, slots=True)
class OffsetCursors:
    """Another trail, from its `by`-th item on."""

    trail: ChunkCursors
    by: int

    def at(self, count: int, /) -> Json:
        return self.trail.at(self.by + count)


@dataclass(frozen=True, slots=True)
class ContinuedCursors:
    """A trail whose beginning is the end of the one before: a boundary between chunks has one
    cursor, not two."""

    previous: ChunkCursors
    length: int
    trail: ChunkCursors

    def at(self, count: int, /) -> Json:
        return self.trail.at(count) if count else self.previous.at(self.length)


@dataclass(frozen=True, slots=True)
class JoinedCursors:
    """Trails one after the other; `starts[i]` items come before `trails[i]`."""

    trails: Sequence[ChunkCursors]
    starts: Sequence[int]

    def at(self, count: int, /) -> Json:
        i = max(0, bisect_right(self.starts, max(count - 1, 0)) - 1)
        return self.trails[i].at(count - self.starts[i])


@dataclass(frozen=True, slots=True)
class GroupedCursors:
    """Items made of `n` items each."""

    trail: ChunkCursors
    n: int
    total: int

    def at(self, count: int, /) -> Json:
        return self.trail.at(min(count * self.n, self.total))


@dataclass(frozen=True, slots=True)
class PassEndCursors:
    """A trail of `length` items whose last one ends a pass: the cursor behind it is known
    already."""

    trail: ChunkCursors
    length: int
    end: Json

    def at(self, count: int, /) -> Json:
        return self.trail.at(count) if count < self.length else self.end


@dataclass(frozen=True, slots=True)
class OriginCursors:
    """Items after filters and flat-maps: the i-th came from item `origin[i]` of the trail below.

    `many` says that one item may have given several: the cursor is then a pair, how far below, and
    how many of the next item's pieces are out already.
    """

    trail: ChunkCursors
    origin: Sequence[int]
    many: bool

    def at(self, count: int, /) -> Json:
        if count == 0:
            return [self.trail.at(0), 0] if self.many else self.trail.at(0)
        last = self.origin[count - 1]
        if not self.many:
            return self.trail.at(last + 1)
        if count == len(self.origin) or self.origin[count] != last:
            return [self.trail.at(last + 1), 0]
        out = 1
        while count - out > 0 and self.origin[count - out - 1] == last:
            out += 1
        return [self.trail.at(last), out]
