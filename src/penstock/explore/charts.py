"""Charts of a plan: Vega-Lite specifications, rendered as SVG or PNG by `vl-convert-python`.

A chart stacks up to four panels over the same steps: stages, shares of sources, first repeats and
ends, and epochs. Each panel says in its title how to read it. An SVG follows the light or dark theme
of its reader, and holds no script.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import Any
from zlib import crc32

import numpy as np

from ..errors import make_missing_extra_error
from .run_counts import BAND_COLOURS, MAX_BANDS, OTHERS_COLOUR, EventStrip, RunCounts

SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"  # a name; nothing is fetched
VERSION = "6.4"
_INK, _DIM, _RULE, _PAPER, _STAGE = "#1b1f24", "#57606a", "#d8dee4", "#ffffff", "#eceff3"
_DARK = {_INK: "#e6edf3", _DIM: "#9da7b1", _RULE: "#3d444d", _PAPER: "#0d1117", _STAGE: "#21262d"}
_CHAR_WIDTH = 6.8  # pixels of a character of 12 px, about
_LEFT, _EDGE = 44, 18  # pixels of the labels at the left, and of the margin at the right
_EVENT_HEIGHT = 30  # pixels of a source
_MAX_KEY_LINES = 8
_FONT = "Liberation Sans, Arial, Helvetica, sans-serif"


@dataclass(frozen=True)
class Series:
    """Band of a chart: a source, a group, or the smaller ones together."""

    name: str
    members: Sequence[int]
    colour: str
    share: float
    epochs: float | None


def has_renderer() -> bool:
    """Return True if charts can be rendered, which needs the extra `plot`."""
    return find_spec("vl_convert") is not None


def render_svg(
    course: RunCounts,
    title: str,
    strip: EventStrip | None = None,
    width: int = 1060,
    height: int = 280,
) -> str:
    """Return an `<svg>` element.

    Args:
        course: counts of samples along the run.
        title: the heading; empty for none.
        strip: stages, first repeats and ends.
        width: pixels of the picture.
        height: pixels of the panel of shares.

    Raises:
        ImportError: without the extra `plot`.
    """
    spec = make_spec(course, title, strip, width, height)
    text = _import_renderer().vegalite_to_svg(spec, vl_version=VERSION)
    # Several charts may be on one page, so ids are named after the content.
    name = f"plan-{crc32(json.dumps(spec).encode()):08x}"
    return _finish_svg(text, title or "Shares of the sources over the run", name)


def render_png(
    course: RunCounts, title: str, strip: EventStrip | None = None, width: int = 1060
) -> bytes:
    """Return a PNG file with two pixels for each of `width`, in the light theme.

    Raises:
        ImportError: without the extra `plot`.
    """
    spec = make_spec(course, title, strip, width, 280)
    return _import_renderer().vegalite_to_png(spec, vl_version=VERSION, scale=2)


def _import_renderer() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise make_missing_extra_error("vl-convert-python", "plot", "a picture of a plan") from None
    return vl_convert


_UNUSED = re.compile(r' (?:aria-[a-z]+|role|pointer-events|class|font-family)="[^"]*"')
_DIGITS = re.compile(r"(\.\d)\d+")


def _shorten_tag(found: re.Match[str]) -> str:
    """Remove what the picture as a whole says, and digits that are no pixels, from a tag."""
    tag = found[0]
    if tag.startswith("<svg"):
        return tag
    tag = _UNUSED.sub("", tag)
    return _DIGITS.sub(r"\1", tag) if tag.startswith("<path") else tag


def _finish_svg(text: str, title: str, name: str) -> str:
    """Shorten a picture, name its ids, and add the dark theme."""
    text = re.sub(r"<[^>]*>", _shorten_tag, text)
    numbers = dict[str, str]()

    def rename(found: re.Match[str]) -> str:
        number = numbers.setdefault(found[2], f"{name}-{len(numbers)}")
        return f"{found[1]}{number}"

    text = re.sub(r'(\bid="|url\(#)((?:clip|gradient_)\d+)', rename, text)
    rules = "".join(
        f'.penstock-plan [fill="{light}"]{{fill:{dark}}}'
        f'.penstock-plan [stroke="{light}"]{{stroke:{dark}}}'
        for light, dark in _DARK.items()
    )
    style = f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>"
    head, _, rest = text.partition(">")
    head = head.replace('class="marks"', f'class="penstock-plan" role="img" font-family="{_FONT}"')
    return f'{head} aria-label="{_escape(_clean(title))}">{style}{rest}'


def _escape(text: str) -> str:
    from html import escape  # its table of entities takes long to load

    return escape(text, True)


# ---------------------------------------------------------------- the specification


def make_spec(
    course: RunCounts, title: str, strip: EventStrip | None, width: int, height: int
) -> dict[str, Any]:
    """Return the Vega-Lite specification of a chart."""
    strip = strip or EventStrip()
    series, plot = list_series(course), max(120, width - _LEFT - _EDGE)
    first, last = int(course.steps[0]), int(course.steps[-1])
    domain = [first, max(last, first + 1)]
    begins = [stage for stage in strip.stages if stage[0] < domain[1]]
    panels = list[dict[str, Any]]()
    if begins:
        panels.append(_make_stages(begins, domain, plot))
    panels.append(_make_shares(course, series, begins, domain, plot, height))
    if events := _make_events(course, series, strip, domain, plot):
        panels.append(events)
    if epochs := _make_epochs(course, series, begins, domain, plot, height * 6 // 10):
        panels.append(epochs)
    return {
        "$schema": SCHEMA,
        "background": _PAPER,
        "padding": {"left": 8, "right": 8, "top": 8, "bottom": 8},
        **({"title": _wrap_text(_clean(title), width - 20, 8.4)} if title else {}),
        "vconcat": panels,
        "spacing": 18,
        "resolve": {"scale": {"color": "independent"}, "legend": {"color": "independent"}},
        "config": _CONFIG,
    }


_CONFIG: dict[str, Any] = {
    "font": _FONT,
    "view": {"stroke": None},
    "concat": {"spacing": 18},
    "title": {
        **{"anchor": "start", "color": _INK, "fontSize": 15, "subtitleColor": _DIM},
        **{"subtitleFontSize": 12, "offset": 10, "frame": "bounds", "subtitlePadding": 5},
    },
    "axis": {
        **{"labelColor": _DIM, "titleColor": _DIM, "labelFontSize": 12, "titleFontSize": 12},
        **{"titleFontWeight": "normal", "gridColor": _RULE, "tickColor": _RULE},
        **{"domainColor": _RULE, "labelOverlap": "greedy", "labelFlush": True},
    },
    "legend": {"labelColor": _INK, "labelFontSize": 12, "symbolSize": 90, "rowPadding": 3},
    "text": {"fontSize": 12, "color": _INK},
}


def list_series(course: RunCounts) -> list[Series]:
    """Return the bands: groups or sources in their order, the smaller ones together."""
    totals = course.counts[-1].astype(np.float64)
    together = course.together
    if len(together) > MAX_BANDS + 1:
        sums = np.asarray([totals[members].sum() for _, members in together])
        largest = set(np.argsort(-sums, kind="stable")[:MAX_BANDS].tolist())
        rest = [members for i, (_, members) in enumerate(together) if i not in largest]
        together = [pair for i, pair in enumerate(together) if i in largest]
        together.append((f"{len(rest)} others", [i for members in rest for i in members]))
    total = max(1.0, float(totals.sum()))
    result = list[Series]()
    for number, (name, members) in enumerate(together):
        sizes = [course.sizes[i] for i in members]
        known = [size for size in sizes if size]
        epochs = None
        if known and len(known) == len(sizes):
            epochs = float(totals[members].sum()) / sum(known)
        colour = BAND_COLOURS[number] if number < MAX_BANDS else OTHERS_COLOUR
        result.append(Series(name, members, colour, float(totals[members].sum()) / total, epochs))
    return result


def _label_series(series: Sequence[Series], limit: int) -> list[str]:
    """Return one label for each series: its name, share and epochs; no two are equal."""
    labels = list[str]()
    for one in series:
        epochs = "" if one.epochs is None else f", {_format_epochs(one.epochs)}"
        figures = f": {one.share:.1%}{epochs}"
        label = _shorten(_clean(one.name), max(8, limit - len(figures))) + figures
        while label in labels:
            label += " "
        labels.append(label)
    return labels


def _make_shares(
    course: RunCounts,
    series: Sequence[Series],
    begins: Sequence[tuple[int, str]],
    domain: Sequence[int],
    plot: int,
    height: int,
) -> dict[str, Any]:
    drawn = np.diff(course.counts, axis=0).astype(np.float64)
    shares = drawn / np.maximum(drawn.sum(axis=1, keepdims=True), 1)
    shares = np.concatenate([shares, shares[-1:]]) if len(shares) else shares
    limit = int((plot - 10) / _CHAR_WIDTH)
    labels = _label_series(series, min(limit, 46))
    values = [
        {
            "step": int(step),
            "source": label,
            "share": round(float(row[one.members].sum()), 5),
            "n": n,
        }
        for n, (one, label) in enumerate(zip(series, labels, strict=True))
        for step, row in zip(course.steps.tolist(), shares, strict=False)
    ]
    widest = max(map(len, labels)) * _CHAR_WIDTH * 1.15 + 30
    columns = max(1, min(4, int((plot + _LEFT) // widest), len(labels)))
    legend = {
        **{"orient": "bottom", "columns": columns, "title": None, "symbolType": "square"},
        **{
            "labelLimit": plot,
            "offset": 8,
            "symbolStrokeWidth": 0,
            "columnPadding": round(widest * 0.2),
        },
    }
    knows = any(one.epochs is not None for one in series)
    of_run = ", and epochs" if knows else "; no source has a known length, so no epochs are drawn"
    return {
        "title": _make_title(
            f"Share of the {course.unit}", f"in the key: share of the whole run{of_run}", plot
        ),
        "width": plot,
        "height": height,
        "layer": [
            {
                "data": {"values": values},
                "mark": {"type": "area", "interpolate": "step-after", "line": False},
                "encoding": {
                    "x": _make_x(domain, plot, "step"),
                    "y": {
                        **{"field": "share", "type": "quantitative", "stack": "zero"},
                        "scale": {"domain": [0, 1]},
                        "axis": {
                            **{"format": ".0%", "values": [0, 0.25, 0.5, 0.75, 1], "title": None},
                            "labelFlush": False,
                            **{"minExtent": _LEFT - 6, "maxExtent": _LEFT - 6},
                        },
                    },
                    "color": {
                        **{"field": "source", "type": "nominal", "legend": legend},
                        "scale": {"domain": labels, "range": [one.colour for one in series]},
                    },
                    "order": {"field": "n", "type": "quantitative", "sort": "descending"},
                },
            },
            *_make_rules(begins, domain),
        ],
    }


def _make_epochs(
    course: RunCounts,
    series: Sequence[Series],
    begins: Sequence[tuple[int, str]],
    domain: Sequence[int],
    plot: int,
    height: int,
) -> dict[str, Any] | None:
    known = [(n, one) for n, one in enumerate(series) if one.epochs is not None]
    if not known:
        return None
    values = list[dict[str, Any]]()
    for n, one in known:
        size = sum(course.sizes[i] or 0 for i in one.members)
        epochs = course.counts[:, one.members].sum(axis=1) / max(1, size)
        values += [
            {"step": int(step), "n": n, "epochs": round(float(value), 5)}
            for step, value in zip(course.steps.tolist(), epochs, strict=True)
        ]
    numbers, colours = [n for n, _ in known], [one.colour for _, one in known]
    top = max(1.0, *(one.epochs or 0 for _, one in known))
    y = {
        **{"type": "quantitative", "scale": {"domain": [0, top * 1.03], "nice": False}},
        "axis": {
            **{"title": None, "tickCount": 4, "labelFlush": False},
            "labelExpr": "format(datum.value, '~s')"
            if top >= 1_000
            else "format(datum.value, '~g')",
            **{"minExtent": _LEFT - 6, "maxExtent": _LEFT - 6},
        },
    }
    return {
        "title": _make_title("Epochs", "passes over a source; dashed: every sample once", plot),
        "width": plot,
        "height": height,
        "layer": [
            {
                "data": {"values": [{"epochs": 1}]},
                "mark": {"type": "rule", "color": _DIM, "strokeDash": [5, 4]},
                "encoding": {"y": {"field": "epochs", **y}},
            },
            {
                "data": {"values": values},
                "mark": {"type": "line", "strokeWidth": 2, "clip": True},
                "encoding": {
                    "x": _make_x(domain, plot, "step"),
                    "y": {"field": "epochs", **y},
                    "color": {
                        **{"field": "n", "type": "nominal", "legend": None},
                        "scale": {"domain": numbers, "range": colours},
                    },
                },
            },
            *_make_rules(begins, domain),
        ],
    }


def _make_events(
    course: RunCounts,
    series: Sequence[Series],
    strip: EventStrip,
    domain: Sequence[int],
    plot: int,
) -> dict[str, Any] | None:
    """Return the panel of first repeats and ends; None if there are none."""
    rows, points = list[dict[str, Any]](), list[dict[str, Any]]()
    limit = int(plot / _CHAR_WIDTH)
    changes = [(step, text) for step, text in strip.changes if domain[0] <= step <= domain[1]]
    if changes:
        text = _shorten(_clean("; ".join(text for _, text in changes)), limit)
        rows.append({"row": 0, "text": text, "step": domain[0], "stop": domain[1]})
        points += [
            {"row": 0, "step": step, "kind": "change", "colour": _INK} for step, _ in changes
        ]
    for one in series:
        repeats = _pick_steps(strip.repeats, one.members, domain)
        ends = _pick_steps(strip.ends, one.members, domain)
        if not repeats and not ends:
            continue
        said = f": {_describe_events(repeats, ends, len(one.members))}"
        name = _shorten(_clean(one.name), max(8, limit - len(said)))
        row = len(rows)
        rows.append({"row": row, "text": name + said, "step": domain[0], "stop": domain[1]})
        for kind, steps in (("first repeat", repeats), ("used up", ends)):
            points += [
                {"row": row, "step": step, "kind": kind, "colour": one.colour} for step in steps
            ]
    if not rows:
        return None
    kinds = {point["kind"] for point in points}
    signs = {
        "first repeat": "bar: first repeat",
        "used up": "cross: used up",
        "change": "diamond: event",
    }
    note = "; ".join(sign for kind, sign in signs.items() if kind in kinds)
    y = {"field": "row", "type": "ordinal", "axis": None}
    x = {"field": "step", "type": "quantitative", "scale": {"domain": domain}, "axis": None}
    low = _EVENT_HEIGHT // 2 - 7
    return {
        "title": _make_title("Events", note, plot),
        "width": plot,
        "height": _EVENT_HEIGHT * len(rows),
        "layer": [
            {
                "data": {"values": rows},
                "mark": {"type": "rule", "color": _RULE, "yOffset": low},
                "encoding": {"x": x, "x2": {"field": "stop"}, "y": y},
            },
            {
                "data": {"values": rows},
                "mark": {
                    **{"type": "text", "align": "left", "baseline": "middle", "yOffset": low - 15},
                    **{"limit": plot, "color": _DIM},
                },
                "encoding": {"x": x, "y": y, "text": {"field": "text"}},
            },
            *(
                {
                    "data": {"values": [point for point in points if point["kind"] == kind]},
                    "mark": {
                        **{"type": "point", "yOffset": low, "strokeWidth": 2.4, "size": size},
                        **{"shape": shape, "filled": False, "opacity": 1},
                    },
                    "encoding": {
                        **{"x": x, "y": y},
                        "color": {"field": "colour", "type": "nominal", "scale": None},
                    },
                }
                for kind, shape, size in (
                    ("first repeat", "M0,-0.55V0.55", 130),
                    ("used up", "M-0.5,-0.5L0.5,0.5M-0.5,0.5L0.5,-0.5", 110),
                    ("change", "diamond", 60),
                )
                if any(point["kind"] == kind for point in points)
            ),
        ],
    }


def _pick_steps(
    steps: Sequence[int | None], members: Sequence[int], domain: Sequence[int]
) -> list[int]:
    found = (steps[i] for i in members) if steps else ()
    return [step for step in found if step is not None and domain[0] <= step <= domain[1]]


def _describe_events(repeats: Sequence[int], ends: Sequence[int], members: int) -> str:
    if members > 1:
        parts = [
            f"{len(repeats)} of {members} repeat" if repeats else "",
            f"{len(ends)} used up" if ends else "",
        ]
    else:
        parts = [
            f"repeats from {repeats[0]:,}" if repeats else "",
            f"used up at {ends[0]:,}" if ends else "",
        ]
    return ", ".join(part for part in parts if part)


def _make_stages(
    begins: Sequence[tuple[int, str]], domain: Sequence[int], plot: int
) -> dict[str, Any]:
    """Return the strip of stages; its title explains the numbers of narrow ones."""
    scale = plot / (domain[1] - domain[0])
    bounds = list(pairwise([*(max(step, domain[0]) for step, _ in begins), domain[1]]))
    names = [_clean(name) for _, name in begins]
    fits = [
        len(name) * _CHAR_WIDTH + 8 <= (stop - start) * scale
        for name, (start, stop) in zip(names, bounds, strict=True)
    ]
    values = list[dict[str, Any]]()
    for number, (name, (start, stop)) in enumerate(zip(names, bounds, strict=True), 1):
        room = (stop - start) * scale
        text = name if all(fits) else str(number)
        text = text if len(text) * _CHAR_WIDTH + 4 <= room else ""
        middle = (start + stop) / 2
        values.append({"step": start, "stop": stop, "middle": middle, "text": text})
    key = "; ".join(
        f"{number} {_shorten(name, 40)} from {step:,}"
        for number, (name, (step, _)) in enumerate(zip(names, begins, strict=True), 1)
    )
    x = {"type": "quantitative", "scale": {"domain": domain}, "axis": None}
    return {
        "title": _make_title("Stages", "" if all(fits) else key, plot),
        "width": plot,
        "height": 20,
        "layer": [
            {
                "data": {"values": values},
                "mark": {"type": "rect", "color": _STAGE, "stroke": _PAPER, "strokeWidth": 2},
                "encoding": {"x": {"field": "step", **x}, "x2": {"field": "stop"}},
            },
            {
                "data": {"values": values},
                "mark": {"type": "text", "align": "center", "baseline": "middle"},
                "encoding": {"x": {"field": "middle", **x}, "text": {"field": "text"}},
            },
        ],
    }


def _make_rules(begins: Sequence[tuple[int, str]], domain: Sequence[int]) -> list[dict[str, Any]]:
    """Return the borders of stages as a layer."""
    values = [{"step": step} for step, _ in begins if step > domain[0]]
    if not values:
        return []
    return [
        {
            "data": {"values": values},
            "mark": {"type": "rule", "color": _INK, "strokeDash": [2, 3], "opacity": 0.7},
            "encoding": {"x": {"field": "step", "type": "quantitative"}},
        }
    ]


def _make_x(domain: Sequence[int], plot: int, unit: str) -> dict[str, Any]:
    return {
        **{"field": "step", "type": "quantitative", "scale": {"domain": domain, "nice": False}},
        "axis": {
            **{"title": f"{unit} (of {domain[1]:,})", "titleAnchor": "end", "grid": False},
            **{"tickCount": max(3, plot // 110), "tickMinStep": 1},
            "labelExpr": "format(datum.value, '~s')",
        },
    }


def _make_title(text: str, note: str, width: int) -> dict[str, Any]:
    subtitle = _wrap_text(note, width)
    title = {"text": text, "fontSize": 13, "offset": 6, "frame": "group"}
    return {**title, "subtitle": subtitle} if note else title


def _wrap_text(text: str, width: float, char_width: float = _CHAR_WIDTH) -> list[str]:
    """Break a text into lines that fit; the last line says that more would follow."""
    from textwrap import wrap

    lines = wrap(text, max(12, int(width / char_width)))
    if len(lines) > _MAX_KEY_LINES:
        lines = [*lines[: _MAX_KEY_LINES - 1], f"{lines[_MAX_KEY_LINES - 1][:-4]} ..."]
    return lines


def _clean(text: str) -> str:
    """Return a name from data on one line; characters that XML forbids are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _shorten(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _format_epochs(epochs: float) -> str:
    return f"{epochs:.2f}x" if epochs < 10 else f"{epochs:,.0f}x"
