from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.arrays.lossless import list_arrow_errors
from penstock.engine.base.seams import world
from penstock.errors import ConfigError, DataError, StorageError
from penstock.sources import arrow_index, block, columnar, open_files
from penstock.sources.rows import check_offsets
from tables import WRITERS, N, arrow_file, arrow_stream, expected, same, table, write

pa: Any = pytest.importorskip("pyarrow")
import pyarrow.ipc as ipc  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402


@pytest.fixture(params=WRITERS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def test_rows_come_back_in_any_order(tmp_path: Path, kind: str) -> None:
    source, rows = open_files(write(tmp_path, kind, table())), expected(table())
    assert len(source) == N
    assert same(source.read(np.arange(N)), rows)
    rng = np.random.default_rng(0)
    for size in (1, 3, 20, 3000):  # few rows for each batch, and many
        order = rng.integers(0, N, size)
        assert same(source.read(order), [rows[index] for index in order.tolist()])
    assert source.read(np.zeros(0, np.int64)) == []
    assert source.lengths() is None
    assert source.describe() == {
        "format": "parquet" if kind == "parquet" else "arrow",
        "rows": N,
        "columns": table().schema.names,
    }


def test_a_row_does_not_depend_on_its_company(tmp_path: Path, kind: str) -> None:
    source, rows = open_files(write(tmp_path, kind, table())), expected(table())
    for index in (0, 1, 3, 13, 17, 150):
        assert same(source.read(np.array([index])), [rows[index]])


def test_columns(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, kind, table())
    source = open_files(path, columns=["tokens", "id"])
    rows = expected(table().select(["tokens", "id"]))
    order = np.array([999, 5, 500, 5])
    assert same(source.read(order), [rows[index] for index in order.tolist()])
    assert same(
        open_files(path, columns=["id"]).read(order), [{"id": index} for index in order.tolist()]
    )
    with pytest.raises(
        ConfigError, match=rf"{path}: there is no column 'x'; the columns are id, text, score"
    ):
        open_files(path, columns=["id", "x"])


def test_lists_of_numbers_are_views(tmp_path: Path) -> None:
    source = open_files(write(tmp_path, "file", table()))
    first, again = (
        source.read(np.array([4, 5, 6, 7, 8, 9, 3, 2, 1]))[0]["tokens"] for _ in range(2)
    )
    assert first.tolist() == [0, 1, 2, 3]
    assert np.shares_memory(first, again), "both are the mapped file"
    assert not first.flags.writeable
    parquet = open_files(write(tmp_path, "parquet", table(), "y.parquet"))
    sample = parquet.read(np.array([4]))[0]["tokens"]
    assert sample.base is not None
    owner = sample
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    assert owner.nbytes < 1000, "a sample keeps the rows it was read with, not its row group"


def test_several_files_and_batches_without_rows(tmp_path: Path, kind: str) -> None:
    suffix = WRITERS[kind][0].rpartition(".")[2]
    for part, (start, rows) in enumerate([(0, 250), (250, 0), (250, 1), (251, 349)]):
        write(tmp_path, kind, table(start, rows), f"{part}.{suffix}")
    source, rows = open_files(str(tmp_path / f"{{0..3}}.{suffix}")), expected(table(0, 600))
    order = np.random.default_rng(2).integers(0, 600, 500)
    assert same(source.read(order), [rows[index] for index in order.tolist()])
    assert len(source) == 600


def test_pickling_and_threads(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "penstock.sources.DECODED_CACHE_BYTES", 30_000
    )  # so that row groups come and go
    source, rows = open_files(write(tmp_path, kind, table())), expected(table())
    source.read(np.arange(N))
    again = pickle.loads(pickle.dumps(source))
    assert len(pickle.dumps(source)) < 20_000

    def work(seed: int) -> bool:
        order = np.random.default_rng(seed).integers(0, N, 60)
        return same(again.read(order), [rows[index] for index in order.tolist()])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(24)))


def test_a_row_group_is_decoded_once_while_it_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    original = columnar.Parquet._decode  # pyright: ignore[reportPrivateUsage]

    def count(self: columnar.Parquet, group: int) -> tuple[int, Any]:
        decoded.append(group)
        return original(self, group)

    monkeypatch.setattr(columnar.Parquet, "_decode", count)
    source = open_files(write(tmp_path, "parquet", table()))
    source.read(np.arange(N)[::-1])
    source.read(np.arange(N))
    assert decoded == list(range(10))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="counts the open files of Linux")
