"""Files whose schemas differ are read as of one schema, and no value is changed."""

from __future__ import annotations

import json
import pickle
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.errors import ConfigError, DataError
from penstock.sources import catalog, open_files
from penstock.sources.unify import SchemaConverter

Column = Any


@pytest.fixture(params=["parquet", "arrow"])
def suffix(request: pytest.FixtureRequest) -> str:
    return request.param


def write(folder: Path, suffix: str, *tables: Any) -> Path:
    for number, table in enumerate(tables):
        path = folder / f"{number:02}.{suffix}"
        made = table if isinstance(table, pa.Table) else pa.table(table)
        pq.write_table(made, path) if suffix == "parquet" else feather.write_feather(
            made, path, "uncompressed"
        )
    return folder


def values(folder: Path, name: str = "x", **options: Any) -> list[Any]:
    return [row[name] for row in ps.read(folder, **options)]


X, Y = pa.field("x", pa.int64()), pa.field("y", pa.int64())

CASTS: dict[str, tuple[list[Any], list[Any]]] = {
    "integers that pandas made floats": (
        [pa.array([2**60]), pa.array([3.0, None])],
        [2**60, 3, None],
    ),
    "floats first": ([pa.array([3.0, None]), pa.array([1, 2], pa.int32())], [3, None, 1, 2]),
    "true floats": (
        [pa.array([1, None]), pa.array([0.5, float("inf")])],
        [1.0, None, 0.5, float("inf")],
    ),
    "narrow integers": ([pa.array([1], pa.int8()), pa.array([300], pa.uint16())], [1, 300]),
    "large unsigned integers": (
        [pa.array([2**63], pa.uint64()), pa.array([3.0, None])],
        [2**63, 3, None],
    ),
    "narrow floats": ([pa.array([0.5], pa.float32()), pa.array([0.1])], [0.5, 0.1]),
    "fields in another order": (
        [pa.array([{"x": 1, "y": 2}]), pa.array([{"y": 4, "x": 3}, None], pa.struct([Y, X]))],
        [{"x": 1, "y": 2}, {"x": 3, "y": 4}, None],
    ),
    "fields that are missing": (
        [pa.array([{"x": 1}]), pa.array([{"y": 4, "x": 3}], pa.struct([Y, X]))],
        [{"x": 1, "y": None}, {"x": 3, "y": 4}],
    ),
    "lists of those": (
        [
            pa.array([[{"x": 1, "y": 2}], []]),
            pa.array([None, [{"y": 4, "x": 3}]], pa.large_list(pa.struct([Y, X]))),
        ],
        [[{"x": 1, "y": 2}], [], None, [{"x": 3, "y": 4}]],
    ),
    "dictionaries of texts": ([pa.array(["a"]), pa.array(["b"]).dictionary_encode()], ["a", "b"]),
}


