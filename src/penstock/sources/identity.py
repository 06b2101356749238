"""What data is: digests by which a state knows the data that it was saved over.

What lies in memory is hashed itself. Files are known by their sizes and a few blocks of at most 16 of them; where these
differ (moved, re-sharded, compressed anew), by 64 rows. What was found out about files is kept in the cache, so that
one process of a machine reads them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from ..base import seams
from ..base.progress import Progress
from ..base.random import hash64
from ..errors import StorageError
from ..types import Ints
from . import sidecar
from .remember import remembered

WHOLE = 256 << 20
"""Bytes up to which data in memory is hashed whole; from more, blocks are taken."""

_BLOCK = 1 << 20
_BLOCKS = 64
_FILES, _PIECE = 16, 64 << 10  # files that are looked into, and the bytes of each of three places
_PLACES, _NEIGHBOURS = 16, 4  # rows that are compared: so many places, so many rows at each
_ITEMS = 1 << 10
_VERSION = 1

Digest = Mapping[str, str]


@runtime_checkable
class Known(Protocol):
    """A source that can say what its data is: a text, or texts by the name of what they tell about."""

    def digest(self) -> str | Digest: ...


@cache
def knows(kind: type) -> bool:
    """Whether sources of this type can say what their data is: by type, because protocols are slow to ask."""
    return issubclass(kind, Known)


@runtime_checkable
class Growing(Protocol):
    """A source to which rows may be added: what its first `rows` hold, in those parts of `digest` that tell of rows."""

    def digest_of(self, rows: int, /) -> Digest: ...


class _Hash:
    def __init__(self) -> None:
        self._hash, self.size = hashlib.blake2b(digest_size=8), 0

    def add(self, data: bytes | memoryview) -> None:
        self._hash.update(data)
        self.size += len(data)

    def text(self) -> str:
        return self._hash.hexdigest()


def content(thing: Any) -> str | None:
    """The digest of what lies in memory: arrays, bytes, text, numbers, and lists and dicts of those. Of other objects
    inside only the type and the length count; None for an object that is none of these.

    >>> content([1, 2.5, {"a": b"x"}]) == content([1, 2.5, {"a": b"x"}]), content([1]) == content([2])
    (True, False)
    """
    found = _Hash()
    if isinstance(thing, np.ndarray):
        _array(found, cast("npt.NDArray[Any]", thing))
    elif isinstance(thing, range):
        found.add(repr(thing).encode())
    elif isinstance(thing, str | bytes | bytearray | memoryview):
        found.add(thing.encode("utf-8", "surrogatepass") if isinstance(thing, str) else bytes(cast(bytes, thing)))
    elif isinstance(thing, list | tuple):
        _items(found, cast("Sequence[Any]", thing))
    else:
        return None
    return found.text()


def _array(found: _Hash, array: npt.NDArray[Any]) -> None:
    found.add(f"{array.dtype.str}{array.shape}".encode())
    if array.dtype.hasobject:
        return _items(found, array.reshape(-1).tolist())
    if array.nbytes <= WHOLE or not array.ndim:
        return found.add(np.ascontiguousarray(array).tobytes())
    rows = max(1, _BLOCK * len(array) // array.nbytes)
    for start in keyed(len(array), _BLOCKS).tolist():
        found.add(np.ascontiguousarray(array[start : start + rows]).tobytes())
    return None


def _items(found: _Hash, items: Sequence[Any]) -> None:
    found.add(str(len(items)).encode())
    for start in range(0, len(items), _ITEMS):
        if found.size > WHOLE:
            places = keyed(len(items) - start, _BLOCKS) + start
            return found.add(_spelled([items[place] for place in places.tolist()]))
        found.add(_spelled(items[start : start + _ITEMS]))
    return None


def _spelled(items: Sequence[Any]) -> bytes:
    try:
        return json.dumps(items, default=_plain).encode()
    except (TypeError, ValueError, RecursionError):
        return "".join(map(_outside, items)).encode()


def _plain(thing: Any) -> Any:
    """What JSON lacks, as something it has."""
    if isinstance(thing, np.generic):
        return cast(Any, thing).item()
    if isinstance(thing, complex):
        return repr(thing)
    if isinstance(thing, np.ndarray | bytes | bytearray | memoryview | range):
        return [type(cast(object, thing)).__name__, content(cast(object, thing))]
    return repr(thing) if type(thing).__module__ in ("datetime", "decimal", "uuid") else _outside(thing)


def _outside(thing: Any) -> str:
    """Of an object of which nothing is known: its type, and its length if it has one."""
    kind = type(cast(object, thing))
    length = len(thing) if hasattr(kind, "__len__") else ""
    return f"{kind.__qualname__}:{length}"


def keyed(n: int, many: int) -> Ints:
    """Up to `many` places of `range(n)`, drawn once for all: one in each of equal stretches."""
    if n <= many:
        return np.arange(n)
    edges = np.arange(many + 1) * n // many
    return edges[:-1] + (hash64(n, np.arange(many)) % np.diff(edges).astype(np.uint64)).astype(np.int64)


def row_digest(read: Callable[[Ints], list[Any]], n: int) -> str:
    """The digest of 64 rows out of `n`; one that cannot be read counts as such."""
    found = _Hash()
    places = keyed(max(1, n - _NEIGHBOURS + 1), _PLACES).tolist()
    with Progress("read rows to know the data by", len(places)) as progress:
        for start in progress.each(places):
            for row in range(start, min(n, start + _NEIGHBOURS)):
                try:
                    (value,) = read(np.asarray([row]))
                except (StorageError, OSError, MemoryError):
                    raise
                except Exception as error:
                    value = type(error).__name__
                if isinstance(value, dict):
                    value = {name: each for name, each in cast("dict[str, Any]", value).items() if name != "__shard__"}
                found.add(_spelled([value]))
    return found.text()


def file_digest(
    paths: Sequence[Path],
    stats: Sequence[seams.Stat],
    read: Callable[[Ints], list[Any]],
    rows: int,
    spelled: str,
    cache: str | Path | None,
) -> Digest:
    """What files hold, as they lie (`files`) and row by row (`rows`). `spelled` is how their rows are read."""

    def made() -> Digest:
        return {"files": _files(paths, stats), "rows": row_digest(read, rows)}

    return remembered(paths, stats, f"digest {_VERSION} {rows} {spelled}", made, cache)


def _files(paths: Sequence[Path], stats: Sequence[seams.Stat]) -> str:
    found = _Hash()
    found.add(json.dumps([stat.size for stat in stats]).encode())
    for number in map(int, keyed(len(paths), _FILES)):
        for start in _places(stats[number].size):
            with sidecar.storage(paths[number]):
                found.add(seams.world.store.read(str(paths[number]), start, _PIECE))
    return found.text()


def _places(size: int) -> Iterator[int]:
    """Where a file is looked into: its beginning, its end, and some place between."""
    yield 0
    if size > _PIECE:
        yield from sorted({size - _PIECE, int(keyed(size - _PIECE + 1, 1)[0])})
