"""`map_with_index`: the number of a sample in its pass, wherever it is read from."""

from __future__ import annotations

import penstock as ps
from helpers import numbers


def pair(i: int, x: int) -> tuple[int, int]:
    return i, x


def test_numbers_are_those_of_the_pass() -> None:
    ds = numbers(5).shuffle(seed=2)
    order = list(ds)
    indexed = ds.map_with_index(pair)
    assert indexed[[4, 0, 2]] == [(i, order[i]) for i in (4, 0, 2)]
    with ps.Loader(indexed) as loader:
        assert [i for i, _ in loader] == [i for i, _ in loader] == [0, 1, 2, 3, 4]


def test_numbers_count_groups_and_go_on_in_an_endless_input() -> None:
    assert list(numbers(5).batch(2, collate=list).map_with_index(lambda i, x: (i, len(x)))) == [
        (0, 2), (1, 2), (2, 1)
    ]  # fmt: skip
    it = iter(numbers(3).repeat().map_with_index(pair))
    assert [next(it)[0] for _ in range(7)] == [*range(7)]


def test_numbers_of_a_stream_are_counted() -> None:
    ds = numbers(9).filter(lambda x: x % 2 == 1).map_with_index(pair)
    assert list(ds) == [(0, 1), (1, 3), (2, 5), (3, 7)]


def test_two_steps_have_marks_of_their_own() -> None:
    ds = numbers(6).map_with_index(pair).shuffle(seed=1).map_with_index(lambda i, x: (i, *x))
    assert [(i, j) for i, j, x in ds if j != x] == []
    assert [i for i, *_ in ds] == [*range(6)]
