"""Iterating in the workers of a torch `DataLoader`: every one of them would give everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

import penstock as ps
from penstock.engine.base.machine import detect_dataloader_worker

pytestmark = pytest.mark.filterwarnings(
    "ignore:os.fork"
)  # JAX warns, where another test has loaded it


class Wrapped(IterableDataset[Any]):
    """A torch wrapper around an iterable, as users write it."""

    def __init__(self, give: Callable[[], Any]) -> None:
        self._give = give

    def __iter__(self) -> Iterator[Any]:
        return iter(self._give())


def through(give: Callable[[], Any], workers: int) -> list[Any]:
    loading: Any = DataLoader(
        Wrapped(give), batch_size=None, num_workers=workers, multiprocessing_context="fork"
    )
    batches = iter(loading)
    try:
        return list(batches)
    finally:  # left to the garbage collector after an error, torch waits 5 seconds for each worker
        batches._shutdown_workers()


numbers = ps.from_sequence(range(12)).shuffle(seed=1)
before = ps.Loader(numbers, rank=0, world_size=1)


def number() -> int:
    here = detect_dataloader_worker()
    assert here is not None
    return here[0]


def share() -> ps.Loader:
    return ps.Loader(numbers, rank=number(), world_size=2)


def half() -> ps.Loader:
    return ps.Loader(numbers.shard(number(), 2), rank=0, world_size=1)


@pytest.mark.parametrize(
    "give",
    [
        lambda: numbers,
        pytest.param(lambda: numbers.filter(lambda x: x > 3), marks=pytest.mark.slow),
        pytest.param(lambda: ps.Loader(numbers), marks=pytest.mark.slow),
        pytest.param(lambda: before, marks=pytest.mark.slow),  # the workers were there
    ],
)
def test_c4_iterating_in_several_workers_of_a_torch_dataloader_is_refused(
    give: Callable[[], Any],
) -> None:
    with pytest.raises(
        ps.ConfigError, match=r"worker \d of 2 of a torch DataLoader.*ps.Loader\(ds, workers=2\)"
    ):
        through(give, 2)


@pytest.mark.slow  # workers of torch
def test_c4_what_gives_each_worker_its_own_share_goes_on() -> None:
    assert through(lambda: numbers, 1) == list(numbers)
    assert sorted(through(share, 2)) == list(range(12))
    assert sorted(through(half, 2)) == list(range(12))
    mapped: Any = DataLoader(
        numbers,  # pyright: ignore[reportArgumentType]
        batch_size=None,
        num_workers=2,
        multiprocessing_context="fork",
    )
    assert list(mapped) == list(numbers)
