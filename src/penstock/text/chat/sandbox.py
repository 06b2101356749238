"""Jinja's immutable sandbox with bounds, for templates from files of other people.

Jinja bounds neither loops nor texts. Here each item of a loop, each call and each filter is a step.
Each text or list that a template makes is measured, and before it is made if it can be far larger
than its parts. Expressions that only join texts for the output run as in Jinja.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import GeneratorType
from typing import Any, Final, TypeAlias, cast

from ...errors import ConfigError
from ...stores.limits import RENDERED, TEMPLATE_STEPS

_MADE: Final = 8 * RENDERED  # characters of all texts that a rendering makes
_ITEM: Final = 8  # characters for which an item of a list counts
_PIECE: Final = 64  # the same for a piece of a text that is split
_INTEGER_BITS: Final = 1 << 17
_NATIVE_ADDITIONS: Final = 8  # of an output; its length is checked afterwards
_CHECKED_LENGTH: Final = 4096  # items that are counted at once
_CALL_STEPS, _FILTER_STEPS = 16, 4  # a call takes the time of so many items of a loop
_NUMBER = re.compile(r"[0-9]+")
_NESTED = re.compile(r"\{[^{}]*\{")
_LINE_ENDS: Final = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_TEXTS: Any = (str, bytes)
_LISTS: Any = (list, tuple)
_COUNT, _ADD, _JOIN, _MEASURE = " count", " add", " join", " measure"
"""Filters that templates cannot name."""


class _Budget:
    """Steps and characters that are left to a rendering."""

    __slots__ = ("characters", "steps")

    def __init__(self) -> None:
        self.steps, self.characters = TEMPLATE_STEPS, _MADE


_BUDGET = ContextVar[_Budget]("budget")  # read in a tenth of the time of a thread-local one


@contextmanager
def bound_rendering() -> Generator[None]:
    """Give a rendering its steps and characters.

    Raises:
        ConfigError: It takes more, or there is not enough memory.
    """
    token = _BUDGET.set(_Budget())
    try:
        yield
    except MemoryError as error:
        raise ConfigError(
            "there is not enough memory for the chat template: simplify it, or shorten the "
            "conversation"
        ) from error
    finally:
        _BUDGET.reset(token)


def _take_steps(count: int) -> None:
    budget = _BUDGET.get()
    budget.steps -= count
    if budget.steps < 0:
        raise ConfigError(
            f"the chat template takes more than {TEMPLATE_STEPS:,} steps for a conversation: "
            "simplify its loops, or shorten the conversation"
        )


def _take_characters(count: int) -> None:
    budget = _BUDGET.get()
    budget.characters -= count
    if count > RENDERED or budget.characters < 0:
        raise ConfigError(
            f"the chat template makes a text of more than {RENDERED:,} characters, or many long "
            "ones: simplify it, or shorten the conversation"
        )


def _measure(value: Any) -> int:
    """Return about the characters of a value as text; counting stops above `RENDERED`."""
    total, stack = 0, [value]
    while stack and total <= RENDERED:
        part: Any = stack.pop()
        if isinstance(part, str | bytes):
            total += len(part) + 2
        elif isinstance(part, Mapping):
            total += 4 * len(cast("Mapping[Any, Any]", part))
            _take_steps(len(cast("Mapping[Any, Any]", part)))
            stack += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple | set | frozenset):
            total += 2 * len(cast("list[Any]", part))
            _take_steps(len(cast("list[Any]", part)))
            stack += part
        else:
            total += part.bit_length() // 3 if isinstance(part, int) else 24
    return total


def _charge_result(value: Any) -> Any:
    """Return a new value; count its characters or items."""
    if type(value) is str or isinstance(value, str | bytes):
        _take_characters(len(value))
    elif isinstance(value, list | tuple | dict):
        _take_characters(_ITEM * len(cast("list[Any]", value)))
    return cast("Any", value)


class _Counted:
    """An iterable whose items are steps; its length stays known."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            _take_steps(1)
            yield item

    def __len__(self) -> int:
        return len(self._items)


