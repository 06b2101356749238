"""Streams: chunks of items, pulled one after another.

Every stream has four methods. `pull(n)` returns about n items, none at the end of the pass.
`cursor()` returns the cursor where a pass begins or was resumed. `seek(epoch, cursor)` goes to any
position, and `close()` releases files. No stream writes save or load code: `ChunkCursors` compute
cursors. After an exception the caller seeks before it continues.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from ...errors import replace_stop_iteration
from ...types import Json
from ..base.rows import compute_bounds, join_rows, make_empty_rows
from .chunk_cursors import (
    Chunk,
    ChunkCursors,
    ConstantCursor,
    ContinuedCursors,
    JoinedCursors,
    OffsetCursors,
)


class Stream(Protocol):
    """A stream of items, in chunks."""

    def pull(self, n: int, /) -> Chunk: ...
    def cursor(self) -> Json: ...
    def seek(self, epoch: int, cursor: Json, /) -> None: ...
    def close(self) -> None: ...


class UnaryStream:
    """Base class of streams and feeds over one input."""

    def input_at(self, epoch: int, cursor: Json, /) -> tuple[object, int, Json]:
        """Return the input, and its pass and cursor where this stream is at a pass and cursor."""
        raise NotImplementedError


class BufferedStream:
    """A stream with a buffer: takes exact numbers of items, and knows the cursor after each."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._rest: Chunk | None = None
        self._used = 0
        self._end: tuple[ChunkCursors, int] = (ConstantCursor(stream.cursor()), 0)

    def seek(self, epoch: int, cursor: Json) -> None:
        self.stream.seek(epoch, cursor)
        self._rest, self._used = None, 0
        self._end = (ConstantCursor(self.stream.cursor()), 0)

    def cursor(self) -> Json:
        """The cursor after the last item taken."""
        return self.cursor_trail().at(0)

    def cursor_trail(self) -> ChunkCursors:
        """Return the cursors from the last item taken on, without building them."""
        return (
            OffsetCursors(*self._end)
            if self._rest is None
            else OffsetCursors(self._rest.cursors, self._used)
        )

    def _fill(self, n: int) -> bool:
        try:
            chunk = self.stream.pull(n)
        except (
            StopIteration
        ) as error:  # of a function that measures, or opens: streams end otherwise
            raise replace_stop_iteration(error) from error
        if not chunk.values:
            return False
        cursors = ContinuedCursors(*self._end, chunk.cursors)
        self._rest, self._used = chunk._replace(cursors=cursors), 0
        return True

    def take_buffered(self, n: int) -> Chunk:
        """Return up to `n` items: buffered ones, else those of one pull. None at the end of the
        pass.
        """
        if self._rest is None and not self._fill(n):
            return Chunk([], make_empty_rows(0), ConstantCursor(self.cursor()))
        assert self._rest is not None
        return self.take(min(n, len(self._rest.values) - self._used))

    def take(self, n: int) -> Chunk:
        """Return exactly `n` items, fewer only at the end of the pass."""
        parts, missing = list[Chunk](), n
        while missing and (self._rest is not None or self._fill(missing)):
            rest, start = self._rest, self._used
            assert rest is not None
            stop = min(len(rest.values), start + missing)
            whole = start == 0 and stop == len(rest.values)
            cursors = rest.cursors if start == 0 else OffsetCursors(rest.cursors, start)
            parts.append(
                rest
                if whole
                else Chunk(rest.values[start:stop], rest.rows.slice(start, stop), cursors)
            )
            missing -= stop - start
            self._used = stop
            if stop == len(rest.values):
                inner = (
                    rest.cursors.cursors
                    if isinstance(rest.cursors, ContinuedCursors)
                    else rest.cursors
                )
                self._rest, self._end = None, (inner, stop)
        return (
            join_chunks(parts)
            if parts
            else Chunk([], make_empty_rows(0), ConstantCursor(self.cursor()))
        )


def join_chunks(parts: list[Chunk]) -> Chunk:
    """Join chunks to one."""
    if len(parts) == 1:
        return parts[0]
    starts = compute_bounds(np.asarray([len(part.values) for part in parts], np.int64)).tolist()[
        :-1
    ]
    values = [value for part in parts for value in part.values]
    return Chunk(
        values,
        join_rows([part.rows for part in parts]),
        JoinedCursors([part.cursors for part in parts], starts),
    )
