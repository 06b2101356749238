"""Opening of a tree: the lane or rank that opens it, its executor, and the objects that its streams
share.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ...errors import ConfigError, StateError
from ...types import Json, Path
from ..base.cursors import parse_cursor_int
from ..base.rows import ProvenanceRows
from .compiled_step import CompiledStep
from .deal import RankSharding
from .execution import Execution, ExecutionLoop
from .feed import PositionFeed, locate_in_pass, pass_start
from .reader import SharedReaderLane, LaneContext, PassCounts, SharedReader
from .rounds import LanePositionFeed, LaneAssignment
from .step import Leaf
from .stream import Stream, UnaryStream


@dataclass
class StreamOpener:
    """One opening of a tree, of all of it or of a lane. `given` is an op and the stream that stands
    for it."""

    leaves: list[Leaf]
    execution: Execution
    spread: RankSharding
    lane: LaneContext | None = None
    opened: tuple[CompiledStep, Stream] | None = None
    drawn: dict[Path, Callable[[int], int]] = field(
        default_factory=dict[Path, Callable[[int], int]]
    )
    """The first position without a draw in a pass of the run, for each mixture by its path."""

    def open(self, op: CompiledStep, laps: PassCounts) -> Stream:
        """The stream of an op, that many passes of which follow one another."""
        return self.opened[1] if self.opened and op is self.opened[0] else op.stream(self, laps)

    @property
    def own_lane(self) -> LaneContext:
        """Our lane."""
        assert self.lane is not None, "only lanes have streams that are not indexed"
        return self.lane

    def open_positions(self, op: CompiledStep, laps: PassCounts) -> Stream:
        """The stream of what is indexed: our share of its positions."""
        lanes = 1 if self.lane is None else self.lane.lanes
        if self.lane is None:
            feed = PositionFeed(op, self.spread)
        else:
            feed = LanePositionFeed(op, LaneAssignment(self.lane.lane, lanes, op.mixed, laps.run))
        work = ExecutionLoop(feed, op, [], self.execution)
        if (place := op.mixture) is not None:

            def drawn(epoch: int) -> int:
                position = lanes * work.delivered_position()
                if op.passes is not None:  # the last round may reach over the end
                    position = op.passes.start(epoch) + min(position, op.passes.size(epoch))
                reached = op.reached(position)
                return _raise_unknown_position() if reached is None else reached

            self.drawn[place] = drawn
        return work

    def open_shared(self, op: object, opened: Callable[[], Stream], laps: PassCounts) -> Stream:
        """Our share of a stream that is read once for all lanes of the rank."""
        lane, lanes, mine, readers, _ = self.own_lane
        if lanes == 1:
            return opened()
        if id(op) not in readers:
            readers[id(op)] = SharedReader(opened(), mine, laps)
        return SharedReaderLane(readers[id(op)], lane, lanes)

    def first_undrawn(self, place: Path, epoch: int) -> int:
        """Return the first position of the mixture at a place without a draw in a pass of the run."""
        return self.drawn[place](epoch) if place in self.drawn else _raise_unknown_position()


class LastItem(NamedTuple):
    """The last samples of a stream (None for an input that has left), and the op at the position
    after them.
    """

    rows: ProvenanceRows | None
    op: Any
    position: int


def find_last_item(stream: object, epoch: int, cursor: Json) -> LastItem | None:
    """Return the last samples of a stream before a cursor; None without any, or without exactly one
    indexed flow below.
    """
    while isinstance(stream, UnaryStream):
        stream, epoch, cursor = stream.input_at(epoch, cursor)
    if not isinstance(stream, PositionFeed | LanePositionFeed) or cursor is None or not parse_cursor_int(cursor):
        return None
    places = stream.offsets_at(np.asarray([parse_cursor_int(cursor) - 1]), epoch)
    rows = None
    with suppress(
        StateError
    ):  # it came from an input that the mixture which took over does not have
        rows = locate_in_pass(stream.op, epoch, places)
    return LastItem(rows, stream.op, int(places[0]) + (pass_start(stream.op, epoch) or 0) + 1)


def _raise_unknown_position() -> Any:
    raise ConfigError(
        "set_weights: the mixture is shuffled, sliced or nested, so its positions differ from "
        "the positions of the run; pass at="
    )
