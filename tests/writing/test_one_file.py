"""A dataset is written as the file that its name tells, complete or not at all, and read back."""

from __future__ import annotations

import datetime
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from tables import same, table

ROWS: list[dict[str, Any]] = [{"text": f"wörd {i}", "n": i} for i in range(3_000)]
ENDINGS = ".parquet .pq .arrow .feather .jsonl .ndjson .jsonl.gz .jsonl.zst .csv .csv.gz .csv.zst"
STREAMS: dict[str, Callable[[], ps.Dataset]] = {
    "indexed": lambda: ps.from_sequence(ROWS),
    "stream": lambda: ps.from_iterable(lambda: iter(ROWS)),
    "table": lambda: ps.read(pa.Table.from_pylist(ROWS)),
}


@pytest.mark.parametrize("ending", ENDINGS.split())
@pytest.mark.parametrize("kind", STREAMS)
def test_written_is_read_back(ending: str, kind: str, tmp_path: Path) -> None:
    if "zst" in ending:
        pytest.importorskip("zstandard")
    path = tmp_path / f"a{ending}"
    assert STREAMS[kind]().write(path) == [path]
    assert list(ps.read(path)) == ROWS
    assert [file.name for file in tmp_path.iterdir() if not file.name.startswith(".")] == [
        path.name
    ]


@pytest.mark.parametrize("ending", [".csv", ".csv.gz"])
@pytest.mark.parametrize("values", [
    ["x", None, "y"], [None, "x"], ["a\n\nb", None, '"'], [1, None, 3], [None, None], [1.5, None],
    [True, None], [datetime.date(2024, 1, 2), None], [datetime.datetime(2024, 1, 2, 3), None],
    [1] * 2_500 + [None] * 2_500 + [3] * 2_500,
], ids=str)  # fmt: skip
def test_a_null_in_the_only_column_of_csv_is_a_row(
    values: list[Any], ending: str, tmp_path: Path
) -> None:
    # Read back as from a file of two columns, in which an empty text is null too.
    two = [{"a": value, "b": 1} for value in values]
    (path,) = ps.from_sequence(two).write(tmp_path / f"b{ending}")
    expected = [row["a"] for row in ps.read(path)]
    for one in (
        ps.from_sequence([{"a": value} for value in values]),
        ps.read(pa.table({"a": values})),
    ):
        (path,) = one.write(tmp_path / f"a{ending}", overwrite=True)
        assert [row["a"] for row in ps.read(path)] == expected


def test_every_type_survives_in_tables(tmp_path: Path) -> None:
    rows = table(0, 300)
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=50)
    ds = ps.read(tmp_path / "a.parquet").shuffle(seed=1)
    for name in ("b.parquet", "b.arrow"):
        (path,) = ds.write(tmp_path / name)
        assert same(list(ps.read(path)), list(ds))
        assert ps.read(path).schema.equals(rows.schema)
    rows_of_map = ds.map(lambda row: {"when": row["when"], "tokens": row["wide"]})
    (path,) = rows_of_map.write(tmp_path / "c.parquet")
    assert same(list(ps.read(path)), list(rows_of_map))


def test_late_columns_and_wider_types(tmp_path: Path) -> None:
    rows = [{"x": i} if i < 2_500 else {"x": i + 0.5, "late": "a"} for i in range(9_000)]
    for ds in (ps.from_sequence(rows), ps.from_iterable(lambda: iter(rows))):
        (path,) = ds.write(tmp_path / "a.parquet", overwrite=True)
        got = pq.read_table(path)
        assert got["x"].to_pylist() == [row["x"] for row in rows]
        assert got["late"].to_pylist() == [row.get("late") for row in rows]
    with pytest.raises(ps.DataError, match="one type in some rows and another"):
        ps.from_sequence([{"x": i if i < 2_048 else "a"} for i in range(5_000)]).write(
            tmp_path / "b.parquet"
        )
    assert not (tmp_path / "b.parquet").exists()


def test_folders_hold_shards(tmp_path: Path) -> None:
    ds = ps.from_sequence(ROWS)
    files = ds.write(tmp_path / "a")
    assert [file.name for file in files] == ["shard-000000.arrow"]
    assert list(ps.read(tmp_path / "a")) == ROWS
    assert ds.write(tmp_path / "a") == files, "a no-op"
    with pytest.raises(ps.ConfigError, match="holds other shards"):
        ds.take(5).write(tmp_path / "a")
    (tmp_path / "a" / "note.md").write_text("kept")
    ds.take(5).write(tmp_path / "a", overwrite=True)
    assert list(ps.read(tmp_path / "a")) == ROWS[:5] and (tmp_path / "a" / "note.md").exists()
    for format in ("parquet", "jsonl"):
        ds.write(tmp_path / format, format)
        assert list(ps.read(tmp_path / format)) == ROWS
    ds.filter(lambda row: row["n"] < 7).write(tmp_path / "stream")
    assert list(ps.read(tmp_path / "stream")) == ROWS[:7]
    ps.from_sequence([{"txt": "a"}]).write(tmp_path / "tars", "tar")
    assert ps.read(tmp_path / "tars")[0]["txt"] == b"a"


