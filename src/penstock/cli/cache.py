"""Commands `penstock cache`: the local block cache for data in object stores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .common import JsonOption, handle_errors, parse_local_path, print_result, print_text

if TYPE_CHECKING:
    from penstock.stores.blocks import BlockCache

cache = typer.Typer(
    no_args_is_help=True, help="Inspect, clear or verify the cache of data from object stores."
)

CacheFolderArgument = Annotated[
    Path | None,
    typer.Argument(
        parser=parse_local_path,
        metavar="PATH",
        help="Cache folder; default: PENSTOCK_CACHE, or ~/.cache/penstock.",
    ),
]


def _open_block_cache(folder: Path | None) -> BlockCache:
    from penstock.stores import get_default_cache
    from penstock.stores.blocks import BlockCache

    return BlockCache(get_default_cache() if folder is None else folder)


@cache.command()
@handle_errors
def info(folder: CacheFolderArgument = None, as_json: JsonOption = False) -> None:
    """Print the size of the cache and its limit."""
    blocks = _open_block_cache(folder)
    cached = list(blocks.all())
    size = sum(block.size for block in cached)
    result = {
        "folder": str(blocks.folder),
        "blocks": len(cached),
        "bytes": size,
        "limit": blocks.limit(size),
    }
    print_result(result, lambda console: _print_usage(console, result), as_json)


@cache.command()
@handle_errors
def clear(folder: CacheFolderArgument = None, as_json: JsonOption = False) -> None:
    """Delete all cached blocks.

    Runs that use the cache continue and fetch the blocks again.
    """
    blocks = _open_block_cache(folder)
    result = {"folder": str(blocks.folder), "freed": blocks.clear()}
    print_result(
        result,
        lambda console: print_text(console, f"{result['folder']}: {result['freed']:,} bytes freed"),
        as_json,
    )


@cache.command()
@handle_errors
def verify(folder: CacheFolderArgument = None, as_json: JsonOption = False) -> None:
    """Check every block against its checksums and delete damaged ones.

    Exit code 1 if a block was damaged.
    """
    from penstock.engine.base.shown import counted

    blocks = _open_block_cache(folder)
    block_count, damaged = blocks.verify()
    result = {
        "folder": str(blocks.folder),
        "blocks": block_count,
        "damaged": [str(path) for path in damaged],
    }

    def tell(console: Any) -> None:
        print_text(
            console,
            f"{blocks.folder}: {counted(block_count, 'block')}, {len(damaged):,} of them damaged",
        )
        for path in damaged:
            print_text(console, f"removed {path}")

    print_result(result, tell, as_json)
    raise typer.Exit(1 if damaged else 0)


def _print_usage(console: Any, result: dict[str, Any]) -> None:
    from penstock.engine.base.shown import counted

    usage = (
        f"{counted(result['blocks'], 'block')}, {result['bytes']:,} of {result['limit']:,} bytes"
    )
    print_text(console, f"{result['folder']}: {usage}")
