"""Items of a unit on their way through the functions of a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..base.rows import ProvenanceRows, compute_bounds


@dataclass
class Results:
    """The items that the steps of a job have made of a unit so far.

    `origin` has the item of the unit that each came from, None while they are the same. `size` is
    the largest number of bytes measured so far.
    """

    values: Sequence[Any]
    rows: ProvenanceRows
    origin: list[int] | None = None
    size: float = 0.0

    def keep(self, which: list[int]) -> None:
        """Drop all items but these."""
        if len(which) == len(self.values):
            return
        self.values = [self.values[i] for i in which]
        self.rows = self.rows.take(np.asarray(which, np.int64))
        self.origin = which if self.origin is None else [self.origin[i] for i in which]

    def expand(self) -> None:
        """Replace every item, a list, by its entries, and number the parts of each row."""
        counts = np.asarray([len(value) for value in self.values], np.int64)
        source = np.repeat(np.arange(len(counts)), counts)
        piece = np.arange(len(source)) - compute_bounds(counts)[source] + 1
        rows = self.rows.take(source)
        self.rows = replace(
            rows, part=rows.part * 1_000_003 + np.repeat(piece, np.diff(rows.firsts()))
        )
        self.values = [entry for value in self.values for entry in value]
        self.origin = (
            source.tolist() if self.origin is None else [self.origin[i] for i in source.tolist()]
        )
