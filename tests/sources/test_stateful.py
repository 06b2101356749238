"""Streams whose iterators save their own state."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import ConfigError, StateError
from penstock.testing import assert_resumes


class Count:
    """Counts to `n`; `opened` and `saved` count calls."""

    opened = saved = 0

    def __init__(self, n: int, state: Any = None) -> None:
        Count.opened += 1
        self.n, self.index, self.made = n, 0, state

    def __iter__(self) -> Count:
        return self

    def __next__(self) -> int:
        if self.index >= self.n:
            raise StopIteration
        self.index += 1
        return self.index - 1

    def state_dict(self) -> Any:
        Count.saved += 1
        return self.made or {"index": np.int64(self.index)}

    def load_state_dict(self, state: Any) -> None:
        self.index = state["index"]


def stream(n: int, state: Any = None) -> ps.Dataset:
    return ps.from_iterable(lambda: Count(n, state), "count", stateful=True)


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 33])
def test_resumes_at_every_sample_of_every_pass(n: int) -> None:
    assert_resumes(lambda: stream(n).map(str).repeat(2), json=True)
    assert list(stream(n).repeat(2)) == [*range(n)] * 2


def test_resumes_in_mixtures_and_windows() -> None:
    def mixed() -> ps.Dataset:
        inputs = {"a": stream(20), "b": stream(7), "c": ps.from_sequence(range(50))}
        return ps.mix(inputs, {"a": 2, "b": 1, "c": 1}).shuffle(3, window=5).batch(3).limit(9)

    assert_resumes(mixed, json=True)


def test_a_resume_reads_at_most_16_samples_again() -> None:
    it = iter(stream(1000))
    for _ in range(900):
        next(it)
    state = json.loads(json.dumps(it.state_dict()))
    Count.saved = 0
    again = iter(stream(1000))
    again.load_state_dict(state)
    assert list(again) == [*range(900, 1000)]
    assert Count.saved <= 8


def test_what_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="no state_dict"):
        list(ps.from_iterable(lambda: iter("ab"), stateful=True))
    with pytest.raises(ConfigError, match="no JSON"):
        list(stream(40, {"index": {1, 2}}))
    it = iter(stream(40))
    for _ in range(30):
        next(it)
    state = it.state_dict()
    again = iter(stream(20))
    with pytest.raises(StateError, match="ends before sample 30"):
        again.load_state_dict(state)
    assert next(again) == 0
