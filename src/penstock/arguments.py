"""Checks of arguments, names and choices, whose errors suggest the nearest valid one."""

from __future__ import annotations

import json
from abc import ABCMeta
from collections.abc import Callable, Iterable, KeysView, Mapping, Sequence
from functools import cache, wraps
from inspect import CO_VARKEYWORDS, isfunction
from numbers import Real
from operator import index
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar, cast

import numpy as np

from .errors import ConfigError
from .types import MAX_POSITION, Ints

T = TypeVar("T", bound=Callable[..., Any])
Part = TypeVar("Part")

_SHOWN_VALUE = 20  # characters of a value in a hint
_MAX_FLOAT_INT = 1 << 1000  # larger integers have no float


def _is_text(value: Any) -> bool:
    # Unpaired surrogates have no encoding.
    return isinstance(value, str) and not any("\ud800" <= char <= "\udfff" for char in value)


def _is_list_of_names(value: Any) -> bool:
    # Not a set, whose order differs between processes. A single name has its own error, which
    # shows how to write it.
    is_ordered = isinstance(value, Sequence | Mapping | KeysView)
    return is_ordered and all(map(_is_text, cast("Iterable[Any]", value)))


def _is_number(value: Any) -> bool:
    return abs(value) <= _MAX_FLOAT_INT if isinstance(value, int) else isinstance(value, Real)


def _is_path(value: Any) -> bool:
    return isinstance(value, str) or hasattr(value, "__fspath__")


def _is_text_or_function(value: Any) -> bool:
    return _is_text(value) or callable(value)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool | np.bool_)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


_CHECK_BY_ANNOTATION: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "bool": ("True or False", _is_bool),
    "str": ("a string", _is_text),
    "Long": ("a string", _is_text),
    "float": ("a number", _is_number),
    "str | Path": ("a path", _is_path),
    "Sequence[str]": ("a list of names", _is_list_of_names),
    "Mapping[str, Any]": ("a dict by name", _is_mapping),
    "Mapping[str, int] | None": ("a dict of numbers by name", _is_mapping),
    "str | TokenCounter": ("a column, or a function of a file", _is_text_or_function),
    "FormatName | str | Callable[[Path], Any]": ("a name, or a function", _is_text_or_function),
    "Callable[[Any, str, int, int], Any]": ("a function", callable),
}
"""Description and check of the values of an annotation, as written in the source.

Annotations whose functions raise better errors are missing.
"""

_TORCH_WORKERS_REMEDY = (
    "penstock.integrations.torch.IterableDataset(ds) for torch's DataLoader, or use the loader in "
    "its place"
)
OPERATOR_REMEDIES = {
    "Dataset": {"__add__": "a.concat(b)", "__mul__": ".repeat(n)"},
    "Plan": {"__iter__": "list(ds) for samples, plan.at(0) for a position, or plan.table(0, 10)"},
    "Loader": {"__getitem__": _TORCH_WORKERS_REMEDY, "__reduce_ex__": _TORCH_WORKERS_REMEDY},
}


@cache
def _load_hints() -> Any:
    """Return what other libraries call our arguments, and what replaces their other names.

    - `synonyms`: lists of arguments that mean the same; the suggestion is the one that the function has
    - `options`: by function, arguments of other libraries, and what replaces them
    - `fallbacks`: by function, a line for any other unknown argument
    - `remedies`: arguments of other libraries that are no arguments here, for all functions
    - `names`: by owner, attributes of other libraries and their equivalents here
    """
    return json.loads(Path(__file__).with_name("argument_hints.json").read_bytes())


def make_not_dataset_error(where: str, given: object) -> ConfigError:
    """Return the error for an object that is no dataset, with a way to create one from it.

    >>> print(make_not_dataset_error("concat", "a.jsonl"))
    concat: str is not a dataset; read the file: ps.read('a.jsonl')
    """
    name = type(given).__name__
    if isinstance(given, str | Path):
        reader = "load" if str(given).endswith((".yaml", ".yml")) else "read"
        remedy = f"read the file: ps.{reader}({str(given)!r})"
    elif type(given).__module__.startswith(__name__.partition(".")[0] + "."):
        remedy = "give the dataset that it reads"
    else:
        is_table = hasattr(given, "__arrow_c_stream__") or hasattr(given, "column_names")
        remedy = "read it: ps.read(...)" if is_table else "wrap it with ps.from_sequence(...)"
        if (module := type(given).__module__) != "builtins":
            name = f"{module}.{name}"
    return ConfigError(f"{where}: {name} is not a dataset; {remedy}")


