"""Layouts: planned groups in columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...types import Ints
from ..base.rows import compute_bounds


@dataclass(frozen=True, eq=False)
class GroupLayout:
    """Groups in int64 columns: group `r` has the parts `bounds[r]:bounds[r + 1]`.

    A part is `item[start:stop]`. `len(layout)` is the number of groups.
    """

    bounds: Ints
    item: Ints
    start: Ints
    stop: Ints

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def pieces(self, groups: Ints) -> tuple[Ints, Ints]:
        """Return the offsets of some groups in their concatenation, and the parts of all of them."""
        starts = self.bounds[groups]
        bounds = compute_bounds(self.bounds[groups + 1] - starts)
        return bounds, np.repeat(starts - bounds[:-1], np.diff(bounds)) + np.arange(int(bounds[-1]))
