"""Digests of values and of rows, by which a saved state recognises the data that it belongs to.

- Data in memory is hashed itself; objects of the user count by their values (`digest_memory`).
- Data behind `[i]` or `read` is identified by a few rows (`digest_few_rows`).
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..engine.base.random import hash64
from ..types import UNKNOWN_DIGEST, Ints, Source
from .canonical_values import Speller
from .function_code import describe_code
from .seeding import create_like_generator, seed_globals

MAX_HASHED_BYTES = 256 << 20
"""Largest data in memory, in bytes, that is hashed in full; of larger data blocks are hashed."""

MAX_WHOLE_ARRAY_BYTES = 4 << 20
"""Largest array of a source, in bytes, that is hashed in full; of larger arrays pages are hashed."""

_PAGE_BYTES, _SAMPLED_PAGES = 1 << 12, 512
_BLOCK_BYTES = 1 << 20
_SAMPLED_BLOCKS = 64
_ITEMS_PER_CHUNK = 1 << 10
_MAX_COSTLY_ROWS = 8  # rows to hash of a source whose rows may be costly


class HashBuilder:
    """A BLAKE2b hash that counts the bytes that it has received."""

    def __init__(self) -> None:
        self._hash, self.size = hashlib.blake2b(digest_size=8), 0

    def add(self, data: bytes | memoryview) -> None:
        """Hash more bytes."""
        self._hash.update(data)
        self.size += len(data)

    def text(self) -> str:
        """Return the hash as 16 hex digits."""
        return self._hash.hexdigest()


def digest_memory(value: Any) -> str | None:
    """Return the digest of data in memory, or `None` for an object of another type.

    Supported are arrays, bytes, text, numbers, and lists of those, of dicts, or of objects, which count
    by their values.

    >>> digest_memory([1, 2.5, {"a": b"x"}]) == digest_memory([1, 2.5, {"a": b"x"}])
    True
    >>> digest_memory([1]) == digest_memory([2])
    False
    """
    digest = HashBuilder()
    if isinstance(value, np.ndarray):
        _hash_array(digest, cast("npt.NDArray[Any]", value))
    elif isinstance(value, range):
        digest.add(repr(value).encode())
    elif isinstance(value, str | bytes | bytearray | memoryview):
        digest.add(
            value.encode("utf-8", "surrogatepass")
            if isinstance(value, str)
            else bytes(cast(bytes, value))
        )
    elif isinstance(value, list | tuple):
        _hash_items(digest, cast("Sequence[Any]", value))
    else:
        return None
    return digest.text()


def digest_data(value: Any) -> str | None:
    """Return the digest of the data of a source: `digest_memory`, or pages of a large array.

    A large array is identified by its type and shape, its first and last elements, and 512 pages
    of 4 KiB at fixed pseudo-random places. Other changes of its values go unnoticed.

    >>> tokens = np.arange(10**7)
    >>> before = digest_data(tokens)
    >>> tokens[-1] = 0
    >>> digest_data(tokens) == before
    False
    """
    if not isinstance(value, np.ndarray):
        return digest_memory(value)
    array = cast("npt.NDArray[Any]", value)
    is_exact = array.dtype.hasobject or _has_long_doubles(array.dtype)
    if is_exact or array.nbytes <= MAX_WHOLE_ARRAY_BYTES or not array.size:
        return digest_memory(array)
    digest = HashBuilder()
    digest.add(f"pages {_describe_dtype(array.dtype)}{array.shape}".encode())
    flat: Any = array.reshape(-1) if array.flags.c_contiguous else array.flat
    length = max(1, _PAGE_BYTES // array.itemsize)
    starts = sample_fixed_indices(array.size - length + 1, _SAMPLED_PAGES).tolist()
    for start in (0, *starts, array.size - length):
        digest.add(_pack_bytes(flat[start : start + length]))
    return digest.text()


def _hash_array(digest: HashBuilder, array: npt.NDArray[Any]) -> None:
    digest.add(f"{_describe_dtype(array.dtype)}{array.shape}".encode())
    if array.dtype.hasobject or _has_long_doubles(array.dtype):
        return _hash_items(digest, array.reshape(-1).tolist())
    if array.nbytes <= MAX_HASHED_BYTES or not array.ndim:
        return digest.add(_pack_bytes(array))
    rows = max(1, _BLOCK_BYTES * len(array) // array.nbytes)
    for start in sample_fixed_indices(len(array), _SAMPLED_BLOCKS).tolist():
        digest.add(_pack_bytes(array[start : start + rows]))
    return None


def _describe_dtype(dtype: np.dtype[Any]) -> str:
    """Return the dtype of the elements as text; for records the names and types of the fields."""
    return str(_remove_padding(dtype).descr) if dtype.names else dtype.str


def _has_long_doubles(dtype: np.dtype[Any]) -> bool:
    """Return whether elements contain `longdouble` values, whose padding bytes are random."""
    fields = (dtype.base.fields or {}).values()
    return dtype.base.char in "gG" or any(_has_long_doubles(field[0]) for field in fields)


def _pack_bytes(array: npt.NDArray[Any]) -> bytes:
    """Return the bytes of the values, without the random padding between fields of records."""
    packed = _remove_padding(array) if array.dtype.names else array
    return np.ascontiguousarray(packed).tobytes()


def _remove_padding(records: Any) -> Any:
    """Return records, or a record dtype, without padding between the fields."""
    from numpy.lib.recfunctions import repack_fields  # loads numpy.ma

    return repack_fields(records, recurse=True)


def _hash_items(digest: HashBuilder, items: Sequence[Any]) -> None:
    digest.add(str(len(items)).encode())
    speller = Speller(digest_memory)
    digest.add(
        json.dumps(
            [
                speller.kinds(items[number])
                for number in sample_fixed_indices(len(items), _SAMPLED_BLOCKS).tolist()
            ]
        ).encode()
    )
    for start in range(0, len(items), _ITEMS_PER_CHUNK):
        if digest.size + speller.cost > MAX_HASHED_BYTES:
            numbers = sample_fixed_indices(len(items) - start, _SAMPLED_BLOCKS) + start
            return digest.add(speller.spelled([items[number] for number in numbers.tolist()]))
        digest.add(speller.spelled(items[start : start + _ITEMS_PER_CHUNK]))
    return None


def digest_lists(lists: Sequence[list[str] | list[int]]) -> str:
    """Return the `digest_memory` of a few lists of texts or of integers, at a lower cost.

    >>> digest_lists([["a", "b"], [1, 2]]) == digest_memory([["a", "b"], [1, 2]])
    True
    """
    kinds = _spell_kinds(tuple((len(each), type(each[0]) if each else None) for each in lists))
    content = json.dumps(lists)
    return hashlib.blake2b(f"{kinds}{content}".encode(), digest_size=8).hexdigest()


@lru_cache
def _spell_kinds(lists: tuple[tuple[int, type | None], ...]) -> str:
    """Return the number of lists and the types of their entries, as `digest_memory` hashes them."""
    examples = [[kind() if kind else None] * size for size, kind in lists]
    speller = Speller(digest_memory)
    return f"{len(lists)}{json.dumps([speller.kinds(each) for each in examples])}"


def digest_value(value: Any) -> str:
    """Return eight hex digits that identify a value in every process; `-` if it cannot be read.

    >>> digest_value({"a": {1, 2}}) == digest_value({"a": {2, 1}})
    True
    >>> digest_value("x") == digest_value("y")
    False
    """
    try:
        speller = Speller(digest_memory)
        text = speller.spelled([value]) + json.dumps(speller.kinds(value)).encode()
        return hashlib.blake2b(text, digest_size=4).hexdigest()
    except Exception:  # an object whose attributes raise
        return UNKNOWN_DIGEST


def digest_code(fn: Any) -> str:
    """Digest the code of a function as far as it can be read, with the version of Python.

    >>> digest_code(lambda x: x + 1) == digest_code(lambda x: x + 1), digest_code(len).startswith("3.")
    (True, True)
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    parts = describe_code(fn, 8)
    return f"{version}:{digest_memory(parts) if parts else ''}"


