"""LitData's encoding of nested values: JSON, or tags and values."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

_MAX_TAG = 0x20  # the first byte of plain JSON is larger
_RECORD_VALUE_TAGS = {0x10: 11, 0x11: 7, 0x12: 8, 0x13: 9, 0x14: 10}
"""Maps tags of values in a table of records to those of single values."""


def decode_value(data: bytes) -> Any:
    """Decode a value.

    >>> decode_value(b'{"x": [1, null]}'), decode_value(bytes([2, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]))
    ({'x': [1, None]}, [7])
    """
    if not data or data[0] > _MAX_TAG or data[0] not in _VALUE_READERS:
        return json.loads(data)
    value, offset = _VALUE_READERS[data[0]](data, 1)
    if offset != len(data):
        raise ValueError(f"the value ends at {offset:,} of {len(data):,} bytes")
    return value


def _read_value(data: bytes, at: int, tag: int | None = None) -> tuple[Any, int]:
    if (tag := data[at] if tag is None else tag) not in _VALUE_READERS:
        raise ValueError(f"a value has the unknown tag {tag}")
    return _VALUE_READERS[tag](data, at + 1)


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    (size,) = struct.unpack_from("<I", data, at)
    if at + 4 + size > len(data):
        raise ValueError(f"it claims {size:,} bytes and has {len(data) - at - 4:,}")
    return data[at + 4 : at + 4 + size], at + 4 + size


def _read_json(data: bytes, at: int) -> tuple[Any, int]:
    text, at = _read_bytes(data, at)
    return json.loads(text), at


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    text, at = _read_bytes(data, at)
    return text.decode(), at


def _read_texts(data: bytes, at: int) -> tuple[list[str], int]:
    count, at = _read_count(data, at, 4)
    texts = list[str]()
    for _ in range(count):
        text, at = _read_text(data, at)
        texts.append(text)
    return texts, at


def _make_numbers_reader(kind: str) -> Callable[[bytes, int], tuple[Any, int]]:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        width = np.dtype(kind).itemsize
        count, at = _read_count(data, at, width)
        return np.frombuffer(data, kind, count, at).tolist(), at + count * width

    return read


def _make_number_reader(kind: str) -> Callable[[bytes, int], tuple[Any, int]]:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        (value,) = struct.unpack_from(kind, data, at)
        return value, at + struct.calcsize(kind)

    return read


def _read_none(data: bytes, at: int) -> tuple[None, int]:
    return None, at


def _read_mapping(data: bytes, at: int) -> tuple[dict[str, Any], int]:
    count, at = _read_count(data, at, 5)
    values = dict[str, Any]()
    for _ in range(count):
        key, at = _read_text(data, at)
        values[key], at = _read_value(data, at)
    return values, at


def _read_records(data: bytes, at: int) -> tuple[list[dict[str, Any]], int]:
    rows, at = _read_count(data, at, 1)
    keys, at = _read_texts(data, at)
    rows_read = list[dict[str, Any]]()
    for _ in range(rows):
        row = dict[str, Any]()
        for key in keys:
            row[key], at = _read_value(data, at, _RECORD_VALUE_TAGS.get(data[at], -1))
        rows_read.append(row)
    return rows_read, at


def _read_count(data: bytes, at: int, least: int) -> tuple[int, int]:
    """Read a number of values of at least `least` bytes each, and check that they fit."""
    (count,) = struct.unpack_from("<I", data, at)
    if count * least > len(data) - at - 4:
        raise ValueError(f"it claims {count:,} values and has {len(data) - at - 4:,} bytes")
    return count, at + 4


_VALUE_READERS: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    0: _read_json,
    1: _read_texts,
    2: _make_numbers_reader("<i8"),
    3: _make_numbers_reader("<f8"),
    4: _make_numbers_reader("?"),
    5: _read_mapping,
    6: _read_records,
    7: _read_text,
    8: _make_number_reader("<q"),
    9: _make_number_reader("<d"),
    10: _make_number_reader("<?"),
    11: _read_none,
}
