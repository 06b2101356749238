"""The demo's display: a live board on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .journal import Record

SHARE_WINDOW_STEPS = 24  # steps per share
SPEED_WINDOW_SECONDS = 3.0  # window of the speed; workers finish several steps at once
BAR_GLYPHS = "▁▂▃▄▅▆▇█"
SOURCE_GLYPHS = "█▒░▓▚"  # distinguishable without colour
SOURCE_COLOURS = ("blue", "dark_orange", "green", "magenta", "red")

SharesBySource = Mapping[str, Sequence[float]]

PlannedShares = Callable[[int], Mapping[str, float]]
"""Maps a number of samples to the planned shares at that position."""


@dataclass
class DemoProcess:
    """One process of the demo."""

    name: str
    workers: int
    start: int  # first step, minus one
    step: int = 0
    note: str = ""
    over: bool = False

    @property
    def worker_text(self) -> str:
        return f"{self.workers} worker{'' if self.workers == 1 else 's'}"


@dataclass
class DemoScreen:
    """The contents of the screen, updated record by record."""

    steps: int
    sizes: Mapping[str, int]
    caps: Mapping[str, float]
    plan: PlannedShares
    console: Console
    runs: list[DemoProcess] = field(default_factory=list[DemoProcess])
    message: str = ""
    _recent: deque[Record] = field(default_factory=lambda: deque[Record](maxlen=SHARE_WINDOW_STEPS))
    _timed: deque[Record] = field(default_factory=deque[Record])
    _totals: Counter[str] = field(default_factory=Counter[str])
    _speeds: deque[float] = field(default_factory=lambda: deque[float](maxlen=40))
    _memory: deque[float] = field(default_factory=lambda: deque[float](maxlen=40))
    _live: Live | None = None

    def __enter__(self) -> DemoScreen:
        if self.console.is_terminal:
            self._live = Live(
                self.render(), console=self.console, refresh_per_second=12, transient=False
            )
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.update(self.render(), refresh=True)
            self._live.__exit__(None, None, None)
            self._live = None

    def begin(self, run: DemoProcess, totals: Mapping[str, int]) -> None:
        """Start the display of another process; `totals` are the samples of the steps before."""
        self.runs.append(run)
        self._recent.clear()
        self._timed.clear()
        self._speeds.clear()
        self._memory.clear()
        self._totals = Counter(totals)
        self.say(
            f"{run.name}: {run.worker_text}"
            + (f", from the state of step {run.start}" if run.start else "")
        )

    def say(self, message: str) -> None:
        """Set the line at the bottom; on a plain terminal, print it."""
        self.message = message
        if self._live is None:
            self.console.print(message, highlight=False, markup=False, soft_wrap=True)
        self.draw()

    def feed(self, record: Record) -> None:
        """Add a step of the current run."""
        run = self.runs[-1]
        run.step = record.step
        self._recent.append(record)
        self._timed.append(record)
        while self._timed[0].seconds < record.seconds - SPEED_WINDOW_SECONDS:
            self._timed.popleft()
        self._totals.update(record.samples)
        if record.step % 4 == 0:
            self._speeds.append(self._speed()[1])
            self._memory.append(record.memory)
        if self._live is None and record.step % max(1, self.steps // 8) == 0:
            self.console.print(self._line(), highlight=False, markup=False, soft_wrap=True)

    def draw(self) -> None:
        """Update the screen."""
        if self._live is not None:
            self._live.update(self.render())

    # ---------------------------------------------------------------- numbers

    def _speed(self) -> tuple[float, float]:
        """Return samples and tokens per second."""
        span = max(min(SPEED_WINDOW_SECONDS, self._timed[-1].seconds), 1e-3)
        samples = sum(sum(record.samples.values()) for record in self._timed)
        return samples / span, sum(record.tokens for record in self._timed) / span

    def _shares(self) -> dict[str, float]:
        recent = Counter[str]()
        for record in self._recent:
            recent.update(record.by_source)  # count tokens, as the plan does
        total = max(1, recent.total())
        return {name: recent[name] / total for name in self.sizes}

    def _planned(self) -> Mapping[str, float]:
        # Compare with the plan at the middle of the window, which ends at the last step.
        behind = sum(sum(record.samples.values()) for record in self._recent) // 2
        return self.plan(max(0, self._totals.total() - behind))

    # ---------------------------------------------------------------- pictures

    def _line(self) -> str:
        shares, plan = self._shares(), self._planned()
        text = ", ".join(f"{name} {shares[name]:.0%} (plan {plan[name]:.0%})" for name in shares)
        last = self._recent[-1]
        samples, tokens = self._speed()
        return (
            f"  step {last.step:>4}/{self.steps}  {samples:>5,.0f} samples/s {tokens:>9,.0f} "
            "tokens/s  "
            f"{text}  {last.memory / 1e6:.0f} MB"
        )

    def render(self) -> RenderableType:
        """Return the board."""
        width = min(self.console.width, 110) - 4
        parts: list[RenderableType] = [self._timeline(width)]
        if self._recent:
            parts += [Text(), self._table(width), Text(), self._gauges()]
        parts += [Text(), Text(self.message, style="bold")]
        return Panel(
            Group(*parts), title="[bold]penstock demo[/bold]", border_style="blue", width=width + 4
        )

    def _timeline(self, width: int) -> Table:
        table = Table.grid(padding=(0, 2))
        cells = max(10, width - 46)
        for run in self.runs:
            start = run.start * cells // self.steps
            end = max(start, run.step * cells // self.steps)
            bar = Text(" " * start)
            bar.append(
                "━" * (end - start), style="green" if run.over or run is self.runs[-1] else "yellow"
            )
            bar.append("✗" if run.note.startswith("killed") else "", style="bold red")
            bar.append("─" * (cells - len(bar)), style="grey30")
            table.add_row(
                Text(run.name, style="bold"), run.worker_text, bar, run.note or f"step {run.step}"
            )
        return table

    def _table(self, width: int) -> Table:
        table = Table.grid(padding=(0, 2))
        cells = max(10, width - 62)
        shares, plan = self._shares(), self._planned()
        for (name, size), colour in zip(self.sizes.items(), SOURCE_COLOURS, strict=False):
            full, tick = round(shares[name] * cells), min(cells - 1, round(plan[name] * cells))
            bar = Text("█" * full + "·" * (cells - full), style="grey30")
            bar.stylize(colour, 0, full)
            bar = Text.assemble(bar[:tick], ("┃", "bold white"), bar[tick + 1 :])
            used = self._totals[name]
            table.add_row(
                Text(name, style=f"bold {colour}"),
                bar,
                f"{shares[name]:4.0%}, plan {plan[name]:4.0%}",
                f"{used:>6,} samples",
                f"{used / size:.2f} epochs"
                + (f" of {self.caps[name]}" if name in self.caps else ""),
            )
        return table

    def _gauges(self) -> Table:
        table = Table.grid(padding=(0, 2))
        samples, tokens = self._speed()
        table.add_row(
            "speed",
            Text(format_sparkline(self._speeds), style="cyan"),
            f"{tokens:,.0f} tokens/s, {samples:,.0f} samples/s",
        )
        table.add_row(
            "memory",
            Text(format_sparkline(self._memory), style="magenta"),
            f"{self._recent[-1].memory / 1e6:,.0f} MB",
        )
        return table


def format_sparkline(values: deque[float]) -> str:
    """Return a line of small bars, scaled to the largest value."""
    top = max(values, default=0) or 1
    return "".join(BAR_GLYPHS[min(7, int(value / top * 7.999))] for value in values)


def draw_shares(console: Console, real: SharesBySource, width: int = 72, height: int = 12) -> None:
    """Draw the shares over the run as stacked bands."""
    names = list(real)
    for row, cells in enumerate(columns(real, width, height)):
        line = Text("100% " if row == 0 else "  0% " if row == height - 1 else "     ")
        for cell, group in groupby(cells):
            line.append(SOURCE_GLYPHS[cell] * len(list(group)), style=SOURCE_COLOURS[cell])
        console.print(line)
    legend = Text("     ")
    for number, name in enumerate(names):
        legend.append(f"{SOURCE_GLYPHS[number]} {name}  ", style=SOURCE_COLOURS[number])
    console.print(legend)


def columns(real: SharesBySource, width: int, height: int) -> list[list[int]]:
    """Return a stacked chart as rows of source numbers, top row first.

    >>> columns({"a": [0.25, 0.5], "b": [0.75, 0.5]}, width=4, height=4)
    [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]
    """
    count = len(next(iter(real.values())))
    cells: list[list[int]] = []
    for row in range(height):
        level = (height - row - 0.5) / height
        stacks = (
            [shares[column * count // width] for shares in real.values()] for column in range(width)
        )
        cells.append([_find_source_at(stack, level) for stack in stacks])
    return cells


def _find_source_at(shares: Sequence[float], level: float) -> int:
    """Return the source whose band holds `level`."""
    top = 0.0
    for number, share in enumerate(shares):
        top += share
        if level < top:
            return number
    return len(shares) - 1
