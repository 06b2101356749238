"""`penstock cache`: what a node keeps of data that lies elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .say import Json, answer, guarded, here, say

if TYPE_CHECKING:
    from penstock.stores.blocks import Blocks

cache = typer.Typer(
    no_args_is_help=True, help="What this machine keeps of data that lies in stores."
)

Folder = Annotated[
    Path | None,
    typer.Argument(
        parser=here,
        metavar="PATH",
        help="The folder given as cache=; default: PENSTOCK_CACHE, or ~/.cache/penstock.",
    ),
]


def _blocks(folder: Path | None) -> Blocks:
    from penstock.stores import home
    from penstock.stores.blocks import Blocks

    return Blocks(home() if folder is None else folder)


@cache.command()
@guarded
def info(folder: Folder = None, as_json: Json = False) -> None:
    """Say how much is kept, and how much may be."""
    blocks = _blocks(folder)
    found = list(blocks.all())
    size = sum(block.size for block in found)
    told = {
        "folder": str(blocks.folder),
        "blocks": len(found),
        "bytes": size,
        "limit": blocks.limit(size),
    }
    answer(told, lambda console: _tell(console, told), as_json)


@cache.command()
@guarded
def clear(folder: Folder = None, as_json: Json = False) -> None:
    """Let go of all blocks. Runs that use them go on, and fetch what they need again."""
    blocks = _blocks(folder)
    told = {"folder": str(blocks.folder), "freed": blocks.clear()}
    answer(
        told,
        lambda console: say(console, f"{told['folder']}: {told['freed']:,} bytes freed"),
        as_json,
    )


@cache.command()
@guarded
def verify(folder: Folder = None, as_json: Json = False) -> None:
    """Compare every block with its checksums; damaged ones are removed, and exit with 1 where there
    were any."""
    from penstock.engine.graph.shown import counted

    blocks = _blocks(folder)
    many, bad = blocks.verify()
    told = {"folder": str(blocks.folder), "blocks": many, "damaged": [str(path) for path in bad]}

    def tell(console: Any) -> None:
        say(console, f"{blocks.folder}: {counted(many, 'block')}, {len(bad):,} of them damaged")
        for path in bad:
            say(console, f"removed {path}")

    answer(told, tell, as_json)
    raise typer.Exit(1 if bad else 0)


def _tell(console: Any, told: dict[str, Any]) -> None:
    from penstock.engine.graph.shown import counted

    kept = f"{counted(told['blocks'], 'block')}, {told['bytes']:,} of {told['limit']:,} bytes"
    say(console, f"{told['folder']}: {kept}")
