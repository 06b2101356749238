"""First looks read no more than they say, and work for every kind of dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.types import Ints


class Counted:
    """A source that counts the samples that were read."""

    def __init__(self, size: int) -> None:
        self.size, self.count = size, 0

    def __len__(self) -> int:
        return self.size

    def read(self, indices: Ints, /) -> list[Any]:
        self.count += len(indices)
        return [{"x": index} for index in indices.tolist()]


DATASETS: dict[str, Callable[[], ps.Dataset]] = {
    "indexed": lambda: ps.from_sequence(range(100)),
    "shuffled": lambda: ps.from_sequence(range(100)).shuffle(seed=1),
    "endless": lambda: ps.from_sequence(range(100)).repeat(),
    "mixture": lambda: ps.mix({name: ps.from_sequence(range(9)) for name in "ab"}),
    "filtered": lambda: ps.from_sequence(range(100)).filter(lambda x: x % 3 == 0),
    "stream": lambda: ps.from_iterable(lambda: iter(range(100))),
    "endless stream": lambda: ps.from_iterable(lambda: iter(range(100))).repeat(),
    "packed": lambda: ps.from_sequence([[1, 2, 3]] * 20).pack(4),
    "batches": lambda: ps.from_sequence(range(100)).batch(3),
}


@pytest.mark.parametrize("kind", DATASETS)
def test_head_is_the_start_of_a_pass(kind: str) -> None:
    ds = DATASETS[kind]()
    iterator = iter(ds)
    first = [next(iterator) for _ in range(4)]
    iterator.close()
    np.testing.assert_equal(ds.head(4), first)
    assert ds.head(0) == []
    np.testing.assert_equal(list(ds.take(4)), first)


def test_head_reads_no_more_than_its_samples() -> None:
    source = Counted(1_000)
    assert ps.from_sequence(source).head() == [{"x": i} for i in range(5)]
    assert source.count == 5
    assert ps.from_sequence(range(3)).head(10) == [0, 1, 2]


def test_a_stream_is_closed_after_its_head() -> None:
    closed = list[bool]()

    def read() -> Iterator[int]:
        try:
            yield from range(1_000)
        finally:
            closed.append(True)

    assert ps.from_iterable(read, identity=1).head(2) == [0, 1]
    assert closed == [True]


def test_a_random_sample_is_a_fixed_set() -> None:
    ds = ps.from_sequence(range(10_000))
    few = ds.sample(500, seed=3)
    assert len(set(few)) == len(few) == 500
    assert list(few) == list(few) == list(ds.sample(500, seed=3)) != list(ds.sample(500, seed=4))
    assert sorted(few) != list(few), "in random order"
    assert abs(np.mean(list(few)) - 5_000) < 400
    assert sorted(ds.limit(7).sample(7)) == list(range(7))
    assert list(ds.sample(0)) == []


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: ps.from_sequence(range(3)).sample(4), ps.ConfigError, r"has 3 samples.*shuffle"),
        (lambda: ps.from_sequence("ab").repeat().sample(4), ps.ConfigError, r"\.take\(400\)"),
        (
            lambda: ps.from_sequence("ab").filter(bool).sample(4),
            ps.IndexedError,
            r"\.take\(400\)\.shuffle_buffer\(40\)\.take\(4\)",
        ),
        (lambda: ps.from_sequence("ab").sample(-1), ps.ConfigError, "at least 0"),
        (lambda: ps.from_sequence("ab").head(-1), ps.ConfigError, r"head\(-1\)"),
    ],
)
def test_a_sample_that_cannot_be_drawn_has_a_remedy(
    call: Callable[[], Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        call()


def test_the_remedies_work() -> None:
    assert len(list(ps.from_sequence("ab").repeat().take(400).sample(4))) == 4
    stream = ps.from_sequence(range(99)).filter(bool)
    assert len(list(stream.take(400).shuffle_buffer(40).take(4))) == 4


def test_files_know_their_schema_without_a_read(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", None], "tokens": pa.array([[1], [2]], pa.list_(pa.uint16()))})
    pq.write_table(table, tmp_path / "a.parquet")
    ds = ps.read(tmp_path / "a.parquet")
    assert ds.schema.equals(table.schema) and ds.columns == ["text", "tokens"]

    def fail(row: Any) -> Any:
        raise AssertionError

    ordered = ds.shuffle(seed=1).repeat(3)[1:].filter(fail)
    assert ordered.schema.equals(table.schema)
    mixture = ps.mix({"a": ds, "b": ds.skip(1)})
    assert mixture.schema.equals(table.schema)
    assert ps.read(tmp_path / "a.parquet", columns=["text"]).columns == ["text"]
    assert ps.read(tmp_path / "a.parquet", where={"text": "a"}).columns == ["text", "tokens"]
    empty = ps.read(tmp_path / "a.parquet")[:0]
    assert empty.schema.equals(table.schema) and empty.to_arrow().schema.equals(table.schema)


def test_a_schema_is_inferred_from_the_first_samples() -> None:
    source = Counted(10_000)
    ds = ps.from_sequence(source).map(lambda row: {"y": [float(row["x"])]})
    assert ds.schema == pa.schema({"y": pa.list_(pa.float64())}) and ds.columns == ["y"]
    assert source.count <= 2 * 64
    assert ps.from_sequence(range(3)).schema == pa.schema({"value": pa.int64()})
    assert ps.from_sequence(range(3)).columns == ["value"]
    batches = ps.from_sequence([{"x": np.zeros((2, 3), np.float32)}] * 4).batch(2)
    assert batches.schema.field("x").type == pa.list_(pa.list_(pa.list_(pa.float32())))
    assert ps.from_sequence(list[Any]()).schema == pa.schema([])
    with pytest.raises(ps.DataError, match="'x' cannot be one column"):
        _ = ps.from_sequence([{"x": 1}, {"x": "a"}]).schema


def test_a_summary_says_how_much_it_read() -> None:
    source = Counted(100_000)
    summary = ps.from_sequence(source).describe()
    assert source.count == summary.samples_read <= 1_000
    assert "of 100,000 samples read, spread evenly" in repr(summary)
    assert summary["x"].minimum == 0 and summary["x"].maximum == 99_999
    assert ps.from_sequence(range(20)).repeat().describe(10).samples is None
    stream = ps.from_sequence(range(50)).filter(bool)
    assert repr(stream.describe(10)).startswith(
        "10 of an unknown number of samples read, the first"
    )
    assert repr(stream.describe()).startswith("49 of 49 samples read\n")


def test_a_summary_of_messy_columns() -> None:
    rows: list[dict[str, Any]] = [
        {"text": "abc", "n": 1, "mixed": 1, "tokens": np.arange(3), "nan": float("nan")},
        {"text": "", "n": None, "mixed": "x", "tokens": np.arange(5), "nan": 2.0},
        {"text": "abc", "mixed": 2, "image": object()},
    ]
    summary = ps.from_sequence(rows).describe()
    facts = {column.column: column for column in summary.columns}
    assert list(facts) == ["text", "n", "mixed", "tokens", "nan", "image"]
    assert facts["text"].length == (0, 3) and facts["text"].frequent[0] == ("abc", 2)
    assert facts["n"].missing == 2 and facts["image"].missing == 2
    assert facts["mixed"].type == "int, str" and facts["mixed"].maximum == 2
    assert facts["tokens"].type == "int64 array" and facts["tokens"].length == (3, 5)
    assert facts["nan"].maximum == 2.0 and facts["image"].distinct is None
    assert "<table>" in summary._repr_html_()  # pyright: ignore[reportPrivateUsage]
    assert ps.from_sequence(list[Any]()).describe().samples_read == 0
    assert ps.from_sequence([3, 1]).describe()["value"].minimum == 1


@pytest.mark.parametrize(
    "value", [float("nan"), np.float32("nan"), Decimal("nan"), np.datetime64("NaT")]
)
def test_all_nan_are_one_value_of_a_summary(value: Any) -> None:
    kind = type(value)
    copies = [kind("NaT" if kind is np.datetime64 else "nan") for _ in range(3)]
    summary = ps.from_sequence([{"x": copy} for copy in [*copies, None]]).describe()["x"]
    assert (summary.missing, summary.distinct, summary.minimum) == (1, 1, None)
    assert [count for _, count in summary.frequent] == [3]
    summary = ps.from_sequence([float("nan"), np.float64("nan"), 1.0, 1.0, 2.0]).describe()["value"]
    assert (summary.missing, summary.distinct, summary.minimum) == (0, 3, 1.0)
    assert [count for _, count in summary.frequent] == [2, 2, 1]


def html(ds: ps.Dataset) -> str:
    return ds._repr_html_()  # pyright: ignore[reportPrivateUsage]


def test_a_notebook_shows_the_pipeline_and_the_first_rows() -> None:
    source = Counted(1_000)
    shown = html(ps.from_sequence(source, name="numbers").shuffle(seed=1))
    assert "shuffle(seed=1)" in shown and "<th>x</th>" in shown and shown.count("<tr>") == 4
    assert source.count == 3
    evil = ps.from_sequence([{"<b>": "<script>" + "a" * 10_000}])
    assert "<script>" not in html(evil) and "<b>" not in html(evil) and len(html(evil)) < 2_000
    wide = ps.from_sequence([{str(i): i for i in range(500)}])
    assert "488 more columns" in html(wide)


def test_a_notebook_never_shows_an_error_or_reads_much() -> None:
    def fail(row: Any) -> Any:
        raise RuntimeError

    class Unprintable:
        def __repr__(self) -> str:
            raise RuntimeError

    for ds in (
        ps.from_sequence(range(5)).map(fail),
        ps.from_sequence(range(5)).filter(fail),
        ps.from_iterable(lambda: fail(0)),
        ps.from_sequence(range(5)).map(fail).batch(2),
        ps.from_sequence([Unprintable()]),
        ps.from_sequence([[1, 2]]).pack(4),
        ps.from_sequence(list[int]()),
    ):
        assert html(ds).startswith("Dataset") and "<table" not in html(ds)


def test_control_characters_of_a_column_name_are_escaped() -> None:
    text = str(ps.from_sequence([{"a\x1b[31m\nb": 1}]).describe())
    assert r"'a\x1b[31m\nb'" in text and "\x1b" not in text and text.count("\n") == 2