def join_first(names: Iterable[object], most: int = 3) -> str:
    """Format the first `most` names and the number of the others.

    >>> join_first(["a", "b", "c", "d", "e"])
    "['a', 'b', 'c'] and 2 more"
    """
    listed = list(names)
    return f"{listed[:most]}" + (f" and {len(listed) - most} more" if len(listed) > most else "")


def suggest_names(word: object, known: Iterable[str]) -> str:
    """Return a "did you mean" for the end of a message; empty if no name is similar.

    >>> suggest_names("wieght", ["weight", "path"])
    "; did you mean 'weight'?"
    >>> suggest_names("text", ["texts", "web/text"])
    "; did you mean 'web/text'?"
    """
    from difflib import get_close_matches

    names, word = list(known), str(word)
    matches = [name for name in names if name.rpartition("/")[2] == word][:3] or get_close_matches(
        word, names, 3
    )
    return f"; did you mean {' or '.join(map(repr, matches))}?" if matches else ""


def check_choice(value: object, choices: tuple[str, ...], where: str) -> None:
    """Raise `ConfigError` if a value is none of the choices.

    `where` names the argument, with `{}` for the value.

    >>> check_choice("lineer", ("step", "linear"), "Schedule(interpolation={})")
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: Schedule(interpolation='lineer'): choose 'step' or 'linear'; did you mean 'linear'?
    """
    if not isinstance(value, str) or value not in choices:
        *first, last = map(repr, choices)
        raise ConfigError(
            f"{where.format(repr(value))}: choose {', '.join(first)} or "
            f"{last}{suggest_names(value, choices)}"
        )


def require_protocol(part: Part, contract: type, where: str) -> Part:
    """Return the object; raise `ConfigError` if it lacks a method, or is a class.

    >>> from penstock.types import Order
    >>> require_protocol("abc", Order, "reorder()")
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: reorder(): str has no size, down, up, describe; see Order in penstock.types
    """
    if isinstance(part, type):
        raise ConfigError(
            f"{where}: {part.__name__} is a class; give an object, {part.__name__}(...)"
        )
    methods = [name for name in vars(contract) if not name.startswith("_")]
    if missing := [name for name in methods if not callable(getattr(part, name, None))]:
        raise ConfigError(
            f"{where}: {type(part).__name__} has no {', '.join(missing)}; see {contract.__name__} "
            "in penstock.types"
        )
    return part


def require_no_lightning(function: FrameType | None, problem: str) -> None:
    """Raise `ConfigError` if Lightning's Trainer called a function, given as its stack frame.

    Lightning asks for as many batches as a pass has, never for its end. So the next epoch of a
    loader would get the empty rest of that pass, and an evaluation the rest behind the sanity check.
    A dataset knows neither epochs nor ranks.
    """
    caller = function and function.f_back
    module: str = caller.f_globals.get("__name__", "") if caller else ""
    if module.startswith(("lightning.pytorch.", "pytorch_lightning.")):
        raise ConfigError(
            f"{problem}: train with "
            "data = TrainLoader(lambda: ps.Loader(ds)) and Trainer(callbacks=[data]).fit(model, data), "
            "from penstock.integrations.lightning; evaluate with EvalLoader(lambda: ps.Loader(ds)), "
            "from penstock.integrations.trainers"
        )


def validate_arguments(target: T) -> T:
    """Decorate a function, or a class, to check arguments and suggest corrections.

    It corrects names of arguments and, for classes, of attributes. It checks values of arguments by
    their annotations.

    >>> @validate_arguments
    ... def ask(workers=0): ...
    >>> ask(num_workers=2)
    Traceback (most recent call last):
    ...
    TypeError: ask() has no argument 'num_workers'; did you mean workers=?
    >>> @validate_arguments
    ... def read(paths, columns: Sequence[str] | None = None): ...
    >>> read("a.jsonl", columns=5)
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: read(columns=5): give a list of names, or None
    """
    if isfunction(target):
        return _wrap_with_checks(target, target.__qualname__)
    return _add_hints(target)


