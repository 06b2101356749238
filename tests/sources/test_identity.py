"""Rows by which data is known that only reading tells: few, without a trace, and the same in every process."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from penstock.sources.identity import aside, same_sample, sampled
from penstock.types import Ints


def read_of(rows: Any) -> Any:
    return lambda indices: [rows[index] for index in indices.tolist()]


def test_few_rows_are_read_the_first_and_the_last_among_them() -> None:
    read = list[int]()

    def rows(indices: Ints) -> list[int]:
        read.extend(indices.tolist())
        return indices.tolist()

    assert len(sampled(rows, 1_000_000).split()) == 8
    assert {0, 999_999} <= set(read) and len(set(read)) == 8
    assert sampled(rows, 0) == "" and len(sampled(rows, 3).split()) == 3


def test_a_shuffle_shows() -> None:
    rows = list(range(200))
    other = random.Random(0).sample(rows, 200)
    assert same_sample(sampled(read_of(rows), 200), sampled(read_of([*rows]), 200))
    assert same_sample(sampled(read_of(rows), 200), sampled(read_of(other), 200)) is False
    assert same_sample(sampled(read_of(rows), 200), sampled(read_of(rows), 199)) is False


def test_random_details_are_drawn_alike_and_the_generators_stay_where_they_are() -> None:
    torch = pytest.importorskip("torch")

    def rows(indices: Ints) -> list[Any]:
        return [(indices.tolist(), random.random(), np.random.rand(), float(torch.rand(1)))]

    found = list[str]()
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        found.append(sampled(rows, 50))
        drawn = random.random(), np.random.rand(), float(torch.rand(1))
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        assert drawn == (random.random(), np.random.rand(), float(torch.rand(1)))
    assert found[0] == found[1] and "-" not in found[0].split()


def test_rows_that_fail_or_are_others_each_time_are_not_compared() -> None:
    rng = np.random.default_rng()

    def rows(indices: Ints) -> list[Any]:
        if indices[0] == 0:
            raise ValueError("a bad row")
        return [float(rng.random())] if indices[0] == 9 else [int(indices[0])]

    one, other = sampled(rows, 10), sampled(rows, 10)
    assert one == other and one.split().count("-") == 2
    assert same_sample(one, other)
    assert same_sample("- - -", "- 1 -") is None
    assert same_sample("1 - 2", "- 7 2") and same_sample("1 - 2", "- 7 3") is False


class Inner:
    def __init__(self) -> None:
        self.count, self.rng = 0, np.random.default_rng(0)


class Outer:
    def __init__(self) -> None:
        self.inner, self.parts, self.file = Inner(), [Inner()], None

    def read(self) -> None:
        self.file = open(__file__)
        for inner in (self.inner, *self.parts):
            inner.count += 1
            inner.rng.random()


class Closing(Outer):
    closed = 0

    def __del__(self) -> None:
        Closing.closed += 1


def test_reading_from_a_copy_leaves_no_trace() -> None:
    rows = Outer()
    copy = aside(rows)
    copy.read()
    copy.file.close()
    assert rows.file is None
    for inner in (rows.inner, *rows.parts):
        assert inner.count == 0
        assert inner.rng.random() == np.random.default_rng(0).random()


def test_what_has_a_destructor_is_not_copied() -> None:
    rows = Closing()
    assert aside(rows) is rows
    assert Closing.closed == 0


def test_arrays_and_what_has_an_own_copy_are_not_copied(tmp_path: Any) -> None:
    class Heavy:
        def __init__(self) -> None:
            self.tokens = np.lib.format.open_memmap(tmp_path / "t.npy", "w+", np.int64, (9,))
            self.slow = Slow()

    class Slow:
        def __copy__(self) -> Any:
            raise AssertionError("it takes long")

        def __getstate__(self) -> Any:
            raise AssertionError("it takes long")

    rows = Heavy()
    copied = aside(rows)
    assert copied is not rows and copied.tokens is rows.tokens
    assert type(copied.slow) is Slow