def test_a_file_is_replaced_only_on_request(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    ps.from_sequence([1, 2]).write(path)
    with pytest.raises(ps.ConfigError, match="exists; give another name, or overwrite=True"):
        ps.from_sequence([3]).write(path)

    def fail(x: int) -> int:
        raise ValueError("of the user")

    with pytest.raises(ValueError, match="of the user"):
        ps.from_sequence([3]).map(fail).write(path, overwrite=True)
    with pytest.raises(ValueError, match="of the user"):
        ps.from_sequence([3]).map(fail).write(tmp_path / "a.parquet")
    assert path.read_text() == "1\n2\n"
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"], "no temporary file stays"
    ps.from_sequence([3]).write(path, overwrite=True)
    assert path.read_text() == "3\n"
    own = ps.read(path)
    own.map(lambda x: x).write(path, overwrite=True)
    assert path.read_text() == "3\n"


def test_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("a.jsonl.gz", "a.parquet", "a.arrow"):
        ps.from_sequence(ROWS).write(tmp_path / name)
        before = (tmp_path / name).read_bytes()
        ps.from_sequence(ROWS).write(tmp_path / name, overwrite=True)
        assert (tmp_path / name).read_bytes() == before
    assert gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()).count(b"\n") == len(ROWS)


ANY: Any = ps
REFUSED: list[tuple[Callable[[Path], Any], type[Exception], str]] = [
    (
        lambda p: ps.from_sequence([1]).repeat().write(p / "a.jsonl"),
        ps.ConfigError,
        r"take\(1_000\)",
    ),
    (
        lambda p: ps.from_iterable(lambda: iter("a")).repeat().write(p / "a.jsonl"),
        ps.ConfigError,
        "endless",
    ),
    (lambda p: ps.from_sequence([1]).write(p / "a.xlsx"), ps.ConfigError, "a.xlsx tells no format"),
    (
        lambda p: ps.from_sequence([1]).write(p / "a.parquet.gz"),
        ps.ConfigError,
        "write 'a.parquet'",
    ),
    (lambda p: ps.from_sequence([1]).write(p / "a", "csv"), ps.ConfigError, "name it"),
    (lambda p: ANY.from_sequence([1]).write(p / "a", "json"), ps.ConfigError, "choose 'parquet'"),
    (lambda p: ps.from_sequence([{"a": [1]}]).write(p / "a.csv"), ps.DataError, "csv cannot hold"),
    (
        lambda p: ps.from_sequence([{"a": object()}]).write(p / "a.parquet"),
        ps.DataError,
        "cannot be one",
    ),
    (
        lambda p: ps.from_sequence([datetime.date(2024, 1, 1)]).write(p / "a.jsonl"),
        ps.DataError,
        "cannot be written as JSON",
    ),
    (lambda p: ps.from_sequence(list[Any]()).write(p / "a.parquet"), ps.DataError, "no samples"),
]


@pytest.mark.parametrize(("call", "error", "said"), REFUSED)
def test_a_refusal_leaves_no_file(
    call: Callable[[Path], Any], error: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said):
        call(tmp_path)
    assert not list(tmp_path.iterdir())


def test_arrays_and_empty_tables(tmp_path: Path) -> None:
    rows = [{"tokens": np.arange(i, dtype=np.uint16)} for i in range(5)]
    (path,) = ps.from_sequence(rows).write(tmp_path / "a.parquet")
    assert same(list(ps.read(path)), [{"tokens": row["tokens"]} for row in rows])
    empty = ps.read(pa.table({"x": pa.array([], pa.int64())}))
    (path,) = empty.write(tmp_path / "b.parquet")
    assert pq.read_table(path).schema == pa.schema({"x": pa.int64()})
    ps.from_sequence(list[Any]()).write(tmp_path / "c.jsonl")
    assert (tmp_path / "c.jsonl").read_bytes() == b""


COLUMNS: dict[str, Any] = {
    "text": pa.array(["a", None], pa.large_string()),
    "bytes": pa.array([b"a", b""], pa.large_binary()),
    "list": pa.array([[1], []], pa.large_list(pa.int64())),
    "texts": pa.array([["a"], None], pa.list_(pa.large_string())),
    "category": pa.array(["x", None]).dictionary_encode(),
    "number": pa.array([7, 3]).dictionary_encode(),
    "categories": pa.array([["x"], []], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    "record": pa.StructArray.from_arrays(
        [pa.array(["x", None]).dictionary_encode(), pa.array(["a", "b"], pa.large_string())],
        ["category", "text"],
    ),
}
PIPELINES: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "unchanged": lambda ds: ds,
    "shuffle": lambda ds: ds.shuffle(seed=1),
    "filter": lambda ds: ds.filter(lambda row: row["id"] % 3 > 0),
    "concat": lambda ds: ds.concat(ps.read(pa.Table.from_pylist(ds.to_list()), name="plain")),
}


