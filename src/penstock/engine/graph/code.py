"""Digests of functions, from as much of their code as can be read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

from ..base.seams import world

_MANY = 1_000  # entries of a constant or an attribute up to which all of them are looked at


def code_digest(fn: Any) -> str:
    """A digest of what a function does, as far as it can be read, and the version of Python it is
    of.

    >>> code_digest(lambda x: x + 1) == code_digest(lambda x: x + 1), code_digest(len).startswith("3.")
    (True, True)
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    parts = _code(fn, 8)
    return f"{version}:{world.digests.digest_memory(parts) if parts else ''}"


def _code(fn: Any, depth: int) -> list[Any]:
    """Return the parts that identify a function: bytecode, constants, names, defaults, closure."""
    if depth == 0:
        return []
    if isinstance(fn, partial):
        made = cast("partial[Any]", fn)
        return [
            _code(made.func, depth - 1),
            _simple(made.args, depth),
            _simple(made.keywords, depth),
        ]
    fn = getattr(fn, "__func__", fn)
    code = getattr(fn, "__code__", None)
    if isinstance(code, CodeType):
        return [
            _bytes(code),
            *(_simple(part, depth) for part in (_cells(fn), fn.__defaults__, fn.__kwdefaults__)),
        ]
    call: Any = getattr(cast(Any, type(fn)), "__call__", None)  # noqa: B004 - it is its code that is asked for
    own: dict[str, Any] = {} if isinstance(fn, type) else getattr(fn, "__dict__", {})
    public = {
        name: value for name, value in own.items() if not name.startswith("_")
    }  # others may be caches
    return [_code(call, depth - 1), _simple(public, depth)] if hasattr(call, "__code__") else []


def _cells(fn: Any) -> list[Any]:
    """What a function closes over, as far as it is there already."""
    found = list[Any]()
    for cell in fn.__closure__ or ():
        with suppress(ValueError):
            found.append(cell.cell_contents)
    return found


def _bytes(code: CodeType) -> list[Any]:
    consts = [
        _bytes(const) if isinstance(const, CodeType) else _simple(const, 4)
        for const in code.co_consts
    ]
    return [code.co_code, list(code.co_names), consts]


def _simple(thing: Any, depth: int) -> Any:
    """A value as far as it is made of numbers, texts and functions; of large ones the length."""
    if isinstance(thing, bool | int | float | str | bytes | None):
        return thing
    if isinstance(thing, list | tuple | dict | set | frozenset):
        many = cast("Sequence[Any]", thing)
        if depth <= 0 or len(many) > _MANY:
            return [type(cast(object, thing)).__name__, len(many)]
        if isinstance(thing, dict):
            pairs = cast("dict[Any, Any]", thing).items()
            return [[str(name), _simple(each, depth - 1)] for name, each in pairs]
        each = [_simple(one, depth - 1) for one in many]
        return sorted(each, key=repr) if isinstance(thing, set | frozenset) else each
    return (
        _code(cast(Any, thing), depth - 1)
        if isinstance(thing, FunctionType | MethodType | partial)
        else None
    )
