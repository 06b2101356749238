"""`ds.repeat()` of a dataset that is not indexed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...types import Json, Path
from ..base.cursors import parse_cursor_int, parse_cursor_list
from ..base.rows import make_empty_rows
from ..base.shown import format_call
from ..mixing.rules import MANY
from ..streams.chunk_cursors import Chunk, ChunkCursors, ConstantCursor
from ..streams.shared_reader import LaneContext, PassCounts
from ..streams.stream import BufferedStream, Stream, UnaryStream
from ..streams.stream_opener import StreamOpener
from .op import Op, UnaryOp
from .paths import Migration
from .step import Builder, UnaryStep, Written


def pass_of(epochs: int | None, epoch: int, done: int) -> int:
    """The pass of what is repeated, where so many are done in a pass of the whole."""
    return epoch * (epochs or MANY) + done


@dataclass(frozen=True, slots=True)
class _Done:
    """The cursors of items of one pass: how many were done before it."""

    done: int
    cursors: ChunkCursors

    def at(self, count: int, /) -> Json:
        return [self.done, self.cursors.at(count)]


class Repeated(UnaryStream):
    """`epochs` passes of a stream, endlessly many. The cursor is how many were done, and that below
    it."""

    def __init__(self, stream: Stream, epochs: int | None, lane: LaneContext) -> None:
        self._input, self._epochs, self._lane = BufferedStream(stream), epochs, lane
        self.seek(0, None)

    def cursor(self) -> Json:
        return self._start

    def input_at(self, epoch: int, cursor: Json, /) -> tuple[object, int, Json]:
        done, below = (0, None) if cursor is None else parse_cursor_list(cursor)
        return self._input.stream, pass_of(self._epochs, epoch, parse_cursor_int(done)), below

    def seek(self, epoch: int, cursor: Json, /) -> None:
        done, below = (0, None) if cursor is None else parse_cursor_list(cursor)
        self._epoch, self._done = epoch, parse_cursor_int(done)
        self._begin(below)
        self._start: Json = [self._done, self._input.cursor()]

    def _begin(self, below: Json) -> None:
        self._input.seek(pass_of(self._epochs, self._epoch, self._done), below)

    def close(self) -> None:
        self._input.stream.close()

    def pull(self, n: int, /) -> Chunk:
        idle, patience = 0, self._lane.lanes if self._lane.lanes > 1 else 0
        while self._epochs is None or self._done < self._epochs:
            values, rows, cursors = self._input.take(n)
            if values:
                return Chunk(values, rows, _Done(self._done, cursors))
            if idle > patience:  # a lane without a share of one pass has one of another
                if self._epochs is None:
                    self._lane.empty_passes.note("repeat()", self._lane.lane)
                break
            idle += 1
            self._done += 1
            if self._done != self._epochs:
                self._begin(None)
        return Chunk([], make_empty_rows(0), ConstantCursor(None))


class RepeatPassesOp(UnaryOp):
    """Passes of an input that cannot be indexed, as one."""

    def __init__(self, input: Op, epochs: int | None) -> None:
        super().__init__(input)
        self.indexed = False
        self.epochs = epochs

    @property
    def mixture(self) -> Path | None:
        return None

    def stream(self, opening: StreamOpener, passes: PassCounts) -> Stream:
        run = None if passes.run is None or self.epochs is None else passes.run * self.epochs
        return Repeated(
            opening.open(self.input, PassCounts(run, self.epochs or MANY)),
            self.epochs,
            opening.own_lane,
        )


@dataclass(frozen=True)
class RepeatPasses(UnaryStep):
    """Join `epochs` passes of a stream; `None` is endless."""

    epochs: int | None

    def describe(self) -> dict[str, Json]:
        return {"repeat": self.epochs}

    def write(self) -> Written:
        return Written(format_call("repeat", self.epochs), self.input)

    @cached_property
    def is_endless(self) -> bool:
        return self.epochs is None

    @cached_property
    def repeats_source(self) -> bool:
        return self.input.repeats_source

    def bind(self, builder: Builder, seed: int, path: Path) -> Op:
        return RepeatPassesOp(builder.op(self.input, seed, path), self.epochs)

    def _migrate(self, cursor: Json, at: Migration) -> Json:
        done, inner = parse_cursor_list(cursor)
        epoch = pass_of(self.epochs, at.epoch, parse_cursor_int(done))
        return [done, self.input.migrate_cursor(inner, at._replace(epoch=epoch))]
