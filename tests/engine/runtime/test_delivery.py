"""Finished items are delivered at once; the consumer never waits for later ones."""

from __future__ import annotations

import threading

import numpy as np

import penstock as ps


def test_an_item_that_is_ready_does_not_wait_for_the_next() -> None:
    given = [threading.Event() for _ in range(61)]
    given[0].set()

    def one(x: int) -> np.ndarray:
        if x % 4 == 2:  # is made once the one before it was taken
            assert given[x].wait(10)
        return np.full(125, x)

    ds = ps.from_sequence(range(60)).map(one)
    with ps.Loader(
        ds, workers=2, prefetch=4, prefetch_bytes=17_600
    ) as loader:  # four pieces of work, an item each
        for i, item in enumerate(loader):
            assert item[0] == i
            given[i + 1].set()
    assert given[60].is_set()
