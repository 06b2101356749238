"""A pipeline opened as the stream of one rank, from shared positions or from lanes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...errors import ConfigError, StateError
from ...types import MAX_POSITION, Ints, Json, Path, SourceFacts
from ..base.passes import Passes
from ..base.rows import ProvenanceRows
from ..base.seams import world
from ..changes.adopt import make_moved_error
from ..steps.batch import rows_of_lanes, tail_of
from ..steps.digests import known_parts
from ..steps.limit import FirstPass
from ..steps.op import Op, last_samples
from ..steps.packed import find_window, packed_before
from ..steps.reorder_op import find_repeated_leaves
from ..steps.step import Builder
from ..steps.tally import Tally
from ..streams.balance import CostBalance
from ..streams.empty_passes import EmptyPassDetector
from ..streams.execution import Execution, ExecutionLoop
from ..streams.feed import PositionListFeed
from ..streams.lanes import InterleavedLanes, ReplicatedLanes, WorkerShare
from ..streams.rank_sharding import RankSharding
from ..streams.shared_reader import ONE_PASS, LaneContext, SharedReader
from ..streams.stream import Stream
from ..streams.stream_opener import LastItem, StreamOpener, find_last_items
from .run_options import RunOptions
from .states import SavedState

PACKED_AGAIN = (
    "the pass would end so early that delivered rows would be packed again, together with the rest"
)
"""The reason to refuse a change that repacks delivered rows."""

_SOON = 1024  # rows of which is known at once that they are still there


def compute_lane_share(lanes: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return the lanes that a rank reads, as a rank and a number of ranks; all lanes if the ranks
    do not divide them.
    """
    return (0, 1) if lanes % world_size else (rank, world_size)


