"""Epochs and shuffles of the Hugging Face datasets that mixtures become."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import datasets
import numpy as np
import pytest
from datasets.distributed import split_dataset_by_node

import penstock as ps
from penstock.compat.easydata import block_mixture_interleave


def rows(first: int, count: int) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"x": [first + i for i in range(count)]})


def tables(**options: Any) -> Any:
    inputs = {"a": rows(0, 60), "b": rows(1000, 40)}
    return block_mixture_interleave(inputs, block_size=10, **{"stop": "all_exhausted", **options})


def streams() -> Any:
    inputs = {"a": rows(0, 60).to_iterable_dataset(3), "b": rows(1000, 40).to_iterable_dataset()}
    return block_mixture_interleave(inputs, block_size=10, stop="all_exhausted")


def read(dataset: Any) -> list[int]:
    return [row["x"] for row in dataset]


@pytest.mark.parametrize("make", [tables, streams])
@pytest.mark.parametrize("epoch", [0, 2])
def test_a_shuffle_resumes_exactly(make: Callable[[], Any], epoch: int) -> None:
    # The rows in Hugging Face's buffer were lost: a resume in the middle of 100 rows left out 25.
    def shuffled() -> Any:
        made = make().shuffle(seed=3, buffer_size=25)
        made.set_epoch(epoch)
        return made

    whole = shuffled()
    iterator = iter(whole)
    seen = [next(iterator)["x"] for _ in range(33)]
    state = json.loads(json.dumps(whole.state_dict()))
    rest = [row["x"] for row in iterator]
    assert sorted(seen + rest) == sorted(read(make())) != seen + rest
    resumed = shuffled()
    resumed.load_state_dict(state)
    assert read(resumed) == rest


def test_every_epoch_has_another_order() -> None:
    # `set_epoch` did nothing: every pass had the order of the first.
    shuffled, orders = tables().shuffle(buffer_size=25), list[list[int]]()
    for epoch in range(3):
        shuffled.set_epoch(epoch)
        orders.append(read(shuffled))
    assert len({*map(tuple, orders)}) == 3 and len({*map(tuple, map(sorted, orders))}) == 1
    shuffled.set_epoch(1)
    assert read(shuffled) == orders[1]
    with ps.Loader(ps.Dataset(shuffled._ex_iterable.tree)) as loader:
        assert [[row["x"] for row in loader] for _ in range(3)] == orders  # passes of a loader


def test_a_mixture_of_shuffled_datasets_has_another_order_too() -> None:
    inputs = {"a": ps.from_sequence([{"x": i} for i in range(30)]).shuffle(1), "b": rows(100, 30)}
    mixed = block_mixture_interleave(inputs, stop="all_exhausted", block_size=10)
    first = read(mixed)
    mixed.set_epoch(1)
    second = read(mixed)
    assert sorted(first) == sorted(second) and first != second
    assert [x for x in first if x >= 100] == [x for x in second if x >= 100]


def test_ranks_of_a_shuffle_share_out_its_rows() -> None:
    shuffled = tables().shuffle(seed=1, buffer_size=25)
    ranks = [read(split_dataset_by_node(shuffled, rank, 4)) for rank in range(4)]
    assert [len(rank) for rank in ranks] == [25] * 4
    assert sorted(x for rank in ranks for x in rank) == sorted(read(shuffled))


def test_seeds_of_a_shuffle() -> None:
    default, seeded = read(tables().shuffle()), read(tables().shuffle(seed=0))
    generated = read(tables().shuffle(generator=np.random.default_rng(0)))
    assert default == seeded == generated != read(tables().shuffle(seed=1))
    endless = tables(stop="restart").shuffle(buffer_size=9)
    first = read(endless.take(50))
    endless.set_epoch(1)  # an endless mixture has one pass
    assert read(endless.take(50)) == first
