"""Counts of samples and events along a run, and the colours of its charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..types import Ints

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
    unit: str = "samples"
    groups: Sequence[str] = ()

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


@dataclass(frozen=True)
class EventStrip:
    """Events beside the shares.

    Attributes:
        stages: first steps and names of stages.
        repeats: the step of the first repeat of each source.
        ends: the step at which each source is used up.
        changes: steps and descriptions of other events, such as changes of the run.
    """

    stages: Sequence[tuple[int, str]] = ()
    repeats: Sequence[int | None] = ()
    ends: Sequence[int | None] = ()
    changes: Sequence[tuple[int, str]] = ()
