"""`ps.write` stores samples as Arrow tables, and reading returns them unchanged."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.errors import DataError
from penstock.testing import assert_resumes, assert_source
from penstock.types import is_source
from tables import same

DAY, NOON = date(2026, 1, 2), datetime(2026, 1, 2, 12)
DOCUMENTS = [[5, 1, 2], [], [7], list(range(40)), [], [3, 3], [9] * 11, [], [1]]


def documents(dtype: str = "uint16") -> ps.Dataset:
    flat = np.asarray([token for ids in DOCUMENTS for token in ids], dtype)
    return ps.from_tokens(flat, np.cumsum([0, *map(len, DOCUMENTS)]), name="docs")


def lengths(ds: ps.Dataset) -> list[int]:
    (leaf,) = ds.compiled.builder.leaves
    found = leaf.source.lengths() if is_source(leaf.source) else None
    assert found is not None
    return found[:].tolist()


@pytest.mark.parametrize("dtype", ["uint16", "int32", "uint32", "int64"])
def test_a_token_store_equals_what_it_was_written_from(dtype: str, tmp_path: Path) -> None:
    ds = documents(dtype)
    ps.write(ds, tmp_path / "out", shard=4)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        ".shards.json", "shard-000000.arrow", "shard-000001.arrow", "shard-000002.arrow",
    ]  # fmt: skip

    def again() -> ps.Dataset:
        return ps.read(tmp_path / "out", name="docs")

    assert_source(again().tree.source, len)  # pyright: ignore[reportAttributeAccessIssue]
    assert [(x.dtype, x.tolist()) for x in again()] == [(x.dtype, x.tolist()) for x in ds]
    for rows in (
        lambda ds: ds.shuffle(seed=3).pack(7),
        lambda ds: ds.repeat(2).pack(16, method="best_fit"),
    ):
        assert [row["tokens"].tolist() for row in rows(again())] == [
            row["tokens"].tolist() for row in rows(ds)
        ]
    assert_resumes(lambda: ps.Loader(again().shuffle(seed=3).pack(7)), at_most=8)
    for length in (1, 3, 40):
        assert [x.tolist() for x in ps.windows(again(), length)] == [
            x.tolist() for x in ps.windows(ds, length)
        ]
    first, second = (again().tree.source.read(np.array([3]))[0] for _ in range(2))  # pyright: ignore[reportAttributeAccessIssue]
    assert first.tolist() == second.tolist() and not first.flags.owndata


VALUES = {
    "n": st.integers(-5, 5),
    "x": st.floats(allow_nan=False),
    "text": st.text(max_size=5) | st.none(),
    "raw": st.binary(max_size=5),
    "tokens": st.lists(st.integers(0, 9), max_size=6).map(lambda ids: np.asarray(ids, np.uint32)),
    "flags": st.lists(st.booleans(), max_size=3).map(lambda found: np.asarray(found, np.bool_)),
    "words": st.lists(st.text(max_size=3), min_size=1, max_size=3),
    "inside": st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.text(max_size=2)}),
}


@examples(12)
@given(
    rows=st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=9),
    shard=st.integers(2, 5),
    most=st.integers(60, 300),
    shuffled=st.booleans(),
)
def test_rows_come_back_as_they_were(
    rows: list[dict[str, Any]], shard: int, most: int, shuffled: bool, tmp_path_factory: Any
) -> None:
    rows[0]["text"] = "known"
    folder = tmp_path_factory.mktemp("rows")
    ds = ps.from_sequence(rows, name="rows")
    ds = ds.shuffle(seed=4) if shuffled else ds
    ps.write(ds, folder / "out", shard=shard, max_bytes=most)
    again = ps.read(folder / "out")
    assert len(again) == len(rows)
    for got, want in zip(again, ds, strict=True):
        np.testing.assert_equal(got, want)
        assert set(got) == set(want) and got["tokens"].dtype == np.uint32
    assert lengths(again) == [len(row["tokens"]) for row in ds]
    keys = [
        [tuple(key.values()) for key in row["__key__"]]
        for row in ps.read(folder / "out", columns=["__key__"])
    ]
    assert keys == [[sample.key for sample in ds.plan.at(i)] for i in range(len(rows))]


def test_where_packed_rows_come_from_is_kept(tmp_path: Path) -> None:
    mixed = ps.mix(
        {"a": documents(), "b": documents()}, {"a": 1, "b": 2}, stop="all_exhausted"
    ).pack(8)
    ps.write(mixed, tmp_path, shard=3)
    for i, row in enumerate(ps.read(tmp_path, columns=["tokens", "__key__"])):
        want = [(s.source, s.epoch, s.index, s.start, s.stop) for s in mixed.plan.at(i)]
        assert [tuple(key.values()) for key in row["__key__"]] == want
        assert row["tokens"].tolist() == mixed[i]["tokens"].tolist()
    about = json.loads((tmp_path / ".shards.json").read_bytes())["table"]
    assert about["lengths"] == "tokens" and about["bare"] is None
    assert lengths(ps.read(tmp_path)) == [8] * len(mixed)


@pytest.mark.parametrize("format", ["arrow", "tar", "jsonl"])
def test_a_folder_that_is_not_whole_is_refused(format: Any, tmp_path: Path) -> None:
    ds = ps.from_sequence([{"txt": "a cat " * i} for i in range(1, 9)], name="texts")
    files = ps.write(ds, tmp_path, format, shard=3)
    manifest, body = tmp_path / ".shards.json", files[1].read_bytes()
    said = manifest.read_bytes()
    for found, error in (
        (b"{", ps.DataError), (b"[]", ps.DataError), (b'{"shards": [[{"file": "../x", "bytes": 1}]]}', ps.DataError),
        (json.dumps({**json.loads(said), "shards": None}).encode(), ps.ConfigError),
    ):  # fmt: skip
        manifest.write_bytes(found)
        with pytest.raises(error, match=str(tmp_path)):
            ps.read(tmp_path)
    manifest.write_bytes(said)
    for cut in (body[:-1], b""):
        files[1].write_bytes(cut)
        with pytest.raises(ps.DataError, match=r"shard-000001.*the file is missing, or has not"):
            ps.read(tmp_path)
    files[1].unlink()
    with pytest.raises(ps.DataError, match="shard-000001"):
        ps.read(tmp_path)
    assert ps.write(ds, tmp_path, format, shard=3) == files and files[1].read_bytes() == body
    assert len(ps.read(tmp_path)) == 8


ODD: dict[str, tuple[list[Any], str]] = {
    "no mapping": (["a"], "sample 0: it is a str; a table holds mappings"),
    "another kind": ([{"x": 1}, np.arange(3)], "sample 1: it is a ndarray"),
    "two axes": (
        [{"x": np.zeros((2, 2))}],
        r"sample 0: the field 'x' cannot be one column: .* several axes: make it lists with array.tolist",
    ),
    "no boxes, then boxes": (
        [{"x": {"boxes": np.zeros((n, 4))}} for n in (0, 2)],
        "sample 0: the field 'x' cannot be one column: .* several axes",
    ),
    "pictures in a list": ([{"x": [np.zeros((2, 2, 3))]}], "sample 0: .* several axes"),
    "two axes later": (
        [{"x": np.zeros(2)}] * 70 + [{"x": np.zeros((2, 2))}],
        "sample 70: .* several axes",
    ),
    "other types": (
        [{"x": 1}, {"x": "a"}],
        "the field 'x' cannot be one column: .*; give the field one type in all samples, or write",
    ),
    "nothing known": (
        [{"x": None}, {"x": None}],
        "^the first 64 samples: the field 'x' is empty in all",
    ),
    "our own name": ([{"__key__": 1}], "'__key__' is not a valid column name"),
    "no name": ([{1: 1}], "1 is not a valid column name"),
    "a later type": (
        [*({"x": 1} for _ in range(70)), {"x": "a"}],
        "sample 70: its field 'x' is not int64",
    ),
    "a later field": (
        [*({"x": 1} for _ in range(70)), {"x": 1, "y": 1}],
        "sample 70: it has the field 'y'",
    ),
    "a map": (
        [{"x": [("a", 1)]}, {"x": []}],
        "sample 0: the field 'x' .* a list of pairs .*: make it two lists",
    ),
    "a map inside": (
        [{"x": 1, "y": {"m": [("a", [1])]}}],
        "sample 0: the field 'y' .* make it two lists",
    ),
    "over 64 bits": ([{"x": 1}, {"x": 2**64}], "sample 1: the field 'x' cannot be one column"),
    "no UTF-8": (
        [{"x": None}, {"x": "a"}, {"x": "\ud800"}],
        "sample 2: the field 'x' cannot be one column",
    ),
    "a name that is no UTF-8": ([{"\ud800": 1}], r"the field '\\ud800' cannot be one column"),
    "times among days": (
        [{"x": DAY}, {"x": NOON}],
        "the field 'x' cannot be one column: a value of the type datetime does not",
    ),
    "zones and none": (
        [{"x": NOON}, {"x": NOON.replace(tzinfo=UTC)}],
        "the field 'x' cannot be one column: times",
    ),
    "texts among bytes": (
        [{"x": b"a"}, {"x": "a"}],
        "the field 'x' cannot be one column: a value of the type str does not",
    ),
    "a later array": (
        [*(np.arange(2, dtype=np.uint16) for _ in range(70)), np.array([70_000])],
        "sample 70",
    ),
}


@pytest.mark.parametrize("case", ODD)
def test_samples_that_are_no_table(case: str, tmp_path: Path) -> None:
    rows, said = ODD[case]
    with pytest.raises(ps.DataError, match=said):
        ps.write(ps.from_sequence(rows, name="rows"), tmp_path / "out", shard=100)
    assert not list((tmp_path / "out").glob("*.arrow"))


def test_many_shards_have_one_catalog(tmp_path: Path) -> None:
    ds = ps.from_sequence([np.arange(i % 5, dtype=np.int32) for i in range(80)], name="docs")
    ps.write(ds, tmp_path, shard=2)
    for _ in range(2):
        again = ps.read(tmp_path)
        assert [x.tolist() for x in again] == [x.tolist() for x in ds]
        assert len(again.pack(7)) == -(-160 // 7)
    assert ps.read(tmp_path, columns=["input_ids"])[3]["input_ids"].tolist() == [0, 1, 2]


EAST = timezone(timedelta(hours=5))
CUT: dict[
    str, tuple[Any, Any]
] = {  # what the first samples hold, and what Arrow would make into that without a word
    "floats": (1, 1.5),
    "long integers": (0.5, 2**53 + 1),
    "zeros below zero": (1, -0.0),
    "floats in lists": ([1], [1.5]),
    "floats in arrays": (np.array([1]), np.array([1.5])),
    "longer floats in arrays": (np.array([1], np.float32), np.array([0.1])),
    "longer floats": (np.float32(1), 0.1),
    "halves": (np.float16(1), 2049),
    "keys": ({"a": 1}, {"a": 1, "b": 2}),
    "keys in lists": ([{"a": 1}], [{"a": 1}, {"a": 1, "b": 2}]),
    "keys that are no texts": ({"a": 1}, {"a": 1, 2: 3}),
    "keys further in": ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}),
    "floats further in": ({"a": [{"b": 1}]}, {"a": [{"b": 1.5}]}),
    "decimals": (1, Decimal("1.5")),
    "decimals of more digits": (Decimal("1.5"), Decimal("1.25")),
    "times": (DAY, NOON),
    "days": (NOON, DAY),
    "times further in": ({"a": [DAY]}, {"a": [DAY, NOON]}),
    "times of a zone": (NOON, NOON.replace(tzinfo=EAST)),
    "times of no zone": (NOON.replace(tzinfo=EAST), NOON),
    "finer times": (
        np.datetime64("2026-01-01T00:00:00", "s"),
        np.datetime64("2026-01-01T00:00:00.5", "ms"),
    ),
    "numbers as times": (NOON, 5),
    "numbers as days": (DAY, 5),
    "numbers as times of day": (time(12), 5),
    "numbers as durations": (timedelta(1), 5),
    "texts": (b"a", "a"),
    "bytes": ("a", b"a"),
    "texts further in": ([b"a"], [b"a", "a"]),
    "truths": (1, True),
    "truths as floats": (1.5, True),
    "truths of NumPy": (1, np.True_),
    "truths in arrays": ([1], np.array([True])),
    "halves among integers": (1, np.float16(0.1)),
    "integers over 63 bits as floats": (1.5, np.uint64(2**64 - 1)),
    "floats as times": (NOON, 1.5),
    "floats as days": (DAY, 1.5),
    "decimals as durations": (timedelta(1), Decimal("1.5")),
    "times of day of a zone": (time(12), time(12, tzinfo=UTC)),
    "bytes further in": (["a"], ["a", b"a"]),
    "sets": ([1], {1, 2}),
    "what a mask hides": (np.array([1, 2]), np.ma.array([1, 2], mask=[True, False])),
    "durations of other units": (np.array([1], "m8[s]"), np.array([1], "m8[ns]")),
    "integers over 64 bits": (1, 2**64),
    "texts that are no UTF-8": ("a", "\ud800"),
}


@pytest.mark.parametrize("company", ["alone", "among others"])
@pytest.mark.parametrize("case", CUT)
def test_a_late_value_is_kept_or_refused_by_name_and_never_cut(
    case: str, company: str, tmp_path: Path
) -> None:
    first, late = CUT[case]
    ds = ps.from_sequence([{"x": first}] * 70 + [{"x": late}], name="rows")
    with pytest.raises(ps.DataError, match="sample 70: its field 'x' is not "):
        ps.write(ds, tmp_path / "out", shard=100 if company == "among others" else 70)


KEPT: dict[str, tuple[Any, list[Any]]] = {
    "nothing": (1, [None]),
    "integers as floats": (1.5, [2, None, 2**53]),
    "whole floats": (1, [2.0]),
    "wide integers": (np.uint8(1), [200, None]),
    "arrays of other numbers": (np.array([1], np.int32), [np.array([2], np.int64), [3], []]),
    "floats without more digits": (np.float32(1), [0.5, float("inf"), float("nan")]),
    "keys that are not there": ({"a": 1, "b": "x"}, [{"b": "y"}, {}, None]),
    "keys in another order": ({"a": 1, "b": 2}, [{"b": 3, "a": 4}]),
    "decimals": (Decimal("1.25"), [Decimal("2.5"), 3]),
    "times of other zones": (NOON.replace(tzinfo=UTC), [NOON.replace(tzinfo=EAST)]),
    "no company": (1, [2.0, 2**60 + 1]),
}


@pytest.mark.parametrize("case", KEPT)
def test_a_late_value_that_loses_nothing_is_taken(case: str, tmp_path: Path) -> None:
    first, late = KEPT[case]
    ps.write(
        ps.from_sequence([{"x": x} for x in [first] * 70 + late], name="rows"), tmp_path, shard=70
    )
    for got, want in zip(list(ps.read(tmp_path))[70:], late, strict=True):
        want = {"a": None, "b": None, **want} if isinstance(want, dict) else want
        one, other = (
            each.tolist() if isinstance(each, np.ndarray) else each for each in (got["x"], want)
        )
        np.testing.assert_equal(one, other)


def test_a_late_array_of_complex_numbers_is_refused_by_name(tmp_path: Path) -> None:
    samples = [{"x": np.arange(2)}] * 64 + [{"x": np.array([1j])}]
    with pytest.raises(ps.DataError, match="'x'"):
        ps.write(ps.from_sequence(samples), tmp_path / "out")


SPARSE: dict[str, Any] = {
    "text": pa.array(["x"]),
    "int8": pa.array([1], pa.int8()),
    "list": pa.array([[1, 2]]),
    "record": pa.array([{"a": 1}]),
    "time": pa.array([1], pa.timestamp("ns", "UTC")),
    "decimal": pa.array([Decimal("1.50")], pa.decimal128(9, 2)),
    "category": pa.array(["x"]).dictionary_encode(),
    "vector": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)),
}
EMPTY: dict[str, Any] = {"texts": ([], ["a"]), "fields": ({"a": None}, {"a": 1})}


@pytest.mark.parametrize("column", [*SPARSE, *EMPTY])
def test_columns_that_begin_empty(column: str, tmp_path: Path) -> None:
    if column in SPARSE:
        values = pa.concat_arrays([pa.nulls(70, SPARSE[column].type), SPARSE[column]])
    else:
        empty, full = EMPTY[column]
        values = pa.array([empty] * 70 + [full])
    ds = ps.read(pa.table({"id": pa.array(range(71)), column: values}), name="rows")
    ps.write(ds, tmp_path / "shards", shard=40)
    assert same(list(ps.read(tmp_path / "shards")), list(ds))
    with pytest.raises(DataError, match="is empty in all of these samples"):
        ps.write(ds.map(lambda row: {"id": 1, "x": None}), tmp_path / "mapped")
