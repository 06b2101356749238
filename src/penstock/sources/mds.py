"""MosaicML's MDS: folders of shards with an `index.json`; pickles are rejected.

A shard begins with the number of its samples and their offsets. A sample is the sizes of its values
of variable size, followed by the values in the order of the columns.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError
from ..stores.json_memory import decode_text, require_small_json
from . import derived_files, file_versions, meta
from .checksummed import ChecksummedFile, OpenRequest, open_checked_data
from .lru import SharedCaches
from .mds_index import ShardColumn, ShardEntry, find_indexes, parse_columns, parse_shards
from .records import RECORD_ERRORS, RecordFile, check_row_count, read_offsets

Decode = Callable[[bytes], Any]

_READ_BYTES = 1 << 20
_SCALAR_DTYPES = (
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
)
_DTYPES_BY_CODE = {
    8 * np.dtype(name).itemsize + "uif".index(np.dtype(name).kind): name for name in _SCALAR_DTYPES
}
_GREY_MODE_DTYPES = {"L": "u1", "P": "u1", "I": "<i4", "F": "<f4", "I;16": "<u2"}
_BANDS_BY_MODE = {
    "LA": 2,
    "RGB": 3,
    "YCbCr": 3,
    "HSV": 3,
    "LAB": 3,
    "RGBA": 4,
    "CMYK": 4,
    "RGBX": 4,
}


def open_mds(request: OpenRequest, /) -> RecordFile:
    """Open one shard."""
    path, origin, data, shared = request.path, request.origin, request.data, request.shared
    shard = _find_shard_entry(origin, shared, request.cache)
    if (size := file_versions.stat_file(path).size) != shard.size:
        raise DataError(
            f"unpacked it has {size:,} bytes, its index.json says {shard.size:,}: it is damaged",
            where=str(origin),
        )
    names = [column.name for column in shard.columns]
    if missing := [name for name in request.columns or () if name not in names]:
        raise ConfigError(
            f"{origin}: there is no column {missing[0]!r}; the columns are {', '.join(names)}"
        )
    columns = list(names if request.columns is None else request.columns)
    rows = SampleDecoder(shard.columns, columns, origin)
    find = partial(
        shared.decoded.get,
        ("offsets", path),
        partial(_read_checked_offsets, data, shard, request.cache),
    )
    return RecordFile(
        path,
        rows,
        rows=check_row_count(data, shard.rows),
        offsets=find,
        data=data,
        origin=origin,
        columns=columns,
        types=rows.types,
    )


def _find_shard_entry(origin: Path, shared: SharedCaches, cache: str | Path | None) -> ShardEntry:
    """Return the entry of a shard in the index beside it, or in one of a folder above."""

    def read(index: Path) -> tuple[int, dict[str, ShardEntry]]:
        open_checked_data(index, shared.files, cache).compare_all()
        shards = parse_shards(meta.read(index), index)
        return file_versions.stat_file(index).size, {
            str(PurePosixPath(name)): shard for shard in shards for name in shard.basenames
        }

    nearest = None
    for index, name in find_indexes(origin):
        nearest = nearest or index
        try:
            shards = shared.decoded.get(
                ("index", index, file_versions.stat_file(index)), partial(read, index)
            )
        except DataError:
            if name == origin.name:
                raise
            continue  # an index of another format, in a folder above
        if name in shards:
            return shards[name]
    if nearest is not None:
        raise DataError(
            f"{nearest} does not list this shard: remove it, or write the index again",
            where=str(origin),
        )
    raise ConfigError(
        f"{origin}: an index.json beside or above it is missing, which describes shards of MDS: "
        "copy it there"
    )


def _read_checked_offsets(
    data: ChecksummedFile, shard: ShardEntry, cache: str | Path | None
) -> tuple[int, Any]:
    """Return the offsets of a shard, after comparing it with the digests of its index, if any.

    One process of a machine compares each shard.
    """
    path, origin, offsets = data.path, data.origin, read_offsets(data, shard.rows)
    head = 4 * (shard.rows + 2)
    config = data.head(head, int(offsets[0]) - head)  # a copy of the columns in the index
    if config and not _matches_columns(config, shard.columns):
        raise DataError(
            "its columns differ from those in its index.json: it is damaged, or the index belongs "
            "to another shard",
            where=str(origin),
        )
    algorithms = sorted(
        name
        for name in shard.hashes
        if name in hashlib.algorithms_guaranteed and "shake" not in name
    )

    def compare() -> bool:
        digest = hashlib.new(algorithms[0])
        for offset in range(0, shard.size, _READ_BYTES):
            digest.update(data.read(offset, min(_READ_BYTES, shard.size - offset)))
        if digest.hexdigest() != shard.hashes[algorithms[0]]:
            raise DataError(
                f"its {algorithms[0]} differs from the one in its index.json: it is damaged",
                where=str(origin),
            )
        return True

    if algorithms:
        derived_files.load_fact(
            [path],
            [file_versions.stat_file(path)],
            f"{algorithms[0]} {shard.hashes[algorithms[0]]}",
            compare,
            cache,
        )
    return offsets.nbytes, offsets


def _matches_columns(config: bytes, columns: list[ShardColumn]) -> bool:
    try:
        return parse_columns(json.loads(config)) == columns
    except RECORD_ERRORS:
        return False


class SampleDecoder:
    """Decoder of samples.

    >>> columns = [ShardColumn("n", "int", 8), ShardColumn("text", "str", 0)]
    >>> rows = SampleDecoder(columns, ["text", "n"], Path("shard.00000.mds"))
    >>> rows(bytes([2, 0, 0, 0]) + (7).to_bytes(8, "little") + b"ab")
    {'text': 'ab', 'n': 7}
    """

    def __init__(self, columns: Sequence[ShardColumn], names: Sequence[str], origin: Path) -> None:
        self._sizes = [column.size for column in columns]
        self._variable = self._sizes.count(0)
        numbers = {column.name: number for number, column in enumerate(columns)}
        self._decoders = [
            (name, numbers[name], make_column_decoder(columns[numbers[name]], origin))
            for name in names
        ]
        encodings = {name: columns[numbers[name]].encoding for name in names}
        self.types = {
            name: _SHARED_TYPE_NAMES.get(encoding, encoding) for name, encoding in encodings.items()
        }

    def __call__(self, data: bytes) -> dict[str, Any]:
        variable_sizes = iter(struct.unpack_from(f"<{self._variable}I", data))
        ends = [4 * self._variable]
        for size in self._sizes:
            ends.append(ends[-1] + (size or next(variable_sizes)))
        if ends[-1] != len(data):
            raise ValueError(f"its values have {ends[-1]:,} bytes, it has {len(data):,}")
        return {
            name: decode(data[ends[number] : ends[number + 1]])
            for name, number, decode in self._decoders
        }


def make_column_decoder(column: ShardColumn, origin: Path) -> Decode:
    """Return the decoder of a column; pictures stay the bytes of their files.

    Raises:
        ConfigError: The encoding is unknown, or pickled.
    """
    name, encoding = column.name, column.encoding
    if encoding == "pkl":
        raise ConfigError(
            f"{origin}: the column {name!r} is pickled (pkl), and reading it may run any code: "
            "write it as json, bytes or ndarray, or leave it out with columns="
        )
    if encoding in _SCALAR_DTYPES:
        return partial(_decode_scalar, np.dtype(encoding).newbyteorder("<"))
    if encoding.partition(":")[0] == "ndarray":
        return _make_array_decoder(column, origin)
    if encoding not in _COLUMN_DECODERS:
        known = sorted({*_COLUMN_DECODERS, *_SCALAR_DTYPES, "ndarray"})
        raise ConfigError(
            f"{origin}: the column {name!r} is written as {encoding!r}; known are "
            f"{', '.join(known)}"
        )
    return _COLUMN_DECODERS[encoding]


def _make_array_decoder(column: ShardColumn, origin: Path) -> Decode:
    _, _, spec = column.encoding.partition(":")
    dtype, _, dims = spec.partition(":")
    if (dtype and dtype not in _SCALAR_DTYPES) or not all(
        size.isdigit() for size in dims.split(",") if dims
    ):
        raise ConfigError(
            f"{origin}: the column {column.name!r} is written as {column.encoding!r}, which is no "
            "valid array encoding: write it as ndarray, ndarray:dtype or ndarray:dtype:shape"
        )
    return partial(_decode_array, dtype, tuple(map(int, dims.split(","))) if dims else ())


def _decode_array(dtype: str, shape: tuple[int, ...], data: bytes) -> Any:
    offset = 0
    if not dtype:
        dtype, offset = _DTYPES_BY_CODE[data[0]], 1
    if not shape:
        dims, width = data[offset] >> 2, 1 << (data[offset] & 3)
        shape = tuple(np.frombuffer(data, f"<u{width}", dims, offset + 1).tolist())
        offset += 1 + dims * width
    element_type = np.dtype(dtype).newbyteorder("<")
    if math.prod(shape) * element_type.itemsize != len(data) - offset:
        raise ValueError(
            f"{len(data) - offset} bytes cannot be an array of {dtype} and shape {shape}"
        )
    return np.frombuffer(data, element_type, offset=offset).reshape(shape)


def _decode_scalar(kind: Any, data: bytes) -> Any:
    (value,) = np.frombuffer(data, kind)
    return value


def _decode_int(data: bytes) -> int:
    (value,) = struct.unpack("<q", data)
    return value


def pixels(data: bytes) -> Any:
    """Decode a picture of raw pixels: width, height and mode, then height x width (x channels).

    >>> pixels(struct.pack("<3I", 1, 2, 3) + b"RGB" + bytes(range(6))).tolist()
    [[[0, 1, 2]], [[3, 4, 5]]]
    """
    width, height, length = struct.unpack_from("<3I", data)
    mode = data[12 : 12 + length].decode()
    if mode == "1":  # one bit per pixel; every row begins with a new byte
        rows = np.frombuffer(data, "u1", offset=12 + length).reshape(height, -(-width // 8))
        return np.unpackbits(rows, axis=1, count=width).astype(bool)
    if mode not in {**_GREY_MODE_DTYPES, **_BANDS_BY_MODE}:
        raise ValueError(
            f"pixels have the unknown mode {mode!r}; known are 1, {', '.join([*_GREY_MODE_DTYPES, *_BANDS_BY_MODE])}"
        )
    element_type = _GREY_MODE_DTYPES.get(mode, "u1")
    shape = (height, width, _BANDS_BY_MODE[mode]) if mode in _BANDS_BY_MODE else (height, width)
    if math.prod(shape) * np.dtype(element_type).itemsize != len(data) - 12 - length:
        raise ValueError(
            f"{len(data) - 12 - length} bytes cannot be {width} x {height} pixels of {mode}"
        )
    return np.frombuffer(data, element_type, offset=12 + length).reshape(shape)


def decode_value_list(data: bytes, skip: int = 0, each: Decode = bytes) -> list[Any]:
    """Decode several values: their number, their sizes, and the values."""
    (count,) = struct.unpack_from("<I", data, skip)
    if 4 * count > len(data):
        raise ValueError(f"{len(data)} bytes cannot hold {count} values")
    sizes = struct.unpack_from(f"<{count}I", data, skip + 4)
    offset, values = skip + 4 + 4 * count, list[Any]()
    for size in sizes:
        values.append(each(data[offset : offset + size]))
        offset += size
    if offset != len(data):
        raise ValueError(f"its values end at {offset:,} of {len(data):,} bytes")
    return values


def _decode_json(data: bytes) -> Any:
    return json.loads(require_small_json(data))


def _decode_decimal(data: bytes) -> Decimal:
    return Decimal(data.decode())


_COLUMN_DECODERS: dict[str, Decode] = {
    "bytes": bytes,
    "str": decode_text,
    "int": _decode_int,
    "str_int": int,
    "str_float": float,
    "str_decimal": _decode_decimal,
    "json": _decode_json,
    "pil": pixels,
    "jpeg": bytes,
    "png": bytes,
    "jpeg_array": decode_value_list,
    "jpegarray": decode_value_list,
    "list[jpeg]": partial(decode_value_list, skip=4),
    "list[png]": partial(decode_value_list, skip=4),
    "list[pil]": partial(decode_value_list, skip=4, each=pixels),
}
_SHARED_TYPE_NAMES = {
    "jpeg": "bytes",
    "png": "bytes",
    "str_int": "int",
    "jpegarray": "jpeg_array",
    "list[jpeg]": "jpeg_array",
    "list[png]": "jpeg_array",
}
"""Encodings whose values have the type of another encoding."""
