"""`map(may_skip=True)`: falsy results are items, skipped samples are not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

import penstock as ps
from helpers import numbers
from penstock.arrays.trees import collate
from penstock.testing import assert_resumes


def halve(x: int) -> int | None:
    if x % 2:
        raise ps.Skip
    return None if x == 4 else x // 2


def test_only_skipped_samples_are_dropped() -> None:
    assert list(numbers(10).map(halve, may_skip=True)) == [0, 1, None, 3, 4]


def test_a_function_that_stacks_may_skip_too() -> None:
    ds = ps.from_sequence([[1, 2], [3]]).map(collate, may_skip=True)
    assert [stacked.tolist() for stacked in ds] == [[1, 2], [3]]


SIZES = list[int]()


class Odd:
    """Halves even numbers and skips odd ones, many at a time; a number in `bad` is an error."""

    def __init__(self, bad: Sequence[int] = ()) -> None:
        self.bad = bad

    def __call__(self, x: int) -> int:
        (result,) = self.many([x])
        if isinstance(result, ps.Skip):
            raise result
        return result

    def many(self, xs: Sequence[int]) -> list[Any]:
        SIZES.append(len(xs))
        for x in xs:
            if x in self.bad:
                raise ValueError(f"{x} is bad")
        return [ps.Skip("odd") if x % 2 else x // 2 for x in xs]


def test_it_calls_the_function_for_many_samples_at_once() -> None:
    SIZES.clear()
    assert list(numbers(600).map(Odd(), may_skip=True)) == list(range(300))
    assert max(SIZES) > 1 and sum(SIZES) == 600


def double(x: int) -> int:
    return 2 * x


@pytest.mark.parametrize("workers", [0, 2])
def test_many_at_once_equals_one_at_a_time(workers: int) -> None:
    def make(fn: Any) -> ps.Dataset:
        above = numbers(97).shuffle(seed=2).map(double).map(lambda x: x // 2)
        return above.map(fn, may_skip=True).map(double).batch(4, collate=list)

    def alone(x: int) -> int:
        return Odd()(x)

    with ps.Loader(make(Odd()), workers=workers) as loader:
        assert list(loader) == list(make(alone))


def test_it_resumes_exactly() -> None:
    ds = numbers(40).shuffle(seed=2).map(double).map(Odd(), may_skip=True).batch(3, collate=list)
    assert_resumes(lambda: ps.Loader(ds))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("bad", [[40], [0], [3, 4, 41]])
def test_a_bad_sample_among_many_is_found(bad: list[int], workers: int) -> None:
    ds = numbers(60, "some").map(Odd(bad), may_skip=True)
    with ps.Loader(ds, workers=workers, on_error="quarantine", max_errors=9) as loader:
        found = list(loader)
        assert [entry["index"] for entry in loader.journal] == bad
    good = [x // 2 for x in range(0, 60, 2) if x not in bad]
    assert set(good) <= set(found)
    with ps.Loader(ds, workers=workers) as loader:
        delivered = list[int]()
        with pytest.raises(ValueError, match=f"{bad[0]} is bad") as caught:
            for item in loader:
                delivered.append(item)
    assert delivered == [x // 2 for x in range(0, bad[0], 2)]
    assert f"some[{bad[0]}] (pass 0)" in str(caught.value.__notes__)


@pytest.mark.parametrize("method", ["map", "filter"])
def test_other_steps_refuse_a_skip_among_many(method: str) -> None:
    with pytest.raises(ps.ConfigError, match=r"raised Skip \(odd\)"):
        list(getattr(numbers(6), method)(Odd()))

    class Returns(Odd):
        def __call__(self, x: int) -> int:
            return self.many([x])[0]

    with pytest.raises(ps.ConfigError, match=r"raised Skip \(odd\)"):
        list(getattr(numbers(6), method)(Returns()))
    assert list(numbers(6).map(Returns(), may_skip=True)) == [0, 1, 2]


@pytest.mark.parametrize("step", ["map", "may_skip", "filter"])
def test_a_wrong_number_of_results_is_an_error(step: str) -> None:
    class Drops(Odd):
        def many(self, xs: Sequence[int]) -> list[Any]:
            return [x for x in xs if x % 2 == 0]

    ds = numbers(9)
    ds = ds.filter(Drops()) if step == "filter" else ds.map(Drops(), may_skip=step == "may_skip")
    with pytest.raises(ps.ConfigError, match=r"Drops\.many gave 0 results for 1 samples"):
        list(ds)