def _add_hints(kind: Any) -> Any:
    package = __name__.partition(".")[0]
    for base in (base for base in kind.__mro__ if base.__module__.startswith(f"{package}.")):
        for name, method in cast("dict[str, Any]", {**base.__dict__}).items():
            is_checked = base is not kind and hasattr(method, "__wrapped__")
            if not isfunction(method) or is_checked or getattr(kind, name) is not method:
                continue
            if name == "__init__" or not name.startswith("_"):
                setattr(kind, name, _wrap_with_checks(method, f"{kind.__name__}.{name}"))
    for operator, instead in OPERATOR_REMEDIES.get(kind.__name__, {}).items():
        setattr(
            kind,
            operator,
            _make_raising_operator(f"{kind.__name__} has no {operator}; write {instead}"),
        )
    # Set here, because a type checker that sees __getattr__ accepts every name.
    kind.__getattr__ = _raise_unknown_attribute
    return kind


class HintingType(ABCMeta):
    """Class whose unknown attributes are answered with a hint, as in `Dataset.from_pandas`.

    >>> class Reader(metaclass=HintingType): ...
    >>> Reader.shufle
    Traceback (most recent call last):
    ...
    AttributeError: Reader has no 'shufle'; see help(Reader)
    """


def _raise_unknown_class_attribute(self: type, name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"type object {self.__name__!r} has no attribute {name!r}")
    raise make_attribute_error(
        self.__name__, name, (known for known in dir(self) if not known.startswith("_"))
    )


# Set here, because a type checker that sees __getattr__ accepts every name.
setattr(HintingType, "__getattr__", _raise_unknown_class_attribute)  # noqa: B010


def make_attribute_error(owner: str, name: str, known: Iterable[str]) -> AttributeError:
    """Return the error for an unknown attribute of a class or module."""
    instead = _load_hints()["names"].get(owner, {}).get(name)
    hint = f"; write {instead}" if instead else suggest_names(name, known)
    if not hint:
        field = (
            f"for a field of a sample write ds[0][{name!r}], else " if owner == "Dataset" else ""
        )
        hint = f"; {field}see help({owner})"
    # obj=None, because Python would add a suggestion of its own.
    return AttributeError(f"{owner} has no {name!r}{hint}", name=name, obj=None)


def _raise_unknown_attribute(self: object, name: str) -> Any:
    kind = type(self)
    if name.startswith("_") or hasattr(kind, name):
        # Python's own error, or the error that a property raised.
        return object.__getattribute__(self, name)
    raise make_attribute_error(
        kind.__name__, name, (known for known in dir(kind) if not known.startswith("_"))
    )


def _make_raising_operator(message: str) -> Callable[..., NoReturn]:
    def operator(self: object, other: object = None) -> NoReturn:
        raise TypeError(message)

    return operator


def _wrap_with_checks(fn: Any, qualname: str) -> Any:
    code = fn.__code__  # runs at every import, and inspect.signature is ten times slower
    if code.co_flags & CO_VARKEYWORDS:
        return fn
    variables = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    positional, names = variables[: code.co_argcount], variables[code.co_posonlyargcount :]
    shown, checks = qualname.removesuffix(".__init__"), list[tuple[str, str, Any]]()
    for name in variables:
        # Annotations are read as text, so none is evaluated at import.
        hint = str(fn.__annotations__.get(name, ""))
        bare = hint.removesuffix(" | None")
        if check := _CHECK_BY_ANNOTATION.get(hint) or _CHECK_BY_ANNOTATION.get(bare):
            checks.append((name, hint, check))

    @wraps(fn)
    def checked(*args: Any, **given: Any) -> Any:
        for word, value in given.items():
            if word not in names:
                hint = _suggest_argument(shown, word, value, names)
                raise TypeError(f"{shown}() has no argument {word!r}; {hint}")
        values = {**dict(zip(positional, args, strict=False)), **given} if checks else {}
        for name, hint, (words, fits) in checks:
            if name in values and not fits(value := values[name]):
                optional = hint.endswith(" | None")
                if not (optional and value is None):
                    step, also = shown.rpartition(".")[2], ", or None" if optional else ""
                    raise ConfigError(f"{step}({name}={value!r}): give {words}{also}")
        return fn(*args, **given)

    return checked