def sample_fixed_indices(n: int, count: int) -> Ints:
    """Return up to `count` fixed pseudo-random indices below `n`, one per equal stretch."""
    if n <= count:
        return np.arange(n)
    edges = np.arange(count + 1) * n // count
    return edges[:-1] + (hash64(n, np.arange(count)) % np.diff(edges).astype(np.uint64)).astype(
        np.int64
    )


def digest_few_rows(
    read: Callable[[Ints], list[Any]],
    n: int,
    rows: int = _MAX_COSTLY_ROWS,
    again: Callable[[], Callable[[Ints], list[Any]]] | None = None,
) -> str:
    """Return the digests of a few rows out of `n`: the first, the last, and some in between.

    The digest of a row that fails, or that differs on the second read, is `-`. Reading draws the same
    random numbers from the global generators in every process, and leaves their state unchanged.

    Args:
        read: Reads rows.
        n: Number of rows.
        rows: Number of rows to read.
        again: Returns the reader for the second read; by default `read`.
    """
    indices = (
        [*range(n)]
        if n <= rows
        else [0, *(sample_fixed_indices(n - 2, rows - 2) + 1).tolist(), n - 1]
    )
    first = [_digest_row(read, row) for row in indices]
    read = again() if again else read
    second = [_digest_row(read, row) for row in indices]
    return " ".join(
        first_digest if first_digest == second_digest else UNKNOWN_DIGEST
        for first_digest, second_digest in zip(first, second, strict=True)
    )


