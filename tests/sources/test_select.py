"""Rows chosen by the values of their columns: the same as a filter in Python, in every format, and still indexed."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import csv, feather

import penstock as ps
from example_counts import examples
from penstock.sources import SelectedRows, open_files
from penstock.sources.select import normalize_selection

ROWS = [
    {
        "lang": ["py", "c", None, "go"][i % 4],
        "stars": i * 7 % 20 if i % 6 else None,
        "score": i / 8,
        "id": i,
    }
    for i in range(53)
]

SCHEMA = pa.schema(
    [("lang", pa.string()), ("stars", pa.int64()), ("score", pa.float64()), ("id", pa.int64())]
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows in two files of each format."""
    folder = tmp_path_factory.mktemp("select")
    for part, rows in enumerate((ROWS[:20], ROWS[20:])):
        table = pa.Table.from_pylist(rows, SCHEMA)
        pq.write_table(table, folder / f"{part}.parquet", row_group_size=6)
        coded = table.set_column(0, "lang", table["lang"].dictionary_encode())
        with (
            pa.OSFile(str(folder / f"{part}.arrow"), "wb") as sink,
            pa.ipc.new_file(sink, coded.schema) as writer,
        ):
            writer.write_table(coded, max_chunksize=7)
        lines = [
            json.dumps({name: value for name, value in row.items() if value is not None})
            for row in rows
        ]
        (folder / f"{part}.jsonl").write_text("\n".join(lines))
        cells = [
            ",".join("" if value is None else str(value) for value in row.values()) for row in rows
        ]
        (folder / f"{part}.csv").write_text("lang,stars,score,id\n" + "\n".join(cells))
    return folder


def fits(row: dict[str, Any], where: dict[str, Any]) -> bool:
    """Evaluate a selection on one row, as the page on mixture files defines it."""
    for column, condition in normalize_selection(where).items():
        value = row[column]
        if isinstance(condition, list):
            if value not in condition:
                return False
            continue
        for name, bound in condition.items():
            if name == "not":
                good = value not in bound
            else:
                good = value is not None and {
                    "min": lambda a, b: a >= b,
                    "max": lambda a, b: a <= b,
                    "above": lambda a, b: a > b,
                    "below": lambda a, b: a < b,
                }[name](value, bound)
            if not good:
                return False
    return True


STARS = st.integers(-2, 22)
CONDITIONS = st.fixed_dictionaries(
    {},
    optional={
        "lang": st.one_of(
            st.sampled_from(["py", "c", "rust"]),
            st.lists(st.sampled_from(["py", "go", "rust", None]), min_size=1, max_size=3),
            st.fixed_dictionaries({"not": st.lists(st.sampled_from(["py", None]), min_size=1)}),
        ),
        "stars": st.one_of(
            STARS,
            st.dictionaries(
                st.sampled_from(["min", "max", "above", "below", "not"]),
                STARS,
                min_size=1,
                max_size=3,
            ),
        ),
        "score": st.dictionaries(st.sampled_from(["min", "below"]), st.floats(-1, 8), min_size=1),
    },
).filter(bool)


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
@examples(30)
@given(where=CONDITIONS)
def test_the_rows_that_fit(kind: str, where: dict[str, Any], folder: Path) -> None:
    found = open_files(f"{folder}/*.{kind}", columns=["id"], where=where, cache=folder / "cache")
    wanted = [row["id"] for row in ROWS if fits(row, where)]
    again = open_files(f"{folder}/*.{kind}", columns=["id"], where=where, cache=folder / "cache")
    for source in (found, again):  # gone through, and kept
        ds = ps.from_sequence(source)
        assert len(ds) == len(wanted) and [row["id"] for row in ds] == wanted


def test_csv(folder: Path) -> None:
    ds = ps.read(
        f"{folder}/*.csv", where={"stars": {"min": 5}, "lang": ["py", "c"]}, cache=folder / "cache"
    )
    assert [row["id"] for row in ds] == [
        row["id"] for row in ROWS if fits(row, {"stars": {"min": 5}, "lang": ["py", "c"]})
    ]


def test_a_selection_is_part_of_what_a_dataset_is(folder: Path) -> None:
    source = open_files(folder / "0.parquet", where={"lang": "py"}, cache=folder / "cache")
    assert isinstance(source, SelectedRows)
    assert source.describe() == {
        "format": "parquet",
        "rows": 5,
        "columns": ["lang", "stars", "score", "id"],
        "of_rows": 20,
        "where": {"lang": ["py"]},
    }
    assert repr(source) == "<5 rows of <parquet source '0': 20 rows in 1 files>>"
    again = pickle.loads(pickle.dumps(source))
    assert len(again) == 5


