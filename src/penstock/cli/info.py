"""Command `penstock info`: facts about data files."""

from __future__ import annotations

from typing import Any

from .common import JsonOption, handle_errors, print_result, print_text
from .verify import CacheOption, Format, PathsArgument


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
