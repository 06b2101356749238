"""Shares of tokens by the clock: every source within one longest document of its share at every prefix."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from draw_lengths import Lengths
from example_counts import examples, rounds
from penstock.engine.mixing import (
    Mixture,
    SetWeights,
    UnknownMeter,
    mixture_from_json,
    mixture_to_json,
)


def mixture(sizes: list[list[int]], weights: Any, **options: Any) -> Mixture:
    meters = tuple(map(Lengths, sizes))
    means = tuple(float(each.ends[-1]) / len(each.sizes) for each in meters)
    names = tuple("abcdefgh"[: len(sizes)])
    given = dict(zip(names, weights, strict=True)) if isinstance(weights, list) else weights
    passes = tuple(
        len(each) if "stop" in options or "max_epochs" in options else None for each in sizes
    )
    return Mixture(names, given, passes, lengths=means, meters=meters, **options)


def off(found: Mixture, stop: int, start: int = 0) -> tuple[Any, Any]:
    """Return each source's distance from its share of tokens at every prefix, and its tokens."""
    source, k = found.at(np.arange(start, stop))
    assert found.meters is not None
    given = np.zeros((stop - start, len(found.names)))
    for i, meter in enumerate(found.meters):
        mine = source == i
        if mine.any():
            ks = k[mine]
            assert (np.diff(ks) == 1).all()
            given[mine, i] = meter.lengths(int(ks[0]), int(ks[-1]) + 1)
    return np.cumsum(given, axis=0), given


sizes = st.lists(
    st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(any), min_size=1, max_size=4
)


@examples(100)
@given(sizes=sizes, data=st.data())
def test_every_source_is_within_one_document_of_every_other(
    sizes: list[list[int]], data: st.DataObject
) -> None:
    """By the clock: at some time each has given its weight's share to less than its longest document."""
    weights = data.draw(
        st.lists(st.sampled_from([1, 2, 5, 30]), min_size=len(sizes), max_size=len(sizes))
    )
    found, n = mixture(sizes, weights, key=data.draw(st.integers(0, 3))), 200
    given, _ = off(found, n)
    for i, one in enumerate(sizes):
        for j, other in enumerate(sizes):
            apart = np.abs(given[:, i] / weights[i] - given[:, j] / weights[j])
            assert (apart < max(one) / weights[i] + max(other) / weights[j] + 1e-6).all()


@examples(80)
@given(sizes=sizes, data=st.data())
def test_any_position_equals_a_run_from_the_start(
    sizes: list[list[int]], data: st.DataObject
) -> None:
    """Schedules, caps, stop rules, weights set, blocks: forwards, backwards, counted; asked in any order."""
    n = len(sizes)
    weights: Any = data.draw(st.lists(st.sampled_from([1, 2, 5]), min_size=n, max_size=n))
    names = "abcdefgh"[:n]
    if data.draw(st.booleans()):
        ends = [dict(zip(names, weights, strict=True)), dict.fromkeys(names, 1)]
        points = [(0, ends[0]), (data.draw(st.integers(1, 60)), ends[1])]
        weights = ps.Schedule(points, data.draw(st.sampled_from(["step", "linear", "cosine"])))
    options: dict[str, Any] = {"block_size": data.draw(st.sampled_from([1, 1, 4]))}
    if data.draw(st.booleans()):
        options["stop"] = data.draw(
            st.sampled_from(["restart", "first_exhausted", "all_exhausted_oversample"])
        )
    if data.draw(st.booleans()):
        options["max_epochs"] = data.draw(st.sampled_from([1, 2.5, {"a": 3}]))
    one = mixture(sizes, weights, **options)
    end = 120 if one.size is None else min(120, one.size)
    if data.draw(st.booleans()) and end:
        event = SetWeights(
            data.draw(st.integers(0, end - 1)), {"a": 3.0, **dict.fromkeys(names[1:], 1.0)}
        )
        one = one.with_event(event)
        end = end if one.size is None else min(end, one.size)
    source, k = one.at(np.arange(end))
    other = Mixture(**{name: getattr(one, name) for name in one.__dataclass_fields__})
    for p in data.draw(st.lists(st.integers(0, max(end - 1, 0)), max_size=8)) if end else ():
        found = other.at(np.asarray([p]))
        assert (int(found[0][0]), int(found[1][0])) == (source[p], k[p])
        assert other.positions_of(source[[p]], k[[p]]).tolist() == [p]
        assert other.counts(p).tolist() == np.bincount(source[:p], minlength=n).tolist()
    assert one.positions_of(source, k).tolist() == list(range(end))


