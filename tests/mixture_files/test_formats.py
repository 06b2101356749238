"""Mixture files name the datasets of other libraries as they name Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from foreign_formats import mds, saved, tfrecord
from penstock.mixture_files import dump, lint
from penstock.testing.asserts import assert_same_events, describe_difference

SOURCES = "sources:\n  m: {path: mds, weight: 1}\n  s: {path: both, split: train, weight: 1}\n  t: {path: examples.tfrecord, weight: 1}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    mds(tmp_path)
    tfrecord(tmp_path)
    datasets: Any = pytest.importorskip("datasets")
    both = datasets.DatasetDict({"train": datasets.load_from_disk(str(saved(tmp_path).path))})
    both.save_to_disk(str(tmp_path / "both"))
    (tmp_path / "mixture.yaml").write_text(SOURCES)
    return tmp_path


def test_they_are_checked_loaded_and_written(folder: Path) -> None:
    assert lint(folder / "mixture.yaml") == []
    loaded = ps.load(folder / "mixture.yaml")
    inputs = {"m": ps.read(folder / "mds"), "s": ps.read(folder / "both", split="train")}
    inputs["t"] = ps.read(folder / "examples.tfrecord")
    for i in range(50):
        (sample,) = loaded.plan.at(i)
        name, _, index = sample.key
        assert not describe_difference(loaded[i], inputs[str(name)][index])
    dump(ps.mix(inputs, seed=3), folder / "again.yaml")
    assert_same_events(
        [ps.load(folder / "again.yaml")[i] for i in range(50)],
        [ps.mix(inputs, seed=3)[i] for i in range(50)],
    )


def test_what_is_wrong_is_told_with_its_line(folder: Path) -> None:
    (folder / "mixture.yaml").write_text(
        SOURCES.replace("split: train", "split: dev").replace("mds", "both")
    )
    first, second = lint(folder / "mixture.yaml")
    assert (first.line, first.key) == (
        2,
        "sources.m.path",
    ) and "holds the splits train" in first.message
    assert (second.line, second.key) == (
        3,
        "sources.s.path",
    ) and "no split of this name" in second.message
