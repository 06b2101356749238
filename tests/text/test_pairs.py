"""Padded batches of preference pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_resumes
from penstock.text import PaddedPairs, pair_length


def pair(chosen: int, rejected: int, **other: Any) -> dict[str, Any]:
    sides = {"chosen": np.arange(1, chosen + 1), "rejected": np.arange(101, rejected + 101)}
    out = dict[str, Any](other)
    for side, tokens in sides.items():
        out[f"{side}_tokens"] = tokens.astype(np.int32)
        out[f"{side}_loss_mask"] = np.arange(len(tokens)) >= 2
    return out


def test_chosen_rows_come_first_and_all_are_padded_together() -> None:
    fields = ("input_ids", "attention_mask", "completion_mask", "labels", "position_ids")
    batch = PaddedPairs(fields, pad=9, multiple=4)([pair(3, 5, margin=0.5), pair(4, 2, margin=2)])
    assert batch["input_ids"].tolist() == [
        [1, 2, 3, 9, 9, 9, 9, 9],
        [1, 2, 3, 4, 9, 9, 9, 9],
        [101, 102, 103, 104, 105, 9, 9, 9],
        [101, 102, 9, 9, 9, 9, 9, 9],
    ]
    lengths = np.array([3, 4, 5, 2])[:, None]
    mask = np.arange(8) < lengths
    assert (batch["attention_mask"] == mask).all()
    assert (batch["completion_mask"] == (mask & (np.arange(8) >= 2))).all()
    assert (batch["position_ids"] == np.arange(8) * mask).all()
    learned = batch["completion_mask"] == 1
    assert (batch["labels"] == np.where(learned, batch["input_ids"], -100)).all()
    assert batch["margin"].tolist() == [0.5, 2]
    assert {batch[field].dtype.name for field in fields} == {"int64"}


def test_dtype_and_lists() -> None:
    lists = {name: value.tolist() for name, value in pair(3, 2).items()}
    batch = PaddedPairs(("labels",), dtype="int32")([lists])
    assert batch["labels"].dtype == "int32" and [*batch] == ["labels"]
    with pytest.raises(ps.DataError, match="PaddedPairs\\(dtype='int32'\\)"):
        PaddedPairs(dtype="int32")([{**lists, "chosen_tokens": [1, 2, 2**40]}])


def test_pairs_of_similar_length_share_a_batch() -> None:
    pairs = ps.from_sequence([pair(2 + i % 30, 2 + i * 7 % 30) for i in range(300)])
    assert [pair_length(p) for p in pairs.limit(3)] == [2, 9, 16]
    grouped = pairs.bucket_by_length(range(4, 32, 4), 8, size=pair_length, collate=PaddedPairs())
    shares = [
        np.mean([batch["attention_mask"].mean() for batch in batches])
        for batches in (pairs.batch(8, collate=PaddedPairs()), grouped)
    ]
    assert shares[1] > shares[0] + 0.1
    total = sum(int(batch["attention_mask"].sum()) for batch in grouped)
    assert total == sum(len(p[f"{side}_tokens"]) for p in pairs for side in ("chosen", "rejected"))


def test_pairs_are_batched_by_the_cost_of_their_padded_rows() -> None:
    rng = np.random.default_rng(3)
    sizes = np.minimum(rng.lognormal(4, 0.8, (300, 2)).astype(int) + 2, 512)
    pairs = [pair(*size) for size in sizes.tolist()]
    ds = ps.from_sequence(pairs).shuffle(seed=1)
    flat = ds.batch_by_tokens(1_024, size=pair_length, padded=True, collate=PaddedPairs())
    batches = list(flat)
    costs = [batch["input_ids"].size for batch in batches]
    assert max(costs) <= 2 * 1_024  # both sides have the length of the longest
    total = sum(int(batch["attention_mask"].sum()) for batch in batches)
    assert total == sum(len(p[f"{side}_tokens"]) for p in pairs for side in ("chosen", "rejected"))
    fixed = [
        batch["input_ids"].size
        for batch in ds.batch(len(pairs) // len(batches), collate=PaddedPairs())
    ]
    assert np.std(costs[:-1]) < np.std(fixed[:-1]) / 2
    assert_resumes(lambda: flat, steps=8, at_most=4)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"tokens": [1]}, "the sample has tokens: make pairs with"),
        (5, "the sample has a int: make pairs with"),
        (pair(2, 2) | {"chosen_loss_mask": [1]}, r"chosen_loss_mask is int64\[1\]"),
        (pair(2, 2) | {"chosen_tokens": [0.5, 1.5]}, r"chosen_tokens is float64\[2\]"),
    ],
)
def test_other_samples_are_refused(sample: Any, message: str) -> None:
    with pytest.raises(ps.DataError, match=message):
        PaddedPairs()([sample])


def test_unknown_fields_are_refused() -> None:
    with pytest.raises(ps.ConfigError, match="give a tuple of names"):
        PaddedPairs("input_ids")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ps.ConfigError, match="fields: 'ids'"):
        PaddedPairs(("ids",))  # pyright: ignore[reportArgumentType]
