"""Tests of rows made of Arrow columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.sources.rows import to_python_values
from penstock.sources.unify import choose_readable_type

TIME = 3_723_123_456_789
KINDS = {
    "plain": pa.time64("ns"),
    "list": pa.list_(pa.time64("ns")),
    "fixed": pa.list_(pa.time64("ns"), 1),
    "struct": pa.struct([("t", pa.time64("ns"))]),
    "map": pa.map_(pa.string(), pa.time64("ns")),
    "dictionary": pa.dictionary(pa.int32(), pa.time64("ns")),
}


def column(kind: str, *times: int) -> Any:
    shaped = {
        "list": lambda t: [t],
        "fixed": lambda t: [t],
        "struct": lambda t: {"t": t},
        "map": lambda t: [("a", t)],
    }
    if kind == "dictionary":
        return pa.DictionaryArray.from_arrays(
            pa.array([*range(len(times))], pa.int32()), pa.array(times, "time64[ns]")
        )
    return pa.array([shaped.get(kind, lambda t: t)(time) for time in times], KINDS[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_times_of_day_with_nanoseconds_are_refused(kind: str, tmp_path: Path) -> None:
    """`datetime.time` has microseconds: the rest was cut off without a word."""
    table = pa.table({"x": column(kind, 5_000, TIME, 7_000)})
    feather.write_feather(table, tmp_path / "a.feather")
    sources = {"memory": ps.from_sequence(table), "arrow": ps.read(tmp_path / "a.feather")}
    if kind != "dictionary":
        pq.write_table(table, tmp_path / "a.parquet")
        sources["parquet"] = ps.read(tmp_path / "a.parquet")
        sources["columns"] = ps.read(tmp_path / "a.parquet", rows="columns")
    for ds in sources.values():
        for use in (list, lambda ds: ds[1], lambda ds: ds[[2, 1]], lambda ds: ds.batch(3)[0]):
            with pytest.raises(ps.DataError, match=r"nanoseconds.* int64, or leave it out"):
                use(ds)
        assert ds[2]["x"] == ps.from_sequence(table.slice(2))[0]["x"]


def test_a_time_with_nanoseconds_is_a_bad_sample_of_its_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": column("plain", 5_000, TIME, 7_000)}), tmp_path / "a.parquet")
    ds = ps.read(tmp_path / "a.parquet")
    with pytest.raises(ps.DataError, match=r"a\.parquet, row 1"):
        ds[1]
    assert {row["x"].microsecond for row in ps.Loader(ds, on_error="quarantine")} == {5, 7}


def test_values_are_not_cut_off_by_the_types_of_python() -> None:
    """An extension is looked at as it is stored; null values, and rows beside those asked for, count nowhere."""
    with pytest.raises(ps.DataError, match="its time of day"):
        to_python_values(pa.array([86_400_005], pa.date64()))
    with pytest.raises(ps.DataError, match="nanoseconds"):
        to_python_values(
            pa.ExtensionArray.from_storage(
                pa.opaque(pa.time64("ns"), "t", "v"), column("plain", TIME)
            )
        )
    with pytest.raises(ps.DataError, match="beyond those of Python's type"):
        ps.from_sequence(pa.table({"x": pa.array([1 << 40], pa.timestamp("s"))}))[0]
    for kind in KINDS:
        held = column(kind, TIME, 5_000, TIME).slice(1, 1)
        assert to_python_values(held) == held.to_pylist()
    assert to_python_values(pa.array([None, 86_400_000], pa.date64()))[0] is None


FINE = np.datetime64(10**18 + 1, "ns")
NANOSECONDS: dict[str, tuple[Any, list[Any]]] = {
    "naive": (pa.timestamp("ns"), [FINE, None]),
    "in a zone": (pa.timestamp("ns", "Europe/Berlin"), [FINE, None]),
    "durations": (pa.duration("ns"), [np.timedelta64(1, "ns"), None]),
    "lists": (pa.list_(pa.timestamp("ns")), [[FINE, None], [], None]),
    "large lists": (pa.large_list(pa.timestamp("ns")), [[FINE], None]),
    "fixed lists": (pa.list_(pa.timestamp("ns"), 1), [[FINE], [None]]),
    "structs": (
        pa.struct([("t", pa.timestamp("ns")), ("n", pa.int8())]),
        [{"t": FINE, "n": 1}, {"t": None, "n": 2}],
    ),
    "lists of structs": (
        pa.list_(pa.struct([("t", pa.timestamp("ns"))])),
        [[{"t": FINE}, None], None],
    ),
    "maps": (pa.map_(pa.string(), pa.timestamp("ns")), [[("a", FINE), ("b", None)], None]),
}


@pytest.mark.parametrize("kind", NANOSECONDS)
def test_nanoseconds_are_those_of_numpy(kind: str, tmp_path: Path) -> None:
    """They were pandas' where it was installed, and an error where it was not."""
    dtype, values = NANOSECONDS[kind]
    column = (
        pa.array(values, pa.timestamp("ns")).cast(dtype)
        if kind == "in a zone"
        else pa.array(values, dtype)
    )
    table = pa.table({"x": column, "n": range(len(values))})
    feather.write_feather(table, tmp_path / "a.feather")
    sources = [ps.from_sequence(table), ps.read(tmp_path / "a.feather")]
    if kind != "durations":
        pq.write_table(table, tmp_path / "a.parquet")
        sources.append(ps.read(tmp_path / "a.parquet"))
    for ds in sources:
        assert [row["x"] for row in ds] == values and ds[0]["x"] == values[0]
        assert list(ds.batch(len(values), collate=list)[0]) == list(ds)


