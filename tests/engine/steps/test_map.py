"""`map`: one item for each sample, many at a time where the function can."""

from __future__ import annotations

from collections.abc import Sequence

from helpers import numbers
from penstock.engine.steps.map import Map


class Square:
    """A function that notes how many samples it receives at a time."""

    def __init__(self) -> None:
        self.sizes = list[int]()

    def __call__(self, x: int) -> int:
        return self.many([x])[0]

    def many(self, xs: Sequence[int]) -> list[int]:
        self.sizes.append(len(xs))
        return [x * x for x in xs]


def test_it_calls_the_function_for_many_samples_at_once() -> None:
    square = Square()
    assert numbers(20).map(square)[range(5, 10)] == [25, 36, 49, 64, 81]
    assert square.sizes == [5]


def test_batches_below_may_change_their_size() -> None:
    assert Map(numbers().tree, str).is_elementwise
