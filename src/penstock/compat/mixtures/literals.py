"""What the names of a Python file stand for, worked out from its syntax tree: nothing is imported,
no code is run.

Constants, arithmetic, comprehensions and a few methods of dictionaries are worked out here. Names
that come from other files of the same checkout are looked up there in the same way. A call of
anything else stays a `Call`; what cannot be known is `Unknown`, with the reason. How much is worked
out is bounded.
"""

from __future__ import annotations

import ast
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

from ...engine.base import seams
from ...engine.base.limits import MIXTURE_FILE
from ...errors import ConfigError
from .arithmetic import (
    ITEMS,
    KNOWN,
    MATH,
    METHODS,
    Call,
    Stop,
    Unknown,
    assigned,
    attribute_of,
    changed,
    grown,
    known,
    of_two,
    text_of,
    unpacked,
)

_LARGEST = 2_000_000  # characters of a file
_STEPS = 200_000
_DEEP = 60
_FILES = 100


@dataclass
class _Budget:
    steps: int = 0
    files: dict[Path, Module] = field(default_factory=dict[Path, "Module"])


class Module:
    """The names of a file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.py"
    >>> _ = path.write_text("SHARE = 2 / 4\\nWEIGHTS = {n: SHARE * len(n) for n in ['a', 'bc']}\\nRUN = train(WEIGHTS)")
    >>> found = Module(path).names()
    >>> found["WEIGHTS"], found["RUN"].name, found["RUN"].args
    ({'a': 0.5, 'bc': 1.0}, 'train', ({'a': 0.5, 'bc': 1.0},))
    """

    def __init__(self, path: Path, budget: _Budget | None = None) -> None:
        self.path, self._budget = path, budget or _Budget()
        self._budget.files[path] = self
        self._names: dict[str, Any] | None = None
        self.tree = _parsed(path)

    def names(self) -> dict[str, Any]:
        """Every name of the file and what it stands for; of a file that is just being read what is
        known so far."""
        if self._names is None:
            self._names = {}
            self._run(self.tree.body, self._names)
        return self._names

    def called(self) -> Iterator[tuple[str, Any]]:
        """What functions give that need no arguments."""
        for name, value in list(self.names().items()):
            if isinstance(value, ast.FunctionDef):
                yield name, self._function(value, (), {}, 0)

    def _run(
        self, body: Iterable[ast.stmt], names: MutableMapping[str, Any], depth: int = 0
    ) -> Any:
        """Work statements out; what a `return` gives."""
        for one in body:
            match one:
                case ast.Assign(targets=[ast.Name(id=name)]):
                    names[name] = self._value(one.value, names, depth)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                    names[name] = self._value(cast("ast.expr", one.value), names, depth)
                case ast.Assign(targets=[ast.Subscript() as target]):
                    self._put(target, self._value(one.value, names, depth), names, depth)
                case ast.Expr(
                    value=ast.Call(
                        func=ast.Attribute(attr="update" | "append" | "extend" | "setdefault")
                    )
                ):
                    self._value(one.value, names, depth)
                case ast.FunctionDef(name=name):
                    names[name] = one
                case ast.Import() | ast.ImportFrom():
                    self._imported(one, names)
                case ast.Return(value=ast.expr()):
                    return self._value(cast("ast.expr", one.value), names, depth)
                case ast.Expr(value=ast.Constant()) | ast.Assert() | ast.Pass() | ast.ClassDef():
                    pass
                case _:
                    for name in assigned(one):
                        names[name] = Unknown(f"line {one.lineno} decides it while the file runs")
        return Unknown("nothing is returned")

    def _put(self, target: ast.Subscript, value: Any, names: Mapping[str, Any], depth: int) -> None:
        table, key = (
            self._value(target.value, names, depth),
            self._value(target.slice, names, depth),
        )
        if isinstance(table, dict) and isinstance(key, str | int):
            table[key] = value

    def _imported(self, one: ast.Import | ast.ImportFrom, names: MutableMapping[str, Any]) -> None:
        if isinstance(one, ast.Import):
            return
        for alias in one.names:
            names[alias.asname or alias.name] = self._from(one.module or "", one.level, alias.name)

    def _from(self, module: str, level: int, name: str) -> Any:
        """A name of another file of the checkout, or of a file that a folder of it brings in."""
        file = self._file(module, level)
        if file is None:
            return Unknown(f"it comes from {module}, which is not beside this file")
        if file not in self._budget.files and len(self._budget.files) >= _FILES:
            return Unknown(f"it comes from {module}, and more than {_FILES} files are not read")
        other = self._budget.files.get(file)
        try:
            other = other or Module(file, self._budget)
        except ConfigError as error:
            return Unknown(str(error))
        return other.names().get(name, Unknown(f"{module} has no name {name}"))

    def _file(self, module: str, level: int) -> Path | None:
        parts = module.split(".") if module else []
        above = list(self.path.absolute().parents)
        roots = above[level - 1 : level] if level else above
        for root in roots:
            for place in (
                root.joinpath(*parts).with_suffix(".py") if parts else None,
                root.joinpath(*parts, "__init__.py"),
            ):
                if place is not None and place.is_file():
                    return place
        return None

    def _function(
        self,
        function: ast.FunctionDef,
        args: tuple[Any, ...],
        options: Mapping[str, Any],
        depth: int,
    ) -> Any:
        """What a function gives that only puts values together."""
        named = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        bound = dict(zip(named, args, strict=False)) | dict(options)
        defaults = zip(reversed(named), reversed(function.args.defaults), strict=False)
        more = zip(
            (one.arg for one in function.args.kwonlyargs), function.args.kw_defaults, strict=True
        )
        for name, default in chain(defaults, more):
            if name not in bound and default is not None:
                bound[name] = self._value(default, self.names(), depth + 1)
        missing = [
            name
            for name in (*named, *(one.arg for one in function.args.kwonlyargs))
            if name not in bound
        ]
        if missing or function.args.vararg or function.args.kwarg:
            return Unknown(f"{function.name}() needs arguments that only its caller knows")
        return self._run(function.body, ChainMap(bound, self.names()), depth + 1)

    def _value(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        """What an expression stands for; never an exception."""
        try:
            return self._worked_out(node, names, depth)
        except Stop as stop:
            return Unknown(str(stop))
        except (
            ArithmeticError,
            TypeError,
            ValueError,
            LookupError,
            AttributeError,
            RecursionError,
        ) as error:
            return Unknown(f"line {node.lineno} cannot be worked out: {error}")

    def _worked_out(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        self._budget.steps += 1
        if self._budget.steps > _STEPS or depth > _DEEP:
            raise Stop("too much would have to be worked out")
        found = self._value
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return names.get(name, Unknown(f"nothing here says what {name} is"))
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return [found(item, names, depth + 1) for item in items]
            case ast.Dict():
                return self._table(node, names, depth)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -known(found(operand, names, depth + 1))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not known(found(operand, names, depth + 1))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in MATH or isinstance(
                op, ast.Pow
            ):
                return of_two(
                    op, known(found(left, names, depth + 1)), known(found(right, names, depth + 1))
                )
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return MATH[type(op)](
                    known(found(left, names, depth + 1)), known(found(right, names, depth + 1))
                )
            case ast.BoolOp(op=op, values=values):
                every = [known(found(value, names, depth + 1)) for value in values]
                return all(every) if isinstance(op, ast.And) else any(every)
            case ast.IfExp(test=test, body=body, orelse=other):
                return found(
                    body if known(found(test, names, depth + 1)) else other, names, depth + 1
                )
            case ast.Subscript(value=value, slice=key):
                return known(found(value, names, depth + 1))[known(found(key, names, depth + 1))]
            case ast.JoinedStr(values=values):
                return text_of([known(found(value, names, depth + 1)) for value in values])
            case ast.FormattedValue(value=value, format_spec=None):
                return found(value, names, depth + 1)
            case ast.DictComp(key=key, value=value, generators=loops):
                inside = self._loops(loops, names, depth + 1)
                return {
                    known(found(key, each, depth + 1)): found(value, each, depth + 1)
                    for each in inside
                }
            case (
                ast.ListComp(elt=item, generators=loops)
                | ast.GeneratorExp(elt=item, generators=loops)
            ):
                return [
                    found(item, each, depth + 1) for each in self._loops(loops, names, depth + 1)
                ]
            case ast.Call():
                return self._called(node, names, depth + 1)
            case ast.Attribute(value=value, attr=attribute):
                return attribute_of(found(value, names, depth + 1), attribute, node)
            case _:
                raise Stop(f"line {node.lineno} cannot be worked out without running it")

    def _table(self, node: ast.Dict, names: Mapping[str, Any], depth: int) -> dict[Any, Any]:
        out: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            each = self._value(value, names, depth + 1)
            if key is None:
                out |= known(each)
            else:
                out[known(self._value(key, names, depth + 1))] = each
        return out

    def _loops(
        self, loops: list[ast.comprehension], names: Mapping[str, Any], depth: int
    ) -> Iterator[Mapping[str, Any]]:
        """The names inside a comprehension, once for each of its turns."""
        if not loops:
            yield names
            return
        first, *rest = loops
        for item in list(known(self._value(first.iter, names, depth)))[:ITEMS]:
            inside = ChainMap(unpacked(first.target, item), cast("dict[str, Any]", names))
            if all(known(self._value(test, inside, depth)) for test in first.ifs):
                yield from self._loops(rest, inside, depth)

    def _called(self, node: ast.Call, names: Mapping[str, Any], depth: int) -> Any:
        args = tuple(
            self._value(one, names, depth) for one in node.args if not isinstance(one, ast.Starred)
        )
        options: dict[str, Any] = {}
        for one in node.keywords:
            value = self._value(one.value, names, depth)
            options |= (
                {one.arg: value}
                if one.arg
                else cast("dict[str, Any]", value)
                if isinstance(value, dict)
                else {}
            )
        if isinstance(node.func, ast.Name):
            own = names.get(node.func.id)
            if isinstance(own, ast.FunctionDef):
                given = self._of(own)._function(own, args, options, depth)
                if not isinstance(given, Unknown):
                    return given
            elif node.func.id in KNOWN and (own is None or isinstance(own, Unknown)):
                return KNOWN[node.func.id](*(known(one) for one in args), **options)
        if isinstance(node.func, ast.Attribute):
            on: Any = self._value(node.func.value, names, depth)
            if node.func.attr in METHODS.get(type(on), ()):  # pyright: ignore[reportUnknownArgumentType]
                if grown(on, args) > ITEMS:
                    raise Stop("more than this is not put together")
                made = getattr(on, node.func.attr)(*args, **options)
                return list(made) if node.func.attr in ("items", "keys", "values") else made
            if isinstance(on, Call):  # what is made is made a little differently
                return changed(on, node.func.attr, args, options)
        name = ast.unparse(node.func)
        if name.endswith("replace") and args and isinstance(args[0], Call):  # dataclasses.replace
            return replace(args[0], options={**args[0].options, **options})
        return Call(name, args, options, str(self.path), node.lineno)

    def _of(self, function: ast.FunctionDef) -> Module:
        """The file of a function."""
        return next((one for one in self._budget.files.values() if function in one.tree.body), self)


def _parsed(path: Path) -> ast.Module:
    try:
        text = seams.read_within(str(path), MIXTURE_FILE).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if len(text) > _LARGEST:
        raise ConfigError(f"{path}: more than {_LARGEST:,} characters are not read")
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{path}: this is no Python that can be read: {error}") from error
