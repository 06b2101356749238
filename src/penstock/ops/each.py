"""A function on every sample, one result for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..rows import Rows
from ..step import Step
from ..types import Ints
from .op import OneInput, Op


class EachOp(OneInput):
    """A step over positions. `node` numbers it among the ops that leave marks."""

    def __init__(self, flow: Op, step: Step, node: int) -> None:
        super().__init__(flow)
        self.step, self.node = step, node

    def locate(self, positions: Ints, laps: Ints) -> Rows:
        rows = self.flow.locate(positions, laps)
        if self.step.kind == "index":
            place = positions % self.size if self.size else positions
            rows.marks = {**rows.marks, self.node: np.repeat(place, np.diff(rows.firsts()))}
        return rows

    def values(self, rows: Rows) -> list[Any]:
        index = rows.marks[self.node][rows.firsts()[:-1]] if self.step.kind == "index" else None
        return self.step.apply(self.flow.values(rows), rows, index)
