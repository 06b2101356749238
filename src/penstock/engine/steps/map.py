"""`ds.map(fn)`: one item for each sample."""

from __future__ import annotations

from dataclasses import dataclass

from ..streams.step import FunctionCall
from .function_step import FunctionStep, Input


class MapCall(FunctionCall):
    """`fn(x)`; or `fn.many(xs)` if the function has it, as in `map(batched=n)`."""

    vectorises = True


@dataclass(frozen=True)
class Map(FunctionStep[Input]):
    """Replace every sample by `fn(x)`."""

    KEY = "map"
    METHOD = "map"
    CALL = MapCall
