"""How every command is asked and answers: common options, JSON or words, errors as one line and an
exit code."""

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

from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from penstock.report.target import Target

P = ParamSpec("P")

VERSION = 1
"""Of the form of what `--json` prints: a key that means something else, or is gone, makes a new
one."""

_WIDTH = 10_000  # in a pipe no line is broken
_LEAST = 20  # columns
_NBSP = "\u00a0"


def mixture_file(text: str) -> Path:
    """What an argument names: a file that is on this machine, or one in a store, which is not asked
    for it yet."""
    from penstock.stores import is_remote, located

    try:
        path = located(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    if is_remote(path) or path.is_file():
        return path
    raise typer.BadParameter(
        f"File {str(path)!r} {'is a directory' if path.is_dir() else 'does not exist'}."
    )


def here(text: str) -> Path:
    """A path of this machine. A URL is refused, which would name a folder called `s3:`."""
    from penstock.engine.base.urls import local

    try:
        return local(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None


Mixture = Annotated[Path, typer.Argument(parser=mixture_file, help="A mixture file, or its URL.")]
Steps = Annotated[
    int | None,
    typer.Option("--steps", min=1, help="The length of the run; default: what the file says."),
]
State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        parser=here,
        metavar="PATH",
        help="As the run has it that saved its states in this folder.",
    ),
]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow",
        metavar="NAME",
        help="What a mixture file from a URL may use: env, local_files or cache; may be repeated.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]


def of_run(
    mixture: Path,
    state: Path | None,
    ranks: int | None = None,
    *,
    allow: Collection[str] | None = None,
) -> Target:
    """A mixture file, as the run that saved a state has it: said once where the file has other
    steps than the run."""
    from penstock.report.target import opened

    target = opened(mixture, state=state, ranks=ranks, allow=allow)
    if target.note:
        typer.echo(f"penstock: {target.note}", err=True)
    return target


def stretch(target: Target, text: str | None) -> range:
    """The steps that `FIRST:STOP` names, either of which may be left out: of the run as long as it
    is."""
    last = target.horizon(None)
    first, sign, stop = (text or ":").partition(":")
    if not sign or not all(not end or end.isdecimal() for end in (first, stop)):
        raise ConfigError(
            f"--steps {text}: write FIRST:STOP, the first step and the one to stop before"
        )
    found = range(int(first or 0), int(stop or last))
    if not len(found):
        raise ConfigError(f"--steps {text}: no step lies between them; the run has {last:,}")
    if target.last is not None and found.stop > max(target.last, target.rows.next_step):
        raise ConfigError(f"--steps {text}: the run ends after {target.last:,} {target.unit}s")
    return found


def answer(found: dict[str, Any], tell: Callable[[Any], None], as_json: bool) -> None:
    """Print what was found: for machines, or by `tell(console)` for people."""
    if as_json:
        print(json.dumps({"version": VERSION, **found}, indent=2))
        return
    tell(people())


def people() -> Console:
    """Where people read: lines are broken between words, at the width of the terminal; nowhere
    else."""
    from rich.console import Console

    return Console(highlight=False, width=max(_LEAST, get_terminal_size((_WIDTH, 24)).columns))


def say(console: Console, text: str, style: str | None = None) -> None:
    """Text for people, in which a word (a name, a path) is never broken."""
    for line in text.split("\n"):
        inside = line[: len(line) - len(line.lstrip())]
        console.print(
            "\n".join(_broken(line, console.width, f"{inside}  ")),
            style=style,
            markup=False,
            soft_wrap=True,
        )


def _broken(line: str, width: int, inside: str) -> list[str]:
    if len(line) <= width:
        return [line]
    return wrap(
        line, width, subsequent_indent=inside, break_long_words=False, break_on_hyphens=False
    )


def put(console: Console, table: Table) -> None:
    """A table, where there is room for it; else what its columns say, row by row."""
    from rich.measure import measure_renderables

    if (
        measure_renderables(console, console.options.update(width=_WIDTH), [table]).maximum
        <= console.width
    ):
        console.print(table)
        return
    if table.title:
        say(console, str(table.title), "bold")
    heads = [str(column.header) for column in table.columns]
    for row, its in zip(
        zip(*(column.cells for column in table.columns), strict=True), table.rows, strict=True
    ):
        name, *cells = (str(cell) for cell in row)
        style = None if its.style is None else str(its.style)
        say(console, name, style or "bold")
        # What belongs together stays on one line.
        pairs = [
            f"{head} {cell}".replace(" ", _NBSP)
            for head, cell in zip(heads[1:], cells, strict=True)
            if cell
        ]
        for line in _broken(f"    {', '.join(pairs)}", console.width, "    "):
            console.print(line.replace(_NBSP, " "), style=style, markup=False, soft_wrap=True)


def stop(message: str, code: int = 2) -> typer.Exit:
    """Say what went wrong; the exit to raise."""
    typer.echo(f"penstock: {message}", err=True)
    return typer.Exit(code)


def failed(message: str, code: int, kind: str, as_json: bool) -> typer.Exit:
    """The exit to raise, after saying why in the form that was asked for."""
    if not as_json:
        return stop(message, code)
    print(
        json.dumps(
            {"version": VERSION, "error": {"kind": kind, "message": message, "exit_code": code}},
            indent=2,
        )
    )
    return typer.Exit(code)


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """A command whose errors are a message (or JSON) and exit code 2, and which Ctrl-C ends with
    130."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except BrokenPipeError:
            # Who read us has had enough, as `head` has; what is still to be flushed has no place to
            # go.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        except (PenstockError, OSError, IndexError, ImportError) as error:
            raise failed(str(error), 2, type(error).__name__, bool(kwargs.get("as_json"))) from None
        except KeyboardInterrupt:
            raise failed("stopped", 130, "KeyboardInterrupt", bool(kwargs.get("as_json"))) from None

    return run
