"""Rows shared out by what they cost: the same rows in every step, as many for each rank, and none dearer than it must be."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.engine.streams.balance import balance_costs

STEPS = 6


def store(many: int = 30_000, most: int = 8192, name: str = "some") -> ps.Dataset:
    sizes = np.minimum(
        np.random.default_rng(3).lognormal(np.log(600) - 0.5, 1, many).astype(np.int64) + 1, most
    )
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
    return ps.from_tokens(np.zeros(offsets[-1], np.uint8), offsets, name=name)


def packed(length: int = 8192, rows: int = 8, method: Any = "best_fit") -> ps.Dataset:
    return store().shuffle(seed=1).repeat().pack(length, method).batch(rows)


def keys_of(
    ds: ps.Dataset, rank: int, ranks: int, steps: int = STEPS, **options: Any
) -> list[list[Any]]:
    with ps.Loader(ds, rank=rank, world_size=ranks, **options) as loader:
        return [loader.keys() for _ in islice(loader, steps)]


def squares(batch: Any) -> int:
    """Return the cost of a batch of packed rows for a rank: the sum of squared segment lengths."""
    total = 0
    for row in batch["segment_ids"]:
        total += int((np.bincount(row)[1:].astype(np.int64) ** 2).sum())
    return total


def loads(ds: ps.Dataset, ranks: int, **options: Any) -> np.ndarray:
    found = list[list[int]]()
    for rank in range(ranks):
        with ps.Loader(ds, rank=rank, world_size=ranks, **options) as loader:
            found.append([squares(batch) for batch in islice(loader, STEPS)])
    return np.asarray(found).T


@given(st.lists(st.integers(0, 99), min_size=1, max_size=12), st.integers(1, 6))
def test_every_rank_gets_as_many_rows_and_every_row_goes_to_one(
    costs: list[int], ranks: int
) -> None:
    all_of = costs * ranks
    bins = balance_costs(all_of, ranks)
    assert [len(rows) for rows in bins] == [len(costs)] * ranks
    assert sorted(row for rows in bins for row in rows) == list(range(len(all_of)))


def test_ranks_carry_equal_loads() -> None:
    ds = packed()
    even = loads(ds, 8, balance="squares")
    assert (even.max(axis=1) / even.mean(axis=1) - 1).max() < 0.02
    random = loads(ds, 8)
    assert (random.max(axis=1) / random.mean(axis=1) - 1).min() > 0.05, "which is not so by chance"
    assert even.sum(axis=1).tolist() == random.sum(axis=1).tolist(), (
        "the rows of every step are the same"
    )


@pytest.mark.parametrize("balance", ["tokens", "squares", lambda lengths: lengths // 7])
@pytest.mark.parametrize(
    "ds",
    [packed(512, 4), packed(512, 3, "concat_split"), store(400).shuffle().batch(5, collate=list)],
)
def test_the_steps_are_those_of_any_other_run_and_go_on_anywhere(
    ds: ps.Dataset, balance: Any
) -> None:
    ranks = 3
    balanced = [keys_of(ds, rank, ranks, balance=balance) for rank in range(ranks)]
    plain = [keys_of(ds, rank, ranks) for rank in range(ranks)]
    for step in range(STEPS):
        given_ = sorted(key for rank in balanced for key in rank[step])
        assert given_ == sorted(key for rank in plain for key in rank[step])
    for stop in (1, 3, 5):
        for rank in range(ranks):
            with ps.Loader(ds, rank=rank, world_size=ranks, balance=balance) as loader:
                for _ in islice(loader, stop):
                    pass
                state = loader.state_dict()
            with ps.Loader(ds, rank=rank, world_size=ranks, balance=balance, workers=2) as loader:
                loader.load_state_dict(state)
                assert [loader.keys() for _ in islice(loader, STEPS - stop)] == balanced[rank][
                    stop:
                ]


def test_every_rank_has_its_share_of_every_source() -> None:
    flows = {name: store(4000, name=name).shuffle(seed=i).repeat() for i, name in enumerate("ab")}
    ds = ps.mix(flows, {"a": 0.4, "b": 0.6}, seed=1).batch(1)
    many = [
        sum(key[0] == "a" for item in keys_of(ds, rank, 5, 400, balance="tokens") for key in item)
        for rank in range(5)
    ]
    assert all(abs(n - 160) < 4 * np.sqrt(400 * 0.24) for n in many), many


@pytest.mark.parametrize(
    ("ds", "options", "why"),
    [
        (packed(512), {"balance": "patches"}, "choose 'tokens' or 'squares'"),
        (packed(512), {"balance": "tokens", "remainder": "pad"}, "completes a short one"),
        (
            ps.from_sequence(range(9)).filter(bool).repeat().batch(2),
            {"balance": "tokens"},
            "needs random access",
        ),
        (
            ps.from_sequence(range(9)).batch(2),
            {"balance": "tokens"},
            "lengths of 'data' are not known",
        ),
        (
            packed(512),
            {"balance": lambda lengths: lengths / 2},
            "return one whole number for each length",
        ),
    ],
)
def test_what_cannot_be_balanced_is_refused(ds: ps.Dataset, options: Any, why: str) -> None:
    with (
        pytest.raises((ps.ConfigError, ps.IndexedError), match=why),
        ps.Loader(ds, rank=0, world_size=2, **options) as loader,
    ):
        next(iter(loader))


def test_items_that_are_taken_are_not_shared_out() -> None:
    with ps.Loader(packed(512), rank=0, world_size=2, balance="tokens") as loader:
        with pytest.raises(ps.ConfigError, match="leave out balance="):
            loader.lease(1)
