"""Shared parts of all commands: options, JSON or text output, error handling."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Collection
from functools import wraps
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from penstock.errors import ConfigError, PenstockError, make_storage_error

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from penstock.report.target import Target

P = ParamSpec("P")

JSON_OUTPUT_VERSION = 1
"""Version of the `--json` output; incremented if a key is removed or changes its meaning."""

_PIPE_WIDTH = 10_000  # characters; output to a pipe is not wrapped
_MIN_WIDTH = 20  # characters
_NO_BREAK_SPACE = "\u00a0"


def parse_mixture_file(text: str) -> Path:
    """Parse the argument MIXTURE: an existing local file, or a URL that is opened later."""
    from penstock.stores import is_remote, parse_location

    try:
        path = parse_location(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        if is_remote(path) or path.is_file():
            return path
    except OSError as error:  # the name is too long
        raise typer.BadParameter(f"{path}: {error.strerror}.") from None
    problem = "does not exist"
    if path.exists():
        problem = "is a directory" if path.is_dir() else "is a pipe or a device"
    raise typer.BadParameter(f"File {str(path)!r} {problem}.")


parse_mixture_file.__name__ = "file or URL"  # --help shows it as the type of the argument


def parse_local_path(text: str) -> Path:
    """Parse a local path; reject URLs, which would create a folder named `s3:`."""
    from penstock.stores.urls import require_local

    try:
        return require_local(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None


MixtureArgument = Annotated[
    Path, typer.Argument(parser=parse_mixture_file, help="Mixture file, or its URL.")
]
StepsOption = Annotated[
    int | None,
    typer.Option(
        "--steps",
        min=1,
        help="Length of the run; default: the horizon of the file, else until all sources were seen.",
    ),
]
StateOption = Annotated[
    Path | None,
    typer.Option(
        "--state",
        parser=parse_local_path,
        metavar="PATH",
        help="Folder of saved states: answer for that run, with its edits.",
    ),
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="NAME",
        help="Permit a mixture file from a URL to use env, local_files or cache; repeatable.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON only.")]


def open_run(
    mixture: Path,
    state: Path | None,
    ranks: int | None = None,
    *,
    allow: Collection[str] | None = None,
) -> Target:
    """Open a mixture file, with a state as the run that saved it.

    Prints a notice on stderr if the file's batches or ranks differ from those of the run.
    """
    from penstock.report.target import open_target

    target = open_target(mixture, state=state, ranks=ranks, allow=allow)
    if target.note:
        typer.echo(f"penstock: {target.note}", err=True)
    return target


def parse_steps(target: Target, text: str | None) -> range:
    """Parse `FIRST:STOP`; a missing end is the first or the last step of the run."""
    first, colon, stop = (text or ":").partition(":")
    if not colon or not all(not end or end.isdecimal() for end in (first, stop)):
        raise ConfigError(
            f"--steps {text}: write FIRST:STOP, the first step and the step to stop before"
        )
    steps = range(int(first or 0), int(stop) if stop else target.horizon(None))
    if not steps:
        raise ConfigError(f"--steps {text}: the range is empty; give a later STOP")
    if target.last is not None and steps.stop > max(target.last, target.rows.next_step):
        raise ConfigError(f"--steps {text}: the run ends after {target.last:,} {target.unit}s")
    from penstock.arguments import check_position

    check_position(steps.stop)
    return steps


def print_result(result: dict[str, Any], tell: Callable[[Any], None], as_json: bool) -> None:
    """Print a result: as JSON, or as text by calling `tell(console)`."""
    if as_json:
        print(json.dumps({"version": JSON_OUTPUT_VERSION, **result}, indent=2))
        return
    tell(make_console())


def make_console() -> Console:
    """Return a console for text, which wraps at the width of the terminal.

    A closed pipe is the `BrokenPipeError` that `handle_errors` expects; rich would exit with 1,
    the exit code of a difference or of damage.
    """
    from rich.console import Console

    class PipeConsole(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True
            raise BrokenPipeError

    return PipeConsole(
        highlight=False, width=max(_MIN_WIDTH, get_terminal_size((_PIPE_WIDTH, 24)).columns)
    )


def print_text(console: Console, text: str, style: str | None = None) -> None:
    """Print text; lines wrap between words and never inside a name or path."""
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        console.print(
            "\n".join(_wrap_line(line, console.width, f"{indent}  ")),
            style=style,
            markup=False,
            soft_wrap=True,
        )


def _wrap_line(line: str, width: int, indent: str) -> list[str]:
    if len(line) <= width:
        return [line]
    return wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def print_table(console: Console, table: Table) -> None:
    """Print a table; if it is wider than the terminal, print one paragraph per row."""
    from rich.measure import measure_renderables

    if (
        measure_renderables(console, console.options.update(width=_PIPE_WIDTH), [table]).maximum
        <= console.width
    ):
        console.print(table)
        return
    if table.title:
        print_text(console, str(table.title), "bold")
    headings = [str(column.header) for column in table.columns]
    for row, table_row in zip(
        zip(*(column.cells for column in table.columns), strict=True), table.rows, strict=True
    ):
        name, *cells = (str(cell) for cell in row)
        style = None if table_row.style is None else str(table_row.style)
        print_text(console, name, style or "bold")
        # Non-breaking spaces keep a heading and its cell on one line.
        pairs = [
            f"{heading} {cell}".replace(" ", _NO_BREAK_SPACE)
            for heading, cell in zip(headings[1:], cells, strict=True)
            if cell
        ]
        for line in _wrap_line(f"    {', '.join(pairs)}", console.width, "    "):
            console.print(
                line.replace(_NO_BREAK_SPACE, " "), style=style, markup=False, soft_wrap=True
            )


def print_error(message: str, code: int = 2) -> typer.Exit:
    """Print an error on stderr; return the exit to raise."""
    typer.echo(f"penstock: {message}", err=True)
    return typer.Exit(code)


def report_error(message: str, code: int, kind: str, as_json: bool) -> typer.Exit:
    """Report an error as text or JSON; return the exit to raise."""
    if not as_json:
        return print_error(message, code)
    answer = {
        "version": JSON_OUTPUT_VERSION,
        "error": {"kind": kind, "message": message, "exit_code": code},
    }
    try:
        print(json.dumps(answer, indent=2), flush=True)
    except OSError:  # such as a full disk
        return print_error(message, code)
    return typer.Exit(code)


def _discard_output() -> None:
    """Discard what stdout did not take: Python would flush it at exit, and exit with 120."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def handle_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Wrap a command: errors become a message and exit code 2, Ctrl-C exit code 130."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()  # here, where an error is reported
        except BrokenPipeError:
            _discard_output()  # the reader closed the pipe, as `head` does
            raise typer.Exit(141) from None
        except (PenstockError, OSError, IndexError, ImportError) as error:
            if isinstance(error, OSError) and not isinstance(error, PenstockError) and error.errno:
                error = make_storage_error(error, error.filename or command.__name__)
            end = report_error(str(error), 2, type(error).__name__, bool(kwargs.get("as_json")))
            try:
                sys.stdout.flush()
            except OSError:  # such as a full disk
                _discard_output()
            raise end from None
        except KeyboardInterrupt:
            raise report_error(
                "stopped", 130, "KeyboardInterrupt", bool(kwargs.get("as_json"))
            ) from None

    return run
