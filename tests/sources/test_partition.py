"""Parts of rows by the values of columns: in every format what a loop in Python says, and one pass for all parts."""

from __future__ import annotations

import datetime
import json
import logging
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.sources import SelectedRows
from penstock.sources.partition import name_values
from penstock.sources.select import spell_values
from penstock.stores.limits import PARTS

ROWS = [
    {
        "lang": ["de", "en-US", None, "a/b"][i * i % 7 % 4],
        "quality": [0.5, 1.0, 2.0][i % 3],
        "id": i,
        "tokens": [i] * (1 + i % 4),
    }
    for i in range(90)
]
FORMATS = ("parquet", "arrow", "jsonl", "csv", "memory", "table", "mapped")


def spell(value: Any) -> str:
    return name_values((spell_values(pa.array([value]))[0].as_py(),))


def name_of(row: dict[str, Any], columns: list[str]) -> str:
    return ":".join(spell(row[column]) for column in columns)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("partition")
    for part, rows in enumerate((ROWS[:20], ROWS[20:])):
        table = pa.Table.from_pylist(rows)
        pq.write_table(table, folder / f"{part}.parquet", row_group_size=7)
        coded = table.set_column(0, "lang", table["lang"].dictionary_encode())
        with (
            pa.OSFile(str(folder / f"{part}.arrow"), "wb") as sink,
            pa.ipc.new_file(sink, coded.schema) as writer,
        ):
            writer.write_table(coded, max_chunksize=7)
        lines = (json.dumps({k: v for k, v in row.items() if v is not None}) for row in rows)
        (folder / f"{part}.jsonl").write_text("\n".join(lines))
        cells = [f"{row['lang'] or ''},{row['quality']},{row['id']}" for row in rows]
        (folder / f"{part}.csv").write_text("lang,quality,id\n" + "\n".join(cells))
    return folder


def same(row: dict[str, Any]) -> dict[str, Any]:
    return dict(row)


def open_rows(kind: str, folder: Path, **options: Any) -> ps.Dataset:
    match kind:
        case "memory":
            return ps.from_sequence(ROWS)
        case "table":
            return ps.read(pa.Table.from_pylist(ROWS))
        case "mapped":
            return ps.read(f"{folder}/*.jsonl", cache=folder / "cache").map(same)
        case _:
            return ps.read(f"{folder}/*.{kind}", cache=folder / "cache", **options)


def list_ids(part: ps.Dataset) -> list[int]:
    return [row["id"] for row in part]


@pytest.mark.parametrize("kind", FORMATS)
@examples(15)
@given(
    columns=st.sampled_from([["lang"], ["quality"], ["lang", "quality"], ["quality", "lang"]]),
    min_size=st.integers(1, 40),
    rest=st.booleans(),
)
def test_the_parts_of_a_loop(
    kind: str, columns: list[str], min_size: int, rest: bool, folder: Path
) -> None:
    ids = dict[str, list[int]]()
    for row in ROWS:
        if kind == "csv":  # which has no nulls
            row = {**row, "lang": row["lang"] or ""}
        ids.setdefault(name_of(row, columns), []).append(row["id"])
    rare = {name for name, found in ids.items() if len(found) < min_size}
    ds = open_rows(kind, folder)
    options: dict[str, Any] = {"min_size": min_size}
    if min_size > 1 and rest:
        options["rest"] = "rest"
    elif rare:
        with pytest.raises(ps.ConfigError, match=rf"{len(rare)} values? ha(s|ve) fewer rows"):
            ds.partition_by(columns, **options)
        return
    parts = ds.partition_by(columns, **options)
    wanted = {name: ids[name] for name in sorted(ids.keys() - rare)}
    if rare:
        wanted["rest"] = sorted(i for name in rare for i in ids[name])
    assert [*parts] == [*wanted]
    assert {name: list_ids(part) for name, part in parts.items()} == wanted
    assert all(part.tree.reason_not_indexed is None for part in parts.values())
    fixed = (
        ds.partition_by(columns, only=[*wanted.keys() - {"rest"}], rest="rest")
        if wanted.keys() - {"rest"}
        else {}
    )
    assert {name: list_ids(part) for name, part in fixed.items()} == (wanted if fixed else {})


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl", "csv"])
def test_columns_that_are_not_read(kind: str, folder: Path) -> None:
    parts = open_rows(kind, folder, columns=["id"]).partition_by(["lang", "quality"])
    assert parts["de:1"][0].keys() == {"id"}
    assert {i for part in parts.values() for i in list_ids(part)} == set(range(90))


