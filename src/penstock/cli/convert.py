"""Command `penstock convert`: mixtures of other projects as mixture files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.errors import ConfigError

from .common import JsonOption, handle_errors, parse_local_path, print_result, print_text


@handle_errors
def convert(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="Mixture of another project.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "-o", "--out", parser=parse_local_path, metavar="PATH", help="Mixture file to write."
        ),
    ],
    kind: Annotated[
        str | None,
        typer.Option("--from", help="Format of the file; default: detected from its content."),
    ] = None,
    pick: Annotated[
        str | None,
        typer.Option(
            help="Name to select: a split of an Energon metadataset, or a mixture of a Python file."
        ),
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=PATH; repeatable. Local path of a source, a hub dataset, or a URL prefix "
            "that ends in /. NAME * stands for all others, {name} in PATH for their names."
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of data-parallel ranks; needed if batch sizes are per rank.",
        ),
    ] = None,
    lossy: Annotated[
        bool, typer.Option("--lossy", help="Write the mixture even if settings are lost.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Convert a mixture of another project to a mixture file.

    Converts sources, shares, lengths of run and rows, and seeds. Every key of the file is
    converted, ignored as harmless (it does not change samples), or reported with line and reason.
    If a setting is lost, nothing is written and the exit code is 1, unless --lossy is given. No
    code of the file is imported or run.
    """
    from penstock.compat.mixtures import convert_with_keys
    from penstock.engine.base.shown import counted
    from penstock.mixture_files import dump

    if out.resolve() == file.resolve():
        raise ConfigError(f"{out} is an input of this command: name another output file")
    converted = convert_with_keys(
        file, kind, pick, files=dict(map(_parse_file_rule, files or ())), ranks=ranks
    )
    model, problems, keys = converted.mixture, converted.problems, converted.keys
    lost = [one for one in problems if one.severity == "warning"]
    written = lossy or not lost
    if written:
        dump(model, out)

    def tell(console: Any) -> None:
        for problem in problems:
            label, style = ("lost", "yellow") if problem in lost else ("note", None)
            print_text(console, f"{label}: {problem}", style)
        counts = (
            (len(keys.carried), "carried"),
            (len(keys.harmless), "harmless"),
            (len(keys.reported), "reported"),
        )
        key_counts = ", ".join(f"{count} {outcome}" for count, outcome in counts)
        print_text(console, f"{file}: read as {converted.format}; keys: {key_counts}")
        names = counted(len(model.names), "source")
        suffix = "" if written else f" not written: {len(lost)} lost (--lossy writes the rest)"
        print_text(console, f"{out}:{suffix or f' {names}'}")

    result = {
        "mixture": str(out) if written else None,
        "format": converted.format,
        "sources": list(model.names),
        "keys": asdict(keys),
        "lost": [asdict(one) for one in lost],
        "notes": [asdict(one) for one in problems if one not in lost],
    }
    print_result(result, tell, as_json)
    if not written:
        raise typer.Exit(1)


def _parse_file_rule(text: str) -> tuple[str, str]:
    """Split `NAME=PATH` into name and path."""
    name, separator, path = text.partition("=")
    if not separator or not name or not path:
        raise ConfigError(
            f"--files {text!r}: write NAME=PATH, such as tatsu-lab/alpaca=data/alpaca"
        )
    return name, path
