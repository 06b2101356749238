"""`ds.flat_map(fn)`: any number of items for each sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...types import Transform
from ..streams.function_call import FunctionCall, UnitItems
from .function_step import FunctionStep


class FlatMapCall(FunctionCall):
    """`fn(x)`, an iterable; its entries become items, numbered by the `part` of their rows."""

    drops = True
    expands = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.fn = _ListEntries(self.fn)

    def collect(self, results: Sequence[Any], items: UnitItems) -> None:
        items.values = results
        items.expand()


class _ListEntries:
    """The list of what a function yields, so that an exception of a generator names its sample."""

    def __init__(self, fn: Transform) -> None:
        self.fn = fn

    def __call__(self, value: Any) -> list[Any]:
        return list(self.fn(value))


@dataclass(frozen=True)
class FlatMap(FunctionStep):
    """Replace every sample by the entries of `fn(x)`."""

    KEY = "flat"
    METHOD = "flat_map"
    CALL = FlatMapCall

    @cached_property
    def forms_batches(self) -> bool:
        return False
