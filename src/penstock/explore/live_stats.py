"""Live display of a run: rich in a terminal, lines in a pipe, HTML in a notebook.

`penstock top`, `penstock run` and `Loader(progress=True)` show the same fields, from the summary of
`run_stats.summarize`.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..engine.base.seams import world
from ..engine.base.shown import counted
from .cells import show_table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

TERMINAL_SECONDS = 0.2  # between two drawings on a terminal
LINE_SECONDS = 10.0  # between two lines in a pipe
_NOTEBOOK_SECONDS = 1.0
_BAR_WIDTH = 40  # characters
_NAME_WIDTH = 28
_QUIET_SECONDS = 10.0  # without a record, after which the display says so
_MAX_WORK = 3  # steps of the pipeline


class SourceFigures(NamedTuple):
    """Row of a source: its samples, share, and requested share if that is known."""

    name: str
    samples: int
    share: float
    requested: float | None


class Display(Protocol):
    """Display of a run's summaries."""

    @property
    def seconds(self) -> float:
        """Seconds between two updates."""
        ...

    def update(self, summary: Mapping[str, Any], /) -> None:
        """Show a summary."""
        ...

    def close(self, summary: Mapping[str, Any] | None = None, /) -> None:
        """Show the last summary if there is one, and leave the terminal as it was."""
        ...


# ---------------------------------------------------------------- texts


def format_count(value: float) -> str:
    """Format a count with three digits and a unit prefix.

    >>> format_count(12), format_count(1_234), format_count(56_789_000), format_count(0.25)
    ('12', '1,234', '56.8M', '0.25')
    """
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if abs(value) >= size:
            return f"{value / size:,.3g}{unit}"
    if abs(value) >= 1e5:
        return f"{value / 1e3:,.0f}k"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def format_bytes(size: float) -> str:
    """Format an amount of memory.

    >>> format_bytes(0), format_bytes(12_345_678), format_bytes(5_400_000_000)
    ('0 MB', '12 MB', '5.4 GB')
    """
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"


def format_seconds(seconds: float) -> str:
    """Format a duration.

    >>> format_seconds(5), format_seconds(600), format_seconds(90_000)
    ('5 s', '10 min', '25.0 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"


def format_progress(summary: Mapping[str, Any]) -> str:
    """Return the step, the number of steps and the time left."""
    step, steps = summary["step"], summary["steps"]
    if not steps:
        return f"step {step:,}"
    within = step if step <= steps else step - step // steps * steps or steps
    text = (
        f"step {step:,} of {steps:,}" if within == step else f"step {step:,} of a pass of {steps:,}"
    )
    rate = summary["steps_per_s"]
    if rate > 0 and summary["status"] == "running" and within < steps:
        text += f", {format_seconds((steps - within) / rate)} left"
    return text


def format_line(summary: Mapping[str, Any]) -> str:
    """Return the state of a run as one line."""
    tokens = summary["tokens_per_s"]
    parts = [
        format_progress(summary),
        f"{format_count(summary['samples_per_s'])} samples/s",
        *([] if tokens is None else [f"{format_count(tokens)} tokens/s"]),
        f"waited {summary['waited']:.0%}",
        format_bytes(summary["resident_bytes"]),
        *list_problems(summary),
    ]
    if summary["status"] != "running":
        parts.insert(0, summary["status"])
    return "  ".join(parts)


def list_figures(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the figures of a run with their names."""
    tokens, waits = summary["tokens_per_s"], summary["waited_by_rank"]
    waited = f"{summary['waited']:.0%}"
    if len(waits) > 1:
        rank = max(waits, key=lambda name: waits[name])
        waited += f" (rank {rank}: {waits[rank]:.0%})"
    blocks = summary["cache_hits"] + summary["cache_misses"]
    return [
        ("samples/s", format_count(summary["samples_per_s"])),
        *([] if tokens is None else [("tokens/s", format_count(tokens))]),
        ("steps/s", format_count(summary["steps_per_s"])),
        ("waited", waited),
        ("memory", format_bytes(summary["resident_bytes"])),
        (
            "in flight",
            f"{counted(summary['under_way'], 'task')}, {format_bytes(summary['under_way_bytes'])}",
        ),
        *([("cache hits", f"{summary['cache_hits'] / blocks:.0%}")] if blocks else []),
        *(
            [("ranks", f"{summary['ranks']} of {summary['world_size']}")]
            if summary["world_size"] > 1
            else []
        ),
        *([("starts", str(summary["sessions"]))] if summary["sessions"] > 1 else []),
    ]


