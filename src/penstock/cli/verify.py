"""Command `penstock verify`: check that every sample of data files can be read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from .common import JsonOption, handle_errors, parse_local_path, print_result, print_text

if TYPE_CHECKING:
    from penstock.engine.runtime.executors import ExecutorName
    from penstock.writing.verify import Damage

PathsArgument = Annotated[list[str], typer.Argument(help="Files, globs, brace ranges or folders.")]
Format = Annotated[
    str | None, typer.Option(help="Format of the files; default: detected from their names.")
]
CacheOption = Annotated[
    Path | None,
    typer.Option(
        parser=parse_local_path,
        metavar="PATH",
        help="Folder of indexes and copies; default: beside the data.",
    ),
]
ExecutorOption = Annotated[str, typer.Option(help="Executor: inline, threads, processes or ray.")]
_MAX_DAMAGE_LINES = 20  # printed kinds of damage
WorkersOption = Annotated[
    int | None,
    typer.Option(min=1, help="Workers of --executor (inline has none); default: one per CPU core."),
]


def parse_executor(name: str) -> ExecutorName:
    """Return the executor of this name, or raise `ConfigError`."""
    from penstock.arguments import check_choice
    from penstock.engine.runtime.executors import EXECUTORS

    check_choice(name, EXECUTORS, "--executor {}")
    return cast("ExecutorName", name)


def _format_location(file: str, row: int | None) -> str:
    return file if row is None else f"{file}, sample {row}"


def _format_damage(damage: Damage) -> str:
    """Describe one kind of damage in one line."""
    if damage.samples < 2:
        return f"{_format_location(damage.file, damage.first)}: {damage.message}"
    return f"{damage.file}, {damage.samples:,} samples from {damage.first} to {damage.last}: {damage.message}"


@handle_errors
def verify(
    paths: PathsArgument,
    format: Format = None,
    cache: CacheOption = None,
    executor: ExecutorOption = "inline",
    workers: WorkersOption = None,
    every: Annotated[
        bool, typer.Option("--all", help="Print every bad sample, not one line per kind of damage.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Read every sample and compare all checksums.

    Reports damaged files and samples. Exit code 0 if all are sound, 1 if something is damaged, 2 if
    the check could not run.
    """
    from penstock.engine.base.shown import counted
    from penstock.writing import verify as verify_files

    report = verify_files(paths, format, cache, parse_executor(executor), workers)

    def tell(console: Any) -> None:
        lines = [_format_damage(damage) for damage in report.damage]
        if every:
            lines = [
                _format_location(problem.file, problem.row) + f": {problem.message}"
                for problem in report.problems
            ]
        elif len(lines) > _MAX_DAMAGE_LINES:
            lines[_MAX_DAMAGE_LINES:] = [
                f"and {len(lines) - _MAX_DAMAGE_LINES:,} more kinds of damage (--all prints all)"
            ]
        for line in [*lines, *([f"and {report.more:,} more"] if every and report.more else ())]:
            print_text(console, line, "red")
        digests = f", {counted(report.digests, 'digest')}" if report.digests else ""
        problems = (
            counted(len(report.problems) + report.more, "problem")
            if report.problems
            else "nothing wrong"
        )
        files = counted(report.files, "file")
        print_text(
            console,
            f"{report.rows:,} samples in {files}, {report.bytes:,} bytes{digests}: {problems}",
        )

    result = {
        "sound": report.sound,
        "files": report.files,
        "samples": report.rows,
        "bytes": report.bytes,
        "digests": report.digests,
        "problems": [problem._asdict() for problem in report.problems],
        "more": report.more,
        "damage": [damage._asdict() for damage in report.damage],
    }
    print_result(result, tell, as_json)
    if not report.sound:
        raise typer.Exit(1)
