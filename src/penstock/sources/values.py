"""Values as canonical text: equal values have one spelling in every process, whatever their
addresses and hashes are.

Plain JSON is spelled by the encoder at once. Arrays and bytes count by their content, sets and
mappings whatever their order is, objects by their attributes without caches, or else by what
`pickle` stores; bound methods also by their object, masked arrays by their mask, tables by their
labels and types, lambdas by their bytecode. Of what has no content that can be read, only the type
counts.
"""

from __future__ import annotations

import copyreg
import dataclasses
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from enum import Enum
from functools import cached_property, partial
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import numpy as np

from ..engine.base.machine import seeded_like

_DEPTHS = 12, 4, 2  # objects inside objects that are looked into: fewer where there are too many
_VALUES, _FEWEST = (
    1 << 18,
    1 << 9,
)  # that are looked at in all items with cycles, and at least in each
_VALUE = 64  # what one of them costs, in bytes of plain values
_OBJECT = 4096  # what spelling an object costs, in bytes of plain values
_REPR = (
    "datetime",
    "decimal",
    "uuid",
    "fractions",
    "zoneinfo",
    "ipaddress",
)  # whose `repr` is the value
_FRAMES = ("pandas", "polars", "pyarrow")
_PLAIN = str | bytes | int | float | complex | PurePath | np.generic
_BUILT_IN = dict, list, tuple, set, frozenset, str, bytes, int, float, bool
_KINDS = 16  # entries of a container whose types count each, with what they hold
_KIND_DEPTH, _KIND_VALUES = (
    12,
    1 << 12,
)  # containers inside containers, and values of an item, whose types count
_CACHES = ("cache", "memo", "lazy")  # in the names of attributes
_TENSORS = ("torch", "jax", "jaxlib", "tensorflow")


