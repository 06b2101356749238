"""Sharded sources: files, Hugging Face datasets, sources one after the other, provenance, opening at a row."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset

import penstock as ps
from penstock.compat.easydata import (
    ArrowShardedSource,
    CompositeShardedSource,
    CsvShardedSource,
    HFDatasetShardedSource,
    JsonShardedSource,
    MixedShardedSource,
    ParquetShardedSource,
    TextShardedSource,
)
from penstock.testing import assert_elastic, assert_resumes


@pytest.fixture
def parquet(tmp_path: Path) -> str:
    for part in range(2):
        rows = {"text": [f"{part}-{i}" for i in range(10)]}
        pq.write_table(pa.table(rows), tmp_path / f"p{part}.parquet", row_group_size=4)
    return f"{tmp_path}/*.parquet"


def test_a_shard_is_a_file(parquet: str) -> None:
    source = ParquetShardedSource(parquet)
    assert source.num_shards() == 2 and len(source) == 20
    assert [Path(name).name for name in source.shard_names] == ["p0.parquet", "p1.parquet"]
    assert [row["text"] for row in source.open_shard(source.shard_names[1])] == [
        f"1-{i}" for i in range(10)
    ]
    with pytest.raises(ps.ConfigError, match="unknown shard 'p9'"):
        source.open_shard("p9")
    with pytest.raises(ps.ConfigError, match="storage_options"):
        ParquetShardedSource(parquet, storage_options={"key": "x"})


def test_opening_at_a_row(parquet: str) -> None:
    # Beyond the last row everything came again, from the second row group on.
    source = ParquetShardedSource(parquet)
    name = source.shard_names[0]
    for row, want in ((0, 10), (3, 7), (9, 1), (10, 0), (11, 0), (500, 0)):
        assert len(list(source.open_shard_at_row(name, row))) == want, row
    with pytest.raises(ps.ConfigError, match="of at least 0"):
        source.open_shard_at_row(name, -1)


def test_blank_lines_are_no_rows_when_opening_at_a_row(tmp_path: Path) -> None:
    # Blank lines counted when a shard was opened at a row, and not when it was iterated.
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"x": i}) + "\n" for i in range(6)))
    source = JsonShardedSource(f"{tmp_path}/a.jsonl")
    assert [row["x"] for row in source.open_shard_at_row(source.shard_names[0], 4)] == [4, 5]


def test_every_format(tmp_path: Path) -> None:
    table = pa.table({"text": ["one", "two", "three"]})
    with (
        pa.OSFile(f"{tmp_path}/a.arrow", "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    (tmp_path / "a.csv").write_text("text\none\ntwo\nthree\n")
    (tmp_path / "a.txt").write_text("one\n\ntwo\nthree\n")
    (tmp_path / "array.json").write_text(json.dumps(table.to_pylist()))
    (tmp_path / "lines.json").write_text(
        "".join(json.dumps(row) + "\n" for row in table.to_pylist())
    )
    made = {
        "a.arrow": ArrowShardedSource,
        "a.csv": CsvShardedSource,
        "a.txt": TextShardedSource,
        "array.json": JsonShardedSource,
        "lines.json": JsonShardedSource,
    }
    for file, kind in made.items():
        source: Any = kind(f"{tmp_path}/{file}")
        assert list(source.dataset) == table.to_pylist(), file
        assert list(source.open_shard_at_row(source.shard_names[0], 2)) == [{"text": "three"}]
    named = TextShardedSource(f"{tmp_path}/a.txt", text_field="line")
    assert list(named.open_shard_at_row(named.shard_names[0], 1)) == [
        {"line": "two"},
        {"line": "three"},
    ]
    assert named.dataset[0] == {"line": "one"}


def test_shards_of_one_name_are_all_read() -> None:
    # The second source was dropped, and the first one read twice.
    one, two = (HFDatasetShardedSource(Dataset.from_dict({"x": [i]})) for i in (1, 2))
    both = CompositeShardedSource([one, two])
    assert len(set(both.shard_names)) == both.num_shards() == 2
    assert [row["x"] for name in both.shard_names for row in both.open_shard(name)] == [1, 2]
    nested = CompositeShardedSource([both, one])
    assert [row["x"] for name in nested.shard_names for row in nested.open_shard(name)] == [1, 2, 1]
    assert [row["x"] for row in nested.dataset] == [1, 2, 1]
    with pytest.raises(ps.ConfigError, match="no sources"):
        CompositeShardedSource([])


class Foreign:
    """A sharded source that somebody else wrote."""

    shard_names = ("x", "y")

    def open_shard(self, name: str) -> Iterator[dict[str, Any]]:
        return ({"v": f"{name}{i}"} for i in range(5))


def test_sources_of_other_people_are_mixed_and_joined() -> None:
    both = CompositeShardedSource([Foreign(), HFDatasetShardedSource([{"v": "z"}])])
    assert both.shard_names == ["x", "y", "hf_dataset:0"]
    assert [row["v"] for row in both.open_shard_at_row("y", 3)] == ["y3", "y4"]
    assert len([*both.dataset]) == 11
    mixed = MixedShardedSource({"f": Foreign(), "h": [{"v": "z"}]}, stop_strategy="all_exhausted")
    assert sorted(row["v"] for row in mixed.open_shard("mixed_shard_0")) == sorted(
        row["v"] for row in both.dataset
    )
    assert_resumes(lambda: mixed.dataset)


def test_the_source_is_added_to_a_copy() -> None:
    rows = {"a": [{"x": 1}], "b": [{"x": 2}]}
    mixed = MixedShardedSource(
        {name: HFDatasetShardedSource(given) for name, given in rows.items()}, block_size=2
    )
    assert mixed.shard_names == ["mixed_shard_0"] and mixed.num_shards() == 1
    found = list(islice(mixed.open_shard("mixed_shard_0"), 20))
    assert {(row["x"], row["__source__"]) for row in found} == {(1, "a"), (2, "b")}
    assert rows == {"a": [{"x": 1}], "b": [{"x": 2}]}
    with pytest.raises(ps.DataError, match="a row is a int"):
        next(MixedShardedSource({"n": [1, 2]}).open_shard("mixed_shard_0"))


def test_a_nested_mixture_keeps_its_provenance() -> None:
    # The outer name took the place of the inner one.
    web = MixedShardedSource({"wiki": [{"x": 1}], "news": [{"x": 2}]}, block_size=2)
    mixed = MixedShardedSource({"web": web, "code": [{"x": 3}]}, block_size=2)
    found = {
        (row["x"], row["__source__"], row["__source_path__"])
        for row in islice(mixed.open_shard("mixed_shard_0"), 40)
    }
    assert found == {(1, "web", "web/wiki"), (2, "web", "web/news"), (3, "code", "code")}
    deep = MixedShardedSource({"all": mixed, "rest": [{"x": 4}]}, block_size=2)
    paths = {row["__source_path__"] for row in islice(deep.open_shard("mixed_shard_0"), 60)}
    assert paths == {"all/web/wiki", "all/web/news", "all/code", "rest"}


def test_a_mixture_opens_at_any_row_at_once() -> None:
    class Meter:
        reads = 0

        def __len__(self) -> int:
            return 100_000

        def __getitem__(self, i: int) -> dict[str, int]:
            Meter.reads += 1
            return {"x": i}

    mixed = MixedShardedSource({"a": Meter(), "b": Meter()}, {"a": 1, "b": 3})
    rows = mixed.open_shard_at_row("mixed_shard_0", 10**12)
    first = next(rows)
    assert Meter.reads <= 2
    assert first["x"] == mixed.dataset[10**12]["x"]
    state = mixed.open_shard_at_row("mixed_shard_0", 10**12 + 1).state_dict()
    assert state == rows.state_dict()


@pytest.mark.slow
def test_a_mixture_resumes_and_is_dealt_out(parquet: str) -> None:
    def make() -> ps.Dataset:
        inputs = {
            "p": ParquetShardedSource(parquet),
            "h": HFDatasetShardedSource([{"text": str(i)} for i in range(7)]),
        }
        return MixedShardedSource(
            inputs, {"p": 0.7, "h": 0.3}, block_size=8, stop_strategy="all_exhausted"
        ).dataset

    assert len(make()) == 27
    assert_resumes(make)
    assert_elastic(lambda rank, world: ps.Loader(make(), rank=rank, world_size=world))


def test_an_endless_mixture_has_no_length() -> None:
    # The sum of the lengths was given for it.
    with pytest.raises(TypeError, match="endless"):
        len(MixedShardedSource({"a": [{"x": 1}]}))
    assert "restart" in repr(MixedShardedSource({"a": [{"x": 1}]}, {"a": 1}))
