"""`ds.limit(n)` and `ds.skip(n)` of a dataset that is not indexed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from ...errors import StateError
from ...types import Json, Path
from ..base.cursors import parse_cursor_int, parse_cursor_list
from ..base.shown import format_call
from ..streams.chunk_cursors import Chunk, ChunkCursors
from ..streams.empty_passes import EmptyPassDetector
from ..streams.lanes import InterleavedLanes
from ..streams.rank_sharding import RankSharding
from ..streams.shared_reader import ONE_PASS, LaneContext, PassCounts, SharedReader
from ..streams.stream import BufferedStream, Stream
from ..streams.stream_opener import StreamOpener
from .op import Op, UnaryOp
from .paths import Migration
from .step import Builder, Step, UnaryStep, Written

_PASSED = 1024  # items that are passed over at a time


class FirstPass:
    """A stream that gives the items of its first pass in every pass."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self._epoch = stream, 0

    def cursor(self) -> Json:
        return self.stream.cursor()

    def seek(self, epoch: int, cursor: Json, /) -> None:
        self._epoch = epoch
        self.stream.seek(0, cursor)

    def close(self) -> None:
        self.stream.close()

    def pull(self, n: int, /) -> Chunk:
        values, rows, cursors = self.stream.pull(n)
        return Chunk(values, replace(rows, epoch=rows.epoch + self._epoch), cursors)


class Remaining:
    """The part of a stream after its first `n` items.

    The cursor has the number still to come, and the cursor below.
    """

    def __init__(self, stream: Stream, n: int) -> None:
        self._input, self._n = BufferedStream(stream), n
        self.seek(0, None)

    def cursor(self) -> Json:
        return [self._left, self._input.cursor()]

    def seek(self, epoch: int, cursor: Json, /) -> None:
        left, below = (self._n, None) if cursor is None else parse_cursor_list(cursor)
        self._left = parse_cursor_int(left, self._n + 1)
        self._input.seek(epoch, below)

    def close(self) -> None:
        self._input.stream.close()

    def pull(self, n: int, /) -> Chunk:
        while self._left:
            if not (passed := len(self._input.take(min(self._left, _PASSED)).values)):
                break
            self._left -= passed
        values, rows, cursors = self._input.take(n)
        return Chunk(values, rows, _After(cursors))


@dataclass(frozen=True, slots=True)
class _After:
    """The cursors of items after the first."""

    cursors: ChunkCursors

    def at(self, count: int, /) -> Json:
        return [0, self.cursors.at(count)]


class _OwnRun(UnaryOp):
    """Some items of an input, counted as a run of it would give them. `endless`: the input never
    ends."""

    def __init__(self, input: Op, n: int, endless: bool) -> None:
        super().__init__(input)
        self.indexed = False
        self.n, self.endless = n, endless

    def _run(self, opening: StreamOpener, limit: int | None) -> InterleavedLanes:
        lanes, readers = opening.own_lane.lanes, dict[int, SharedReader]()
        empty_passes = EmptyPassDetector(lanes, self.endless)

        def open_lane(lane: int) -> Stream:
            of = LaneContext(lane, lanes, range(lanes), readers, empty_passes)
            return StreamOpener(opening.leaves, opening.execution, RankSharding(), of).open(
                self.input, ONE_PASS
            )

        chunk_size = partial(opening.execution.chunk_size, lanes)
        return InterleavedLanes(lanes, 0, 1, limit, open_lane, empty_passes, chunk_size)


class LimitOp(_OwnRun):
    """The first `n` items of the first pass of an input, in every pass."""

    def stream(self, opening: StreamOpener, passes: PassCounts) -> Stream:
        if opening.opened:
            return opening.open(self.input, passes)  # the lanes know their limit
        return opening.open_shared(self, lambda: FirstPass(self._run(opening, self.n)), passes)


class SkipFirstOp(_OwnRun):
    """All but the first `n` items of every pass of an input."""

    def stream(self, opening: StreamOpener, passes: PassCounts) -> Stream:
        return opening.open_shared(
            self, lambda: Remaining(self._run(opening, None), self.n), passes
        )


@dataclass(frozen=True)
class _CountedStep(UnaryStep):
    """A step that counts the items of a stream: every rank reads all, and deals them to lanes."""

    n: int

    def keeps_samples(self, all_of_them: bool) -> bool:
        return not all_of_them

    def _migrate(self, cursor: Json, at: Migration) -> Json:
        if at.lanes > 1 and at.replaces_below():
            raise StateError(
                "a limit or skip of a mixture of streams that is to be changed is below another "
                "step, so its lanes are at different items; adopt before the first step of a pass, "
                "or keep the mixture unchanged"
            )
        return self.migrate_items(cursor, at)

    def migrate_items(self, cursor: Any, at: Migration) -> Json:
        """Migrate the lanes of the first items; items that are dealt have the last one's number."""
        if isinstance(cursor, list):
            lanes, number = parse_cursor_list(cursor)  # pyright: ignore[reportUnknownArgumentType]
            return [_CountedStep.migrate_items(self, lanes, at), number]
        lanes = {lane: self.input.migrate_cursor(inner, at) for lane, inner in cursor["at"].items()}
        return {**cursor, "at": lanes}


@dataclass(frozen=True)
class Limit(_CountedStep):
    """Give the first `n` items of the first pass, in every pass."""

    def describe(self) -> dict[str, Json]:
        return {"limit": self.n}

    def write(self) -> Written:
        return Written(format_call("limit", self.n), self.input)

    @cached_property
    def is_endless(self) -> bool:
        return False

    @property
    def item_limit(self) -> int:
        return self.n

    def keeps_stretches(self, rows: int, repeated: bool) -> bool:
        return not repeated or self.n % rows == 0

    def bind(self, builder: Builder, seed: int, path: Path) -> Op:
        return LimitOp(builder.op(self.input, seed, path), self.n, self.input.is_endless)

    def migrate_items(self, cursor: Any, at: Migration) -> Json:
        return super().migrate_items(cursor, at._replace(epoch=0))


@dataclass(frozen=True)
class SkipFirst(_CountedStep):
    """Give all items of a pass but the first `n`."""

    def describe(self) -> dict[str, Json]:
        return {"skip": self.n}

    def write(self) -> Written:
        return Written(format_call("skip", self.n), self.input)

    def bind(self, builder: Builder, seed: int, path: Path) -> Op:
        return SkipFirstOp(builder.op(self.input, seed, path), self.n, self.input.is_endless)

    def migrate_items(self, cursor: Any, at: Migration) -> Json:
        # The number of items still to skip, and the lanes.
        first, second = parse_cursor_list(cursor)
        if isinstance(first, list):
            return [self.migrate_items(first, at), second]
        return [first, super().migrate_items(second, at)]


def migrate_lanes(step: Step, cursors: Mapping[int, Json], at: Migration) -> dict[int, Json]:
    """Return the cursors of the lanes of a run for the present mixtures."""
    while step.is_elementwise and step.only_input is not None:
        step = step.only_input
    if not isinstance(step, _CountedStep) or at.lanes == 1 or not at.replaces_below():
        return {lane: step.migrate_cursor(cursor, at) for lane, cursor in cursors.items()}
    # All ranks read and deal the items, so all lanes continue after the last delivered one.
    last = max(
        (parse_cursor_list(cursor) for cursor in cursors.values() if cursor is not None),
        key=lambda cursor: cursor[1],
        default=None,
    )
    return dict.fromkeys(cursors, None if last is None else step.migrate_items(last, at))
