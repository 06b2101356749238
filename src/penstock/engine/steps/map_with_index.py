"""`ds.map_with_index(fn)`: one item for each sample, computed from its number in the pass too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...types import Ints
from ..base.rows import ProvenanceRows
from ..streams.function_call import FunctionCall
from .function_step import FunctionOp, FunctionStep


class MapWithIndexCall(FunctionCall):
    """`fn(i, x)`; the rows carry `i` as a mark."""

    needs_index = True
    takes_value_alone = False

    def bind(self, rows: ProvenanceRows) -> Callable[[int], Callable[[Any], Any]]:
        fn, index = self.fn, rows.marks[self.mark][rows.firsts()[:-1]]
        return lambda i: lambda value: fn(int(index[i]), value)


class MapWithIndexOp(FunctionOp):
    """The positions of its input, whose rows it marks with the number of the item in its pass."""

    def locate(self, positions: Ints) -> ProvenanceRows:
        rows = self.input.locate(positions)
        passes = self.input.passes
        index = positions if passes is None else passes.split(positions)[1]
        rows.marks = {**rows.marks, self.call.mark: np.repeat(index, np.diff(rows.firsts()))}
        return rows


@dataclass(frozen=True)
class MapWithIndex(FunctionStep):
    """Replace the i-th sample of a pass by `fn(i, x)`; for indexed inputs only."""

    KEY = "index"
    METHOD = "map_with_index"
    CALL = MapWithIndexCall
    COMPILED = MapWithIndexOp
    varies_by_pass = True
