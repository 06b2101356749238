"""Limits of prefetching, in bytes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.engine.streams.budget import Budget, ItemSize, estimate_bytes, estimate_total_bytes
from penstock.engine.streams.execution import Pace


def test_bytes_of_what_people_give() -> None:
    big = np.zeros(10_000, np.int64)
    assert 80_000 <= estimate_bytes(big) < 80_200
    assert 160_000 <= estimate_bytes({"a": big, "b": [big], "c": "text"}) < 161_000
    assert 10_000 <= estimate_bytes(b"x" * 10_000) < 10_200
    assert estimate_bytes([big] * 1_000) == pytest.approx(80_000_000, rel=0.01)
    loop: list[Any] = []
    loop.append(loop)
    assert estimate_bytes(loop) < 10_000


def test_a_weight_grows_at_once_and_shrinks_slowly() -> None:
    weight = ItemSize()
    assert weight.items(1) == 1 << 30
    weight.learn(estimate_total_bytes([b"x" * 1_000] * 100), 100)
    assert weight.items(100_000) == pytest.approx(100, rel=0.1)
    weight.learn(100_000, 1)
    assert weight.items(100_000) < 3
    weight.learn(64, 1)
    assert weight.items(100_000) < 3
    weight.learn(estimate_total_bytes([]), 5)
    assert weight.items(1) == 1


def test_a_budget_comes_back() -> None:
    budget = Budget(1_000)
    assert budget.fits(10**9)  # nothing is known yet
    budget.item_size.learn(100, 1)
    for _ in range(5):
        budget.reserve(100)
    assert not budget.fits(1)
    for _ in range(5):
        budget.release(100)
    assert budget.used == 0 and budget.fits(5)


def test_a_budget_begins_more_only_with_what_was_seen() -> None:
    budget = Budget(1 << 30)
    budget.item_size.learn(1, 1)  # the others may be larger
    while budget.fits(1):
        budget.reserve(budget.item_size.mean)
    assert budget.units == 65
    for _ in range(35):
        budget.item_size.learn(1, 1)
    while budget.fits(1):
        budget.reserve(budget.item_size.mean)
    assert budget.units == 100


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": 2}, {"workers": 2, "lanes": 4}])
def test_what_is_made_ahead_stays_within_bounds(options: Any) -> None:
    """Samples of 100 kB, at most 2 MB ahead: few are alive at any moment."""
    alive, most, lock = [0], [0], threading.Lock()

    class Sample:
        def __init__(self, x: int) -> None:
            self.nbytes, self.x = 100_000, x
            with lock:
                alive[0] += 1
                most[0] = max(most[0], alive[0])

        def __del__(self) -> None:
            with lock:
                alive[0] -= 1

    ds = ps.from_sequence(range(2_000)).map(Sample)
    if "lanes" in options:
        ds = ds.filter(lambda sample: sample.x % 2)
    with ps.Loader(ds, prefetch_bytes=2_000_000, **options) as loader:
        seen = [sample.x for sample in loader]
    assert seen == [x for x in range(2_000) if x % 2 or "lanes" not in options]
    assert most[0] <= 30
    most[0] = 0
    with ps.Loader(ds, prefetch_bytes=200_000_000, **options) as loader:
        assert sum(1 for _ in loader) == len(seen)
    assert most[0] > 30  # it is the bound that held them back


def test_a_sample_larger_than_the_bound_passes_alone() -> None:
    ds = ps.from_sequence(range(20)).map(lambda x: np.full(1_000_000, x))
    with ps.Loader(ds, workers=2, prefetch_bytes=1_000) as loader:
        assert [int(item[0]) for item in loader] == list(range(20))


def test_the_pace_grows_while_that_makes_items_cheaper_and_shrinks_where_they_are_dear() -> None:
    pace = Pace(16)
    for size in (2, 4, 8, 16, 16):
        pace.learn(pace.size, 0.001)
        assert pace.size == size
    pace.learn(16, 0.003)  # 0.19 ms each
    assert pace.size == 16
    pace.learn(16, 0.009)
    assert pace.size == 8
    pace.learn(8, 0.003)  # cheaper than it was
    assert pace.size == 16
    pace = Pace()
    pace.learn(1, 0.003)
    pace.learn(2, 0.0035)
    assert pace.size == 4
    pace.learn(4, 0.0071)  # neither cheap nor dear
    assert pace.size == 4
    pace.learn(4, 0.0039)
    pace.learn(8, 0.0079)
    assert pace.size == 8
    for _ in range(5):
        pace.learn(pace.size, 0.1)
    assert pace.size == 1
    pace = Pace()
    pace.learn(256, 10.0)  # after the first items, units may take longer
    for size, seconds in ((2, 0.0079), (4, 0.0078), (4, 0.0159), (2, 0.017)):
        pace.learn(pace.size, seconds)
        assert pace.size == size


class Attributes(dict[str, Any]):
    """A mapping whose keys are attributes, as people write it: what is missing is a KeyError."""

    __getattr__ = dict.__getitem__


class Refusing:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def test_samples_may_raise_anything_when_they_are_asked_for_what_they_lack() -> None:
    assert estimate_bytes(Attributes(a="x" * 1_000)) >= 1_000
    assert estimate_bytes(Refusing()) > 0
    for samples in ([Attributes(a=i) for i in range(9)], [Refusing() for _ in range(9)]):
        with ps.Loader(ps.from_sequence(samples)) as loader:
            assert [id(x) for x in loader] == [id(x) for x in samples]
            assert loader.state_dict()
