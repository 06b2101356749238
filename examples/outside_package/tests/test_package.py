"""Checks of each part; `pip install -e . pytest && pytest`."""

from pathlib import Path

import numpy as np
from fixed_numbers import format as fixed
from fixed_numbers.steps import Backwards, TwoToOne, UpTo

import penstock as ps
from penstock.testing import assert_fold, assert_order, assert_resumes, assert_rule, assert_source


def test_parts() -> None:
    assert_order(Backwards())
    assert_rule(TwoToOne(), sizes=(3, 3))
    assert_fold(UpTo(4))


def test_format(tmp_path: Path) -> None:
    np.arange(20, dtype="<u4").tofile(tmp_path / "a.fixed")
    assert fixed.files(tmp_path) == [tmp_path / "a.fixed"]
    assert_source(fixed.open(tmp_path / "a.fixed"))
    numbers = ps.read(tmp_path / "*.fixed", format=fixed.open, name="numbers")
    inputs = {"a": numbers.shuffle(), "b": numbers.reorder(Backwards())}
    mixture = ps.mix(inputs, rule=TwoToOne()).limit(30)
    assert_resumes(lambda: ps.Loader(mixture.fold(UpTo(3), size=lambda row: 1, build=list)))
