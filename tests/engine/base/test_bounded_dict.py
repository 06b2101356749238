"""A dict of bounded size: what it evicts, and what survives pickling and threads."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest

from penstock.engine.base.bounded_dict import BoundedDict


def filled(limit: int, *keys: int) -> BoundedDict[int, int]:
    entries = BoundedDict[int, int](limit)
    for key in keys:
        entries[key] = -key
    return entries


def test_the_oldest_entries_are_evicted() -> None:
    assert filled(3, 1, 2, 3, 4, 5) == {3: -3, 4: -4, 5: -5}


def test_a_new_value_of_a_key_evicts_nothing() -> None:
    assert filled(2, 1, 2, 2, 1) == {1: -1, 2: -2}


@pytest.mark.parametrize("clone", [lambda it: pickle.loads(pickle.dumps(it)), copy.deepcopy])
def test_a_copy_has_the_entries_and_the_limit(clone: Callable[[Any], Any]) -> None:
    copied = clone(filled(2, 1, 2))
    assert copied == {1: -1, 2: -2}
    copied[3] = -3
    assert copied == {2: -2, 3: -3}


def test_threads_share_one() -> None:
    entries, errors = BoundedDict[int, int](4), list[Exception]()

    def use(seed: int) -> None:
        try:
            for i in range(20_000):
                key = (i * (seed + 3)) % 11
                assert entries.get(key, -key) == -key
                entries[key] = -key
        except Exception as error:
            errors.append(error)

    threads = [Thread(target=use, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(entries) <= 4
