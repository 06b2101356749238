"""Formats that other packages bring: entry points of the group `penstock.formats`, each of two
methods.

Only what is installed counts: an entry point that lies in the working folder, or beside data, is
    not looked for. The
name of a format is also the ending of its files and folders, so nothing is imported before a format
is needed.
"""

from __future__ import annotations

import site
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..engine.base.contract import fulfilled
from ..errors import ConfigError
from ..types import Format
from .paths import FORMATS, KINDS

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "penstock.formats"


class Brought(NamedTuple):
    """A format of another package, and its name."""

    name: str
    format: Format

    def files(self, folder: Path) -> list[Path]:
        """The data files of a folder: those that the format names, else those that end in its
        name."""
        found = list(self.format.files(folder))
        return found or sorted(path for path in folder.glob(f"*.{self.name}") if path.is_file())


def outside(paths: Sequence[str | Path], format: str | None) -> Brought | None:
    """The format of another package that is asked for, by its name or the ending of all paths.

    >>> outside(["a.parquet"], None) is None, outside(["data"], "jsonl") is None
    (True, True)
    """
    endings = {Path(path).suffix.lower() for path in paths}
    name = format or (endings.pop().removeprefix(".") if len(endings) == 1 else "")
    if not name or name in (*KINDS, "energon") or (format is None and f".{name}" in FORMATS):
        return None
    found = _installed(name)
    if len(found) > 1:
        raise ConfigError(
            f"several packages bring the format {name!r}: {', '.join(found)}; uninstall all but one"
        )
    return next((Brought(name, _loaded(entry)) for entry in found.values()), None)


def _installed(name: str) -> dict[str, EntryPoint]:
    """The entry points of this name, by the package that brings them."""
    from importlib.metadata import distributions

    places = {*site.getsitepackages(), site.getusersitepackages()}
    return {
        f"{package.name} ({entry.value})": entry
        for package in distributions(path=[place for place in sys.path if place in places])
        for entry in package.entry_points.select(group=GROUP, name=name)
    }


def _loaded(entry: EntryPoint) -> Format:
    where = f"the format {entry.name!r} ({entry.value})"
    try:
        loaded = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{where} cannot be loaded: {error}") from error
    return fulfilled(loaded, Format, where)
