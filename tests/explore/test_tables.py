"""Tables of other libraries hold the values that samples have, and fit into memory."""

from __future__ import annotations

import datetime
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.explore import memory
from tables import same, table

ROWS: list[dict[str, Any]] = [
    {
        "n": 2**60 + 1,
        "x": 0.5,
        "text": "wörd",
        "raw": b"\xff",
        "flag": True,
        "when": datetime.datetime(2024, 5, 1, 12, 30, 1, 5),
        "day": datetime.date(2024, 5, 1),
        "cost": Decimal("1.10"),
        "nested": {"a": [1, None], "b": {"c": "d"}},
        "holes": [1, None, 2**60 + 1],
        "tokens": np.arange(3, dtype=np.uint16),
    },
    dict.fromkeys("n x text raw flag when day cost nested holes tokens".split(), None),
]


def test_arrow_keeps_every_type() -> None:
    got = ps.from_sequence(ROWS).to_arrow()
    plain = [{**ROWS[0], "tokens": [0, 1, 2]}, ROWS[1]]
    assert got.to_pylist() == plain
    assert got.schema.field("tokens").type == pa.list_(pa.uint16())


def test_files_and_functions_give_the_same_table(tmp_path: Path) -> None:
    original = table(0, 1_000)
    pq.write_table(original, tmp_path / "a.parquet", row_group_size=100)
    ds = ps.read(tmp_path / "a.parquet")
    assert ds.to_arrow().equals(original)
    shuffled = ds.shuffle(seed=1)
    order = [sample.index for i in range(1_000) for sample in shuffled.plan.at(i)]
    assert shuffled.to_arrow().equals(original.take(order))
    assert ds.to_arrow(limit=10).equals(original.slice(0, 10))
    rows = ds.map(dict).to_list()
    assert same(rows, list(ds))


def test_pandas_keeps_every_value() -> None:
    pandas = pytest.importorskip("pandas")
    frame = ps.from_sequence(ROWS).to_pandas()
    assert frame["n"][0] == 2**60 + 1 and frame["n"].dtype == pandas.Int64Dtype()
    assert frame["flag"].dtype == pandas.BooleanDtype() and frame["flag"].tolist()[0] is True
    assert frame["when"][0] == pandas.Timestamp(ROWS[0]["when"])
    for name in ("text", "raw", "cost", "nested", "holes", "day"):
        assert frame[name][0] == ROWS[0][name], name
    np.testing.assert_equal(frame["tokens"][0], ROWS[0]["tokens"])
    assert frame.isna().all(axis=1).tolist() == [False, True]
    assert len(ps.from_sequence(list[Any]()).to_pandas()) == 0


def test_objects_stay_what_they_are() -> None:
    pytest.importorskip("pandas")
    image = pytest.importorskip("PIL.Image").new("RGB", (4, 3))
    ds = ps.from_sequence([{"image": image, "n": 1}, {"image": None, "n": 2}])
    frame = ds.to_pandas()
    assert frame["image"][0] is image and frame["image"][1] is None and frame["n"].sum() == 3
    messy = ps.from_sequence([{"x": i if i < 500 else str(i)} for i in range(1_000)]).to_pandas()
    assert messy["x"].tolist() == [i if i < 500 else str(i) for i in range(1_000)]
    with pytest.raises(ps.DataError, match="'image' cannot be one column"):
        ds.to_arrow()
    hf = pytest.importorskip("datasets")
    assert hf is not None
    row = ds.to_hf()[0]
    assert row["n"] == 1 and row["image"].size == (4, 3)


def test_hf_keeps_every_value() -> None:
    pytest.importorskip("datasets")
    ds = ps.from_sequence(ROWS).map(lambda row: {**row, "tokens": [1, 2]})
    assert list(ds.to_hf()) == list(ds)
    again = ps.from_sequence(ds.to_hf())
    assert same(list(again), [dict(row) for row in ds.to_hf()])


