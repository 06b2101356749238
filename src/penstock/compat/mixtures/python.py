"""Mixtures in Python files: Marin, torchtitan, `datasets.interleave_datasets`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from ...errors import ConfigError
from ...mixture_files import MixtureFile
from ...mixture_files.reading import MixtureNode
from ...stores.limits import MIXTURE_FILE, read_within
from . import marin, titan
from .account import Account, nothing
from .arithmetic import Call, Unknown
from .literals import Module

_READERS = {**marin.READERS, **titan.READERS}
"""Name of a call that makes a mixture -> its converter."""


def read(path: Path) -> MixtureNode:
    """Return the text of a file, with its name."""
    try:
        return MixtureNode(read_within(str(path), MIXTURE_FILE).decode(), str(path), 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error


def is_mine(tree: MixtureNode) -> bool:
    text = tree.value if isinstance(tree.value, str) and tree.file.endswith(".py") else ""
    return any(f"{name}(" in text for name in _READERS)


def convert(tree: MixtureNode, account: Account, pick: str | None = None) -> MixtureFile:
    """Convert the mixture that a name of the file holds."""
    module = Module(Path(tree.file))
    mixtures = dict(_mixtures(module))
    if not mixtures:
        raise nothing(Path(tree.file), "Python")
    if pick is None and len(mixtures) > 1:
        named = ", ".join(sorted(mixtures))
        raise ConfigError(
            f"{tree.file}: there are {len(mixtures)} mixtures: choose one with pick=: {named}"
        )
    name = pick or next(iter(mixtures))
    if name not in mixtures:
        raise ConfigError(
            f"{tree.file}: unknown mixture {name!r}; the mixtures are {', '.join(sorted(mixtures))}"
        )
    calls = list(_calls(list(module.names().values())))
    return _READERS[_last(mixtures[name])](mixtures[name], account, calls)


def _last(call: Call) -> str:
    return call.name.rsplit(".", 1)[-1]


def _mixtures(module: Module) -> Iterator[tuple[str, Call]]:
    """Yield names and their mixtures, each mixture once.

    This includes entries of dictionaries, and results of functions.
    """
    seen = set[int]()
    for name, value in (*module.names().items(), *module.call_results()):
        inside: dict[Any, Any] = cast("dict[Any, Any]", value) if isinstance(value, dict) else {}
        entries: list[tuple[str, Any]] = [(name, value)]
        entries += [(f"{name}.{key}", item) for key, item in inside.items() if isinstance(key, str)]
        for entry_name, item in entries:
            call = next(_calls([item]), None) if isinstance(item, Call) else None
            if call is not None and _last(call) not in _READERS:  # such as a pack around a mix
                call = next((inner for inner in _calls([item]) if _last(inner) in _READERS), None)
            if call is not None and call.file == str(module.path) and id(call) not in seen:
                seen.add(id(call))
                yield entry_name, call


def _calls(values: list[Any]) -> Iterator[Call]:
    """Yield every call among values, outer calls first."""
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
