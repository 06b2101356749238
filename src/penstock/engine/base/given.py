"""What was given for an argument, by the type that the function names for it: said before it fails
deep inside."""

from __future__ import annotations

from collections.abc import Callable, KeysView, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from ...errors import ConfigError

_WIDE = 1 << 1000  # whole numbers beyond have no float
_NOWHERE = 1 << 30  # the place of what is given by name alone


@dataclass(frozen=True)
class Kind:
    """Which values an annotation means, and how a user would say it."""

    words: str
    fits: Callable[[Any], bool]


def _several(value: object) -> bool:
    return isinstance(
        value, Sequence | Mapping | KeysView
    )  # a set has another order in every process


def _text(value: Any) -> bool:
    return isinstance(value, str) and not any(
        "\ud800" <= letter <= "\udfff" for letter in value
    )  # half a letter


def _names(value: Any) -> bool:
    # One name alone has an error of its own, which says how to write it.
    return _several(value) and all(map(_text, value))


def _number(value: Any) -> bool:
    return abs(value) <= _WIDE if isinstance(value, int) else isinstance(value, Real)


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
"""The annotations that are looked at, as they are written; what has better words of its own is not
among them."""

Looked = tuple[str, int, bool, Kind]
"""An argument, its place, whether None will do, and what else will."""


def looked_at(fn: Any) -> list[Looked]:
    """The arguments of a function that are looked at. Annotations are read as text: none is
    evaluated at an import."""
    code, found = fn.__code__, list[Looked]()
    for place, name in enumerate(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]):
        hint = str(fn.__annotations__.get(name, ""))
        bare = hint.removesuffix(" | None")
        if kind := _KINDS.get(hint) or _KINDS.get(bare):
            found.append(
                (name, place if place < code.co_argcount else _NOWHERE, bare != hint, kind)
            )
    return found


def check_given(
    step: str, looked: Sequence[Looked], args: tuple[Any, ...], given: Mapping[str, Any]
) -> None:
    """Refuse the first argument that is nothing that it can be.

    >>> def read(paths, columns: Sequence[str] | None = None): ...
    >>> check_given("read", looked_at(read), ("a.jsonl",), {"columns": 5})
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
