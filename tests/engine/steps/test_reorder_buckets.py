"""A shuffle by buckets: any sum of lengths, of any pass, and added up once for all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.engine.orders import BucketShuffle
from penstock.engine.steps.compiled import Compiled
from penstock.engine.steps.reorder_buckets import BucketSums
from penstock.engine.steps.tokens import Lengths, Sums

SIZES = st.lists(st.integers(0, 50), min_size=1, max_size=200)


def store(sizes: Any, name: str = "some") -> ps.Dataset:
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return ps.from_tokens(np.arange(offsets[-1]), offsets, name=name)


@examples(200)
@given(SIZES, st.integers(1, 9), st.integers(1, 5), st.integers(0, 3), st.integers(0, 1 << 40))
def test_sums_are_those_of_the_lengths_that_lie_there(
    sizes: list[int], rows: int, together: int, seed: int, epoch: int
) -> None:
    op = Compiled(store(sizes).reorder(BucketShuffle(rows, together), seed).tree).op
    lengths, n = Lengths([np.asarray(sizes)]), len(sizes)
    assert isinstance(op.summed(lengths), BucketSums)
    rows_ = op.locate(np.arange(n) + epoch * n)
    want = epoch * sum(sizes) + np.concatenate([[0], np.cumsum(lengths.of(rows_))])
    for place in range(n + 1):
        found = np.zeros(1, np.int64)
        op.tokens(epoch * n + place, lengths, found)
        assert found[0] == want[place]


@examples(100)
@given(SIZES, st.integers(1, 9), st.integers(1, 5), st.integers(0, 3), st.integers(0, 1 << 40))
def test_a_place_not_long_before_a_token_is_told_with_the_tokens_before_it(
    sizes: list[int], rows: int, together: int, seed: int, epoch: int
) -> None:
    op = Compiled(store(sizes).reorder(BucketShuffle(rows, together), seed).tree).op
    lengths, n = Lengths([np.asarray(sizes)]), len(sizes)
    sums, rows_ = op.summed(lengths), op.locate(np.arange(n) + epoch * n)
    before = np.concatenate([[0], np.cumsum(lengths.of(rows_))])
    for token in range(0, int(before[-1]), 7):
        place, tokens = sums.holding(epoch, token)
        assert before[place] == tokens <= token < before[min(place + rows, n)]


def test_lengths_are_added_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = list[int]()
    inner = BucketShuffle.rows_in_buckets

    def dealt(self: BucketShuffle, places: Any, n: int, key: int) -> Any:
        looked_up.append(len(places))
        return inner(self, places, n, key)

    sizes = np.random.default_rng(1).integers(1, 90, 30_000)
    ds = store(sizes).shuffle(seed=1, buckets=64).repeat().pack(512)
    ds.plan.at(0)
    monkeypatch.setattr(BucketShuffle, "rows_in_buckets", dealt)
    for row in (10, 5_000, 10**6, 10**12):
        assert sum(s.stop - s.start for s in ds.plan.at(row)) == 512  # pyright: ignore[reportOperatorIssue]
    assert sum(looked_up) < 30_000, "no pass is looked at whole again"


def test_over_what_has_another_order_in_every_pass_each_is_added_up() -> None:
    op = Compiled(store(range(40)).shuffle(seed=1).shuffle(seed=2, buckets=4).tree).op
    assert type(op.summed(Lengths([np.arange(40)]))) is Sums
    found, lengths = np.zeros(1, np.int64), Lengths([np.arange(40)])
    op.tokens(57, lengths, found)
    assert found[0] == lengths.of(op.locate(np.arange(57))).sum()


def test_neighbours_differ_from_pass_to_pass_and_are_dealt_at_random() -> None:
    op = Compiled(ps.from_sequence(range(4096)).shuffle(seed=1, buckets=32).tree).op
    first, second = (op.locate(np.arange(4096) + epoch * 4096).index for epoch in (0, 1))
    assert sorted(first.tolist()) == list(range(4096))
    assert (first != second).mean() > 0.99
    assert np.abs(np.diff(first)).mean() > 1000, "as far apart as in a full shuffle"


@pytest.mark.parametrize("options", [{"block": (2, 2)}, {"window": 3}])
def test_one_way_to_shuffle_at_a_time(options: Any) -> None:
    with pytest.raises(ps.ConfigError, match="give one of them"):
        ps.from_sequence(range(9)).shuffle(buckets=4, **options)
