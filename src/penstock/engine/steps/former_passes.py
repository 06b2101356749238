"""The passes of a run before another pipeline was adopted."""

from __future__ import annotations

from dataclasses import dataclass

from ...types import Json, Path
from ..base.shown import format_description
from ..ops.eras import FormerPassesOp
from ..ops.op import Op
from .reorder import OrderStep
from .step import Builder, Written


@dataclass(frozen=True)
class FormerPasses(OrderStep):
    """The passes of a run that began with other data.

    Before pass `until` they had `sizes` rows, each from a pass on. Their samples are unknown.
    """

    sizes: tuple[tuple[int, int], ...]
    until: int

    def describe(self) -> dict[str, Json]:
        sizes: list[Json] = [[*size] for size in self.sizes]
        return {"order": "former_passes", "sizes": sizes, "until": self.until}

    def write(self) -> Written:
        return Written(format_description(self.describe(), None, None), self.input)

    def bind(self, builder: Builder, seed: int, path: Path) -> Op:
        return FormerPassesOp(builder.op(self.input, seed, path), self.sizes, self.until)