def test_no_file_is_held_open(tmp_path: Path, kind: str) -> None:
    suffix = WRITERS[kind][0].rpartition(".")[2]
    for part in range(20):
        write(tmp_path, kind, pa.table({"n": [part]}), f"{part:02d}.{suffix}")
        (tmp_path / f"{part:02d}.txt").write_text(str(part))
    before = len(os.listdir("/proc/self/fd"))
    columns, lines = open_files(str(tmp_path / f"*.{suffix}")), open_files(str(tmp_path / "*.txt"))
    assert columns.read(np.arange(20)) == [{"n": part} for part in range(20)]
    assert lines.read(np.arange(20)) == [{"text": str(part)} for part in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("few", [0, 10**9])
def test_both_ways_of_reading_give_the_same(
    tmp_path: Path, kind: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block, "MAX_JOINED_ROWS_PER_PART", few)
    monkeypatch.setattr(block, "_MAX_GATHERED_PER_PART", few)
    source, rows = open_files(write(tmp_path, kind, table())), expected(table())
    order = np.random.default_rng(3).integers(0, N, 200)
    assert same(source.read(order), [rows[index] for index in order.tolist()])


@pytest.mark.parametrize("writer", [arrow_file, arrow_stream])
@pytest.mark.parametrize("compression", [None, "lz4"])
def test_dictionaries(tmp_path: Path, writer: Callable[..., None], compression: str | None) -> None:
    words = [None if n % 9 == 0 else f"w{n % 20}" for n in range(N)]
    rows = pa.table({"word": pa.array(words).dictionary_encode(), "n": range(N)})
    writer(tmp_path / "x.arrow", rows, compression=compression)
    order = np.random.default_rng(1).integers(0, N, 300)
    for columns in (["word", "n"], ["n"], ["n", "word"]):
        wanted = [
            {name: {"word": words[n], "n": n}[name] for name in columns} for n in order.tolist()
        ]
        assert open_files(tmp_path / "x.arrow", columns=columns).read(order) == wanted


def test_files_must_agree_in_their_columns(tmp_path: Path, kind: str) -> None:
    suffix = WRITERS[kind][0].rpartition(".")[2]
    write(tmp_path, kind, pa.table({"a": [1], "b": [2]}), f"0.{suffix}")
    write(tmp_path, kind, pa.table({"b": [4], "a": [3]}), f"1.{suffix}")
    source = open_files(tmp_path)
    assert [list(row.items()) for row in source.read(np.arange(2))] == [
        [("a", 1), ("b", 2)],
        [("a", 3), ("b", 4)],
    ]
    path = write(tmp_path, kind, pa.table({"a": [5], "c": [6]}), f"2.{suffix}")
    with pytest.raises(
        DataError, match=rf"{path}: its columns are a, c, those of .*0\.{suffix} are a, b"
    ):
        open_files(tmp_path)
    assert [row["a"] for row in open_files(tmp_path, columns=["a"]).read(np.arange(3))] == [1, 3, 5]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "file", pa.table([[1], [2]], ["a", "a"]))
    with pytest.raises(DataError, match="two columns have the same name, of a, a"):
        open_files(path)


@pytest.mark.parametrize("keep", [0, 3, 100, 0.5, -1, -7])
def test_truncated_files_are_refused_when_opened(tmp_path: Path, kind: str, keep: float) -> None:
    path = write(tmp_path, kind, table())
    body = path.read_bytes()
    body = body[: -8 if "stream" in kind else None]  # a stream may lack its end mark
    path.write_bytes(body[: int(len(body) * keep) if keep == 0.5 else int(keep)])
    with pytest.raises(DataError, match=rf"{path}: "):
        open_files(path)


def test_other_files_are_refused_when_opened(tmp_path: Path, kind: str) -> None:
    path = tmp_path / WRITERS[kind][0]
    for body in (b"hello, I am no table\n" * 50, bytes(1000), os.urandom(1000)):
        path.write_bytes(body)
        with pytest.raises(DataError, match=rf"{path}: "):
            open_files(path)


