"""Gaps in the passes of a flow: against a list of what is left, and one look at passes that follow each other."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from penstock.engine.steps.exclude import Gaps
from penstock.types import Ints

PASSES = 60
gaps_of_a_flow = st.integers(2, 9).flatmap(
    lambda period: st.tuples(
        st.just(period),
        st.lists(
            st.tuples(st.integers(0, 200), st.integers(0, period - 1)),
            min_size=1,
            max_size=period - 1,
        ).filter(lambda gaps: len({place for _, place in gaps}) == len(gaps)),
    )
)


def flow(period: int, left_out: list[tuple[int, int]], looks: list[range]) -> Gaps:
    """A flow in which a sample stands one place further in every pass, and some are left out from a position on."""

    def find(low: int, high: int) -> Ints:
        looks.append(range(low, high))
        below = np.arange(low, high)
        samples = (below % period - below // period) % period
        return below[
            [
                any(one == n and at >= since for since, n in left_out)
                for at, one in zip(below, samples, strict=True)
            ]
        ]

    return Gaps("a", period, tuple(since for since, _ in left_out), find)


@given(gaps_of_a_flow)
@examples(100)
def test_draws_are_what_is_left_in_order(given: tuple[int, list[tuple[int, int]]]) -> None:
    period, left_out = given
    gone = set(flow(period, left_out, []).find(0, PASSES * period).tolist())
    left = [below for below in range(PASSES * period) if below not in gone]
    gaps = flow(period, left_out, [])
    draws, below = np.arange(len(left)), np.arange(PASSES * period)
    assert gaps.down(draws).tolist() == left
    found = gaps.up(below)
    assert [*found[found >= 0]] == [*draws]
    assert set(below[found < 0].tolist()) == gone
    for some in (draws[::-7], draws[3:4], draws[:: 2 * period]):
        assert gaps.down(some).tolist() == [left[draw] for draw in some]
        assert gaps.up(gaps.down(some)).tolist() == some.tolist()


def test_passes_that_follow_each_other_are_looked_at_once() -> None:
    looks = list[range]()
    gaps = flow(10, [(0, 3)], looks)
    looks.clear()
    gaps.up(np.arange(100_000))
    assert looks == [range(100_000)]
    gaps.down(np.array([900, 9 * 10**9]))  # two passes far apart, and nothing between them
    assert sum(map(len, looks[1:])) == 20