class Speller:
    """Spells values, and counts what that costs. `content` gives the digest of an array or of
    bytes.

    >>> Speller(lambda data: "digest").spelled([{"b": {3, 1}, "a": b"x"}])
    b'[{"a": ["bytes", "digest"], "b": ["set", ["1", "3"]]}]'
    """

    def __init__(self, content: Callable[[Any], str | None]) -> None:
        self._content, self.cost = content, 0
        self._left, self._rest = (
            0,
            _VALUES,
        )  # values that may still be looked at: of an item, and of all
        self._depths = _DEPTHS
        self._above = list[
            int
        ]()  # the objects that hold the one that is being spelled, by their identity

    def spelled(self, items: Sequence[Any]) -> bytes:
        """The text of some values."""
        try:
            return json.dumps(items, default=self._plain, sort_keys=True).encode()
        except Exception:  # keys that are no texts, cycles, objects that throw when they are asked
            return "".join(map(self._alone, items)).encode()

    def _alone(self, item: Any) -> str:
        """One item, down to a depth at which it has few values; the items after it are spelled to
        that depth."""
        for number, depth in enumerate(self._depths):
            self._left, self._above = (most := max(_FEWEST, self._rest >> 4)), []
            try:
                text = json.dumps(self._limited(item, depth))
            except _TooManyError:
                continue
            except Exception:
                break
            finally:
                self.cost += _VALUE * (most - self._left)
                self._rest -= most - self._left
            self._depths = self._depths[number:]
            return text
        return _outside(item)

    def _limited(self, thing: Any, depth: int) -> Any:
        """A value as JSON, down to a depth. What holds itself is named there by how far above it
        lies."""
        if isinstance(thing, bool | int | float | str | None):
            return thing
        self._left -= 1
        if not self._left:
            raise _TooManyError
        if id(thing) in self._above:
            return f"above:{self._above[::-1].index(id(thing))}"
        if not depth:
            return _outside(thing)
        self._above.append(id(thing))
        try:
            return self._inside(thing, depth - 1)
        except _TooManyError:
            raise
        except Exception:  # a part that throws when it is asked does not hide the others
            return _outside(thing)
        finally:
            self._above.pop()

    def _inside(self, thing: Any, depth: int) -> Any:
        if isinstance(thing, list | tuple):
            return [self._limited(one, depth) for one in cast("Sequence[Any]", thing)]
        if isinstance(thing, dict):
            pairs = cast("dict[Any, Any]", thing).items()
            spelled = (
                (json.dumps(self._limited(key, depth)), self._limited(one, depth))
                for key, one in pairs
            )
            return sorted(spelled, key=lambda pair: pair[0])
        if isinstance(thing, Set):
            return [
                "set",
                sorted(
                    json.dumps(self._limited(one, depth)) for one in cast("Iterable[Any]", thing)
                ),
            ]
        return self._limited(self._plain(thing), depth)

    def _plain(self, thing: Any) -> Any:
        """Return a value that JSON lacks as one that it has, or as a plainer one."""
        kind = type(cast(object, thing))
        if isinstance(thing, np.generic):
            if (
                dtype := cast(Any, thing).dtype
            ).kind in "mM":  # as `item`, units that Python lacks are integers
                return [str(dtype), int(cast(Any, thing).view(np.int64))]
            value = cast(Any, thing).item()
            return repr(cast(Any, value)) if isinstance(value, np.generic) else value
        if isinstance(thing, complex):
            return repr(thing)
        self.cost += _OBJECT
        if isinstance(thing, np.ma.MaskedArray):
            masked = cast("np.ma.MaskedArray[Any, Any]", thing)
            return [
                kind.__name__,
                self._plain(masked.filled()),
                self._plain(np.ma.getmaskarray(masked)),
            ]
        if isinstance(thing, np.ndarray | bytes | bytearray | memoryview | range):
            self.cost += (
                len(thing)
                if isinstance(thing, bytes | bytearray)
                else getattr(cast(Any, thing), "nbytes", 0)
            )
            return [kind.__name__, self._content(cast(object, thing))]
        if isinstance(thing, Set):
            if not _is_flat(thing):
                # what refers to itself by way of a set is only found out down to a depth
                raise _TooManyError
            return [
                "set",
                sorted(self.spelled([one])[1:-1].decode() for one in cast("Iterable[Any]", thing)),
            ]
        if isinstance(thing, Enum):
            return [kind.__qualname__, thing.name]
        if isinstance(thing, PurePath):
            return [*thing.parts[-2:]]  # the same files may lie in another folder
        if (root := kind.__module__.partition(".")[0]) in _REPR:
            return repr(thing)
        if root in _TENSORS and getattr(thing, "is_nested", False):
            return [kind.__name__, *map(self._plain, thing.unbind())]
        if root in _TENSORS and getattr(thing, "is_meta", False):
            return [kind.__name__, str(thing.dtype), [*thing.shape]]
        if root in _TENSORS and (array := _tensor(thing)) is not None:
            return [kind.__name__, str(thing.dtype), self._plain(array)]
        if root == "PIL" and hasattr(thing, "tobytes"):
            palette = [thing.getpalette()] if thing.mode in ("P", "PA") else []
            return [thing.mode, [*thing.size], self._plain(thing.tobytes()), *palette]
        if root == "pyarrow" and hasattr(thing, "as_py"):
            return thing.as_py()
        if root in _FRAMES and hasattr(kind, "__array__"):
            labels = (
                [np.asarray(thing.index)] if root == "pandas" and hasattr(thing, "index") else []
            )
            return [
                kind.__name__,
                _labels(thing, root),
                *map(self._plain, [np.asarray(thing), *labels]),
            ]
        if isinstance(thing, io.BytesIO | io.StringIO):
            return [kind.__name__, thing.getvalue()]
        if isinstance(thing, BaseException):
            return [kind.__qualname__, thing.args]
        return self._object(thing, kind)

    def _object(self, thing: Any, kind: type) -> Any:
        """An object by what it holds."""
        if isinstance(thing, partial):
            made = cast("partial[Any]", thing)
            return ["partial", made.func, made.args, made.keywords]
        if isinstance(thing, FunctionType):
            cells = [cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell)]
            code = _code(thing.__code__) if thing.__name__ == "<lambda>" else []
            return [
                "function",
                thing.__qualname__,
                cells,
                thing.__defaults__,
                thing.__kwdefaults__,
                *code,
            ]
        if isinstance(thing, type | MethodType | BuiltinFunctionType):
            owner = getattr(thing, "__self__", None)  # of a function of a module, the module
            return [
                kind.__qualname__,
                thing.__qualname__,
                *(() if isinstance(owner, ModuleType | None) else [owner]),
            ]
        if isinstance(thing, Mapping):
            return [kind.__qualname__, dict(cast("Mapping[Any, Any]", thing))]
        fields = _fields(thing, kind)
        if fields is not None:
            others = {
                name: value
                for name, value in _attributes(thing, kind).items()
                if name not in fields
            }
            held = others | {
                name: getattr(thing, name, None) for name, counts in fields.items() if counts
            }
            return [kind.__qualname__, held, self.kinds(held, attributes=False)]
        if (
            isinstance(kind.__reduce__, FunctionType)
            and (made := _pickled(thing, kind)) is not None
        ):
            return [
                _outside(thing),
                made,
            ]  # its class says what makes it again: other attributes are of this process
        held = _attributes(thing, kind)
        if isinstance(thing, Sequence):
            items = [*cast("Sequence[Any]", thing)]
            return [kind.__qualname__, *items, *([held] if held else [])]
        return (
            [_outside(thing), held, self.kinds(held, attributes=False)]
            if held
            else [_outside(thing), _pickled(thing, kind)]
        )

    def kinds(self, thing: Any, attributes: bool = True) -> Any:
        """Return what `spelled` leaves out of a value and its parts: the types of containers,
        numbers and keys, the fields of named tuples, and the attributes of subclasses of
        containers, texts and numbers.

        >>> Speller(str).kinds([(1, 2.0), {1: True}])
        ['list', ['tuple', 'int', 'float'], ['dict', 'int', 'bool']]
        """
        left = _KIND_VALUES

        def inside(thing: Any, depth: int) -> Any:
            nonlocal left
            left -= 1
            kind = type(cast(object, thing))
            name: Any = kind.__name__
            if (
                attributes
                and depth >= _KIND_DEPTH - 3
                and kind not in _BUILT_IN
                and isinstance(thing, _BUILT_IN)
            ):
                name = self._subclass(thing, kind)
            if depth <= 0 or left <= 0:
                return name
            if isinstance(thing, list | tuple):
                items = cast("Sequence[Any]", thing)
                each = [inside(one, depth - 1) for one in items[:_KINDS]]
                return [
                    name,
                    *each,
                    *sorted(
                        {type(one).__name__ for one in items[_KINDS:_KIND_VALUES]} - {*_texts(each)}
                    ),
                ]
            if isinstance(thing, dict):
                pairs = [*cast("dict[Any, Any]", thing).items()][:_KINDS]
                parts = ((type(key).__name__, inside(one, depth - 1)) for key, one in pairs)
                return [name, *(part for pair in parts for part in pair)]
            return name

        return inside(thing, _KIND_DEPTH)

    def _subclass(self, thing: Any, kind: type[Any]) -> Any:
        """The name of a type that extends one of Python's, with the fields and the attributes of
        the value."""
        fields: list[str] = [*getattr(kind, "_fields", ())] if isinstance(thing, tuple) else []
        if isinstance(thing, Enum) or getattr(cast(Any, thing), "__dict__", None) is thing:
            return kind.__name__
        held = _attributes(thing, kind)
        told = [self.spelled([held]).decode()] if held else []
        return [kind.__name__, *fields, *told] if fields or told else kind.__name__


