"""Differences of the settings of two mixture files, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from penstock.mixture_files.model import MixtureFile
from penstock.mixture_files.write import convert_model
from penstock.stores.urls import redact_urls

_MAX_VALUE_LENGTH = 60  # characters
_MAX_NAMES = 10

SettingsTree = Mapping[str, Any]


def list_changes(one: MixtureFile, two: MixtureFile) -> list[str]:
    """Return one line per changed setting; sources are matched by name.

    >>> from penstock.mixture_files import SourceEntry
    >>> before = MixtureFile((SourceEntry("a", weight=1), SourceEntry("b", weight=2)), seed=1)
    >>> list_changes(before, MixtureFile((SourceEntry("a", weight=3),), seed=1))
    ['gone: b', 'a: weight 1 -> 3']
    """
    return list(
        _iter_mixture_changes(convert_model(one, Path("/")), convert_model(two, Path("/")), "")
    )


def _iter_mixture_changes(
    old_tree: SettingsTree, new_tree: SettingsTree, prefix: str
) -> Iterator[str]:
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
    yield from _iter_setting_changes(settings[0], settings[1], f"{prefix[:-1]}: " if prefix else "")
    for name in (name for name in old_sources if name in new_sources):
        old, new = (dict(tree[name]) for tree in (old_sources, new_sources))
        if "mixture" in old and "mixture" in new:
            yield from _iter_mixture_changes(
                old.pop("mixture"), new.pop("mixture"), f"{prefix}{name}/"
            )
        yield from _iter_setting_changes(old, new, f"{prefix}{name}: ")


def _iter_setting_changes(
    old_tree: SettingsTree, new_tree: SettingsTree, prefix: str
) -> Iterator[str]:
    for name in dict.fromkeys((*old_tree, *new_tree)):
        old, new = old_tree.get(name), new_tree.get(name)
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _iter_setting_changes(
                cast(SettingsTree, old), cast(SettingsTree, new), f"{prefix}{name} "
            )
        elif isinstance(old, list) and isinstance(new, list) and name == "stages":
            yield from _iter_setting_changes(
                _number_stages(old), _number_stages(new), f"{prefix}stage "
            )
        else:
            yield f"{prefix}{name} {_format_value(old)} -> {_format_value(new)}"


def _number_stages(stages: Any) -> SettingsTree:
    return {str(number): stage for number, stage in enumerate(stages, 1)}


def _format_value(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        text = ", ".join(
            f"{name} {_format_value(one)}" for name, one in cast(SettingsTree, value).items()
        )
    else:
        text = (
            f"{value:,}"
            if isinstance(value, int) and not isinstance(value, bool)
            else redact_urls(str(value))
        )
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[: _MAX_VALUE_LENGTH - 3]}..."
