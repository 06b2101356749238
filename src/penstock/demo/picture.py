"""The shares over a run as a picture: an SVG file, and columns of characters for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#2f6fde", "#e8833a", "#2c9c69", "#a855c7", "#c0392b")
GLYPHS = "█▒░▓▚"  # told apart without colour too
TERMINAL = ("blue", "dark_orange", "green", "magenta", "red")

Shares = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Chart:
    """Shares in windows of steps, as they were and as they were planned, and the events to mark."""

    steps: Sequence[int]  # the last step of each window
    real: Shares
    plan: Shares
    events: Mapping[int, str]


WIDTH, HEIGHT = 900, 420
LEFT, RIGHT, TOP, BOTTOM = 56, 110, 48, 44


def svg(chart: Chart, title: str) -> str:
    """A line for every source, dashed for its plan, and a mark for every event."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" '
        'font-size="12" fill="#333">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{LEFT}" y="26" font-size="16" font-weight="600">{escape(title)}</text>',
        f'<text x="{WIDTH - RIGHT}" y="26" text-anchor="end" fill="#666">solid: run, dashed: plan</text>',
        *_axes(chart.steps[-1]),
        *_events(chart),
        *_lines(chart),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _x(step: float, last: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * step / last


def _y(share: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)


def _axes(last: int) -> Iterator[str]:
    for percent in (0, 25, 50, 75, 100):
        y = _y(percent / 100)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e4e4e4"/>'
        yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{percent}%</text>'
    for quarter in range(5):
        step = round(last * quarter / 4)
        yield f'<text x="{_x(step, last):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{step}</text>'
    yield f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 6}" text-anchor="middle">step</text>'


def _events(chart: Chart) -> Iterator[str]:
    for number, (step, text) in enumerate(chart.events.items()):
        x = _x(step, chart.steps[-1])
        yield (
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#999" '
            f'stroke-dasharray="2 3"/><text x="{x + 5:.1f}" y="{TOP + 12 + 15 * number}" fill="#666">'
            f"{escape(text)}</text>"
        )


def _lines(chart: Chart) -> Iterator[str]:
    labels = _apart([_y(values[-1]) for values in chart.real.values()], 15)
    for (name, values), colour, label in zip(chart.real.items(), COLOURS, labels, strict=False):
        for shares, style in (
            (chart.plan[name], 'stroke-dasharray="6 4" opacity="0.6"'),
            (values, 'stroke-width="2.2"'),
        ):
            points = " ".join(
                f"{_x(step, chart.steps[-1]):.1f},{_y(share):.1f}"
                for step, share in zip(chart.steps, shares, strict=True)
            )
            yield f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-linejoin="round" {style}/>'
        yield (
            f'<text x="{WIDTH - RIGHT + 10}" y="{label + 4:.1f}" fill="{colour}" font-weight="600">'
            f"{escape(name)} {values[-1]:.0%}</text>"
        )


def _apart(places: Sequence[float], gap: float) -> list[float]:
    """The places, moved down where two labels would overlap."""
    moved = [0.0] * len(places)
    lowest = float("-inf")
    for index in sorted(range(len(places)), key=places.__getitem__):
        lowest = moved[index] = max(places[index], lowest + gap)
    return moved


def columns(real: Shares, width: int, height: int) -> list[list[int]]:
    """A stacked chart as rows of source numbers, top row first: cell `[row][column]`.

    >>> columns({"a": [0.25, 0.5], "b": [0.75, 0.5]}, width=4, height=4)
    [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]
    """
    count = len(next(iter(real.values())))
    cells: list[list[int]] = []
    for row in range(height):
        level = (height - row - 0.5) / height
        stacks = ([shares[column * count // width] for shares in real.values()] for column in range(width))
        cells.append([_at(stack, level) for stack in stacks])
    return cells


def _at(shares: Sequence[float], level: float) -> int:
    """The source whose band in the stack holds `level`."""
    top = 0.0
    for number, share in enumerate(shares):
        top += share
        if level < top:
            return number
    return len(shares) - 1