def test_polars_reads_the_arrow_table(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import SimpleNamespace

    monkeypatch.setitem(sys.modules, "polars", SimpleNamespace(from_arrow=lambda t: ("polars", t)))
    assert ps.from_sequence([{"x": 1}]).to_polars() == ("polars", pa.table({"x": [1]}))
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match="pip install polars"):
        ps.from_sequence([{"x": 1}]).to_polars()


def test_late_and_widened_columns() -> None:
    rows = [{"x": i} if i < 5_000 else {"x": i + 0.5, "y": "late"} for i in range(20_000)]
    got = ps.from_sequence(rows).to_arrow()
    assert got["x"].type == pa.float64() and got["y"].null_count == 5_000
    assert got["x"].to_pylist() == [row["x"] for row in rows]
    with pytest.raises(ps.DataError, match="one type in some rows"):
        ps.from_sequence([{"x": i if i < 256 else "a"} for i in range(9_000)]).to_arrow()


def test_other_samples_become_one_column() -> None:
    assert ps.from_sequence("ab").to_arrow().to_pydict() == {"value": ["a", "b"]}
    arrays = ps.from_sequence(np.arange(12.0).reshape(2, 3, 2)).to_arrow()
    assert arrays["value"].to_pylist() == np.arange(12.0).reshape(2, 3, 2).tolist()
    batch = ps.from_sequence([{"x": i} for i in range(6)]).batch(3).to_arrow()
    assert batch.to_pydict() == {"x": [[0, 1, 2], [3, 4, 5]]}
    torch = pytest.importorskip("torch")
    tensors = ps.from_sequence([{"x": torch.arange(3)}, {"x": torch.arange(2)}])
    assert tensors.to_arrow().to_pydict() == {"x": [[0, 1, 2], [0, 1]]}


@pytest.mark.parametrize("call", ["to_arrow", "to_pandas", "to_list", "to_hf"])
def test_endless_datasets_need_a_limit(call: str) -> None:
    pytest.importorskip("datasets" if call == "to_hf" else "pandas")
    indexed = ps.from_sequence([{"x": 1}]).repeat()
    stream = ps.from_iterable(lambda: iter([{"x": 1}])).repeat()
    for ds in (indexed, stream):
        with pytest.raises(ps.ConfigError, match=rf"endless.*ds\.{call}\(limit=1_000\)"):
            getattr(ds, call)()
        assert len(getattr(ds, call)(limit=3)) == 3


def test_a_table_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "detect_available_memory", lambda: 20 << 20)
    read = list[int]()

    def make(i: int) -> Any:
        read.append(i)
        return {"text": "a" * 1_000}

    ds = ps.from_sequence(range(100_000)).map(make)
    for call in ("to_arrow", "to_pandas", "to_list", "to_hf"):
        with pytest.raises(ps.ConfigError, match=rf"ds\.{call}\(limit=[\d_]+\)") as caught:
            getattr(ds, call)()
        assert "100,000 samples need about 0." in str(caught.value)
        fitting = int(str(caught.value).rpartition("limit=")[2].strip(")"))
        assert len(getattr(ds, call)(limit=fitting)) == fitting > 1_000
    read.clear()
    with pytest.raises(ps.ConfigError):
        ds.to_arrow()
    assert len(read) == 256, "the first block tells"
    smaller = ds.map(lambda row: {"text": row["text"] * (len(read) < 1_000)})
    read.clear()
    assert len(smaller.to_arrow(limit=25_000)) == 25_000, "only the first samples are large"
    assert len(ds.filter(lambda row: len(read) < 500).to_arrow(limit=10**9)) < 500
    with pytest.raises(ps.ConfigError, match="the first .* samples need"):
        ds.filter(bool).to_arrow()


@pytest.mark.skipif(sys.platform != "linux", reason="reads the limit from /proc")
def test_a_limit_of_the_address_space_counts() -> None:
    import resource

    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), before[1]))
    try:
        available = memory.detect_available_memory()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert available <= 1 << 30
