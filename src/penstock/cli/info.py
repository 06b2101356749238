"""Commands `penstock info` and `penstock preview`: facts and first rows of data files."""

from __future__ import annotations

import shutil
from typing import Annotated, Any

import typer

import penstock as ps

from .common import JsonOption, handle_errors, print_result, print_text
from .verify import CacheOption, Format, PathsArgument

_PIPE_WIDTH = 1_000  # characters of a line if the output is no terminal


@handle_errors
def info(
    paths: PathsArgument,
    format: Format = None,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print format, samples, columns, sizes, tokens and checksums."""
    from penstock.engine.base.shown import counted

    from .outline import describe_files

    facts = describe_files(paths, format, cache)

    def tell(console: Any) -> None:
        lines = [
            f"{facts['name']}: {facts['format']}, {facts['samples']:,} samples in "
            f"{counted(facts['files'], 'file')}"
        ]
        lines.append(
            f"{facts['bytes']:,} bytes, {facts['bytes'] / max(facts['samples'], 1):,.0f} a sample"
        )
        if groups := facts["row_groups"]:
            lines.append(
                f"row groups of {groups['rows']:,} rows, {groups['bytes'] / 2**20:,.1f} MiB decoded"
            )
        lines.append(f"checksums: {facts['checksums']}")
        if tokens := facts["tokens"]:
            lines.append(
                f"tokens: {tokens['total']:,}, {tokens['mean']:,.1f} a sample, at most "
                f"{tokens['most']:,}"
            )
        lines += [
            "columns:" if facts["columns"] else "no columns",
            *(f"  {name}: {column_type}" for name, column_type in facts["columns"].items()),
        ]
        for line in lines:
            print_text(console, line)

    print_result(facts, tell, as_json)


@handle_errors
def preview(
    paths: PathsArgument,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="Number of samples.")] = 3,
    at: Annotated[int, typer.Option(min=0, help="Index of the first sample.")] = 0,
    format: Format = None,
    cache: CacheOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print some samples, shortened to the width of the terminal.

    Arrays appear as type and shape, media as kind and size.
    """
    from penstock.report.values import convert_to_json, format_sample

    dataset = ps.read(list(paths), format=format, cache=cache)
    if at >= len(dataset):
        raise ps.ConfigError(
            f"--at {at}: the data has {len(dataset):,} samples; give a smaller index"
        )
    indices = range(at, min(at + count, len(dataset)))
    samples = dataset[list(indices)]
    width = shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns

    def tell(console: Any) -> None:
        for index, sample in zip(indices, samples, strict=True):
            console.print(f"sample {index:,} of {len(dataset):,}", style="bold", markup=False)
            for line in format_sample(sample, width):
                console.print(line, markup=False, soft_wrap=True)

    print_result(
        {
            "samples": [
                {"index": i, "sample": convert_to_json(s)}
                for i, s in zip(indices, samples, strict=True)
            ]
        },
        tell,
        as_json,
    )
