"""Bounds on the memory of a row group before it is decoded, from its footer and its pages."""

from __future__ import annotations

import contextlib
import importlib
import io
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.errors import DataError
from penstock.sources import open_files, parquet_pages
from penstock.sources.columnar import Parquet
from penstock.sources.parquet_pages import require_small_row_group

pa: Any = importlib.import_module("pyarrow")
pq: Any = importlib.import_module("pyarrow.parquet")

LIMIT = 1 << 16


def check(data: bytes, names: list[str], limit: int = LIMIT, ratio: int = 0) -> Any:
    """Check the row group of a file with a small limit; return what it decodes to."""
    raw = pa.BufferReader(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_pages, "DECODED", limit)
        patch.setattr(parquet_pages, "MAX_UNPACK_RATIO", ratio)
        file = pq.ParquetFile(raw)
        require_small_row_group(raw, file, 0, names, Path("x.parquet"), len(data))
    return file.read_row_group(0, columns=names)


def write(table: Any, **options: Any) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=1 << 30, **options)
    return out.getvalue()


def text(size: int) -> Any:
    return pa.array(["x" * size])


@st.composite
def columns(draw: st.DrawFn) -> Any:
    """A column of one row group, of few or very many values, mostly equal ones."""
    size = draw(st.sampled_from([1, 30, 1_000, 20_000]))
    codes = np.zeros(size, np.int32)
    codes[: draw(st.integers(0, 3))] = 1
    values = draw(
        st.sampled_from(
            [
                pa.array([1, 2], pa.int8()),
                pa.array([1, 2], pa.int64()),
                pa.array([1.5, None]),
                pa.array([True, False]),
                pa.array([None, None]),
                pa.array(["a", "b" * 30_000]),
                pa.array(["a" * 300, None]),
                pa.array([b"a" * 90, b"b" * 90], pa.binary(90)),
                pa.array([1, None], pa.decimal128(30)),
                pa.array([{"a": 1, "b": "x" * 50}, None]),
            ]
        )
    ).take(pa.array(codes))
    match draw(st.integers(0, 3)):
        case 1:
            offsets = pa.array(np.linspace(0, size, 1 + draw(st.integers(1, 5))).astype(np.int32))
            return pa.ListArray.from_arrays(offsets, values)
        case 2:
            return pa.StructArray.from_arrays([values], ["inner"])
        case _:
            return values


@examples(150)
@given(
    columns(),
    st.sampled_from(["snappy", "zstd", "none", "gzip"]),
    st.sampled_from(["1.0", "2.0"]),
    st.booleans(),
    st.sampled_from([100, 1 << 20]),
)
def test_what_passes_is_small_and_what_is_small_passes(
    column: Any, compression: str, version: str, dictionary: bool, page: int
) -> None:
    table = pa.table({"a": column})
    options = {"data_page_version": version, "use_dictionary": dictionary}
    data = write(table, compression=compression, data_page_size=page, **options)
    try:
        decoded = check(data, ["a"])
    except DataError as error:
        assert "x.parquet: row group 0 of" in str(error)
        values = column.flatten() if isinstance(column, pa.ListArray) else column
        assert 20 * (table.nbytes + len(values)) > LIMIT  # nulls take no bytes
    else:
        assert decoded.equals(pq.read_table(io.BytesIO(data)))
        assert decoded.nbytes <= 2 * LIMIT


@pytest.mark.parametrize("encoding", ["RLE_DICTIONARY", "DELTA_BYTE_ARRAY", "PLAIN"])
@pytest.mark.parametrize("nested", [False, True])
def test_texts_that_repeat_are_measured(encoding: str, nested: bool) -> None:
    column = pa.array(["x" * 10_000] * 200)
    if nested and encoding == "DELTA_BYTE_ARRAY":
        return
    if nested:
        column = pa.ListArray.from_arrays(pa.array([0, 150, 200], pa.int32()), column)
    options: dict[str, Any] = {"compression": "zstd"}
    if encoding != "RLE_DICTIONARY":
        name = "a.list.element" if nested else "a"
        options |= {"use_dictionary": False, "column_encoding": {name: encoding}}
    data = write(pa.table({"a": column}), **options)
    assert len(data) < 3_000
    with pytest.raises(DataError, match="row group 0 of [0-9]+ bytes would take more than 1 MiB"):
        check(data, ["a"], limit=1 << 20)
    assert check(data, ["a"], limit=3 << 20).num_rows == (2 if nested else 200)


