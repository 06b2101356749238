"""Rows in their order into files: streams, and a disk that fails. What EasyData asks of it is tested with its face."""

from __future__ import annotations

import json
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import penstock as ps
from penstock.stores.storage import override_world
from penstock.testing.simulate import CrashingDisk
from penstock.writing import write_rows
from penstock.writing.rows import ROW_FORMATS
from writing_disk import Over


@pytest.mark.parametrize("format", ROW_FORMATS)
def test_a_stream_is_written_in_its_order(format: Any, tmp_path: Path) -> None:
    ds = (
        ps.from_sequence(range(500)).filter(lambda x: x % 3).map(lambda x: {"x": x, "text": str(x)})
    )
    files = write_rows(ds, tmp_path / "out", format, max_bytes=1_000)
    assert len(files) > 3
    assert list(ps.read(tmp_path / "out")) == list(ds)
    with pytest.raises(ps.ConfigError, match="overwrite=True, which deletes them"):
        write_rows(ds, tmp_path / "out", format)


@pytest.mark.parametrize("reads", [lambda ds: ds, lambda ds: ds.filter(bool)])
def test_an_endless_dataset_is_refused(reads: Any, tmp_path: Path) -> None:
    rows = reads(ps.from_sequence([{"x": 1}])).repeat()
    with pytest.raises(ps.ConfigError, match="write_rows: the dataset is endless"):
        write_rows(rows, tmp_path / "rows")
    assert not (tmp_path / "rows").exists()
    assert write_rows(rows.take(3), tmp_path / "rows")


@pytest.mark.parametrize("how", ["kill", "error", "full"])
def test_what_is_there_is_whole_whatever_fails(how: Any) -> None:
    rows = [{"x": i} for i in range(30)]

    def written(disk: CrashingDisk) -> None:
        with override_world(disk=disk, store=Over(disk)):
            write_rows(rows, "/out", "jsonl", max_bytes=100, overwrite=True)

    plain = CrashingDisk(0)
    written(plain)
    want = {path: plain.read(path) for path in plain.paths()}
    assert [json.loads(line) for data in want.values() for line in data.splitlines()] == rows
    for n in range(1, plain.effects + 1):
        disk = CrashingDisk(n, fail_at=n, how=how)
        with pytest.raises(BaseException):  # noqa: B017 - the end of the process is no Exception
            written(disk)
        disk.crash()
        files = [path for path in disk.paths() if path.suffix == ".jsonl"]
        assert all(disk.read(path) == want[path] for path in files), n


@pytest.mark.parametrize("counts", [None, [1_000, 1_500]])
@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize("value", [2**64, "\ud800", {"\ud800": 1}])
def test_what_no_column_holds_is_refused_by_the_number_of_its_row(
    value: Any, format: Any, counts: Any, tmp_path: Path
) -> None:
    rows = [{"n": number, "x": value if number == 2_100 else None} for number in range(2_500)]
    with pytest.raises(ps.DataError, match="row 2100: the field 'x' cannot be one column"):
        write_rows(rows, tmp_path, format, counts=counts)


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_a_name_that_is_no_utf8_is_refused(format: Any, tmp_path: Path) -> None:
    with pytest.raises(ps.DataError, match=r"the field '\\ud800' cannot be one column"):
        write_rows([{"\ud800": 1}], tmp_path, format)