def test_lengths_of_the_rows_that_fit(tmp_path: Path) -> None:
    rows = [{"ids": list(range(i % 5)), "keep": i % 2} for i in range(20)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    ds = ps.read(
        tmp_path / "a.parquet",
        columns=["ids"],
        lengths="ids",
        where={"keep": 1},
        cache=tmp_path / "cache",
    )
    assert len(ds.pack(4)) == -(-sum(i % 5 for i in range(1, 20, 2)) // 4)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({}, "where is empty"),
        ({"lang": {}}, "'lang' has an empty range"),
        (
            {"lang": {"least": 3}},
            r"'lang' has \['least'\]; known are min, max, above, below, not and hash",
        ),
        ({"gone": 3}, "no column 'gone'"),
        ({"stars": "many"}, "the column 'stars' holds int64 and cannot be compared with"),
        ({"lang": 3}, "the column 'lang' holds string and cannot be compared with"),
    ],
)
def test_what_makes_no_sense_is_refused(where: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(ps.ConfigError, match=message):
        ps.read(folder / "0.parquet", where=where, cache=folder / "cache")


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_dates_are_compared_with_times_of_any_zone(zone: Any, tmp_path: Path) -> None:
    days = [datetime(2024, 1, 1) + timedelta(days=i) for i in range(100)]
    times = pa.array(days, pa.timestamp("us", tz=zone))
    pq.write_table(pa.table({"time": times}), tmp_path / "a.parquet")
    good = "2024-02-01T00:00:00" + ("Z" if zone else "")
    for bound in ("2024-02-01", date(2024, 2, 1), good):
        assert len(ps.read(tmp_path / "a.parquet", where={"time": {"min": bound}})) == 69
    bad = "2024-02-01T00:00:00" + ("" if zone else "Z")
    with pytest.raises(ps.ConfigError, match=f"write a date, or a time such as '{good[:10]}"):
        ps.read(tmp_path / "a.parquet", where={"time": {"min": bad}})


@pytest.mark.parametrize("where", [{"lnag": "py"}, {"id": 1, "lnag": {"not": "py"}}])
def test_a_column_that_no_row_of_lines_has_is_refused(where: dict[str, Any], folder: Path) -> None:
    for _ in range(2):
        with pytest.raises(
            ps.ConfigError, match=r"0\.jsonl: where: no row has 'lnag'; .*did you mean 'lang'"
        ):
            ps.read(f"{folder}/*.jsonl", where=where, cache=folder / "cache")


def test_a_column_that_some_rows_of_lines_have_is_one(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n[2]\n')
    (tmp_path / "b.jsonl").write_text('{"x": 1}\n{"x": 2, "y": null}\n{"y": 3}\n')
    (tmp_path / "c.jsonl").write_text("")
    for _ in range(2):
        assert list(ps.read(tmp_path / "*.jsonl", where={"y": 3}, cache=tmp_path / "cache")) == [
            {"y": 3}
        ]
        assert len(ps.read(tmp_path / "*.jsonl", where={"y": None}, cache=tmp_path / "cache")) == 4
    assert len(ps.read(tmp_path / "c.jsonl", where={"y": 3}, cache=tmp_path / "cache")) == 0


def test_lines_with_values_of_several_types_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": "one"}\n')
    with pytest.raises(
        ps.DataError, match=r"a.jsonl, rows 0 to 1: the column 'x' holds values of several types"
    ):
        ps.read(tmp_path / "a.jsonl", where={"x": 1}, cache=tmp_path / "cache")


def test_a_cache_that_cannot_be_written_costs_time_only(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert len(ps.read(folder / "0.parquet", where={"lang": "py"}, cache=tmp_path / "file")) == 5


@pytest.mark.parametrize(
    ("line", "value"),
    [('{"a": 123456789012345678901234567890}', 1), ('{"a": "\\ud800"}', "x"), ('{"a": 1}', 2**70)],
)
def test_values_that_no_column_can_hold_are_named(tmp_path: Path, line: str, value: Any) -> None:
    (tmp_path / "a.jsonl").write_text(line + "\n" + '{"a": 1}\n')
    with pytest.raises((ps.DataError, ps.ConfigError), match=r"a\.jsonl.*column 'a'"):
        ps.read(tmp_path / "a.jsonl", where={"a": value})


def test_unsigned_numbers_and_views_of_bytes_are_compared(tmp_path: Path) -> None:
    table = pa.table(
        {
            "u": pa.array([2**64 - 1, 1], pa.uint64()),
            "b": pa.array([b"x" * 20, b"y"], pa.binary_view()),
        }
    )
    with pa.ipc.new_file(str(tmp_path / "u.arrow"), table.schema) as writer:
        writer.write_table(table)
    for where in ({"u": 2**64 - 1}, {"u": {"min": 2}}, {"b": b"x" * 20}):
        assert [row["u"] for row in ps.read(tmp_path / "u.arrow", where=where)] == [2**64 - 1]


def test_narrow_unsigned_numbers_are_compared_with_any_number(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": pa.array([7, 200], pa.uint8())}), tmp_path / "n.parquet")
    for where, found in (
        ({"n": 300}, []),
        ({"n": {"min": -1, "max": 300}}, [7, 200]),
        ({"n": {"above": 7}}, [200]),
    ):
        assert [row["n"] for row in ps.read(tmp_path / "n.parquet", where=where)] == found


@pytest.mark.parametrize(
    "kind",
    [pa.timestamp("ns"), pa.timestamp("ns", "Europe/Berlin"), pa.duration("ns"), pa.timestamp("s")],
    ids=str,
)
def test_what_a_column_gives_selects_its_rows(kind: Any, tmp_path: Path) -> None:
    """Nanoseconds of times were cut off, and other rows chosen."""
    pq.write_table(
        pa.table({"at": pa.array([10**9 + 1, 10**9 + 2], kind)}), path := tmp_path / "a.parquet"
    )
    first, last = (row["at"] for row in ps.read(path))
    for where, wanted in (
        (last, 1),
        ([first, last], 2),
        ({"max": last}, 2),
        ({"not": last}, 1),
        ({"below": last}, 1),
    ):
        assert len(ps.read(path, where={"at": where})) == wanted


def test_bounds_and_numbers_of_numpy_are_looked_at(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["1", "2"], "x": [1, 2]}), path := tmp_path / "a.parquet")
    assert [row["x"] for row in ps.read(path, where={"x": np.int64(2)})] == [2]
    with pytest.raises(ps.ConfigError, match="holds string and cannot be compared"):
        list(ps.read(path, where={"text": np.int64(1)}))
    with pytest.raises(ps.ConfigError, match="'x' has min: None"):
        ps.read(path, where={"x": {"min": None}})


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "+05:30"])
def test_times_of_two_zones_are_compared_in_every_unit(
    unit: Any, zone: str, tmp_path: Path
) -> None:
    times = [datetime(2024, 3, 31, hour, tzinfo=UTC) for hour in range(4)]
    column = pa.array([*times, None], pa.timestamp(unit, zone))
    feather.write_feather(pa.table({"time": column, "n": range(5)}), tmp_path / "times.arrow")
    bound = datetime(2024, 3, 31, 4, tzinfo=timezone(timedelta(hours=2)))  # 2 o'clock in UTC
    for where, expected in (
        (bound, [2]),
        ({"above": bound}, [3]),
        ({"max": bound}, [0, 1, 2]),
        ({"not": [bound, None]}, [0, 1, 3]),
        ({"above": bound - timedelta(microseconds=1)}, [2, 3]),
    ):
        selected = ps.read(tmp_path / "times.arrow", where={"time": where}, columns=["n"])
        assert [row["n"] for row in selected] == expected, where


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_selection_is_kept_for_the_types_that_the_files_have_together(
    tmp_path: Path, suffix: str
) -> None:
    one, other = (tmp_path / f"{name}.{suffix}" for name in "ab")
    if suffix == "csv":  # 007 is a number alone, and a text beside a text
        one.write_text("x\n" + "".join(f"{number:05}\n" for number in range(100)))
        other.write_text("x\nabc\n")
    else:  # whole floats are integers beside integers, whose texts are others
        pq.write_table(pa.table({"x": [1e15 + number * 1000 for number in range(100)]}), one)
        pq.write_table(pa.table({"x": [1]}), other)
    low, high = {"x": {"hash": [0, 0.5]}}, {"x": {"hash": [0.5, 1]}}
    assert len(ps.read(one, where=low)) < 100
    halves = [[row["x"] for row in ps.read([one, other], where=where)] for where in (low, high)]
    assert sorted(map(str, halves[0] + halves[1])) == sorted(
        str(row["x"]) for row in ps.read([one, other])
    )


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv"])
def test_a_column_that_is_not_read_selects_as_if_it_were(tmp_path: Path, suffix: str) -> None:
    numbers = [1e15 + number * 1000 for number in range(100)]
    tables = [
        pa.table({"a": list(range(100)), "x": numbers}),  # whole floats, integers elsewhere
        pa.table({"a": [100], "x": [1]}),
        pa.table({"a": [101]}),
    ]
    for number, table in enumerate(tables):
        path = tmp_path / f"{number}.{suffix}"
        if suffix == "csv":
            csv.write_csv(table, path)
        elif suffix == "arrow":
            with pa.ipc.new_file(str(path), table.schema) as writer:
                writer.write_table(table)
        else:
            pq.write_table(table, path)
    for where in ({"x": {"hash": [0, 0.5]}}, {"x": 1}):
        rows = [row["a"] for row in ps.read(tmp_path, where=where)]
        assert [row["a"] for row in ps.read(tmp_path, columns=["a"], where=where)] == rows


