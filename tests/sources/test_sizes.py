"""Lengths of lists without reading rows: Parquet and Arrow, kept, checked, and used by packing."""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import pytest

import penstock as ps
from penstock.stores.storage import override_world
from penstock.text import Tokenize

DOCUMENTS = [list(range(n)) for n in (3, 0, 7, 12, 1, 5, 9, 4)]


def write(
    path: Path, documents: list[list[int]] = DOCUMENTS, kind: pa.DataType | None = None
) -> Path:
    column = pa.array(documents, kind or pa.list_(pa.int32()))
    table = pa.table({"ids": column, "name": [f"d{i}" for i in range(len(documents))]})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=3)
    else:
        with pa.OSFile(str(path), "wb") as out, ipc.new_file(out, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    return path


def lengths(path: Path | list[Path], **options: object) -> list[int]:
    found = ps.read(path, lengths="ids", **options).tree.source.lengths()  # type: ignore[arg-type,union-attr]
    assert found is not None and found[:].dtype == np.int64
    return found[:].tolist()


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.large_list(pa.int64())])
def test_lengths_are_those_of_the_rows(tmp_path: Path, suffix: str, kind: pa.DataType) -> None:
    first, second = (
        write(tmp_path / f"a.{suffix}", kind=kind),
        write(tmp_path / f"b.{suffix}", [[1, 2]], kind),
    )
    assert lengths([first, second]) == [len(ids) for ids in DOCUMENTS] + [2]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("method", ["concat_split", "best_fit"])
def test_packing_is_planned_from_them(tmp_path: Path, suffix: str, method: Any) -> None:
    path = write(tmp_path / f"a.{suffix}")
    ds = ps.read(path, columns=["ids"], lengths="ids").shuffle(seed=3).pack(16, method=method)
    rows = [ds[i] for i in range(len(ds))]
    tokens = np.concatenate([row["ids"][row["segment_ids"] > 0] for row in rows])
    assert sorted(tokens.tolist()) == sorted(token for ids in DOCUMENTS for token in ids)


def test_parquet_keeps_its_lengths_beside_the_data_or_in_a_cache(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    expected = lengths(path)
    kept = tmp_path / ".a.parquet.penstock-lengths-ids"
    assert kept.exists()
    made = kept.stat().st_mtime_ns
    assert lengths(path) == expected and kept.stat().st_mtime_ns == made
    kept.unlink()
    assert lengths(path, cache=tmp_path / "cache") == expected
    assert not kept.exists() and list((tmp_path / "cache").rglob("*lengths-ids"))


def test_lengths_of_a_changed_file_are_counted_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "a.parquet")
    first = lengths(path)
    write(path, DOCUMENTS[::-1])
    os.utime(path, ns=(1, 1))
    assert lengths(path) == first[::-1]
    assert [record.getMessage() for record in caplog.records].count(
        f"changed since indexed or converted, so this is done again: {path}"
    ) == 1


def test_a_damaged_file_of_lengths_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    lengths(path)
    kept = tmp_path / ".a.parquet.penstock-lengths-ids"
    body = bytearray(kept.read_bytes())
    body[-8] ^= 1
    kept.write_bytes(bytes(body))
    with pytest.raises(ps.DataError, match="damaged"):
        lengths(path)


def test_what_has_no_lengths_is_refused_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    with pytest.raises(ps.ConfigError, match="lengths='name': the column holds string"):
        ps.read(path, lengths="name").tree.source.lengths()  # type: ignore[union-attr]
    with pytest.raises(ps.ConfigError, match="no column 'idz'"):
        ps.read(path, lengths="idz").tree.source.lengths()  # type: ignore[union-attr]
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"ids": [1]}\n')
    with pytest.raises(ps.ConfigError, match="only Parquet and Arrow"):
        ps.read(lines, lengths="ids").tree.source.lengths()  # type: ignore[union-attr]


def test_a_row_without_a_list_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"ids": pa.array([[1], None], pa.list_(pa.int32()))}), path)
    with pytest.raises(ps.DataError, match="rows without a list"):
        lengths(path)


# ---------------------------------------------------------------- tokens of texts

TEXTS = ["to be or not", "to be", "", "that is the question to be or not to be", "be"] * 9