def list_sources(summary: Mapping[str, Any], limit: int) -> list[SourceFigures]:
    """Return the largest sources; the others share the last row."""
    requested: Mapping[str, float] = summary.get("requested") or {}
    rows = [
        SourceFigures(name, samples, summary["shares"][name], requested.get(name))
        for name, samples in summary["samples"].items()
    ]
    rows.sort(key=lambda row: -row.share)
    if len(rows) <= limit:
        return rows
    shown, rest = rows[: max(0, limit - 1)], rows[max(0, limit - 1) :]
    asked = sum(row.requested or 0 for row in rest) if requested else None
    others = f"{len(rest)} others" if shown else counted(len(rest), "source")
    total = sum(row.samples for row in rest)
    return [*shown, SourceFigures(others, total, sum(row.share for row in rest), asked)]


def list_work(summary: Mapping[str, Any]) -> list[str]:
    """Return the steps of the pipeline that take most of the work, if the run is profiled."""
    rows = summary["work"]
    total = sum(row["seconds"] for row in rows) or 1
    return [
        f"{row['seconds'] / total:.0%} {row['step']}"
        + (f" of {row['source']!r}" if row["source"] else "")
        for row in rows[:_MAX_WORK]
    ]


def list_problems(summary: Mapping[str, Any]) -> list[str]:
    """Return what went wrong so far; empty if nothing did."""
    counts = [
        (summary["errors"], "bad sample"),
        (summary["worker_deaths"], "worker death"),
        (summary["retries"], "storage retry"),
    ]
    problems = [counted(n, name).replace("retrys", "retries") for n, name in counts if n]
    age = summary["age_s"] or 0
    if summary["status"] in ("running", "stale") and age > _QUIET_SECONDS:
        problems.append(f"no record for {format_seconds(age)}")
    return problems


# ---------------------------------------------------------------- a terminal


class StatsScreen:
    """Rich renderable of a summary that fits the terminal's present size.

    Args:
        summary: the summary of a run.
        max_lines: lines of the display; default: the height of the terminal.
        scrolls: whether the display may be higher than the terminal.
    """

    def __init__(
        self, summary: Mapping[str, Any], max_lines: int | None = None, scrolls: bool = False
    ) -> None:
        self.summary, self._max_lines, self._scrolls = summary, max_lines, scrolls
        self.widths = list[int]()  # of the lines drawn last

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        width = options.max_width
        screen = None if self._scrolls else console.size.height - 1
        height = min(n for n in (self._max_lines, screen) if n is not None)
        self.widths = list[int]()
        for text, style in self._lines(width, height):
            line = Text(text, style=style, no_wrap=True, overflow="ellipsis", end="")
            line.truncate(width)
            self.widths.append(line.cell_len)
            yield line
            yield Text("")

    def _lines(self, width: int, height: int) -> Iterator[tuple[str, str]]:
        """Yield lines and their styles, at most `height`."""
        summary = self.summary
        status, path = summary["status"], summary["path"]
        heads = [("  ".join(part for part in (status, path) if part), "bold")] if path else []
        heads.append((format_progress(summary), "bold"))
        if summary["steps"]:
            heads.append((_draw_bar(summary, min(_BAR_WIDTH, width)), "green"))
        heads += [(line, "") for line in _fill_lines(list_figures(summary), width)]
        problems = list_problems(summary)
        tail = [(f"work: {', '.join(work)}", "")] if (work := list_work(summary)) else []
        warnings = [*problems, *map(_clean, summary["warnings"])]
        tail += (
            [(f"warnings: {'; '.join(warnings)}", "yellow")]
            if warnings
            else [("warnings: none", "dim")]
        )
        room = height - len(heads) - len(tail) - 1
        sources = list_sources(summary, room) if room > 0 else []
        table = _draw_sources(sources, width, summary.get("unit", "")) if sources else []
        yield from [*heads, *table, *tail][:height]