def _count_items(items: Any) -> Any:
    """Return an iterable of the same items that counts a step for each."""
    if not hasattr(items, "__len__"):
        return iter(_Counted(items)) if hasattr(items, "__iter__") else items
    if (length := len(items)) > _CHECKED_LENGTH:
        return _Counted(items)
    _take_steps(length)
    return items


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, _TEXTS) and isinstance(right, _TEXTS):
        _take_characters(len(left) + len(right))
    elif isinstance(left, _LISTS) and isinstance(right, _LISTS):
        _take_characters(_ITEM * (len(left) + len(right)))
    return left + right


def _multiply(left: Any, right: Any) -> Any:
    for items, count in ((left, right), (right, left)):
        if isinstance(items, str | bytes | list | tuple) and isinstance(count, int):
            unit = 1 if isinstance(items, str | bytes) else _ITEM
            _take_characters(unit * len(cast("str", items)) * max(count, 0))
    if isinstance(left, int) and isinstance(right, int):
        _require_small(left.bit_length() + right.bit_length())
    return left * right


def _raise_to_power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        _require_small(left.bit_length() * right)
    return left**right


def _require_small(bits: int) -> None:
    if bits > _INTEGER_BITS:
        raise ConfigError(
            f"the chat template computes an integer of more than {_INTEGER_BITS:,} bits: simplify "
            "it"
        )


def _format_percent(left: Any, right: Any) -> Any:
    if isinstance(left, str | bytes):
        _take_characters(_bound_format(left, right, "%"))
    return left % right


def _bound_format(text: Any, values: Any, mark: str) -> int:
    """Return the characters that a text takes at most once values are put into it."""
    text = text if isinstance(text, str) else text.decode("latin-1")
    count, widths = text.count(mark), sum(map(int, _NUMBER.findall(text)))
    if "*" in text if mark == "%" else _NESTED.search(text):  # widths among the values
        widths += sum(map(abs, _flatten((values,))))
    return len(text) + widths + count * _measure(values)


def _flatten(parts: Any) -> Iterator[int]:
    for part in parts:
        if isinstance(part, int):
            yield part
        elif isinstance(part, list | tuple):
            yield from _flatten(part)
        elif isinstance(part, Mapping):
            yield from _flatten(cast("Mapping[Any, Any]", part).values())


# ---------------------------------------------------------------- methods and filters


_METHODS: Final = frozenset(
    (
        *("center", "ljust", "rjust", "zfill", "to_bytes", "expandtabs", "replace", "join"),
        *("translate", "split", "rsplit", "splitlines"),
    )
)
"""Methods whose results may be far larger than their object."""