def test_a_damaged_row_group_names_file_and_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(
        table().select(["id", "text"]), path, row_group_size=100, write_page_checksum=True
    )
    column = pq.read_metadata(path).row_group(4).column(1)
    body = bytearray(path.read_bytes())
    body[int(column.dictionary_page_offset or 0) + column.total_compressed_size - 5] ^= 255
    path.write_bytes(bytes(body))
    source = open_files(path)
    with pytest.raises(DataError, match=rf"{path}, row 450: "):
        source.read(np.array([450]))
    with pytest.raises(DataError, match=rf"{path}, rows 3 to 900: "):
        source.read(np.array([900, 450, 3]))
    assert source.read(np.array([399, 500])) == [
        {"id": 399, "text": "wörd 399"},
        {"id": 500, "text": "wörd 500"},
    ]


def test_a_damaged_batch_is_an_error_not_a_wrong_row(tmp_path: Path) -> None:
    path = write(tmp_path, "packed file", table().select(["id"]))
    index = columnar.index_record_batches(pa.py_buffer(path.read_bytes()), file=True)
    body = bytearray(path.read_bytes())
    start, stop = index.ranges[3]
    body[stop - 200 : stop] = bytes(200)
    path.write_bytes(bytes(body))
    source = open_files(path)
    with pytest.raises(DataError, match=rf"{path}, row 350: "):
        source.read(np.array([350]))
    assert source.read(np.array([250])) == [{"id": 250}]
    assert start < stop


def test_text_that_is_not_utf8_is_an_error(tmp_path: Path, kind: str) -> None:
    bad = pa.array([b"fine", b"\xff\xfe"]).view(pa.string())
    source = open_files(write(tmp_path, kind, pa.table({"text": bad})))
    with pytest.raises(DataError, match="row 1: .*decode"):
        source.read(np.array([1]))
    assert source.read(np.array([0])) == [{"text": "fine"}]


def test_a_file_that_changes_under_a_run_is_refused(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path, kind, table())
    source = open_files(path)
    os.utime(path, ns=(1, 1))
    with pytest.raises(DataError, match="changed while it was in use"):
        source.read(np.array([1]))
    path.unlink()
    with pytest.raises(StorageError, match="No such file"):
        source.read(np.array([1]))


def test_columns_that_lead_outside_are_refused() -> None:
    numbers, text = pa.array(range(4), pa.int32()), pa.py_buffer(b"abcdef")
    for offsets in ([0, 2, 1, 4], [0, 9, 1, 2], [0, -3, 1, 2]):
        places = pa.py_buffer(np.array(offsets, np.int32))
        wide = pa.py_buffer(np.array(offsets, np.int64))
        bad = [
            pa.Array.from_buffers(pa.string(), 3, [None, places, text]),
            pa.Array.from_buffers(pa.large_binary(), 3, [None, wide, text]),
            pa.Array.from_buffers(pa.list_(pa.int32()), 3, [None, places], children=[numbers]),
            pa.Array.from_buffers(pa.large_list(pa.int32()), 3, [None, wide], children=[numbers]),
        ]
        bad.append(pa.StructArray.from_arrays([bad[0]], ["a"]))
        bad.append(pa.Array.from_buffers(pa.list_(pa.string(), 3), 1, [None], children=[bad[0]]))
        for array in bad:
            with pytest.raises(ValueError, match="damaged column: an offset"):
                check_offsets(array)
    indices = pa.array([0, None, 5], pa.int8())
    with pytest.raises(ValueError, match="damaged column: an index"):
        check_offsets(pa.DictionaryArray.from_arrays(indices, pa.array(["a"]), safe=False))
    for column in table().combine_chunks().columns:
        check_offsets(column.chunk(0))
        check_offsets(column.chunk(0).slice(10, 5))
    check_offsets(pa.array(["a", "b"], pa.string_view()))


def test_index_of_reads_headers_only() -> None:
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, table().schema) as writer:
        writer.write_table(table(), max_chunksize=300)
    body = sink.getvalue().to_pybytes()
    index = columnar.index_record_batches(pa.py_buffer(body), file=False)
    assert (index.sizes, index.compressed, index.dictionaries) == (
        [300, 300, 300, 100],
        False,
        False,
    )
    schema = ipc.open_stream(body).schema
    for number, (start, stop) in enumerate(index.ranges):
        assert (
            ipc.read_record_batch(pa.py_buffer(body[start:stop]), schema)
            == table().slice(number * 300, 300).combine_chunks().to_batches()[0]
        )