@pytest.mark.parametrize("format", ["parquet", "arrow"])
@pytest.mark.parametrize("place", [1, 1_200])
@pytest.mark.parametrize(
    ("first", "other"),
    [
        ("a", b"b"),
        (b"b", "a"),
        (["a"], [b"b"]),
        (1.5, True),
        (time(12), 5),
        (2**53 + 1, 0.5),
        ({"a": "x"}, {"a": b"x"}),
    ],
)
def test_values_of_two_types_are_refused_and_never_made_into_one(
    first: Any, other: Any, place: int, format: Any, tmp_path: Path
) -> None:
    rows = [{"x": first} for _ in range(place)] + [{"x": other}] * 1_000
    with pytest.raises(
        ps.DataError, match=r"the field 'x' cannot be one column|one type in some rows and another"
    ):
        write_rows(rows, tmp_path, format)
    if place == 1_200:
        with pytest.raises(ps.DataError, match="one type in some rows and another"):
            write_rows([*rows[:1_000], *rows[1_200:]], tmp_path, format)


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_types_that_come_up_late_are_those_of_all_files(format: Any, tmp_path: Path) -> None:
    values = [None, 1, 2.5, {"a": 1}, {"b": "x", "a": 0.5}]
    rows = [{"x": value, "y": None} for value in values[:3] for _ in range(1_000)]
    write_rows(rows, tmp_path / "numbers", format, max_bytes=9_000)
    assert [row["x"] for row in ps.read(tmp_path / "numbers")] == [row["x"] for row in rows]
    rows = [{"x": value, "y": 1} for value in values[3:] for _ in range(1_000)]
    write_rows(rows, tmp_path / "mappings", format, max_bytes=9_000)
    found = [row["x"] for row in ps.read(tmp_path / "mappings")]
    assert found[::1_000] == [{"a": 1.0, "b": None}, {"a": 0.5, "b": "x"}]


@pytest.mark.parametrize("value", [{1: 2}, {"a": [1, {2: 3}]}, {"a": {True: 1}}])
def test_keys_that_are_no_texts_are_no_lines(value: Any, tmp_path: Path) -> None:
    with pytest.raises(
        ps.DataError, match=r"sample 1: a row cannot be written as JSON: the key .* is not text"
    ):
        write_rows([{"x": 1}, value], tmp_path, "jsonl")


LARGE_AND_FINE = {
    "large integers": lambda: [2**64 - 1, None, 5],
    "large integers in lists": lambda: [[2**64 - 1], [], [5]],
    "large integers beside null": lambda: [np.array([2**64 - 1], np.uint64), [5, None]],
    "large integers in mappings": lambda: [{"id": 2**64 - 1}, None, {"id": 5}],
    "nanoseconds": lambda: [np.datetime64(1, "ns"), None, np.datetime64(2**60 + 1, "ns")],
    "nanoseconds in lists": lambda: [[np.datetime64(1, "ns")], []],
    "nanoseconds in mappings": lambda: [{"at": np.datetime64(1, "ns")}, {"at": None}, None],
    "nanoseconds of durations": lambda: [
        np.timedelta64(1, "ns"),
        None,
        np.timedelta64(10**9 + 1, "ns"),
    ],
    "times of pandas": lambda: [pandas().Timestamp(1), None, pandas().Timestamp(2**60 + 1)],
    "times of pandas in a zone": lambda: [
        pandas().Timestamp(1, tz="UTC"),
        pandas().Timestamp(2, tz="UTC"),
    ],
    "times of pandas in lists": lambda: [[pandas().Timestamp(1)], []],
    "durations of pandas": lambda: [pandas().Timedelta(1), pandas().Timedelta(10**9 + 1)],
}


def pandas() -> Any:
    return pytest.importorskip("pandas")


@pytest.mark.parametrize("made", LARGE_AND_FINE.values(), ids=LARGE_AND_FINE)
def test_large_integers_and_nanoseconds_are_written_as_they_are(made: Any, tmp_path: Path) -> None:
    values = made()
    ds = ps.from_sequence([{"x": value} for value in values])
    write_rows(ds, tmp_path / "rows", "parquet")
    ps.write(ds, tmp_path / "shards", shard=2)
    for folder in ("rows", "shards"):
        back = [row["x"] for row in ps.read(tmp_path / folder)]
        assert list(map(_plain, back)) == list(map(_plain, values))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [*map(_plain, value)]
    if hasattr(value, "to_numpy"):  # in UTC, as NumPy knows no zones
        return (value if getattr(value, "tz", None) is None else value.tz_convert(None)).to_numpy()
    return value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.parametrize("values", [[2**63, -1], [2**64, 1], [2**63, 1.5], [*[1] * 64, 2**63]])
