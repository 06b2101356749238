"""Packed rows hold int32 tokens, whatever their sources store, whatever is empty, however rows are made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import ConfigError, DataError
from penstock.mixture_files import lint
from penstock.report.shares import packing as in_words
from penstock.text import Padded, Tokenize

WIDTHS = ("uint8", "int8", "uint16", "int16", "int32", "uint32", "int64", "uint64")
PLANNED = (
    *(f"memory {width}" for width in WIDTHS),
    "mapped int64",
    "file uint16",
    "file int64",
    "parquet lengths",
)
STREAMED = ("text", "json", "parquet", "lists", "arrays", "vectors of floats where empty")


def document_of(row: Any) -> Any:
    return row["ids"]


def ids_of(texts: list[str]) -> list[list[int]]:
    return [[ord(letter) for letter in text] for text in texts]


def source(kind: str, documents: Sequence[Sequence[int]], folder: Path) -> ps.Dataset:
    """The documents as a source of some kind has them."""
    how, _, width = kind.partition(" ")
    arrays = [np.asarray(document, np.int64) for document in documents]
    tokens, offsets = np.concatenate(arrays), np.cumsum([0, *map(len, documents)])
    match how:
        case "memory":
            return ps.from_tokens(tokens.astype(width), offsets)
        case "mapped":
            np.save(folder / "mapped.npy", tokens.astype(width))
            return ps.from_tokens(np.load(folder / "mapped.npy", mmap_mode="r"), offsets)
        case "file":  # EOS is a token of its own there
            flat = np.concatenate([np.append(array, 0) for array in arrays]).astype(width)
            flat.tofile(folder / f"{width}.bin")
            return ps.read(folder / f"{width}.bin", dtype=width, eos=0)  # pyright: ignore[reportArgumentType]
        case "text":
            texts = [{"text": "".join(map(chr, document))} for document in documents]
            return ps.from_sequence(texts).map(Tokenize(ids_of))
        case "json":
            (folder / "a.jsonl").write_text(
                "".join(json.dumps({"ids": list(ids)}) + "\n" for ids in documents)
            )
            return ps.read(folder / "a.jsonl").map(document_of)
        case "parquet":
            table = pa.table(
                {"ids": pa.array([list(ids) for ids in documents], pa.list_(pa.int64()))}
            )
            pq.write_table(table, folder / "a.parquet")
            if width:
                return ps.read(folder / "a.parquet", columns=["ids"], lengths="ids")
            return ps.read(folder / "a.parquet").map(document_of)
        case "lists":
            return ps.from_sequence([list(document) for document in documents])
        case "arrays":
            return ps.from_sequence(
                [array.astype(WIDTHS[i % len(WIDTHS)]) for i, array in enumerate(arrays)]
            )
        case _:
            return ps.from_sequence([np.array(list(document)) for document in documents])


documents_of_a_source = st.lists(st.lists(st.integers(1, 120), max_size=6), min_size=1, max_size=5)
kinds = st.lists(st.sampled_from(PLANNED), min_size=1, max_size=3) | st.lists(
    st.sampled_from([kind for kind in PLANNED + STREAMED if kind != "parquet lengths"]),
    min_size=1,
    max_size=3,
)


@given(
    kinds=kinds,
    method=st.sampled_from(["concat_split", "first_fit", "best_fit"]),
    length=st.integers(4, 12),
    eos=st.sampled_from([None, 121]),
    dtype=st.sampled_from([None, "int64"]),
    data=st.data(),
)
def test_rows_are_int32_and_hold_every_token(
    kinds: list[str],
    method: Any,
    length: int,
    eos: int | None,
    dtype: Any,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    sources, want = list[ps.Dataset](), list[int]()
    for kind in kinds:
        documents = data.draw(documents_of_a_source)
        sources.append(source(kind, documents, tmp_path_factory.mktemp("source")))
        end = [0] if kind.startswith("file") else []
        want += [
            token for ids in documents for token in [*ids, *end, *([] if eos is None else [eos])]
        ]
    if any(kind == "parquet lengths" for kind in kinds):  # a mapping with one feature
        sources = [
            ds if kind == "parquet lengths" else ds.map(as_mapping)
            for ds, kind in zip(sources, kinds, strict=True)
        ]
    ds = ps.concat(*sources).pack(length, method, eos=eos, dtype=dtype)
    rows = list(ps.Loader(ds, lanes=1))
    batches = list(ps.Loader(ds.batch(2), lanes=1))
    feature = "ids" if rows and "ids" in rows[0] else "tokens"
    assert {str(row[feature].dtype) for row in [*rows, *batches]} <= {dtype or "int32"}
    assert all(row[name].dtype == np.int32 for row in rows for name in ("segment_ids", "positions"))
    given = [token for row in rows for token in row[feature][row["segment_ids"] > 0].tolist()]
    assert sorted(given) == sorted(want)
    if method == "concat_split":
        assert given == want
    assert [row[feature].tolist() for row in rows] == [
        row for batch in batches for row in batch[feature].tolist()
    ]


def as_mapping(document: Any) -> Any:
    return {"ids": document}


def test_features_beside_tokens_keep_their_dtype_whatever_is_empty() -> None:
    kinds: dict[str, Any] = {
        "reward": np.float32,
        "half": np.float16,
        "mask": np.bool_,
        "labels": np.uint16,
    }
    documents = [
        {
            "ids": np.arange(n, dtype=np.uint16),
            **{name: np.ones(n, kind) for name, kind in kinds.items()},
        }
        for n in (0, 2, 0, 3)
    ]
    documents.insert(0, {name: [] for name in documents[0]})
    for row in ps.Loader(ps.from_sequence(documents).pack(4, eos=9, pad={"labels": -100}), lanes=1):
        if row["ids"][0] == 9 and not (row["positions"] > 0).any():
            continue  # nothing but empty lists tells no dtype
        found = {name: str(row[name].dtype) for name in documents[0]}
        assert found == {
            "ids": "int32",
            "reward": "float32",
            "half": "float16",
            "mask": "bool",
            "labels": "int32",
        }


def test_features_of_several_axes_keep_their_dtype() -> None:
    pixels = ps.from_sequence(
        [{"patches": np.full((n, 3), n, np.uint8), "ids": [n] * n} for n in (1, 2)]
    )
    (row,) = ps.Loader(pixels.pack_features({"patches": 4, "ids": 4}), lanes=1)
    assert row["patches"].dtype == np.uint8 and row["ids"].dtype == np.int32
    (row,) = ps.Loader(pixels.pack(3), lanes=1)
    assert row["patches"].dtype == np.uint8 and row["patches"].tolist() == [
        [1] * 3,
        [2] * 3,
        [2] * 3,
    ]


def test_a_row_that_is_nothing_but_the_end_of_a_document_has_its_dtype() -> None:
    rows = list(ps.Loader(ps.from_sequence([np.array([0.5, 1.5])]).pack(2, eos=9), lanes=1))
    assert [row["tokens"].dtype for row in rows] == [np.float64, np.float64]
    empty = ps.from_sequence([[], np.array([])]).pack(2, eos=9)
    assert [row["tokens"].dtype for row in ps.Loader(empty, lanes=1)] == [np.int32]


def test_rows_of_stores_of_several_dtypes_are_made_many_at_a_time() -> None:
    stores = [
        ps.from_tokens(np.arange(60, dtype=dtype), range(0, 61, 3), name=dtype) for dtype in WIDTHS
    ]
    rows = ps.concat(*stores).pack(9)
    alone = [rows[i]["tokens"].tolist() for i in range(len(rows))]
    batches = list(ps.Loader(rows.batch(7)))
    assert [row for batch in batches for row in batch["tokens"].tolist()] == alone
    assert {batch["tokens"].dtype for batch in batches} == {np.dtype(np.int32)}


# ---------------------------------------------------------------- ids that do not fit


def test_an_id_in_memory_that_does_not_fit_is_refused_when_the_rows_are_described() -> None:
    large = ps.from_tokens(np.array([1, 2**31]), [0, 1, 2], name="large")
    small = ps.from_tokens(np.array([1, 2], np.uint16), [0, 1, 2], name="small")
    for ds in (
        large,
        large.shuffle(),
        large.concat(small),
        ps.mix({"large": large, "b": small}, {"large": 1, "b": 1}),
    ):
        with pytest.raises(
            ConfigError,
            match=r"pack\(4\): the source 'large' holds the id 2147483648, .*dtype='int64'",
        ):
            ds.pack(4)
        assert ds.pack(4, dtype="int64")[0]["tokens"].dtype == np.int64
    with pytest.raises(ConfigError, match="windows: the source 'large' holds the id 2147483648"):
        ps.windows(large, 1)
    assert large[:1].pack(1)[0]["tokens"].tolist() == [1]
    assert ps.mix({"large": large, "b": small}, {"large": 0, "b": 1}).pack(4)[0][
        "tokens"
    ].tolist() == [1, 2, 1, 2]
    with pytest.raises(
        ConfigError, match=r"pack\(eos=2147483648\): 2147483648 does not fit into int32"
    ):
        small.pack(4, eos=2**31)
    with pytest.raises(ConfigError, match="'small' holds the id 300, which does not fit into int8"):
        ps.from_tokens(np.array([300], np.int16), [0, 1], name="small").pack(4, dtype="int8")


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_id_that_does_not_fit_is_named_with_its_file_and_row(
    known: bool, workers: int, tmp_path: Path
) -> None:
    for name, rows in {"a": [[1, 2, 3], [4]], "b": [[5, 6], [7, 2**31], [8]]}.items():
        table = pa.table({"ids": pa.array(rows, pa.list_(pa.int64()))})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    ds = ps.read(tmp_path, columns=["ids"], lengths="ids" if known else None, name="web")
    for made in (ds.pack(4), ds.pack(4).batch(2), ds.pack(4, "first_fit").batch(3)):
        with pytest.raises(
            DataError, match="feature 'ids': 2147483648 does not fit into int32; pass dtype='int64'"
        ) as error:
            list(ps.Loader(made, lanes=1, workers=workers, executor="threads"))
        told = " ".join(error.value.__notes__)
        assert "web[3]" in told and "b.parquet, row 1" in told and "on_error=" not in told
        rows = list(ps.Loader(ds.pack(4, dtype="int64"), lanes=1))
        assert 2**31 in np.concatenate([row["ids"] for row in rows])


def test_ids_of_a_tokenizer_over_32_bits_are_refused() -> None:
    ds = ps.from_sequence(["a"]).map(Tokenize(lambda texts: [[2**31] for _ in texts]))
    with pytest.raises(DataError, match="tokenize: the tokenizer gave an id over 32 bits"):
        list(ds)


def test_windows_are_int32_whatever_the_store_holds(tmp_path: Path) -> None:
    tokens = np.arange(20)
    for dtype in WIDTHS:
        assert {
            window.dtype for window in ps.windows(ps.from_tokens(tokens.astype(dtype), [0, 20]), 4)
        } == {np.dtype("i4")}
    (tokens + 2**31).tofile(tmp_path / "a.bin")
    store = ps.read(tmp_path / "a.bin", dtype="int64")
    with pytest.raises(
        DataError,
        match=r"a.bin, token 4: 2147483652 does not fit into int32; pass dtype='int64' to windows",
    ):
        ps.windows(store, 4)[1]
    assert ps.windows(store, 4, "int64")[1].tolist() == (tokens[4:9] + 2**31).tolist()


# ---------------------------------------------------------------- what lint and plan say


def test_plan_and_lint_name_sources_that_store_tokens_differently(tmp_path: Path) -> None:
    np.arange(1, 3_001, dtype=np.uint16).tofile(tmp_path / "books.bin")
    table = pa.table({"ids": pa.array([[1, 2, 3]] * 100, pa.list_(pa.int64()))})
    pq.write_table(table, tmp_path / "web.parquet")
    (tmp_path / "mixture.yaml").write_text(
        "sources:\n  books: {path: books.bin, dtype: uint16, eos: 9, weight: 1}\n"
        "  web: {path: web.parquet, columns: [ids], lengths: ids, weight: 1}\n"
        "pack: {length: 64}\nhorizon: {samples: 10}\n"
    )
    notes = [problem.message for problem in lint(tmp_path / "mixture.yaml")]
    assert any(
        "store their tokens as uint16 (books) and int64 (web); rows are int32" in note
        for note in notes
    )
    stores = {
        name: ps.from_tokens(np.arange(40, dtype=name), range(0, 41, 4))
        for name in ("uint16", "int32")
    }
    told = ps.mix(stores, {"uint16": 1, "int32": 1}).pack(8).plan.packing()
    assert told.stored == {"uint16": "uint16", "int32": "int32"}
    assert in_words(told).endswith(
        "; the sources store their tokens as int32 (int32) and uint16 (uint16)"
    )


@pytest.mark.parametrize(
    ("values", "dtype"),
    [([1.5], "int32"), ([float("nan")], "int64"), ([2], "bool"), ([-1], "bool"), ([0.5], "bool")],
)
def test_padding_cuts_no_number_to_a_dtype_of_another_kind(values: list[Any], dtype: str) -> None:
    with pytest.raises(
        DataError, match=f"field 'a' of sample 1 in the batch: .* does not go into {dtype}"
    ):
        Padded(dtype=dtype)([{"a": [1]}, {"a": values}])


def test_finite_floats_do_not_become_infinite() -> None:
    docs = ps.from_sequence([{"a": [1], "w": [1.0]}, {"a": [2], "w": [1e6]}])
    dtype: Any = {"w": "float16"}
    for steps in (
        docs.pack(4, dtype=dtype),
        docs.pack_features({"a": 4, "w": 4}, dtype=dtype),
        docs.batch(2, collate=Padded(dtype=dtype)),
    ):
        with pytest.raises(DataError, match=r"1e\+06 would be infinite as float16"):
            list(steps)
    (row,) = ps.from_sequence([[np.inf], [3e38]]).pack(2, dtype="float32")
    assert row["tokens"].tolist() == [np.inf, float(np.float32(3e38))]


def test_padding_makes_truth_values_of_0_and_1() -> None:
    assert Padded(dtype="bool")([{"a": [1, 0]}, {"a": [1]}])["a"].tolist() == [
        [True, False],
        [True, False],
    ]


@pytest.mark.parametrize("dtype", ["U3", "object", "datetime64[s]"])
def test_dtypes_of_something_other_than_numbers_are_refused(dtype: str) -> None:
    docs = ps.from_sequence([{"a": [1, 2]}])
    for step in (
        lambda: Padded(dtype=dtype),
        lambda: docs.pack(4, dtype=dtype),
        lambda: docs.pack_features({"a": 4}, dtype=dtype),
    ):
        with pytest.raises(ConfigError, match="is not numeric: give one such as 'int32'"):
            step()


@pytest.mark.parametrize("values", [[None, 2], ["a", "b"]])
def test_features_of_something_other_than_numbers_are_refused(values: list[Any]) -> None:
    docs = ps.from_sequence([{"a": [1, 2], "b": values}])
    with pytest.raises(DataError, match="feature 'b' is a list of .*, not a sequence of numbers"):
        list(docs.pack_features({"a": 4, "b": 4}))
