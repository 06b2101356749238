"""Comparison of two opened mixtures: settings, first step that differs, counts."""

from __future__ import annotations

from typing import Any, TypeAlias

from penstock.engine.base.canonical_json import list_differences

from ..changes import list_changes
from ..target import Target
from .budget import TimeBudget
from .values import make_printable

_MAX_LINES = 200
_FIRST_WINDOW = 1_024  # rows
_MAX_WINDOW = 1 << 14

Json: TypeAlias = dict[str, Any]


class Comparison:
    """Compares the plans of two mixtures, a part at a time.

    Args:
        before: A mixture.
        after: Another one.
        steps: The number of steps to compare.
    """

    def __init__(self, before: Target, after: Target, steps: int) -> None:
        self._before, self._after, self._steps = before, after, steps

    def list_settings(self) -> list[str]:
        """Return one line for each setting that differs."""
        before, after = self._before, self._after
        lines = list_changes(before.model, after.model)
        lines += [
            f"{name}: {size:,} -> {after.sizes[name]:,} rows"
            for name, size in before.sizes.items()
            if after.sizes.get(name, size) != size
        ]
        if not lines:
            lines = list_differences(
                before.dataset.tree.description(), after.dataset.tree.description()
            )
        if before.rows.position != after.rows.position:
            steps = [target.rows.next_step for target in (before, after)]
            lines.append(f"position of the run: step {steps[0]:,} -> {steps[1]:,}")
        more = len(lines) - _MAX_LINES
        lines = lines[:_MAX_LINES] + ([f"and {more:,} more"] if more > 0 else [])
        return [make_printable(line) for line in lines]

    def find_first_difference(self, row: int = 0, budget: TimeBudget | None = None) -> Json:
        """Return the first step with other samples, searched from a row on.

        Args:
            row: The first row to compare.
            budget: The time that the query may take.

        Returns:
            `first` (None if no step differs so far), and `next`, the row at which the search
            continues (None if it is over).
        """
        before, after = self._before.rows, self._after.rows
        stop = min(self._before.row(self._steps), self._after.row(self._steps))
        budget, window = budget or TimeBudget(), _FIRST_WINDOW
        if self._are_equal:
            row = stop
        while row < stop:
            end = min(row + window, stop)
            found = before.diff(after, within=range(row, end))
            if found.first is not None:
                return {
                    "first": self._before.step(found.first),
                    "here": [list(key) for key in found.here[:20]],
                    "there": [list(key) for key in found.there[:20]],
                    "compared": self._before.step(found.first),
                    "next": None,
                }
            row, window = end, min(window * 2, _MAX_WINDOW)
            if budget.is_spent:
                break
        is_over = row >= stop
        return {
            "first": None,
            "compared": self._steps if is_over else self._before.step(row),
            "next": None if is_over else row,
        }

    @property
    def _are_equal(self) -> bool:
        """True if both are the same pipeline, without a run that changed it."""
        before, after = self._before, self._after
        is_new = not (before.rows.position or after.rows.position)
        return is_new and before.fingerprint() == after.fingerprint()
