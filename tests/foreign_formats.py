"""Datasets in the formats of other libraries, for tests: written as their own tools write them.

Some tools are too heavy, so their formats are written here from the description. MDS and LitData
equal the output of `streaming.MDSWriter` and `litdata.optimize` for the same rows, byte by byte.
TFRecord differs only in the order of features.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

Row = dict[str, Any]


class Made(NamedTuple):
    """A dataset in a foreign format, with its rows.

    Attributes:
        path: The path for `read`.
        rows: The rows that it holds.
        noticed: Damage that a reader notices. With "sums", every bit has a checksum. With "sizes",
            values may change, but never the number of rows. With "", both may change.
        open_ended: A file that is cut off after any row is valid.
        threads: The reader has threads of its own.
        options: Options of `read`.
    """

    path: Path
    rows: list[Row]
    noticed: str = "sizes"
    open_ended: bool = False
    threads: bool = False
    options: Mapping[str, Any] = {}


# ---------------------------------------------------------------- MDS

MDS = {
    "array": "ndarray",
    "fixed": "ndarray:float32:2,3",
    "half": "float16",
    "id": "int",
    "info": "json",
    "text": "str",
}
_SIZES = {"int": 8, "float16": 2, "ndarray:float32:2,3": 24}


def mds_rows(count: int) -> list[Row]:
    rng = np.random.default_rng(count)
    return [
        {
            "array": rng.integers(0, 9, (1 + i % 3, 2)),
            "fixed": rng.random((2, 3)).astype(np.float32),
            "half": np.float16(i / 4),
            "id": -i,
            "info": {"x": [i, None, "ü"]},
            "text": f"ü {i}" * (i % 4),
        }
        for i in range(count)
    ]


def _array(value: Any) -> bytes:
    kind = 8 * value.dtype.itemsize + "uif".index(value.dtype.kind)
    return bytes([kind, value.ndim << 2, *value.shape]) + value.tobytes()


_ENCODE: dict[str, Callable[[Any], bytes]] = {
    "ndarray": _array,
    "ndarray:float32:2,3": lambda value: value.tobytes(),
    "float16": lambda value: value.tobytes(),
    "int": lambda value: np.int64(value).tobytes(),
    "json": lambda value: json.dumps(value).encode(),
    "str": lambda value: value.encode(),
    "str_int": lambda value: value.encode(),
    "pkl": lambda value: value,
    "jpeg": lambda value: value,
    "jpeg:95": lambda value: value,
}


def _zstd(data: bytes) -> bytes:
    zstandard: Any = pytest.importorskip("zstandard")
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": lambda data: gzip.compress(data, 9, mtime=0),
    "zstd": _zstd,
}


def write_mds(
    folder: Path,
    rows: Sequence[Row],
    columns: Mapping[str, str] = MDS,
    *,
    shard: int = 8,
    compression: str | None = None,
    hashes: Sequence[str] = (),
) -> Path:
    """Shards of so many rows, as `streaming.MDSWriter` writes them."""
    folder.mkdir(parents=True)
    names = sorted(columns)
    config: Row = {
        "column_encodings": [columns[name] for name in names],
        "column_names": names,
        "column_sizes": [_SIZES.get(columns[name]) for name in names],
        "compression": compression,
        "format": "mds",
        "hashes": list(hashes),
        "size_limit": 20000,
        "version": 2,
    }
    listed = list[Row]()

    def kept(basename: str, data: bytes) -> Row:
        (folder / basename).write_bytes(data)
        return {
            "basename": basename,
            "bytes": len(data),
            "hashes": {name: hashlib.new(name, data).hexdigest() for name in hashes},
        }

    for number, start in enumerate(range(0, len(rows), shard)):
        data = _mds_shard(
            rows[start : start + shard], columns, json.dumps(config, sort_keys=True).encode()
        )
        raw, packed = kept(f"shard.{number:05d}.mds", data), None
        if compression:
            packed = kept(f"{raw['basename']}.{compression}", PACK[compression](data))
            (folder / raw["basename"]).unlink()
        samples = min(shard, len(rows) - start)
        listed.append({**config, "raw_data": raw, "samples": samples, "zip_data": packed})
    (folder / "index.json").write_text(json.dumps({"shards": listed, "version": 2}, sort_keys=True))
    return folder


def _mds_shard(rows: Sequence[Row], columns: Mapping[str, str], config: bytes) -> bytes:
    samples = list[bytes]()
    for row in rows:
        values = [(columns[name], _ENCODE[columns[name]](row[name])) for name in sorted(columns)]
        sizes = [len(data) for encoding, data in values if encoding not in _SIZES]
        samples.append(np.array(sizes, np.uint32).tobytes() + b"".join(data for _, data in values))
    offsets = np.cumsum([0, *map(len, samples)]) + 4 * (len(samples) + 2) + len(config)
    return b"".join(
        [np.uint32(len(samples)).tobytes(), offsets.astype(np.uint32).tobytes(), config, *samples]
    )


# ---------------------------------------------------------------- TFRecord


def example_rows(count: int) -> list[Row]:
    rng = np.random.default_rng(count)
    return [
        {
            "id": np.array([i], np.int64),
            "image": [rng.bytes(i % 7)],
            "scores": rng.random(i % 4).astype(np.float32),
            "tokens": np.array([-i, 1 << 40, i][: i % 4], np.int64),
            "words": [f"ü{word}".encode() for word in range(i % 3)],
        }
        for i in range(count)
    ]


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def message(number: int, body: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(body)) + body


def example(row: Row) -> bytes:
    """A `tf.train.Example` as TensorFlow serialises it: numbers packed."""
    features = b""
    for name, value in row.items():
        if isinstance(value, list):
            feature = message(1, b"".join(message(1, each) for each in value))
        elif value.dtype == np.float32:
            feature = message(2, message(1, value.tobytes()) if value.size else b"")
        else:
            feature = message(
                3, message(1, b"".join(map(varint, value.tolist()))) if value.size else b""
            )
        features += message(1, message(1, name.encode()) + message(2, feature))
    return message(1, features)


def _masked(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data: bytes) -> bytes:
    """A record with its frame."""
    length = struct.pack("<Q", len(data))
    return length + _masked(length) + data + _masked(data)


def write_tfrecord(path: Path, records: Sequence[bytes]) -> Path:
    """A file of records, as `tf.io.TFRecordWriter` writes them."""
    path.write_bytes(b"".join(map(record, records)))
    return path


# ---------------------------------------------------------------- LitData

LEAVES = {"flag": "bool", "grid": "numpy", "id": "int", "list": "no_header_numpy:2", "text": "str"}


def lit_rows(count: int) -> list[Row]:
    rng = np.random.default_rng(count)
    return [
        {
            "flag": i % 2 == 0,
            "grid": rng.random((2, i % 4)).astype(np.float32),
            "id": -i,
            "list": np.arange(i % 5, dtype=np.int32),
            "text": f"ü{i}" * (i % 3),
        }
        for i in range(count)
    ]


def each_lit_row(count: int) -> Iterator[Row]:
    yield from lit_rows(count)


def _leaf(value: Any) -> bytes:
    if isinstance(value, bool):
        return bytes([value])
    if isinstance(value, int):
        return struct.pack("<q", value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes) or value.ndim == 1:
        return bytes(value)
    return struct.pack(f"<{2 + value.ndim}I", 9, value.ndim, *value.shape) + value.tobytes()


def write_litdata(
    folder: Path,
    rows: Sequence[Row],
    leaves: Mapping[str, str] = LEAVES,
    chunk: int = 8,
    **config: Any,
) -> Path:
    """Chunks of so many rows, as `litdata.optimize` writes them."""
    folder.mkdir(parents=True)
    listed = list[Row]()
    for number, start in enumerate(range(0, len(rows), chunk)):
        items = list[bytes]()
        for row in rows[start : start + chunk]:
            values = [_leaf(row[name]) for name in leaves]
            items.append(struct.pack(f"<{len(values)}I", *map(len, values)) + b"".join(values))
        offsets = np.cumsum([0, *map(len, items)]) + 4 * (len(items) + 2)
        data = b"".join([struct.pack("<I", len(items)), offsets.astype("<u4").tobytes(), *items])
        name = f"chunk-0-{number}.bin"
        (folder / name).write_bytes(data)
        listed.append(
            {"chunk_bytes": len(data), "chunk_size": len(items), "dim": None, "filename": name}
        )
    leaf: Row = {"type": None, "context": None, "children_spec": []}
    spec = {
        "type": "builtins.dict",
        "context": json.dumps(list(leaves)),
        "children_spec": [leaf] * len(leaves),
    }
    found = {
        "data_format": list(leaves.values()),
        "data_spec": json.dumps([1, spec]),
        "compression": None,
        **config,
    }
    (folder / "index.json").write_text(json.dumps({"chunks": listed, "config": found}))
    return folder


# ---------------------------------------------------------------- all of them


def mds(folder: Path) -> Made:
    return Made(write_mds(folder / "mds", mds_rows(20)), mds_rows(20))


def mds_packed(folder: Path) -> Made:
    written = write_mds(folder / "packed", mds_rows(20), compression="gz", hashes=["sha1"])
    return Made(written, mds_rows(20), noticed="sums")


def mds_zstd(folder: Path) -> Made:
    return Made(
        write_mds(folder / "zstd", mds_rows(20), compression="zstd"), mds_rows(20), noticed="sums"
    )


def tfrecord(folder: Path) -> Made:
    path = write_tfrecord(folder / "examples.tfrecord", [example(row) for row in example_rows(12)])
    return Made(path, example_rows(12), noticed="sums", open_ended=True)


def array_record(folder: Path) -> Made:
    module: Any = pytest.importorskip("array_record.python.array_record_module")
    rows = [{"__record__": np.random.default_rng(i).bytes(i * i)} for i in range(20)]
    path = folder / "records.array_record"
    writer = module.ArrayRecordWriter(str(path), "group_size:3")
    for row in rows:
        writer.write(row["__record__"])
    writer.close()
    return Made(path, rows, noticed="sums")


def saved(folder: Path) -> Made:
    datasets: Any = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    rows = [{"id": i, "text": f"ü{i}" * (i % 5), "list": np.arange(i % 4)} for i in range(20)]
    datasets.Dataset.from_list(rows).save_to_disk(str(folder / "saved"), num_shards=3)
    return Made(folder / "saved", rows, noticed="")


def litdata(folder: Path) -> Made:
    return Made(write_litdata(folder / "lit", lit_rows(20)), lit_rows(20))


def some_arrays(count: int) -> tuple[dict[str, Any], list[Row]]:
    rng = np.random.default_rng(count)
    found = {"grid": rng.random((count, 2, 3)).astype(np.float32), "id": np.arange(count)}
    return found, [{"grid": found["grid"][i], "id": i} for i in range(count)]


def hdf5(folder: Path) -> Made:
    h5py: Any = pytest.importorskip("h5py")
    arrays, rows = some_arrays(20)
    with h5py.File(folder / "arrays.h5", "w") as file:
        for name, values in arrays.items():
            file.create_dataset(
                name,
                data=values,
                chunks=(6, *values.shape[1:]),
                compression="gzip",
                fletcher32=True,
            )
    return Made(folder / "arrays.h5", rows)


def zarr(folder: Path) -> Made:
    module: Any = pytest.importorskip("zarr")
    arrays, rows = some_arrays(20)
    group = module.open_group(str(folder / "arrays.zarr"), mode="w")
    for name, values in arrays.items():
        group.create_array(name, data=values, chunks=(6, *values.shape[1:]))
    return Made(folder / "arrays.zarr", rows, noticed="")


def lance(folder: Path) -> Made:
    module: Any = pytest.importorskip("lance")
    import pyarrow as pa

    rows = [{"id": i, "text": f"ü{i}" * (i % 5), "list": np.arange(i % 4)} for i in range(20)]
    table = pa.Table.from_pylist([{**row, "list": row["list"].tolist()} for row in rows])
    module.write_dataset(table, str(folder / "table.lance"), max_rows_per_file=8)
    return Made(folder / "table.lance", rows, threads=True)


def vortex(folder: Path) -> Made:
    module: Any = pytest.importorskip("vortex")
    import pyarrow as pa

    rows = [{"id": i, "text": f"ü{i}" * (i % 5), "list": np.arange(i % 4)} for i in range(20)]
    table = pa.Table.from_pylist([{**row, "list": row["list"].tolist()} for row in rows])
    module.io.write(table, str(folder / "table.vortex"))
    return Made(folder / "table.vortex", rows, threads=True)


FORMATS: dict[str, Callable[[Path], Made]] = {
    "mds": mds,
    "mds.gz": mds_packed,
    "mds.zstd": mds_zstd,
    "tfrecord": tfrecord,
    "array_record": array_record,
    "datasets": saved,
    "litdata": litdata,
    "hdf5": hdf5,
    "zarr": zarr,
    "lance": lance,
    "vortex": vortex,
}