def test_index_of_takes_any_bytes() -> None:
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, pa.schema([("a", pa.int32())])) as writer:
        writer.write_table(pa.table({"a": pa.array([1, 2], pa.int32())}))
    body = sink.getvalue().to_pybytes()
    rng = np.random.default_rng(0)
    for _ in range(2000):
        spoiled = bytearray(body)
        for place in rng.integers(0, len(body), 3).tolist():
            spoiled[place] = int(rng.integers(0, 256))
        try:
            index = columnar.index_record_batches(pa.py_buffer(bytes(spoiled)), file=False)
        except (ValueError, struct.error):
            continue
        assert all(0 <= start < stop <= len(body) for start, stop in index.ranges)


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_columns_of_other_types_are_refused_and_other_layouts_are_not(
    tmp_path: Path, suffix: str
) -> None:
    def put(name: str, **columns: Any) -> None:
        table = pa.table(columns)
        if suffix == "parquet":
            pq.write_table(table, tmp_path / f"{name}.parquet")
        else:
            with ipc.new_file(str(tmp_path / f"{name}.arrow"), table.schema) as writer:
                writer.write_table(table)

    put("a", n=pa.array([1], pa.int32()), s=pa.array(["x"]))
    put("b", n=pa.array([None], pa.null()), s=pa.array(["x"], pa.large_string()))
    put("c", n=pa.array([2], pa.int32()), s=pa.array(["x"]).dictionary_encode())
    source = open_files(tmp_path / f"*.{suffix}")
    assert source.read(np.arange(3)) == [{"n": n, "s": "x"} for n in (1, None, 2)]
    put("d", n=pa.array(["2.5"]), s=pa.array(["x"]))
    with pytest.raises(
        DataError,
        match=rf"d\.{suffix}: its column 'n' holds string, in .*a\.{suffix} it holds int32",
    ):
        open_files(tmp_path / f"*.{suffix}")
    assert len(open_files(tmp_path / f"*.{suffix}", columns=["s"])) == 4


@pytest.mark.parametrize("files", [3, 40])
def test_types_are_compared_with_the_first_file_that_tells_them(tmp_path: Path, files: int) -> None:
    for number in range(files):
        column = pa.nulls(1) if number == 0 else pa.array([1 if number < files - 1 else "a"])
        pq.write_table(pa.table({"n": column}), tmp_path / f"{number:02}.parquet")
    with pytest.raises(
        DataError, match=rf"{files - 1:02}\.parquet: its column 'n' holds string, in .*01\.parquet"
    ):
        open_files(tmp_path / "*.parquet")


def test_structs_that_differ_in_the_name_of_their_first_field_are_refused(tmp_path: Path) -> None:
    for name, value in (("0", {"a": 1}), ("1", {"b": 1})):
        pq.write_table(pa.table({"x": [value]}), tmp_path / f"{name}.parquet")
    with pytest.raises(DataError, match=r"1\.parquet: its column 'x' holds struct<b: int64>"):
        open_files(str(tmp_path / "*.parquet"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([{"null": 1}]), pa.array([{"x": 1}])),
        (pa.array([{"page_views": 1}]), pa.array([{"pages": 1}])),
        (pa.array([{"a: int64, b": 1}]), pa.array([{"a": 1, "b": 1}])),
    ],
)
def test_names_of_fields_are_no_types(tmp_path: Path, one: Any, other: Any) -> None:
    for name, column in (("0", one), ("1", other)):
        table = pa.table({"x": column})
        with ipc.new_file(str(tmp_path / f"{name}.arrow"), table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(DataError, match=r"1\.arrow: its column 'x' holds"):
        open_files(tmp_path / "*.arrow")


def test_a_table_without_columns_has_its_rows(tmp_path: Path) -> None:
    table = pa.table({"a": range(5)}).select([])
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), table.schema) as writer:
        writer.write_table(table)
    source = open_files(tmp_path / "x.arrow")
    assert (
        len(source) == 5
        and source.read(np.array([0, 1])) == [{}, {}]
        and source.read(np.arange(5)) == [{}] * 5
    )


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_what_follows_an_arrow_file_is_not_passed_over(kind: str, tmp_path: Path) -> None:
    """A regression test: pyarrow ignores the second of two joined files; reading must raise."""

    def bytes_of(numbers: list[int]) -> bytes:
        out, rows = pa.BufferOutputStream(), pa.table({"x": numbers})
        with (ipc.new_stream if kind == "stream" else ipc.new_file)(out, rows.schema) as writer:
            writer.write_table(rows)
        return out.getvalue().to_pybytes()

    path = tmp_path / "x.arrow"
    path.write_bytes(bytes_of([1, 2]))
    assert [row["x"] for row in ps.read(path)] == [1, 2]
    for more in (bytes_of([3, 4]), b"garbage!" * 20):
        path.write_bytes(bytes_of([1, 2]) + more)
        with pytest.raises(ps.DataError, match=r"x.arrow"):
            ps.read(path)


