"""`split` in a mixture file: what is held out is never trained on, and can be loaded as a dataset of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.mixture_files import lint, read_model

MIXTURE = """
seed: 3
split: {held_out: 20%}
sources:
  code: {path: code, weight: 2, max_epochs: 3}
  text: {path: text, weight: 1, split: {held_out: 4, by: position}}
  days: {path: code/0.parquet, weight: 1, columns: [day], split: {held_out: 0.3, column: lang}}
horizon: {samples: 300}
"""


def of(data: Path) -> dict[str, ps.Dataset]:
    return {
        "code": ps.read(data / "code", name="code"),
        "text": ps.read(data / "text", name="text"),
        "days": ps.read(data / "code/0.parquet", columns=["day"], name="days"),
    }


def halves(data: Path, side: int) -> dict[str, ps.Dataset]:
    inputs = of(data)
    return {
        "code": inputs["code"].split("20%")[side].shuffle(),
        "text": inputs["text"].split(4, by="position")[side].shuffle(),
        "days": inputs["days"].split(0.3, column="lang")[side].shuffle(),
    }


def keys(ds: ps.Dataset) -> list[tuple[str, int]]:
    return [(sample.source, sample.index) for sample in ds.plan.at(slice(0, len(ds)))]


def rows_of(ds: ps.Dataset) -> list[str]:
    return sorted(
        row["__source__"] + str(row.get("text", row.get("day"))) for row in ds.with_source()
    )


def test_the_file_means_the_calls(data: Path, write: Any) -> None:
    path = write(MIXTURE)
    weights = {"code": 2, "text": 1, "days": 1}
    train = ps.mix(halves(data, 0), weights, seed=3, max_epochs={"code": 3})
    assert list(ps.load(path).limit(300)) == list(train.limit(300))
    held_out = ps.mix(halves(data, 1), seed=3, stop="all_exhausted", temperature=1.0)
    assert ps.load(path, part="held_out").tree.description() == held_out.tree.description()


def test_every_row_is_in_one_part(data: Path, write: Any) -> None:
    path = write(MIXTURE)
    held_out = ps.load(path, part="held_out")
    assert len(keys(held_out)) == len(set(keys(held_out))), "each once"
    whole = ps.mix(of(data), stop="all_exhausted")
    trained = ps.mix(halves(data, 0), stop="all_exhausted")
    assert sorted([*rows_of(trained), *rows_of(held_out)]) == rows_of(whole)


def test_nested_mixtures_hold_out_too(data: Path, write: Any) -> None:
    path = write(
        "split: {held_out: 10%}\nsources: {in: {mixture: {sources: {a: {path: code}, b: {path: text}}}}}"
    )
    held_out = ps.load(path, part="held_out")
    assert {source for source, _ in keys(held_out)} == {"in/a", "in/b"} and len(held_out) == 10


def test_nothing_held_out_says_so(write: Any) -> None:
    with pytest.raises(ps.ConfigError, match="nothing is held out; add a split, such as split"):
        ps.load(write("sources: {a: {path: code}}"), part="held_out")
    with pytest.raises(ps.ConfigError, match="load.part='test'.: choose 'train' or 'held_out'"):
        ps.load(write("sources: {a: {path: code}}"), part="test")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("side", [0, 1])
def test_it_comes_back(data: Path, side: int) -> None:
    ds = ps.mix({**halves(data, side), "third": ps.read(data / "code").split(7)[side]}, seed=1)
    ps.dump(ds, data / "again.yaml")
    assert ps.load(data / "again.yaml").tree.description() == ds.tree.description()
    text = (data / "again.yaml").read_text()
    assert "held_out: 20%" in text and "held_out: 7" in text and "hash: [" in text


def test_a_description_comes_back(data: Path, write: Any) -> None:
    model, problems = read_model(write(MIXTURE))
    assert model is not None and not problems
    ps.dump(model, data / "again.yaml")
    assert read_model(data / "again.yaml") == (model, [])


WRONG = {
    "split: {held_out: 0}": "split.held_out: expected a whole number at least 1, not 0",
    "split: {held_out: all}": "split.held_out: expected a share such as 0.5% or a number of rows, not 'all'",
    "split: {held_out: 100%}": "a share such as 0.5%",
    "split: {by: position}": "split: 'held_out' is missing",
    "split: {held_out: 1%, part: test}": "'test' is not one of train, held_out",
    "split: train": "split: expected a mapping",
}


@pytest.mark.parametrize("text", WRONG)
def test_mistakes_are_named(text: str, write: Any) -> None:
    problems = lint(write(f"sources: {{a: {{path: code}}}}\n{text}"))
    assert any(WRONG[text] in str(problem) for problem in problems), problems


def test_lint_counts_what_is_left_and_knows_the_column(write: Any) -> None:
    path = write("horizon: {samples: 480}\nsplit: {held_out: 20%}\nsources: {a: {path: code}}")
    assert "read about 10.0 times over the run (48 rows)" in str(lint(path)[0])
    path = write("split: {held_out: 20%, column: lnag}\nsources: {a: {path: code}}")
    assert "there is no column 'lnag'; did you mean 'lang'?" in str(lint(path)[0])


def test_a_source_too_small_to_hold_anything_out_is_only_trained_on(write: Any) -> None:
    text = "split: {held_out: 2%}\nsources: {few: {path: code, slice: [3]}, many: {path: text/0.jsonl, split: {held_out: 40%}}}"
    held_out = ps.load(write(text), part="held_out")
    assert len(held_out) == 8 and {source for source, _ in keys(held_out)} == {"many"}
    with pytest.raises(ps.ConfigError, match="the sources are too small for the share"):
        ps.load(
            write("split: {held_out: 2%}\nsources: {few: {path: code, slice: [3]}}"),
            part="held_out",
        )