@pytest.fixture
def texts(tmp_path: Path) -> tuple[Path, Path]:
    """Two files of texts, and a tokenizer of words."""
    pytest.importorskip("tokenizers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    made: Any = Tokenizer(
        models.WordLevel({"<unk>": 0, "to": 1, "be": 2, "or": 3}, unk_token="<unk>")
    )
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    for name, texts in (("a", TEXTS[:20]), ("b", TEXTS[20:])):
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(json.dumps({"text": text}) + "\n" for text in texts)
        )
    return tmp_path, tmp_path / "tokenizer.json"


def counted(folder: Path, tokens: Any, **options: Any) -> ps.Dataset:
    return ps.read(folder / "*.jsonl", lengths=tokens, **options)


def split(texts: list[str]) -> list[list[int]]:
    return [[len(word) for word in text.split()] for text in texts]


@pytest.mark.parametrize("method", ["concat_split", "best_fit"])
@pytest.mark.parametrize("options", [{}, {"bos": 7, "eos": 9}, {"keep": ("text",)}], ids=str)
def test_texts_whose_tokens_were_counted_are_packed_by_plan(
    texts: tuple[Path, Path], method: Any, options: dict[str, Any]
) -> None:
    folder, tokenizer = texts
    tokens = Tokenize(tokenizer, **options)
    features: dict[str, Any] = (
        {"features": ("tokens",), "unpacked": ("text",)} if options.get("keep") else {}
    )
    ds = counted(folder, tokens).shuffle(seed=3).map(tokens).pack(16, method=method, **features)
    rows = [row["tokens"][row["segment_ids"] > 0] for row in ds]
    assert len(rows) == len(ds) and all(
        np.array_equal(ds[i]["tokens"][: len(row)], row) for i, row in enumerate(rows)
    )
    whole: Any = Tokenize(tokenizer, bos=options.get("bos"), eos=options.get("eos"))
    alone = np.concatenate([whole(text) for text in TEXTS])
    assert sorted(np.concatenate(rows).tolist()) == sorted(alone.tolist())
    if method == "concat_split" and not features:
        streamed = ps.Loader(
            ps.read(folder / "*.jsonl").shuffle(seed=3).map(tokens).pack(16), lanes=1
        )
        assert [row["tokens"].tolist() for row in streamed] == [
            row["tokens"].tolist() for row in ds
        ]


@pytest.mark.parametrize("late", [False, True], ids=["each source", "the mixture"])
def test_shares_of_counted_tokens_are_exact(texts: tuple[Path, Path], late: bool) -> None:
    folder, tokenizer = texts
    tokens = Tokenize(tokenizer, eos=9)
    flows = {name: ps.read(folder / f"{name}.jsonl", lengths=tokens).shuffle() for name in "ab"}
    if late:
        ds = ps.mix(flows, {"a": 1, "b": 3}, unit="tokens", seed=1).map(tokens)
    else:
        ds = ps.mix(
            {name: flow.map(tokens) for name, flow in flows.items()},
            {"a": 1, "b": 3},
            unit="tokens",
            seed=1,
        )
    given, it, longest = {"a": 0, "b": 0}, iter(ds), max(len(text.split()) + 1 for text in TEXTS)
    for _ in range(500):
        tokens_of = len(next(it))
        given[it.keys()[0][0]] += tokens_of
        assert abs(given["a"] - sum(given.values()) / 4) <= longest
    packed = ds.pack(32)
    assert packed.plan.at(10**9) and np.array_equal(
        packed[40]["tokens"], list(islice(iter(packed), 41))[40]["tokens"]
    )


def test_counts_are_kept_by_what_the_tokenizer_holds(texts: tuple[Path, Path]) -> None:
    folder, tokenizer = texts

    def kept() -> set[str]:
        return {path.name for path in folder.glob(".*lengths*")}

    plain, ended = Tokenize(tokenizer), Tokenize(tokenizer, eos=9)
    many = [len(text.split()) for text in TEXTS]
    assert lengths_by(folder, plain) == many and len(kept()) == 2
    assert lengths_by(folder, ended) == [n + 1 for n in many] and len(kept()) == 4
    made = {path.name: path.stat().st_mtime_ns for path in folder.glob(".*lengths*")}
    moved = tokenizer.rename(folder / "moved.json")
    assert lengths_by(folder, Tokenize(moved, eos=9, keep=("text",))) == [n + 1 for n in many]
    assert {path.name: path.stat().st_mtime_ns for path in folder.glob(".*lengths*")} == made
    assert lengths_by(folder, Tokenize(split)) == many and len(kept()) == 4, (
        "a function may change: nothing is kept"
    )
    assert lengths_by(folder, plain, cache=folder / "cache") == many
    assert len([*(folder / "cache").rglob("*lengths*")]) in (0, 2)


