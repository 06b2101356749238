from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from penstock.sources.lru import LRUCache


def test_the_least_recently_used_goes_first() -> None:
    held, made = LRUCache(limit=2), list[str]()

    def get(key: str) -> None:
        held.get(key, lambda: (made.append(key) or 1, key))

    for key in "abacab":
        get(key)
    assert made == ["a", "b", "c", "b"]
    assert len(held) == 2


def test_a_value_over_the_limit_is_held_alone() -> None:
    held = LRUCache(limit=10)
    held.get("small", lambda: (1, 0))
    held.get("large", lambda: (99, 1))
    assert len(held) == 1
    assert held.get("large", lambda: pytest.fail("made again")) == 1


def test_a_value_over_the_limit_goes_before_the_next_is_made() -> None:
    held = LRUCache(limit=10)
    held.get("small", lambda: (1, 0))
    held.get("large", lambda: (99, 1))
    held.get("next", lambda: (5, held.holds("large")))
    assert held.get("next", lambda: pytest.fail("made again")) is False
    assert not held.holds("large")


def test_one_thread_makes_and_the_others_wait() -> None:
    held, go, calls = LRUCache(limit=10), threading.Event(), list[int]()

    def make() -> tuple[int, str]:
        calls.append(1)
        assert go.wait(120)
        return 1, "made"

    with ThreadPoolExecutor(4) as pool:
        results = [pool.submit(held.get, "key", make) for _ in range(4)]
        go.set()
        assert [result.result(120) for result in results] == ["made"] * 4
    assert calls == [1]


def test_a_failure_reaches_all_and_is_not_held() -> None:
    held = LRUCache(limit=10)

    def fail() -> tuple[int, str]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        held.get("key", fail)
    assert held.get("key", lambda: (1, "yes")) == "yes"


@pytest.mark.parametrize(
    "key_of", [int, lambda n: (Path("a"), n), lambda n: Path(str(n))], ids=["n", "pair", "path"]
)
def test_many_threads_and_few_places(key_of: Callable[[int], Any]) -> None:
    held, often = LRUCache(limit=3), sys.getswitchinterval()

    def make(n: int) -> Callable[[], tuple[int, int]]:
        return lambda: (1, n * n)

    def work(seed: int) -> bool:
        return all(
            held.get(key_of(n), make(n)) == n * n
            for n in ((seed * 7 + i * i) % 11 for i in range(2000))
        )

    sys.setswitchinterval(1e-6)  # threads take turns wherever Python runs: to hash a path, say
    try:
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(work, range(4)))
    finally:
        sys.setswitchinterval(often)
    assert len(held) <= 3


def test_pickling_drops_what_is_held() -> None:
    held = LRUCache(limit=5)
    held.get("lock", lambda: (1, threading.Lock()))
    again = pickle.loads(pickle.dumps(held))
    assert len(again) == 0
    assert again.get("x", lambda: (1, 2)) == 2
