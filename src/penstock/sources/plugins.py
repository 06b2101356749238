"""Formats of other packages: entry points of the group `penstock.formats`.

An entry point is an object with the two methods of `penstock.types.Format`. Penstock looks for
entry points in installed packages only, never in the working folder or beside the data. The name of
a format is also the extension of its files and folders, so Penstock imports a package only when its
format is needed.
"""

from __future__ import annotations

import site
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..arguments import require_protocol
from ..errors import ConfigError
from ..types import Format
from .paths import ALL_FORMATS, FORMATS

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "penstock.formats"


class PluginFormat(NamedTuple):
    """A format of another package, and its name."""

    name: str
    format: Format

    def files(self, folder: Path) -> list[Path]:
        """Return the data files of a folder: as the format lists them, else by extension."""
        listed = list(self.format.files(folder))
        return listed or sorted(path for path in folder.glob(f"*.{self.name}") if path.is_file())


def find_plugin_format(paths: Sequence[str | Path], format: str | None) -> PluginFormat | None:
    """Return the plug-in format with this name, or with the extension that all paths share.

    >>> find_plugin_format(["a.parquet"], None) is None, find_plugin_format(["data"], "jsonl") is None
    (True, True)
    """
    extensions = {Path(path).suffix.lower() for path in paths}
    name = format or (extensions.pop().removeprefix(".") if len(extensions) == 1 else "")
    if not name or name in (*ALL_FORMATS, "energon") or (format is None and f".{name}" in FORMATS):
        return None
    entries = _find_entry_points(name)
    if len(entries) > 1:
        raise ConfigError(
            f"several packages bring the format {name!r}: {', '.join(entries)}; uninstall all "
            "but one"
        )
    return next((PluginFormat(name, _load_entry_point(entry)) for entry in entries.values()), None)


def _find_entry_points(name: str) -> dict[str, EntryPoint]:
    """Return the entry points of this name, keyed by the package that declares them."""
    from importlib.metadata import distributions

    site_folders = {*site.getsitepackages(), site.getusersitepackages()}
    return {
        f"{package.name} ({entry.value})": entry
        for package in distributions(path=[folder for folder in sys.path if folder in site_folders])
        for entry in package.entry_points.select(group=ENTRY_POINT_GROUP, name=name)
    }


def _load_entry_point(entry: EntryPoint) -> Format:
    label = f"the format {entry.name!r} ({entry.value})"
    try:
        loaded = entry.load()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{label} cannot be loaded: {error}") from error
    return require_protocol(loaded, Format, label)
