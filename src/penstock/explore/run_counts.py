"""Counts of samples along a run, and the colours and labels of its pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..types import Ints

Floats: TypeAlias = npt.NDArray[np.float64]

MAX_BANDS = 10  # sources with their own colour; the smaller ones share one
OTHERS_COLOUR = "#b8bcc4"
BAND_COLOURS = (
    "#2f6fde",
    "#e8833a",
    "#2c9c69",
    "#a855c7",
    "#c0392b",
    "#0e8ea8",
    "#b08900",
    "#d6558b",
    "#6b7a1f",
    "#7a5c43",
)


@dataclass(frozen=True)
class RunCounts:
    """Counts of samples along the run.

    `counts[i, s]` is the number of samples (or tokens, see `unit`) of source `s` before step
    `steps[i]`. Sources of one group are adjacent and share a colour and a label.
    """

    names: Sequence[str]
    sizes: Sequence[int | None]
    steps: Ints
    counts: Ints
    marks: Sequence[tuple[int, str]] = ()
    unit: str = "samples"
    groups: Sequence[str] = ()

    def merged(self) -> RunCounts:
        """Return the course with the smallest sources merged, unless there are groups."""
        if self.grouped:
            return self
        if len(self.names) <= MAX_BANDS + 1:
            return self
        order: list[int] = np.argsort(-self.counts[-1], kind="stable").tolist()
        largest, rest = order[:MAX_BANDS], order[MAX_BANDS:]
        known = [size for i in rest if (size := self.sizes[i]) is not None]
        names = [*(self.names[i] for i in largest), f"{len(rest)} others"]
        sizes = [*(self.sizes[i] for i in largest), sum(known) if len(known) == len(rest) else None]
        return RunCounts(
            names,
            sizes,
            self.steps,
            np.column_stack([self.counts[:, largest], self.counts[:, rest].sum(axis=1)]),
            self.marks,
            self.unit,
        )

    @property
    def grouped(self) -> bool:
        """True if at least one group has several sources or its own name."""
        return bool(self.groups) and list(self.groups) != list(self.names)

    @property
    def together(self) -> list[tuple[str, list[int]]]:
        """Labels with the numbers of their sources: one per group, or one per source."""
        labels = self.groups if self.grouped else self.names
        return [
            (name, [i for i, label in enumerate(labels) if label == name])
            for name in dict.fromkeys(labels)
        ]


def lighten_colour(colour: str, number: int, count: int) -> str:
    """Return the colour of a source in a group; later sources are lighter."""
    lightness = 0.6 * number / max(count - 1, 1)
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(value + (255 - value) * lightness):02x}" for value in channels)


def spread_labels(positions: Floats, gap: float, top: float) -> Floats:
    """Return positions at least `gap` apart and at most `top`, close to the given ones.

    >>> spread_labels(np.array([0.0, 0.5, 0.02]), 0.1, 1.0).tolist()
    [0.0, 0.5, 0.1]
    >>> spread_labels(np.array([1.0, 0.98]), 0.1, 1.0).tolist()
    [1.0, 0.9]
    """
    order = np.argsort(positions, kind="stable")
    steps = np.arange(len(positions)) * gap
    raised = np.maximum.accumulate(positions[order] - steps) + steps
    result = np.empty_like(positions)
    result[order] = np.minimum(raised, top - steps[::-1])
    return result


def format_number(value: float, _: Any = None) -> str:
    """Format a number with a unit prefix.

    >>> format_number(5_000), format_number(1.5e12), format_number(12)
    ('5 k', '1.5 T', '12')
    """
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"
