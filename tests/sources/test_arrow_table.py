"""Tables and data frames in memory give the rows that files of them give, and stay columns."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
import penstock as ps
from penstock.sources.arrow_table import ArrowTable
from penstock.sources.block import RecordBatchRows
from tables import same, table


class Frame:
    """A data frame of a library that exports Arrow streams, as polars does."""

    def __init__(self, rows: Any) -> None:
        self.rows, self.columns = rows, rows.column_names

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.rows.__arrow_c_stream__(requested_schema)


def views(rows: Any) -> Any:
    """The table with texts as views, the form that polars exports."""
    return rows.set_column(
        rows.schema.get_field_index("text"), "text", rows["text"].cast(pa.string_view())
    )


READERS: dict[str, Callable[[Any], Any]] = {
    "table": lambda rows: rows,
    "chunks": lambda rows: pa.concat_tables([rows.slice(0, 7), rows.slice(7, 0), rows.slice(7)]),
    "batch": lambda rows: rows.combine_chunks().to_batches()[0],
    "reader": lambda rows: rows.to_reader(),
    "stream": Frame,
    "views": lambda rows: Frame(views(rows)),
}


@pytest.mark.parametrize("kind", READERS)
def test_rows_equal_those_of_a_file(kind: str, tmp_path: Path) -> None:
    rows = table(0, 200)
    pq.write_table(rows, tmp_path / "a.parquet")
    wanted = list(ps.read(tmp_path / "a.parquet"))
    ds = ps.read(READERS[kind](rows))
    assert same(list(ds), wanted) and ds.columns == rows.column_names
    assert same([ds[i] for i in range(200)], wanted)
    assert same(ds[[150, 3, 3, 7, 6]], [wanted[i] for i in (150, 3, 3, 7, 6)])
    assert same(list(pickle.loads(pickle.dumps(ds))), wanted)
    assert ds.to_arrow().to_pylist() == rows.to_pylist()
    some = ps.read(READERS[kind](rows), columns=["id", "text"])
    assert some[3] == {"id": 3, "text": wanted[3]["text"]}


def test_rows_stay_columns() -> None:
    ds = ps.read(table(0, 100))
    order = np.arange(99, 0, -3)
    block = ds.tree.source.block(order)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    assert isinstance(block, RecordBatchRows) and len(block) == len(order)
    columns = ps.read(table(0, 100), rows="columns")
    doubled = columns.map(lambda columns: {"twice": columns["id"] * 2}, batched=8)
    assert doubled[7] == {"twice": 14}
    batch = ps.read(pa.table({"x": [1, 2, 3], "y": ["a", "b", "c"]})).shuffle(seed=1).batch(3)[0]
    assert sorted(batch["x"].tolist()) == [1, 2, 3] and batch["x"].dtype == np.int64


def test_tables_of_before_keep_their_states() -> None:
    rows = pa.table({"x": list(range(10))})
    ds = ps.from_sequence(rows, name="t").shuffle(seed=1)
    iterator = iter(ds)
    next(iterator)
    state = iterator.state_dict()
    again = iter(ps.read(rows, name="t").shuffle(seed=1))
    again.load_state_dict(state)
    assert list(again) == list(ds)[1:]


def test_pandas_columns_and_index() -> None:
    pandas = pytest.importorskip("pandas")
    rows = {"n": [1, None, 3], "text": ["a", None, "c"], "tokens": [[1], [2, 3], []]}
    frame = pandas.DataFrame(rows, index=[7, 8, 9])
    ds = ps.read(frame, name="frame")
    assert ds.columns == ["n", "text", "tokens"], "an index without a name is dropped"
    assert ds[1]["n"] is None and ds[1]["text"] is None and ds[1]["tokens"].tolist() == [2, 3]
    named = frame.set_index(pandas.Index(["x", "y", "z"], name="key"))
    assert (
        ps.read(named).columns == ["key", "n", "text", "tokens"] and ps.read(named)[2]["key"] == "z"
    )
    levels = pandas.MultiIndex.from_tuples([(1, 2), (3, 4), (5, 6)], names=["one", None])
    assert ps.read(frame.set_index(levels)).columns[0] == "one"
    category = pandas.DataFrame({"c": pandas.Categorical(["u", "v", "u"])})
    assert [row["c"] for row in ps.read(category)] == ["u", "v", "u"]
    times = pandas.DataFrame({"t": pandas.to_datetime(["2024-01-01", None])})
    assert ps.read(times).to_pandas()["t"].tolist() == times["t"].tolist()
    assert ps.read(frame, lengths="tokens").pack(3).plan is not None
    assert len(ps.read(frame[["tokens"]], lengths="tokens").pack(3, "concat_split")) == 1


def test_hub_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    image = pytest.importorskip("PIL.Image").new("RGB", (4, 3))
    hub = datasets.Dataset.from_dict({"x": list(range(50)), "tokens": [[i] for i in range(50)]})
    shuffled = hub.shuffle(seed=3).select(range(1, 40))
    ds = ps.read(shuffled)
    assert [row["x"] for row in ds] == list(shuffled["x"]) and ds.columns == ["x", "tokens"]
    assert ds[5]["tokens"].tolist() == shuffled[5]["tokens"]
    assert ps.read(shuffled, lengths="tokens").tree.lengths_known
    assert [row["x"] for row in pickle.loads(pickle.dumps(ds))] == list(shuffled["x"])
    assert ds.to_arrow()["x"].to_pylist() == list(shuffled["x"])
    formatted = ps.read(hub.with_format("numpy"))
    assert isinstance(formatted[0]["tokens"], np.ndarray)
    images = datasets.Dataset.from_dict({"image": [image]})
    assert ps.read(images)[0]["image"].size == (4, 3)
    assert ps.read(hub, columns=["x"])[0] == {"x": 0}
    assert ps.read(hub.with_format("numpy"), columns=["x"]).columns == ["x"]


def refuse_frames() -> list[tuple[Callable[[], Any], str]]:
    rows: Any = pa.table({"x": [1], "tokens": [[1]]})
    ps: Any = penstock
    return [
        (lambda: ps.read(rows, format="csv"), r"read\(format=\.\.\.\): it applies to files"),
        (lambda: ps.read(rows, where={"x": 1}), r"use \.filter\(fn\)"),
        (lambda: ps.read(rows, columns=["y"]), r"no column 'y'; it has \['x', 'tokens'\]"),
        (lambda: ps.read(rows, lengths="x"), "holds int64; name a column of lists"),
        (lambda: ps.read(rows, rows="row"), "choose 'dict' or 'columns'"),
        (lambda: ps.read(pa.table([pa.array([1])] * 2, ["a", "a"])), "'a' more than once"),
        (lambda: ps.read(type("DatasetDict", (dict,), {})()), r"ps\.read\(dataset\["),
        (lambda: ps.read(type("LazyFrame", (SimpleNamespace,), {})()), r"frame\.collect\(\)"),
    ]


@pytest.mark.parametrize(("call", "said"), refuse_frames())
def test_other_options_and_objects_have_a_remedy(call: Callable[[], Any], said: str) -> None:
    with pytest.raises(ps.ConfigError, match=said):
        call()


def test_frames_that_have_no_columns_have_a_remedy() -> None:
    pandas = pytest.importorskip("pandas")
    numbered = pandas.DataFrame([[1, 2]])
    with pytest.raises(ps.ConfigError, match=r"rename\(columns=str\)"):
        ps.read(numbered)
    assert ps.read(numbered.rename(columns=str))[0] == {"0": 1, "1": 2}
    mixed = pandas.DataFrame({"x": [1, "a"]})
    with pytest.raises(ps.ConfigError, match=r"to_dict\('records'\)"):
        ps.read(mixed)
    assert ps.from_sequence(mixed.to_dict("records"))[1] == {"x": "a"}
    twice = pandas.DataFrame({"x": [1]}, index=pandas.Index([2], name="x"))
    with pytest.raises(ps.ConfigError, match=r"reset_index\(drop=True\)"):
        ps.read(twice)
    assert ps.read(twice.reset_index(drop=True))[0] == {"x": 1}
    with pytest.raises(ps.ConfigError, match=r"ps\.read\(frame\)"):
        ps.from_sequence(mixed)


def test_paths_in_a_series_are_paths(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    paths = pa.array([str(tmp_path / "a.jsonl")])
    assert ps.read(map(str, paths))[0] == {"x": 1}


def test_an_empty_table() -> None:
    ds = ps.read(pa.table({"x": pa.array([], pa.int64())}))
    assert len(ds) == 0 and ds.columns == ["x"] and list(ds) == []
    assert ds.to_arrow().schema == pa.schema({"x": pa.int64()})
    assert isinstance(ps.from_sequence(pa.table({"x": [1]})).tree.source, ArrowTable)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


class WideFrame(Frame):
    """A frame of a type that Arrow lacks, such as the integers of 128 bits of polars."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        raise pa.ArrowInvalid("Invalid or unsupported format string: '_pli128'")


def test_a_frame_of_a_type_that_arrow_lacks_is_an_error_with_a_remedy() -> None:
    with pytest.raises(ps.ConfigError, match=r"a type that Arrow lacks \(.*_pli128.*; cast it"):
        ps.read(WideFrame(pa.table({"x": [1]})))