@pytest.mark.parametrize("name", CASTS)
def test_safe_differences_are_cast(
    tmp_path: Path, suffix: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, expected = CASTS[name]
    write(tmp_path, suffix, *({"x": column, "i": range(len(column))} for column in columns))
    for many in (catalog.MIN_CATALOG_FILES, 1, 1):  # the last one reads a catalog that is there
        monkeypatch.setattr(catalog, "MIN_CATALOG_FILES", many)
        found = values(tmp_path)
        assert found == expected and [type(value) for value in found] == [
            type(value) for value in expected
        ]
        assert values(tmp_path, columns=["i", "x"]) == expected
        source = pickle.loads(pickle.dumps(open_files(tmp_path)))
        order = np.arange(len(expected))[::-1]
        assert [row["x"] for row in source.read(order)] == expected[::-1]
        assert [row["x"] for row in source.block(order)] == expected[::-1]
        assert [source.read(np.array([row]))[0]["x"] for row in order] == expected[::-1]


def test_lists_of_numbers_are_cast(tmp_path: Path, suffix: str) -> None:
    write(tmp_path, suffix, {"x": [[1], [2, 3]]}, {"x": pa.array([[4], []], pa.list_(pa.int16()))})
    found = values(tmp_path)
    assert [value.tolist() for value in found] == [[1], [2, 3], [4], []]
    assert {value.dtype.name for value in found} == {"int64"}
    assert ps.read(tmp_path, lengths="x").pack(4)[0] is not None


def test_a_missing_column_is_none_and_said(
    tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, suffix, {"x": [1, 2]}, {"x": [3], "y": ["a"]}, {"y": ["b"], "x": [4]})
    for _ in range(2):
        assert list(ps.read(tmp_path)) == [
            {"x": 1, "y": None}, {"x": 2, "y": None}, {"x": 3, "y": "a"}, {"x": 4, "y": "b"},
        ]  # fmt: skip
        assert values(tmp_path, "y", columns=["y", "x"]) == [None, None, "a", "b"]
    (record,) = caplog.records
    assert (
        "00." in record.getMessage() and "no column 'y': its values are None" in record.getMessage()
    )
    assert values(tmp_path, where={"y": ["a", None]}) == [1, 2, 3]
    assert next(iter(ps.read(tmp_path).batch(4)))["x"].tolist() == [1, 2, 3, 4]


def test_columns_that_no_file_or_only_others_have_are_refused(tmp_path: Path, suffix: str) -> None:
    write(tmp_path, suffix, {"x": [1], "a": [1]}, {"x": [3], "b": [2]})
    with pytest.raises(
        DataError, match=r"01\..*: its columns are x, b, those of .*00\..* are x, a: pass columns="
    ):
        ps.read(tmp_path)
    with pytest.raises(ConfigError, match="there is no column 'z'; the columns are x, a"):
        ps.read(tmp_path, columns=["x", "z"])
    strict = pa.table(
        {"x": [1], "y": [2]}, pa.schema([X, pa.field("y", pa.int64(), nullable=False)])
    )
    write(tmp_path, suffix, {"x": [1]}, strict)
    with pytest.raises(DataError, match="its columns are x, those of"):
        ps.read(tmp_path)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array(["a"]), pa.array([1])),
        (pa.array([True]), pa.array([1])),
        (pa.array(["a"]), pa.array([b"a"])),
        (pa.array([0], pa.timestamp("us")), pa.array([0], pa.timestamp("us", "UTC"))),
        (pa.array([{"x": "a"}]), pa.array([{"x": 1}])),
    ],
)
def test_other_differences_are_refused(
    tmp_path: Path, suffix: str, one: Column, other: Column
) -> None:
    write(tmp_path, suffix, {"x": one}, {"x": other})
    with pytest.raises(
        DataError,
        match=r"01\..*: its column 'x' holds .*, in .*00\..* it holds .*: write both with one type",
    ):
        ps.read(tmp_path)


def test_a_value_that_does_not_fit_is_refused_where_it_is_read(tmp_path: Path, suffix: str) -> None:
    write(tmp_path, suffix, {"x": [1, 2**53 + 1]}, {"x": [0.5]})
    ds = ps.read(tmp_path)
    assert ds[2] == {"x": 0.5}
    with pytest.raises(
        DataError, match=rf"00\.{suffix}.*the column 'x' is int64 here and double over all files"
    ):
        list(ds)


def test_what_is_cast_is_the_same_data_in_states(tmp_path: Path, suffix: str) -> None:
    write(tmp_path, suffix, {"x": [1, 2, 3]}, {"x": [4.0, None, 6.0]})
    it = iter(ps.read(tmp_path, name="m").shuffle(seed=1))
    next(it)
    state = json.loads(json.dumps(it.state_dict()))
    again = iter(ps.read(tmp_path, name="m").shuffle(seed=1))
    again.load_state_dict(state)
    assert list(again) == list(it)


def test_a_file_without_any_of_the_chosen_columns_gives_rows_of_none(
    tmp_path: Path, suffix: str
) -> None:
    folder = write(tmp_path, suffix, {"x": [1, 2]}, {"x": [3], "y": [4]})
    ds = ps.read(folder, columns=["y"])
    assert list(ds) == [{"y": None}, {"y": None}, {"y": 4}]
    assert sorted(map(str, ds.shuffle(seed=1))) == sorted(map(str, ds))


