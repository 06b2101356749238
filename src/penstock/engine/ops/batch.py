"""Groups of `n` neighbours of one pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...arguments import check_position
from ...types import Ints
from ..base.groups import NeighbourGroups
from ..base.integers import find_distinct_values
from ..base.passes import Passes
from ..base.rows import ProvenanceRows, compute_bounds, make_empty_rows
from ..streams.execution import ExecutionLoop
from ..streams.feed import Positions, Upstream
from ..streams.job import Grouping, Results
from ..streams.opening import Opening
from ..streams.reader import Laps
from ..streams.stream import Stream
from ..streams.trail import Chunk, Every, Fixed, Last
from .op import UNKNOWN, Before, Groups, Op, Standing
from .tally import Tally


class Batches(Upstream):
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
        values, rows, trail = self.tap.take(n * size)
        grouped = Results(values, rows, None)
        self._by.run(grouped)
        groups, total = list(grouped.values), min(len(grouped.values) * size, len(values))
        if not groups:
            return Chunk([], make_empty_rows(0), Fixed(None))
        trail = Every(trail, size, total)
        if total % size and self._run is not None:
            trail = Last(trail, len(groups), self._run.cursor())
        return Chunk(groups, grouped.rows, trail)


class BatchOp(Groups):
    """Batches; the last of a pass is short, or dropped. `tuples`: they are the tuples of a zip."""

    def __init__(self, flow: Op, n: int, drop: bool, tuples: bool) -> None:
        super().__init__(flow)
        self.n, self.drop, self.tuples = n, drop, tuples
        below = flow.size if flow.indexed else None
        self._size = None if below is None else self._batches(below)

    @property
    def tail(self) -> bool:
        return not self.tuples

    def stream(self, opening: Opening, laps: Laps) -> Stream:
        if self.indexed and (opening.lane or not self.tail):
            return opening.positions(self, laps)
        below, by = opening.open(self.flow, laps), Grouping(self.n, self.drop)
        if isinstance(below, ExecutionLoop) and isinstance(below.feed, Positions):
            return below.then(by)
        return Batches(below, by, opening.given and opening.given[1])

    def places(
        self, above: int = 0, packed: bool = False, among: Op | None = None
    ) -> Iterator[Standing]:
        if self.tuples:
            return (
                (leaf, None if packed else (among or self).ending, above) for leaf in self.leaves
            )
        return self.flow.places(above + 1, packed)

    @property
    def ending(self) -> Op:
        return self  # the flow below gives parts of tuples

    @property
    def size(self) -> int | None:
        return self._size

    @property
    def passes(self) -> Passes | None:
        return self._passes

    @cached_property
    def _passes(self) -> Passes | None:
        below = self.flow.passes
        if below is None:
            return None
        return Passes(below.epochs, tuple(map(self._batches, below.sizes)))

    def _batches(self, rows: int) -> int:
        return rows // self.n if self.drop else -(-rows // self.n)

    def locate(self, positions: Ints) -> ProvenanceRows:
        n, passes, below = self.n, self._passes, self.flow.passes
        check_position(int(positions.max(initial=0)), n)
        if passes is None or below is None:
            starts, counts = positions * n, np.full_like(positions, n)
        else:
            epoch, place = passes.split(positions)
            starts = below.starts_of(epoch) + place * n
            counts = np.minimum(below.sizes_of(epoch) - place * n, n)
        bounds = compute_bounds(counts)
        samples = np.repeat(starts - bounds[:-1], counts) + np.arange(int(bounds[-1]))
        return self.flow.locate(samples).grouped(bounds)

    def values(self, rows: ProvenanceRows) -> Sequence[Any]:
        return NeighbourGroups(self.flow.values(rows.ungrouped()), rows.levels[0].tolist())

    def begins(self, position: int) -> int:
        """Return the position below at which a batch begins."""
        if self.passes is None or self.flow.passes is None:
            return position * self.n
        found = self.passes.at(position)
        return self.flow.passes.start(found.epoch) + (position - found.start) * self.n

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        found = self.flow.find(leaf, index, self.begins(low), self.begins(high))
        if self.passes is None or self.flow.passes is None:
            return find_distinct_values(found // self.n)
        epoch, place = self.flow.passes.split(found)
        place //= self.n
        given = place < self.passes.sizes_of(epoch)  # the rest of a pass may be dropped
        return find_distinct_values(self.passes.starts_of(epoch[given]) + place[given])

    def nth(self, leaf: Ints, number: Ints) -> Ints:
        found, below = self.flow.nth(leaf, number), self.flow.passes
        if self.drop and below is not None and any(size % self.n for size in below.sizes):
            return np.full(len(leaf), UNKNOWN)
        if below is None or self.passes is None:
            return np.where(found < 0, found, found // self.n)
        epoch, place = below.split(found)
        return np.where(found < 0, found, self.passes.starts_of(epoch) + place // self.n)

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        flow, passes, below = self.flow, self.passes, self.flow.passes
        if (
            passes is None
            or below is None
            or not self.drop
            or not any(size % self.n for size in below.sizes)
        ):
            return flow.count(tally, self.begins(start), self.begins(stop), times)
        first, last = passes.at(start), passes.at(stop)
        if first.epoch == last.epoch:
            return flow.count(tally, self.begins(start), self.begins(stop), times)

        def end(epoch: int) -> int:
            return below.start(epoch) + passes.size(epoch) * self.n

        flow.count(tally, self.begins(start), end(first.epoch), times)
        between = range(first.epoch + 1, last.epoch)
        if flow.steady and len(below.epochs) == 1 and not tally.by_document:
            flow.count(tally, 0, end(0), times * len(between))
        else:
            tally.look_at_passes(len(between), max(below.sizes))
            for epoch in between:
                flow.count(tally, below.start(epoch), end(epoch), times)
        flow.count(tally, below.start(last.epoch), self.begins(stop), times)

    def before(self, position: int, ahead: bool = False) -> Iterator[Before]:
        yield Before(self.flow, self.begins(position), ahead)

    @property
    def alike(self) -> bool:
        return not self.drop and self.flow.alike
