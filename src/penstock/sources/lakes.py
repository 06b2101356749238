"""Tables of files (Delta, Iceberg, Hudi), whose folders keep files that are no longer part of the
table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ..errors import ConfigError, DataError
from . import meta
from .metadata import log_unchecked

_DELTA = "_delta_log"


def require_current(given: str, files: Sequence[Path], above: int) -> None:
    """Raise `ConfigError` for files that the log of a Delta table has removed, or of which it
    deleted rows.

    Iceberg and Hudi tables, whose own formats tell which files are current, and a Delta log without
    its beginning are named in a warning. The folders from a file up to the first `above` pieces of
    its path are looked at.
    """
    tables = dict[Path, Path | None]()
    by_table = dict[Path, list[Path]]()
    for path in files:
        if (
            path.suffix == ".parquet"
            and (table := _table_of(path.parent, above, tables)) is not None
        ):
            by_table.setdefault(table, []).append(path)
    for table, inside in by_table.items():
        if not (table / _DELTA).is_dir():
            log_unchecked(given, str(table), "an Iceberg or Hudi table")
            continue
        current, removed, is_whole = _replayed(table / _DELTA)
        if not is_whole:
            log_unchecked(given, str(table), "a Delta table whose log was cut to a checkpoint")
        names = {path: path.relative_to(table).as_posix() for path in inside}
        stale = [
            name for name in names.values() if name in removed or (is_whole and name not in current)
        ]
        if stale := stale or [name for name in names.values() if current.get(name)]:
            raise ConfigError(
                f"{given!r}: {str(table)!r} is a Delta table, and by its log {len(stale)} of these "
                "files were removed, "
                f"never added, or had rows deleted: {', '.join(sorted(stale)[:3])}; name the files "
                "of the version to "
                "read, as `DeltaTable(path).file_uris()` lists them"
            )


def _table_of(folder: Path, above: int, known: dict[Path, Path | None]) -> Path | None:
    """The folder of the table that a folder belongs to."""
    if folder not in known:
        inside = len(folder.parts) > above or "=" in folder.name or folder.name == "data"
        is_table = (
            (folder / _DELTA).is_dir() or (folder / ".hoodie").is_dir() or _is_iceberg(folder)
        )
        above_it = (
            _table_of(folder.parent, above, known) if inside and folder != folder.parent else None
        )
        known[folder] = folder if is_table else above_it
    return known[folder]


def _is_iceberg(folder: Path) -> bool:
    inside = folder / "metadata"
    return inside.is_dir() and next(inside.glob("*.metadata.json"), None) is not None


def _replayed(log: Path) -> tuple[dict[str, bool], set[str], bool]:
    """The files of the latest version, and of each whether rows of it were deleted; removed files;
    if all is known."""
    current, removed = dict[str, bool](), set[str]()
    versions = sorted(path for path in log.glob("*.json") if path.stem.isdigit())
    for path in versions:
        for action in _actions(path):
            if added := action.get("add"):
                name = unquote(str(added["path"]))
                current[name] = bool(added.get("deletionVector"))
                removed.discard(name)
            if gone := action.get("remove"):
                name = unquote(str(gone["path"]))
                current.pop(name, None)
                removed.add(name)
    return (
        current,
        removed,
        [int(path.stem) for path in versions] == list(range(max(len(versions), 1))),
    )


def _actions(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(meta.read_bytes(path).splitlines(), 1):
        try:
            action = json.loads(line or b"{}")
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"it is no log of a Delta table: {error}", where=f"{path}:{number}"
            ) from error
        if isinstance(action, dict):
            yield action
