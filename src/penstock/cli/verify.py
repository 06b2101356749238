"""`penstock verify`: whether every sample of files can be read, for people and for CI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from .say import Json, answer, guarded, here, say

if TYPE_CHECKING:
    from penstock.engine.runtime.executors import ExecutorName
    from penstock.writing.verify import Damage

Paths = Annotated[list[str], typer.Argument(help="Files, globs, brace ranges, folders.")]
Format = Annotated[
    str | None, typer.Option(help="What the files are, where their names do not tell.")
]
Cache = Annotated[
    Path | None,
    typer.Option(
        parser=here,
        metavar="PATH",
        help="The folder of indexes and copies; default: beside the data.",
    ),
]
Engine = Annotated[str, typer.Option(help="Who computes: inline, threads, processes or ray.")]
_FEW = 20  # kinds of damage
Workers = Annotated[
    int | None, typer.Option(min=1, help="How many; default: one for each core here.")
]


def engine_of(name: str) -> ExecutorName:
    """An engine of this name; others are refused."""
    from penstock.engine.base.hints import chosen
    from penstock.engine.runtime.executors import EXECUTORS

    chosen(name, EXECUTORS, "--engine {}")
    return cast("ExecutorName", name)


def _where(file: str, row: int | None) -> str:
    return file if row is None else f"{file}, sample {row}"


def _said(damage: Damage) -> str:
    """One kind of damage in one line."""
    if damage.samples < 2:
        return f"{_where(damage.file, damage.first)}: {damage.message}"
    return f"{damage.file}, {damage.samples:,} samples from {damage.first} to {damage.last}: {damage.message}"


@guarded
def verify(
    paths: Paths,
    format: Format = None,
    cache: Cache = None,
    engine: Engine = "inline",
    workers: Workers = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every bad sample, not a line for each kind of damage.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Read every sample, compare all checksums and digests, and say which file and which samples
    are bad.

    Exit code 0 if all is well, 1 if something is damaged, 2 if it could not be looked at.
    """
    from penstock.engine.graph.shown import counted
    from penstock.writing import verify as verified

    found = verified(paths, format, cache, engine_of(engine), workers)

    def tell(console: Any) -> None:
        lines = [_said(damage) for damage in found.damage]
        if every:
            lines = [
                _where(problem.file, problem.row) + f": {problem.message}"
                for problem in found.problems
            ]
        elif len(lines) > _FEW:
            lines[_FEW:] = [f"and {len(lines) - _FEW:,} more kinds of damage; all with --all"]
        for line in [*lines, *([f"and {found.more:,} more"] if every and found.more else ())]:
            say(console, line, "red")
        digests = f", {counted(found.digests, 'digest')}" if found.digests else ""
        wrong = (
            counted(len(found.problems) + found.more, "problem")
            if found.problems
            else "nothing wrong"
        )
        files = counted(found.files, "file")
        say(console, f"{found.rows:,} samples in {files}, {found.bytes:,} bytes{digests}: {wrong}")

    told = {
        "sound": found.sound,
        "files": found.files,
        "samples": found.rows,
        "bytes": found.bytes,
        "digests": found.digests,
        "problems": [problem._asdict() for problem in found.problems],
        "more": found.more,
        "damage": [damage._asdict() for damage in found.damage],
    }
    answer(told, tell, as_json)
    if not found.sound:
        raise typer.Exit(1)
