"""A plan as a picture: who gives how much over the run, and how often each source has been seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from penstock.errors import ConfigError, missing_extra
from penstock.types import Ints

Floats: TypeAlias = npt.NDArray[np.float64]

KINDS = (".svg", ".png", ".html")
BANDS = 10  # sources with a colour of their own; the lightest of the others share one
OTHERS = "#b8bcc4"
COLOURS = (
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
class Course:
    """What a run gives over time: `counts[i, s]` samples (or tokens: `unit`) of source `s` before step `steps[i]`.
    Sources of one group, where there are `groups`, stand beside each other, and share a colour and a label.
    """

    names: Sequence[str]
    sizes: Sequence[int | None]
    steps: Ints
    counts: Ints
    marks: Sequence[tuple[int, str]] = ()
    unit: str = "samples"
    groups: Sequence[str] = ()

    def merged(self) -> Course:
        """The same with the sources that give least put together, so that a picture can be read, unless they have
        groups.
        """
        if self.grouped:
            return self
        if len(self.names) <= BANDS + 1:
            return self
        order: list[int] = np.argsort(-self.counts[-1], kind="stable").tolist()
        kept, rest = order[:BANDS], order[BANDS:]
        known = [size for i in rest if (size := self.sizes[i]) is not None]
        names = [*(self.names[i] for i in kept), f"{len(rest)} others"]
        sizes = [*(self.sizes[i] for i in kept), sum(known) if len(known) == len(rest) else None]
        return Course(
            names,
            sizes,
            self.steps,
            np.column_stack([self.counts[:, kept], self.counts[:, rest].sum(axis=1)]),
            self.marks,
            self.unit,
        )

    @property
    def grouped(self) -> bool:
        """Whether some sources are told of together."""
        return bool(self.groups) and list(self.groups) != list(self.names)

    @property
    def together(self) -> list[tuple[str, list[int]]]:
        """What has a label: groups with the numbers of their sources, or each source by itself."""
        of = self.groups if self.grouped else self.names
        return [(name, [i for i, other in enumerate(of) if other == name]) for name in dict.fromkeys(of)]


def save(course: Course, path: Path, title: str, table: Sequence[Sequence[str]] = ()) -> None:
    """Write the picture as SVG or PNG, or as a page that holds it and a table (the first row is its head)."""
    if path.suffix not in KINDS:
        raise ConfigError(f"{path}: a picture is written as {', '.join(KINDS)}; give a name that ends in one of them")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = draw(course.merged(), title)
    if path.suffix == ".html":
        path.write_text(page(title, [("", as_svg(figure))], table), encoding="utf-8")
    elif path.suffix == ".svg":
        path.write_text(as_svg(figure), encoding="utf-8")
    else:
        figure.savefig(path, dpi=160)


def as_svg(figure: Any) -> str:
    """A figure as an `<svg>` element."""
    import matplotlib

    out, plot = BytesIO(), cast(Any, matplotlib)
    with plot.rc_context({"svg.fonttype": "none"}):  # text stays text
        figure.savefig(out, format="svg")
    text = out.getvalue().decode()
    return text[text.index("<svg") :]


def draw(course: Course, title: str) -> Any:
    """Two panels over one axis of steps: shares as bands, epochs as lines."""
    try:
        from matplotlib import ticker
        from matplotlib.figure import Figure
    except ImportError as error:
        raise missing_extra(error.name or "matplotlib", "plot", "a picture of a plan") from None
    figure: Any = Figure(figsize=(11, 7.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    figure.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold")
    colours = [COLOURS[i] if i < BANDS else OTHERS for i in range(len(course.together))]
    _shares(above, course, colours)
    _epochs(below, course, colours)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_xlim(course.steps[0], course.steps[-1])
        for step, _ in course.marks:
            axes.axvline(step, color="#444", linewidth=0.9, linestyle=(0, (2, 2)))
    below.xaxis.set_major_formatter(ticker.FuncFormatter(_short_tick))
    below.set_xlabel("step")
    return figure


def _shares(axes: Any, course: Course, colours: Sequence[str]) -> None:
    drawn = np.diff(course.counts, axis=0).astype(np.float64)
    shares = drawn / np.maximum(drawn.sum(axis=1, keepdims=True), 1)
    # A share belongs to the steps between two counts, so the bands are stairs.
    edges = np.repeat(course.steps, 2)[1:-1]
    together = course.together
    pairs = list(zip(colours, (mine for _, mine in together), strict=True))
    bands = [_shade(colour, n, len(mine)) for colour, mine in pairs for n in range(len(mine))]
    axes.stackplot(edges, np.repeat(shares, 2, axis=0).T, colors=bands, linewidth=0)
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axes.set_title(f"share of the {course.unit} (at the right: at the end)", loc="left", fontsize=10)
    last = np.asarray([shares[-1, mine].sum() for _, mine in together])
    middles = np.cumsum(last) - last / 2
    labels = [f"{name}  {share:.1%}" for (name, _), share in zip(together, last.tolist(), strict=True)]
    _labels(axes, course.steps[-1], middles, labels, colours, 0.055, 1.0)
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


def _epochs(axes: Any, course: Course, colours: Sequence[str]) -> None:
    labelled = zip(course.together, colours, strict=True)
    known = [(name, colour, mine) for (name, mine), colour in labelled if all(course.sizes[i] for i in mine)]
    axes.set_title("epochs: how often each source has been seen", loc="left", fontsize=10)
    if not known:
        axes.text(0.5, 0.5, "no source has a known length", transform=axes.transAxes, ha="center", color="#666")
        return
    sizes = [sum(course.sizes[i] or 0 for i in mine) for _, _, mine in known]
    ends = np.array([course.counts[-1, mine].sum() / size for (_, _, mine), size in zip(known, sizes, strict=True)])
    for (_, colour, mine), size in zip(known, sizes, strict=True):
        for i in mine if len(mine) > 1 else ():
            epochs = course.counts[:, i] / (course.sizes[i] or 1)
            axes.plot(course.steps, epochs, color=colour, linewidth=0.7, alpha=0.45)
        axes.plot(course.steps, course.counts[:, mine].sum(axis=1) / size, color=colour, linewidth=1.8)
    axes.set_ylim(0, max(1.05, axes.get_ylim()[1]))
    axes.axhline(1, color="#999", linewidth=0.8, linestyle=(0, (5, 4)))
    top = axes.get_ylim()[1]
    labels = [f"{name}  {_times(end)}" for (name, _, _), end in zip(known, ends.tolist(), strict=True)]
    _labels(axes, course.steps[-1], ends, labels, [colour for _, colour, _ in known], 0.085 * top, top)


def _shade(colour: str, number: int, many: int) -> str:
    """The colour of one source of a group: the lighter, the later."""
    part = 0.6 * number / max(many - 1, 1)
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(value + (255 - value) * part):02x}" for value in parts)


def _labels(
    axes: Any, x: int, places: Floats, labels: Sequence[str], colours: Sequence[str], gap: float, top: float
) -> None:
    """Names at the right edge, moved apart where they would overlap."""
    for label, y, colour in zip(labels, spaced(places, gap, top).tolist(), colours, strict=True):
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


def spaced(places: Floats, gap: float, top: float) -> Floats:
    """The places in their order, at least `gap` apart and not above `top`, as near to where they were as that allows.

    >>> spaced(np.array([0.0, 0.5, 0.02]), 0.1, 1.0).tolist()
    [0.0, 0.5, 0.1]
    >>> spaced(np.array([1.0, 0.98]), 0.1, 1.0).tolist()
    [1.0, 0.9]
    """
    order = np.argsort(places, kind="stable")
    steps = np.arange(len(places)) * gap
    up = np.maximum.accumulate(places[order] - steps) + steps
    moved = np.empty_like(places)
    moved[order] = np.minimum(up, top - steps[::-1])
    return moved


def _times(epochs: float) -> str:
    return f"{epochs:.2f} x" if epochs < 10 else f"{epochs:,.0f} x"


def _short_tick(value: float, _: Any = None) -> str:
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g} {unit}"
    return f"{value:g}"


STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1060px; margin: 32px auto; padding: 0 20px }
h1 { font-size: 22px } h2 { font-size: 17px; margin-top: 32px }
svg { width: 100%; height: auto }
table { border-collapse: collapse; margin: 16px 0; font-variant-numeric: tabular-nums }
th, td { text-align: right; padding: 4px 14px; border-bottom: 1px solid #e3e5e8 }
th:first-child, td:first-child { text-align: left }
pre { background: #f5f6f8; padding: 12px 16px; overflow-x: auto }
"""


def page(title: str, parts: Sequence[tuple[str, str]], table: Sequence[Sequence[str]] = ()) -> str:
    """An HTML page of its own: a table, and parts with a heading each, their content already HTML."""
    out = StringIO()
    out.write(f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>')
    out.write(f"<style>{STYLE}</style><h1>{escape(title)}</h1>")
    if table:
        out.write("<table><tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in table[0]) + "</tr>")
        for row in table[1:]:
            out.write("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>")
        out.write("</table>")
    for heading, content in parts:
        out.write((f"<h2>{escape(heading)}</h2>" if heading else "") + content)
    return out.getvalue() + "</html>\n"
