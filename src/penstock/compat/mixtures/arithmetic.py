"""What is done with values that are worked out of Python code: arithmetic, a few functions and
methods; bounded."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

ITEMS = 100_000
"""As many are gone through, or put together, at most."""

Plain = str | int | float | bool | None


def _plain(value: Any) -> Any:
    """A value without anything in it: what holds others, and these the same ones twice, may be
    without end as text."""
    if isinstance(value, Plain):
        return value
    raise Stop("only numbers and texts are compared, counted or written out")


def _divided(one: Any, other: Any) -> Any:
    return one / other


def _whole(one: Any, other: Any) -> Any:
    return one // other


def _either(one: Any, other: Any) -> Any:
    return one | other


def _compared(how: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda one, other: how(_plain(one), _plain(other))


MATH: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divided,
    ast.FloorDiv: _whole,
    ast.Mod: operator.mod,
    ast.BitOr: _either,
    ast.Eq: _compared(operator.eq),
    ast.NotEq: _compared(operator.ne),
    ast.Lt: _compared(operator.lt),
    ast.LtE: _compared(operator.le),
    ast.Gt: _compared(operator.gt),
    ast.GtE: _compared(operator.ge),
    ast.In: lambda one, many: _plain(one) in many,
    ast.NotIn: lambda one, many: _plain(one) not in many,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}


def _zipped(*many: Any) -> Any:
    return [list(each) for each in zip(*many, strict=False)]


def _numbered(many: Any) -> Any:
    return [[number, each] for number, each in enumerate(many)]


def _of_plain(how: Callable[..., Any]) -> Callable[..., Any]:
    """A function of plain values, or of lists of these."""

    def called(*args: Any, **options: Any) -> Any:
        for each in (*args, *options.values()):
            several = isinstance(each, list | dict | set)
            for one in cast("list[Any]", each) if several else [each]:
                _plain(one)
        return how(*args, **options)

    return called


KNOWN: dict[str, Callable[..., Any]] = {
    **{how.__name__: _of_plain(how) for how in (sum, min, max, sorted, round, float, int, str, abs, set)},
    "len": len, "dict": dict, "list": list, "tuple": list, "zip": _zipped, "enumerate": _numbered,
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
    """What cannot be known without running the file."""

    why: str


@dataclass(eq=False)
class Call:
    """A call that is not made: of what, with what, and where it stands."""

    name: str
    args: tuple[Any, ...]
    options: dict[str, Any]
    file: str
    line: int
    read: set[str] = field(default_factory=set[str])
    """The arguments that are carried over: their names, and places as text."""
    harmless: set[str] = field(default_factory=set[str])
    """The arguments that say nothing about samples."""

    def of(self, name: str, place: int | None = None, default: Any = None) -> Any:
        """An argument by name, or by its place."""
        if name in self.options:
            self.read.add(name)
            return self.options[name]
        if place is None or place >= len(self.args):
            return default
        self.read.add(str(place))
        return self.args[place]


class Stop(Exception):
    """This expression cannot be worked out, and why."""


def known(value: Any) -> Any:
    """A value that may be reckoned with."""
    if isinstance(value, Unknown):
        raise Stop(value.why)
    return value


def size(value: Any) -> int:
    """How many there are, of what there are several."""
    return len(cast("list[Any]", value))


def grown(value: Any, args: tuple[Any, ...]) -> int:
    """At most so much may a method with these arguments make of a value."""
    sizes = [size(arg) for arg in args if isinstance(arg, str | list | dict)]
    return size(value) * max([1, *sizes]) if isinstance(value, str) else size(value) + sum(sizes)


def text_of(values: list[Any]) -> str:
    """Plain values, written one after the other."""
    found = "".join(str(_plain(value)) for value in values)
    if len(found) > ITEMS:
        raise Stop("a text this long is not put together")
    return found


def of_two(op: ast.operator, one: Any, other: Any) -> Any:
    """Arithmetic, of numbers, and of what may be joined."""
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    if isinstance(op, ast.Pow):
        if not numbers or abs(other) > 64 or abs(one) > 1e6:
            raise Stop("a power this large is not worked out")
        return one**other
    joined = (
        type(one) is type(other)
        and isinstance(one, str | list | dict)
        and size(one) + size(other) < ITEMS
    )
    if not numbers and not joined and not (isinstance(one, Call) and isinstance(other, str)):
        raise Stop("only numbers, and lists and texts of one kind, are put together")
    if isinstance(one, Call):
        return changed(one, "cd", (other,), {})
    if numbers and (abs(cast("float", one)) > 1e30 or abs(cast("float", other)) > 1e30):
        raise Stop("numbers this large are not worked out")
    return MATH[type(op)](one, other)


def attribute_of(value: Any, name: str, node: ast.Attribute) -> Any:
    """An argument of a call, by name."""
    if isinstance(value, Call) and name in value.options:
        return value.options[name]
    raise Stop(f"line {node.lineno}: .{name} is only known while the file runs")


def changed(call: Call, how: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Call:
    """A call of a method of what a call gives: it is noted under its name."""
    return replace(call, options={**call.options, f".{how}": args[0] if args else dict(options)})


def unpacked(target: ast.expr, item: Any) -> dict[str, Any]:
    """The names of a loop, and what they are in this turn."""
    if isinstance(target, ast.Name):
        return {target.id: item}
    if isinstance(target, ast.Tuple):
        pairs = zip(target.elts, item, strict=True)
        return {name: value for each, part in pairs for name, value in unpacked(each, part).items()}
    raise Stop("a loop over more than names cannot be worked out")


def assigned(node: ast.stmt) -> Iterator[str]:
    """The names that a statement may set."""
    with suppress(RecursionError):
        for one in ast.walk(node):
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
                yield one.id
