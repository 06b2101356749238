"""Traversal of global steps: the samples of each row, as columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ...types import Flags, Ints
from ..base.rows import HOLE, ProvenanceRows
from ..runtime.step_log import AssignedSteps, StepLog


@dataclass(frozen=True, eq=False)
class StepSamples:
    """The samples of some steps, one entry for a sample or part, by rank and row."""

    step: Ints
    rank: Ints
    row: Ints
    leaf: Ints
    epoch: Ints
    index: Ints
    start: Ints | None
    stop: Ints | None
    masked: Flags


@dataclass(frozen=True, eq=False)
class StepReader:
    """Reads the samples of a range of global steps.

    `located` gives the samples of rows, `parted` their tokens.
    """

    log: StepLog
    steps: range
    located: Callable[[Ints], ProvenanceRows]
    parted: Callable[[ProvenanceRows], tuple[Ints | None, Ints | None]]

    def stretches(self, done: Callable[[int], object] | None = None) -> Iterator[StepSamples]:
        """Yield the samples of all steps, some steps at a time; `done` receives the number of steps."""
        for steps in self.log.deal(self.steps):
            yield self._locate(steps)
            if done is not None:
                done(len(steps.steps))

    def _locate(self, steps: AssignedSteps) -> StepSamples:
        rows, ranks = steps.rows.ravel(), steps.ranks
        order = np.argsort(rows, kind="stable") if len(ranks) and ranks[-1] else None
        found = self.located(rows if order is None else rows[order])
        if order is not None:
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            found = found.take(back)
        many = np.diff(found.firsts())
        start, stop = self.parted(found)
        return StepSamples(
            np.repeat(np.repeat(steps.steps, len(ranks)), many),
            np.repeat(np.tile(ranks, len(steps.steps)), many),
            np.repeat(np.tile(steps.places, len(steps.steps)), many),
            found.leaf,
            found.epoch,
            found.index,
            start,
            stop,
            found.marks[HOLE] > 0 if HOLE in found.marks else np.zeros(len(found.leaf), np.bool_),
        )
