"""A mixture with stretches of one source: the laws of a mixture, counted in stretches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from helpers import through_json
from penstock.engine.mixing import (
    STOPS,
    Adopt,
    Mixture,
    SetWeights,
    mixture_from_json,
    mixture_to_json,
)
from penstock.errors import ConfigError
from penstock.schedule import Schedule

NAMES = ("a", "b", "c")
weights = st.fixed_dictionaries(dict.fromkeys(NAMES, st.integers(1, 5)))


@st.composite
def mixtures(draw: Any) -> Mixture:
    per = draw(st.sampled_from([1, 2, 3, 5]))
    stop = draw(st.sampled_from(STOPS))
    sizes = tuple(draw(st.integers(per, 30)) for _ in NAMES)
    block = draw(st.sampled_from([1, 4]))
    mixture = Mixture(
        NAMES, draw(weights), sizes, block, stop, key=draw(st.integers(0, 9)), one_source_per=per
    )
    for _ in range(draw(st.integers(0, 2))):
        at = mixture.event_position(draw(st.integers(0, length(mixture) - 1)))
        if at < length(mixture) and at >= max((event.at for event in mixture.log), default=0):
            mixture = mixture.with_event(SetWeights(at, draw(weights)))
    return mixture


def length(mixture: Mixture) -> int:
    return 60 * mixture.one_source_per if mixture.size is None else mixture.size


def check(mixture: Mixture, start: int, drawn: dict[str, int], stop: int) -> None:
    """Compare draws, counts and places of a mixture from a position on, stretch by stretch."""
    per, counts = mixture.one_source_per, [drawn[name] for name in mixture.names]
    source, k = mixture.at(np.arange(start, stop))
    for at, i, draw in zip(range(start, stop), source.tolist(), k.tolist(), strict=True):
        assert mixture.counts(at).tolist() == counts
        assert draw == counts[i]
        assert (at - start) % per == 0 or i == source[at - start - 1]
        counts[i] += 1
    assert mixture.counts(stop).tolist() == counts
    assert mixture.positions_of(source, k).tolist() == list(range(start, stop))


@given(mixtures())
def test_draws_counts_and_places_agree(mixture: Mixture) -> None:
    check(mixture, 0, dict.fromkeys(NAMES, 0), length(mixture))
    assert length(mixture) % mixture.one_source_per == 0
    assert mixture_from_json(through_json(mixture_to_json(mixture))) == mixture


@given(mixtures(), st.sampled_from([1, 2, 4, 7]), st.integers(0, 1 << 30))
def test_a_mixture_takes_over_at_any_position(before: Mixture, per: int, at: int) -> None:
    """The stretches of the later one begin there, and each source continues at its next draw."""
    at %= length(before)
    drawn: dict[str, int] = dict(zip(NAMES, before.counts(at).tolist(), strict=True))
    assume(all(size is not None and size >= per for size in before.sizes))
    sizes, stop = before.sizes, before.stop
    after = Mixture(NAMES, {"a": 1, "b": 1, "c": 1}, sizes, stop=stop, one_source_per=per)
    after = after.with_event(Adopt(at, drawn, before.surplus(at)))
    end = at + 30 * per if after.size is None else after.size
    assert (end - at) % per == 0
    check(after, at, drawn, end)


@given(weights, st.sampled_from([2, 3, 8]), st.integers(0, 99))
def test_counts_are_within_two_stretches(shares: dict[str, float], per: int, key: int) -> None:
    mixture, total = (
        Mixture(NAMES, shares, (None,) * 3, key=key, one_source_per=per),
        sum(shares.values()),
    )
    ideal = np.asarray([shares[name] / total for name in NAMES])
    for at in range(0, 200 * per, per):
        assert np.abs(mixture.counts(at) - at * ideal).max() <= 2 * per
        surplus = mixture.surplus(at)
        assert np.allclose(
            [surplus[n] for n in NAMES], mixture.counts(at) - at * ideal, atol=1e-6 * per
        )


def test_a_stretch_has_the_weights_of_its_first_position() -> None:
    schedule = Schedule([(0, {"a": 1, "b": 0}), (10, {"a": 0, "b": 1})])
    mixture = Mixture(("a", "b"), schedule, (None, None), one_source_per=4)
    assert mixture.at(np.arange(24))[0].tolist() == [0] * 12 + [1] * 12
    assert mixture.weights_at(11) == {"a": 1, "b": 0}
    ramp = Schedule([(0, {"a": 1, "b": 0}), (4000, {"a": 0, "b": 1})], "linear")
    mixture = Mixture(("a", "b"), ramp, (None, None), one_source_per=4)
    counts = mixture.counts(2000)
    assert abs(counts[0] - 1500) <= 8


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted"])
def test_samples_that_fill_no_stretch_are_left_out(stop: Any) -> None:
    mixture = Mixture(("a", "b"), {"a": 1, "b": 1}, (10, 25), stop=stop, one_source_per=4)
    assert mixture.size is not None
    counts = mixture.counts(mixture.size).tolist()
    assert counts == [8, 24] if stop == "all_exhausted" else counts[0] == 8 and counts[1] <= 16


def test_an_input_without_a_whole_stretch_is_refused_if_it_is_drawn_from() -> None:
    wrong: Any = {"stop": "all_exhausted"}, {"stop": "first_exhausted"}, {"max_epochs": 1}
    for options in wrong:
        with pytest.raises(ConfigError, match="one_source_per=4.*'a' gives 3 samples"):
            Mixture(("a", "b"), {"a": 1, "b": 1}, (3, 9), one_source_per=4, **options)
    Mixture(("a", "b"), {"a": 0, "b": 1}, (3, 9), stop="all_exhausted", one_source_per=4)
    Mixture(("a", "b"), {"a": 1, "b": 1}, (3, 9), one_source_per=4)
    oversampled = Mixture(
        ("a", "b"), {"a": 1, "b": 1}, (3, 9), stop="all_exhausted_oversample", one_source_per=4
    )
    assert (oversampled.counts(oversampled.size or 0) >= [3, 9]).all()
