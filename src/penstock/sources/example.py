"""Parser of `tf.train.Example` and `SequenceExample` without TensorFlow.

Numbers become arrays of one axis (int64, float32), bytes become lists. A feature of a sequence is a
list of these, one per step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .lines import select_keys

RECORD_COLUMN = "__record__"
"""Column with the raw bytes of a record."""

_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5


class ExampleDecoder:
    """Decoder of records; `columns` selects features, and `__record__` is the raw record.

    >>> ExampleDecoder(["__record__"])(b"any bytes")
    {'__record__': b'any bytes'}
    >>> ExampleDecoder()(bytes.fromhex("0a0d 0a0b 0a01 78 1206 1a04 0a02 0702"))
    {'x': array([7, 2])}
    """

    def __init__(self, columns: Sequence[str] | None = None) -> None:
        self._columns = columns

    def __call__(self, record: bytes) -> dict[str, Any]:
        if self._columns == [RECORD_COLUMN]:
            return {RECORD_COLUMN: record}
        try:
            row = parse_example(record)
        except (ValueError, IndexError) as error:
            raise ValueError(
                f"it is no tf.train.Example ({error}): columns=[{RECORD_COLUMN!r}] returns raw records"
            ) from error
        return (
            row
            if self._columns is None
            else select_keys({**row, RECORD_COLUMN: record}, self._columns)
        )


def parse_example(record: bytes) -> dict[str, Any]:
    """Return the features of an example, by name."""
    features = dict[str, Any]()
    for number, body in _iterate_fields(memoryview(record)):
        if number in (1, 2) and isinstance(body, memoryview):
            for _, entry in _iterate_entries(body):
                name, value = _parse_map_entry(entry)
                features[name] = (
                    _parse_feature(value)
                    if number == 1
                    else [_parse_feature(step) for _, step in _iterate_entries(value)]
                )
    return {name: features[name] for name in sorted(features)}


def _iterate_entries(body: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the messages that a message repeats in its first field."""
    for number, entry in _iterate_fields(body):
        if number == 1 and isinstance(entry, memoryview):
            yield number, entry


def _parse_map_entry(body: memoryview) -> tuple[str, memoryview]:
    """Return key and value of a map entry."""
    values = {
        number: value for number, value in _iterate_fields(body) if isinstance(value, memoryview)
    }
    return bytes(values.get(1, b"")).decode(), values.get(2, memoryview(b""))


def _parse_feature(body: memoryview) -> Any:
    """Return the list of a feature, or `None` if it has none."""
    value = None
    for number, list_message in _iterate_fields(body):
        if not isinstance(list_message, memoryview) or number not in (1, 2, 3):
            continue
        parts = [part for field, part in _iterate_fields(list_message) if field == 1]
        if number == 1:
            value = [bytes(part) for part in parts if isinstance(part, memoryview)]
        else:
            pieces = [np.zeros(0, np.float32 if number == 2 else np.int64)]
            value = np.concatenate(
                pieces
                + [_decode_floats(part) if number == 2 else _decode_varints(part) for part in parts]
            )
    return value


def _decode_floats(part: memoryview | int) -> npt.NDArray[np.float32]:
    if isinstance(part, int):
        raise ValueError("a list of floats contains an integer")
    return np.frombuffer(part, "<f4")


def _decode_varints(part: memoryview | int) -> npt.NDArray[np.int64]:
    """Decode varints: seven bits per byte, and the last byte below 128."""
    if isinstance(part, int):
        return np.array([part], np.uint64).view(np.int64)
    data = np.frombuffer(part, np.uint8)
    if data.size and data[-1] > 127:
        raise ValueError("an integer is cut off")
    ends = np.flatnonzero(data < 128)
    starts = np.concatenate([np.zeros(1, np.int64), ends[:-1] + 1]) if ends.size else ends
    sizes = ends - starts + 1
    if sizes.size and int(sizes.max()) > 10:
        raise ValueError("an integer has more than 10 bytes")
    values = np.zeros(len(starts), np.uint64)
    for byte_number in range(int(sizes.max(initial=0))):
        continued = np.flatnonzero(sizes > byte_number)
        values[continued] |= (data[starts[continued] + byte_number] & np.uint8(127)).astype(
            np.uint64
        ) << np.uint64(7 * byte_number)
    return values.view(np.int64)


def _iterate_fields(body: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Yield the fields of a message: number, and bytes or an integer; 4-byte floats are bytes."""
    at, size = 0, len(body)
    while at < size:
        key, at = _parse_varint(body, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _parse_varint(body, at)
            yield number, value
            continue
        if kind not in (_BYTES, _FOUR, _EIGHT) or not number:
            raise ValueError(f"field {number} has the unknown wire type {kind}")
        length = 4 if kind == _FOUR else 8
        if kind == _BYTES:
            length, at = _parse_varint(body, at)
        if at + length > size:
            raise ValueError(f"field {number} claims {length} bytes, only {size - at} are left")
        yield number, body[at : at + length]
        at += length


def _parse_varint(body: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, at
        if shift > 63:
            raise ValueError("an integer has more than 10 bytes")