class _TooManyError(Exception):
    """An item has more values than are looked at."""


def _is_flat(thing: Any) -> bool:
    """Return whether a value is plain, or a set or tuple of plain values."""
    if isinstance(thing, Set | tuple):
        return all(map(_is_flat, cast("Iterable[Any]", thing)))
    return thing is None or isinstance(thing, _PLAIN | Enum)


def _is_filled(cell: Any) -> bool:
    with suppress(ValueError):
        return cell.cell_contents is not cell
    return False


def _attributes(thing: Any, kind: type) -> dict[str, Any]:
    """Return the attributes of an object that are not None, without caches and what is computed
    from others."""
    held = {name: value for name, value in _held(thing, kind).items() if value is not None}
    return {
        name: value
        for name, value in held.items()
        if not _is_cache(str(name), value)
        and not isinstance(getattr(kind, name, None), cached_property)
    }


def _held(thing: Any, kind: type) -> dict[str, Any]:
    """All attributes of an object."""
    slots = [name for base in kind.__mro__ for name in _names(base.__dict__.get("__slots__", ()))]
    return {name: getattr(thing, name) for name in slots if hasattr(thing, name)} | getattr(
        thing, "__dict__", {}
    )


def _fields(thing: Any, kind: type) -> dict[str, bool] | None:
    """Return the fields of a dataclass, and whether they count when values are compared; those of
    `attrs` too."""
    if dataclasses.is_dataclass(thing):
        return {field.name: field.compare for field in dataclasses.fields(thing)}
    made = kind.__dict__.get("__attrs_attrs__")
    return None if made is None else {field.name: bool(field.eq) for field in made}


