"""`ds.batch(n)`, and the tail of a pipeline: the last batches and the maps over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm, prod
from typing import Any, NamedTuple

import numpy as np

from ...arguments import check_position
from ...arrays.trees import collate
from ...errors import ConfigError
from ...types import Ints, Json, Path
from ..base.batch_size import BatchSize
from ..base.groups import NeighbourGroups
from ..base.integers import find_distinct_values
from ..base.passes import Passes
from ..base.rows import ProvenanceRows, compute_bounds, make_empty_rows
from ..base.shown import format_call
from ..base.step_plan import NumberPlan
from ..packing import PackedBatches, Packing
from ..streams.chunk_cursors import Chunk, ConstantCursor, GroupedCursors, PassEndCursors
from ..streams.execution import ExecutionLoop
from ..streams.feed import PositionFeed, StreamFeed
from ..streams.job import Grouping, UnitItems
from ..streams.rank_sharding import Remainder
from ..streams.shared_reader import PassCounts
from ..streams.stream import Stream
from ..streams.stream_opener import StreamOpener
from .function_step import format_function
from .map import Map
from .one_source import with_rows_of_step
from .op import UNKNOWN, Before, Groups, Op, Scope
from .paths import Migration
from .planned_lengths import require_equal_lengths
from .repeat import RepeatPasses
from .step import Builder, GroupStep, Step, Written, iter_steps
from .tally import Tally


class Batches(StreamFeed):
    """Groups of `n` neighbours. Holds nothing between batches, so its cursor is the one below.

    `run` are the rows of the run, under the batches of a tail. A rank that got a short batch has
    come to the end of the pass: behind that batch it stands where `run` does, so the state says
    which lanes have ended.
    """

    def __init__(self, stream: Stream, by: Grouping, run: Stream | None = None) -> None:
        super().__init__(stream)
        self._by, self._run = by, run

    def pull(self, n: int, /) -> Chunk:
        size = self._by.n
        values, rows, cursors = self.input.take(n * size)
        grouped = UnitItems(values, rows, None)
        self._by.run(grouped)
        groups, total = list(grouped.values), min(len(grouped.values) * size, len(values))
        if not groups:
            return Chunk([], make_empty_rows(0), ConstantCursor(None))
        cursors = GroupedCursors(cursors, size, total)
        if total % size and self._run is not None:
            cursors = PassEndCursors(cursors, len(groups), self._run.cursor())
        return Chunk(groups, grouped.rows, cursors)


class BatchOp(Groups):
    """Batches; the last of a pass is short, or dropped. `tuples`: they are the tuples of a zip."""

    def __init__(self, input: Op, n: int, drop: bool, tuples: bool, by_step: bool = False) -> None:
        super().__init__(input)
        self.n, self.drop, self.tuples, self.by_step = n, drop, tuples, by_step
        below = input.size if input.indexed else None
        self._size = None if below is None else self._batches(below)

    @property
    def tail(self) -> bool:
        return not self.tuples

    def stream(self, opening: StreamOpener, passes: PassCounts) -> Stream:
        self._require_one_size()
        if self.indexed and (opening.lane or not self.tail):
            return opening.open_positions(self, passes)
        below, by = opening.open(self.input, passes), Grouping(self.n, self.drop)
        if isinstance(below, ExecutionLoop) and isinstance(below.feed, PositionFeed):
            return below.add_step(by)
        return Batches(below, by, opening.opened and opening.opened[1])

    def scopes(
        self, above: int = 0, packed: bool = False, among: Op | None = None
    ) -> Iterator[Scope]:
        if self.tuples:
            return (
                (leaf, None if packed else (among or self).ending, above) for leaf in self.leaves
            )
        return self.input.scopes(above + 1, packed)

    @property
    def ending(self) -> Op:
        return self  # the input gives parts of tuples

    @property
    def size(self) -> int | None:
        return self._size

    @property
    def passes(self) -> Passes | None:
        return self._passes

    @cached_property
    def _passes(self) -> Passes | None:
        below = self.input.passes
        if below is None:
            return None
        return Passes(below.epochs, tuple(map(self._batches, below.sizes)))

    def _batches(self, rows: int) -> int:
        return rows // self.n if self.drop else -(-rows // self.n)

    def locate(self, positions: Ints) -> ProvenanceRows:
        n, passes, below = self.n, self._passes, self.input.passes
        self._require_one_size()
        check_position(int(positions.max(initial=0)), n)
        if passes is None or below is None:
            starts, counts = positions * n, np.full_like(positions, n)
        else:
            epoch, place = passes.split(positions)
            starts = below.starts_of(epoch) + place * n
            counts = np.minimum(below.sizes_of(epoch) - place * n, n)
        bounds = compute_bounds(counts)
        samples = np.repeat(starts - bounds[:-1], counts) + np.arange(int(bounds[-1]))
        return self.input.locate(samples).grouped(bounds)

    def _require_one_size(self) -> None:
        if self.by_step:
            raise ConfigError(
                "batch(global_batch_size=Schedule(...)): the batches of a run change by global "
                "step; read them with a Loader, and ask plan.at(step=) or plan.rows()"
            )

    def values(self, rows: ProvenanceRows) -> Sequence[Any]:
        return NeighbourGroups(self.input.values(rows.ungrouped()), rows.levels[0].tolist())

    def begins(self, position: int) -> int:
        """Return the position below at which a batch begins."""
        self._require_one_size()
        if self.passes is None or self.input.passes is None:
            return position * self.n
        found = self.passes.at(position)
        return self.input.passes.start(found.epoch) + (position - found.start) * self.n

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        return self._find_batches(self.input.find(leaf, index, self.begins(low), self.begins(high)))

    def find_first(self, leaves: int, leaf: int, number: int, position: int) -> int | None:
        ends = {self.begins(position), self.begins(position + 1) - 1}
        found = [self.input.find_first(leaves, leaf, number, row) for row in sorted(ends)]
        batches = self._find_batches(
            np.asarray([row for row in found if row is not None], np.int64)
        )
        return int(batches.min()) if len(batches) else None

    def _find_batches(self, found: Ints) -> Ints:
        """Return the batches that hold any of these positions of the input, without those that are
        dropped at the end of a pass.
        """
        if self.passes is None or self.input.passes is None:
            return find_distinct_values(found // self.n)
        epoch, place = self.input.passes.split(found)
        place //= self.n
        given = place < self.passes.sizes_of(epoch)
        return find_distinct_values(self.passes.starts_of(epoch[given]) + place[given])

    def nth(self, leaf: Ints, number: Ints, last: bool = False) -> Ints:
        self._require_one_size()
        found, below = self.input.nth(leaf, number, last), self.input.passes
        if self.drop and below is not None and any(size % self.n for size in below.sizes):
            return np.full(len(leaf), UNKNOWN)
        if below is None or self.passes is None:
            return np.where(found < 0, found, found // self.n)
        epoch, place = below.split(found)
        return np.where(found < 0, found, self.passes.starts_of(epoch) + place // self.n)

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        input, passes, below = self.input, self.passes, self.input.passes
        if (
            passes is None
            or below is None
            or not self.drop
            or not any(size % self.n for size in below.sizes)
        ):
            return input.count(tally, self.begins(start), self.begins(stop), times)
        first, last = passes.at(start), passes.at(stop)
        if first.epoch == last.epoch:
            return input.count(tally, self.begins(start), self.begins(stop), times)

        def end(epoch: int) -> int:
            return below.start(epoch) + passes.size(epoch) * self.n

        input.count(tally, self.begins(start), end(first.epoch), times)
        between = range(first.epoch + 1, last.epoch)
        if input.has_steady_counts and len(below.epochs) == 1 and not tally.by_document:
            input.count(tally, 0, end(0), times * len(between))
        else:
            tally.look_at_passes(len(between), max(below.sizes))
            for epoch in between:
                input.count(tally, below.start(epoch), end(epoch), times)
        input.count(tally, below.start(last.epoch), self.begins(stop), times)

    def before(self, position: int, early: bool = False) -> Iterator[Before]:
        yield Before(self.input, self.begins(position), early)

    @property
    def repeats(self) -> bool:
        return not self.drop and self.input.repeats


_RANKS = 1 << 16  # numbers of ranks that are tried
_NEAR = 12  # numbers of ranks that are named


@dataclass(frozen=True)
class Batch(GroupStep):
    """Group neighbours of one pass."""

    size: BatchSize

    def describe(self) -> dict[str, Json]:
        return {
            "batch": self.size.n,
            "drop_remainder": self.size.drop_remainder,
            **({"over_ranks": True} if self.size.over_ranks else {}),
            **(
                {"global_batch_size": [[*each] for each in by_step]}
                if (by_step := self.size.by_step)
                else {}
            ),
        }

    def identity(self) -> dict[str, Json]:
        return {"batch": "any", "of": self.input.identity()}

    def write(self) -> Written | None:
        return self.write_built(collate)

    def write_built(self, fn: Any) -> Written | None:
        if isinstance(fn, PackedBatches):
            (below,) = self.input.children
            return Written(f"{format_packing(fn.packing)} -> {self._format(collate)}", below)
        return Written(self._format(fn), self.input)

    def _format(self, fn: Any) -> str:
        if (by_step := self.size.by_step) is not None:
            return f"batch(global_batch_size={NumberPlan(by_step)})"
        return format_call(
            "batch",
            self.size.n,
            drop_remainder=self.size.drop_remainder or None,
            collate=None if fn is collate else format_function(fn),
        )

    @cached_property
    def forms_batches(self) -> bool:
        return True

    @cached_property
    def in_tail(self) -> bool:
        return True

    def bind(self, builder: Builder, seed: int, path: Path) -> Op:
        below = builder.op(self.input, seed, path)
        by_step = self.size.over_ranks and self.size.by_step is not None
        return BatchOp(below, self.size.n, self.size.drop_remainder, not self.in_tail, by_step)

    def _migrate(self, cursor: Json, at: Migration) -> Json:
        return self.input.migrate_cursor(cursor, at)


def format_packing(packing: Packing) -> str:
    """Return a call of `pack` as users write it."""
    method = None if packing.method == "concat_split" else packing.method
    return format_call("pack", packing.length, method)


def make_batches(step: Step, size: BatchSize, stack: Callable[[list[Any]], Any] | None) -> Step:
    """Return batches of a step, stacked by a function; by default, arrays are stacked.

    Packed rows are built straight into their batch instead of being copied there.
    """
    batches = Map(Batch(step, size), stack or collate)
    if stack is None:
        for fn in step.functions:
            if isinstance(fn, Packing) and step.only_input is not None:
                batches = Map(Batch(step.only_input, size), PackedBatches(fn))
    if not shares_batches(batches):
        return batches
    return with_rows_of_step(batches, size.by_step or ((0, tail_of(batches).group),))


# ---------------------------------------------------------------- the tail


class Tail(NamedTuple):
    """The top of a tree: the step that gives the rows of a run, and the batches over it, inner
    first.
    """

    rows: Step
    batches: tuple[BatchSize, ...]

    @property
    def group(self) -> int:
        """The number of rows of an item."""
        return prod(batch.n for batch in self.batches)

    def items(self, rows: int) -> int:
        """Return the number of items that so many rows give."""
        for batch in self.batches:
            rows = rows // batch.n if batch.drop_remainder else -(-rows // batch.n)
        return rows


def tail_of(step: Step) -> Tail:
    """Split off the steps at the top that only regroup or map whole items."""
    batches = tuple[BatchSize, ...]()
    while step.in_tail:
        if isinstance(step, Batch):
            batches = (step.size, *batches)
        (step,) = step.children
    return Tail(step, batches)


def change_rows(step: Step, change: Callable[[Step], Step]) -> Step:
    """Return the tree with a change of the step that gives the rows of a run."""
    if not step.in_tail:
        return change(step)
    (below,) = step.children
    return step.with_children((change_rows(below, change),))


def tail_group(step: Step) -> int | None:
    """Return the rows of an item of an indexed tree; None if the yield depends on the data."""
    return tail_of(step).group if step.reason_not_indexed is None else None


def shares_batches(step: Step) -> bool:
    """Return whether a tree has batches that all ranks share."""
    return any(isinstance(batch, Batch) and batch.size.over_ranks for batch, _ in iter_steps(step))


def batches_of_rank(step: Step, world_size: int, drop: bool) -> Step:
    """Return the tree with batches of all ranks as each rank makes them.

    `drop` leaves out a short last batch on every number of ranks, one too.
    """
    if not shares_batches(step):
        return step
    if not step.in_tail:
        raise ConfigError(
            "the ranks share batch(global_batch_size=...), so it must come after all steps that "
            "order, limit or group; put it last, with nothing but maps after it"
        )
    (below,) = step.children
    step = step.with_children((batches_of_rank(below, world_size, drop),))
    if not isinstance(step, Batch) or not step.size.over_ranks:
        return step
    for _, rows in step.size.by_step or ():
        rows_of_rank(rows, world_size)
    n, short = rows_of_rank(step.size.n, world_size), drop or step.size.drop_remainder
    return replace(step, size=replace(step.size, n=n, drop_remainder=short, over_ranks=False))


def shared_by_ranks(step: Step, world_size: int) -> Step:
    """Return the tree with its last batches, of one rank, as those of all ranks."""
    return change_last_batches(
        step, lambda size: replace(size, n=size.n * world_size, over_ranks=True)
    )


def change_last_batches(step: Step, change: Callable[[BatchSize], BatchSize]) -> Step:
    """Return the tree with other sizes of its last batches."""
    if isinstance(step, Batch):
        return replace(step, size=change(step.size))
    (below,) = step.children
    return step.with_children((change_last_batches(below, change),))


def rows_of_rank(global_batch_size: int, world_size: int) -> int:
    """Return the rows of one rank of a global batch.

    The error names numbers of ranks that can share it.
    """
    if global_batch_size % world_size == 0:
        return global_batch_size // world_size
    fits = [n for n in range(1, min(global_batch_size, _RANKS) + 1) if global_batch_size % n == 0]
    near = sorted(sorted(fits, key=lambda n: abs(n - world_size))[:_NEAR])
    named = ", ".join(map(str, near)) + (" and others" if len(near) < len(fits) else "")
    raise ConfigError(
        f"global_batch_size={global_batch_size} is not a multiple of world_size={world_size}; use "
        f"a world_size that divides it: {named}"
    )


class LaneRows(NamedTuple):
    """The step that the lanes of a run read, and the number of its items that limits allow."""

    step: Step
    limit: int | None


def rows_of_lanes(step: Step) -> LaneRows:
    """Return the step below the tail: the last batches, limits of an endless input, and maps.

    Ranks cannot share a limit if the lanes of some may end before they gave their share of it.
    """
    rows, limit = LaneRows(step, None), None
    while True:
        if isinstance(step, Batch) and step.in_tail:
            step, limit = step.input, limit and limit * step.size.n
            rows = LaneRows(step, limit)
        elif step.item_limit is not None and step.children[0].is_endless:
            limit = step.item_limit if limit is None else min(limit, step.item_limit)
            (step,) = step.children
            rows = LaneRows(step, limit)
        elif step.is_elementwise:
            (step,) = step.children
        else:
            return rows


def step_of_rank(
    step: Step,
    world_size: int,
    remainder: Remainder,
    epoch_length: int | None,
    lanes: int | None = None,
) -> Step:
    """Return the tree that one of several ranks runs.

    Lanes end at different items, so several ranks need a tree without an end.
    """
    step = batches_of_rank(step, world_size, remainder == "drop")
    reason = step.reason_not_indexed
    # Each lane makes whole items, so lanes beyond the ranks are at one stretch for several steps.
    items = world_size if reason is None else lcm(world_size, lanes or world_size)
    tail = tail_of(step)
    planned = next((batch.by_step for batch in tail.batches if batch.by_step), None)
    if remainder == "pad":
        require_equal_lengths(tail.rows)
    step = with_rows_of_step(step, planned or ((0, tail.group * items),))
    if reason is None or step.is_endless or remainder == "keep":
        return step
    rows = rows_of_lanes(step)
    full_step = world_size if planned else tail.group * world_size
    if rows.limit is not None and rows.step.is_endless and rows.limit % full_step == 0:
        return step  # no lane ends, and the ranks share the limit equally
    if epoch_length is not None:
        return change_rows(step, lambda rows: RepeatPasses(rows, None))
    if world_size > 1:
        if rows.limit is not None and rows.step.is_endless:
            raise ConfigError(
                f"the ranks would end at different steps: {rows.limit} rows fill no whole number of "
                f"steps of {full_step} rows; limit a multiple of {full_step}, or accept different "
                "ends with Loader(remainder='keep')"
            )
        raise ConfigError(
            f"the ranks would end at different steps: {reason}, so the end of a pass on each of "
            f"{world_size} ranks is unknown beforehand; keep every sample (no filter or may_skip), "
            "store the lengths of packed samples (penstock tokenize) or pad them (Padded), repeat() "
            "the dataset, give Loader(epoch_length=n), or accept different ends with "
            "Loader(remainder='keep')"
        )
    if remainder == "pad":
        raise ConfigError(
            f"remainder='pad' fills the last step of a pass of known length: {reason}; keep every "
            "sample (no filter or may_skip), or take a short last batch by Loader(remainder='keep')"
        )
    return step
