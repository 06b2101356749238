"""Tables of every type of column, as files of every columnar format, and what their rows are."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

N = 1000
VECTORS_WITH_NULLS = int(pa.__version__.split(".")[0]) >= 23
"""False where Arrow writes no Parquet file of lists of one length with nulls among them."""


def table(start: int = 0, rows: int = N) -> Any:
    numbers = range(start, start + rows)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "text": [None if n % 11 == 0 else f"wörd {n}" for n in numbers],
            "score": pa.array([None if n % 7 == 0 else n / 2 for n in numbers], pa.float64()),
            "tokens": pa.array(
                [None if n % 13 == 0 else list(range(n % 5)) for n in numbers], pa.list_(pa.int32())
            ),
            "wide": pa.array([[n] * (n % 3) for n in numbers], pa.large_list(pa.float32())),
            "vector": pa.array(
                [None if n % 17 == 0 and VECTORS_WITH_NULLS else [n, n + 1] for n in numbers],
                pa.list_(pa.float64(), 2),
            ),
            "bits": pa.array([[n % 2 == 0] for n in numbers], pa.list_(pa.bool_())),
            "holes": pa.array(
                [[1, None, n % 100] if n % 3 else [n % 100] for n in numbers], pa.list_(pa.uint8())
            ),
            "nested": pa.array([{"a": n, "b": [str(n)]} for n in numbers]),
            "when": pa.array(
                [datetime.datetime(2024, 1, 1) + datetime.timedelta(n) for n in numbers]
            ),
            "map": pa.array(
                [[("a", n), ("b", None)] for n in numbers], pa.map_(pa.string(), pa.int64())
            ),
            "void": pa.nulls(rows),
            "raw": pa.array([bytes([n % 256]) for n in numbers]),
        }
    )


def parquet(path: Path, rows: Any) -> None:
    pq.write_table(rows, path, row_group_size=100)


def arrow_file(path: Path, rows: Any, **options: Any) -> None:
    with ipc.new_file(str(path), rows.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(rows, max_chunksize=100)


def arrow_stream(path: Path, rows: Any, **options: Any) -> None:
    with ipc.new_stream(str(path), rows.schema, options=ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(rows, max_chunksize=100)


WRITERS: dict[str, tuple[str, Callable[[Path, Any], None]]] = {
    "parquet": ("x.parquet", parquet),
    "file": ("x.arrow", arrow_file),
    "stream": ("x.ipc", arrow_stream),
    "packed file": ("x.feather", lambda path, rows: arrow_file(path, rows, compression="lz4")),
    "packed stream": ("x.arrow", lambda path, rows: arrow_stream(path, rows, compression="zstd")),
}


def write(folder: Path, kind: str, rows: Any, name: str | None = None) -> Path:
    default, writer = WRITERS[kind]
    path = folder / (name or default)
    writer(path, rows)
    return path


def expected(rows: Any) -> list[dict[str, Any]]:
    """Return rows as Python values, with arrays for lists of numbers without a null."""
    types = {
        "tokens": np.int32,
        "wide": np.float32,
        "vector": np.float64,
        "bits": np.bool_,
        "holes": np.uint8,
    }

    def value(name: str, given: Any) -> Any:
        if name not in types or given is None or None in given:
            return given
        return np.asarray(given, types[name])

    return [{name: value(name, given) for name, given in row.items()} for row in rows.to_pylist()]


def same(got: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> bool:
    def equal(a: Any, b: Any) -> bool:
        if isinstance(b, np.ndarray):
            return (
                isinstance(a, np.ndarray)
                and a.dtype == b.dtype
                and a.shape == b.shape
                and bool((a == b).all())
            )
        return type(a) is type(b) and a == b

    return len(got) == len(wanted) and all(
        list(a) == list(b) and all(equal(a[name], b[name]) for name in b)
        for a, b in zip(got, wanted, strict=True)
    )
