"""Command `penstock top`: show a running training from the stats file that its loader writes."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .common import (
    JsonOption,
    handle_errors,
    make_console,
    parse_local_path,
    print_result,
    print_text,
)

if TYPE_CHECKING:
    from penstock.explore.run_stats import StatsFollower

_POLL_SECONDS = 0.2
_ONCE_LINES = 200  # of `--once`, which scrolls


def _parse_stats_path(text: str) -> Path:
    return parse_local_path(text)


_parse_stats_path.__name__ = "file or folder"  # --help shows it as the type of the argument


@handle_errors
def top(
    stats: Annotated[
        Path,
        typer.Argument(parser=_parse_stats_path, help="File of Loader(stats=...), or its folder."),
    ],
    once: Annotated[bool, typer.Option(help="Print the present state and stop.")] = False,
    every: Annotated[
        float | None,
        typer.Option(min=0.1, help="Seconds between updates; default: 1, or 10 in a pipe."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show a running training live: speed, waits, shares and memory.

    Follows the file that Loader(stats=PATH) writes, also over restarts. Ctrl-C stops the display
    and never the run. In a pipe it prints a line every ten seconds until the run is closed.
    """
    from penstock.explore.run_stats import StatsFollower

    follower = StatsFollower(stats)
    if as_json or once:
        summary = follower.poll().summary()
        print_result(summary, lambda console: _print_once(console, summary), as_json)
        return
    try:
        if sys.stdout.isatty():
            _follow_on_terminal(follower, every or 1.0)
        else:
            _follow_as_lines(follower, every or 10.0)
    except KeyboardInterrupt:
        return  # the usual end of a live display


def _print_once(console: Any, summary: dict[str, Any]) -> None:
    from penstock.explore.live_stats import StatsScreen

    console.print(StatsScreen(summary, _ONCE_LINES, scrolls=True), end="")


def _follow_on_terminal(follower: StatsFollower, every: float) -> None:
    """Redraw the screen at intervals and after a resize, until Ctrl-C."""
    from rich.console import Console

    from penstock.explore.live_stats import TerminalDisplay

    console = Console(highlight=False)
    display = TerminalDisplay(console, full_screen=True)
    size, due, summary = console.size, 0.0, follower.poll().summary()
    try:
        while True:
            if time.monotonic() >= due or console.size != size:
                size, due = console.size, time.monotonic() + every
                summary = follower.poll().summary()
                display.update(summary)
            time.sleep(_POLL_SECONDS)
    finally:
        display.close(summary)


def _follow_as_lines(follower: StatsFollower, every: float) -> None:
    """Print a line at intervals until the run has ended."""
    from penstock.explore.live_stats import format_line

    console = make_console()
    while True:
        summary = follower.poll().summary()
        print_text(console, format_line(summary))
        sys.stdout.flush()
        if summary["status"] in ("closed", "ended"):
            return
        time.sleep(every)
