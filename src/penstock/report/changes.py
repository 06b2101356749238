"""What two mixture files say differently, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from penstock.engine.base.urls import redacted
from penstock.mixture_files.model import MixtureFile
from penstock.mixture_files.write import tree_of

_SHORT = 60  # characters of a value
_FEW = 10  # names

Tree = Mapping[str, Any]


def changes(one: MixtureFile, two: MixtureFile) -> list[str]:
    """A line for every setting that is not the same, sources that came or went by name.

    >>> from penstock.mixture_files import SourceEntry
    >>> before = MixtureFile((SourceEntry("a", weight=1), SourceEntry("b", weight=2)), seed=1)
    >>> changes(before, MixtureFile((SourceEntry("a", weight=3),), seed=1))
    ['gone: b', 'a: weight 1 -> 3']
    """
    return list(_mixtures(tree_of(one, Path("/")), tree_of(two, Path("/")), ""))


def _mixtures(one: Tree, two: Tree, above: str) -> Iterator[str]:
    here, there = one["sources"], two["sources"]
    for word, some in (
        ("new", [n for n in there if n not in here]),
        ("gone", [n for n in here if n not in there]),
    ):
        if some:
            more = f" and {len(some) - _FEW} more" if len(some) > _FEW else ""
            yield f"{word}: {', '.join(above + name for name in some[:_FEW])}{more}"
    settings = [
        {name: value for name, value in tree.items() if name != "sources"} for tree in (one, two)
    ]
    yield from _settings(settings[0], settings[1], f"{above[:-1]}: " if above else "")
    for name in (name for name in here if name in there):
        a, b = (dict(tree[name]) for tree in (here, there))
        if "mixture" in a and "mixture" in b:
            yield from _mixtures(a.pop("mixture"), b.pop("mixture"), f"{above}{name}/")
        yield from _settings(a, b, f"{above}{name}: ")


def _settings(one: Tree, two: Tree, where: str) -> Iterator[str]:
    for name in dict.fromkeys((*one, *two)):
        a, b = one.get(name), two.get(name)
        if a == b:
            continue
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            yield from _settings(cast(Tree, a), cast(Tree, b), f"{where}{name} ")
        elif isinstance(a, list) and isinstance(b, list) and name == "stages":
            yield from _settings(_numbered(a), _numbered(b), f"{where}stage ")
        else:
            yield f"{where}{name} {_said(a)} -> {_said(b)}"


def _numbered(stages: Any) -> Tree:
    return {str(number): stage for number, stage in enumerate(stages, 1)}


def _said(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        text = ", ".join(f"{name} {_said(one)}" for name, one in cast(Tree, value).items())
    else:
        text = (
            f"{value:,}"
            if isinstance(value, int) and not isinstance(value, bool)
            else redacted(str(value))
        )
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 3]}..."
