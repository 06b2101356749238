"""`plan.exclude(...)`: an order of one source without some of its samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from ...errors import ConfigError
from ...types import Ints, Json, Path
from ..base.bounded_dict import BoundedDict
from ..base.integers import find_distinct_values
from ..base.rows import ProvenanceRows
from ..base.shown import counted
from .op import Before, Op, UnaryOp
from .reorder import OrderStep
from .step import Builder, Step, Written, iter_steps
from .tokens import Lengths

_CACHED_PASSES = 64  # their gaps are cached
_FEW = 8  # and that are looked up one by one


@dataclass
class Gaps:
    """An input with gaps: the positions below from which on samples are left out, and the gaps in a
    range of positions below. `period` is the length of a pass below.
    """

    name: str
    period: int
    since: tuple[int, ...]
    find: Callable[[int, int], Ints]
    _held: BoundedDict[int, Ints] = field(
        default_factory=lambda: BoundedDict[int, Ints](_CACHED_PASSES), repr=False
    )

    def __post_init__(self) -> None:
        self.down(np.zeros(1, np.int64))  # refuses now what leaves nothing

    def down(self, positions: Ints) -> Ints:
        """The positions below of draws."""
        begins, first, kept = self._stretches
        stretch = np.searchsorted(first, positions, side="right") - 1
        epoch, place = np.divmod(positions - first[stretch], kept[stretch])
        begin = (epoch + begins[stretch]) * self.period
        gaps, of_pass = self._gaps_of(begin)
        # The i-th gap of a pass has i fewer kept samples before it than places: that many and more
        # are behind it.
        fewer = gaps - (np.arange(len(gaps)) - np.searchsorted(gaps, gaps - gaps % self.period))
        return begin + place + np.searchsorted(fewer, begin + place, side="right") - of_pass

    def up(self, below: Ints) -> Ints:
        """The draws that give positions below, -1 for those left out."""
        begins, first, kept = self._stretches
        epoch, place = np.divmod(below, self.period)
        stretch = np.searchsorted(begins, epoch, side="right") - 1
        gaps, of_pass = self._gaps_of(below - place)
        before = np.searchsorted(gaps, below)
        gone = np.searchsorted(gaps, below, side="right") > before
        draws = (
            first[stretch] + (epoch - begins[stretch]) * kept[stretch] + place - (before - of_pass)
        )
        return np.where(gone, -1, draws)

    def _gaps_of(self, begin: Ints) -> tuple[Ints, Ints]:
        """Return the exclusions of the passes that begin at these positions below, and the numbers
        before each pass.
        """
        epochs = find_distinct_values(begin // self.period)
        if len(epochs) <= _FEW:
            found = [self.gaps_in(one) + one * self.period for one in epochs.tolist()]
        else:
            runs = np.split(epochs, np.flatnonzero(np.diff(epochs) > 1) + 1)
            found = [self._between(int(run[0]), int(run[-1]) + 1) for run in runs]
        gaps = np.concatenate([np.zeros(0, np.int64), *found])
        return gaps, np.searchsorted(gaps, begin)

    def gaps_in(self, epoch: int) -> Ints:
        """The places of a pass that are left out, sorted."""
        gaps = self._held.get(epoch)
        if gaps is None:
            self._held[epoch] = gaps = self._between(epoch, epoch + 1) - epoch * self.period
        return gaps

    def _between(self, first: int, last: int) -> Ints:
        """The positions below that are left out of some passes that follow each other, sorted."""
        return self.find(first * self.period, last * self.period)

    def lost_before(self, below: int) -> Iterator[tuple[int, int, Ints]]:
        """Yield the exclusions before a position below: a pass, the number of equal passes, its
        places.
        """
        begins = self._stretches[0].tolist()
        last, place = divmod(below, self.period)
        for begin, end in zip(begins, [*begins[1:], last], strict=True):
            if begin < last:
                yield begin, min(end, last) - begin, self.gaps_in(begin)
        gaps = self.gaps_in(last)
        yield last, 1, gaps[gaps < place]

    @property
    def repeats_from(self) -> int:
        """The position below from which on all passes lack the same samples."""
        return int(self._stretches[0][-1]) * self.period

    @cached_property
    def _stretches(self) -> tuple[Ints, Ints, Ints]:
        """Stretches of passes that lack equally many: the first pass, the first draw, the samples
        kept in each pass."""
        if not self.period:
            raise ConfigError(
                f"{self.name!r} has no samples, so none can be left out; exclude those of other sources"
            )
        edges = sorted({0, *(since // self.period + i for since in self.since for i in (0, 1))})
        kept = [self.period - len(self.gaps_in(edge)) for edge in edges]
        if kept[-1] == 0:
            raise ConfigError(
                f"every sample of {self.name!r} is left out; give it weight 0 in its mixture "
                "instead"
            )
        first = [0]
        for i in range(1, len(edges)):
            first.append(first[-1] + (edges[i] - edges[i - 1]) * kept[i - 1])
        return np.asarray(edges), np.asarray(first), np.maximum(np.asarray(kept), 1)


class ExcludeSamplesOp(UnaryOp):
    """An input without some samples."""

    keeps_order = True

    def __init__(self, input: Op, gaps: Gaps, index: Ints) -> None:
        super().__init__(input)
        self.gaps, self.index, self.source = gaps, index, input.source

    def locate(self, positions: Ints) -> ProvenanceRows:
        return self.input.locate(self.gaps.down(positions))

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        gaps = self.gaps
        first, last = gaps.down(np.asarray([low, high - 1])).tolist()
        start, stop = gaps.repeats_from, gaps.repeats_from + gaps.period
        if last >= stop and (gaps.up(self.input.find(leaf, index, start, stop)) < 0).all():
            last = start - 1  # no later pass has any
        if last < first:
            return index[:0]
        draws = gaps.up(self.input.find(leaf, index, first, last + 1))
        return draws[draws >= 0]

    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        below = int(self.gaps.down(np.asarray([position]))[0])
        self.input.tokens(below, lengths, out, times)
        for epoch, passes, places in self.gaps.lost_before(below):
            rows = self.input.locate(places + epoch * self.gaps.period)
            np.add.at(out, rows.leaf, -lengths.of(rows) * times * passes)

    def count_distinct(self, out: Ints) -> None:
        super().count_distinct(out)
        assert self.leaf is not None
        out[self.leaf] -= len(self.gaps.gaps_in(0))

    def before(self, position: int, early: bool = False) -> Iterator[Before]:
        yield Before(self.input, int(self.gaps.down(np.asarray([position]))[0]), early)

    def excluded(self) -> Iterator[tuple[int, Ints]]:
        yield self.input.leaves[0], self.index

    @property
    def repeats(self) -> bool:
        return False


@dataclass(frozen=True)
class ExcludeSamples(OrderStep):
    """Leave out samples of a source; the next ones of its order take their places.

    `since[i]` is the position of the input from which on `indices[i]` are left out. `replanned` are
    the passes of the run from which on rows are planned without them.
    """

    since: tuple[int, ...]
    indices: tuple[tuple[int, ...], ...]
    replanned: tuple[int, ...] = ()

    def describe(self) -> dict[str, Json]:
        return {
            "order": "without",
            "since": list(self.since),
            "indices": [list(indices) for indices in self.indices],
        }

    def write(self) -> Written:
        return Written(f"without {counted(sum(map(len, self.indices)), 'sample')}", self.input)

    @cached_property
    def has_exclusions(self) -> bool:
        return True

    def mean_tokens(self) -> float | None:
        return None

    def bind(self, builder: Builder, seed: int, path: Path) -> Op:
        below = builder.op(self.input, seed, path)
        leaf = builder.leaves[below.leaves[0]]
        if leaf.name in builder.rows:
            return below
        index, since = _find_earliest(self.indices, self.since)
        find = partial(_find_gaps, below, leaf.number, index, since)
        return ExcludeSamplesOp(below, Gaps(leaf.name, below.period, self.since, find), index)


def _find_earliest(indices: Sequence[Sequence[int]], since: Sequence[int]) -> tuple[Ints, Ints]:
    """Return the excluded samples, sorted, and the position from which on each is left out."""
    each = np.concatenate([np.asarray(some, np.int64) for some in indices])
    froms = np.repeat(np.asarray(since, np.int64), [len(some) for some in indices])
    order = np.lexsort((froms, each))
    index, first = np.unique(each[order], return_index=True)
    return index, froms[order][first]


def _find_gaps(input: Op, leaf: int, index: Ints, since: Ints, low: int, high: int) -> Ints:
    """Return the positions of a range that are left out: they hold a sample that is excluded by then."""
    here = since < high
    index, since = index[here], since[here]
    found = input.find(leaf, index, low, high)
    if not len(found) or (since <= low).all():
        return found
    rows = input.locate(found)
    at = np.searchsorted(index, rows.index).clip(max=len(index) - 1)
    begins = np.where(index[at] == rows.index, since[at], high)
    return found[np.minimum.reduceat(begins, rows.firsts()[:-1]) <= found]


def find_replanned_passes(root: Step) -> list[int]:
    """Return the passes of a run from which on rows are planned without excluded samples."""
    steps = (step for step, _ in iter_steps(root) if isinstance(step, ExcludeSamples))
    return sorted({epoch for step in steps for epoch in step.replanned})