def test_nanoseconds_in_dictionaries_are_those_of_numpy() -> None:
    coded = pa.DictionaryArray.from_arrays(
        pa.array([1, 0, None]), pa.array([1, 2], pa.timestamp("ns"))
    )
    assert to_python_values(coded) == [np.datetime64(2, "ns"), np.datetime64(1, "ns"), None]


def test_a_batch_of_times_has_nat_for_null(tmp_path: Path) -> None:
    times = pa.array([1, None, 3], pa.timestamp("ns"))
    pq.write_table(pa.table({"x": times}), tmp_path / "a.parquet")
    batch = ps.read(tmp_path / "a.parquet").batch(3)[0]["x"]
    assert batch.dtype == "M8[ns]" and batch.view(np.int64).tolist() == [
        1,
        np.iinfo(np.int64).min,
        3,
    ]


TEXTS = ["a text of more than twelve letters", None, "b"]
ARROW: Any = pa
VIEWS: dict[str, Any] = {
    "texts": pa.array(TEXTS, pa.string_view()),
    "bytes": pa.array([b"x" * 20, None, b"y"], pa.binary_view()),
    "lists": pa.ListArray.from_arrays([0, 1, 2, 3], pa.array(TEXTS, pa.string_view())),
    "structs": pa.StructArray.from_arrays([pa.array(TEXTS, pa.string_view())], ["t"]),
    "maps": ARROW.MapArray.from_arrays(
        [0, 1, 2, 3], ["a", "b", "c"], pa.array(TEXTS, pa.string_view())
    ),
    "views of lists": pa.array([["a"], None, ["b", None]], pa.list_view(pa.string())),
    "runs": ARROW.RunEndEncodedArray.from_arrays([2, 3], ["a", None]),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_views_and_runs_are_read_together(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Arrow takes no rows from them, so they were read one by one, a slice each."""
    table = pa.table({"x": VIEWS[kind]})
    assert choose_readable_type(table.schema.field("x").type) != table.schema.field("x").type
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table)
    wanted = table["x"].to_pylist()
    for ds in (ps.from_sequence(table), ps.read(tmp_path / "a.arrow")):
        assert [row["x"] for row in ds[[2, 0, 1]]] == [wanted[2], wanted[0], wanted[1]]
        assert [row["x"] for row in ps.Loader(ds)] == wanted
    assert not caplog.records


def test_a_value_beyond_those_of_python_is_told_with_its_column(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    times = pa.array([0, 2**62], pa.timestamp("us"))
    pq.write_table(
        pa.table({"text": ["a", "b"], "when": times, "in": pa.array([{"x": t} for t in times])}),
        path,
    )
    assert [row["text"] for row in ps.read(path, columns=["text"])] == ["a", "b"]
    for columns, name in ((["text", "when"], "when"), (["in"], "in")):
        with pytest.raises(
            ps.DataError, match=rf"a\.parquet.*row 1.*the column '{name}': .*beyond"
        ):
            list(ps.read(path, columns=columns))
    assert ps.read(path, columns=["when"])[0]["when"].year == 1970


def test_reading_that_fails_for_many_rows_only_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        name = "broken"

        def __len__(self) -> int:
            return 8

        def read(self, indices: Any) -> list[int]:
            if len(indices) > 1:
                raise AttributeError("no concat_batches")
            return indices.tolist()

    assert list(ps.from_sequence(Broken())) == list(range(8))  # type: ignore[arg-type]
    assert list(ps.from_sequence(Broken()).batch(4))  # type: ignore[arg-type]
    (record,) = caplog.records
    assert (
        "worked one by one, which is slow: AttributeError: no concat_batches" in record.getMessage()
    )