def _clean(text: str) -> str:
    """Return text on one line without control characters, which a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in text)


def _draw_bar(summary: Mapping[str, Any], width: int) -> str:
    step, steps = summary["step"], summary["steps"]
    within = step if step <= steps else step % steps or steps
    share = min(1.0, within / steps)
    done = int(share * (width - 5))
    return f"{'━' * done}{'╌' * (width - 5 - done)} {int(share * 100):3d}%"


def _fill_lines(pairs: Sequence[tuple[str, str]], width: int) -> Iterator[str]:
    """Yield lines of as many figures as fit."""
    line = ""
    for name, value in pairs:
        text = f"{name} {value}"
        if line and len(line) + 3 + len(text) > width:
            yield line
            line = ""
        line = f"{line}   {text}" if line else text
    if line:
        yield line


def _draw_sources(rows: Sequence[SourceFigures], width: int, unit: str) -> list[tuple[str, str]]:
    has_requested = any(row.requested is not None for row in rows)
    shares = f"share of {unit}" if unit else "share"
    heads = ["source", "samples", shares, *(["requested"] if has_requested else [])]
    cells = [
        [
            _clean(row.name),
            f"{row.samples:,}",
            f"{row.share:.2%}",
            *([f"{row.requested or 0:.2%}"] if has_requested else []),
        ]
        for row in rows
    ]
    sizes = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    sizes[0] = max(6, min(sizes[0], width - sum(size + 2 for size in sizes[1:]), _NAME_WIDTH * 2))
    return [
        (
            "  ".join(
                [_shorten(line[0], sizes[0]).ljust(sizes[0])]
                + [cell.rjust(size) for cell, size in zip(line[1:], sizes[1:], strict=True)]
            ),
            "bold" if line is heads else "",
        )
        for line in (heads, *cells)
    ]


def _shorten(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - 1]}…"


class TerminalDisplay:
    """Rich live display on a terminal; prints of the training appear above it.

    Args:
        console: the terminal.
        max_lines: lines of the display; default: the height of the terminal.
        full_screen: whether to use the alternate screen, which leaves no trace.
    """

    seconds = TERMINAL_SECONDS

    def __init__(
        self, console: Console, max_lines: int | None = None, full_screen: bool = False
    ) -> None:
        from rich.live import Live

        self._console, self._max_lines = console, max_lines
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            screen=full_screen,
            vertical_overflow="crop",
        )
        self._last: StatsScreen | None = None
        self._width = console.size.width
        self._full_screen = full_screen

    def update(self, summary: Mapping[str, Any], /) -> None:
        """Draw a summary in the place of the last one."""
        if not self._live.is_started:
            self._live.start()
            atexit.register(self.close)  # a loop that ends without close() keeps the cursor
        self._remove_wrapped_lines()
        self._last = StatsScreen(summary, self._max_lines)
        self._live.update(self._last, refresh=True)

    def _remove_wrapped_lines(self) -> None:
        """Erase the lines that a narrower terminal made of the last drawing."""
        width = self._console.size.width
        if self._last is not None and width < self._width and not self._full_screen:
            extra = sum((size - 1) // width for size in self._last.widths if size)
            with suppress(OSError):
                self._console.file.write("\x1b[2K\x1b[1A" * extra)
        self._width = width

    def close(self, summary: Mapping[str, Any] | None = None, /) -> None:
        """Erase the display, show the cursor again, and print the last summary as a line."""
        atexit.unregister(self.close)
        with suppress(OSError):
            self._live.stop()
            if summary is not None:
                self._console.print(format_line(summary), soft_wrap=True, markup=False)


class LineDisplay:
    """One line every ten seconds, for pipes and logs."""

    seconds = LINE_SECONDS

    def __init__(self, console: Any = None) -> None:
        self._console = console

    def update(self, summary: Mapping[str, Any], /) -> None:
        """Print a line."""
        with suppress(OSError):
            if self._console is not None:
                self._console.print(format_line(summary), soft_wrap=True, markup=False)
            elif sys.stderr is not None:
                sys.stderr.write(f"{format_line(summary)}\n")
                sys.stderr.flush()

    def close(self, summary: Mapping[str, Any] | None = None, /) -> None:
        """Print the last line."""
        if summary is not None:
            self.update(summary)


class NotebookDisplay:
    """HTML in the output of a notebook's cell, replaced by each update."""

    seconds = _NOTEBOOK_SECONDS

    def __init__(self, display: Any) -> None:
        self._display, self._handle = display, None

    def update(self, summary: Mapping[str, Any], /) -> None:
        """Replace the HTML."""
        content = _HtmlOutput(render_html(summary), format_line(summary))
        if self._handle is None:
            self._handle = self._display(content, display_id=True)
        else:
            self._handle.update(content)

    def close(self, summary: Mapping[str, Any] | None = None, /) -> None:
        """Leave the last state in the notebook."""
        if summary is not None:
            self.update(summary)


