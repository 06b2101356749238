"""Argument checks by annotation, so that a wrong argument fails early and by name."""

from __future__ import annotations

from collections.abc import Callable, KeysView, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from ...errors import ConfigError

_MAX_FLOAT_INT = 1 << 1000  # larger integers have no float
_KEYWORD_ONLY = 1 << 30  # the position of keyword-only arguments


@dataclass(frozen=True)
class ArgumentKind:
    """Values that an annotation accepts, and a description of them for errors."""

    words: str
    fits: Callable[[Any], bool]


def _is_ordered(value: object) -> bool:
    # The order of a set differs between processes.
    return isinstance(value, Sequence | Mapping | KeysView)


def _is_text(value: Any) -> bool:
    # Unpaired surrogates have no encoding.
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)


def _is_list_of_names(value: Any) -> bool:
    # A single name has its own error, which shows how to write it.
    return _is_ordered(value) and all(map(_is_text, value))


def _is_number(value: Any) -> bool:
    return abs(value) <= _MAX_FLOAT_INT if isinstance(value, int) else isinstance(value, Real)


_KIND_BY_ANNOTATION = {
    "bool": ArgumentKind("True or False", lambda value: isinstance(value, bool | np.bool_)),
    "str": ArgumentKind("a string", _is_text),
    "float": ArgumentKind("a number", _is_number),
    "str | Path": ArgumentKind(
        "a path", lambda value: isinstance(value, str) or hasattr(value, "__fspath__")
    ),
    "Sequence[str]": ArgumentKind("a list of names", _is_list_of_names),
    "Mapping[str, Any]": ArgumentKind("a dict by name", lambda value: isinstance(value, Mapping)),
    "Mapping[str, int] | None": ArgumentKind(
        "a dict of numbers by name", lambda value: isinstance(value, Mapping)
    ),
    "str | TokenCounter": ArgumentKind(
        "a column, or a function of a file", lambda value: _is_text(value) or callable(value)
    ),
    "FormatName | str | Callable[[Path], Any]": ArgumentKind(
        "a name, or a function", lambda value: _is_text(value) or callable(value)
    ),
    "Long": ArgumentKind("a string", _is_text),
    "Callable[[Any, str, int, int], Any]": ArgumentKind("a function", callable),
}
"""Checks by annotation, as written in the source; annotations with better errors are missing."""

CheckedArgument = tuple[str, int, bool, ArgumentKind]
"""A checked argument: name, position, whether None is valid, and its kind."""


def find_checked_arguments(fn: Any) -> list[CheckedArgument]:
    """Return the arguments of a function that have a check.

    Annotations are read as text, so none is evaluated at import.
    """
    code, checked = fn.__code__, list[CheckedArgument]()
    for place, name in enumerate(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]):
        hint = str(fn.__annotations__.get(name, ""))
        bare = hint.removesuffix(" | None")
        if kind := _KIND_BY_ANNOTATION.get(hint) or _KIND_BY_ANNOTATION.get(bare):
            position = place if place < code.co_argcount else _KEYWORD_ONLY
            checked.append((name, position, bare != hint, kind))
    return checked


def check_arguments(
    step: str, looked: Sequence[CheckedArgument], args: tuple[Any, ...], given: Mapping[str, Any]
) -> None:
    """Raise `ConfigError` for the first argument with an invalid value.

    >>> def read(paths, columns: Sequence[str] | None = None): ...
    >>> check_arguments("read", find_checked_arguments(read), ("a.jsonl",), {"columns": 5})
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: read(columns=5): give a list of names, or None
    """
    for name, place, optional, kind in looked:
        if name in given:
            value = given[name]
        elif place < len(args):
            value = args[place]
        else:
            continue
        if not (kind.fits(value) or (optional and value is None)):
            also = ", or None" if optional else ""
            raise ConfigError(f"{step}({name}={value!r}): give {kind.words}{also}")
