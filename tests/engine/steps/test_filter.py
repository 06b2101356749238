"""`filter`: the samples themselves, with their provenance."""

from __future__ import annotations

from collections.abc import Sequence

import penstock as ps
from helpers import numbers


class IsThird:
    """A predicate of many samples at once."""

    def __call__(self, x: int) -> bool:
        return x % 3 == 0

    def many(self, xs: Sequence[int]) -> list[bool]:
        return [self(x) for x in xs]


def test_it_keeps_what_the_predicate_holds_for() -> None:
    assert list(numbers(20).filter(IsThird())) == [*range(0, 20, 3)]
    assert list(numbers(20).filter(lambda x: x % 3 == 0).filter(lambda x: x % 2)) == [3, 9, 15]


def test_rows_stay_with_their_samples() -> None:
    ds = numbers(20).shuffle(seed=1).filter(IsThird())
    with ps.Loader(ds) as loader:
        for x in loader:
            assert [index for _, _, index in loader.keys()] == [x]


def test_samples_of_an_endless_input_are_searched_for_a_while() -> None:
    found = ""
    try:
        next(iter(numbers(20).repeat().filter(lambda x: x > 20)))
    except ps.DataError as error:
        found = str(error)
    assert found