def _bound_method(owner: Any, name: str, args: Sequence[Any], options: Mapping[str, Any]) -> int:
    """Return about the characters of the result of one of these methods."""
    values = [*args, *options.values()]
    number = max((value for value in values if isinstance(value, int)), default=0)
    first = values[0] if values else None
    match name:
        case "center" | "ljust" | "rjust" | "zfill" | "to_bytes":
            return number
        case "expandtabs":
            return len(owner) + owner.count("\t") * (number if values else 8)
        case "replace":
            return len(owner) + owner.count(first) * len(values[1])
        case "join":
            return _measure(first) + len(owner) * len(cast("Any", first))
        case "translate":
            return len(owner) * (1 + _measure(first))
        case "split" | "rsplit":
            return _PIECE * (owner.count(first) if first else len(owner) // 2)
        case _:
            return _PIECE * sum(owner.count(end) for end in _LINE_ENDS)


def _bound_tojson(value: Any, args: Sequence[Any], options: Mapping[str, Any]) -> int:
    indent: Any = options.get("indent")
    width = indent if isinstance(indent, int) else len(indent or "")
    return (_measure(value) + _measure([*args])) * (6 if options.get("ensure_ascii") else 2 + width)


def _bound_join(value: Any, args: Sequence[Any], options: Mapping[str, Any]) -> int:
    return _measure(value) + len(str(options.get("d", args[0] if args else ""))) * len(value)


def _bound_replace(value: Any, args: Sequence[Any], options: Mapping[str, Any]) -> int:
    old, new = [*args, *options.values()][:2]
    return _measure(value) + str(value).count(str(old)) * len(str(new))


def _bound_widths(value: Any, args: Sequence[Any], options: Mapping[str, Any]) -> int:
    values = [*args, *options.values()]
    width = max((each for each in values if isinstance(each, int)), default=0)
    return _measure(value) + width + sum(len(each) for each in values if isinstance(each, str))


def _bound_lines(value: Any, args: Sequence[Any], options: Mapping[str, Any]) -> int:
    lines = sum(str(value).count(end) for end in _LINE_ENDS) + 1
    return _measure(value) + lines * (_bound_widths("", args, options) + 4)


def _bound_wrap(value: Any, args: Sequence[Any], options: Mapping[str, Any]) -> int:
    longest = max(
        (len(each) for each in [*args, *options.values()] if isinstance(each, str)), default=1
    )
    return _measure(value) * (1 + longest)


def _bound_round(value: Any, args: Sequence[Any], options: Mapping[str, Any]) -> int:
    _require_small(4 * _bound_widths(0, args, options))
    return _measure(value)


def _bound_list(value: Any, *_: Any) -> int:
    return (_PIECE if isinstance(value, str) else _ITEM) * len(value)


def _bound_sum(value: Any, *_: Any) -> int:
    has_lists = any(isinstance(item, list | tuple) for item in value)
    return len(value) * _measure(value) // 16 if has_lists else 0


def _bound_string(value: Any, *_: Any) -> int:
    return _measure(value)


def _bound_text(value: Any, *_: Any) -> int:
    return 6 * _measure(value)


def _bound_percent(value: Any, args: Sequence[Any], options: Mapping[str, Any]) -> int:
    return _bound_format(str(value), (*args, options), "%")


_Bound: TypeAlias = Callable[[Any, Sequence[Any], Mapping[str, Any]], int]
_FILTERS: Final[Mapping[str, _Bound]] = {
    "batch": _bound_widths,
    "center": _bound_widths,
    "format": _bound_percent,
    "indent": _bound_lines,
    "join": _bound_join,
    "list": _bound_list,
    "pprint": _bound_text,
    "replace": _bound_replace,
    "round": _bound_round,
    "slice": _bound_widths,
    "string": _bound_string,
    "sum": _bound_sum,
    "tojson": _bound_tojson,
    "truncate": _bound_widths,
    "wordwrap": _bound_wrap,
    **dict.fromkeys(("e", "escape", "forceescape", "urlencode", "urlize", "xmlattr"), _bound_text),
}
"""Bounds on the characters of results that may be far larger than the value."""


_SHORT: Final = frozenset(
    ("trim", "length", "count", "default", "d", "first", "last", "upper", "lower", "safe")
)
"""Filters whose results are no larger than the value, and which take a time of little account."""


def _bound_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that counts its steps and the characters of its result."""
    bound, place = _FILTERS.get(name), int(hasattr(function, "jinja_pass_arg"))

    @functools.wraps(function)
    def run_short(*args: Any, **options: Any) -> Any:
        _take_steps(_FILTER_STEPS)
        return _charge_result(function(*args, **options))

    if name in _SHORT:
        return run_short

    @functools.wraps(function)  # with the attributes by which Jinja passes its context
    def run(*args: Any, **options: Any) -> Any:
        value: Any = args[place] if len(args) > place else None
        length = len(value) if hasattr(value, "__len__") else 0
        _take_steps(_FILTER_STEPS + (length >> (12 if isinstance(value, str) else 4)))
        if bound is not None and len(args) > place:
            if isinstance(value, Iterator):
                value = list(cast("Iterator[Any]", value))
                args = (*args[:place], value, *args[place + 1 :])
            if hasattr(value, "__len__") or not isinstance(value, Iterable):
                _take_characters(bound(value, args[place + 1 :], options))
        result = function(*args, **options)
        return _count_items(result) if isinstance(result, GeneratorType) else _charge_result(result)

    return run


def make_environment(**options: Any) -> Any:
    """Return an immutable sandbox with bounds; `jinja2` is installed.

    Args:
        options: those of `jinja2.Environment`.
    """
    jinja2: Any = importlib.import_module("jinja2")
    runtime: Any = importlib.import_module("jinja2.runtime")
    transformer: Any = importlib.import_module("jinja2.visitor").NodeTransformer
    safe: Any = importlib.import_module("jinja2.sandbox").ImmutableSandboxedEnvironment
    nodes = jinja2.nodes
    stored_nodes = (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock)

    class Bounder(transformer):
        """Counts the items of loops; measures sums, joined texts and slices that are stored."""

        def __init__(self) -> None:
            self._native, self._stored = set[int](), 0

        def visit(self, node: Any, *args: Any, **options: Any) -> Any:
            is_stored = isinstance(node, stored_nodes)
            self._stored += is_stored
            visited: Any = transformer.visit(self, node, *args, **options)
            self._stored -= is_stored
            return visited

        def visit_Output(self, node: Any) -> Any:
            for part in node.nodes:
                for _ in range(_NATIVE_ADDITIONS):
                    if not isinstance(part, nodes.Add):
                        break
                    self._native.add(id(part))
                    part = part.left
            node = transformer.generic_visit(self, node)
            if self._stored:  # outside of macros and blocks, `concatenate` counts each text
                node.nodes = [
                    part if isinstance(part, nodes.TemplateData) else self._filter(part, _MEASURE)
                    for part in node.nodes
                ]
            return node

        def visit_For(self, node: Any) -> Any:
            node = transformer.generic_visit(self, node)
            node.iter = self._filter(node.iter, _COUNT)
            return node

        def visit_Add(self, node: Any) -> Any:
            is_native = id(node) in self._native
            node = transformer.generic_visit(self, node)
            return node if is_native else self._filter(node.left, _ADD, node.right)

        def visit_Concat(self, node: Any) -> Any:
            node = transformer.generic_visit(self, node)
            return self._filter(nodes.List(node.nodes, lineno=node.lineno), _JOIN)

        def visit_Getitem(self, node: Any) -> Any:
            node = transformer.generic_visit(self, node)
            return self._filter(node, _MEASURE) if isinstance(node.arg, nodes.Slice) else node

        def _filter(self, node: Any, name: str, *args: Any) -> Any:
            return nodes.Filter(node, name, [*args], [], None, None, lineno=node.lineno)

    class BoundedEnvironment(safe):
        """The immutable sandbox with bounds."""

        intercepted_binops = frozenset(("*", "**", "%"))

        def _parse(self, *args: Any) -> Any:
            tree: Any = Bounder().visit(safe._parse(self, *args))
            tree.set_environment(self)
            return tree

        def call(__self, __context: Any, __function: Any, *args: Any, **values: Any) -> Any:
            _take_steps(_CALL_STEPS)
            if isinstance(__function, runtime.LoopContext) and args:
                args = (_count_items(args[0]), *args[1:])
            elif (name := getattr(__function, "__name__", "")) in _METHODS:
                owner = getattr(__function, "__self__", None)
                if isinstance(owner, str | bytes | int):
                    if name == "join" and len(args) == 1:
                        args = ([*_count_items(args[0])],)
                    _take_characters(_bound_method(owner, name, args, values))
            return _charge_result(safe.call(__self, __context, __function, *args, **values))

        def wrap_str_format(self, value: Any) -> Any:
            run: Any = safe.wrap_str_format(self, value)
            if run is None:
                return None

            @functools.wraps(run)
            def bounded(*args: Any, **values: Any) -> str:
                _take_characters(_bound_format(value.__self__, (*args, values), "{"))
                return run(*args, **values)

            return bounded

    @jinja2.pass_context  # which keeps Jinja from running it once, at compilation
    def count(_: Any, items: Any) -> Any:
        return _count_items(items)

    @jinja2.pass_eval_context
    def join(context: Any, parts: list[Any]) -> str:
        _take_characters(_measure(parts))
        return runtime.markup_join(parts) if context.autoescape else runtime.str_join(parts)

    def concatenate(pieces: Iterable[str]) -> str:
        if isinstance(pieces, list):
            _take_characters(sum(map(len, pieces)))
            return "".join(pieces)
        parts, total = list[str](), 0
        for piece in pieces:
            total += len(piece)
            if total > RENDERED:
                break
            parts.append(piece)
        _take_characters(total)
        return "".join(parts)

    def measure_output(value: Any) -> Any:
        if type(value) is not str:
            _take_characters(_measure(value))
        return value

    environment: Any = BoundedEnvironment(finalize=measure_output, **options)
    environment.concat = concatenate
    environment.binop_table |= {"*": _multiply, "**": _raise_to_power, "%": _format_percent}
    for name, function in environment.filters.items():
        environment.filters[name] = _bound_filter(name, function)
    environment.filters |= {_COUNT: count, _ADD: _add, _JOIN: join, _MEASURE: _charge_result}
    del environment.globals["lipsum"]  # it draws random texts
    environment.bound_filter = _bound_filter
    return environment
