"""Counts of samples by source in a stretch of positions: by arithmetic, or one by one where an
order mixes sources.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np

from ...errors import StateError
from ...types import Ints
from ..base.progress import Progress
from ..base.rows import ProvenanceRows
from ..streams.compiled_step import CompiledStep

_SCAN = 1 << 16  # positions looked at together where nothing can be counted ahead
_SHORT, _LONG = (
    1 << 12,
    1 << 17,
)  # samples: shorter passes take as long, and of longer ones some are looked at anyway


def make_removed_error(*inputs: str) -> StateError:
    """Make the error for samples of inputs that another pipeline removed."""
    return StateError(
        f"the run still needs draws from input {', '.join(map(repr, inputs))}, which the mixture no "
        "longer has; give it weight 0 instead of removing it, or ask the plan of an earlier state"
    )


class Uncountable(Exception):
    """More samples would be looked at, one after the other, than a tally or a search may."""


_limit = ContextVar[int | None]("samples that the present count may look at", default=None)
_search = ContextVar["SearchBudget | None"]("the budget of the present search", default=None)


def require_countable_passes(passes: int, samples: int) -> None:
    """Raise `Uncountable` if a count with a limit must add up more passes, each of so many samples,
    than it may."""
    limit = _limit.get()
    if limit is not None and passes * _cost_of_pass(samples) > limit:
        raise Uncountable


@dataclass
class SearchBudget:
    """The repeats that a search lists, one after the other, and how many it may list."""

    limit: int
    listed: int = 0


@contextmanager
def limited_search(limit: int) -> Generator[SearchBudget]:
    """Make a search that lists more repeats of a sample than this raise `Uncountable`."""
    token = _search.set(budget := SearchBudget(limit))
    try:
        yield budget
    finally:
        _search.reset(token)


def spend_search(repeats: int, each: int = 1) -> None:
    """Count repeats that a search is about to list, each at a cost; the first is always allowed."""
    if (budget := _search.get()) is not None:
        budget.listed += repeats * each
        if repeats > 1 and budget.listed > budget.limit:
            raise Uncountable


def _cost_of_pass(samples: int) -> int:
    return min(max(samples, _SHORT), _LONG)


class Tally:
    """Samples by leaf, and the tokens of those that are packed, added up stretch by stretch.
    `packs` are the nodes that mark where the parts of samples begin and end; a sample counts where
    its first part is.

    A subclass with `by_document` receives stretches of single sources instead (`documents`),
    each where it lies: stretches that hold as many samples, but others, are then not counted in the
    place of each other.

    Where arithmetic does not tell what endless stretches hold, it looks at about `most` samples of
    them, no more.
    """

    by_document = False

    def __init__(self, leaves: int, packs: Sequence[int] = (), most: int | None = None) -> None:
        self.samples, self.tokens = np.zeros((2, leaves), np.int64)
        self.removed = Counter[str]()  # draws from inputs that the pipeline no longer has
        self.packs, self._left = packs, most

    def require_inputs(self) -> None:
        """Raise `StateError` if a part was drawn from an input that the pipeline no longer has."""
        if removed := sorted(name for name, draws in self.removed.items() if draws):
            raise make_removed_error(*removed)

    def look_at(self, samples: int) -> None:
        """Note that so many samples are about to be looked at, one after the other.

        Raises:
            Uncountable: if that is more than the tally may.
        """
        if self._left is not None:
            self._left -= samples
            if self._left < 0:
                raise Uncountable

    def look_at_passes(self, passes: int, samples: int) -> None:
        """Note that so many passes of so many samples are about to be looked at, one after the
        other."""
        self.look_at(passes * _cost_of_pass(samples))

    @contextmanager
    def limited(self) -> Generator[None]:
        """Apply the limit of this tally to `require_countable_passes`, however deep below it is
        asked."""
        token = _limit.set(self._left)
        try:
            yield
        finally:
            _limit.reset(token)

    def documents(self, op: CompiledStep, start: int, stop: int, times: int) -> None:
        """Add what lies at positions `[start, stop)` of an op of a single source."""
        raise NotImplementedError

    def one_by_one(self, op: CompiledStep, start: int, stop: int, times: int) -> None:
        """Add what lies at positions `[start, stop)`, by looking at each."""
        with Progress("count samples", stop - start, "positions") as progress:
            for at in range(start, stop, _SCAN):
                positions = np.arange(at, min(at + _SCAN, stop))
                self.add(op.locate(positions), times)
                progress.more(len(positions))

    def add(self, rows: ProvenanceRows, times: int) -> None:
        """Add samples that were located."""
        begun = np.ones(len(rows.leaf), np.bool_)
        for node in self.packs:
            if node in rows.marks:
                begun &= rows.marks[node] == 0
                np.add.at(self.tokens, rows.leaf, (rows.marks[~node] - rows.marks[node]) * times)
        self.samples += np.bincount(rows.leaf[begun], minlength=len(self.samples)) * times


def split_passes(
    start: int, stop: int, period: int, alike: bool
) -> Iterator[tuple[int, int, int, int]]:
    """Split a stretch at the ends of passes: pass, start and stop in it, and number of such passes.

    >>> list(split_passes(7, 33, 10, True)), len(list(split_passes(7, 33, 10, False)))
    ([(0, 7, 10, 1), (1, 0, 10, 2), (3, 0, 3, 1)], 4)
    """
    first, last = start // period, stop // period
    if first == last:
        yield first, start - first * period, stop - first * period, 1
        return
    yield first, start - first * period, period, 1
    if not alike:
        yield from ((epoch, 0, period, 1) for epoch in range(first + 1, last))
    elif last - first > 1:
        yield first + 1, 0, period, last - first - 1
    if stop > last * period:
        yield last, 0, stop - last * period, 1


def repeat_positions(place: Ints, period: int, low: int, high: int) -> Ints:
    """All positions in a range that are at these places of a period."""
    if not len(place):
        return place
    spend_search((high - 1) // period - low // period + 1)
    passes = np.arange(low // period, (high - 1) // period + 1) * period
    found = (passes[:, None] + np.sort(place)).ravel()
    return found[(found >= low) & (found < high)]
