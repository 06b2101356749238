"""`tf.train.Example` and `SequenceExample`, read without TensorFlow.

Numbers are arrays of one axis (int64, float32), however many there are; bytes are a list of them. A
feature of a sequence is a list of these, one for each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .lines import chosen

RECORD = "__record__"
"""A column that every record has: its bytes."""

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5


class Examples:
    """Makes rows of records; with `columns`, only these features, and `__record__` for the record
    as it is.

    >>> Examples(["__record__"])(b"any bytes")
    {'__record__': b'any bytes'}
    >>> Examples()(bytes.fromhex("0a0d 0a0b 0a01 78 1206 1a04 0a02 0702"))
    {'x': array([7, 2])}
    """

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        self._columns = columns

    def __call__(self, record: bytes) -> dict[str, Any]:
        if self._columns == [RECORD]:
            return {RECORD: record}
        try:
            row = example(record)
        except (ValueError, IndexError) as error:
            raise ValueError(
                f"it is no tf.train.Example ({error}); columns=[{RECORD!r}] gives records as they "
                "are"
            ) from error
        return row if self._columns is None else chosen({**row, RECORD: record}, self._columns)


def example(record: bytes) -> dict[str, Any]:
    """The features of an example, by name."""
    found = dict[str, Any]()
    for number, body in _fields(memoryview(record)):
        if number in (1, 2) and isinstance(body, memoryview):
            for _, entry in _entries(body):
                name, value = _entry(entry)
                found[name] = (
                    _feature(value)
                    if number == 1
                    else [_feature(each) for _, each in _entries(value)]
                )
    return {name: found[name] for name in sorted(found)}


def _entries(body: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The messages that a message repeats in its first field."""
    for number, entry in _fields(body):
        if number == 1 and isinstance(entry, memoryview):
            yield number, entry


def _entry(body: memoryview) -> tuple[str, memoryview]:
    """Key and value of an entry of a map."""
    found = {number: value for number, value in _fields(body) if isinstance(value, memoryview)}
    return bytes(found.get(1, b"")).decode(), found.get(2, memoryview(b""))


def _feature(body: memoryview) -> Any:
    """The list that a feature holds, `None` where it holds none."""
    value = None
    for number, inside in _fields(body):
        if not isinstance(inside, memoryview) or number not in (1, 2, 3):
            continue
        parts = [part for place, part in _fields(inside) if place == 1]
        if number == 1:
            value = [bytes(part) for part in parts if isinstance(part, memoryview)]
        else:
            pieces = [np.zeros(0, np.float32 if number == 2 else np.int64)]
            value = np.concatenate(
                pieces + [_floats(part) if number == 2 else _ints(part) for part in parts]
            )
    return value


def _floats(part: memoryview | int) -> npt.NDArray[np.float32]:
    if isinstance(part, int):
        raise ValueError("an integer in a list of floats")
    return np.frombuffer(part, "<f4")


def _ints(part: memoryview | int) -> npt.NDArray[np.int64]:
    """Integers of seven bits a byte, the last byte of each below 128."""
    if isinstance(part, int):
        return np.array([part], np.uint64).view(np.int64)
    data = np.frombuffer(part, np.uint8)
    if data.size and data[-1] > 127:
        raise ValueError("an integer that is cut off")
    ends = np.flatnonzero(data < 128)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1]) if ends.size else ends
    sizes = ends - starts + 1
    if sizes.size and int(sizes.max()) > 10:
        raise ValueError("an integer of more than 10 bytes")
    found = np.zeros(len(starts), np.uint64)
    for place in range(int(sizes.max(initial=0))):
        more = np.flatnonzero(sizes > place)
        found[more] |= (data[starts[more] + place] & np.uint8(127)).astype(np.uint64) << np.uint64(
            7 * place
        )
    return found.view(np.int64)


def _fields(body: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """The fields of a message: number, and bytes or an integer. Floats of four bytes are given as
    bytes."""
    at, size = 0, len(body)
    while at < size:
        key, at = _varint(body, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(body, at)
            yield number, value
            continue
        if kind not in (_BYTES, _FOUR, _EIGHT) or not number:
            raise ValueError(f"field {number} of the kind {kind}")
        length = 4 if kind == _FOUR else 8
        if kind == _BYTES:
            length, at = _varint(body, at)
        if at + length > size:
            raise ValueError(f"field {number} has {length} bytes, of which {size - at} are here")
        yield number, body[at : at + length]
        at += length


def _varint(body: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at
        if shift > 63:
            raise ValueError("an integer of more than 10 bytes")