def _suggest_argument(function: str, word: str, value: object, names: Sequence[str]) -> str:
    hints = _load_hints()
    if function == "mix" and hasattr(value, "plan"):
        return f"write mix({{{word!r}: ...}})"
    for words, instead in hints["options"].get(function, ()):
        if word in words:
            is_short = (
                isinstance(value, bool | int | str | None) and len(repr(value)) < _SHOWN_VALUE
            )
            return instead.replace("ARGUMENT", f"{word}={value!r}" if is_short else f"{word}=...")
    from difflib import get_close_matches

    synonyms = [
        name for words in hints["synonyms"] if word in words for name in names if name in words
    ]
    remedy = hints["remedies"].get(word)
    if matches := synonyms or ([] if remedy else get_close_matches(word, names, 1)):
        return f"did you mean {matches[0]}=?"
    remedy = remedy or hints["fallbacks"].get(function)
    return remedy or f"its arguments are {join_first(name for name in names if name != 'self')}"


# ---------------------------------------------------------------- integers


def check_int(value: Any, where: str, least: int | None = None, most: int | None = None) -> int:
    """Return an argument that must be an integer between `least` and `most`.

    NumPy integers are valid, bools are not. `where` names the argument, with `{}` for the value.

    >>> check_int(np.int32(3), "batch({})", 1)
    3
    >>> check_int(2.5, "limit({})", 0)
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: limit(2.5): give a whole number of at least 0
    """
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    large = most is not None and number is not None and number > most
    if number is None or large or (least is not None and number < least):
        bound = f" of at most {most}" if large else "" if least is None else f" of at least {least}"
        raise ConfigError(f"{where.format(repr(value))}: give a whole number{bound}")
    return number


def check_padding(values: Iterable[Any], where: str) -> None:
    """Raise `ConfigError` unless all padding values are numbers.

    >>> check_padding([None], "pad({})")
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: pad(None): a padding value is a number; a tokenizer may have none, so choose one
    """
    for value in values:
        if not isinstance(value, Real | np.bool_):
            raise ConfigError(
                f"{where.format(repr(value))}: a padding value is a number"
                + ("; a tokenizer may have none, so choose one" if value is None else "")
            )


def check_indices(values: Any, where: str) -> Ints:
    """Return indices as a vector, from a list, a range, or an array of any integer dtype.

    >>> check_indices([3, 1], "select({})").tolist()
    [3, 1]
    >>> check_indices([True, False], "select({})")
    Traceback (most recent call last):
    ...
    penstock.errors.ConfigError: select([True, False]): this is a mask; give indices, np.flatnonzero(mask)
    """
    array = np.asarray(values) if hasattr(values, "ndim") else np.asarray(values, object)
    kinds: set[type] = set(map(type, array.flat)) if array.dtype == object else {array.dtype.type}
    if array.size and kinds <= {bool, np.bool_}:
        problem = "this is a mask; give indices, np.flatnonzero(mask)"
    elif array.ndim == 1 and (
        not array.size or all(issubclass(kind, int | np.integer) for kind in kinds)
    ):
        for extreme in (array.min(initial=0), array.max(initial=0)):
            check_position(int(extreme))
        return array.astype(np.int64)
    else:
        problem = "give a vector of whole numbers, such as [3, 1]"
        if str in kinds:
            problem += "; for columns write .map(lambda row: {'text': row['text']})"
    raise ConfigError(f"{where.format(repr(values)[:60])}: {problem}")


def check_position(position: int, each: int = 1) -> None:
    """Raise `IndexError` if a position, times `each`, exceeds the limit of positions.

    >>> check_position(1 << 40)
    >>> check_position(1 << 58, 8)
    Traceback (most recent call last):
    ...
    IndexError: position 288230376151711744 of 8 samples each: positions are counted up to 2^60
    """
    if not abs(position) * each < MAX_POSITION:
        raise make_position_error(position, each)


def make_position_error(position: int, each: int = 1) -> IndexError:
    """Return the error for a position beyond the limit."""
    groups = f" of {each} samples each" if each > 1 else ""
    return IndexError(f"position {position}{groups}: positions are counted up to 2^60")