def test_thousands_of_columns_take_no_time_that_grows_with_their_square() -> None:
    schema = pa.schema([(f"c{i}", pa.int64()) for i in range(20_000)])
    before = time.process_time()
    converter = SchemaConverter(schema, None, Path("wide.csv"))
    assert len(converter.names) == 20_000 and not converter.changes
    assert time.process_time() - before < 10  # it took 80 s


def uuids(count: int, arrow_type: Any = None) -> Any:
    stored = pa.array([uuid.UUID(int=i * 7919**5).bytes for i in range(count)], pa.binary(16))
    return stored if arrow_type is not None else pa.ExtensionArray.from_storage(pa.uuid(), stored)


def jsons(*texts: str | None) -> Any:
    return pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts))


def write_as_duckdb(path: Path, table: Any) -> None:
    pq.write_table(pa.table(table), path, store_schema=False)  # the types of Parquet alone


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_uuids_and_json_texts_have_one_type_and_are_written_again(
    tmp_path: Path, ending: str
) -> None:
    for number, kind in enumerate((pa.int32(), pa.int64())):
        columns = {"x": pa.array([1, 2], kind), "u": uuids(2), "j": jsons('{"a": 1}', None)}
        nested = pa.StructArray.from_arrays([jsons("1", "[]")], ["j"])
        lists = pa.ListArray.from_arrays([0, 1, 2], uuids(2))
        write_as_duckdb(tmp_path / f"{number}.parquet", columns | {"s": nested, "l": lists})
    ds = ps.read(tmp_path)
    rows = list(ds)
    assert {type(row["u"]) for row in rows} == {uuid.UUID}
    assert [row["j"] for row in rows] == ['{"a": 1}', None] * 2
    assert ds.schema.field("u").type == pa.uuid()
    assert ds.schema.field("j").type == pa.string() and ds.to_arrow().schema.equals(ds.schema)
    [path] = ds.write(tmp_path / f"again.{ending}")
    assert list(ps.read(path)) == rows
    [path] = ps.read(tmp_path / "?.parquet", columns=["x", "j"]).write(tmp_path / "texts.csv")
    assert [row["j"] for row in ps.read(path)] == ['{"a": 1}', ""] * 2


def test_json_texts_and_texts_go_together_but_uuids_and_bytes_do_not(tmp_path: Path) -> None:
    write_as_duckdb(tmp_path / "0.parquet", {"u": uuids(1), "j": jsons("{}")})
    write_as_duckdb(tmp_path / "1.parquet", {"u": uuids(1, pa.binary(16)), "j": ["[]"]})
    ds = ps.read(tmp_path, columns=["j"])
    assert list(ds.batch(2)) == [{"j": ["{}", "[]"]}] and ds.schema.field("j").type == pa.string()
    with pytest.raises(DataError, match=r"1.parquet: its column 'u' holds fixed_size_binary\[16\]"):
        ps.read(tmp_path)


def test_the_schema_has_the_types_of_the_first_files_with_values(
    tmp_path: Path, suffix: str
) -> None:
    nothing = {"x": pa.nulls(2), "l": [[], None], "s": [{"a": None}] * 2, "n": pa.nulls(2)}
    text = {"x": ["a", "b"], "l": [[], None], "s": [{"a": 1}] * 2, "n": pa.nulls(2)}
    folder = write(tmp_path, suffix, nothing, nothing, text, {**text, "l": [[1.5], None]})
    ds = ps.read(folder)
    types = {field.name: str(field.type).replace("element", "item") for field in ds.schema}
    assert types == {
        "x": "string",
        "l": "list<item: double>",
        "s": "struct<a: int64>",
        "n": "null",
    }
    [path] = ds.write(tmp_path / f"all.{suffix}")
    assert ps.read(path).to_arrow().to_pylist() == ds.to_arrow().to_pylist()