@dataclass(frozen=True)
class RankStream:
    """The items of one rank as a stream.

    `first_undrawn(path, epoch)` returns, for each lane, the first position of the mixture at a path
    without a draw in a pass of the run.
    """

    stream: Stream
    builder: Builder
    first_undrawn: Callable[[Path, int], list[int]]
    last_items: Callable[[int, Any], dict[str, LastItem | None]]
    """Returns the last items before a cursor of a pass, by lane; None if only reading could tell."""
    witnesses: Sequence[Callable[[], None]]
    """Checks that streams without identity repeat the samples that their cursors describe."""
    passes: Passes | None = None
    """The lengths of passes, for shared positions that end."""
    skipped: int | None = None
    """The rows of a pass before this worker's first step, for shared positions."""

    def first_cursor(self, epoch: int) -> int | None:
        """Return the cursor with which a pass begins, where that is a position."""
        if self.skipped is None or self.passes is None:
            return self.skipped
        return min(self.skipped, self.passes.size(epoch))

    def _pass_start(self, epoch: int) -> int:
        return 0 if self._rows.passes is None else self._rows.passes.start(epoch)

    def digest_last(self, epoch: int, cursor: Json) -> dict[str, str | None]:
        """Return digests of the last samples before a cursor, by lane."""
        return self.digest_items(self.last_items(epoch, cursor))

    def digest_items(self, came: Mapping[str, LastItem | None]) -> dict[str, str | None]:
        """Return digests of last items, by lane."""
        digests = {
            lane: self._digest(one.rows, {})
            for lane, one in came.items()
            if one and one.rows is not None
        }
        return dict.fromkeys(came) | digests

    def digest_by_source(self, came: LastItem) -> dict[str, str]:
        """Return digests of the last sample of every source that gave one, and of the window of
        rows that it was packed in.

        At the end of a pass there are two, of the end and of its last sample. The pass may end
        elsewhere in another pipeline, and the next may have another order.
        """
        window = find_window(came.step, came.position)
        within = last_samples(came.step, came.position)
        others = {leaf for leaf in came.step.leaves if len(within.get(leaf, ())) < 3}
        ends = last_samples(came.step, came.position, others) if others else {}
        out = dict[str, str]()
        for leaf in sorted({*within, *ends}):
            samples = [[*each[leaf], window] for each in (within, ends) if leaf in each]
            digests = [world.digests.digest_lists(sample)[:8] for sample in samples]
            out[self.builder.leaves[leaf].name] = " ".join(digests)
        return out

    def require_same(self, epoch: int, cursor: Json, body: SavedState) -> None:
        """Raise `StateError` if the last samples before a cursor differ from those of a state."""
        if any(body.last.get(lane) != key for lane, key in self.digest_last(epoch, cursor).items()):
            raise StateError(
                "the position in this state exists, but the samples before it differ from the "
                "samples of the saved run, because the pipeline or the version of Penstock is "
                "another; load the state into the pipeline and version that saved it"
            )

    def require_last(
        self, epoch: int, cursor: Json, body: SavedState, data: Mapping[str, SourceFacts]
    ) -> None:
        """Raise `StateError` if the last samples, in all or of a source, differ from those of an
        adopted state. A source may have another name now.

        Args:
            epoch: the pass in which the run stands.
            cursor: the position in it.
            body: the adopted state.
            data: the facts of the present sources, by name.
        """
        if isinstance(cursor, int):
            self._require_next(epoch, cursor)
        former = find_former_names(body.data, data)
        spellings = [
            {name: pasts[which] for name, pasts in former.items() if which < len(pasts)}
            for which in range(max(map(len, former.values()), default=1))
        ]
        came = {lane: one for lane, one in self.last_items(epoch, cursor).items() if one}
        was = body.latest
        other = any(
            one.rows is not None
            and body.last.get(lane) not in [self._digest(one.rows, each) for each in spellings]
            for lane, one in came.items()
        )
        moved = {
            name
            for lane, one in came.items()
            for name, digests in self.digest_by_source(one).items()
            # A new source has delivered nothing: at the end of a pass, it waits for the next.
            if (lane in was and (former[name] or len(digests.split()) < 2))
            and {*digests.split()}.isdisjoint(
                digest for past in former[name] for digest in str(was[lane].get(past)).split()
            )
        }
        if other or moved:
            raise make_moved_error([*moved])

    def _require_next(self, epoch: int, cursor: int) -> None:
        """Raise an error if the rest of a sample or window was drawn from an input that left."""
        passes, first = self._rows.passes, self._pass_start(epoch)
        end = MAX_POSITION if passes is None else first + passes.size(epoch)
        soon = np.arange(first + cursor, min(first + cursor + _SOON, end))
        self._rows.locate(soon)

    def _digest(self, rows: ProvenanceRows, called: Mapping[str, str]) -> str | None:
        names = [self.builder.leaves[int(leaf)].name for leaf in rows.leaf]
        names = [called.get(name, name) for name in names]
        return world.digests.digest_lists(
            [names, rows.epoch.tolist(), rows.index.tolist(), rows.part.tolist()]
        )

    @property
    def _rows(self) -> Op:
        return self.builder.op(tail_of(self.builder.root).rows)

    def digest_packed(self, epoch: int, cursor: Json) -> dict[Json, dict[str, str | None]]:
        """Return digests after each position before a cursor whose row an earlier end of the pass
        would change.
        """
        if not isinstance(cursor, int):
            return {}
        start = self._pass_start(epoch)
        rows = packed_before(self._rows, start + cursor)
        return {row - start + 1: self.digest_last(epoch, row - start + 1) for row in rows}

    def capture_past(self, epoch: int, cursor: Json) -> tuple[Any, list[int]]:
        """Return the facts that a change must preserve: rows packed together, and counts by leaf
        before a cursor.

        Return nothing if they are unknown.
        """
        packed = self.digest_packed(epoch, cursor)
        if not isinstance(cursor, int):
            return packed, []
        op, tally, start = self._rows, Tally(len(self.builder.leaves)), self._pass_start(epoch)
        with suppress(
            StateError, IndexError
        ):  # of an input that has left; the pass ends before that
            op.count(tally, start, start + cursor)
            return packed, tally.samples.tolist()
        return packed, []


def find_former_names(
    saved: Mapping[str, SourceFacts], now: Mapping[str, SourceFacts]
) -> dict[str, list[str]]:
    """Return the names that each source may have had in a state: its own, or of equal data."""
    gone = [name for name in saved if name not in now]
    return {
        name: [name]
        if name in saved
        else [past for past in gone if known_parts(saved[past]) == known_parts(facts)]
        for name, facts in now.items()
    }


def find_repeated_sources(builder: Builder) -> set[str]:
    """Return the sources whose samples of the first pass come again in every pass of the run."""
    leaves = find_repeated_leaves(builder.op(tail_of(builder.root).rows))
    return {builder.leaves[leaf].name for leaf in leaves}


