"""How every command is asked and answers: common options, JSON or words, errors as one line and an exit code."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from penstock.errors import ConfigError, PenstockError

if TYPE_CHECKING:
    from penstock.report.target import Target

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


def stretch(target: Target, text: str | None) -> range:
    """The steps that `FIRST:STOP` names, either of which may be left out: of the run as long as it is."""
    last = target.horizon(None)
    first, sign, stop = (text or ":").partition(":")
    if not sign or not all(not end or end.isdecimal() for end in (first, stop)):
        raise ConfigError(f"--steps {text}: write FIRST:STOP, the first step and the one to stop before")
    found = range(int(first or 0), int(stop or last))
    if not len(found):
        raise ConfigError(f"--steps {text}: no step lies between them; the run has {last:,}")
    if target.last is not None and found.stop > target.last:
        raise ConfigError(f"--steps {text}: the run ends after {target.last:,} {target.unit}s")
    return found


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
        except BrokenPipeError:
            # Who read us has had enough, as `head` has; what is still to be flushed has no place to go.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        except (PenstockError, OSError, IndexError) as error:
            raise _failed(str(error), 2, type(error).__name__, bool(kwargs.get("as_json"))) from None
        except KeyboardInterrupt:
            raise _failed("stopped", 130, "KeyboardInterrupt", bool(kwargs.get("as_json"))) from None

    return run
