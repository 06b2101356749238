"""Canonical text of values: equal values have the same text in every process.

Addresses and hash seeds have no influence. The rules:

- The JSON encoder writes plain JSON directly.
- Arrays and bytes count by their content; sets and mappings regardless of their order.
- Objects count by their attributes without caches, or else by what `pickle` stores.
- Bound methods also count by their object, masked arrays by their mask, tables by their labels and
  types, lambdas by their bytecode.
- Values without readable content count by their type alone.
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

from .seeding import create_like_generator

_MAX_DEPTHS = 12, 4, 2  # nesting depths to examine; the smaller ones if there are too many values
_VALUES, _FEWEST = 1 << 18, 1 << 9  # values to examine in all items with cycles, and in each
_VALUE_COST = 64  # cost of one of them, in bytes of plain values
_OBJECT_COST = 4096  # cost of spelling an object, in bytes of plain values
_REPR_MODULES = (
    "datetime",
    "decimal",
    "uuid",
    "fractions",
    "zoneinfo",
    "ipaddress",
)  # whose `repr` is the value
_DATAFRAME_PACKAGES = ("pandas", "polars", "pyarrow")
_PLAIN_TYPES = str | bytes | int | float | complex | PurePath | np.generic
_BUILT_IN_TYPES = dict, list, tuple, set, frozenset, str, bytes, int, float, bool
_MAX_TYPED_ENTRIES = 16  # entries of a container whose types count individually
_KIND_DEPTH, _KIND_VALUES = 12, 1 << 12  # nesting depth and values of an item whose types count
_CACHE_NAME_PARTS = ("cache", "memo", "lazy")  # parts of the names of cache attributes
_TENSOR_PACKAGES = ("torch", "jax", "jaxlib", "tensorflow")


class Speller:
    """Writes values as canonical text, and counts the cost; `content` digests arrays and bytes.

    >>> Speller(lambda data: "digest").spelled([{"b": {3, 1}, "a": b"x"}])
    b'[{"a": ["bytes", "digest"], "b": ["set", ["1", "3"]]}]'
    """

    def __init__(self, content: Callable[[Any], str | None]) -> None:
        self._content, self.cost = content, 0
        self._left, self._rest = 0, _VALUES  # values left to examine: of an item, and of all
        self._depths = _MAX_DEPTHS
        self._above = list[int]()  # ids of the objects that contain the present one

    def spelled(self, items: Sequence[Any]) -> bytes:
        """Return the text of some values."""
        try:
            return json.dumps(items, default=self._plain, sort_keys=True).encode()
        except Exception:  # keys that are no texts, cycles, objects whose attributes raise
            return "".join(map(self._alone, items)).encode()

    def _alone(self, item: Any) -> str:
        """Return the text of one item, at a depth with few enough values.

        Later items use the same depth.
        """
        for number, depth in enumerate(self._depths):
            self._left, self._above = (budget := max(_FEWEST, self._rest >> 4)), []
            try:
                text = json.dumps(self._limited(item, depth))
            except _TooManyError:
                continue
            except Exception:
                break
            finally:
                self.cost += _VALUE_COST * (budget - self._left)
                self._rest -= budget - self._left
            self._depths = self._depths[number:]
            return text
        return _describe_unknown_object(item)

    def _limited(self, value: Any, depth: int) -> Any:
        """Return a value as JSON down to a depth; a cycle becomes the distance to its start."""
        if isinstance(value, bool | int | float | str | None):
            return value
        self._left -= 1
        if not self._left:
            raise _TooManyError
        if id(value) in self._above:
            return f"above:{self._above[::-1].index(id(value))}"
        if not depth:
            return _describe_unknown_object(value)
        self._above.append(id(value))
        try:
            return self._inside(value, depth - 1)
        except _TooManyError:
            raise
        except Exception:  # a part that raises does not hide the others
            return _describe_unknown_object(value)
        finally:
            self._above.pop()

    def _inside(self, value: Any, depth: int) -> Any:
        if isinstance(value, list | tuple):
            return [self._limited(part, depth) for part in cast("Sequence[Any]", value)]
        if isinstance(value, dict):
            pairs = cast("dict[Any, Any]", value).items()
            spelled = (
                (json.dumps(self._limited(key, depth)), self._limited(part, depth))
                for key, part in pairs
            )
            return sorted(spelled, key=lambda pair: pair[0])
        if isinstance(value, Set):
            return [
                "set",
                sorted(
                    json.dumps(self._limited(part, depth)) for part in cast("Iterable[Any]", value)
                ),
            ]
        return self._limited(self._plain(value), depth)

    def _plain(self, obj: Any) -> Any:
        """Convert a value that JSON lacks to one that it has, or to a simpler one."""
        kind = type(cast(object, obj))
        if isinstance(obj, np.generic):
            dtype = cast(Any, obj).dtype
            if dtype.kind in "mM":  # `item` returns integers for units that Python lacks
                return [str(dtype), int(cast(Any, obj).view(np.int64))]
            value = cast(Any, obj).item()
            return repr(cast(Any, value)) if isinstance(value, np.generic) else value
        if isinstance(obj, complex):
            return repr(obj)
        self.cost += _OBJECT_COST
        if isinstance(obj, np.ma.MaskedArray):
            masked = cast("np.ma.MaskedArray[Any, Any]", obj)
            return [
                kind.__name__,
                self._plain(masked.filled()),
                self._plain(np.ma.getmaskarray(masked)),
            ]
        if isinstance(obj, np.ndarray | bytes | bytearray | memoryview | range):
            self.cost += (
                len(obj)
                if isinstance(obj, bytes | bytearray)
                else getattr(cast(Any, obj), "nbytes", 0)
            )
            return [kind.__name__, self._content(cast(object, obj))]
        if isinstance(obj, Set):
            if not _is_flat(obj):
                # a cycle through a set is only found down to a depth
                raise _TooManyError
            return [
                "set",
                sorted(self.spelled([one])[1:-1].decode() for one in cast("Iterable[Any]", obj)),
            ]
        if isinstance(obj, Enum):
            return [kind.__qualname__, obj.name]
        if isinstance(obj, PurePath):
            return [*obj.parts[-2:]]  # the folder may differ between machines
        if (root := kind.__module__.partition(".")[0]) in _REPR_MODULES:
            return repr(obj)
        if root in _TENSOR_PACKAGES and getattr(obj, "is_nested", False):
            return [kind.__name__, *map(self._plain, obj.unbind())]
        if root in _TENSOR_PACKAGES and getattr(obj, "is_meta", False):
            return [kind.__name__, str(obj.dtype), [*obj.shape]]
        if root in _TENSOR_PACKAGES and (array := _tensor_to_array(obj)) is not None:
            return [kind.__name__, str(obj.dtype), self._plain(array)]
        if root == "PIL" and hasattr(obj, "tobytes"):
            palette = [obj.getpalette()] if obj.mode in ("P", "PA") else []
            return [obj.mode, [*obj.size], self._plain(obj.tobytes()), *palette]
        if root == "pyarrow" and hasattr(obj, "as_py"):
            return obj.as_py()
        if root in _DATAFRAME_PACKAGES and hasattr(kind, "__array__"):
            labels = [np.asarray(obj.index)] if root == "pandas" and hasattr(obj, "index") else []
            return [
                kind.__name__,
                _describe_labels(obj, root),
                *map(self._plain, [np.asarray(obj), *labels]),
            ]
        if isinstance(obj, io.BytesIO | io.StringIO):
            return [kind.__name__, obj.getvalue()]
        if isinstance(obj, BaseException):
            return [kind.__qualname__, obj.args]
        return self._object(obj, kind)

    def _object(self, obj: Any, kind: type) -> Any:
        """Return the content of an object."""
        if isinstance(obj, partial):
            partial_object = cast("partial[Any]", obj)
            return ["partial", partial_object.func, partial_object.args, partial_object.keywords]
        if isinstance(obj, FunctionType):
            cells = [cell.cell_contents for cell in obj.__closure__ or () if _is_filled(cell)]
            code = _describe_code(obj.__code__) if obj.__name__ == "<lambda>" else []
            return [
                "function",
                obj.__qualname__,
                cells,
                obj.__defaults__,
                obj.__kwdefaults__,
                *code,
            ]
        if isinstance(obj, type | MethodType | BuiltinFunctionType):
            owner = getattr(obj, "__self__", None)  # of a function of a module, the module
            return [
                kind.__qualname__,
                obj.__qualname__,
                *(() if isinstance(owner, ModuleType | None) else [owner]),
            ]
        if isinstance(obj, Mapping):
            return [kind.__qualname__, dict(cast("Mapping[Any, Any]", obj))]
        fields = _list_dataclass_fields(obj, kind)
        if fields is not None:
            others = {
                name: value
                for name, value in _collect_attributes(obj, kind).items()
                if name not in fields
            }
            attributes = others | {
                name: getattr(obj, name, None) for name, counts in fields.items() if counts
            }
            return [kind.__qualname__, attributes, self.kinds(attributes, attributes=False)]
        if (
            isinstance(kind.__reduce__, FunctionType)
            and (partial_object := _get_pickled_state(obj, kind)) is not None
        ):
            # Its class defines what reconstructs it; other attributes belong to this process.
            return [_describe_unknown_object(obj), partial_object]
        attributes = _collect_attributes(obj, kind)
        if isinstance(obj, Sequence):
            items = [*cast("Sequence[Any]", obj)]
            return [kind.__qualname__, *items, *([attributes] if attributes else [])]
        return (
            [_describe_unknown_object(obj), attributes, self.kinds(attributes, attributes=False)]
            if attributes
            else [_describe_unknown_object(obj), _get_pickled_state(obj, kind)]
        )

    def kinds(self, obj: Any, attributes: bool = True) -> Any:
        """Return the types that `spelled` omits.

        These are the types of containers, numbers and keys, the fields of named tuples, and the attributes
        of subclasses of containers, texts and numbers.

        >>> Speller(str).kinds([(1, 2.0), {1: True}])
        ['list', ['tuple', 'int', 'float'], ['dict', 'int', 'bool']]
        """
        left = _KIND_VALUES

        def inside(obj: Any, depth: int) -> Any:
            nonlocal left
            left -= 1
            kind = type(cast(object, obj))
            name: Any = kind.__name__
            if (
                attributes
                and depth >= _KIND_DEPTH - 3
                and kind not in _BUILT_IN_TYPES
                and isinstance(obj, _BUILT_IN_TYPES)
            ):
                name = self._subclass(obj, kind)
            if depth <= 0 or left <= 0:
                return name
            if isinstance(obj, list | tuple):
                items = cast("Sequence[Any]", obj)
                entries = [inside(part, depth - 1) for part in items[:_MAX_TYPED_ENTRIES]]
                return [
                    name,
                    *entries,
                    *sorted(
                        {type(part).__name__ for part in items[_MAX_TYPED_ENTRIES:_KIND_VALUES]}
                        - {*_iterate_type_names(entries)}
                    ),
                ]
            if isinstance(obj, dict):
                pairs = [*cast("dict[Any, Any]", obj).items()][:_MAX_TYPED_ENTRIES]
                parts = ((type(key).__name__, inside(part, depth - 1)) for key, part in pairs)
                return [name, *(part for pair in parts for part in pair)]
            return name

        return inside(obj, _KIND_DEPTH)

    def _subclass(self, obj: Any, kind: type[Any]) -> Any:
        """Return the name of a subclass of a built-in type, with its fields and attributes."""
        fields: list[str] = [*getattr(kind, "_fields", ())] if isinstance(obj, tuple) else []
        if isinstance(obj, Enum) or getattr(cast(Any, obj), "__dict__", None) is obj:
            return kind.__name__
        attributes = _collect_attributes(obj, kind)
        attribute_texts = [self.spelled([attributes]).decode()] if attributes else []
        return (
            [kind.__name__, *fields, *attribute_texts]
            if fields or attribute_texts
            else kind.__name__
        )


class _TooManyError(Exception):
    """An item has more values than may be examined."""


def _is_flat(obj: Any) -> bool:
    """Return whether a value is plain, or a set or tuple of plain values."""
    if isinstance(obj, Set | tuple):
        return all(map(_is_flat, cast("Iterable[Any]", obj)))
    return obj is None or isinstance(obj, _PLAIN_TYPES | Enum)


def _is_filled(cell: Any) -> bool:
    with suppress(ValueError):
        return cell.cell_contents is not cell
    return False


def _collect_attributes(obj: Any, kind: type) -> dict[str, Any]:
    """Return the attributes of an object that are not None, without caches and computed ones."""
    attributes = {
        name: value
        for name, value in _collect_all_attributes(obj, kind).items()
        if value is not None
    }
    return {
        name: value
        for name, value in attributes.items()
        if not _is_cache(str(name), value)
        and not isinstance(getattr(kind, name, None), cached_property)
    }


def _collect_all_attributes(obj: Any, kind: type) -> dict[str, Any]:
    """Return all attributes of an object."""
    slots = [
        name
        for base in kind.__mro__
        for name in _list_slot_names(base.__dict__.get("__slots__", ()))
    ]
    return {name: getattr(obj, name) for name in slots if hasattr(obj, name)} | getattr(
        obj, "__dict__", {}
    )


def _list_dataclass_fields(obj: Any, kind: type) -> dict[str, bool] | None:
    """Return the fields of a dataclass or `attrs` class, and whether each is compared."""
    if dataclasses.is_dataclass(obj):
        return {field.name: field.compare for field in dataclasses.fields(obj)}
    attrs_fields = kind.__dict__.get("__attrs_attrs__")
    return None if attrs_fields is None else {field.name: bool(field.eq) for field in attrs_fields}


def _is_cache(name: str, value: Any) -> bool:
    if (
        any(word in name.lower() for word in _CACHE_NAME_PARTS)
        or create_like_generator(value) is not None
    ):
        return True
    # Python's hashes differ between processes.
    return "hash" in name.lower() and isinstance(value, int)


def _describe_code(code: CodeType) -> list[Any]:
    """Return the code of a lambda: bytecode, names and constants."""
    consts = [
        _describe_code(const) if isinstance(const, CodeType) else const for const in code.co_consts
    ]
    return [code.co_code, [*code.co_names], consts]


def _describe_labels(obj: Any, root: str) -> list[Any]:
    """Return the names and types of a table, a column or an index."""
    if root == "pyarrow":
        return [str(getattr(obj, "schema", None) or obj.type)]
    if root == "polars":
        return [[*map(str, getattr(obj, part, ()))] for part in ("columns", "dtypes")]
    types = (
        [*obj.dtypes] if hasattr(obj, "columns") else [obj.dtype] if hasattr(obj, "dtype") else []
    )
    names = [getattr(obj, "name", None), [*getattr(getattr(obj, "index", obj), "names", ())]]
    return [repr([*getattr(obj, "columns", ())]), repr(names), [*map(repr, types)]]


def _iterate_type_names(kinds: Iterable[Any]) -> Iterator[str]:
    """Yield the names of types; a container yields its own name."""
    for kind in kinds:
        while isinstance(kind, list):
            kind = cast("list[Any]", kind)[0]
        yield kind


def _get_pickled_state(obj: Any, kind: type) -> Any:
    """Return what `pickle` stores of an object, or None if it cannot be pickled."""
    try:
        reduce: Any = copyreg.dispatch_table.get(kind)
        reduced: Any = reduce(obj) if reduce else obj.__reduce_ex__(4)
    except Exception:  # files, locks, results of matches
        return None
    if isinstance(reduced, str):
        return reduced
    return [
        [*cast("Iterator[Any]", part)] if isinstance(part, Iterator) else part
        for part in reduced[1:]
    ]


def _list_slot_names(slots: str | Iterable[str]) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


def _tensor_to_array(obj: Any) -> Any:
    """Return the bytes of a tensor as an array, or None for other values."""
    if hasattr(obj, "detach"):
        torch = sys.modules["torch"]
        flat = obj.detach().to_dense().resolve_conj().resolve_neg().cpu().reshape(-1)
        flat = flat.clone(memory_format=torch.contiguous_format)  # one element may have any stride
        return flat.view(torch.uint8).numpy().reshape(*obj.shape, obj.element_size())
    if hasattr(obj, "numpy"):
        return obj.numpy()
    return np.asarray(obj) if hasattr(obj, "__array__") and hasattr(obj, "nbytes") else None


def _describe_unknown_object(obj: Any) -> str:
    """Return the type of an unknown object, and its length if it has one."""
    kind = type(cast(object, obj))
    length: int | str = ""
    with suppress(Exception):
        length = len(obj) if hasattr(kind, "__len__") else ""
    return f"{kind.__qualname__}:{length}"
