"""Values as canonical text: equal values have one spelling in every process, whatever their addresses and hashes are.

Plain JSON is spelled by the encoder at once. Arrays and bytes count by their content, sets and mappings whatever their
order is, objects by their public attributes. Of what has no content that can be read, only the type counts.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from enum import Enum
from functools import cached_property
from pathlib import PurePath
from typing import Any, cast

import numpy as np

_DEPTH = 12  # objects inside objects that are looked into
_OBJECT = 4096  # what spelling an object costs, in bytes of plain values
_REPR = ("datetime", "decimal", "uuid", "fractions", "zoneinfo", "ipaddress")  # whose `repr` is the value
_TENSORS = ("torch", "jax", "jaxlib", "tensorflow")


class Speller:
    """Spells values, and counts what that costs. `content` gives the digest of an array or of bytes.

    >>> Speller(lambda data: "digest").spelled([{"b": {3, 1}, "a": b"x"}])
    b'[{"a": ["bytes", "digest"], "b": ["set", ["1", "3"]]}]'
    """

    def __init__(self, content: Callable[[Any], str | None]) -> None:
        self._content, self.cost = content, 0

    def spelled(self, items: Sequence[Any]) -> bytes:
        """The text of some values."""
        try:
            return json.dumps(items, default=self._plain, sort_keys=True).encode()
        except Exception:  # keys that are no texts, cycles, objects that throw when they are asked
            return "".join(map(self._alone, items)).encode()

    def _alone(self, item: Any) -> str:
        try:
            return json.dumps(self._limited(item, _DEPTH))
        except Exception:
            return _outside(item)

    def _limited(self, thing: Any, depth: int) -> Any:
        """A value as JSON, down to a depth."""
        if isinstance(thing, bool | int | float | str | None):
            return thing
        if not depth:
            return _outside(thing)
        if isinstance(thing, list | tuple):
            return [self._limited(one, depth - 1) for one in cast("Sequence[Any]", thing)]
        if isinstance(thing, dict):
            pairs = cast("dict[Any, Any]", thing).items()
            spelled = ((json.dumps(self._limited(key, depth - 1)), self._limited(one, depth - 1)) for key, one in pairs)
            return sorted(spelled, key=lambda pair: pair[0])
        return self._limited(self._plain(thing), depth - 1)

    def _plain(self, thing: Any) -> Any:
        """What JSON lacks, as something it has or as something plainer."""
        kind = type(cast(object, thing))
        if isinstance(thing, np.generic):
            value = cast(Any, thing).item()
            return repr(cast(Any, value)) if isinstance(value, np.generic) else value
        if isinstance(thing, complex):
            return repr(thing)
        self.cost += _OBJECT
        if isinstance(thing, np.ndarray | bytes | bytearray | memoryview | range):
            self.cost += getattr(cast(Any, thing), "nbytes", 0)
            return [kind.__name__, self._content(cast(object, thing))]
        if isinstance(thing, Set):
            return ["set", sorted(self.spelled([one])[1:-1].decode() for one in cast("Iterable[Any]", thing))]
        if isinstance(thing, Enum):
            return [kind.__qualname__, thing.name]
        if isinstance(thing, PurePath):
            return [*thing.parts[-2:]]  # the same files may lie in another folder
        if (root := kind.__module__.partition(".")[0]) in _REPR:
            return repr(thing)
        if root in _TENSORS and (array := _tensor(thing)) is not None:
            return [kind.__name__, str(thing.dtype), self._plain(array)]
        if root == "PIL" and hasattr(thing, "tobytes"):
            return [thing.mode, [*thing.size], self._plain(thing.tobytes())]
        if root == "pyarrow" and hasattr(thing, "as_py"):
            return thing.as_py()
        return self._object(thing, kind)

    def _object(self, thing: Any, kind: type) -> Any:
        """An object by what it holds."""
        if isinstance(thing, type) or callable(thing):
            return [kind.__qualname__, getattr(thing, "__qualname__", "")]
        if isinstance(thing, Mapping):
            return [kind.__qualname__, dict(cast("Mapping[Any, Any]", thing))]
        if dataclasses.is_dataclass(thing):
            fields = [field.name for field in dataclasses.fields(thing) if field.compare]
            return [kind.__qualname__, {name: getattr(thing, name, None) for name in fields}]
        held = _attributes(thing, kind)
        if not held and isinstance(thing, Sequence):
            return [kind.__qualname__, *cast("Sequence[Any]", thing)]
        return [_outside(thing), held] if held else _outside(thing)


def _attributes(thing: Any, kind: type) -> dict[str, Any]:
    """The public attributes of an object, without what is computed from others."""
    slots = [name for base in kind.__mro__ for name in _names(base.__dict__.get("__slots__", ()))]
    held = {name: getattr(thing, name) for name in slots if hasattr(thing, name)} | getattr(thing, "__dict__", {})
    return {
        name: value
        for name, value in held.items()
        if not str(name).startswith("_") and not isinstance(getattr(kind, name, None), cached_property)
    }


def _names(slots: str | Iterable[str]) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


def _tensor(thing: Any) -> Any:
    """The bytes of a tensor as an array; None for what is none."""
    if hasattr(thing, "detach"):
        torch = sys.modules["torch"]
        flat = thing.detach().to_dense().cpu().contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy().reshape(*thing.shape, -1)
    if hasattr(thing, "numpy"):
        return thing.numpy()
    return np.asarray(thing) if hasattr(thing, "__array__") and hasattr(thing, "nbytes") else None


def _outside(thing: Any) -> str:
    """Of an object of which nothing is known: its type, and its length if it has one."""
    kind = type(cast(object, thing))
    length: int | str = ""
    with suppress(Exception):
        length = len(thing) if hasattr(kind, "__len__") else ""
    return f"{kind.__qualname__}:{length}"
