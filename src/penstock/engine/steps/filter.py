"""`ds.filter(fn)`: the samples for which a predicate is true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..streams.function_call import FunctionCall, UnitItems
from .function_step import FunctionStep


class FilterCall(FunctionCall):
    """`fn(x)`, or `fn.many(xs)` if the function has it; the results choose among the samples."""

    drops = True
    vectorises = True

    def collect(self, results: Sequence[Any], items: UnitItems) -> None:
        items.keep([i for i, result in enumerate(results) if result])


@dataclass(frozen=True)
class Filter(FunctionStep):
    """Keep the samples for which `fn(x)` is true."""

    KEY = "filter"
    METHOD = "filter"
    CALL = FilterCall
    keeps_values = True
