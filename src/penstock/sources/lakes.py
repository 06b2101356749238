"""Tables of files (Delta, Iceberg, Hudi), whose folders may contain outdated files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ..errors import ConfigError, DataError
from . import meta
from .metadata import log_unchecked

_DELTA_LOG_FOLDER = "_delta_log"


def require_current(given: str, files: Sequence[Path], above: int) -> None:
    """Raise `ConfigError` for outdated files of a Delta table.

    Outdated are files that the log of the table removed, or whose rows it deleted. Iceberg and Hudi
    tables, whose formats list the current files, cause a warning, and so does a Delta log without its
    beginning.

    Args:
        given: Pattern that the user gave, for messages.
        files: Files to check.
        above: Number of leading path components that are not examined.
    """
    tables = dict[Path, Path | None]()
    by_table = dict[Path, list[Path]]()
    for path in files:
        if (
            path.suffix == ".parquet"
            and (table := _find_table_folder(path.parent, above, tables)) is not None
        ):
            by_table.setdefault(table, []).append(path)
    for table, paths in by_table.items():
        if not (table / _DELTA_LOG_FOLDER).is_dir():
            log_unchecked(given, str(table), "an Iceberg or Hudi table")
            continue
        current, removed, is_whole = _replay_delta_log(table / _DELTA_LOG_FOLDER)
        if not is_whole:
            log_unchecked(given, str(table), "a Delta table whose log was cut to a checkpoint")
        names = {path: path.relative_to(table).as_posix() for path in paths}
        stale = [
            name for name in names.values() if name in removed or (is_whole and name not in current)
        ]
        if stale := stale or [name for name in names.values() if current.get(name)]:
            raise ConfigError(
                f"{given!r}: {str(table)!r} is a Delta table, and by its log {len(stale)} of these "
                f"files were removed, never added, or had rows deleted: "
                f"{', '.join(sorted(stale)[:3])}; name the files of the version to read, as "
                "`DeltaTable(path).file_uris()` lists them"
            )


def _find_table_folder(folder: Path, above: int, tables: dict[Path, Path | None]) -> Path | None:
    """Return the folder of the table that a folder belongs to."""
    if folder not in tables:
        is_examined = len(folder.parts) > above or "=" in folder.name or folder.name == "data"
        is_table = (
            (folder / _DELTA_LOG_FOLDER).is_dir()
            or (folder / ".hoodie").is_dir()
            or _is_iceberg(folder)
        )
        parent_table = (
            _find_table_folder(folder.parent, above, tables)
            if is_examined and folder != folder.parent
            else None
        )
        tables[folder] = folder if is_table else parent_table
    return tables[folder]


def _is_iceberg(folder: Path) -> bool:
    metadata = folder / "metadata"
    return metadata.is_dir() and next(metadata.glob("*.metadata.json"), None) is not None


def _replay_delta_log(log: Path) -> tuple[dict[str, bool], set[str], bool]:
    """Replay a Delta log.

    Returns:
        The files of the latest version, each with whether rows of it were deleted; the removed files;
        whether the log is complete.
    """
    current, removed = dict[str, bool](), set[str]()
    versions = sorted(path for path in log.glob("*.json") if path.stem.isdigit())
    for path in versions:
        for action in _read_log_actions(path):
            if addition := action.get("add"):
                name = unquote(str(addition["path"]))
                current[name] = bool(addition.get("deletionVector"))
                removed.discard(name)
            if removal := action.get("remove"):
                name = unquote(str(removal["path"]))
                current.pop(name, None)
                removed.add(name)
    return (
        current,
        removed,
        [int(path.stem) for path in versions] == list(range(max(len(versions), 1))),
    )


def _read_log_actions(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(meta.read_bytes(path).splitlines(), 1):
        try:
            action = json.loads(line or b"{}")
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"it is no log of a Delta table: {error}", where=f"{path}:{number}"
            ) from error
        if isinstance(action, dict):
            yield action