@pytest.mark.parametrize(
    ("kind", "numbers", "where", "found"),
    [
        # 32-bit integers have a double, and no exact float32
        (pa.int32(), [1, 2**31 - 1], {"above": 1.5}, [2**31 - 1]),
        (pa.uint32(), [1, 2**32 - 1], [2.0**32 - 1, 3.5], [2**32 - 1]),
        (pa.uint64(), [1, 2**64 - 1], [2**64 - 1, -3], None),
        (pa.decimal128(5, 2), [1, 2], {"not": 1}, [2]),
        (pa.decimal128(38, 10), [1, 2], [1, 2**80], [1]),
        (pa.float64(), [0.0, -0.0, float("nan"), 1.0], [0.0, float("nan")], [0.0, -0.0]),
        (
            pa.float16(),
            np.array([0, 1, 2.5, 6e4], np.float16),
            {"above": 0.5, "not": 1.0},
            [2.5, 60_000.0],
        ),
        (pa.float16(), np.array([0, 0.1], np.float16), [0.1, 0], [0.0]),  # no float16 is 0.1
        (pa.int64(), [5, None, 70_000], list(range(50_000)), [5]),
        (pa.int64(), [5, None, 70_000], {"not": list(range(50_000))}, [None, 70_000]),
    ],
)
def test_numbers_are_compared_exactly(
    kind: Any, numbers: list[Any], where: Any, found: list[Any] | None, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"x": pa.array(numbers, kind)}), path := tmp_path / "a.parquet")
    if found is None:  # Arrow has no common type of -3 and 2**64 - 1
        with pytest.raises(ps.ConfigError, match="holds uint64 and cannot be compared with"):
            ps.read(path, where={"x": where})
        return
    assert [row["x"] for row in ps.read(path, where={"x": where})] == found


