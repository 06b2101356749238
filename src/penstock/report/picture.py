"""Picture of a plan with Matplotlib: shares and epochs of sources over the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from penstock.errors import make_missing_extra_error
from penstock.types import Ints

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


def draw_panels(course: RunCounts, title: str) -> Any:
    """Draw two panels over the steps: shares as bands, epochs as lines."""
    try:
        from matplotlib import ticker
        from matplotlib.figure import Figure
    except ImportError as error:
        raise make_missing_extra_error(
            error.name or "matplotlib", "plot", "a picture of a plan"
        ) from None
    figure: Any = Figure(figsize=(11, 7.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold")
    colours = [
        BAND_COLOURS[i] if i < MAX_BANDS else OTHERS_COLOUR for i in range(len(course.together))
    ]
    _draw_shares(above, course, colours)
    _draw_epochs(below, course, colours)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(course.steps[0], course.steps[-1])
        for step, _ in course.marks:
            axes.axvline(step, color="#444", linewidth=0.9, linestyle=(0, (2, 2)))
    below.xaxis.set_major_formatter(ticker.FuncFormatter(format_number))
    below.set_xlabel("step")
    return figure


def _draw_shares(axes: Any, course: RunCounts, colours: Sequence[str]) -> None:
    drawn = np.diff(course.counts, axis=0).astype(np.float64)
    shares = drawn / np.maximum(drawn.sum(axis=1, keepdims=True), 1)
    # A share covers the steps between two counts, so the bands are step functions.
    edges = np.repeat(course.steps, 2)[1:-1]
    together = course.together
    pairs = list(zip(colours, (mine for _, mine in together), strict=True))
    bands = [
        lighten_colour(colour, n, len(mine)) for colour, mine in pairs for n in range(len(mine))
    ]
    axes.stackplot(edges, np.repeat(shares, 2, axis=0).T, colors=bands, linewidth=0)
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.set_title(
        f"share of the {course.unit} (at the right: at the end)", loc="left", fontsize=10
    )
    last = np.asarray([shares[-1, mine].sum() for _, mine in together])
    middles = np.cumsum(last) - last / 2
    labels = [
        f"{name}  {share:.1%}" for (name, _), share in zip(together, last.tolist(), strict=True)
    ]
    _draw_labels(axes, course.steps[-1], middles, labels, colours, 0.055, 1.0)
    for number, (step, text) in enumerate(course.marks):
        right = step > (course.steps[0] + course.steps[-1]) / 2
        axes.annotate(
            text,
            (step, 0.97 - 0.075 * (number % 6)),
            xytext=(-5 if right else 5, 0),
            textcoords="offset points",
            ha="right" if right else "left",
            va="top",
            fontsize=8.5,
            bbox={"boxstyle": "round,pad=0.2", "fc": "white", "ec": "none", "alpha": 0.85},
        )


def _draw_epochs(axes: Any, course: RunCounts, colours: Sequence[str]) -> None:
    labelled = zip(course.together, colours, strict=True)
    known = [
        (name, colour, mine)
        for (name, mine), colour in labelled
        if all(course.sizes[i] for i in mine)
    ]
    axes.set_title("epochs: how often each source has been seen", loc="left", fontsize=10)
    if not known:
        axes.text(
            0.5,
            0.5,
            "no source has a known length",
            transform=axes.transAxes,
            ha="center",
            color="#666",
        )
        return
    sizes = [sum(course.sizes[i] or 0 for i in mine) for _, _, mine in known]
    ends = np.array(
        [
            course.counts[-1, mine].sum() / size
            for (_, _, mine), size in zip(known, sizes, strict=True)
        ]
    )
    for (_, colour, mine), size in zip(known, sizes, strict=True):
        for i in mine if len(mine) > 1 else ():
            epochs = course.counts[:, i] / (course.sizes[i] or 1)
            axes.plot(course.steps, epochs, color=colour, linewidth=0.7, alpha=0.45)
        axes.plot(
            course.steps, course.counts[:, mine].sum(axis=1) / size, color=colour, linewidth=1.8
        )
    axes.set_ylim(0, max(1.05, axes.get_ylim()[1]))
    axes.axhline(1, color="#999", linewidth=0.8, linestyle=(0, (5, 4)))
    top = axes.get_ylim()[1]
    labels = [
        f"{name}  {_format_epochs(end)}"
        for (name, _, _), end in zip(known, ends.tolist(), strict=True)
    ]
    _draw_labels(
        axes, course.steps[-1], ends, labels, [colour for _, colour, _ in known], 0.085 * top, top
    )


def lighten_colour(colour: str, number: int, count: int) -> str:
    """Return the colour of a source in a group; later sources are lighter."""
    lightness = 0.6 * number / max(count - 1, 1)
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(value + (255 - value) * lightness):02x}" for value in channels)


def _draw_labels(
    axes: Any,
    x: int,
    positions: Floats,
    labels: Sequence[str],
    colours: Sequence[str],
    gap: float,
    top: float,
) -> None:
    """Write labels at the right edge; move them apart if they overlap."""
    for label, y, colour in zip(
        labels, spread_labels(positions, gap, top).tolist(), colours, strict=True
    ):
        axes.annotate(
            label,
            (x, y),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=9,
            fontweight="bold",
            annotation_clip=False,
        )


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


def _format_epochs(epochs: float) -> str:
    return f"{epochs:.2f} x" if epochs < 10 else f"{epochs:,.0f} x"


def format_number(value: float, _: Any = None) -> str:
    """Format a number with a unit prefix.

    >>> format_number(5_000), format_number(1.5e12), format_number(12)
    ('5 k', '1.5 T', '12')
    """
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"
