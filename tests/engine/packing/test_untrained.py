"""Documents of packed and padded rows in which no token carries loss are counted and logged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.engine.base.event_counts import EVENT_COUNTS
from penstock.text import Padded


def count_untrained() -> int:
    return EVENT_COUNTS.totals(["untrained"])["untrained"]


def make_chats(masks: list[list[int]], feature: str = "loss_mask") -> ps.Dataset:
    chats = [
        {
            "tokens": np.arange(1, len(mask) + 1),
            feature: np.asarray(mask) if feature == "loss_mask" else np.where(mask, 5, -100),
        }
        for mask in masks
    ]
    return ps.from_sequence(chats)


masks = st.lists(
    st.lists(st.integers(0, 1), min_size=1, max_size=30)
    | st.integers(1, 30).map(lambda size: [0] * size),
    min_size=1,
    max_size=12,
)


@examples(60)
@given(
    masks=masks,
    options=st.sampled_from(
        [
            {"method": "first_fit", "long": "truncate"},
            {"method": "first_fit"},
            {},
            {"method": "first_fit", "long": "truncate", "eos": 0, "bos": {"tokens": 99}},
        ]
    ),
    feature=st.sampled_from(["loss_mask", "labels"]),
    batch=st.integers(1, 3),
)
def test_documents_without_loss_are_counted(
    masks: list[list[int]], options: dict[str, Any], feature: str, batch: int
) -> None:
    before = count_untrained()
    pad: Any = {"labels": -100} if feature == "labels" else 0
    list(make_chats(masks, feature).pack(16, pad=pad, **options).batch(batch))
    room = 16 - ("eos" in options) - ("bos" in options)
    if options.get("long") == "truncate":
        kept = [mask[: room + ("eos" in options)] for mask in masks]
        first = 0 if "bos" in options else 1
        assert count_untrained() - before == sum(not any(mask[first:]) for mask in kept)
    elif options:
        whole = [mask for mask in masks if len(mask) <= 16]
        assert count_untrained() - before == sum(not any(mask[1:]) for mask in whole)
    else:
        starts = np.cumsum([0, *map(len, masks)])
        whole = [
            mask
            for mask, start in zip(masks, starts, strict=False)
            if start // 16 == (start + len(mask) - 1) // 16
        ]
        assert count_untrained() - before == sum(not any(mask[1:]) for mask in whole)


def test_padded_batches_count_too() -> None:
    before = count_untrained()
    list(make_chats([[1, 0, 0], [0, 1], [0, 0, 0, 0]]).batch(2, collate=Padded()))
    assert count_untrained() - before == 2


def test_loaders_log_and_count(caplog: pytest.LogCaptureFixture) -> None:
    rows = make_chats([[0] * 20 + [1]] * 4).pack(16, "first_fit", long="truncate").batch(2)
    with ps.Loader(rows, workers=2) as loader:
        before = loader.stats()["untrained"]
        list(loader)
        assert loader.stats()["untrained"] - before == 4
        assert loader.metrics()["data/untrained"] >= 4