BEFORE_1970 = int(pa.__version__.split(".")[0]) >= 23
"""False where Arrow reads int96 timestamps before 1970, as it writes them itself, as others in milliseconds."""

FAR, NEAR = datetime(9999, 12, 31), datetime(1950 if BEFORE_1970 else 1980, 1, 1, 1, 1, 1, 999_999)


def int96(tmp_path: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(
        pa.table(columns),
        tmp_path / "a.parquet",
        use_deprecated_int96_timestamps=True,
        row_group_size=3,
    )
    return tmp_path / "a.parquet"


def test_int96_timestamps_beyond_nanoseconds_are_refused_where_they_are_read(
    tmp_path: Path,
) -> None:
    times = pa.array([NEAR, FAR, None, NEAR, datetime(1, 1, 1), NEAR], pa.timestamp("us"))
    path = int96(tmp_path, {"id": range(6), "time": times})
    rows = ps.read(path)
    near = np.datetime64(NEAR, "ns")
    assert [rows[i]["time"] for i in (0, 2, 3, 5)] == [near, None, near, near]
    assert [row["id"] for row in rows[[0, 2, 5]]] == [0, 2, 5]
    for i in (1, 4):
        with pytest.raises(
            DataError, match=rf"a.parquet, row {i}: column 'time' holds an int96 timestamp outside"
        ):
            rows[i]
    with pytest.raises(DataError, match="row 1: column 'time'"):
        list(ps.read(path, rows="columns").map(lambda columns: columns, batched=6))
    with pytest.raises(DataError, match="row 1: column 'time'"):
        ps.read(path, where={"time": {"min": datetime(2000, 1, 1)}})
    assert [row["id"] for row in ps.read(path, where={"id": [0, 3]})] == [0, 3]
    assert ps.read(path, columns=["id"])[1] == {"id": 1}
    kept = list(ps.Loader(rows, on_error="quarantine", max_errors=9))
    assert {row["time"] for row in kept} == {near, None}


@pytest.mark.parametrize(
    ("kind", "near", "far"),
    [
        (pa.list_(pa.timestamp("us")), lambda time: [time], [NEAR, FAR]),
        (pa.struct([("t", pa.timestamp("us"))]), lambda time: {"t": time}, {"t": FAR}),
        (pa.map_(pa.int64(), pa.timestamp("us")), lambda time: [(1, time)], [(1, FAR)]),
    ],
)
def test_int96_timestamps_inside_other_values_are_looked_at(
    tmp_path: Path, kind: Any, near: Any, far: Any
) -> None:
    rows = ps.read(int96(tmp_path, {"a.b": pa.array([near(NEAR), None, far], kind)}))
    assert [row["a.b"] for row in rows[[0, 1]]] == [near(np.datetime64(NEAR, "ns")), None]
    with pytest.raises(DataError, match=r"row 2: column 'a.b' holds an int96 timestamp outside"):
        rows[2]


def test_int96_timestamps_keep_all_nanoseconds_that_64_bits_hold(tmp_path: Path) -> None:
    numbers = [*([1 - 2**63, -1] if BEFORE_1970 else []), 2**63 - 1, 1, 0]
    rows = ps.read(int96(tmp_path, {"time": pa.array(numbers, pa.timestamp("ns"))}))
    assert [row["time"] for row in rows] == [np.datetime64(number, "ns") for number in numbers]


def test_structs_that_are_all_null_may_hold_any_index_of_a_dictionary(tmp_path: Path) -> None:
    kind = pa.struct([("a", pa.dictionary(pa.int8(), pa.string()))])
    path = tmp_path / "a.arrow"
    lone = pa.table({"x": pa.array([None, None], kind)})
    with ipc.new_file(str(path), lone.schema) as writer:
        writer.write_table(lone)
    assert list(ps.read(path)) == [{"x": None}, {"x": None}]


@pytest.mark.parametrize("on_error", ["raise", "quarantine"])
def test_a_lack_of_memory_is_not_the_fault_of_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, on_error: Any
) -> None:
    ds = ps.read(write(tmp_path, kind, table()))

    def fail(*_: Any, **__: Any) -> Any:
        raise pa.lib.ArrowMemoryError("malloc of size 99 failed")

    monkeypatch.setattr(world.sched, "sleep", lambda _: None)
    monkeypatch.setattr(columnar, "take_rows_of_batches", fail)
    with ps.Loader(ds, on_error=on_error) as loader:
        with pytest.raises(StorageError, match="malloc of size 99 failed.*: raise the") as caught:
            next(iter(loader))
        assert not loader.journal
    assert str(tmp_path) in str(caught.value)
    assert "smaller rows, row groups or record batches" in str(caught.value)


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("on_error", ["raise", "quarantine"])
def test_a_file_that_cannot_be_mapped_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, on_error: Any
) -> None:
    path = write(tmp_path, kind, table())
    ds = ps.read(path)

    def fail(_: Any) -> Any:
        raise OSError("Memory mapping file failed: Cannot allocate memory")  # as Arrow, no number

    monkeypatch.setattr(world.sched, "sleep", lambda _: None)
    monkeypatch.setattr(pa, "memory_map", fail)
    with pytest.raises(StorageError, match="Cannot allocate memory: raise the memory limit"):
        ps.read(path)
    with ps.Loader(pickle.loads(pickle.dumps(ds)), on_error=on_error) as loader:
        with pytest.raises(StorageError, match="raise the memory limit"):
            next(iter(loader))
        assert not loader.journal


