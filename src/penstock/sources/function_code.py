"""Descriptions of functions: bytecode, constants, names, defaults, closures and public attributes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

_MAX_ENTRIES = 1_000  # of a constant or an attribute; a larger one counts by its length


def describe_code(fn: Any, depth: int) -> list[Any]:
    """Return the parts that identify a function: bytecode, constants, names, defaults, closure."""
    if depth == 0:
        return []
    if isinstance(fn, partial):
        made = cast("partial[Any]", fn)
        return [
            describe_code(made.func, depth - 1),
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
    return (
        [describe_code(call, depth - 1), _simple(public, depth)]
        if hasattr(call, "__code__")
        else []
    )


def _cells(fn: Any) -> list[Any]:
    """Return the values in the closure of a function that exist already."""
    values = list[Any]()
    for cell in fn.__closure__ or ():
        with suppress(ValueError):
            values.append(cell.cell_contents)
    return values


def _bytes(code: CodeType) -> list[Any]:
    consts = [
        _bytes(const) if isinstance(const, CodeType) else _simple(const, 4)
        for const in code.co_consts
    ]
    return [code.co_code, list(code.co_names), consts]


def _simple(value: Any, depth: int) -> Any:
    """Return a value as far as it consists of numbers, texts and functions."""
    if isinstance(value, bool | int | float | str | bytes | None):
        return value
    if isinstance(value, list | tuple | dict | set | frozenset):
        entries = cast("Sequence[Any]", value)
        if depth <= 0 or len(entries) > _MAX_ENTRIES:
            return [type(cast(object, value)).__name__, len(entries)]
        if isinstance(value, dict):
            pairs = cast("dict[Any, Any]", value).items()
            return [[str(name), _simple(entry, depth - 1)] for name, entry in pairs]
        parts = [_simple(entry, depth - 1) for entry in entries]
        return sorted(parts, key=repr) if isinstance(value, set | frozenset) else parts
    return (
        describe_code(cast(Any, value), depth - 1)
        if isinstance(value, FunctionType | MethodType | partial)
        else None
    )
