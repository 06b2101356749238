"""Equal values of a column stay on one side of a split, whatever the samples come from."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock as ps


def make_rows(count: int, sites: int) -> list[dict[str, Any]]:
    return [
        {"i": i, "site": None if i % sites == 0 else f"site {i % sites}", "day": i % 7}
        for i in range(count)
    ]


def sides(parts: tuple[ps.Dataset, ...], *names: str) -> list[set[Any]]:
    return [{tuple(row[name] for name in names) for row in part} for part in parts]


def test_tables_rows_and_files_are_split_alike(tmp_path: Path) -> None:
    rows = make_rows(2_000, 300)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    held: set[Any] = set()
    for ds in (
        ps.read(tmp_path / "a.parquet"),
        ps.read(pa.Table.from_pylist(rows)),
        ps.from_sequence(rows),
        ps.read(tmp_path / "a.parquet").shuffle(seed=1).map(dict),
    ):
        train, test = ds.split("20%", column="site")
        trained, tested = sides((train, test), "site")
        assert not trained & tested and len(train) + len(test) == 2_000
        assert not held or held == tested, "one rule for all"
        held = tested
        assert sorted(row["i"] for part in (train, test) for row in part) == list(range(2_000))


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.9])
def test_the_share_is_close(share: float) -> None:
    rows = make_rows(20_000, 2_000)
    train, test = ps.from_sequence(rows).split(share, column="site")
    assert abs(len(test) / 20_000 - share) < 4 * (share * (1 - share) / 2_000) ** 0.5
    assert len(train) + len(test) == 20_000


def test_several_columns_decide_together(tmp_path: Path) -> None:
    rows = make_rows(5_000, 50)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    parts = ps.from_sequence(rows).split("30%", column=["site", "day"])
    trained, tested = sides(parts, "site", "day")
    assert not trained & tested and len(trained | tested) == 350
    assert abs(len(parts[1]) / 5_000 - 0.3) < 0.1
    again = ps.read(tmp_path / "a.parquet").split("30%", column=["site", "day"])
    assert sides(again, "site", "day") == [trained, tested]
    pair = ps.from_sequence([{"a": "x", "b": "yz"}, {"a": "xy", "b": "z"}] * 20)
    assert len(pair.split(0.5, column=("a", "b"))[0]) in (0, 20, 40)


def test_a_split_is_a_fixed_set() -> None:
    ds = ps.from_sequence(make_rows(200, 40)).shuffle(seed=1)
    train, _ = ds.split(0.2, column="site")
    assert list(train) == list(train)
    twice = list(train.repeat(2))
    assert twice[: len(train)] == twice[len(train) :]


def test_values_without_a_text_have_a_remedy() -> None:
    ds = ps.from_sequence([{"x": [1]}] * 3)
    with pytest.raises(ps.ConfigError, match="map them to texts first"):
        ds.split(0.1, column="x")
    assert sum(map(len, ds.map(lambda row: {"x": str(row["x"])}).split(0.1, column="x"))) == 3
    with pytest.raises(ps.ConfigError, match="did you mean 'site'"):
        ps.from_sequence(make_rows(9, 3)).split(0.1, column="sites")


SECONDS = [datetime.datetime(2020, 1, 1) + datetime.timedelta(seconds=i) for i in range(300)]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        pytest.param(
            pa.array([10**12 + i for i in range(300)]),
            pa.array([float(10**12 + i) for i in range(300)]),
        ),
        pytest.param(
            pa.array([float(i) for i in range(300)]),
            pa.array([-0.0, *map(float, range(1, 300))]),
        ),
        pytest.param(pa.array(SECONDS, pa.timestamp("s")), pa.array(SECONDS, pa.timestamp("us"))),
        pytest.param(pa.array(SECONDS, pa.timestamp("ms")), pa.array(SECONDS, pa.timestamp("ns"))),
        pytest.param(
            pa.array(SECONDS, pa.timestamp("us", "UTC")),
            pa.array(SECONDS, pa.timestamp("ms", "Europe/Berlin")),
        ),
        pytest.param(
            pa.array([second.time() for second in SECONDS], pa.time32("ms")),
            pa.array([second.time() for second in SECONDS], pa.time64("us")),
        ),
        pytest.param(
            pa.array([Decimal(i) / 4 for i in range(300)], pa.decimal128(9, 2)),
            pa.array([Decimal(i) / 4 for i in range(300)], pa.decimal128(12, 5)),
        ),
        pytest.param(
            pa.array([f"text {i}" for i in range(300)]),
            pa.array([f"text {i}" for i in range(300)]).dictionary_encode(),
        ),
    ],
    ids=["floats", "zeros", "seconds", "nanoseconds", "zones", "times", "decimals", "categories"],
)
def test_equal_values_of_two_types_are_on_one_side(tmp_path: Path, left: Any, right: Any) -> None:
    for name, column in (("left", left), ("right", right)):
        pq.write_table(pa.table({"x": column, "i": range(300)}), tmp_path / f"{name}.parquet")
    read = [ps.read(tmp_path / f"{name}.parquet", name=name) for name in ("left", "right")]
    trained, tested = sides(read[0].split("50%", column="x"), "i")
    assert trained and tested
    assert sides(read[1].split("50%", column="x"), "i") == [trained, tested]
    selected = [
        {(row["i"],) for row in ps.read(file, where={"x": {"hash": [0, 0.5]}})}
        for file in sorted(tmp_path.glob("*.parquet"))
    ]
    assert selected == [tested, tested]
    pairs = [sides(ds.map(dict).split("50%", column=["x", "x"]), "i") for ds in read]
    assert pairs[0] == pairs[1]
    if left.type != pa.timestamp("ms"):  # rows with nanoseconds have no common column with others
        both = ps.concat(*read).split("50%", column="x")
        assert sides(both, "i") == [trained, tested]


NESTED = {
    "files": lambda ds: ds,
    "a function between": lambda ds: ds.map(dict),
    "a shuffle between": lambda ds: ds.shuffle(seed=1),
    "a selection between": lambda ds: ds[: len(ds) // 2],
    "a concat between": lambda ds: ds[: len(ds) // 2].concat(ds[len(ds) // 2 :]),
}


@pytest.mark.parametrize("between", NESTED)
@pytest.mark.parametrize("form", ["files", "rows"])
@pytest.mark.parametrize("columns", ["site", ["site", "day"]])
def test_parts_are_split_again_by_the_same_column(
    tmp_path: Path, between: str, form: str, columns: str | list[str]
) -> None:
    rows = make_rows(20_000, 4_000)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    ds = ps.read(tmp_path / "a.parquet") if form == "files" else ps.from_sequence(rows)
    rest, held = ds.split("20%", column=columns)
    for part, share in ((rest, 0.25), (held, 0.5)):
        part = NESTED[between](part)
        first, second = part.split(share, column=columns)
        names = [columns] if isinstance(columns, str) else columns
        left, right = sides((first, second), *names)
        assert not left & right and len(first) + len(second) == len(part)
        assert abs(len(second) / len(part) - share) < 0.05
        third = second.split("50%", column=columns)
        assert abs(len(third[1]) / len(second) - 0.5) < 0.1
    assert not sides((rest,), *names)[0] & sides((held,), *names)[0]


def test_parts_are_split_by_another_column_and_by_changed_values() -> None:
    rows = make_rows(20_000, 4_000)
    rest, _ = ps.from_sequence(rows).split("20%", column="site")
    other = rest.map(lambda row: {**row, "user": row["i"] % 1_000})
    first, second = other.split("25%", column="user")
    assert abs(len(second) / len(other) - 0.25) < 0.05
    again, held = first.split("25%", column="site")
    assert abs(len(held) / len(first) - 0.25) < 0.05
    changed = again.map(lambda row: {**row, "site": f"{row['site']}!"})
    assert abs(len(changed.split("30%", column="site")[1]) / len(changed) - 0.3) < 0.05


def test_files_and_rows_are_split_again_alike(tmp_path: Path) -> None:
    rows = make_rows(5_000, 1_000)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    found = [
        sides(ds.split("30%", column="site")[0].split(0.15, column="site"), "site")
        for ds in (ps.read(tmp_path / "a.parquet"), ps.from_sequence(rows))
    ]
    assert found[0] == found[1]


def test_uuids_are_split_and_selected_like_their_texts(tmp_path: Path) -> None:
    keys = [uuid.UUID(int=i * 7919**5) for i in range(400)]
    stored = pa.array([key.bytes for key in keys], pa.binary(16))
    column = pa.ExtensionArray.from_storage(pa.uuid(), stored)
    pq.write_table(pa.table({"key": column}), path := tmp_path / "a.parquet", store_schema=False)
    parts = ps.read(path).split("30%", column="key")
    assert {len(part) > 0 for part in parts} == {True}
    for others in (
        ps.read(pa.table({"key": column})),
        ps.from_sequence([{"key": str(key)} for key in keys]),
    ):
        texts = [{str(row["key"]) for row in part} for part in others.split("30%", column="key")]
        assert texts == [{str(row["key"]) for row in part} for part in parts]
    for wanted in (keys[7], str(keys[7])):
        assert list(ps.read(path, where={"key": wanted})) == [{"key": keys[7]}]
    above = ps.read(path, where={"key": {"above": keys[7]}})
    assert {row["key"] for row in above} == {key for key in keys if key > keys[7]}


def test_a_part_without_samples_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"speaker": f"spk{i % 5}"} for i in range(100)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for ds in (ps.read(tmp_path / "a.parquet"), ps.from_sequence(rows)):
        caplog.clear()
        assert [len(part) for part in ds.split("20%", column="speaker")] == [100, 0]
        assert "split(column='speaker'): the held-out part is empty" in caplog.text
    caplog.clear()
    assert all(map(len, ds.split("50%", column="speaker"))) and not caplog.text


def test_a_column_without_hashes_is_named_without_a_selection(tmp_path: Path) -> None:
    pq.write_table(pa.table({"tags": [["a"], ["b"]]}), tmp_path / "a.parquet")
    with pytest.raises(ps.ConfigError, match="'tags' holds list<.*, and a split needs texts"):
        ps.read(tmp_path / "a.parquet").split("20%", column="tags")