@pytest.mark.parametrize("kind", ["file", "stream"])
@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_compressed_buffers_are_bounded_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, codec: str
) -> None:
    ipc: Any = pytest.importorskip("pyarrow.ipc")
    words = pa.DictionaryArray.from_arrays(pa.array([0, 0], "int8"), pa.array(["x" * 300_000]))
    columns = {
        "numbers": pa.table({f"c{n}": np.zeros(10_000) for n in range(9)}),
        "words": pa.table({"w": words}),
    }
    for name, contents in columns.items():
        path = tmp_path / f"{name}.arrow"
        options = ipc.IpcWriteOptions(compression=codec)
        new = getattr(ipc, f"new_{kind}")
        with (
            pa.OSFile(str(path), "wb") as out,
            new(out, contents.schema, options=options) as writer,
        ):
            writer.write_table(contents)
        ps.read(path)[0]
        with monkeypatch.context() as patch:
            patch.setattr(arrow_index, "DECODED", 250_000)
            patch.setattr(arrow_index, "MAX_UNPACK_RATIO", 1)
            fresh = ps.read(path)
            assert len(fresh) == contents.num_rows
            with pytest.raises(
                DataError, match=rf"{name}\.arrow.* take more than .*smaller record"
            ):
                fresh[0]


def test_a_row_of_many_objects_is_an_error_and_of_many_numbers_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    rows = {
        "texts": [["a"] * 300, []],
        "numbers": [[1] * 300, []],
        "pairs": [[{"a": [None] * 9}], []],
    }
    path = write(tmp_path, kind, pa.table(rows))
    assert ps.read(path)[0]["texts"] == ["a"] * 300
    monkeypatch.setattr(columnar, "DECODED", 9_000)
    assert len(ps.read(path, columns=["numbers"])[0]["numbers"]) == 300
    assert ps.read(path, columns=["pairs"])[0]["pairs"] == [{"a": [None] * 9}]
    with pytest.raises(DataError, match=r"row 0: the values of the column 'texts' would take"):
        ps.read(path)[0]


def test_errors_of_values_are_not_those_of_memory() -> None:
    assert not any(issubclass(error, MemoryError) for error in list_arrow_errors())
    assert issubclass(pa.ArrowInvalid, list_arrow_errors())
