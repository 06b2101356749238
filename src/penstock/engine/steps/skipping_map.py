"""`ds.map(fn, may_skip=True)`: one item for each sample that the function does not skip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...errors import Skip
from ...types import Transform
from ..streams.function_call import FunctionCall, UnitItems
from .function_step import FunctionStep


class SkippingMapCall(FunctionCall):
    """`fn(x)`, or nothing if the function raises `Skip`; or `fn.many(xs)`, which may return `Skip`."""

    drops = True
    vectorises = True
    may_skip = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fn = partial(_return_skip, self.fn)

    def collect(self, results: Sequence[Any], items: UnitItems) -> None:
        items.values = results
        items.keep([i for i, result in enumerate(results) if not isinstance(result, Skip)])


def _return_skip(fn: Transform, value: Any) -> Any:
    """Return the result of a function, or the `Skip` that it raises."""
    try:
        return fn(value)
    except Skip as skip:
        return skip.with_traceback(None)  # whose frames hold the sample


@dataclass(frozen=True)
class SkippingMap(FunctionStep):
    """Replace every sample by `fn(x)`, and drop those for which `fn` raises `Skip`."""

    KEY = "may_skip"
    METHOD = "map"
    OPTION = "may_skip=True"
    CALL = SkippingMapCall
