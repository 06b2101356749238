"""The passes of a run before another pipeline was adopted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import StateError
from ...types import Ints, Json, Path
from ..base.passes import Passes
from ..base.rows import ProvenanceRows
from ..base.shown import format_description
from .op import UNKNOWN, Before, Op, UnaryOp
from .reorder import OrderStep
from .step import Builder, Written
from .tally import Tally
from .tokens import Lengths


class FormerPassesOp(UnaryOp):
    """Passes of a run that read other data before pass `until`: then they had `sizes` rows, each
    from a pass on, and what these held is unknown."""

    def __init__(self, rows: Op, sizes: Sequence[tuple[int, int]], until: int) -> None:
        super().__init__(rows)
        below = rows.passes
        assert below is not None, "only passes that end have another length"
        self._passes = Passes.of(
            [
                *(each for each in sizes if each[0] < until),
                (until, below.size(until)),
                *((epoch, size) for epoch, size in below.to_json() if epoch > until),
            ]
        )
        self._first, self._until = self._passes.start(until), until
        self._shift = below.start(until) - self._first

    @property
    def size(self) -> int:
        return self._passes.sizes[0]

    @property
    def passes(self) -> Passes:
        return self._passes

    def _require_known(self, position: int) -> None:
        if position < self._first:
            raise StateError(
                f"pass {self._passes.at(position).epoch} of the run read other data, before another "
                "pipeline was adopted; ask the plan of a state saved in such a pass"
            )

    def locate(self, positions: Ints) -> ProvenanceRows:
        self._require_known(int(positions.min(initial=self._first)))
        return self.input.locate(positions + self._shift)

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        self._require_known(low)
        return self.input.find(leaf, index, low + self._shift, high + self._shift) - self._shift

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        self._require_known(start)
        self.input.count(tally, start + self._shift, stop + self._shift, times)

    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        self._require_known(0)

    def before(self, position: int, early: bool = False) -> Iterator[Before]:
        yield Before(self.input, position + self._shift, early)

    def nth(self, leaf: Ints, number: Ints, last: bool = False) -> Ints:
        return np.full(len(leaf), UNKNOWN)

    @property
    def leaf(self) -> int | None:
        return None

    @property
    def repeats(self) -> bool:
        return False


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
