"""Submodules of another package's paths, made of the names of a compatibility package."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any


def install(
    package: str, aliases: Mapping[str, str], names: Mapping[str, Any], origin: str
) -> dict[str, ModuleType]:
    """Register the submodules of a package, and return them by name.

    Args:
        package: its name.
        aliases: submodule -> the names that it exports, separated by spaces.
        names: the values of the aliases, by name.
        origin: name of the other package, for the docstrings.

    Returns:
        Submodule -> the module.
    """
    for submodule, exported in aliases.items():
        name = f"{package}.{submodule}"
        module: Any = sys.modules.get(name) or ModuleType(
            name, f"The names that {origin} has in `{submodule}`."
        )
        if not hasattr(module, "__path__"):
            module.__path__ = []
        for alias in exported.split():
            setattr(module, alias, names[alias])
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if not hasattr(sys.modules[parent], last):
            setattr(sys.modules[parent], last, module)
    return {submodule: sys.modules[f"{package}.{submodule}"] for submodule in aliases}