def require_same_past(was: tuple[Any, list[int]], now: tuple[Any, list[int]]) -> None:
    """Raise `ConfigError` if new weights would change delivered samples."""
    if was[0] and was[0] != now[0]:
        raise ConfigError(
            f"set_weights: {PACKED_AGAIN}; give at=, a later position or one of the next pass"
        )
    if was[1] != now[1]:
        raise ConfigError(
            "set_weights would change the length of this mixture, and a mixture above it has "
            "weights by temperature=, or a part of a pass as max_epochs=, that depend on it, so "
            "delivered samples would change; write weights= for the mixture above, or whole "
            "passes"
        )


def open_positions(
    builder: Builder, execution: Execution, spread: RankSharding, setting: RunOptions
) -> RankStream:
    """Open an indexed pipeline: the positions of this rank."""
    if setting.cost is not None:
        spread = replace(spread, balance=CostBalance(setting.cost, builder.lengths_of))
    rows = builder.op(tail_of(builder.root).rows)
    opening = StreamOpener(builder.leaves, execution, spread)
    stream = opening.open(builder.op(builder.root), ONE_PASS)

    def undrawn(path: Path, epoch: int) -> list[int]:
        return [opening.first_undrawn(path, epoch)]

    return RankStream(
        stream,
        builder,
        undrawn,
        lambda epoch, at: find_last_items({"0": stream}, epoch, {"0": at}),
        (),
        rows.passes,
        setting.worker * spread.size,
    )


def open_items(builder: Builder, execution: Execution, epoch: int, items: Ints) -> Stream:
    """Open given items of a pass of an indexed pipeline, in the given order."""
    op = builder.op(builder.root)
    return ExecutionLoop(PositionListFeed(op, epoch, items), op, [], execution)


def open_lanes(
    builder: Builder, execution: Execution, lanes: int, setting: RunOptions
) -> RankStream:
    """Open any other pipeline: the lanes of this rank in turn, or its share of all lanes, and the
    last batches over them. The tree is compiled once for all lanes.
    """
    if setting.cost is not None:
        builder.root.require_indexed(
            "Loader(balance=...)", "pack from known lengths, or leave it out"
        )
    found = rows_of_lanes(builder.root)
    (rank, ranks) = compute_lane_share(lanes, setting.rank, setting.world_size)
    parts, streams = dict[int, StreamOpener](), dict[str, Stream]()
    top, rows = builder.op(builder.root), builder.op(found.step)
    mine = range(rank, lanes, ranks)
    readers = dict[int, SharedReader]()
    empty_passes = EmptyPassDetector(lanes // ranks, found.step.is_endless)
    here = len(mine)
    most = None if execution.max_items is None else max(1, execution.max_items // here)
    each = replace(
        execution, window=execution.window and max(2, execution.window // here), max_items=most
    )

    def opened(lane: int) -> Stream:
        of = LaneContext(lane, lanes, mine, readers, empty_passes)
        parts[lane] = StreamOpener(builder.leaves, each, RankSharding(), of)
        streams[str(lane)] = stream = parts[lane].open(rows, ONE_PASS)
        return stream

    limit = None if found.limit is None else len(range(rank, found.limit, ranks))

    stream = InterleavedLanes(
        lanes, rank, ranks, limit, opened, empty_passes, partial(each.chunk_size, here)
    )
    ours = (
        stream
        if ranks == setting.world_size
        else ReplicatedLanes(stream, setting.rank, setting.world_size)
    )

    def undrawn(path: Path, epoch: int) -> list[int]:
        stream.open_all()
        return [part.first_undrawn(path, epoch) for part in parts.values()]

    def came(epoch: int, at: Any) -> dict[str, LastItem | None]:
        """Return the last items by lane; None for a lane without items, which may not be open."""
        return find_last_items(streams, epoch if limit is None else 0, at["at"])

    tail = StreamOpener(
        builder.leaves,
        execution,
        RankSharding(),
        opened=(rows, ours if limit is None else FirstPass(ours)),
    )
    given = tail.open(top, ONE_PASS)
    if setting.workers > 1:
        given = WorkerShare(given, setting.worker, setting.workers)
    return RankStream(given, builder, undrawn, came, execution.witnesses)