def test_a_part_of_a_part_and_of_a_selection(folder: Path) -> None:
    ds = ps.read(f"{folder}/*.parquet", cache=folder / "cache", where={"id": {"min": 30}})
    part = ds.partition_by("lang")["de"].partition_by("quality", only=["1"], rest="x")["x"]
    wanted = [r["id"] for r in ROWS[30:] if r["lang"] == "de" and r["quality"] != 1]
    assert list_ids(part) == wanted
    assert list_ids(pickle.loads(pickle.dumps(part))) == wanted
    source: Any = part.tree.describe()
    assert source["where"] == {"id": {"min": 30}}
    assert source["parts"][0] == {"lang": "de"} and source["parts"][1]["not"]["count"] == 1


def test_steps_behind_a_part(folder: Path) -> None:
    """A part reads single columns again, and is split by values, like other files."""
    ds = ps.read(f"{folder}/*.parquet", cache=folder / "cache")
    part = ds.partition_by("lang")["de"]
    source: Any = getattr(part.tree, "source")  # noqa: B009
    assert isinstance(source, SelectedRows)
    ids = source.column_alone("id")
    assert ids is not None and [row["id"] for row in ids.read(np.arange(len(ids)))] == list_ids(
        part
    )
    train, held_out = part.split(0.4, column="id")
    assert sorted(list_ids(train) + list_ids(held_out)) == list_ids(part) and len(train) * len(
        held_out
    )
    selected = ds.split("30%")[0].shuffle(seed=1).limit(50)  # orders alone: no row is read
    parts = selected.partition_by("lang")
    for name, each in parts.items():
        assert list_ids(each) == [r["id"] for r in selected if name_of(r, ["lang"]) == name]


def test_lengths_of_a_part(folder: Path) -> None:
    ds = ps.read(f"{folder}/*.parquet", cache=folder / "cache", lengths="tokens")
    parts = ds.partition_by("lang")
    for part in parts.values():
        source: Any = getattr(part.tree, "source")  # noqa: B009
        assert list(source.lengths()) == [len(row["tokens"]) for row in part]
    mixture = ps.mix(parts, unit="tokens").map(lambda row: row["tokens"])
    assert ps.mix(parts, unit="tokens").tree.lengths_known and len(mixture.head(3)) == 3


