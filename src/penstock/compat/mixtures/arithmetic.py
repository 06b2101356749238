"""Bounded evaluation of Python expressions: arithmetic, some functions and methods."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

ITEMS = 100_000
"""Maximum number of items of a loop or a result."""

Plain = str | int | float | bool | None


def _plain(value: Any) -> Any:
    """Return a scalar; nested values could be infinite as text."""
    if isinstance(value, Plain):
        return value
    raise Stop("only numbers and texts can be compared, counted or formatted")


def _divide(left: Any, right: Any) -> Any:
    return left / right


def _floor_divide(left: Any, right: Any) -> Any:
    return left // right


def _bit_or(left: Any, right: Any) -> Any:
    return left | right


def _compared(comparison: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda left, right: comparison(_plain(left), _plain(right))


MATH: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.FloorDiv: _floor_divide,
    ast.Mod: operator.mod,
    ast.BitOr: _bit_or,
    ast.Eq: _compared(operator.eq),
    ast.NotEq: _compared(operator.ne),
    ast.Lt: _compared(operator.lt),
    ast.LtE: _compared(operator.le),
    ast.Gt: _compared(operator.gt),
    ast.GtE: _compared(operator.ge),
    ast.In: lambda item, container: _plain(item) in container,
    ast.NotIn: lambda item, container: _plain(item) not in container,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}


def _zip(*iterables: Any) -> Any:
    return [list(items) for items in zip(*iterables, strict=False)]


def _enumerate(iterable: Any) -> Any:
    return [[number, item] for number, item in enumerate(iterable)]


def _of_plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Restrict a function to scalars and lists of scalars."""

    def called(*args: Any, **options: Any) -> Any:
        for value in (*args, *options.values()):
            is_container = isinstance(value, list | dict | set)
            for item in cast("list[Any]", value) if is_container else [value]:
                _plain(item)
        return function(*args, **options)

    return called


KNOWN: dict[str, Callable[..., Any]] = {
    **{fn.__name__: _of_plain(fn) for fn in (sum, min, max, sorted, round, float, int, str, abs, set)},
    "len": len, "dict": dict, "list": list, "tuple": list, "zip": _zip, "enumerate": _enumerate,
}  # fmt: skip
METHODS = {
    dict: ("items", "keys", "values", "get", "copy", "update", "pop", "setdefault"),
    str: (
        "startswith",
        "endswith",
        "replace",
        "split",
        "lower",
        "upper",
        "strip",
        "removeprefix",
        "removesuffix",
    ),
    list: ("copy", "append", "extend"),
}


@dataclass(frozen=True)
class Unknown:
    """A value that only a run of the file could tell."""

    reason: str


@dataclass(eq=False)
class Call:
    """A call that is not evaluated: its name, arguments and location."""

    name: str
    args: tuple[Any, ...]
    options: dict[str, Any]
    file: str
    line: int
    read: set[str] = field(default_factory=set[str])
    """Arguments that are carried over: names, and positions as text."""
    harmless: set[str] = field(default_factory=set[str])
    """Arguments that do not affect samples."""

    def of(self, name: str, position: int | None = None, default: Any = None) -> Any:
        """Return an argument by name, or by its position."""
        if name in self.options:
            self.read.add(name)
            return self.options[name]
        if position is None or position >= len(self.args):
            return default
        self.read.add(str(position))
        return self.args[position]


class Stop(Exception):
    """The expression cannot be evaluated, with the reason."""


def known(value: Any) -> Any:
    """Return a value, or raise `Stop` if it is unknown."""
    if isinstance(value, Unknown):
        raise Stop(value.reason)
    return value


def size(value: Any) -> int:
    """Return the length of a sized value."""
    return len(cast("list[Any]", value))


def grown(value: Any, args: tuple[Any, ...]) -> int:
    """Return the maximum size of a method's result."""
    sizes = [size(arg) for arg in args if isinstance(arg, str | list | dict)]
    return size(value) * max([1, *sizes]) if isinstance(value, str) else size(value) + sum(sizes)


def text_of(values: list[Any]) -> str:
    """Concatenate scalars as text."""
    text = "".join(str(_plain(value)) for value in values)
    if len(text) > ITEMS:
        raise Stop("the text is too long to evaluate")
    return text


def of_two(operation: ast.operator, left: Any, right: Any) -> Any:
    """Evaluate a binary operation on numbers, or on values that concatenate."""
    numbers = isinstance(left, int | float) and isinstance(right, int | float)
    if isinstance(operation, ast.Pow):
        if not numbers or abs(right) > 64 or abs(left) > 1e6:
            raise Stop("the power is too large to evaluate")
        return left**right
    concatenates = (
        type(left) is type(right)
        and isinstance(left, str | list | dict)
        and size(left) + size(right) < ITEMS
    )
    if not numbers and not concatenates and not (isinstance(left, Call) and isinstance(right, str)):
        raise Stop("only numbers, and lists and texts of one type, can be combined")
    if isinstance(left, Call):
        return changed(left, "cd", (right,), {})
    if numbers and (abs(cast("float", left)) > 1e30 or abs(cast("float", right)) > 1e30):
        raise Stop("the numbers are too large to evaluate")
    return MATH[type(operation)](left, right)


def attribute_of(value: Any, name: str, node: ast.Attribute) -> Any:
    """Return an argument of a call as an attribute."""
    if isinstance(value, Call) and name in value.options:
        return value.options[name]
    raise Stop(f"line {node.lineno}: .{name} is known only when the file runs")


def changed(call: Call, method: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Call:
    """Record a method call on a call's result as an option `.method`."""
    return replace(call, options={**call.options, f".{method}": args[0] if args else dict(options)})


def unpacked(target: ast.expr, item: Any) -> dict[str, Any]:
    """Bind the names of a loop to one item."""
    if isinstance(target, ast.Name):
        return {target.id: item}
    if isinstance(target, ast.Tuple):
        pairs = zip(target.elts, item, strict=True)
        return {
            name: value
            for element, part in pairs
            for name, value in unpacked(element, part).items()
        }
    raise Stop("a loop with other targets than names cannot be evaluated")


def assigned(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement may assign."""
    with suppress(RecursionError):
        for child in ast.walk(node):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                yield child.id
