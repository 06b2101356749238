"""A plan as Megatron's datasets, asked as its own sampler asks: the sampler's counting is written down here, since
Megatron-LM's training loop is no package and needs CUDA.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import penstock as ps
from penstock.integrations.megatron import PlannedRows, datasets_provider

ROWS = 37


def documents() -> ps.Dataset:
    flows = {
        name: ps.from_sequence(
            [{"tokens": np.full(5, base + i)} for i in range(40)], name=name
        ).shuffle()
        for name, base in (("a", 0), ("b", 100))
    }
    return ps.mix(flows, {"a": 2, "b": 1}, seed=2).limit(ROWS)


def single(consumed: int, total: int, micro: int, rank: int, ranks: int) -> Iterator[list[int]]:
    """Yield a rank's parts of all micro batches, as `--dataloader-type single` requests them."""
    for first in range(consumed, total - micro * ranks + 1, micro * ranks):
        yield [*range(first + rank * micro, first + (rank + 1) * micro)]


def run(rows: PlannedRows, consumed: int, steps: int, ranks: int, workers: int) -> list[list[int]]:
    """Micro batches of all ranks, step by step."""
    loaders: list[Any] = [
        iter(
            torch.utils.data.DataLoader(
                rows,  # pyright: ignore[reportArgumentType]
                batch_sampler=single(consumed, len(rows), 2, rank, ranks),  # pyright: ignore[reportArgumentType]
                num_workers=workers,
                multiprocessing_context="fork" if workers else None,
            )
        )
        for rank in range(ranks)
    ]
    return [
        [int(x) for loader in loaders for x in next(loader)["tokens"][:, 0]] for _ in range(steps)
    ]


@pytest.mark.filterwarnings("ignore:os.fork")  # JAX warns, where another test has loaded it
@pytest.mark.parametrize("workers", [0, 2])
def test_steps_are_those_of_the_plan_and_go_on_from_what_was_consumed_on_any_ranks(
    workers: int,
) -> None:
    rows, _, _ = datasets_provider(documents())((64, 0, 0))
    assert rows is not None and len(rows) == 64
    loader = ps.Loader(documents())
    plain = [int(row["tokens"][0]) for _ in range(2) for row in loader][:64]
    found = [x for step in run(rows, 0, 5, 2, workers) for x in step]
    found += [
        x for step in run(rows, len(found), 5, 4, workers) for x in step
    ]  # resumed on four ranks
    assert found == plain[: len(found)] and len(found) == 60


def test_the_provider_says_that_every_rank_makes_its_own_and_gives_what_was_asked_for() -> None:
    provide = datasets_provider(documents(), documents().limit(3))
    assert getattr(provide, "is_distributed")  # noqa: B009
    train, valid, test = provide((10, 7, 5), vp_stage=1)
    assert train is not None and valid is not None and test is None
    loader = ps.Loader(documents().limit(3))
    plain = [int(row["tokens"][0]) for _ in range(3) for row in loader]
    assert [int(valid[i]["tokens"][0]) for i in range(7)] == plain[:7]
    for row in (-1, 10):
        with pytest.raises(IndexError, match="of 10"):
            train[row]
    with pytest.raises(ps.IndexedError):
        datasets_provider(documents().filter(bool))((1, 0, 0))
    with pytest.raises(ps.ConfigError, match="has no rows"):
        datasets_provider(ps.from_sequence([]))((1, 0, 0))
