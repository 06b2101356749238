"""Static evaluation of a Python file: values of its names, from the syntax tree alone.

Nothing is imported and no code runs. Constants, arithmetic, comprehensions and some methods of
dictionaries are evaluated. Names from other files of the same checkout are looked up there in the
same way. A call of anything else stays a `Call`; an unknowable value is `Unknown`, with the reason.
The evaluation is bounded.
"""

from __future__ import annotations

import ast
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, cast

from ...errors import ConfigError
from ...stores.limits import MIXTURE_FILE, read_within
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

_MAX_CHARACTERS = 2_000_000  # per file
_MAX_STEPS = 200_000
_MAX_DEPTH = 60
_MAX_FILES = 100


@dataclass
class _Budget:
    steps: int = 0
    files: dict[Path, Module] = field(default_factory=dict[Path, "Module"])


class Module:
    """The names of a file and their values.

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
        """Return every name of the file and its value; partial while the file is being read."""
        if self._names is None:
            self._names = {}
            self._run(self.tree.body, self._names)
        return self._names

    def call_results(self) -> Iterator[tuple[str, Any]]:
        """Yield the results of functions without required arguments."""
        for name, value in list(self.names().items()):
            if isinstance(value, ast.FunctionDef):
                yield name, self._function(value, (), {}, 0)

    def _run(
        self, body: Iterable[ast.stmt], names: MutableMapping[str, Any], depth: int = 0
    ) -> Any:
        """Evaluate statements, and return the value of `return`."""
        for statement in body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)]):
                    names[name] = self._value(statement.value, names, depth)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                    names[name] = self._value(cast("ast.expr", statement.value), names, depth)
                case ast.Assign(targets=[ast.Subscript() as target]):
                    self._assign_item(
                        target, self._value(statement.value, names, depth), names, depth
                    )
                case ast.Expr(
                    value=ast.Call(
                        func=ast.Attribute(attr="update" | "append" | "extend" | "setdefault")
                    )
                ):
                    self._value(statement.value, names, depth)
                case ast.FunctionDef(name=name):
                    names[name] = statement
                case ast.Import() | ast.ImportFrom():
                    self._import(statement, names)
                case ast.Return(value=ast.expr()):
                    return self._value(cast("ast.expr", statement.value), names, depth)
                case ast.Expr(value=ast.Constant()) | ast.Assert() | ast.Pass() | ast.ClassDef():
                    pass
                case _:
                    for name in assigned(statement):
                        names[name] = Unknown(f"line {statement.lineno} sets it when the file runs")
        return Unknown("the function returns no value")

    def _assign_item(
        self, target: ast.Subscript, value: Any, names: Mapping[str, Any], depth: int
    ) -> None:
        table, key = (
            self._value(target.value, names, depth),
            self._value(target.slice, names, depth),
        )
        if isinstance(table, dict) and isinstance(key, str | int):
            table[key] = value

    def _import(
        self, statement: ast.Import | ast.ImportFrom, names: MutableMapping[str, Any]
    ) -> None:
        if isinstance(statement, ast.Import):
            return
        for alias in statement.names:
            names[alias.asname or alias.name] = self._imported_value(
                statement.module or "", statement.level, alias.name
            )

    def _imported_value(self, module: str, level: int, name: str) -> Any:
        """Return a name of another file of the checkout, or of its package."""
        file = self._file(module, level)
        if file is None:
            return Unknown(f"it comes from {module}, which is not in this checkout")
        if file not in self._budget.files and len(self._budget.files) >= _MAX_FILES:
            return Unknown(f"it comes from {module}, beyond the limit of {_MAX_FILES} files")
        other = self._budget.files.get(file)
        try:
            other = other or Module(file, self._budget)
        except ConfigError as error:
            return Unknown(str(error))
        return other.names().get(name, Unknown(f"{module} has no name {name}"))

    def _file(self, module: str, level: int) -> Path | None:
        parts = module.split(".") if module else []
        parents = list(self.path.absolute().parents)
        roots = parents[level - 1 : level] if level else parents
        for root in roots:
            for candidate in (
                root.joinpath(*parts).with_suffix(".py") if parts else None,
                root.joinpath(*parts, "__init__.py"),
            ):
                if candidate is not None and candidate.is_file():
                    return candidate
        return None

    def _function(
        self,
        function: ast.FunctionDef,
        args: tuple[Any, ...],
        options: Mapping[str, Any],
        depth: int,
    ) -> Any:
        """Evaluate a function that only combines values."""
        named = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
        bound = dict(zip(named, args, strict=False)) | dict(options)
        defaults = zip(reversed(named), reversed(function.args.defaults), strict=False)
        keyword_defaults = zip(
            (arg.arg for arg in function.args.kwonlyargs), function.args.kw_defaults, strict=True
        )
        for name, default in chain(defaults, keyword_defaults):
            if name not in bound and default is not None:
                bound[name] = self._value(default, self.names(), depth + 1)
        missing = [
            name
            for name in (*named, *(arg.arg for arg in function.args.kwonlyargs))
            if name not in bound
        ]
        if missing or function.args.vararg or function.args.kwarg:
            return Unknown(f"{function.name}() needs arguments of its caller")
        return self._run(function.body, ChainMap(bound, self.names()), depth + 1)

    def _value(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        """Evaluate an expression; never raises."""
        try:
            return self._evaluate(node, names, depth)
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
            return Unknown(f"line {node.lineno} cannot be evaluated: {error}")

    def _evaluate(self, node: ast.expr, names: Mapping[str, Any], depth: int) -> Any:
        self._budget.steps += 1
        if self._budget.steps > _MAX_STEPS or depth > _MAX_DEPTH:
            raise Stop("the evaluation exceeds its limit")
        value_of = self._value
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return names.get(name, Unknown(f"{name} is not defined here"))
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return [value_of(item, names, depth + 1) for item in items]
            case ast.Dict():
                return self._table(node, names, depth)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -known(value_of(operand, names, depth + 1))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not known(value_of(operand, names, depth + 1))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in MATH or isinstance(
                op, ast.Pow
            ):
                return of_two(
                    op,
                    known(value_of(left, names, depth + 1)),
                    known(value_of(right, names, depth + 1)),
                )
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return MATH[type(op)](
                    known(value_of(left, names, depth + 1)),
                    known(value_of(right, names, depth + 1)),
                )
            case ast.BoolOp(op=op, values=values):
                operands = [known(value_of(value, names, depth + 1)) for value in values]
                return all(operands) if isinstance(op, ast.And) else any(operands)
            case ast.IfExp(test=test, body=body, orelse=other):
                return value_of(
                    body if known(value_of(test, names, depth + 1)) else other, names, depth + 1
                )
            case ast.Subscript(value=value, slice=key):
                return known(value_of(value, names, depth + 1))[
                    known(value_of(key, names, depth + 1))
                ]
            case ast.JoinedStr(values=values):
                return text_of([known(value_of(value, names, depth + 1)) for value in values])
            case ast.FormattedValue(value=value, format_spec=None):
                return value_of(value, names, depth + 1)
            case ast.DictComp(key=key, value=value, generators=loops):
                scopes = self._loops(loops, names, depth + 1)
                return {
                    known(value_of(key, scope, depth + 1)): value_of(value, scope, depth + 1)
                    for scope in scopes
                }
            case (
                ast.ListComp(elt=item, generators=loops)
                | ast.GeneratorExp(elt=item, generators=loops)
            ):
                return [
                    value_of(item, scope, depth + 1)
                    for scope in self._loops(loops, names, depth + 1)
                ]
            case ast.Call():
                return self._call(node, names, depth + 1)
            case ast.Attribute(value=value, attr=attribute):
                return attribute_of(value_of(value, names, depth + 1), attribute, node)
            case _:
                raise Stop(f"line {node.lineno} cannot be evaluated without running it")

    def _table(self, node: ast.Dict, names: Mapping[str, Any], depth: int) -> dict[Any, Any]:
        out: dict[Any, Any] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            evaluated = self._value(value, names, depth + 1)
            if key is None:
                out |= known(evaluated)
            else:
                out[known(self._value(key, names, depth + 1))] = evaluated
        return out

    def _loops(
        self, loops: list[ast.comprehension], names: Mapping[str, Any], depth: int
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the names inside a comprehension, once per iteration."""
        if not loops:
            yield names
            return
        first, *rest = loops
        for item in list(known(self._value(first.iter, names, depth)))[:ITEMS]:
            scope = ChainMap(unpacked(first.target, item), cast("dict[str, Any]", names))
            if all(known(self._value(test, scope, depth)) for test in first.ifs):
                yield from self._loops(rest, scope, depth)

    def _call(self, node: ast.Call, names: Mapping[str, Any], depth: int) -> Any:
        args = tuple(
            self._value(arg, names, depth) for arg in node.args if not isinstance(arg, ast.Starred)
        )
        options: dict[str, Any] = {}
        for keyword in node.keywords:
            value = self._value(keyword.value, names, depth)
            options |= (
                {keyword.arg: value}
                if keyword.arg
                else cast("dict[str, Any]", value)
                if isinstance(value, dict)
                else {}
            )
        if isinstance(node.func, ast.Name):
            target = names.get(node.func.id)
            if isinstance(target, ast.FunctionDef):
                result = self._module_of(target)._function(target, args, options, depth)
                if not isinstance(result, Unknown):
                    return result
            elif node.func.id in KNOWN and (target is None or isinstance(target, Unknown)):
                return KNOWN[node.func.id](*(known(arg) for arg in args), **options)
        if isinstance(node.func, ast.Attribute):
            receiver: Any = self._value(node.func.value, names, depth)
            if node.func.attr in METHODS.get(type(receiver), ()):  # pyright: ignore[reportUnknownArgumentType]
                if grown(receiver, args) > ITEMS:
                    raise Stop("the result exceeds its limit")
                method_result = getattr(receiver, node.func.attr)(*args, **options)
                return (
                    list(method_result)
                    if node.func.attr in ("items", "keys", "values")
                    else method_result
                )
            if isinstance(receiver, Call):  # a method of an unevaluated call
                return changed(receiver, node.func.attr, args, options)
        name = ast.unparse(node.func)
        if name.endswith("replace") and args and isinstance(args[0], Call):  # dataclasses.replace
            return replace(args[0], options={**args[0].options, **options})
        return Call(name, args, options, str(self.path), node.lineno)

    def _module_of(self, function: ast.FunctionDef) -> Module:
        """Return the file of a function."""
        modules = self._budget.files.values()
        return next((module for module in modules if function in module.tree.body), self)


def _parsed(path: Path) -> ast.Module:
    try:
        text = read_within(str(path), MIXTURE_FILE).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if len(text) > _MAX_CHARACTERS:
        raise ConfigError(f"{path}: larger than the limit of {_MAX_CHARACTERS:,} characters")
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{path}: this is no Python that can be read: {error}") from error
