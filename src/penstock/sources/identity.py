"""What data is: digests by which a state knows the data that it was saved over.

What lies in memory is hashed itself, objects of the user by their values (`values`). What is only
reached through `[i]` or `read` is known by a few rows (`sampled`). Files are known by their sizes
and a few blocks of at most 16 of them; where these differ (moved, re-sharded, compressed anew), by
64 rows. What was found out about files is kept in the cache, so that one process of a machine reads
them.
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

from ..engine.base import seams
from ..engine.base.machine import seeded_globals, seeded_like
from ..engine.base.progress import Progress
from ..engine.base.random import hash64
from ..errors import StorageError
from ..types import Ints
from . import sidecar
from .cached_facts import cached_fact
from .values import Speller

WHOLE = 256 << 20
"""Bytes up to which data in memory is hashed whole; from more, blocks are taken."""

UNKNOWN = "-"
"""Stands for a row of a sample that fails, or is another one each time."""

_BLOCK = 1 << 20
_BLOCKS = 64
_FILES, _PIECE = 16, 64 << 10  # files that are looked into, and the bytes of each of three places
_PLACES, _NEIGHBOURS = 16, 4  # rows that are compared: so many places, so many rows at each
_ITEMS = 1 << 10
_SAMPLED = 8  # rows that are read of a source whose reading may cost much
_VERSION = 2

Digest = Mapping[str, str]


@runtime_checkable
class Known(Protocol):
    """A source that can say what its data is: a text, or texts by the name of what they tell
    about."""

    def digest(self) -> str | Digest: ...


@cache
def knows(kind: type) -> bool:
    """Whether sources of this type can say what their data is: by type, because protocols are slow
    to ask."""
    return issubclass(kind, Known)


@runtime_checkable
class Opaque(Protocol):
    """Shards that may be a function's: `unknown` where nothing tells in which order it gives its
    samples."""

    @property
    def unknown(self) -> bool: ...


def is_unidentified(source: object) -> bool:
    """Return whether the samples of a source cannot be identified: a function of the user.

    >>> is_unidentified([1, 2])
    False
    """
    return isinstance(source, Opaque) and source.unknown


@runtime_checkable
class Growing(Protocol):
    """A source to which rows may be added: what its first `rows` hold, in those parts of `digest`
    that tell of rows."""

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
    """The digest of what lies in memory: arrays, bytes, text, numbers, and lists of those, of
    dicts, or of objects, which count by their values; None for an object that is none of these.

    >>> content([1, 2.5, {"a": b"x"}]) == content([1, 2.5, {"a": b"x"}]), content([1]) == content([2])
    (True, False)
    """
    found = _Hash()
    if isinstance(thing, np.ndarray):
        _array(found, cast("npt.NDArray[Any]", thing))
    elif isinstance(thing, range):
        found.add(repr(thing).encode())
    elif isinstance(thing, str | bytes | bytearray | memoryview):
        found.add(
            thing.encode("utf-8", "surrogatepass")
            if isinstance(thing, str)
            else bytes(cast(bytes, thing))
        )
    elif isinstance(thing, list | tuple):
        _items(found, cast("Sequence[Any]", thing))
    else:
        return None
    return found.text()


def _array(found: _Hash, array: npt.NDArray[Any]) -> None:
    found.add(f"{_layout(array.dtype)}{array.shape}".encode())
    if array.dtype.hasobject or _has_long_doubles(array.dtype):
        return _items(found, array.reshape(-1).tolist())
    if array.nbytes <= WHOLE or not array.ndim:
        return found.add(_bytes(array))
    rows = max(1, _BLOCK * len(array) // array.nbytes)
    for start in keyed(len(array), _BLOCKS).tolist():
        found.add(_bytes(array[start : start + rows]))
    return None


def _layout(dtype: np.dtype[Any]) -> str:
    """The type of the elements; of records the names and types of the fields."""
    return str(_without_gaps(dtype).descr) if dtype.names else dtype.str


def _has_long_doubles(dtype: np.dtype[Any]) -> bool:
    """Return whether elements hold `longdouble` values, which have random bytes."""
    fields = (dtype.base.fields or {}).values()
    return dtype.base.char in "gG" or any(_has_long_doubles(field[0]) for field in fields)


def _bytes(array: npt.NDArray[Any]) -> bytes:
    """Return the bytes of the values, without those between the fields of records, which are
    random."""
    packed = _without_gaps(array) if array.dtype.names else array
    return np.ascontiguousarray(packed).tobytes()


def _without_gaps(of: Any) -> Any:
    """Return records, or a type of records, whose fields lie end to end."""
    from numpy.lib.recfunctions import repack_fields  # loads numpy.ma

    return repack_fields(of, recurse=True)


def _items(found: _Hash, items: Sequence[Any]) -> None:
    found.add(str(len(items)).encode())
    speller = Speller(content)
    found.add(
        json.dumps(
            [speller.kinds(items[place]) for place in keyed(len(items), _BLOCKS).tolist()]
        ).encode()
    )
    for start in range(0, len(items), _ITEMS):
        if found.size + speller.cost > WHOLE:
            places = keyed(len(items) - start, _BLOCKS) + start
            return found.add(speller.spelled([items[place] for place in places.tolist()]))
        found.add(speller.spelled(items[start : start + _ITEMS]))
    return None


def value_digest(value: Any) -> str:
    """Eight hex digits of one value, the same in every process; `-` of what cannot be read.

    >>> value_digest({"a": {1, 2}}) == value_digest({"a": {2, 1}}), value_digest("x") == value_digest("y")
    (True, False)
    """
    try:
        speller = Speller(content)
        text = speller.spelled([value]) + json.dumps(speller.kinds(value)).encode()
        return hashlib.blake2b(text, digest_size=4).hexdigest()
    except Exception:  # an object of the user's that throws when it is asked for its attributes
        return UNKNOWN


def keyed(n: int, many: int) -> Ints:
    """Up to `many` places of `range(n)`, drawn once for all: one in each of equal stretches."""
    if n <= many:
        return np.arange(n)
    edges = np.arange(many + 1) * n // many
    return edges[:-1] + (hash64(n, np.arange(many)) % np.diff(edges).astype(np.uint64)).astype(
        np.int64
    )


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
                    value = {
                        name: each
                        for name, each in cast("dict[str, Any]", value).items()
                        if name != "__shard__"
                    }
                found.add(Speller(content).spelled([value]))
    return found.text()


def sampled(
    read: Callable[[Ints], list[Any]],
    n: int,
    rows: int = _SAMPLED,
    again: Callable[[], Callable[[Ints], list[Any]]] | None = None,
) -> str:
    """The digests of a few rows out of `n`: the first, the last, and some in between; `-` for one
    that fails, or is another one when it is read again.

    Random numbers that reading draws from the generators of the process are the same in every
    process, and those that others draw from them are not touched. `again` makes what reads the rows
    for the second time.
    """
    places = [*range(n)] if n <= rows else [0, *(keyed(n - 2, rows - 2) + 1).tolist(), n - 1]
    first = [_digest_of_row(read, row) for row in places]
    read = again() if again else read
    second = [_digest_of_row(read, row) for row in places]
    return " ".join(
        one if one == other else UNKNOWN for one, other in zip(first, second, strict=True)
    )


def without_varying(found: str, read: Callable[[], str], times: int = 4) -> str:
    """A sample of rows, with `-` for those that are others in one of some more samples.

    Random numbers of a generator of which nothing is known may be equal twice: a flip is, in half
        of all cases.

    >>> without_varying("1 2 -", iter(["1 2 3", "1 4 3", "1 2 3", "1 2 3"]).__next__)
    '1 - -'
    """
    samples = [found.split(), *(read().split() for _ in range(times))]
    return " ".join(row[0] if len({*row}) == 1 else UNKNOWN for row in zip(*samples, strict=True))


def _digest_of_row(read: Callable[[Ints], list[Any]], row: int) -> str:
    try:
        with seeded_globals(row & 0xFFFFFFFF):
            (value,) = read(np.asarray([row]))
        return value_digest(value)
    except Exception:  # a run tells what a row raises when it gives the row
        return UNKNOWN


def aside(thing: Any, depth: int = 3) -> Any:
    """A shallow copy of an object of the user's, and of the objects that it reads from: reading a
    row from it leaves no trace in them. Files that are opened for it and counters are those of the
    copy; generators of random numbers begin
    from one seed, so that what they draw is the same in every process. What has a destructor stays
        itself: that of a
    copy might close what both hold.
    """
    if (seeded := seeded_like(thing)) is not None:
        return seeded
    if isinstance(thing, list):
        parts = cast("list[Any]", thing)
        return (
            [aside(one, depth - 1) for one in parts] if depth and len(parts) <= _BLOCKS else parts
        )
    return _copied(thing, depth)


def _copied(thing: Any, depth: int) -> Any:
    """A copy of a plain object of Python that was not asked for one: what it says to `copy` may
    take long."""
    kind = type(cast(object, thing))
    plain = (
        kind.__new__ is object.__new__
        and hasattr(thing, "__dict__")
        and not any(map(_has_slots, kind.__mro__))
    )
    if (
        not depth
        or not plain
        or callable(thing)
        or hasattr(kind, "__del__")
        or hasattr(kind, "__array__")
    ):
        return thing
    made, held = object.__new__(kind), cast("dict[str, Any]", vars(thing))
    vars(made).update(
        (name, aside(value, depth - 1)) for name, value in held.items()
    )  # frozen classes too
    return made


def _has_slots(kind: type) -> bool:
    return bool(kind.__dict__.get("__slots__"))


def same_sample(one: object, other: object) -> bool | None:
    """Return whether two row samples are of equal data; None if no row was readable in both."""
    ours, theirs = str(one).split(), str(other).split()
    if len(ours) != len(theirs):
        return False
    known = [pair for pair in zip(ours, theirs, strict=True) if UNKNOWN not in pair]
    return all(a == b for a, b in known) if known or not ours else None


def file_digest(
    paths: Sequence[Path],
    stats: Sequence[seams.Stat],
    read: Callable[[Ints], list[Any]],
    rows: int,
    spelled: str,
    cache: str | Path | None,
) -> Digest:
    """What files hold, as they lie (`files`) and row by row (`rows`). `spelled` is how their rows
    are read."""

    def made() -> Digest:
        return {"files": _files(paths, stats), "rows": row_digest(read, rows)}

    return cached_fact(paths, stats, f"digest {_VERSION} {rows} {spelled}", made, cache)


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