@pytest.mark.parametrize("ending", [".parquet", ".arrow"])
@pytest.mark.parametrize("pipeline", PIPELINES)
@pytest.mark.parametrize("column", COLUMNS)
def test_stored_types_of_frames(column: str, pipeline: str, ending: str, tmp_path: Path) -> None:
    values = pa.concat_arrays([COLUMNS[column]] * 150)
    rows = pa.table({"id": pa.array(range(300)), column: values})
    ds = PIPELINES[pipeline](ps.read(rows, name="rows"))
    (path,) = ds.write(tmp_path / f"a{ending}")
    assert same(list(ps.read(path)), list(ds))
    assert same(list(ps.read(ds.to_arrow())), list(ds))


def test_parquet_keeps_categories(tmp_path: Path) -> None:
    rows = pa.table({"kind": pa.array(["x", "y"] * 200).dictionary_encode()})
    (path,) = ps.read(rows).write(tmp_path / "a.parquet")
    assert pa.types.is_dictionary(pq.read_schema(path).field("kind").type)


@pytest.mark.parametrize("dtype", ["uint16", "float32"])
@pytest.mark.parametrize("kind", ["indexed", "stream"])
@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "folder"])
def test_arrays_are_read_back(name: str, kind: str, dtype: str, tmp_path: Path) -> None:
    arrays = [np.arange(i % 7, dtype=dtype) for i in range(300)]
    ds = ps.from_sequence(arrays)
    if kind == "stream":
        ds = ds.filter(lambda array: True)
    paths = ds.write(tmp_path / name)
    for read in (ps.read(paths), ps.read(tmp_path / name)):
        got = list(read)
        assert {array.dtype for array in got} == {np.dtype(dtype)}
        assert [array.tolist() for array in got] == [array.tolist() for array in arrays]
        if dtype != "float32":
            expected = ps.from_tokens(np.concatenate(arrays), np.cumsum([0, *map(len, arrays)]))
            rows, expected_rows = read.pack(64), expected.pack(64)
            assert len(rows) == len(expected_rows)
            assert (rows[5]["tokens"] == expected_rows[5]["tokens"]).all()
    named = ps.read(paths, columns=["input_ids"])
    assert named[6]["input_ids"].tolist() == list(range(6))
    (file,) = named.write(tmp_path / "named.parquet")
    assert ps.read(file)[6].keys() == {"input_ids"}, "mappings remain mappings"


def test_files_of_shards_are_read_as_their_folder(tmp_path: Path) -> None:
    ds = ps.from_sequence(ROWS)
    files = ps.write(ds, tmp_path / "a", shard=1_000)
    assert list(ps.read(files)) == ROWS
    assert list(ps.read(files[1])) == ROWS[1_000:2_000]
    assert ps.read(files[1], columns=["__key__"])[0].keys() == {"__key__"}
    (tmp_path / "a" / "shard-000009.arrow").write_bytes(files[0].read_bytes())
    assert ps.read(tmp_path / "a" / "shard-000009.arrow")[0].keys() == {"text", "n", "__key__"}


MIXED: list[Any] = [[{"x": 1}, np.arange(2)], [np.arange(2), {"x": 1}]]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.csv", "folder"])
@pytest.mark.parametrize("values", [["a", "b"], [1, 2], [[1], [2]], [np.zeros((2, 2))], *MIXED])
def test_tables_hold_mappings_or_arrays(values: list[Any], name: str, tmp_path: Path) -> None:
    for ds in (ps.from_sequence(values), ps.from_iterable(lambda: iter(values))):
        with pytest.raises(ps.DataError, match=r"table holds mappings, .*\.map\(|cannot hold arr"):
            ds.write(tmp_path / name)
        assert not (tmp_path / name).is_file()


def test_late_arrays_are_no_mappings(tmp_path: Path) -> None:
    late: list[Any] = [{"input_ids": np.arange(3)}] * 2_048 + [np.arange(3)] * 9
    for name in ("late.arrow", "late"):
        with pytest.raises(ps.DataError, match="others mappings|all of one kind"):
            ps.from_iterable(lambda: iter(late)).write(tmp_path / name)


def test_csv_holds_no_arrays(tmp_path: Path) -> None:
    with pytest.raises(ps.DataError, match="csv cannot hold arrays: write '.parquet'"):
        ps.from_sequence([np.arange(3)]).write(tmp_path / "a.csv")
