"""`ds.with_source(fn)`: one item for each sample, computed from its provenance too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..base.rows import ProvenanceRows
from ..streams.function_call import FunctionCall
from .function_step import FunctionStep


class WithSourceCall(FunctionCall):
    """`fn(x, source, epoch, index)`."""

    takes_value_alone = False

    def bind(self, rows: ProvenanceRows) -> Callable[[int], Callable[[Any], Any]]:
        fn, leaves, first = self.fn, self.leaves, rows.firsts()
        leaf, epoch, index = rows.leaf, rows.epoch, rows.index

        def bind_provenance(i: int) -> Callable[[Any], Any]:
            row = first[i]
            source = leaves[int(leaf[row])].name
            return lambda value: fn(value, source, int(epoch[row]), int(index[row]))

        return bind_provenance


@dataclass(frozen=True)
class WithSource(FunctionStep):
    """Replace every sample by `fn(x, source, epoch, index)`."""

    KEY = "source"
    METHOD = "with_source"
    CALL = WithSourceCall
    varies_by_pass = True
    keeps_lengths = True