class _HtmlOutput:
    """Object that a notebook shows as HTML, and a text client as a line."""

    def __init__(self, html: str, text: str) -> None:
        self._html, self._text = html, text

    def __repr__(self) -> str:
        return self._text

    def _repr_html_(self) -> str:
        return self._html


def render_html(summary: Mapping[str, Any]) -> str:
    """Return the state of a run as HTML. Names come from data and are escaped."""
    from html import escape

    step, steps = summary["step"], summary["steps"]
    value = f'value="{min(step, steps)}" max="{steps}"' if steps else ""
    label = f'aria-label="{escape(format_progress(summary), True)}"'
    bar = f'<progress {value} {label} style="width: 16em"></progress> '
    figures = " &middot; ".join(
        f"{escape(name)} <b>{escape(text)}</b>" for name, text in list_figures(summary)
    )
    rows = [
        [
            row.name,
            f"{row.samples:,}",
            f"{row.share:.2%}",
            *([] if row.requested is None else [f"{row.requested:.2%}"]),
        ]
        for row in list_sources(summary, 12)
    ]
    has_requested = bool(rows) and len(rows[0]) > 3
    heads = ["source", "samples", "share", *(["requested"] if has_requested else [])]
    work = list_work(summary)
    warnings = [*list_problems(summary), *summary["warnings"]]
    lines = [
        bar + escape(format_progress(summary)),
        figures,
        *([f"work: {escape(', '.join(work))}"] if work else []),
        f"warnings: {escape('; '.join(warnings) or 'none')}",
    ]
    return f"<div>{'<br>'.join(lines)}{show_table(heads, rows)}</div>"


def open_display(max_lines: int | None = 10) -> Display:
    """Return the display for this process: a notebook, a terminal, or lines on stderr.

    Without the package `rich`, a terminal shows lines too.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if hasattr(shell, "kernel"):
        from importlib import import_module

        return NotebookDisplay(import_module("IPython.display").display)
    if sys.stderr is not None and sys.stderr.isatty():
        with suppress(ImportError):
            from rich.console import Console

            return TerminalDisplay(Console(stderr=True, highlight=False), max_lines)
    return LineDisplay()


class RunDisplay:
    """Display of a run that decides when an update is due."""

    def __init__(self, display: Display) -> None:
        self._display = display
        self._due = world.sched.now() + (display.seconds if display.seconds > 1 else 0.0)

    def is_due(self) -> bool:
        """Return True if the next update is due."""
        return world.sched.now() >= self._due

    def update(self, summary: Mapping[str, Any]) -> None:
        """Show a summary."""
        self._display.update(summary)
        self._due = world.sched.now() + self._display.seconds

    def close(self, summary: Mapping[str, Any] | None = None) -> None:
        """Show the last summary if there is one, and close the display."""
        self._display.close(summary)
