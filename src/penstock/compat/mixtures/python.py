"""Mixtures in Python files: Marin's experiments, torchtitan's dataset configs,
`datasets.interleave_datasets`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from ...engine.base import seams
from ...engine.base.limits import MIXTURE_FILE
from ...errors import ConfigError
from ...mixture_files import MixtureFile
from ...mixture_files.reading import Node
from . import marin, titan
from .account import Account, nothing
from .arithmetic import Call, Unknown
from .literals import Module

_READERS = {**marin.READERS, **titan.READERS}
"""The call that makes a mixture -> what reads it."""


def read(path: Path) -> Node:
    """The text of a file, with its name."""
    try:
        return Node(seams.read_within(str(path), MIXTURE_FILE).decode(), str(path), 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def is_mine(tree: Node) -> bool:
    text = tree.value if isinstance(tree.value, str) and tree.file.endswith(".py") else ""
    return any(f"{name}(" in text for name in _READERS)


def convert(tree: Node, account: Account, pick: str | None = None) -> MixtureFile:
    """The mixture that a name of the file stands for."""
    module = Module(Path(tree.file))
    found = dict(_mixtures(module))
    if not found:
        raise nothing(Path(tree.file), "Python")
    if pick is None and len(found) > 1:
        named = ", ".join(sorted(found))
        raise ConfigError(
            f"{tree.file}: there are {len(found)} mixtures; say which: pick= one of {named}"
        )
    name = pick or next(iter(found))
    if name not in found:
        raise ConfigError(
            f"{tree.file}: there is no mixture {name!r}, but {', '.join(sorted(found))}"
        )
    calls = list(_calls(list(module.names().values())))
    return _READERS[_last(found[name])](found[name], account, calls)


def _last(call: Call) -> str:
    return call.name.rsplit(".", 1)[-1]


def _mixtures(module: Module) -> Iterator[tuple[str, Call]]:
    """Names and what they stand for, each mixture once; also entries of dictionaries, and what
    functions give."""
    seen = set[int]()
    for name, value in (*module.names().items(), *module.called()):
        inside: dict[Any, Any] = cast("dict[Any, Any]", value) if isinstance(value, dict) else {}
        entries: list[tuple[str, Any]] = [(name, value)]
        entries += [(f"{name}.{key}", one) for key, one in inside.items() if isinstance(key, str)]
        for called, one in entries:
            call = next(_calls([one]), None) if isinstance(one, Call) else None
            if call is not None and _last(call) not in _READERS:  # a pack around a mix, say
                call = next((inner for inner in _calls([one]) if _last(inner) in _READERS), None)
            if call is not None and call.file == str(module.path) and id(call) not in seen:
                seen.add(id(call))
                yield called, call


def _calls(values: list[Any]) -> Iterator[Call]:
    """Every call among values, and inside of them, outer ones first."""
    waiting, seen = list(reversed(values)), set[int]()
    while waiting:
        value = waiting.pop()
        if isinstance(value, Unknown | ast.AST) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Call):
            yield value
            waiting += [*value.args, *value.options.values()]
        elif isinstance(value, dict):
            waiting += cast("dict[Any, Any]", value).values()
        elif isinstance(value, list):
            waiting += cast("list[Any]", value)
