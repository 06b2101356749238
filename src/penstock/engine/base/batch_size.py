"""Numbers of rows in batches, and in batches of batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .step_plan import RowsByStep


@dataclass(frozen=True)
class BatchSize:
    """Batches of `n` neighbours; the last of a pass is short, or dropped.

    With `over_ranks`, `n` rows are shared by all ranks, and each rank batches its share. With
    `by_step`, the rows of all ranks change at global steps, and `n` are those of one of them.
    """

    n: int
    drop_remainder: bool = False
    over_ranks: bool = False
    by_step: RowsByStep | None = None


def least_rows(batches: Sequence[BatchSize]) -> int:
    """Return the fewest rows that make an item of these batches, at the end of a pass."""
    rows = 1
    for batch in reversed(batches):
        rows = rows * batch.n if batch.drop_remainder else (rows - 1) * batch.n + 1
    return rows


def rows_given(batches: Sequence[BatchSize], rows: int) -> int:
    """Return the number of rows, of so many, that end up in an item of these batches."""
    unit = 1
    for batch in batches:
        if batch.drop_remainder:
            rows = min(rows, -(-rows // unit) // batch.n * batch.n * unit)
        unit *= batch.n
    return rows