def lengths_by(folder: Path, tokens: Any, **options: Any) -> list[int]:
    found = counted(folder, tokens, **options).tree.source.lengths()  # type: ignore[union-attr]
    assert found is not None
    return found[:].tolist()


def test_other_functions_than_the_one_that_counted_leave_nothing_known(
    texts: tuple[Path, Path],
) -> None:
    folder, tokenizer = texts
    ds, plain = counted(folder, Tokenize(tokenizer)), ps.read(folder / "*.jsonl")
    for other in (ds.map(Tokenize(tokenizer, eos=9)), ds.map(dict), plain.map(Tokenize(tokenizer))):
        with pytest.raises(ps.IndexedError, match="lengths of the samples, which are not known"):
            other.pack(16)[0]
    once, twice = (
        Tokenize(lambda texts, n=n: [[1] * n * len(text) for text in texts]) for n in (1, 2)
    )
    with pytest.raises(
        ps.IndexedError, match="lengths of the samples"
    ):  # of one name, and another function
        counted(folder, once).map(twice).pack(16)[0]
    assert len(counted(folder, once).map(once).pack(16)[0]["tokens"]) == 16
    assert once.counted == twice.counted
    mixed = ps.mix({"a": ds, "b": plain}, {"a": 1, "b": 1}, stop="first_exhausted").map(
        Tokenize(tokenizer)
    )
    with pytest.raises(ps.IndexedError, match="lengths of the samples"):
        mixed.pack(16)[0]
    state = iter(ds).state_dict()
    with pytest.raises(ps.StateError, match="tokens"):
        iter(counted(folder, Tokenize(tokenizer, eos=9))).load_state_dict(state)


def test_a_row_without_a_text_is_named_when_it_is_counted(texts: tuple[Path, Path]) -> None:
    folder, tokenizer = texts
    with (folder / "b.jsonl").open("a") as file:
        file.write('{"text": 3}\n')
    with pytest.raises(ps.DataError, match=r"b\.jsonl, row 25: .*holds no text"):
        lengths_by(folder, Tokenize(tokenizer))


class Screen:
    """A screen that keeps the lines that it is shown."""

    def __init__(self) -> None:
        self.lines = list[str]()

    def every(self) -> float:
        return 1e9

    def show(self, work: object, line: str, over: bool, /) -> None:
        if not over:
            self.lines.append(line)


def test_how_much_has_to_be_counted_is_told_once_before_it_begins(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("penstock.sources.sizes._MIN_ANNOUNCED_BYTES", 40)
    calls = list[int]()

    def split(texts: list[str]) -> list[list[int]]:
        calls.append(len(screen.lines))
        return [[1] * len(text.split()) for text in texts]

    paths = [tmp_path / f"{name}.jsonl" for name in "abc"]
    for path in paths:
        path.write_text(json.dumps({"text": "to be or not to be"}) + "\n")
    screen = Screen()
    with override_world(screen=screen):
        lengths_by(tmp_path, Tokenize(split))
    assert screen.lines == [
        "the tokens of a.jsonl and 2 more files (0 MB) have to be counted by tokenizing them, every time it is opened"
    ]
    assert calls == [1, 1, 1]


def test_columns_of_nearly_one_name_have_lengths_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a_b": [[1, 2, 3]], "a-b": [[1]], "A_b": [[1, 2]]}), path)
    found = [ps.read(path, lengths=name).tree.source.lengths()[0] for name in ("a_b", "a-b", "A_b")]  # type: ignore[union-attr,index]
    assert found == [3, 1, 2]


@pytest.mark.parametrize("suffix", ["jsonl", "txt"])
def test_rows_of_lines_store_no_lengths(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    path.write_text('{"ids": [1, 2]}\n')
    with pytest.raises(ps.ConfigError, match="only Parquet and Arrow files provide the lengths"):
        ps.read(path, lengths="ids")
