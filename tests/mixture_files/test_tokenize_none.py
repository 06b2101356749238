"""Sources that opt out of the tokenization of a mixture file, and texts in archives."""

from __future__ import annotations

import io
import logging
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import penstock as ps
from penstock.mixture_files import lint, read_model
from penstock.mixture_files.tokenize import tokenize
from penstock.report.shares import rows
from penstock.report.target import open_target

WORDS = {"[UNK]": 0, "one": 1, "two": 2, "end": 3, "begin": 4}
COUNTED = "{tokenizer: t.json, counted: true}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "t.json"))
    ps.write(
        ps.from_sequence([{"text": "one two " * (i % 4 + 1)} for i in range(40)]),
        tmp_path / "texts",
    )
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for i in range(30):
            data = b"two " * (i % 3 + 1)
            member = tarfile.TarInfo(f"{i:03}.txt")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    write(tmp_path, "alone", "sources: {s: {path: texts}}")
    return tmp_path


def write(folder: Path, name: str, text: str, tokenize: str = "{tokenizer: t.json}") -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(f"tokenize: {tokenize}\n{text}\n")
    return file


STORE = """
unit: tokens
horizon: {tokens: 400}
sources:
  texts: {path: texts, weight: 1}
  tar: {path: t.tar, weight: 1, tokenize: {tokenizer: t.json, field: txt, counted: true}}
  store: {path: store/s, weight: 2, tokenize: none}
pack: {length: 16}
"""


def make_store(folder: Path) -> None:
    model, _ = read_model(folder / "alone.yaml")
    assert model is not None
    tokenize(model, folder / "store")


def test_a_column_of_tokens_stands_beside_texts(folder: Path) -> None:
    columns = pa.table({"tokens": pa.array([[7] * 5, [8] * 9], pa.list_(pa.int32()))})
    pq.write_table(columns, folder / "column.parquet")
    sources = "sources: {texts: {path: texts}, column: {path: column.parquet, lengths: tokens, tokenize: none}}"
    file = write(
        folder, "column", f"horizon: {{steps: 20}}\n{sources}\npack: {{length: 16}}", COUNTED
    )
    assert {7, 8} < {number for row in ps.load(file) for number in row["tokens"].tolist()}


def test_a_store_stands_beside_texts_and_archives(folder: Path) -> None:
    make_store(folder)
    file = write(folder, "all", STORE, COUNTED)
    assert not [problem for problem in lint(file) if problem.severity == "error"]
    ds = ps.load(file)
    assert ds.plan.counts(step=20, unit="tokens").keys() == {"texts", "tar", "store"}
    read = {number for row in ds for number in row["tokens"].tolist()}
    assert read == {1, 2}
    ps.dump(ds, folder / "again.yaml")
    assert list(map(str, ps.load(folder / "again.yaml"))) == list(map(str, ds))


@pytest.mark.parametrize("word", ["none", "null", "~"])
def test_nested_mixtures_opt_out_as_a_whole(folder: Path, word: str) -> None:
    make_store(folder)
    inner = f"{{tokenize: {word}, sources: {{store: {{path: store/s}}}}}}"
    file = write(
        folder, "nested", f"sources: {{texts: {{path: texts}}, inner: {{mixture: {inner}}}}}"
    )
    rows = list(ps.load(file).slice(0, 20))
    assert all(isinstance(row, np.ndarray) and set(row.tolist()) <= {1, 2} for row in rows)


def test_a_store_that_would_be_encoded_is_an_error_that_says_what_to_write(folder: Path) -> None:
    make_store(folder)
    file = write(folder, "wrong", "sources:\n  texts: {path: texts}\n  store: {path: store/s}")
    (problem,) = [each for each in lint(file) if each.severity == "error"]
    assert problem.key == "sources.store.tokenize" and problem.line == 4
    assert "tokenize: none" in problem.message
    with pytest.raises(ps.DataError, match="the sample is an array, not a text.*tokenize: none"):
        list(ps.load(file).slice(0, 40))


def test_other_short_forms_are_errors(folder: Path) -> None:
    file = write(folder, "short", "sources: {texts: {path: texts}}", "t.json")
    with pytest.raises(ps.ConfigError, match="such as {tokenizer: tokenizer.json}, or none"):
        ps.load(file)


def test_shares_count_the_tokens_that_packing_adds(folder: Path) -> None:
    ps.write(ps.from_sequence([{"text": "one two " * 9} for _ in range(40)]), folder / "long")
    text = "unit: tokens\nsources: {texts: {path: texts, weight: 70}, long: {path: long, weight: 30}}\n"
    file = write(
        folder, "eos", f"{text}horizon: {{tokens: 4000}}\npack: {{length: 16, eos: 3}}", COUNTED
    )
    target = open_target(file)
    for row in rows(target, target.horizon(None)):
        wanted = 0.7 if row.source == "texts" else 0.3
        assert row.requested == pytest.approx(wanted)
        assert row.share == pytest.approx(wanted, abs=0.01)


