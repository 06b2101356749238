"""Many shuffled sources looked up together: what each would tell by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.base.random import FEISTEL
from penstock.ops.together import Together

SIZES = (FEISTEL, 9_000, 12_345, 20_000, 8_000, 30_011)


def flows() -> dict[str, ps.Dataset]:
    """Sources shuffled whole; the fifth is too small for it, the last is sliced."""
    out = dict[str, ps.Dataset]()
    for i, n in enumerate(SIZES):
        offsets = np.cumsum(np.random.default_rng(i).integers(0, 9, n + 1))
        out[f"s{i}"] = ps.from_tokens(np.zeros(offsets[-1], np.uint8), offsets - offsets[0]).shuffle(seed=3)
    out["s1"] = out["s1"].repeat()
    out["s5"] = out["s5"][5:]
    return out


def mixture() -> Any:
    return ps.mix(flows(), {f"s{i}": i + 1 for i in range(len(SIZES))}, seed=1).compiled


def test_samples_and_tokens_are_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    op, lengths = mixture().op, mixture().builder.lengths
    assert op._together.mine.tolist() == [True, True, True, True, False, False]
    wanted = mixture().op
    monkeypatch.setattr("penstock.ops.together._WORTH", 99)
    assert not wanted._together.mine.any()
    four = np.flatnonzero(np.isin(op.schedule.at(np.arange(4_000))[0], range(4)))[:300]
    for at in (0, 70_000, 10**6, 10**9):
        positions = np.sort(four[:, None] + np.asarray([at, at]), axis=None)
        found, want = (each.locate(positions, positions % 3) for each in (op, wanted))
        for column in ("leaf", "epoch", "index", "part"):
            assert np.array_equal(getattr(found, column), getattr(want, column)), (at, column)
        for each in (lengths, lengths.nearly, lengths.about):
            for position in (at, at + 777):
                out, by_each = np.zeros((2, len(SIZES)), np.int64)
                op.tokens(position, each, out)
                wanted.tokens(position, each, by_each, 2)
                assert (abs(2 * out - by_each) <= (2 if each is lengths.about else 0)).all(), at


def test_it_is_for_a_few_samples_of_many_sources() -> None:
    inputs = mixture().op.inputs
    together = Together(inputs)
    source = np.zeros(5_000, np.int64)
    assert together.locate(source, np.arange(5_000), source) is None, "by itself it is as fast"
    assert together.locate(source[:5], np.arange(5), source[:5]) is not None
    assert together.locate(source[:5] + 5, np.arange(5), source[:5]) is None, "another kind of input"
    assert not Together(inputs[:3]).mine.any()