def lognormal(n: int, sigma: float, seed: int, most: int = 1 << 40) -> list[int]:
    rng = np.random.default_rng(seed)
    return (
        np.minimum(rng.lognormal(np.log(600) - sigma**2 / 2, sigma, n), most)
        .astype(np.int64)
        .__add__(1)
        .tolist()
    )


@pytest.mark.parametrize("sigma", [1.0, 2.5])
def test_shares_at_every_prefix_and_at_every_border(sigma: float) -> None:
    """Weighted by means .5/.3/.2 gave .486/.332/.182 over 10^8 tokens (sigma 2.5)."""
    n = rounds(20_000, 200_000)
    sizes, shares = [lognormal(n, sigma, i) for i in range(3)], np.asarray([0.5, 0.3, 0.2])
    given, _ = off(mixture(sizes, shares.tolist()), n)
    longest = max(map(max, sizes))
    assert (np.abs(given - given.sum(axis=1)[:, None] * shares) < longest).all()

    laws = [5, 3, 2], [1, 1, 1], [1, 0, 4], [5, 3, 2]
    points = [(i * n // 4, dict(zip("abc", law, strict=True))) for i, law in enumerate(laws)]
    given, _ = off(mixture(sizes, ps.Schedule(points)), n)
    for i, (begin, weights) in enumerate(points):
        piece = given[begin : (i + 1) * n // 4] - (given[begin - 1] if begin else 0)
        share = np.asarray([weights[name] for name in "abc"]) / sum(weights.values())
        assert (np.abs(piece - piece.sum(axis=1)[:, None] * share) < 2 * longest).all()


@pytest.mark.parametrize(
    "points",
    [
        {0: (9, 1), 4_000: (1, 9)},
        {0: (1, 9), 1_000: (9, 1), 4_000: (1, 9)},
        {0: (0, 1), 4_000: (1, 0)},
    ],
)
def test_a_ramp_between_long_and_short_documents_keeps_its_integral(
    points: dict[int, tuple[int, int]],
) -> None:
    """The mean length of a draw changes along the ramp, from 20 tokens to 180."""
    sizes = [[20] * 9, [170, 190]]
    schedule = ps.Schedule([(at, {"a": a, "b": b}) for at, (a, b) in points.items()], "linear")
    given, _ = off(mixture(sizes, schedule), 6_000)
    at = np.arange(6_000)
    weights = np.stack(
        [np.interp(at, list(points), [each[i] for each in points.values()]) for i in range(2)],
        axis=1,
    )
    shares = weights / weights.sum(axis=1)[:, None]
    each = 1 / (shares / np.asarray([20, 180])).sum(axis=1)
    want = np.cumsum(shares * each[:, None], axis=0)
    stairs = 0.005 * want.sum(axis=1).max()  # a ramp is followed in steps
    assert np.abs(given - want).max() < 2 * 190 + stairs


def test_a_tenth_of_a_percent_at_1e8_tokens() -> None:
    """Where no document exceeds 10^4, from nothing: the position is searched for, not run up to."""
    sizes, shares = (
        [lognormal(50_000, 2.5, i, 10_000) for i in range(3)],
        np.asarray([0.5, 0.3, 0.2]),
    )
    found = mixture(sizes, shares.tolist())
    assert found.meters is not None
    means = 1 / sum(s / m for s, m in zip(shares, found.lengths or (), strict=True))
    counts = found.counts(int(1e8 / means)).tolist()
    tokens = np.asarray([meter.tokens(k) for meter, k in zip(found.meters, counts, strict=True)])
    assert tokens.sum() == pytest.approx(1e8, rel=0.02)
    assert np.abs(tokens / tokens.sum() - shares).max() < 1e-3 * shares.min()


def test_far_positions_are_found_at_once() -> None:
    found = mixture([lognormal(2_000, 2.5, i) for i in range(8)], [1, 2, 3, 4, 5, 6, 7, 8])
    source, k = found.at(np.arange(10**12, 10**12 + 50))
    assert found.positions_of(source, k).tolist() == list(range(10**12, 10**12 + 50))
    assert found.counts(10**12).sum() == 10**12


class Patient(Lengths):
    """Lengths that may be looked at so often: what goes to and fro for ever is an error."""

    left = 2_000

    def lengths(self, start: int, stop: int, /) -> Any:
        self.left -= 1
        assert self.left, "the same draws were looked at again and again"
        return super().lengths(start, stop)


@pytest.mark.parametrize("power", range(44, 53))
def test_where_times_are_rounded_a_position_is_found_all_the_same(power: int) -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        meters = tuple(Patient(rng.integers(1, 60, rng.integers(5, 60))) for _ in range(20))
        means = tuple(float(each.ends[-1]) / len(each.sizes) for each in meters)
        names = tuple(f"s{i:02d}" for i in range(20))
        weights = dict(zip(names, rng.integers(1, 97, 20).tolist(), strict=True))
        found = Mixture(names, weights, (None,) * 20, lengths=means, meters=meters, key=seed)
        position = (1 << power) + int(rng.integers(10**6))
        counts = found.counts(position)
        assert counts.sum() == position
        source, k = found.at(np.asarray([position]))
        assert k[0] == counts[source[0]]
        tokens = np.asarray(
            [meter.tokens(k) for meter, k in zip(meters, counts.tolist(), strict=True)], float
        )
        assert tokens / tokens.sum() == pytest.approx(
            np.asarray([*weights.values()]) / sum(weights.values())
        )


def test_names_and_not_their_order_decide() -> None:
    sizes = {name: lognormal(50, 1, i) for i, name in enumerate("abc")}
    stores = {
        name: ps.from_tokens(
            np.zeros(sum(each), np.uint8), np.concatenate([[0], np.cumsum(each)]), name=name
        )
        for name, each in sizes.items()
    }
    one, other = (
        ps.mix(
            {name: stores[name].shuffle() for name in order}, dict.fromkeys(order, 1), unit="tokens"
        )
        for order in ("abc", "cab")
    )
    assert [s.key for s in one.plan.at(slice(0, 99))] == [
        s.key for s in other.plan.at(slice(0, 99))
    ]


def test_a_mixture_goes_through_json_but_for_its_lengths() -> None:
    found = mixture([[3, 4], [5]], [1, 2])
    saved = mixture_from_json(mixture_to_json(found))
    assert saved == found and saved.meters == (UnknownMeter("a"), UnknownMeter("b"))
    with pytest.raises(ps.StateError, match="the former lengths of 'a'"):
        saved.at(np.arange(5))
    bound = saved.with_meters(found)
    assert bound.at(np.arange(5))[0].tolist() == found.at(np.arange(5))[0].tolist()
    assert (
        pickle.loads(pickle.dumps(found)).at(np.arange(5))[1].tolist()
        == found.at(np.arange(5))[1].tolist()
    )


@pytest.mark.parametrize("seed", range(6))
def test_the_first_of_of_some_draws_is_the_first_that_is_located(seed: int) -> None:
    dice = np.random.default_rng(seed)
    sizes = [dice.integers(1, 9, int(dice.integers(3, 40))).tolist() for _ in range(5)]
    found = mixture(sizes, dice.random(5).tolist())
    segment = found._segment(0)  # pyright: ignore[reportPrivateUsage]
    assert segment is not None
    for _ in range(20):
        sources = np.sort(dice.permutation(5)[: int(dice.integers(1, 6))])
        j = dice.integers(0, 300, len(sources))
        places = segment.locate(np.searchsorted(segment.members, sources), j)
        assert segment.first_of(sources, j) == (int(places.argmin()), int(places.min()))
