"""Differences of the settings of two mixture files, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from penstock.engine.base.urls import redact_urls
from penstock.mixture_files.model import MixtureFile
from penstock.mixture_files.write import tree_of

_MAX_VALUE = 60  # characters
_MAX_NAMES = 10

Tree = Mapping[str, Any]


def changes(one: MixtureFile, two: MixtureFile) -> list[str]:
    """Return one line per changed setting; sources are matched by name.

    >>> from penstock.mixture_files import SourceEntry
    >>> before = MixtureFile((SourceEntry("a", weight=1), SourceEntry("b", weight=2)), seed=1)
    >>> changes(before, MixtureFile((SourceEntry("a", weight=3),), seed=1))
    ['gone: b', 'a: weight 1 -> 3']
    """
    return list(_mixture_changes(tree_of(one, Path("/")), tree_of(two, Path("/")), ""))


def _mixture_changes(old_tree: Tree, new_tree: Tree, prefix: str) -> Iterator[str]:
    old_sources, new_sources = old_tree["sources"], new_tree["sources"]
    for label, names in (
        ("new", [n for n in new_sources if n not in old_sources]),
        ("gone", [n for n in old_sources if n not in new_sources]),
    ):
        if names:
            more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
            yield f"{label}: {', '.join(prefix + name for name in names[:_MAX_NAMES])}{more}"
    settings = [
        {name: value for name, value in tree.items() if name != "sources"}
        for tree in (old_tree, new_tree)
    ]
    yield from _setting_changes(settings[0], settings[1], f"{prefix[:-1]}: " if prefix else "")
    for name in (name for name in old_sources if name in new_sources):
        old, new = (dict(tree[name]) for tree in (old_sources, new_sources))
        if "mixture" in old and "mixture" in new:
            yield from _mixture_changes(old.pop("mixture"), new.pop("mixture"), f"{prefix}{name}/")
        yield from _setting_changes(old, new, f"{prefix}{name}: ")


def _setting_changes(old_tree: Tree, new_tree: Tree, prefix: str) -> Iterator[str]:
    for name in dict.fromkeys((*old_tree, *new_tree)):
        old, new = old_tree.get(name), new_tree.get(name)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _setting_changes(cast(Tree, old), cast(Tree, new), f"{prefix}{name} ")
        elif isinstance(old, list) and isinstance(new, list) and name == "stages":
            yield from _setting_changes(_numbered(old), _numbered(new), f"{prefix}stage ")
        else:
            yield f"{prefix}{name} {_value_text(old)} -> {_value_text(new)}"


def _numbered(stages: Any) -> Tree:
    return {str(number): stage for number, stage in enumerate(stages, 1)}


def _value_text(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        text = ", ".join(f"{name} {_value_text(one)}" for name, one in cast(Tree, value).items())
    else:
        text = (
            f"{value:,}"
            if isinstance(value, int) and not isinstance(value, bool)
            else redact_urls(str(value))
        )
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 3]}..."
