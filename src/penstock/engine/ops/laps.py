"""A mixture that was changed while what lies above went through it again: each lap as it was, or
is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...types import Ints, Path
from ..base.integers import find_distinct_values
from ..base.rows import ProvenanceRows, join_rows, make_empty_rows
from .mix import MixOp
from .op import Before, Op
from .passes import PassesOp
from .tally import Tally


class LapsOp(Op):
    """From lap `laps[i]` on, the first of them 0, it is `parts[i]`, of the same inputs and as long
    as the others."""

    def __init__(self, laps: Sequence[int], parts: Sequence[MixOp | PassesOp]) -> None:
        self.laps, self.parts, self.present = tuple(laps), tuple(parts), parts[-1]
        self.inputs, self.depth = self.present.inputs, self.present.depth

    @property
    def size(self) -> int | None:
        return self.present.size

    @property
    def mixture(self) -> Path | None:
        return self.present.mixture

    @property
    def mixed(self) -> bool:
        return True

    @property
    def settled(self) -> int:
        return max(self.remixed, super().settled)

    @property
    def remixed(self) -> int:
        return self.laps[-1]

    def locate(self, positions: Ints, laps: Ints) -> ProvenanceRows:
        part = np.searchsorted(self.laps, laps, side="right") - 1
        order = np.argsort(part, kind="stable")
        found = [make_empty_rows(self.depth)]
        for one in map(int, find_distinct_values(part)):
            mine = np.flatnonzero(part == one)
            found.append(self.parts[one].locate(positions[mine], laps[mine]))
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return join_rows(found).take(back)

    def values(self, rows: ProvenanceRows) -> Sequence[Any]:
        return self.present.values(rows)

    def _find(self, leaf: int, index: Ints, low: int, high: int, lap: int) -> Ints:
        return self._in(lap).find(leaf, index, low, high, lap)

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        self.present.count(
            tally, start, stop, times
        )  # earlier laps are counted by what goes through them

    def stands(self, position: int, ahead: bool = False) -> tuple[int, int]:
        return self.present.stands(position, ahead)

    def before(self, position: int, lap: int = 0, ahead: bool = False) -> Iterator[Before]:
        return self._in(lap).before(position, lap, ahead)

    def _in(self, lap: int) -> MixOp | PassesOp:
        return self.parts[bisect_right(self.laps, lap) - 1]