def test_integers_that_share_no_type_are_refused(values: list[Any], tmp_path: Path) -> None:
    with pytest.raises(ps.DataError, match="'x'"):
        ps.write(ps.from_sequence([{"x": value} for value in values]), tmp_path / "out")


def test_nanoseconds_behind_the_samples_that_tell_the_types_are_refused(tmp_path: Path) -> None:
    pd: Any = pytest.importorskip("pandas")
    times = [pd.Timestamp(0)] * 64 + [pd.Timestamp(1)]
    with pytest.raises(ps.DataError, match="sample 64: its field 'x' is not timestamp"):
        ps.write(ps.from_sequence([{"x": time} for time in times]), tmp_path / "out")


@pytest.mark.parametrize(
    "value",
    [
        np.datetime64(1, "ns"),
        np.array([1], "m8[ns]"),
        np.array([(1, 2)], [("when", "M8[ns]"), ("what", "i4")]),
        np.longdouble(1),
        np.array([1], np.longdouble),
    ],
)
def test_times_and_long_floats_are_no_lines(value: Any, tmp_path: Path) -> None:
    """Nanoseconds became integers, as `tolist` gives them."""
    with pytest.raises(ps.DataError, match="row cannot be written as JSON: .* is not JSON"):
        list(write_rows(ps.from_sequence([{"x": value}]), tmp_path / "lines", "jsonl"))


@pytest.mark.parametrize("value", [date(2024, 1, 1), datetime(2024, 1, 1), float("nan"), b"a", {1}])
def test_a_value_that_is_not_json_is_an_error_with_a_remedy(value: Any, tmp_path: Path) -> None:
    message = "written as JSON: .*; convert the value in a map step, .* or write format='arrow'"
    with pytest.raises(ps.DataError, match=message):
        ps.write(ps.from_sequence([{"x": value}]), tmp_path / "lines", "jsonl")


@pytest.mark.parametrize("format", ["arrow", "parquet"])
@pytest.mark.parametrize("rows", [(2,), (0, 2)])
def test_arrays_of_several_axes_are_an_error_with_a_remedy(
    rows: tuple[int, ...], format: Any, tmp_path: Path
) -> None:
    samples = [{"boxes": np.zeros((count, 4), np.float32)} for count in rows]
    with pytest.raises(ps.DataError, match=r"several axes: make it lists with array.tolist\(\)"):
        write_rows(samples, tmp_path / "arrays", format)
    lists = ps.from_sequence(samples).map(lambda row: {"boxes": row["boxes"].tolist()})
    write_rows(lists, tmp_path / "lists", format)
    assert [len(row["boxes"]) for row in ps.read(tmp_path / "lists")] == [*rows]


def test_a_mapping_without_keys_is_no_parquet(tmp_path: Path) -> None:
    with pytest.raises(ps.DataError, match="cannot be written as Parquet"):
        write_rows(ps.from_sequence([{"x": {}}]), tmp_path / "rows", "parquet")


@pytest.mark.parametrize("format", ["parquet", "arrow"])
def test_arrays_of_the_other_byte_order_are_written(format: Any, tmp_path: Path) -> None:
    values = [np.array([1, 300], ">i4"), np.array([2], "<i4")]
    rows = ps.from_sequence([{"x": value} for value in values])
    write_rows(rows, tmp_path / "rows", format)
    ps.write(rows, tmp_path / "shards")
    for folder in ("rows", "shards"):
        found = [row["x"] for row in ps.read(tmp_path / folder)]
        assert [(each.dtype, each.tolist()) for each in found] == [
            (np.dtype("i4"), v.tolist()) for v in values
        ]


def test_a_format_of_rows_is_named_where_shards_are_written(tmp_path: Path) -> None:
    ds, other = ps.from_sequence([{"x": 1}]), cast("Any", "parquet")
    with pytest.raises(ps.ConfigError, match=r"write_rows\(ds, folder, 'parquet'\) writes it"):
        ps.write(ds, tmp_path, other)