def _is_cache(name: str, value: Any) -> bool:
    if any(word in name.lower() for word in _CACHES) or seeded_like(value) is not None:
        return True
    return "hash" in name.lower() and isinstance(
        value, int
    )  # of Python, hashes differ in each process


def _code(code: CodeType) -> list[Any]:
    """Return what a lambda does: its bytecode, names and constants."""
    consts = [_code(const) if isinstance(const, CodeType) else const for const in code.co_consts]
    return [code.co_code, [*code.co_names], consts]


def _labels(thing: Any, root: str) -> list[Any]:
    """Return the names and types of a table, a column or an index."""
    if root == "pyarrow":
        return [str(getattr(thing, "schema", None) or thing.type)]
    if root == "polars":
        return [[*map(str, getattr(thing, part, ()))] for part in ("columns", "dtypes")]
    types = (
        [*thing.dtypes]
        if hasattr(thing, "columns")
        else [thing.dtype]
        if hasattr(thing, "dtype")
        else []
    )
    names = [getattr(thing, "name", None), [*getattr(getattr(thing, "index", thing), "names", ())]]
    return [repr([*getattr(thing, "columns", ())]), repr(names), [*map(repr, types)]]


def _texts(kinds: Iterable[Any]) -> Iterator[str]:
    """Return the names of types that were told, of containers the outer one."""
    for kind in kinds:
        while isinstance(kind, list):
            kind = cast("list[Any]", kind)[0]
        yield kind


def _pickled(thing: Any, kind: type) -> Any:
    """Return what `pickle` makes an object of again, such as a compiled expression; None if it
    cannot be pickled."""
    try:
        reduce: Any = copyreg.dispatch_table.get(kind)
        made: Any = reduce(thing) if reduce else thing.__reduce_ex__(4)
    except Exception:  # files, locks, results of matches
        return None
    if isinstance(made, str):
        return made
    return [
        [*cast("Iterator[Any]", part)] if isinstance(part, Iterator) else part for part in made[1:]
    ]


def _names(slots: str | Iterable[str]) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


def _tensor(thing: Any) -> Any:
    """The bytes of a tensor as an array; None for what is none."""
    if hasattr(thing, "detach"):
        torch = sys.modules["torch"]
        flat = thing.detach().to_dense().resolve_conj().resolve_neg().cpu().reshape(-1)
        flat = flat.clone(memory_format=torch.contiguous_format)  # one element may have any stride
        return flat.view(torch.uint8).numpy().reshape(*thing.shape, thing.element_size())
    if hasattr(thing, "numpy"):
        return thing.numpy()
    return np.asarray(thing) if hasattr(thing, "__array__") and hasattr(thing, "nbytes") else None


def _outside(thing: Any) -> str:
    """Return the type of an unknown object, and its length if it has one."""
    kind = type(cast(object, thing))
    length: int | str = ""
    with suppress(Exception):
        length = len(thing) if hasattr(kind, "__len__") else ""
    return f"{kind.__qualname__}:{length}"