def digest_source(source: Source, rows: int) -> str:
    """Return the digests of a few of the first rows of a source, read from copies of it."""
    copy = copy_for_reading(source)
    return digest_few_rows(copy.read, rows, again=lambda: copy_for_reading(copy).read)


def _digest_row(read: Callable[[Ints], list[Any]], row: int) -> str:
    try:
        with seed_globals(row & 0xFFFFFFFF):
            (value,) = read(np.asarray([row]))
        return digest_value(value)
    except Exception:  # the run reports the error when it delivers the row
        return UNKNOWN_DIGEST


def copy_for_reading(value: Any, depth: int = 3) -> Any:
    """Return a shallow copy of a user's object, and of the objects that it reads from.

    Reading a row from the copy does not change the original: the copy has its own counters and opens
    its own files. Its random generators start from one seed, so that they draw the same values in every
    process. Objects with a destructor are not copied, because a destructor may close shared resources.
    """
    if (seeded := create_like_generator(value)) is not None:
        return seeded
    if isinstance(value, list):
        parts = cast("list[Any]", value)
        return (
            [copy_for_reading(part, depth - 1) for part in parts]
            if depth and len(parts) <= _SAMPLED_BLOCKS
            else parts
        )
    return _copy_plain_object(value, depth)


def _copy_plain_object(value: Any, depth: int) -> Any:
    """Return a copy of a plain Python object without calling its `__copy__`, which may be slow."""
    value_type = type(cast(object, value))
    is_plain = (
        value_type.__new__ is object.__new__
        and hasattr(value, "__dict__")
        and not any(map(_has_slots, value_type.__mro__))
    )
    if (
        not depth
        or not is_plain
        or callable(value)
        or hasattr(value_type, "__del__")
        or hasattr(value_type, "__array__")
    ):
        return value
    duplicate, attributes = object.__new__(value_type), cast("dict[str, Any]", vars(value))
    # Not `setattr`, which frozen classes reject.
    vars(duplicate).update(
        (name, copy_for_reading(part, depth - 1)) for name, part in attributes.items()
    )
    return duplicate


def _has_slots(value_type: type) -> bool:
    return bool(value_type.__dict__.get("__slots__"))