@pytest.mark.parametrize("method", ["first_fit", "best_fit", "best_fit, rows: 8"])
@pytest.mark.parametrize("unit", ["samples", "tokens"])
def test_plans_of_truncated_rows_count_what_is_left(folder: Path, method: str, unit: str) -> None:
    for name, size in (("short", 4), ("cut", 40)):
        ps.write(ps.from_sequence([{"text": "one " * size} for _ in range(40)]), folder / name)
    file = write(
        folder,
        "cut",
        f"unit: {unit}\nhorizon: {{steps: 8}}\nstop: first_exhausted\nglobal_batch_size: 1\n"
        f"pack: {{length: 16, method: {method}, long: truncate, eos: 3}}\n"
        "sources: {short: {path: short, weight: 1}, cut: {path: cut, weight: 3}}",
        COUNTED,
    )
    target = open_target(file)
    found = {row.source: row for row in rows(target, target.horizon(None))}
    wanted = 0.25 if unit == "tokens" else 5 / (5 + 3 * 16)
    assert found["short"].requested == pytest.approx(wanted, abs=0.001)
    for row in found.values():
        assert row.epochs == pytest.approx(row.samples / 40)


PACKS = {
    "no end": "length: 16",
    "eos": "length: 16, eos: 3",
    "bos and eos": "length: 16, bos: 4, eos: 3",
    "multiple": "length: 16, eos: 3, pad_to_multiple: 8",
    "truncate": "length: 4, method: first_fit, long: truncate",
}


@pytest.mark.parametrize("unit", ["samples", "tokens"])
@pytest.mark.parametrize("counted", ["true", "false"])
@pytest.mark.parametrize("pack", PACKS)
def test_stages_begin_at_their_step_whatever_packing_adds(
    folder: Path, pack: str, counted: str, unit: str
) -> None:
    for name, size in (("first", 5), ("second", 5)):
        word = "one " if name == "first" else "two "
        ps.write(ps.from_sequence([{"text": word * size} for _ in range(300)]), folder / name)
    file = write(
        folder,
        "staged",
        f"unit: {unit}\nhorizon: {{steps: 60}}\nglobal_batch_size: 2\npack: {{{PACKS[pack]}}}\n"
        "sources: {first: {path: first, weight: 1}, second: {path: second, weight: 0}}\n"
        "stages: [{until: 50%}, {weights: {first: 0, second: 1}}]",
        f"{{tokenizer: t.json, counted: {counted}}}",
    )
    batches = [set(batch["tokens"].reshape(-1).tolist()) for batch in ps.load(file)]
    first = next(step for step, words in enumerate(batches) if 2 in words)
    last = max(step for step, words in enumerate(batches) if 1 in words)
    assert len(batches) == 60 and 29 <= first <= 30 and 29 <= last <= 30


def test_a_run_is_not_continued_with_samples_that_count_other_tokens() -> None:
    store = ps.from_tokens(np.arange(400), range(0, 401, 4), name="a")
    other = ps.from_tokens(np.arange(400), range(0, 401, 8), name="b")

    def make(options: dict[str, Any] | None) -> ps.Dataset:
        inputs = {"a": store.shuffle(), "b": other.shuffle()}
        return ps.mix(inputs, {"a": 1, "b": 1}, unit="tokens", packed=options).pack(16)

    with ps.Loader(make({"length": 16, "eos": 0})) as loader:
        next(iter(loader))
        state = loader.state_dict()
    for options in (None, {"length": 16}, {"length": 16, "eos": 0, "bos": 1}):
        with ps.Loader(make(options)) as loader:
            with pytest.raises(ps.StateError, match="packed"):
                loader.load_state_dict(state)
            with pytest.raises(ps.StateError, match="bos, eos and pad_to_multiple"):
                loader.load_state_dict(state, on_mismatch="adopt")


def test_a_second_end_token_is_logged_once(folder: Path, caplog: Any) -> None:
    from penstock.engine.packing.row import (
        _warn_of_two_ends,  # pyright: ignore[reportPrivateUsage]
    )

    _warn_of_two_ends.cache_clear()
    ended = ps.from_sequence([np.array([1, 2, 3]), np.array([1, 3])] * 8)
    for ds, warnings in ((ended.pack(4, eos=2), 0), (ended.pack(4, eos=3), 1)):
        with caplog.at_level(logging.WARNING):
            list(ds)
        assert len([each for each in caplog.records if "ends with the token" in each.message]) == (
            warnings
        )
