"""Opening of a tree as streams: for a lane or a rank, with its executor and shared readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ...errors import ConfigError, StateError
from ...types import Json, Path
from ..base.cursors import parse_cursor_int
from ..base.rows import ProvenanceRows
from .compiled_step import CompiledStep
from .execution import Execution, ExecutionLoop
from .feed import PositionFeed, locate_in_pass, pass_start
from .function_call import Leaf
from .lane_positions import LaneAssignment, LanePositionFeed
from .rank_sharding import RankSharding
from .shared_reader import LaneContext, PassCounts, SharedReader, SharedReaderLane
from .stream import Stream, UnaryStream


class OpenableStep(CompiledStep):
    """A compiled step that opens as a stream, on its own or through the stream of its input."""

    def stream(self, opening: StreamOpener, passes: PassCounts) -> Stream:
        """Open the items of a lane or rank as a stream."""
        raise NotImplementedError


@dataclass
class StreamOpener:
    """Opens the steps of a tree as streams, for a whole run or one lane.

    `opened` is a step and a stream that is open already.
    """

    leaves: list[Leaf]
    execution: Execution
    spread: RankSharding
    lane: LaneContext | None = None
    opened: tuple[OpenableStep, Stream] | None = None
    drawn: dict[Path, Callable[[int], int]] = field(
        default_factory=dict[Path, Callable[[int], int]]
    )
    """The first position without a draw in a pass of the run, for each mixture by its path."""

    def open(self, step: OpenableStep, passes: PassCounts) -> Stream:
        """Return the stream of a step, whose passes are counted by `passes`."""
        return (
            self.opened[1] if self.opened and step is self.opened[0] else step.stream(self, passes)
        )

    @property
    def own_lane(self) -> LaneContext:
        """The lane that is opened."""
        assert self.lane is not None, "only lanes have streams that are not indexed"
        return self.lane

    def open_positions(self, step: CompiledStep, passes: PassCounts) -> Stream:
        """Return the stream of an indexed step: this rank's or lane's share of its positions."""
        lanes = 1 if self.lane is None else self.lane.lanes
        if self.lane is None:
            feed = PositionFeed(step, self.spread)
        else:
            feed = LanePositionFeed(
                step, LaneAssignment(self.lane.lane, lanes, step.mixed, passes.run)
            )
        work = ExecutionLoop(feed, step, [], self.execution)
        if (path := step.mixture) is not None:

            def drawn(epoch: int) -> int:
                position = lanes * work.delivered_position()
                if step.passes is not None:  # the last round may reach over the end
                    position = step.passes.start(epoch) + min(position, step.passes.size(epoch))
                reached = step.reached(position)
                return _raise_unknown_position() if reached is None else reached

            self.drawn[path] = drawn
        return work

    def open_shared(self, step: object, opened: Callable[[], Stream], passes: PassCounts) -> Stream:
        """Return this lane's share of a stream that all lanes of the rank read together."""
        lane, lanes, mine, readers, _ = self.own_lane
        if lanes == 1:
            return opened()
        if id(step) not in readers:
            readers[id(step)] = SharedReader(opened(), mine, passes)
        return SharedReaderLane(readers[id(step)], lane, lanes)

    def first_undrawn(self, path: Path, epoch: int) -> int:
        """Return the first position of the mixture at a path without a draw in a pass of the run."""
        return self.drawn[path](epoch) if path in self.drawn else _raise_unknown_position()


class LastItem(NamedTuple):
    """The last samples of a stream (None for an input that has left), and the step at the position
    after them.
    """

    rows: ProvenanceRows | None
    step: Any
    position: int


def find_last_items(
    streams: Mapping[str, object], epoch: int, cursors: Mapping[str, Json]
) -> dict[str, LastItem | None]:
    """Return the last samples of streams before their cursors, by lane.

    None for a lane without any, or without exactly one indexed tree below. Positions of one step
    are located together.
    """
    came = dict[str, LastItem | None].fromkeys(cursors)
    together = dict[tuple[int, int], tuple[CompiledStep, dict[str, int]]]()
    for lane, cursor in cursors.items():
        if cursor is None:
            continue
        stream, at = streams[lane], epoch
        while isinstance(stream, UnaryStream):
            stream, at, cursor = stream.input_at(at, cursor)
        if (
            isinstance(stream, PositionFeed | LanePositionFeed)
            and cursor is not None
            and (after := parse_cursor_int(cursor))
        ):
            offset = int(stream.offsets_at(np.asarray([after - 1]), at)[0])
            key = id(stream.step), at
            together.setdefault(key, (stream.step, {}))[1][lane] = offset
    for (_, at), (step, offsets) in together.items():
        start = (pass_start(step, at) or 0) + 1
        for (lane, offset), rows in zip(
            offsets.items(), _locate_each(step, at, [*offsets.values()]), strict=True
        ):
            came[lane] = LastItem(rows, step, offset + start)
    return came


def _locate_each(
    step: CompiledStep, epoch: int, offsets: Sequence[int]
) -> list[ProvenanceRows | None]:
    """Return the samples at each offset; None for one from an input that left with a mixture."""
    try:
        rows = locate_in_pass(step, epoch, np.asarray(offsets))
    except StateError:
        if len(offsets) == 1:
            return [None]
        return [rows for offset in offsets for rows in _locate_each(step, epoch, [offset])]
    return [rows.slice(i, i + 1) for i in range(len(offsets))]


def _raise_unknown_position() -> Any:
    raise ConfigError(
        "set_weights: the mixture is shuffled, sliced or nested, so its positions differ from "
        "the positions of the run; pass at="
    )
