"""Interleaving, window shuffles and rules of mixing of one's own."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.engine.mixing.rules import By
from penstock.engine.orders import WindowShuffle
from penstock.engine.steps.mix import Mix
from penstock.errors import ConfigError, IndexedError
from penstock.testing import assert_covers, assert_elastic, assert_resumes


def model(parts: Sequence[Sequence[int]], width: int) -> list[int]:
    """Slots in turn; one whose input has ended is filled again when its turn comes next."""
    fresh, slots, out = deque(parts), deque[Any](), list[int]()
    slots.extend(iter(fresh.popleft()) for _ in range(min(width, len(parts))))
    while slots:
        slot = slots.popleft()
        if slot is None:
            if not fresh:
                continue
            slot = iter(fresh.popleft())
        found = next(slot, None)
        if found is None:
            slots.append(None)
            continue
        out.append(found)
        slots.append(slot)
    return out


@given(st.lists(st.integers(0, 6), min_size=1, max_size=7), st.integers(1, 8))
def test_interleave_is_its_model(sizes: list[int], width: int) -> None:
    parts = [[100 * k + i for i in range(size)] for k, size in enumerate(sizes)]
    first, *others = (ps.from_sequence(part) for part in parts)
    assert list(first.interleave(*others, width=width)) == model(parts, width)


def interleaved() -> ps.Dataset:
    a, b, c = (
        ps.from_sequence(range(k, k + n)).shuffle(seed=1) for k, n in ((0, 9), (20, 2), (30, 7))
    )
    return a.interleave(b.filter(lambda x: True), c, width=2)


def test_interleave_resumes_and_is_elastic() -> None:
    assert_resumes(interleaved)
    assert_resumes(lambda: ps.Loader(interleaved().repeat(2)))
    assert_elastic(
        lambda rank, world: ps.Loader(interleaved().repeat(), lanes=4, rank=rank, world_size=world),
        (1, 2, 4),
        steps=8,
    )
    assert_covers(interleaved().repeat(2), [*range(9), 20, 21, *range(30, 37)], times=2)


def test_interleave_tells_what_it_cannot() -> None:
    with pytest.raises(IndexedError, match="interleave"):
        len(interleaved())
    with pytest.raises(ConfigError):
        ps.from_sequence("ab").interleave(width=0)
    with pytest.raises(ConfigError, match="interleave: str is not a dataset"):
        ps.from_sequence("ab").interleave("cd")  # pyright: ignore[reportArgumentType]


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 3))
def test_windows_are_permuted_within(n: int, window: int, seed: int) -> None:
    ds = ps.from_sequence(range(n)).shuffle(seed, window=window)
    for found in (list(ds), [ds.repeat()[n + i] for i in range(n)]):
        for start in range(0, n, window):
            assert sorted(found[start : start + window]) == list(
                range(start, min(n, start + window))
            )
    order = WindowShuffle(window)
    places = np.arange(3 * n)
    assert np.array_equal(order.up(order.down(places, n, 7)[0], n, 7), places)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 3), st.integers(0, 3))
def test_windows_of_streams_are_those_of_positions(
    n: int, window: int, seed: int, passes: int
) -> None:
    ds = ps.from_sequence(range(n), name="a")
    ordered, stream = (
        flow.shuffle(seed, window=window) for flow in (ds, ds.filter(lambda x: True))
    )
    with ps.Loader(ordered) as one, ps.Loader(stream, lanes=1) as other:
        for _ in range(3):
            assert list(one) == list(other)
    assert list(ordered.repeat(passes)) == list(ps.Loader(stream.repeat(passes), lanes=1))
    again = (flow.repeat().shuffle(seed, window=window) for flow in (ds, ds.filter(lambda x: True)))
    one, other = (list(islice(ps.Loader(flow, lanes=1), 3 * n)) for flow in again)
    assert one == other
    for start in range(0, 3 * n - window, window):
        places = range(start, start + window)
        assert sorted(one[start : start + window]) == sorted(place % n for place in places)
    for name in "bc":  # another source of that length, another order
        assert n < 30 or list(
            ps.from_sequence(range(n), name=name).shuffle(seed, window=30)
        ) != list(ds.shuffle(seed, window=30))


def test_buffers_are_shuffled_anew_in_every_pass_and_for_every_source() -> None:
    a, b = (ps.from_sequence(range(60), name=name).shuffle_buffer(20) for name in "ab")
    with ps.Loader(a, lanes=1) as loader:
        passes = {tuple(loader) for _ in range(3)}
    assert len(passes) == 3
    assert list(a) != list(b)


def test_windows_resume_and_differ() -> None:
    assert_resumes(lambda: ps.from_sequence(range(30)).filter(lambda x: x % 7).shuffle(5, window=8))
    ds = ps.from_sequence(range(64)).shuffle(1, window=8)
    rows = [[ds.repeat()[8 * k + i] - 8 * (k % 8) for i in range(8)] for k in range(16)]
    assert len({tuple(row) for row in rows}) == 16
    with pytest.raises(ConfigError):
        ds.shuffle(1, window=0)
    with pytest.raises(ConfigError):
        ds.shuffle(1, window=4, block=(2, 2))


@dataclass(frozen=True)
class TwoToOne:
    """Two of the first, one of the second."""

    def size(self, sizes: Sequence[int | None], /) -> int | None:
        return None if None in sizes else 6

    def at(self, positions: Any, /) -> tuple[Any, Any]:
        turn, place = np.divmod(positions, 3)
        return np.where(place < 2, 0, 1), np.where(place < 2, 2 * turn + place, turn)

    def describe(self) -> dict[str, Any]:
        return {"rule": "two to one"}


def by(a: ps.Dataset, b: ps.Dataset) -> ps.Dataset:
    return ps.Dataset(Mix((a.tree, b.tree), ("a", "b"), By(TwoToOne())))


def test_a_rule_of_ones_own() -> None:
    a, b = ps.from_sequence(range(3)), ps.from_sequence(range(10, 13))
    ds = by(a, b)
    assert len(ds) == 6 and list(ds.repeat(2)) == [ds.repeat()[i] for i in range(12)]
    assert [x for x in islice(ds.repeat(), 30) if x < 10] == list(
        islice(a.repeat(), 20)
    )  # draws go on counting
    assert_resumes(lambda: by(a.shuffle(seed=1), b.shuffle(seed=1)))
    streams = by(a.filter(lambda x: True), b.filter(lambda x: True))
    assert len(list(streams)) == 4  # the first that ends, ends all
    assert_resumes(lambda: streams)


def test_samples_behind_the_end() -> None:
    ds = ps.from_sequence(range(5)).shuffle(seed=3)
    assert sorted(ds.repeat()[i] for i in range(5, 10)) == list(range(5))
    for wrong in (lambda: ds[5], lambda: ds.repeat()[-1], lambda: ps.from_sequence([])[0]):
        with pytest.raises(IndexError):
            wrong()
