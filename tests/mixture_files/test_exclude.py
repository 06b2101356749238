"""`exclude` in a mixture file: what is named in a file of keys is never given, however many there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.engine.orders import AllBut
from penstock.errors import ConfigError
from penstock.mixture_files import lint, read_model
from penstock.mixture_files.exclude import read_keys
from penstock.testing import assert_resumes

MIXTURE = """
exclude: bad.jsonl
split: {held_out: 20%}
sources:
  code: {path: code, weight: 2}
  in: {mixture: {sources: {text: {path: text}}}, weight: 1}
stop: all_exhausted
batch: {size: 4, collate: list}
"""


def keyed(data: Path, keys: list[Any]) -> None:
    (data / "bad.jsonl").write_text("".join(json.dumps(key) + "\n" for key in keys))


def given_by(ds: ps.Dataset) -> set[tuple[str, int]]:
    return {(sample.source, sample.index) for sample in ds.plan.at(slice(0, len(ds)))}


def test_what_is_named_is_never_given_in_either_part(data: Path, write: Any) -> None:
    bad = [["code", i] for i in range(0, 60, 3)] + [["in/text", 2, 7], ["in/text", 7]]
    keyed(data, bad)
    path = write(MIXTURE)
    gone = {("code", i) for i in range(0, 60, 3)} | {("in/text", 7)}
    whole = {("code", i) for i in range(60)} | {("in/text", i) for i in range(40)}
    train, held_out = ps.load(path), ps.load(path, part="held_out")
    assert given_by(train) | given_by(held_out) == whole - gone and not given_by(train) & given_by(
        held_out
    )
    assert train.plan.epochs(len(train)) == {"code": 1.0, "in/text": 1.0}
    with ps.Loader(train) as loader:
        seen = [key for _ in loader for key in loader.keys()]
    assert {(source, index) for source, _, index in seen} == given_by(train)
    assert_resumes(lambda: ps.load(path), at_most=8)


def test_nothing_else_moves_between_the_parts(data: Path, write: Any) -> None:
    keyed(data, [["code", 1], ["code", 2]])
    few = given_by(ps.load(write(MIXTURE), part="held_out"))
    keyed(data, [["code", 1], ["code", 2], ["code", 30], ["code", 31]])
    assert given_by(ps.load(write(MIXTURE), part="held_out")) == few - {("code", 30), ("code", 31)}


def test_another_file_of_keys_is_another_pipeline(data: Path, write: Any) -> None:
    found = list[Any]()
    for keys in ([["code", 1]], [["code", 2]], [["code", 2], ["code", 2]]):
        keyed(data, keys)
        found.append(ps.load(write(MIXTURE)).tree.description())
    assert found[0] != found[1] and found[1] == found[2]


@pytest.mark.slow
def test_a_million_keys_are_a_digest(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\n" * 1_100_000)
    (tmp_path / "bad.jsonl").write_text("".join(f'["a", {i}]\n' for i in range(1_000_000)))
    (tmp_path / "m.yaml").write_text(
        "exclude: bad.jsonl\nstop: all_exhausted\nsources: {a: {path: a.txt}}\n"
    )
    ds = ps.load(tmp_path / "m.yaml")
    assert (
        len(ds) == 100_000
        and min(sample.index for sample in ds.plan.at(slice(0, 1_000))) >= 1_000_000
    )
    assert len(json.dumps(ps.Loader(ds).state_dict())) < 4_000


@examples(100)
@given(
    st.integers(1, 60).flatmap(
        lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), max_size=n - 1))
    )
)
def test_the_order_is_what_is_left(drawn: tuple[int, set[int]]) -> None:
    n, gone = drawn
    order, left = AllBut(np.asarray([*gone], np.int64)), [i for i in range(n) if i not in gone]
    assert order.down(np.arange(2 * len(left)), n, 0)[0].tolist() == left * 2
    up = order.up(np.arange(-2, n + 2), n, 0)
    assert (np.flatnonzero(up >= 0) - 2).tolist() == left and up[up >= 0].tolist() == list(
        range(len(left))
    )


def test_it_comes_back(data: Path, write: Any) -> None:
    keyed(data, [["code", 1]])
    model, problems = read_model(write(MIXTURE))
    assert model is not None and not problems
    ps.dump(model, data / "again.yaml")
    assert read_model(data / "again.yaml") == (model, [])
    with pytest.raises(ps.ConfigError, match="code: without 1 row cannot be written"):
        ps.dump(ps.load(data / "again.yaml"), data / "never.yaml")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            [["cod", 1]],
            r"mixture.yaml, line 2, exclude: .*bad.jsonl names \['cod'\]; did you mean 'code'",
        ),
        (
            [["code", 60]],
            "line 2, exclude: source 'code': row 60 does not exist; the source has 60",
        ),
        ([["code", -1]], "row -1 does not exist"),
        ([["code"]], "line 2, exclude: .*bad.jsonl, line 1: .* is not a key"),
        ([["code", i] for i in range(60)], "line 2, exclude: source 'code': all rows are excluded"),
    ],
)
def test_mistakes_are_named(data: Path, write: Any, keys: list[Any], said: str) -> None:
    keyed(data, keys)
    with pytest.raises(ps.ConfigError, match=said):
        ps.load(write(MIXTURE))
    keyed(data, [["code", 1], ["in/text", 99]])
    with pytest.raises(ps.ConfigError, match="row 99 does not exist"):
        ps.load(write(MIXTURE))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file or directory"),
        (b"\xff\xfe", "not a text file"),
        (b'["cod", 1]\n', "names ['cod']; did you mean 'code'?"),
        (b'["never", 1]\n', "names ['never']; there are ['code', 'in/text']"),
        (b'["code", 1]\n\n', "line 2: '' is not a key"),
        (b'["code", 60]\n', "source 'code': row 60 does not exist; the source has 60"),
    ],
)
def test_lint_lists_them_with_file_line_and_key(
    content: bytes | None, said: str, data: Path, write: Any
) -> None:
    if content is not None:
        (data / "bad.jsonl").write_bytes(content)
    (problem,) = lint(path := write(MIXTURE))
    assert (problem.line, problem.key, problem.severity) == (2, "exclude", "error")
    assert said in problem.message
    with pytest.raises(ps.ConfigError, match="mixture.yaml, line 2, exclude: "):
        ps.load(path)
    if content is None or b"60" not in content:
        path = write(MIXTURE.replace("code, weight", "code, wieght: 1, weight"))
        assert {"exclude", "sources.code.wieght"} <= {each.key for each in lint(path)}


@pytest.mark.parametrize(
    "line",
    ['["a", true]', '["a", 1.9]', '["a", "5"]', "[3, 5]", '"a5"', '["a", 1, 2, 3]', "[" * 9_000],
)
def test_a_line_that_is_no_key_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    path.write_text(f'["a", 1]\n{line}\n')
    with pytest.raises(ConfigError, match=r"line 2: .* is not a key"):
        read_keys(path)


def test_lines_of_keys_end_with_a_newline_alone(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    path.write_text('["a\u2028b", 1]\n["c", 0, 2]', encoding="utf-8")
    assert read_keys(path) == [("a\u2028b", 1), ("c", 2)]
