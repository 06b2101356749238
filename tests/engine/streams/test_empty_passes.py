"""Endless flows in which nothing that a lane gets passes: an error, soon; and flows that it must not stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

import pytest

import penstock as ps
from helpers import numbers

NOTHING = "samples in a row gave nothing, and the dataset is endless"


def stream(n: int, name: str = "s") -> ps.Dataset:
    return ps.from_iterable(partial(range, n), name=name, identity="v1")


def odd(x: Any) -> bool:
    return x % 2 == 1


def never(x: Any) -> bool:
    return False


def only_odd(x: int) -> int:
    if not odd(x):
        raise ps.Skip
    return x


def place(i: int, x: Any) -> int:
    return i


class InTurn:
    """A mixing rule without end: the inputs of two in turn."""

    def size(self, sizes: Any) -> None:
        return None

    def at(self, positions: Any) -> tuple[Any, Any]:
        return positions % 2, positions // 2

    def describe(self) -> dict[str, Any]:
        return {"rule": "in turn"}


def first_items(ds: ps.Dataset, n: int, lanes: int = 6) -> list[Any]:
    with ps.Loader(ds, lanes=lanes) as loader:
        return list(islice(loader, n))


SEARCHES: dict[str, Callable[[], ps.Dataset]] = {
    "a stream": lambda: stream(12).repeat().filter(odd),
    "a stream, flattened": lambda: stream(12).repeat().flat_map(lambda x: [x] * (x % 2)),
    "a stream, skipped": lambda: stream(12).repeat().map(only_odd, may_skip=True),
    "an index": lambda: numbers(12).repeat().filter(odd),
    "a shuffle": lambda: numbers(12).shuffle().repeat().filter(never),
    "a mixture": lambda: ps.mix({"a": numbers(12), "b": numbers(5)}).filter(never),
    "a mixture of streams": lambda: ps.mix({"a": stream(12), "b": numbers(5)}).filter(never),
    "a capped input": lambda: ps.mix(
        {"a": numbers(12), "b": numbers(5)}, max_epochs={"b": 2}
    ).filter(never),
    "a rule": lambda: ps.mix({"a": numbers(12), "b": numbers(5)}, rule=InTurn()).filter(never),
    "a buffer": lambda: stream(12).repeat().shuffle_buffer(4).filter(never),
    "numbered samples": lambda: stream(12).repeat().map_with_index(place).filter(never),
    "pairs": lambda: stream(12).repeat().zip(numbers(5).repeat()).filter(never),
    "two filters": lambda: (
        stream(24).repeat().filter(lambda x: x % 4 < 2).filter(lambda x: x % 4 == 3)
    ),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_a_lane_that_went_through_all_it_is_dealt_says_that_nothing_passes(name: str) -> None:
    with pytest.raises(ps.DataError, match=NOTHING):
        first_items(SEARCHES[name](), 1)


@pytest.mark.parametrize(
    "ds",
    [
        stream(7).repeat().filter(odd),
        numbers(7).repeat().filter(lambda x: x == 3),
        numbers(12).shuffle().repeat().filter(lambda x: x == 3),
        stream(12).filter(odd).repeat(),
        ps.mix({"a": numbers(3), "b": numbers(1_000, "b")}, {"a": 200, "b": 1}).filter(
            lambda x: x > 2
        ),
        numbers(2).repeat(500).concat(numbers(7, "b")).repeat().filter(lambda x: x > 2),
        numbers(2).repeat_each(900).concat(numbers(7, "b")).repeat().filter(lambda x: x > 2),
    ],
    ids=[
        "stream",
        "one place",
        "shuffled",
        "filtered first",
        "light",
        "repeated within",
        "repeated each",
    ],
)
@pytest.mark.parametrize("lanes", [1, 6])
def test_a_sample_that_comes_at_last_is_waited_for(ds: ps.Dataset, lanes: int) -> None:
    assert len(first_items(ds, 12, lanes)) == 12


def test_a_stream_that_ends_may_give_nothing_for_long() -> None:
    assert first_items(stream(12).repeat(40).filter(never), 1) == []


class Breaks:
    """Numbers that break off at the 150th."""

    def __call__(self) -> Iterator[int]:
        yield from range(150)
        raise ValueError("broken off")


@pytest.mark.parametrize("rare", [lambda x: x == 140, lambda x: x in (0, 140)])
def test_what_passes_before_a_failure_is_given_first(rare: Any) -> None:
    """After many samples that gave nothing, more are taken at a time than were asked for."""
    source = ps.from_iterable(Breaks(), name="s", identity="v1")
    with ps.Loader(source.repeat().filter(rare), lanes=1) as loader:
        it = iter(loader)
        assert list(islice(it, 1 + rare(0)))[-1] == 140
        with pytest.raises(ValueError, match="broken off"):
            next(it)