def test_batches_of_one_row_are_scanned_together(tmp_path: Path) -> None:
    texts = pa.array(["a", "b", None, "c"]).dictionary_encode()
    table = pa.table({"text": texts, "x": [0, 1, 2, 3]})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=1)
    for where, found in (
        ({"text": ["a", None]}, [0, 2]),
        ({"text": {"not": "b", "hash": [0, 1]}, "x": {"min": 2}}, [2, 3]),
    ):
        assert [row["x"] for row in ps.read(tmp_path / "a.arrow", where=where)] == found


@pytest.mark.parametrize(
    "values",
    [
        np.array([3, 1]),
        pa.array([3, 1]),
        pa.chunked_array([[3], [1]]),
        {3, 1},
        frozenset({1, 3}),
        range(1, 4, 2),
        (1, np.int64(3)),
    ],
    ids=lambda values: type(values).__name__,
)
def test_values_of_any_collection_select_rows(tmp_path: Path, values: Any) -> None:
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "a.parquet")
    assert [row["x"] for row in ps.read(tmp_path / "a.parquet", where={"x": values})] == [1, 3]
    others = ps.read(tmp_path / "a.parquet", where={"x": {"not": values}})
    assert [row["x"] for row in others] == [0, 2, 4, 5, 6, 7, 8, 9]


def test_a_set_of_texts_selects_with_one_description(tmp_path: Path) -> None:
    names = [f"name {i}" for i in range(50)]
    pq.write_table(pa.table({"x": names}), tmp_path / "a.parquet")
    states = [
        ps.Loader(ps.read(tmp_path / "a.parquet", where={"x": {*order}})).state_dict()
        for order in (names[:20], names[19::-1])
    ]
    assert states[0] == states[1]


def test_values_of_times_in_an_array_select_rows(tmp_path: Path) -> None:
    days = np.array(["2024-01-01", "2024-01-02", "2024-01-03"], "M8[ns]")
    pq.write_table(pa.table({"t": pa.array(days)}), tmp_path / "a.parquet")
    for values in (days[1:], pa.array(days[1:])):
        assert len(ps.read(tmp_path / "a.parquet", where={"t": values})) == 2


def test_a_series_of_pandas_selects_rows(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    days = pandas.date_range("2024-01-01", periods=4)
    pq.write_table(pa.table({"x": range(4), "t": days}), tmp_path / "a.parquet")
    for where in (
        {"x": pandas.Series([3, 1], index=[7, 9])},
        {"t": pandas.Series(days[[1, 3]])},
        {"t": days[[1, 3]]},
    ):
        assert [row["x"] for row in ps.read(tmp_path / "a.parquet", where=where)] == [1, 3]
