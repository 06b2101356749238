"""Bounds on the memory that text and JSON take in Python, checked before they are decoded.

A short line of JSON may have very many values: `{},` takes 3 bytes in a file and 72 in memory. Text
of one byte a character takes four times as much if it has one emoji.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from .limits import DECODED


class MemoryLimitError(ValueError):
    """Values would take more memory than `DECODED`."""


_MAX_RATIO = 44  # bytes in memory for a byte of JSON: lists in lists
_LIST, _OBJECT, _KEY, _STRING, _SLOT, _NUMBER = 88, 184, 32, 64, 8, 32  # bytes in memory
_EMPTY = 64  # bytes of an empty list or object
_CHUNK_BYTES = 1 << 20
_MARK_BYTES = bytes.maketrans(  # at most so many bytes of memory for each mark
    bytes(range(256)),
    bytes(
        {"[": _LIST, "{": _OBJECT, ":": _KEY, ",": _SLOT + _NUMBER, '"': _STRING // 2}.get(
            letter, 0
        )
        for letter in map(chr, range(256))
    ),
)
_QUOTE = 34
_OBJECT_KEY = re.compile(rb'"([^"]{0,200})"[ \t\r\n]*:')
_MAX_KEYS = 100_000  # different keys that are counted; with more, all keys count as different
_NON_BMP_ESCAPE = re.compile(rb"\\u[dD][89abAB]")


class _Marks(NamedTuple):
    """Counts of the marks of JSON that give its values."""

    lists: int
    objects: int
    colons: int
    commas: int
    quotes: int

    def add(self, other: _Marks) -> _Marks:
        return _Marks(*map(sum, zip(self, other, strict=True)))


def parse_json(data: bytes) -> Any:
    """Parse JSON that takes at most `DECODED` bytes of memory.

    Raises:
        ValueError: the data is no JSON, no UTF-8, or would take more memory.
    """
    return json.loads(require_small_json(data).decode())


def require_small_json(data: bytes) -> bytes:
    """Return JSON whose values take at most `DECODED` bytes of memory.

    Raises:
        MemoryLimitError: they would take more memory.
    """
    if len(data) * _MAX_RATIO > DECODED:
        _require_small(_estimate_json_bytes(data))
    return data


def decode_text(data: bytes) -> str:
    """Decode UTF-8 that takes at most `DECODED` bytes of memory.

    Raises:
        ValueError: the data is no UTF-8, or would take more memory.
    """
    if len(data) * 5 > DECODED:
        _require_small(len(data) + _measure_text(data))
    return data.decode()


def copy_json(value: Any) -> Any:
    """Return a copy of the lists and objects of a parsed value.

    Raises:
        MemoryLimitError: the copy would take more than a quarter of `DECODED`.

    >>> copy_json({"a": [1, {}]})
    {'a': [1, {}]}
    """
    left = DECODED // 4

    def spend(size: int) -> None:
        nonlocal left
        if (left := left - size) < 0:
            raise MemoryLimitError(
                f"a copy of the row would take more than {DECODED >> 22:,} MiB of memory: write "
                "smaller rows"
            )

    def copy(value: Any) -> Any:
        if isinstance(value, list):
            items = cast("list[Any]", value)
            spend(_EMPTY + _SLOT * len(items))
            return [copy(item) for item in items]
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            spend(_EMPTY + _KEY * len(fields))
            return {name: copy(item) for name, item in fields.items()}
        return value

    return copy(value)


def _require_small(size: int) -> None:
    if size > DECODED:
        raise MemoryLimitError(
            f"its values would take more than {DECODED >> 20:,} MiB of memory: write smaller rows"
        )


def _measure_text(data: bytes) -> int:
    """Return the bytes of a text in memory: its largest character decides how many each takes."""
    if data.isascii():
        return len(data)
    largest, characters = 0, 0
    for chunk in _iterate_chunks(data):
        largest = max(largest, int(chunk.max()))
        characters += int(np.count_nonzero((chunk & 0xC0) != 0x80))
    return characters * (4 if largest >= 0xF0 else 2 if largest >= 0xC4 else 1)


def _iterate_chunks(data: bytes) -> Iterator[npt.NDArray[np.uint8]]:
    for start in range(0, len(data), _CHUNK_BYTES):
        yield np.frombuffer(data, np.uint8, min(_CHUNK_BYTES, len(data) - start), start)


def _estimate_json_bytes(data: bytes) -> int:
    """Return about the most bytes that JSON and its values take, with its text and its bytes."""
    text = _measure_text(data)
    width = max(1, text // max(len(data), 1))
    if b"\\u" in data:  # strings may be wider than the text that spells them
        width = 4 if _NON_BMP_ESCAPE.search(data) else max(width, 2)
    whole = len(data) + text + max(text, len(data) * width)
    size = whole + _SLOT + _NUMBER
    for start in range(0, len(data), _CHUNK_BYTES):
        costs = data[start : start + _CHUNK_BYTES].translate(_MARK_BYTES)
        size += int(np.frombuffer(costs, np.uint8).sum(dtype=np.uint32))
    if size <= DECODED:
        return size
    marks = _Marks(0, 0, 0, 0, 0)  # marks in strings are text
    for chunk_marks, keys in _count_outside_strings(data):
        marks = marks.add(chunk_marks)
        if (size := whole + _estimate_values(marks, min(keys, marks.colons))) > DECODED:
            break
    return size


def _estimate_values(marks: _Marks, keys: int) -> int:
    """Estimate the bytes of values with these marks and so many different keys."""
    strings = max(marks.quotes // 2 - marks.colons, 0)
    return (
        _LIST * marks.lists
        + _OBJECT * marks.objects
        + _KEY * marks.colons
        + _STRING * (strings + keys)
        + _SLOT * (marks.commas + 1)
        + _NUMBER * max(marks.commas + 1 - strings, 0)
    )


def _count_outside_strings(data: bytes) -> Iterator[tuple[_Marks, int]]:
    """Yield the marks outside of strings, chunk by chunk, and the different keys so far."""
    keys, is_inside = set[bytes](), False
    for chunk in _iterate_without_escapes(data):
        letters = np.frombuffer(chunk, np.uint8)
        flips: npt.NDArray[np.uint8] = (letters == _QUOTE).view(np.uint8)
        inside = np.bitwise_xor.accumulate(flips) ^ np.uint8(is_inside)
        counts = np.bincount(letters[(inside == 0) | (flips == 1)], minlength=256)
        if len(keys) <= _MAX_KEYS:
            keys.update(_OBJECT_KEY.findall(chunk))
        is_inside = bool(inside[-1])
        yield (
            _Marks(*(int(counts[ord(mark)]) for mark in '[{:,"')),
            len(keys) if len(keys) <= _MAX_KEYS else len(data),
        )


def _iterate_without_escapes(data: bytes) -> Iterator[bytes]:
    """Yield chunks of JSON in which escaped characters are underscores."""
    start = 0
    while start < len(data):
        stop = min(start + _CHUNK_BYTES, len(data))
        while stop < len(data) and data[stop - 1] == ord("\\"):
            stop += 1  # an escape lies in one chunk
        yield data[start:stop].replace(b"\\\\", b"__").replace(b'\\"', b"__")
        start = stop
