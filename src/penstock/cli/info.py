"""`penstock info` and `penstock preview`: what a path is, and its first rows."""

from __future__ import annotations

import shutil
from typing import Annotated, Any

import typer

import penstock as ps

from .say import Json, answer, guarded, say
from .verify import Cache, Format, Paths

_PIPE = 1_000  # letters of a line where nobody says how wide it may be


@guarded
def info(paths: Paths, format: Format = None, cache: Cache = None, as_json: Json = False) -> None:
    """What a path is: format, samples, columns and their types, sizes, lengths of tokens,
    checksums."""
    from penstock.engine.graph.shown import counted

    from .outline import outline

    found = outline(paths, format, cache)

    def tell(console: Any) -> None:
        out = [
            f"{found['name']}: {found['format']}, {found['samples']:,} samples in "
            f"{counted(found['files'], 'file')}"
        ]
        out.append(
            f"{found['bytes']:,} bytes, {found['bytes'] / max(found['samples'], 1):,.0f} a sample"
        )
        if groups := found["row_groups"]:
            out.append(
                f"row groups of {groups['rows']:,} rows, {groups['bytes'] / 2**20:,.1f} MiB decoded"
            )
        out.append(f"checksums: {found['checksums']}")
        if tokens := found["tokens"]:
            out.append(
                f"tokens: {tokens['total']:,}, {tokens['mean']:,.1f} a sample, at most "
                f"{tokens['most']:,}"
            )
        out += [
            "columns:" if found["columns"] else "no columns",
            *(f"  {n}: {k}" for n, k in found["columns"].items()),
        ]
        for line in out:
            say(console, line)

    answer(found, tell, as_json)


@guarded
def preview(
    paths: Paths,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many.")] = 3,
    at: Annotated[int, typer.Option(min=0, help="From this sample on.")] = 0,
    format: Format = None,
    cache: Cache = None,
    as_json: Json = False,
) -> None:
    """Some samples in the terminal: texts cut to its width, arrays by type and shape, media told
    and not dumped."""
    from penstock.report.values import jsonable, shown

    dataset = ps.read(list(paths), format=format, cache=cache)
    if at >= len(dataset):
        raise ps.ConfigError(f"--at {at}: there are {len(dataset):,} samples")
    places = range(at, min(at + count, len(dataset)))
    samples = dataset[list(places)]
    width = shutil.get_terminal_size((_PIPE, 24)).columns

    def tell(console: Any) -> None:
        for place, sample in zip(places, samples, strict=True):
            console.print(f"sample {place:,} of {len(dataset):,}", style="bold", markup=False)
            for line in shown(sample, width):
                console.print(line, markup=False, soft_wrap=True)

    answer(
        {
            "samples": [
                {"index": i, "sample": jsonable(s)} for i, s in zip(places, samples, strict=True)
            ]
        },
        tell,
        as_json,
    )
