"""`penstock convert`: mixtures written for other projects, as mixture files."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.errors import ConfigError

from .say import Json, answer, guarded, here, say


@guarded
def convert(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, help="A mixture of another project.")
    ],
    out: Annotated[
        Path,
        typer.Option("-o", "--out", parser=here, metavar="PATH", help="The mixture file to write."),
    ],
    kind: Annotated[
        str | None, typer.Option("--from", help="Its format; default: found from what it holds.")
    ] = None,
    pick: Annotated[
        str | None,
        typer.Option(
            help="Which of several: the split of an Energon metadataset, the mixture of a Python "
            "file."
        ),
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=PATH, once or more: where a source, a dataset of a hub, or all below a URL "
            "that ends in / lies "
            "here; * is for all others, and {name} in its path their names."
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many ranks read samples of their own; needed where batch sizes are those of "
            "one rank.",
        ),
    ] = None,
    lossy: Annotated[
        bool, typer.Option("--lossy", help="Write what can be carried over, though some is lost.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Carry a mixture over from another project: its sources, shares, lengths of run and rows,
    seeds.

    Every key of the file is carried over, known to be harmless (it says nothing about samples), or
    reported with its line and the reason. Where anything is lost nothing is written, and the exit
    code is 1, unless --lossy is given. Nothing the file names is imported or run.
    """
    from penstock.compat.mixtures import convert_with_keys
    from penstock.engine.graph.shown import counted
    from penstock.mixture_files import dump

    converted = convert_with_keys(
        file, kind, pick, files=dict(map(_rule, files or ())), ranks=ranks
    )
    model, problems, keys = converted.mixture, converted.problems, converted.keys
    lost = [one for one in problems if one.severity == "warning"]
    written = lossy or not lost
    if written:
        dump(model, out)

    def tell(console: Any) -> None:
        for problem in problems:
            said, style = ("lost", "yellow") if problem in lost else ("note", None)
            say(console, f"{said}: {problem}", style)
        counts = (
            (len(keys.carried), "carried"),
            (len(keys.harmless), "harmless"),
            (len(keys.reported), "reported"),
        )
        told = ", ".join(f"{count} {fate}" for count, fate in counts)
        say(console, f"{file}: read as {converted.format}; keys: {told}")
        names = counted(len(model.names), "source")
        ends = "" if written else f" not written: {len(lost)} lost (--lossy writes the rest)"
        say(console, f"{out}:{ends or f' {names}'}")

    found = {
        "mixture": str(out) if written else None,
        "format": converted.format,
        "sources": list(model.names),
        "keys": asdict(keys),
        "lost": [asdict(one) for one in lost],
        "notes": [asdict(one) for one in problems if one not in lost],
    }
    answer(found, tell, as_json)
    if not written:
        raise typer.Exit(1)


def _rule(given: str) -> tuple[str, str]:
    name, separator, path = given.partition("=")
    if not separator or not name or not path:
        raise ConfigError(f"--files {given!r}: NAME=PATH, such as tatsu-lab/alpaca=data/alpaca")
    return name, path