def test_one_long_text_among_many_short_ones_is_honest() -> None:
    texts = ["y" * 30_000, *(["a", "b", "c"] * 10_000)]
    for options in (
        {},
        {"use_dictionary": False, "column_encoding": {"a": "DELTA_BYTE_ARRAY"}},
        {"data_page_size": 1_000},
    ):
        data = write(pa.table({"a": texts}), **options)
        assert check(data, ["a"], limit=1 << 19).num_rows == 30_001


def test_only_the_columns_that_are_read_count() -> None:
    data = write(pa.table({"a": np.zeros(9_000), "b": np.zeros(9_000, np.int8)}))
    with pytest.raises(DataError, match=r"read fewer columns \(columns=\), or write smaller row"):
        check(data, ["a", "b"])
    assert check(data, ["b"]).num_rows == 9_000


def test_a_row_group_that_is_large_in_the_file_may_be_large() -> None:
    column = np.arange(90_000)
    data = write(pa.table({"a": column}))
    assert check(data, ["a"], ratio=3).num_rows == 90_000
    with pytest.raises(DataError):
        check(write(pa.table({"a": 0 * column})), ["a"], ratio=3)


def test_texts_that_stay_encoded_take_their_text_once() -> None:
    codes = pa.array(np.zeros(900, np.int8))
    column = pa.DictionaryArray.from_arrays(codes, text(9_000))
    data = write(pa.table({"a": column}))
    assert check(data, ["a"]).num_rows == 900
    with pytest.raises(DataError):
        check(write(pa.table({"a": column}), store_schema=False), ["a"])


def test_nested_values_are_counted_in_their_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    column = pa.ListArray.from_arrays([0, 50_000], pa.array(np.zeros(50_000, np.int64)))
    data = write(pa.table({"a": column}))
    monkeypatch.setattr(  # as a footer that claims one value
        parquet_pages._Chunk,
        "estimate",
        lambda chunk: 0,  # pyright: ignore[reportPrivateUsage]
    )
    with pytest.raises(DataError, match="would take more than"):
        check(data, ["a"])


def test_rows_and_single_columns_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(write(pa.table({"a": [[0] * 50_000], "b": [1]})))
    monkeypatch.setattr(parquet_pages, "DECODED", LIMIT)
    ds = ps.read(path)
    assert len(ds) == 1
    with pytest.raises(DataError, match=r"x\.parquet"):
        ds[0]
    assert ps.read(path, columns=["b"])[0] == {"b": 1}
    source: Any = open_files(path)
    (file,) = source.files
    assert isinstance(file, Parquet)
    with pytest.raises(DataError, match=r"x\.parquet"):
        next(file.column("a"))


@pytest.mark.parametrize(
    "header",
    [
        *[b"", b"\x15\x00", b"\x15" + b"\xff" * 40, b"\x1c" * 90, b"\x19\x00"],
        b"\x15\x01\x15\x00\x00",  # the size is negative
        b"\x1c\x00\x15\x02\x15\x02\x00",  # the kind is a struct
        b"\x15\x00\x15\x02\x15\x02\x21\x00",  # the header of its data is a truth value
        b"\x15\x00\x15\x02\x15\x02\x2c\x11\x15\x00\x00\x00",  # the count is one
        b"\x15\x00\x15\x02\x15\x02\x2c\x15\x02\x1c\x00\x00\x00",  # the encoding is a struct
        b"\x15\x00\x17" + bytes(8) + b"\x15\x02\x2c\x15\x02\x15\x00\x00\x00",  # the size is a float
        b"\x15\x00\x15\x02\x15\x02\x00",  # without the header of its data
    ],
)
def test_a_damaged_header_of_a_page_is_an_error(header: bytes) -> None:
    with pytest.raises(ValueError, match="page"):
        parquet_pages._read_page(pa.BufferReader(header), 0)  # pyright: ignore[reportPrivateUsage]


def test_a_changed_byte_in_a_header_is_an_error_of_the_file(tmp_path: Path) -> None:
    data, path = write(pa.table({"w": [[i] * (i % 4) for i in range(20)]})), tmp_path / "x.parquet"
    for at, value in product(range(4, 44, 2), (0x11, 0x1C)):
        path.write_bytes(data[:at] + bytes([value]) + data[at + 1 :])
        with contextlib.suppress(DataError):
            _ = ps.read(path)[0]
