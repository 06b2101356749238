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
        print(json.dumps(found, indent=2))
        return
    from rich.console import Console

    # A table that was squeezed into a narrow window would lose its names and figures.
    tell(Console(highlight=False, width=_WIDTH))


def stop(message: str, code: int = 2) -> typer.Exit:
    """Say what went wrong; the exit to raise."""
    typer.echo(f"penstock: {message}", err=True)
    return typer.Exit(code)


def guarded(command: Callable[P, None]) -> Callable[P, None]:
    """A command whose errors are a message and exit code 2, and which Ctrl-C ends with 130."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except (PenstockError, OSError, IndexError) as error:
            raise stop(str(error)) from None
        except KeyboardInterrupt:
            raise stop("stopped", 130) from None

    return run
