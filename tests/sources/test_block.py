"""Rows that are still columns are the rows that they were, and give the batches that rows give."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.arrays.columnar import ColumnarSamples
from penstock.arrays.trees import collate
from penstock.errors import ConfigError, DataError
from penstock.sources import open_files
from penstock.sources.block import Columns
from penstock.sources.rows import to_numpy_dtype
from tables import WRITERS, arrow_file, parquet, same, table, write

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")
N = 400
FIELDS = ("id", "text", "score", "vector", "nested", "when", "void", "raw", "bits", "map")


def alike(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return list(a) == list(b) and all(alike(a[name], b[name]) for name in a)
    if isinstance(a, np.ndarray):
        return (
            isinstance(b, np.ndarray)
            and (a.dtype, a.shape) == (b.dtype, b.shape)
            and bool((a == b).all())
        )
    return type(a) is type(b) and (same(a, b) if a and isinstance(a[0], dict) else a == b)


def simple() -> Any:
    """Columns that stack: numbers of every width, texts, lists of one length, some without and some with nulls."""
    rng = np.random.default_rng(3)
    columns = {
        str(kind): pa.array(rng.integers(0, 100, N).astype(to_numpy_dtype(kind)), kind)
        for kind in (
            pa.int8(),
            pa.int16(),
            pa.int32(),
            pa.int64(),
            pa.uint8(),
            pa.uint32(),
            pa.uint64(),
            pa.float32(),
        )
    }
    columns |= {
        "flag": pa.array([n % 3 == 0 for n in range(N)]),
        "text": pa.array([f"wörd {n}" * (n % 4) for n in range(N)]),
        "large": pa.array([f"{n}" for n in range(N)], pa.large_string()),
        "raw": pa.array([bytes([n % 256]) * (n % 3) for n in range(N)]),
        "holes": pa.array([None if n % 9 == 0 else f"{n}" for n in range(N)]),
        "fixed": pa.array([[n, n + 1] for n in range(N)], pa.list_(pa.int16(), 2)),
        "equal": pa.array([[n, n + 1, n] for n in range(N)], pa.list_(pa.float32())),
        "wide": pa.array([[n % 200] * 2 for n in range(N)], pa.large_list(pa.uint8())),
        "group": pa.array([{"a": n, "b": str(n)} for n in range(N)]),
        "name": pa.array([("en", "de")[n % 2] for n in range(N)]).dictionary_encode(),
    }
    return pa.table(columns)


@pytest.mark.parametrize("kind", WRITERS)
def test_a_batch_of_columns_is_the_batch_of_its_rows(tmp_path: Path, kind: str) -> None:
    source = open_files(write(tmp_path, kind, simple()))
    rng = np.random.default_rng(0)
    neighbours, far, back = np.arange(17, 49), rng.integers(0, N, 64), np.arange(N)[::-1]
    for indices in (
        neighbours,
        far,
        back,
        np.sort(far),
        np.arange(95, 105),
        np.array([7]),
        np.repeat(3, 5),
    ):
        block, rows = source.block(indices), source.read(indices)
        assert (
            isinstance(block, ColumnarSamples)
            and len(block) == len(rows)
            and same(list(block), rows)
        )
        assert alike(collate(source.block(indices)), collate(rows))
        half = source.block(indices)[1:]
        if len(half):
            assert (
                isinstance(half, ColumnarSamples)
                and alike(collate(half), collate(rows[1:]))
                and same(list(half), rows[1:])
            )


def test_far_rows_of_a_mapped_file_are_those_that_arrow_takes(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    arrow_file(path, simple())
    rng = np.random.default_rng(1)
    for indices in (rng.integers(0, N, 5), rng.permutation(N)):
        found = open_files(path).block(indices)
        wanted = simple().take(pa.array(indices)).combine_chunks().to_batches()[0]
        assert isinstance(found, ColumnarSamples)
        assert found.columns().arrow.to_pylist() == wanted.to_pylist()  # type: ignore[attr-defined]
        found.columns().arrow.validate(full=True)  # type: ignore[attr-defined]


def test_what_a_batch_holds_is_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "x.arrow"
    arrow_file(path, simple())
    for batch in ps.read(path).batch(16):
        for value in batch.values():
            if isinstance(value, np.ndarray):
                value[...] = 0
    assert ps.read(path)[5]["int64"] == simple()["int64"][5].as_py()


@pytest.mark.parametrize("kind", ["parquet", "file"])
def test_batches_are_the_same_by_rows_and_by_columns(tmp_path: Path, kind: str) -> None:
    ds = ps.read(write(tmp_path, kind, simple())).shuffle(seed=5)
    plain = ds.map(dict).batch(24)
    for got, wanted in zip(ds.batch(24), plain, strict=True):
        assert alike(got, wanted)
    with ps.Loader(ds.batch(24), workers=2) as loader:
        assert all(alike(got, wanted) for got, wanted in zip(loader, plain, strict=True))
    mixed = ps.mix(
        {"a": ds, "b": ps.read(tmp_path / WRITERS[kind][0]).shuffle(seed=2)}, seed=1
    ).limit(96)
    assert all(alike(a, b) for a, b in zip(mixed.batch(24), mixed.map(dict).batch(24), strict=True))


def doubled(columns: Any) -> dict[str, Any]:
    assert isinstance(columns, Columns)
    return {
        "id": columns["id"] * 2,
        "size": [len(text or "") for text in columns["text"]],
        "pair": columns["pair"],
    }


@pytest.fixture
def columns(tmp_path: Path) -> ps.Dataset:
    rows = pa.table(
        {
            "id": pa.array(range(N), pa.int32()),
            "text": [None if n % 7 == 0 else str(n) for n in range(N)],
        }
    )
    rows = rows.append_column("pair", pa.array([[n, n] for n in range(N)], pa.list_(pa.int64())))
    parquet(tmp_path / "x.parquet", rows)
    return ps.read(tmp_path / "x.parquet", rows="columns")


@pytest.mark.parametrize("n", [1, 7, 1000])
def test_functions_of_many_samples_are_given_columns(columns: ps.Dataset, n: int) -> None:
    ds = columns.shuffle(seed=1).map(doubled, batched=n)
    rows = [
        {**row, "id": row["id"] * 2, "size": len(row.pop("text") or "")}
        for row in columns.shuffle(seed=1)
    ]
    keys = ("id", "size", "pair")
    wanted = [{key: row[key] for key in keys} for row in rows]
    assert same(list(ds), wanted) and same([ds[3]], wanted[3:4])
    assert all(alike(a, collate(wanted[i * 16 : i * 16 + 16])) for i, a in enumerate(ds.batch(16)))
    for executor in ("threads", "processes"):
        with ps.Loader(ds.batch(16), workers=2, executor=executor) as loader:
            assert alike(next(iter(loader)), collate(wanted[:16]))


def test_a_column_keeps_its_type_whoever_lies_beside_it(columns: ps.Dataset) -> None:
    assert {type(c["id"]) for c in columns.batch(3, collate=lambda c: c)} == {np.ndarray}
    kinds = columns.shuffle(seed=1).map(lambda c: [c["id"].dtype.str] * len(c["id"]), batched=1)
    assert set(kinds) == {"<i4"}
    assert columns.batch(4, collate=list)[0][1]["id"] == 1
    found = columns.batch(4, collate=lambda c: pickle.loads(pickle.dumps(c)))[1]
    assert (
        found.arrow.num_rows == 4
        and found["id"].tolist() == [4, 5, 6, 7]
        and list(found) == ["id", "text", "pair"]
    )
    with pytest.raises(KeyError):
        found["x"]


def test_a_function_that_fails_names_its_sample(columns: ps.Dataset) -> None:
    def bad(found: Columns) -> Any:
        if 5 in found["id"]:
            raise ValueError("five")
        return found["id"]

    with pytest.raises(ValueError, match="five") as error:
        columns.map(bad, batched=4)[5]
    assert "at index 5 of source x" in "".join(error.value.__notes__)


def test_bad_text_is_found_where_it_is_read(tmp_path: Path) -> None:
    bad = pa.array([b"fine", b"\xff\xfe", b"fine", b"too"]).view(pa.string())
    for name, writer in (("x.parquet", parquet), ("x.arrow", arrow_file)):
        writer(tmp_path / name, pa.table({"text": bad}))
        with ps.Loader(
            ps.read(tmp_path / name).batch(2), on_error="quarantine", max_errors=2
        ) as loader:
            assert sum(len(batch["text"]) for batch in loader) == 4
        with pytest.raises(DataError, match="row 1: .*decode"):
            list(ps.read(tmp_path / name).batch(2))


def test_what_has_no_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"x": 1}\n')
    with pytest.raises(ConfigError, match=r"rows='columns'.*has no columns"):
        ps.read(tmp_path / "x.jsonl", rows="columns")
    with pytest.raises(ConfigError, match="choose 'dict' or 'columns'"):
        ps.read(tmp_path / "x.jsonl", rows="tables")  # type: ignore[arg-type]


def test_rows_with_odd_columns_come_as_rows(tmp_path: Path) -> None:
    source = open_files(write(tmp_path, "file", table()), columns=list(FIELDS))
    block = source.block(np.arange(20, 60))
    assert same(list(block), source.read(np.arange(20, 60)))


def test_a_full_shuffle_says_once_what_it_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = pa.table({"text": [f"{n:0400d}" for n in range(2_000)]})
    pa.parquet.write_table(rows, tmp_path / "web.parquet", row_group_size=500)
    ds = ps.read(tmp_path / "web.parquet")
    ds.shuffle()
    assert not caplog.records, "it fits into memory"
    monkeypatch.setattr("penstock.sources.DECODED_CACHE_BYTES", 100 << 10)
    ds.shuffle(block=(500, 2))
    assert not caplog.records
    for seed in range(3):
        ds.map(dict).shuffle(seed=seed)
    (record,) = caplog.records
    said = record.getMessage()
    each = float(said.split("decodes about ")[1].split(" MiB")[0])
    assert said.startswith("web: a full shuffle decodes about") and 0.1 <= each <= 0.2
    assert "shuffle(block=(500, 2))" in said and "shuffle(window=1000)" in said
    assert sorted(row["text"] for row in ds.shuffle()) == sorted(row["text"] for row in ds), (
        "it stays a full shuffle"
    )


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
def test_views_of_texts_are_read_as_texts(tmp_path: Path, executor: Any) -> None:
    texts = [f"a text of more than twelve letters {n}" for n in range(50)]
    for kind in (pa.string_view(), pa.run_end_encoded(pa.int32(), pa.string())):
        path = tmp_path / f"{str(kind)[:6]}.arrow"
        column = (
            pa.array(texts, kind)
            if str(kind) == "string_view"
            else pa.compute.run_end_encode(pa.array(texts))
        )
        view = pa.table({"text": column})
        with pa.ipc.new_file(str(path), view.schema) as writer:
            for batch in view.to_batches(max_chunksize=12):
                writer.write_batch(batch)
        ds = ps.read(path)
        assert [row["text"] for row in ds] == texts
        with ps.Loader(
            ds.shuffle(seed=1), workers=0 if executor == "inline" else 2, executor=executor
        ) as loader:
            assert sorted(row["text"] for row in loader) == sorted(texts)


STORED: dict[str, tuple[Any, Any]] = {
    "a": (pa.string(), pa.list_(pa.int16())),
    "b": (pa.large_string(), pa.large_list(pa.int16())),
    "c": (pa.string_view(), pa.list_(pa.int16())),
    "d": (pa.dictionary(pa.int32(), pa.string()), pa.list_(pa.int16())),
}


def stored(path: Path, text: Any, numbers: Any) -> None:
    texts, lists = pa.array(["a", "b"]).cast(text), pa.array([[1], [2, 3]], numbers)
    small, exact = pa.array([1, 2], pa.uint8()), pa.array([1, 2], pa.timestamp("ns"))
    pq.write_table(pa.table({"small": small, "exact": exact, "lists": lists, "text": texts}), path)


@pytest.mark.parametrize("files", ["ab", "c", "abcd"])
@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_columns_have_their_types_however_texts_are_stored(
    files: str, seed: int | None, tmp_path: Path
) -> None:
    """Files that store texts in other ways, and texts as polars writes them, were made columns of rows anew: numbers
    were int64 then, and nanoseconds gone.
    """
    for name in files:
        stored(tmp_path / f"{name}.parquet", *STORED[name])
    ds = ps.read(tmp_path / "*.parquet", rows="columns")
    ds = ds if seed is None else ds.shuffle(seed=seed)
    rows, columns = list(ds), ds.batch(8, collate=lambda columns: columns)[0]
    assert columns["small"].dtype == np.uint8 and {
        each.dtype.name for each in columns["lists"]
    } == {"int16"}
    assert columns["small"].tolist() == [row["small"] for row in rows]
    for name in ("exact", "text"):
        assert columns[name] == [row[name] for row in rows]
    assert [each.tolist() for each in columns["lists"]] == [row["lists"].tolist() for row in rows]


@pytest.mark.parametrize(
    "one,other,words",
    [
        (
            {"x": [1], "y": ["a"]},
            {"x": [1], "z": ["a"]},
            "the source 'a' has x, y, and 'b' has x, z",
        ),
        (
            {"x": pa.array([1], pa.int32())},
            {"x": pa.array([1.0], pa.float32())},
            "'x' is int32 in the source 'a'",
        ),
        ({"x": [1]}, {"x": ["a"]}, "'x' is int64 in the source 'a', and string in 'b'"),
    ],
)
def test_a_mixture_of_other_columns_has_no_columns(
    one: Any, other: Any, words: str, tmp_path: Path
) -> None:
    """The column that the first sample lacked was gone, and types were those of whoever lay beside."""
    for name, columns in (("a", one), ("b", other)):
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    sources = {
        name: ps.read(tmp_path / f"{name}.parquet", rows="columns", name=name) for name in "ab"
    }
    mixed = ps.mix(sources, seed=1)
    for make in (
        lambda: mixed.map(lambda x: x, batched=2),
        lambda: mixed.batch(2, collate=lambda x: x),
    ):
        with pytest.raises(ps.ConfigError, match=words):
            make()
    assert len(mixed.limit(2).batch(2, collate=list)[0]) == 2


def test_a_source_of_nothing_but_nulls_has_the_type_of_the_others(tmp_path: Path) -> None:
    for name, kind in (("a", pa.null()), ("b", pa.int8())):
        pq.write_table(
            pa.table({"x": pa.array([None, None] if name == "a" else [1, 2], kind)}),
            tmp_path / f"{name}.parquet",
        )
    sources = {name: ps.read(tmp_path / f"{name}.parquet", rows="columns") for name in "ab"}
    columns = ps.mix(sources, seed=1).batch(4, collate=lambda columns: columns)[0]
    assert columns.arrow.schema.field("x").type == pa.int8()
    assert sorted(columns["x"], key=str) == [1, 2, None, None]


@pytest.mark.parametrize("kind", ["file", "stream", "parquet", "packed file"])
def test_shuffled_rows_are_read_together(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows were read one by one without a word, as Arrow asked for pandas or took no rows of a type."""
    numbers, texts = range(N), [f"wörd {n}" for n in range(N)]
    columns = {
        "id": numbers,
        "text": texts,
        "view": pa.array(texts, pa.string_view()),
        "tokens": pa.array([[n, n + 1] for n in numbers], pa.list_(pa.int32())),
        "at": pa.array(numbers, pa.timestamp("ns")),
    }
    write(tmp_path, kind, pa.table(columns))
    ds = ps.read(tmp_path)
    for shuffled in (ds.shuffle(seed=1), ds.shuffle(seed=1, block=(100, 2)), ds):
        rows = [row for batch in shuffled.batch(64, collate=list) for row in batch]
        assert sorted(row["id"] for row in rows) == [*numbers]
        for row in rows[:50]:
            assert row["text"] == row["view"] == texts[row["id"]] and row["tokens"].tolist() == [
                row["id"],
                row["id"] + 1,
            ]
            assert row["at"] == np.datetime64(row["id"], "ns")
    assert not caplog.records
