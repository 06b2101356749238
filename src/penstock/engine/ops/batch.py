"""Groups of `n` neighbours of one pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...types import Ints
from ..base.groups import NeighbourGroups
from ..base.integers import check_position, find_distinct_values
from ..base.rows import ProvenanceRows, compute_bounds, make_empty_rows
from ..streams.feed import Positions, Upstream
from ..streams.job import Grouping, Results
from ..streams.opening import Opening
from ..streams.reader import Laps
from ..streams.stream import Stream
from ..streams.trail import Chunk, Every, Fixed, Last
from ..streams.work import Work
from .op import UNKNOWN, Before, Groups, Op, Standing
from .tally import Tally, split_passes


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
        self._size = None if below is None else below // n if drop else -(-below // n)

    @property
    def tail(self) -> bool:
        return not self.tuples

    def stream(self, opening: Opening, laps: Laps) -> Stream:
        if self.indexed and (opening.lane or not self.tail):
            return opening.positions(self, laps)
        below, by = opening.open(self.flow, laps), Grouping(self.n, self.drop)
        if isinstance(below, Work) and isinstance(below.feed, Positions):
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

    def locate(self, positions: Ints) -> ProvenanceRows:
        below, n = self.flow.size, self.n
        check_position(int(positions.max(initial=0)), n)
        if below is None:
            starts, counts = positions * n, np.full_like(positions, n)
        else:
            epoch = positions // (self._size or 1)
            place = (positions - epoch * (self._size or 1)) * n
            starts, counts = epoch * below + place, np.minimum(below - place, n)
        bounds = compute_bounds(counts)
        samples = np.repeat(starts - bounds[:-1], counts) + np.arange(int(bounds[-1]))
        return self.flow.locate(samples).grouped(bounds)

    def values(self, rows: ProvenanceRows) -> Sequence[Any]:
        return NeighbourGroups(self.flow.values(rows.ungrouped()), rows.levels[0].tolist())

    def begins(self, position: int) -> int:
        """The position below at which a batch begins."""
        below, size = self.flow.size, self._size
        return (
            position * self.n
            if not (below and size)
            else position // size * below + position % size * self.n
        )

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        n, size, below = self.n, self._size, self.flow.size
        found = self.flow.find(leaf, index, self.begins(low), self.begins(high))
        if size is None or below is None:
            return find_distinct_values(found // n)
        epoch = found // below
        place = (found - epoch * below) // n
        return find_distinct_values(
            (epoch * size + place)[place < size]
        )  # what lies behind the last whole batch may be dropped

    def nth(self, leaf: Ints, number: Ints) -> Ints:
        below, size, found = self.flow.size, self._size, self.flow.nth(leaf, number)
        if self.drop and below is not None and below % self.n:
            return np.full(len(leaf), UNKNOWN)
        if below is None or size is None:
            return np.where(found < 0, found, found // self.n)
        return np.where(found < 0, found, found // below * size + found % below // self.n)

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        flow, below, size, n = self.flow, self.flow.size, self._size, self.n
        if (
            below is None
            or size is None
            or not self.drop
            or below % n == 0
            or start // size == stop // size
        ):
            return flow.count(tally, self.begins(start), self.begins(stop), times)
        alike = flow.steady and not tally.by_document
        if not alike:
            tally.look_at_passes(stop // size - start // size, below)
        for epoch, first, last, passes in split_passes(start, stop, size, alike):
            begin = epoch * below
            flow.count(tally, begin + first * n, begin + last * n, times * passes)

    def before(self, position: int, ahead: bool = False) -> Iterator[Before]:
        yield Before(self.flow, self.begins(position), ahead)

    @property
    def alike(self) -> bool:
        return not self.drop and self.flow.alike
