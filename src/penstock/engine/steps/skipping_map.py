"""`ds.map(fn, may_skip=True)`: one item for each sample that the function does not skip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import Skip
from ...types import Transform
from ..streams.function_call import FunctionCall, UnitItems
from .function_step import FunctionStep


class SkippingMapCall(FunctionCall):
    """`fn(x)`, or nothing if the function raises `Skip`."""

    drops = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fn = _ListResult(self.fn)

    def collect(self, results: Sequence[Any], items: UnitItems) -> None:
        items.values = results
        items.keep([i for i, result in enumerate(results) if result])
        items.values = [value for (value,) in items.values]


class _ListResult:
    """The result of a function in a list, which is empty if the function raises `Skip`."""

    def __init__(self, fn: Transform) -> None:
        self.fn = fn

    def __call__(self, value: Any) -> list[Any]:
        try:
            return [self.fn(value)]
        except Skip:
            return []


@dataclass(frozen=True)
class SkippingMap(FunctionStep):
    """Replace every sample by `fn(x)`, and drop those for which `fn` raises `Skip`."""

    KEY = "may_skip"
    METHOD = "map"
    OPTION = "may_skip=True"
    CALL = SkippingMapCall