def test_the_columns_are_read_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, actual = list[str](), pq.ParquetFile.read_row_group

    def count(self: Any, group: int, columns: list[str], **options: Any) -> Any:
        read.extend(columns)
        return actual(self, group, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", count)
    for _ in range(2):  # made, and cached
        ds = ps.read(f"{folder}/*.parquet", cache=tmp_path)
        assert len(ds.partition_by(["lang", "quality"])) > 5
        assert {*read} == {"lang", "quality"} and len(read) == 2 * (3 + 10)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([True, False, None], ["false", "null", "true"]),
        ([1, 2**62], ["1", "4611686018427387904"]),
        ([1.0, 0.25, float("nan"), -0.0], ["0", "0.25", "1", "nan"]),
        ([datetime.date(2024, 1, 2)], ["2024-01-02"]),
        ([datetime.datetime(2024, 1, 2, 3)], ["2024-01-02 03:00:00.000000"]),
        ([Decimal("1.50"), Decimal("2.00")], ["1.5", "2"]),
        ([b"de", b"en"], ["de", "en"]),
        (["", None, "null", "empty", "nulls"], ["%65mpty", "%6Eull", "empty", "null", "nulls"]),
        (["+a", "a+", "a%2Fb", "a/b", "a:b", "x\ny"], ["%2Ba", "a%252Fb", "a%2Fb", "a+", "a:b", "x%0Ay"]),
    ],
)  # fmt: skip
def test_names_of_values(values: list[Any], names: list[str], tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": values}), path)
    assert sorted(ps.read(path).partition_by("x")) == names
    assert sorted(ps.read(pa.table({"x": values})).partition_by("x")) == names


def test_uuids(tmp_path: Path) -> None:
    ids = [UUID(int=5), UUID(int=6)]
    pq.write_table(
        pa.table({"x": pa.array([i.bytes for i in ids], pa.uuid())}), tmp_path / "a.parquet"
    )
    assert [*ps.read(tmp_path).partition_by("x")] == [str(i) for i in ids]


def test_one_value_of_two_types(tmp_path: Path) -> None:
    """Files may store a value in other types, as lines often do: it has one part."""
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": 2}\n')
    (tmp_path / "b.jsonl").write_text('{"x": "1"}\n{"x": 1.0}\n'.replace('\n{"x": 1.0}', ""))
    (tmp_path / "c.jsonl").write_text('{"x": 1.0}\n{"x": 2.5}\n{}\n')
    parts = ps.read(tmp_path).partition_by("x")
    assert {name: len(part) for name, part in parts.items()} == {
        "1": 3,
        "2": 1,
        "2.5": 1,
        "null": 1,
    }


TEXTS = (
    st.none()
    | st.text(st.sampled_from("ab:%/+-null\n\x00é\u2028 "), max_size=5)
    | st.text(max_size=4)
)


@examples(200)
@given(rows=st.integers(1, 3).flatmap(lambda n: st.lists(st.tuples(*[TEXTS] * n), unique=True)))
def test_names_are_unique_and_can_be_names_of_sources(rows: list[Any]) -> None:
    names = [name_values(row) for row in rows]
    assert len({*names}) == len(rows)
    for name in names:
        assert name and "/" not in name and not name.startswith("+") and name.isprintable()


DRAWN = st.lists(
    st.fixed_dictionaries(
        {}, optional={"a": st.sampled_from(["x", "y", "", None, "null"]), "b": st.integers(0, 2)}
    ),
    min_size=1,
    max_size=40,
)


@examples(40)
@given(rows=DRAWN, cut=st.integers(0, 40), columns=st.sampled_from([["a"], ["b"], ["a", "b"]]))
def test_appended_rows_land_in_their_parts(
    rows: list[dict[str, Any]], cut: int, columns: list[str], tmp_path_factory: Any
) -> None:
    """Each part of the first rows is the beginning of the part of all rows."""
    if not all(any(column in row for row in rows[:cut]) for column in columns):
        return
    folder = tmp_path_factory.mktemp("grown")
    lines = [json.dumps({**row, "id": i}) for i, row in enumerate(rows)]
    (folder / "0.jsonl").write_text("\n".join(lines[:cut]))
    first = ps.read(folder).partition_by(columns)
    before = {name: list_ids(part) for name, part in first.items()}
    keep = [*before][:1]
    rest_before = ps.read(folder).partition_by(columns, only=keep, rest="?").get("?")
    others = [] if rest_before is None else list_ids(rest_before)
    if lines[cut:]:
        (folder / "1.jsonl").write_text("\n".join(lines[cut:]))
    now = ps.read(folder).partition_by(columns)
    for name, ids in before.items():
        assert list_ids(now[name])[: len(ids)] == ids
        source: Any = getattr(now[name].tree, "source")  # noqa: B009
        old: Any = getattr(first[name].tree, "source")  # noqa: B009
        assert source.digest_of(len(ids)) == {"rows": old.digest()["rows"]}
    fixed = ps.read(folder).partition_by(columns, only=keep, rest="?")
    assert others == (list_ids(fixed["?"])[: len(others)] if others else [])


def test_a_run_over_parts_that_grow(tmp_path: Path) -> None:
    def build() -> ps.Dataset:
        parts = ps.read(tmp_path).partition_by("x", only=["0", "1"], rest="rest")
        return ps.mix(parts, {"0": 1, "1": 2, "rest": 1})

    lines = [json.dumps({"x": i % 5, "id": i}) for i in range(100)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    loader = ps.Loader(build())
    run = iter(loader)
    rows = [next(run) for _ in range(30)]
    state = loader.state_dict()
    (tmp_path / "b.jsonl").write_text('{"x": 0, "id": 100}\n{"x": 7, "id": 101}\n')
    with pytest.raises(ps.StateError, match="rest.rows: saved 60, now 61"):
        ps.Loader(build()).load_state_dict(state)
    grown = ps.Loader(build())
    grown.load_state_dict(state, on_mismatch="adopt")
    run = iter(grown)
    rows += [next(run) for _ in range(150)]
    zeros = [row["id"] for row in rows if row["x"] == 0]
    assert zeros == ([*range(0, 100, 5), 100] * 3)[: len(zeros)]
    rest = [row["id"] for row in rows if row["x"] > 1]
    wanted = [i for i in range(100) if i % 5 > 1]
    assert rest == [*wanted, 101, *wanted][: len(rest)]


def test_excluded_samples_of_a_part(folder: Path) -> None:
    parts = ps.read(f"{folder}/*.jsonl", cache=folder / "cache").partition_by("lang")
    ds = ps.mix(parts)
    third = parts["de"][2]["id"]
    excluded = ds.plan.exclude([("de", 2)]).dataset
    assert third in list_ids(ds.limit(90)) and third not in list_ids(excluded.limit(300))


def test_files_that_no_column_tells_apart(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(9))
    with pytest.raises(ps.ConfigError, match="no sample has 'lang'"):
        ps.read(tmp_path / "a.npy").partition_by("lang")


LANG = '{"lang": "de", "words": [1]}\n{"lang": "en", "words": [2]}\n'


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (["lnag"], {}, "no row has 'lnag'; the first has lang, words; did you mean 'lang'"),
        (["words"], {}, "'words' holds list<item: int64>, and partition_by needs texts"),
        ([[]], {}, r"partition_by\(\[\]\): give at least one column by its name"),
        ([["lang", "lang"]], {}, "a column is named twice"),
        (["lang"], {"min_size": 0}, r"partition_by\(min_size=0\): give a whole number of at least 1"),
        (["lang"], {"min_size": 2}, r"2 values have fewer rows, 2 together: 'de' \(1\), 'en' \(1\)"),
        (["lang"], {"rest": "x"}, "every value has an input of its own; give min_size= or only= too"),
        (["lang"], {"min_size": 2, "rest": "a/b"}, "give a name, not empty, without '/'"),
        (["lang"], {"min_size": 2, "rest": ""}, "give a name, not empty"),
        (["lang"], {"only": ["de"], "min_size": 2}, "only= fixes the inputs; give one"),
        (["lang"], {"only": "de"}, "give a list of at least one name"),
        (["lang"], {"only": []}, "give a list of at least one name"),
        (["lang"], {"only": ["de", "de"]}, "a name is given twice"),
        (["lang"], {"only": ["dee"]}, "no row has the values of 'dee'; did you mean 'de'"),
        (["lang"], {"only": ["fr"]}, r"no row has the values of 'fr'; there are \['de', 'en'\]"),
        (["lang"], {"only": ["de"], "rest": "de"}, "an input for a value has this name"),
    ],
)  # fmt: skip
def test_errors(
    arguments: list[Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text(LANG)
    with pytest.raises(ps.ConfigError, match=message):
        ps.read(tmp_path / "a.jsonl").partition_by(*arguments, **options)


def test_datasets_without_positions(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(LANG)
    ds = ps.read(tmp_path / "a.jsonl")
    with pytest.raises(ps.ConfigError, match="the dataset is endless; partition it before"):
        ds.repeat().partition_by("lang")
    with pytest.raises(ps.IndexedError, match="partition before that step"):
        ds.filter(bool).partition_by("lang")


def test_too_many_parts() -> None:
    ds = ps.from_sequence([{"x": i} for i in range(PARTS + 1)])
    with pytest.raises(ps.ConfigError, match="10,001 values would be inputs, of at most 10,000"):
        ds.partition_by("x")
    assert len(ds.partition_by("x", min_size=2, rest="all")["all"]) == PARTS + 1
    assert len(ds[:PARTS].partition_by("x")) == PARTS


def test_an_empty_folder_has_no_parts(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("")
    assert ps.read(tmp_path / "a.jsonl").partition_by("lang") == {}
    assert ps.from_sequence([]).partition_by("lang", min_size=3, rest="x") == {}


def test_changed_files_are_read_again(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "a.jsonl").write_text(LANG)
    assert [*ps.read(tmp_path).partition_by("lang")] == ["de", "en"]
    (tmp_path / "a.jsonl").write_text(LANG.replace("en", "frr"))
    with caplog.at_level(logging.INFO, "penstock"):
        assert [*ps.read(tmp_path).partition_by("lang")] == ["de", "frr"]
