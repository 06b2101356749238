"""Picture of a plan as SVG: groups, sources, stages and repeats; for light and dark themes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from io import StringIO

import numpy as np

from .run_counts import (
    BAND_COLOURS,
    MAX_BANDS,
    OTHERS_COLOUR,
    Floats,
    RunCounts,
    format_number,
    lighten_colour,
    spread_labels,
)

PANEL_HEIGHT = 300  # of the panel of shares
_ROW, _LINE = 18, 15  # heights of a row of the strip, and of a label
_CHAR_WIDTH = 6.6  # approximate width of a character

SVG_STYLE = """
.plan { --ink: #1b1f24; --dim: #57606a; --rule: #d0d7de; --paper: #ffffff; font: 12px system-ui, sans-serif }
@media (prefers-color-scheme: dark) {
  .plan { --ink: #e6edf3; --dim: #9da7b1; --rule: #3d444d; --paper: #0d1117 }
}
.plan text { fill: var(--ink) } .plan .dim { fill: var(--dim) } .plan .bold { font-weight: 600 }
.plan .title { font-size: 15px; font-weight: 600 }
.plan .rule { stroke: var(--rule); stroke-width: 1 } .plan .stage { stroke: var(--ink); stroke-dasharray: 3 3 }
.plan .paper { fill: var(--paper) } .plan .band { stroke: var(--paper); stroke-width: 0.4 }
.plan .band:hover, .plan .tick:hover { filter: brightness(1.2) }
"""


@dataclass(frozen=True)
class EventStrip:
    """Events beside the shares: begins of stages, and first repeats and ends by source."""

    stages: Sequence[tuple[int, str]] = ()
    repeats: Sequence[int | None] = ()
    ends: Sequence[int | None] = ()


def render_svg(
    course: RunCounts,
    title: str,
    strip: EventStrip | None = None,
    width: int = 1060,
    height: int = PANEL_HEIGHT,
) -> str:
    """Return an `<svg>` element with tooltips.

    Args:
        course: counts of samples along the run.
        title: the heading.
        strip: stages, first repeats and ends.
        width: pixels of the picture.
        height: pixels of the panel of shares; the panel of epochs has 60% of it.
    """
    strip = strip or EventStrip((), [None] * len(course.names), [None] * len(course.names))
    if not course.grouped and len(course.names) > MAX_BANDS + 1:
        order: list[int] = np.argsort(-course.counts[-1], kind="stable").tolist()
        rest = set(order[MAX_BANDS:])
        groups = [
            f"{len(rest)} others" if i in rest else name for i, name in enumerate(course.names)
        ]
        order = sorted(range(len(groups)), key=lambda i: (i in rest, i))
        course = replace(
            course,
            names=[course.names[i] for i in order],
            sizes=[course.sizes[i] for i in order],
            counts=course.counts[:, order],
            groups=[groups[i] for i in order],
        )
        strip = replace(
            strip,
            repeats=_reorder_values(strip.repeats, order),
            ends=_reorder_values(strip.ends, order),
        )
    return _SvgDrawing(course, title, strip, width, height).svg()


def _reorder_values(values: Sequence[int | None], order: Sequence[int]) -> list[int | None]:
    return [values[i] for i in order] if values else []


class _SvgDrawing:
    def __init__(
        self, course: RunCounts, title: str, strip: EventStrip, width: int, height: int
    ) -> None:
        self.course, self.title, self.strip, self.out = course, title, strip, StringIO()
        self.panel = height
        self.together = course.together
        names = [f"{name}  100 of 100" for name, _ in self.together]
        self.left = 44
        self.right = min(int(max(map(len, names), default=8) * _CHAR_WIDTH) + 24, width // 3)
        self.wide, self.width = width - self.left - self.right, width
        self.first, self.last = int(course.steps[0]), int(course.steps[-1])

    def svg(self) -> str:
        """Return all panels, one below the other."""
        top = 52 + self._stage_rows() * _LINE
        tall = max(self.panel, len(self.together) * _LINE)
        low = self.panel * 3 // 5  # of the panel of epochs
        strip, rows = top + tall + 66, len(self.together)
        bottom = strip + rows * _ROW + 26
        epochs, height = bottom + 30, bottom + 30 + low + 44
        self._text(8, 22, self.title, "title")
        self._text(
            self.left, 42, f"share of the {self.course.unit}; at the right: at the end", "dim"
        )
        self._shares(top, tall)
        self._stages(top - 6, (top + tall, strip, bottom - 26))
        self._axis(top + tall)
        self._text(
            self.left,
            strip - 8,
            "line: first repeat of a source; cross: the source is used up",
            "dim",
        )
        self._repeats(strip)
        self._text(
            self.left, epochs - 10, "epochs: how often the sources of a group have been seen", "dim"
        )
        self._epochs(epochs, low)
        self._axis(epochs + low)
        label = escape(
            f"{self.title}: shares, first repeats and epochs of {len(self.course.names)} sources",
            True,
        )
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="plan" viewBox="0 0 {self.width} '
            f'{height}" '
            f'width="{self.width}" height="{height}" role="img" aria-label="{label}">'
        )
        paper = '<rect class="paper" width="100%" height="100%"/>'
        return f"{head}<style>{SVG_STYLE}</style>{paper}{self.out.getvalue()}</svg>"

    # ------------------------------------------------------------ elements

    def _x(self, step: float) -> float:
        return self.left + self.wide * (step - self.first) / max(1, self.last - self.first)

    def _text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        words = f'class="{kind}" ' if kind else ""
        self.out.write(
            f'<text {words}x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
        )

    def _line(
        self,
        x: float,
        y: float,
        to_x: float,
        to_y: float,
        kind: str = "rule",
        more: str = "",
        say: str = "",
    ) -> None:
        said = f"<title>{escape(say)}</title>" if say else ""
        at = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
        self.out.write(
            f'<line class="{kind}" {at} {more}>{said}</line>'
            if said
            else f'<line class="{kind}" {at} {more}/>'
        )

    def _shape(self, tag: str, attributes: str, said: str) -> None:
        """Write an element with a tooltip."""
        self.out.write(f"<{tag} {attributes}><title>{escape(said)}</title></{tag}>")

    def _colours(self) -> Iterator[tuple[str, list[int], str]]:
        for place, (name, mine) in enumerate(self.together):
            yield name, mine, BAND_COLOURS[place] if place < MAX_BANDS else OTHERS_COLOUR

    def _axis(self, y: float) -> None:
        for step in _choose_ticks(self.first, self.last, max(3, self.wide // 110)):
            self._line(self._x(step), y, self._x(step), y + 4)
            self._text(self._x(step), y + 17, format_number(step), "dim", "middle")
        self._text(self.left + self.wide, y + 32, f"step, of {self.last:,}", "dim", "end")

    def _shares(self, top: float, tall: float) -> None:
        drawn = np.diff(self.course.counts, axis=0).astype(np.float64)
        shares = drawn / np.maximum(drawn.sum(axis=1, keepdims=True), 1)
        order = [i for _, members in self.together for i in members]
        edges = np.concatenate(
            [np.zeros((len(shares), 1)), np.cumsum(shares[:, order], axis=1)], axis=1
        )
        x = [self._x(step) for step in self.course.steps.tolist()]
        run_shares = self.course.counts[-1] / max(1, int(self.course.counts[-1].sum()))
        for level in (0, 0.25, 0.5, 0.75, 1):
            self._text(self.left - 6, top + tall * (1 - level) + 4, f"{level:.0%}", "dim", "end")
        place = 0
        for name, members, colour in self._colours():
            for number, source in enumerate(members):
                low, high = (top + tall * (1 - edges[:, place + more]) for more in (0, 1))
                place += 1
                if np.allclose(low, high):
                    continue
                path = _build_stairs(x, high.tolist()) + _build_stairs(x, low.tolist())[::-1]
                points = " ".join(f"{a:.1f},{b:.1f}" for a, b in path)
                tooltip = self._said(source, float(run_shares[source]), name)
                fill = lighten_colour(colour, number, len(members))
                self._shape("polygon", f'class="band" points="{points}" fill="{fill}"', tooltip)
        ends = [(float(edges[-1, a]), float(edges[-1, b])) for a, b in self._bounds()]
        middles = np.asarray([(a + b) / 2 for a, b in ends])
        places = spread_labels(middles, _LINE / tall, 1 - _LINE / tall / 2)
        for (name, _, colour), (a, b), y in zip(
            self._colours(), ends, places.tolist(), strict=True
        ):
            at = top + tall * (1 - y)
            self._swatch(at, colour)
            self._text(
                self.left + self.wide + 20, at + 4, f"{self._cut(name)}  {b - a:.1%}", "bold"
            )

    def _bounds(self) -> Iterator[tuple[int, int]]:
        at = 0
        for _, mine in self.together:
            yield at, at + len(mine)
            at += len(mine)

    def _said(self, source: int, share: float, group: str) -> str:
        name, size = self.course.names[source], self.course.sizes[source]
        inside = f" ({group})" if group != name else ""
        epochs = f", {self.course.counts[-1, source] / size:.2f} epochs" if size else ""
        return f"{name}{inside}: {share:.2%} of the {self.course.unit} of the run{epochs}"

    def _swatch(self, y: float, colour: str) -> None:
        self.out.write(
            f'<rect x="{self.left + self.wide + 6}" y="{y - 5:.1f}" width="9" height="9" '
            f'fill="{colour}"/>'
        )

    def _cut(self, name: str) -> str:
        most = max(6, int((self.right - 20) / _CHAR_WIDTH) - 10)
        return name if len(name) <= most else f"{name[: most - 1]}…"

    def _stage_labels(self) -> list[tuple[float, str, int]]:
        """Return x, name and line of stage labels; each uses the first line with free space."""
        line_ends, labels = list[float](), list[tuple[float, str, int]]()
        for step, name in self.strip.stages:
            x, label_width = self._x(step) + 4, len(name) * _CHAR_WIDTH + 8
            x = min(x, self.width - label_width)
            row = next((n for n, line_end in enumerate(line_ends) if line_end <= x), len(line_ends))
            line_ends[row : row + 1] = [x + label_width]
            labels.append((x, name, row))
        return labels

    def _stage_rows(self) -> int:
        return max((row + 1 for _, _, row in self._stage_labels()), default=0)

    def _stages(self, top: float, ends: tuple[float, float, float]) -> None:
        for (step, name), (x, _, row) in zip(self.strip.stages, self._stage_labels(), strict=True):
            # Later stages use lower lines, so that no border crosses an earlier name.
            y = top - (self._stage_rows() - 1 - row) * _LINE
            if step > self.first:
                for low, high in ((y - 8, ends[0]), ends[1:]):
                    self._line(
                        self._x(step),
                        low,
                        self._x(step),
                        high,
                        "stage",
                        say=f"{name} begins at step {step:,}",
                    )
            self._text(x, y, name, "bold")

    def _repeats(self, top: float) -> None:
        for row, (name, members, colour) in enumerate(self._colours()):
            y = top + row * _ROW
            self._line(self.left, y + _ROW - 3, self.left + self.wide, y + _ROW - 3)
            repeated = 0
            for i in members:
                if (at := self.strip.repeats[i] if self.strip.repeats else None) is not None:
                    repeated += 1
                    tooltip = f"{self.course.names[i]} is seen again from step {at:,}"
                    self._line(
                        self._x(at),
                        y + 2,
                        self._x(at),
                        y + _ROW - 4,
                        "tick",
                        f'stroke="{colour}" stroke-width="2.5"',
                        tooltip,
                    )
                if (at := self.strip.ends[i] if self.strip.ends else None) is not None:
                    x, tooltip = self._x(at), f"{self.course.names[i]} is used up at step {at:,}"
                    cross = f"M{x - 4:.1f},{y + 4} l8,8 m0,-8 l-8,8"
                    self._shape(
                        "path",
                        f'class="tick" d="{cross}" stroke="{colour}" stroke-width="2.5" '
                        'fill="none"',
                        tooltip,
                    )
            self._swatch(y + 8, colour)
            summary = (
                f"{repeated} of {len(members)}"
                if len(members) > 1
                else ("again" if repeated else "once")
            )
            self._text(self.left + self.wide + 20, y + 12, f"{self._cut(name)}  {summary}", "dim")

    def _epochs(self, top: float, tall: float) -> None:
        known = [
            (n, members, c)
            for n, members, c in self._colours()
            if all(self.course.sizes[i] for i in members)
        ]
        if not known:
            self._text(self.left, top + 20, "no source has a known length", "dim")
            return
        sizes = [sum(self.course.sizes[i] or 0 for i in members) for _, members, _ in known]
        lines = [
            self.course.counts[:, members].sum(axis=1) / size
            for (_, members, _), size in zip(known, sizes, strict=True)
        ]
        top_epochs = max(1.05, *(float(line[-1]) for line in lines))
        x = [self._x(step) for step in self.course.steps.tolist()]
        for level in _choose_ticks(0, top_epochs, 4):
            y = top + tall * (1 - level / top_epochs)
            self._line(self.left, y, self.left + self.wide, y)
            self._text(self.left - 6, y + 4, f"{level:g}", "dim", "end")
        for (name, _, colour), line in zip(known, lines, strict=True):
            points = " ".join(
                f"{a:.1f},{top + tall * (1 - b / top_epochs):.1f}"
                for a, b in zip(x, line.tolist(), strict=True)
            )
            tooltip = f"{name}: {line[-1]:.2f} epochs at the end"
            line_of = (
                f'class="tick" points="{points}" fill="none" stroke="{colour}" stroke-width="2.2"'
            )
            self._shape("polyline", line_of, tooltip)
        ends = np.asarray([float(line[-1]) / top_epochs for line in lines])
        places: Floats = spread_labels(ends, _LINE / tall, 1.0)
        for (name, _, colour), line, y in zip(known, lines, places.tolist(), strict=True):
            at = top + tall * (1 - y)
            self._swatch(at, colour)
            self._text(
                self.left + self.wide + 20, at + 4, f"{self._cut(name)}  {line[-1]:.2f} x", "bold"
            )


def _build_stairs(x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float]]:
    """Return the points of a step function: a share covers the steps between two counts."""
    return [point for i, at in enumerate(y) for point in ((x[i], at), (x[i + 1], at))]


def _choose_ticks(low: float, high: float, most: int) -> list[float]:
    """Return round numbers in a range, about `most` of them.

    >>> _choose_ticks(0, 5_000, 6), _choose_ticks(0, 1.05, 4)
    ([0.0, 1000.0, 2000.0, 3000.0, 4000.0, 5000.0], [0.0, 0.5, 1.0])
    """
    raw = (high - low) / max(1, most)
    size = 10.0 ** np.floor(np.log10(max(raw, 1e-9)))
    step = next(float(size * times) for times in (1, 2, 5, 10) if size * times >= raw)
    first, last = int(np.ceil(low / step)), int(np.floor(high / step + 1e-9))
    return [number * step for number in range(first, last + 1)]
