"""Picture of a plan with Matplotlib: shares and epochs of sources over the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.errors import make_missing_extra_error
from penstock.explore.run_counts import (
    BAND_COLOURS,
    MAX_BANDS,
    OTHERS_COLOUR,
    Floats,
    RunCounts,
    format_number,
    lighten_colour,
    spread_labels,
)


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


def _format_epochs(epochs: float) -> str:
    return f"{epochs:.2f} x" if epochs < 10 else f"{epochs:,.0f} x"
