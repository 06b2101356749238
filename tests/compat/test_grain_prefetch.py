"""Items made ahead: same items, states of what was given out, errors in their place, on any scheduler."""

from __future__ import annotations

from time import sleep
from typing import Any

import pytest

import penstock as ps
from penstock.compat.grain.prefetch import PrefetchIterator
from penstock.engine.runtime.iterator import DatasetIterator
from penstock.errors import StateError
from penstock.stores.storage import override_world
from penstock.testing import SimulatedScheduler, assert_resumes


def dataset() -> ps.Dataset:
    return ps.from_sequence(range(40)).shuffle(seed=1).filter(lambda x: x % 3).batch(2)


def made(n: int = 3) -> PrefetchIterator:
    return PrefetchIterator(iter(dataset()), n)


@pytest.mark.parametrize("seed", range(15))
def test_order_and_states_on_a_scheduler_that_reorders(seed: int) -> None:
    plain = iter(dataset())
    with override_world(sched=SimulatedScheduler(seed, twice=0.3)):
        it = made(1 + seed % 5)
        for want in plain:
            assert next(it).tolist() == want.tolist()
            assert it.state_dict() == plain.state_dict()
        with pytest.raises(StopIteration):
            next(it)
        it.close()


@pytest.mark.parametrize("seed", range(10))
def test_a_thread_that_fails_loses_nothing(seed: int) -> None:
    with override_world(sched=SimulatedScheduler(seed, fail=0.3)):
        it, seen = made(), list[Any]()
        while True:
            try:
                seen.append(next(it).tolist())
            except OSError:
                continue
            except StopIteration:
                break
        it.close()
    assert seen == [x.tolist() for x in made()]


def test_resumes_like_what_is_behind_it() -> None:
    with override_world(sched=SimulatedScheduler(5)):
        assert_resumes(made)


def test_stages_stand_behind_each_other() -> None:
    it = PrefetchIterator(
        PrefetchIterator(
            DatasetIterator(ps.from_sequence(range(9)), workers=2), 2, lambda x: x + 1
        ),
        3,
        str,
    )
    assert [next(it) for _ in range(4)] == ["1", "2", "3", "4"]
    state = it.state_dict()
    assert len(list(it)) == 5
    it.load_state_dict(state)
    assert list(it) == ["5", "6", "7", "8", "9"]
    with pytest.raises(StateError):
        it.load_state_dict({"penstock": "no"})
    it.close()
    it.close()


def test_never_more_than_n_ahead() -> None:
    reads = list[int]()
    source = ps.from_iterable(lambda: (reads.append(i) or i for i in range(100)))
    with override_world(sched=SimulatedScheduler(3, twice=0)):
        it = PrefetchIterator(iter(source.filter(lambda x: True).batch(1)), 4)
        for i in range(60):
            next(it)
            assert len(reads) <= 2 * (i + 1) + 260
        it.close()


def test_two_units_a_worker_are_under_way_and_no_more() -> None:
    begun = list[int]()

    def slow(x: int) -> int:
        begun.append(x)
        sleep(0.05)  # so that a unit is one item
        return x

    it = DatasetIterator(ps.from_sequence(range(1000)).map(slow), workers=3)
    assert [next(it) for _ in range(12)] == list(range(12))
    sleep(1)
    assert 12 < len(begun) <= 12 + 6
    it.close()


def test_iterators_with_workers_give_the_same() -> None:
    ds = ps.from_sequence(range(300)).shuffle(seed=2).map(lambda x: -x)
    with override_world(sched=SimulatedScheduler(1)):
        it = DatasetIterator(ds, workers=4, ahead=20)
        it.start()
        assert list(it) == list(ds)
        it.close()
