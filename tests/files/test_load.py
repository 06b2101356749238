"""What `ps.load` gives: the same datasets as the calls in Python that the file stands for."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.recipe import describe, fingerprint
from penstock.testing import assert_resumes


def same(ds: ps.Dataset, other: ps.Dataset, n: int = 200) -> None:
    assert fingerprint(describe(ds.flow)) == fingerprint(describe(other.flow))
    for got, want in zip(islice(ds, n), islice(other, n), strict=True):
        np.testing.assert_equal(got, want)


def of(data: Path, **more: Any) -> dict[str, ps.Dataset]:
    return {
        "code": ps.read(data / "code", name="code", **more).shuffle(),
        "text": ps.read(data / "text/*.jsonl", name="text").shuffle(),
    }


def test_plain_mixture(data: Path, write: Any) -> None:
    path = write(
        """
        seed: 7
        block_size: 10
        stop: all_exhausted
        sources:
          code: {path: code, weight: 3}
          text: {path: "text/*.jsonl", weight: 1}
        """
    )
    same(ps.load(path), ps.mix(of(data), {"code": 3, "text": 1}, seed=7, block_size=10, stop="all_exhausted"))


def test_relative_paths_are_relative_to_the_file(data: Path, write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write("sources: {text: {path: [../text/0.jsonl, ../text/1.jsonl]}}\nstop: all_exhausted\n", "sub/m.yaml")
    monkeypatch.chdir("/")
    assert len(ps.load(path)) == 40


def test_a_loaded_pipeline_resumes(write: Any) -> None:
    path = write(
        """
        seed: 1
        block_size: 8
        stop: first_exhausted
        sources:
          code: {path: code, weight: 2, where: {lang: py}}
          text: {path: text, weight: 1}
        batch: {size: 4, collate: list}
        """
    )
    assert_resumes(lambda: ps.load(path))
