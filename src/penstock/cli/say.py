"""How every command is asked and answers: common options, JSON or words, errors as one line and an exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer

from penstock.errors import PenstockError

P = ParamSpec("P")

VERSION = 1
"""Of the form of what `--json` prints: a key that means something else, or is gone, makes a new one."""

_WIDTH = 10_000  # no line is broken by us

Mixture = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A mixture file.")]
Steps = Annotated[
    int | None, typer.Option("--steps", min=1, help="The length of the run; default: what the file says.")
]
State = Annotated[Path | None, typer.Option("--state", help="As the run has it that saved its states in this folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]


def answer(found: Any, tell: Callable[[Any], None], as_json: bool) -> None:
    """Print what was found: for machines, or by `tell(console)` for people."""
    if as_json:
        print(json.dumps({"version": VERSION, **found} if isinstance(found, dict) else found, indent=2))
        return
    from rich.console import Console

    # A table that was squeezed into a narrow window would lose its names and figures.
    tell(Console(highlight=False, width=_WIDTH))


def stop(message: str, code: int = 2) -> typer.Exit:
    """Say what went wrong; the exit to raise."""
    typer.echo(f"penstock: {message}", err=True)
    return typer.Exit(code)


def _failed(message: str, code: int, kind: str, as_json: bool) -> typer.Exit:
    """The exit to raise, after saying why in the form that was asked for."""
    if not as_json:
        return stop(message, code)
    print(json.dumps({"version": VERSION, "error": {"kind": kind, "message": message, "exit_code": code}}, indent=2))
    return typer.Exit(code)


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """A command whose errors are a message (or JSON) and exit code 2, and which Ctrl-C ends with 130."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (PenstockError, OSError, IndexError) as error:
            raise _failed(str(error), 2, type(error).__name__, bool(kwargs.get("as_json"))) from None
        except KeyboardInterrupt:
            raise _failed("stopped", 130, "KeyboardInterrupt", bool(kwargs.get("as_json"))) from None

    return run
