"""`ds.map(fn)`: one item for each sample."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...types import Json, Path
from ..packing import PackedBatches, Packing
from ..streams.function_call import FunctionCall
from .function_step import FunctionStep
from .read import identify_counter
from .step import Step, Written


class MapCall(FunctionCall):
    """`fn(x)`; or `fn.many(xs)` if the function has it, as in `map(batched=n)`."""

    vectorises = True


@dataclass(frozen=True)
class Map(FunctionStep):
    """Replace every sample by `fn(x)`; or build a row or a batch from every group."""

    KEY = "map"
    METHOD = "map"
    CALL = MapCall

    def describe(self) -> dict[str, Json]:
        match self.fn:
            case Packing() | PackedBatches(Packing()):
                packing = self.fn if isinstance(self.fn, Packing) else self.fn.packing
                return {"pack": packing.describe()}
            case _:
                return super().describe()

    def write(self) -> Written | None:
        return self.input.write_built(self.fn) or super().write()

    @cached_property
    def lengths_known(self) -> bool:
        return keeps_token_counts(self.fn, self.input) and self.input.lengths_known

    def mean_tokens(self) -> float | None:
        if isinstance(self.fn, Packing):
            return float(self.fn.length)
        return self.input.mean_tokens() if keeps_token_counts(self.fn, self.input) else None

    def token_sources(self, path: Path, complete: bool = False) -> Iterator[tuple[str, object]]:
        if (dtype := getattr(self.fn, "token_dtype", None)) is not None:
            yield from ((name, dtype) for name, _ in self.input.token_sources(path))


def keeps_token_counts(fn: Any, below: Step) -> bool:
    """Return whether the lengths that sources know are those that a function makes of samples."""
    counter = identify_counter(fn)
    return counter is not None and counter == below.token_counter
