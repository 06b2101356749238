"""`plan.exclude(...)`: an order of one source without some of its samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from ...types import Json, Path
from ..base.shown import counted
from ..ops.op import Op
from ..ops.without import Gaps, WithoutOp
from .reorder import OrderStep
from .step import Builder, Step, Written, walk


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

    def mean_tokens(self) -> float | None:
        return None

    def bind(self, builder: Builder, seed: int, path: Path) -> Op:
        below = builder.op(self.input, seed, path)
        leaf = builder.leaves[below.leaves[0]]
        gaps = (
            (since, partial(below.find, leaf.number, np.asarray(indices, np.int64)))
            for since, indices in zip(self.since, self.indices, strict=True)
        )
        return WithoutOp(below, Gaps(leaf.name, below.period, tuple(gaps)))


def find_replanned_passes(root: Step) -> list[int]:
    """Return the passes of a run from which on rows are planned without excluded samples."""
    steps = (step for step, _ in walk(root) if isinstance(step, ExcludeSamples))
    return sorted({epoch for step in steps for epoch in step.replanned})
