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
class Kind:
    """Values that an annotation accepts, and a description of them for errors."""

    words: str
    fits: Callable[[Any], bool]


def _is_ordered(value: object) -> bool:
    # The order of a set differs between processes.
    return isinstance(value, Sequence | Mapping | KeysView)


def _text(value: Any) -> bool:
    # Unpaired surrogates have no encoding.
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)


def _names(value: Any) -> bool:
    # A single name has its own error, which shows how to write it.
    return _is_ordered(value) and all(map(_text, value))


def _number(value: Any) -> bool:
    return abs(value) <= _MAX_FLOAT_INT if isinstance(value, int) else isinstance(value, Real)


_KINDS = {
    "bool": Kind("True or False", lambda value: isinstance(value, bool | np.bool_)),
    "str": Kind("a string", _text),
    "float": Kind("a number", _number),
    "str | Path": Kind(
        "a path", lambda value: isinstance(value, str) or hasattr(value, "__fspath__")
    ),
    "Sequence[str]": Kind("a list of names", _names),
    "Mapping[str, Any]": Kind("a dict by name", lambda value: isinstance(value, Mapping)),
    "Mapping[str, int] | None": Kind(
        "a dict of numbers by name", lambda value: isinstance(value, Mapping)
    ),
    "str | Counts": Kind(
        "a column, or a function of a file", lambda value: _text(value) or callable(value)
    ),
    "FormatName | str | Callable[[Path], Any]": Kind(
        "a name, or a function", lambda value: _text(value) or callable(value)
    ),
    "Long": Kind("a string", _text),
    "Callable[[Any, str, int, int], Any]": Kind("a function", callable),
}
"""Checks by annotation, as written in the source; annotations with better errors are missing."""

CheckedArgument = tuple[str, int, bool, Kind]
"""A checked argument: name, position, whether None is valid, and its kind."""


def checked_arguments(fn: Any) -> list[CheckedArgument]:
    """Return the arguments of a function that have a check.

    Annotations are read as text, so none is evaluated at import.
    """
    code, checked = fn.__code__, list[CheckedArgument]()
    for place, name in enumerate(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]):
        hint = str(fn.__annotations__.get(name, ""))
        bare = hint.removesuffix(" | None")
        if kind := _KINDS.get(hint) or _KINDS.get(bare):
            position = place if place < code.co_argcount else _KEYWORD_ONLY
            checked.append((name, position, bare != hint, kind))
    return checked


def check_arguments(
    step: str, looked: Sequence[CheckedArgument], args: tuple[Any, ...], given: Mapping[str, Any]
) -> None:
    """Raise `ConfigError` for the first argument with an invalid value.

    >>> def read(paths, columns: Sequence[str] | None = None): ...
    >>> check_arguments("read", checked_arguments(read), ("a.jsonl",), {"columns": 5})
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
