"""Groups in columns: who goes together, for any number of groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...types import Ints
from ..base.rows import bounds_of


@dataclass(frozen=True, eq=False)
class Layout:
    """Groups in columns: group `r` is the parts `bounds[r]:bounds[r + 1]`, each `item[start:stop]`;
    all int64.

    `len(plan)` is the number of groups.
    """

    bounds: Ints
    item: Ints
    start: Ints
    stop: Ints

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def pieces(self, groups: Ints) -> tuple[Ints, Ints]:
        """The entries of some groups, one group after the other, and where each group begins among
        them."""
        starts = self.bounds[groups]
        bounds = bounds_of(self.bounds[groups + 1] - starts)
        return bounds, np.repeat(starts - bounds[:-1], np.diff(bounds)) + np.arange(int(bounds[-1]))
