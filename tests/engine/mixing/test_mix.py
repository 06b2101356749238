"""Mixtures: exact at every prefix, seekable, invertible, and what happens when sources run out or weights change."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples, is_soak, pick_cases
from helpers import pairwise_first, through_json
from penstock.engine.base.random import derive_key
from penstock.engine.mixing import STOPS, Adopt, Exhausted, Mixture, SetWeights, event_from_json
from penstock.engine.mixing.segment import Segment, ceildiv, muldiv
from penstock.engine.mixing.split_tree import build_split_tree, convert_to_integer_weights
from penstock.errors import ConfigError, StateError
from penstock.report.target_shares import compute_target_shares
from penstock.schedule import Schedule
from relative_time import clocked

KINDS = ("equal", "pareto", "heavy", "random")
MANY = (2, 3, 10, 50, 500, 2000)


def names(n: int) -> tuple[str, ...]:
    return tuple(f"s{i:0{len(str(n - 1))}}" for i in range(n))


def find(mixture: Mixture, source: int, k: int) -> int:
    """Return the position of a draw; -1 if it is never made."""
    return int(mixture.positions_of(np.asarray([source]), np.asarray([k]))[0])


def draw_weights(rng: Any, kind: str, n: int) -> Any:
    match kind:
        case "equal":
            return np.ones(n)
        case "pareto":
            return rng.pareto(1.2, n) + 1e-3
        case "heavy":
            return np.where(np.arange(n) == rng.integers(n), max(n - 1, 2), 1).astype(float)
        case _:
            return rng.random(n) + 1e-3


def named(weights: Any) -> dict[str, float]:
    return dict(zip(names(len(weights)), np.asarray(weights).tolist(), strict=True))


def endless(weights: Any, **options: Any) -> Mixture:
    n = len(weights)
    return Mixture(names(n), named(weights), (None,) * n, **options)


def drawn(mixture: Mixture, n: int | None) -> Any:
    assert n is not None
    return mixture.at(np.arange(n))[0]


# ---------------------------------------------------------------- the ideal, worked out apart from the library


class Piece(NamedTuple):
    """From a position on: the weights, or those at given positions; and by which of them what is left over is shared."""

    begin: int
    share: Any
    weights: Callable[[Any], Any] | None = None


def ramps(schedule: Schedule, n: int, block: int = 1) -> list[Piece]:
    """The pieces of a schedule; within a block the weights are those at its first position."""
    out = list[Piece]()
    for span in schedule.spans(names(n)):

        def weights(positions: Any, span: Any = span) -> Any:
            first = np.maximum(positions // block * block, span.begin)
            return span.means(first, np.ones_like(first), 1)

        out.append(Piece(span.begin, span.first + span.last, None if span.constant else weights))
    return out


def worst(source: Any, pieces: Sequence[Piece], most: Any = None, every: int = 1) -> float:
    """Return the largest distance of a count from its ideal, at every prefix (or every `every`-th).

    The ideal is the sum of the weights in force, normalised over the present sources. An exhausted
    source (`most`) closes its account: its surplus or deficit goes to the others by weight. That of
    a source whose weight becomes 0 goes to the others in equal parts. A count is furthest off just
    before or just after a draw, or at the end of a piece.
    """
    n, length = len(pieces[0].share), len(source)
    most = np.full(n, length + 1) if most is None else np.asarray(most)
    order = np.argsort(source, kind="stable")
    seen = np.bincount(source, minlength=n)
    last = {int(order[seen[: i + 1].sum() - 1]): i for i in range(n) if 0 < seen[i] == most[i]}
    begins = sorted({p.begin for p in pieces} | {position + 1 for position in last})
    begins = [b for b in begins if b < length]
    counts, ideal, out, found = np.zeros(n), np.zeros(n), np.zeros(n, bool), 0.0
    for begin, end in zip(begins, [*begins[1:], length], strict=True):
        piece = [p for p in pieces if p.begin <= begin][-1]
        if begin - 1 in last:
            out[last[begin - 1]] = True
        share = np.where(out, 0, piece.share)
        there = share > 0
        by_weight, evenly = ((ideal - counts)[who].sum() for who in (out, ~there & ~out))
        ideal = np.where(
            there, ideal + by_weight * share / share.sum() + evenly / there.sum(), counts
        )
        if piece.weights is None:
            one = np.where(there, share / share.sum(), 0)
            due = lambda t, who=slice(None), ideal=ideal, one=one: ideal[who] + one[who] * t  # noqa: E731
        else:
            weights = np.where(out, 0, piece.weights(np.arange(begin, end)))
            sums = np.vstack(
                [np.zeros(n), np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=0)]
            )
            due = lambda t, who=slice(None), ideal=ideal, sums=sums: ideal[who] + sums[t, who]  # noqa: E731
        here = source[begin:end]
        if every == 1:
            at, k = np.arange(end - begin), numbered(here) + counts[here]
            found = max(
                found,
                float(np.abs(k - due(at, here)).max()),
                float(np.abs(k + 1 - due(at + 1, here)).max()),
            )
        for t in range(-begin % every, end - begin, every) if every > 1 else ():
            found = max(
                found, float(np.abs(counts + np.bincount(here[:t], minlength=n) - due(t)).max())
            )
        counts, ideal = counts + np.bincount(here, minlength=n), due(end - begin)
        found = max(found, float(np.abs(counts - ideal).max())) if every == 1 else found
    return found


def numbered(source: Any) -> Any:
    """0, 1, 2, ... for each source in the order in which it is drawn."""
    order = np.argsort(source, kind="stable")
    in_order = source[order]
    out = np.empty(len(source), np.int64)
    out[order] = np.arange(len(source)) - np.searchsorted(in_order, in_order)
    return out


# ---------------------------------------------------------------- never more than 2 off


@pytest.mark.parametrize("n", MANY)
@pytest.mark.parametrize("kind", KINDS)
def test_counts_keep_to_their_weights(n: int, kind: str) -> None:
    weights = draw_weights(np.random.default_rng(n), kind, n)
    assert worst(drawn(endless(weights, block_size=1), 12_000), [Piece(0, weights)]) <= 2
    mixture = endless(weights, block_size=60)
    assert worst(drawn(mixture, 12_000), [Piece(0, weights)], every=60) <= 2


@pytest.mark.parametrize("n,kind,gaps", pairwise_first(MANY, KINDS, ("short", "long")))
def test_counts_keep_to_weights_that_are_set_during_the_run(n: int, kind: str, gaps: str) -> None:
    rng = np.random.default_rng([n, len(kind), len(gaps)])
    for _ in range(1 if n > 100 else 5):
        steps = rng.choice(
            [1, 2, 5, 20, 100, n] if gaps == "short" else [700, 2_000], rng.integers(5, 21)
        )
        pieces, events = [Piece(0, draw_weights(rng, kind, n))], list[Any]()
        for at in np.cumsum(steps).tolist():
            weights = draw_weights(
                rng, KINDS[rng.integers(len(KINDS))] if gaps == "long" else kind, n
            )
            weights = np.where(rng.random(n) < 0.2, 0, weights) if rng.random() < 0.3 else weights
            weights = weights if weights.any() else np.ones(n)
            pieces.append(Piece(at, weights))
            events.append(SetWeights(at, named(weights)))
        mixture = endless(pieces[0].share, block_size=1, log=tuple(events))
        assert worst(drawn(mixture, pieces[-1].begin + 2_000), pieces) <= 2


RUN_OUT = [
    *((n, kind) for n in (2, 3, 10, 50) for kind in KINDS),
    (300, "pareto"),
    # Seconds each; every kind of weights runs out above with fewer sources.
    *([(300, kind) for kind in KINDS if kind != "pareto"] if is_soak() else []),
    *([(2000, "pareto")] if is_soak() else []),  # 25 seconds
]


@pytest.mark.parametrize("n,kind", RUN_OUT)
def test_counts_keep_to_their_weights_while_sources_run_out(n: int, kind: str) -> None:
    rng = np.random.default_rng(n)
    weights = draw_weights(rng, kind, n)
    in_proportion = np.maximum(1, weights / weights.sum() * 4_000).astype(
        int
    )  # all run out at about the same time
    for sizes in (1 + rng.integers(0, 6_000 // n + 1, n), in_proportion)[: 1 if n > 300 else 2]:
        m = Mixture(
            names(n), named(weights), tuple(sizes.tolist()), block_size=1, stop="all_exhausted"
        )
        assert m.size == sizes.sum()
        source = drawn(m, m.size)
        assert np.bincount(source, minlength=n).tolist() == sizes.tolist()
        assert worst(source, [Piece(0, weights)], most=sizes) <= 2


@pytest.mark.parametrize("n", [2, 3, 10, 50, *([500] if is_soak() else [])])
def test_counts_keep_to_their_weights_with_caps(n: int) -> None:
    rng = np.random.default_rng(n)
    weights, sizes, epochs = (
        rng.random(n) + 0.01,
        rng.integers(2, 40, n),
        rng.choice([0.5, 1, 1.3, 2.75], n),
    )
    caps = np.floor(np.round(sizes * epochs, 9)).astype(int)
    m = Mixture(names(n), named(weights), tuple(sizes.tolist()), 1, max_epochs=named(epochs))
    assert m.size == caps.sum()
    source = drawn(m, m.size)
    assert np.bincount(source, minlength=n).tolist() == caps.tolist()
    assert worst(source, [Piece(0, weights)], most=caps) <= 2
    half = np.arange(n) % 2 == 0
    some = {name: epochs[i] for i, name in enumerate(names(n)) if half[i]}
    m = Mixture(names(n), named(weights), tuple(sizes.tolist()), 1, max_epochs=some)
    assert worst(drawn(m, 5_000), [Piece(0, weights)], most=np.where(half, caps, 10**6)) <= 2


@pytest.mark.parametrize("n", MANY)
@pytest.mark.parametrize("interpolation", ["step", "linear", "cosine"])
def test_counts_keep_to_a_schedule(n: int, interpolation: Any) -> None:
    # Two of the kinds in a usual run, other ones for other numbers of sources.
    for kind in pick_cases(KINDS[MANY.index(n) % 2 :], 2) if n < 500 else ("pareto",):
        rng = np.random.default_rng([n, len(kind)])
        points = [(at, draw_weights(rng, kind, n)) for at in (50, 3_000, 5_500)]
        points[1][1][: max(1, n // 5)] = 0
        schedule = Schedule([(at, named(w)) for at, w in points], interpolation)
        for block in (1, 10) if n < 500 else (1,) if n == 500 else (20,):
            mixture = Mixture(names(n), schedule, (None,) * n, block_size=block)
            assert worst(drawn(mixture, 6_500), ramps(schedule, n, block), every=block) <= 2


def test_counts_keep_to_a_schedule_while_sources_run_out() -> None:
    rng = np.random.default_rng(4)
    for n in (2, 3, 10, 50):
        first, last = draw_weights(rng, "pareto", n), draw_weights(rng, "random", n)
        schedule = Schedule([(0, named(first)), (3_000, named(last))], "linear")
        sizes = rng.integers(1, 4_000 // n, n)
        m = Mixture(names(n), schedule, tuple(sizes.tolist()), 1, "all_exhausted")
        assert m.size == sizes.sum()
        assert worst(drawn(m, m.size), ramps(schedule, n), most=sizes) <= 2


@pytest.mark.parametrize("seed", range(6))
def test_counts_keep_to_weights_that_change_at_random_every_3_to_100_draws(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.choice([2, 3, 7, 20, 50]))
    pieces, events = [Piece(0, rng.dirichlet(np.full(n, 0.3)) + 1e-9)], list[Any]()
    for at in np.cumsum(rng.integers(3, 101, 60)).tolist():
        weights = (
            draw_weights(rng, KINDS[rng.integers(4)], n)
            if seed % 2
            else rng.dirichlet(np.full(n, 0.3)) + 1e-9
        )
        pieces.append(Piece(at, weights))
        events.append(SetWeights(at, named(weights)))
    mixture = endless(pieces[0].share, log=tuple(events), key=seed)
    assert worst(drawn(mixture, pieces[-1].begin + 1_000), pieces) <= 2


@pytest.mark.parametrize("n", [5, 20])
@pytest.mark.parametrize("gap", [1, 3])
def test_who_takes_out_whatever_is_most_ahead_forces_no_more_than_any_method_allows(
    n: int, gap: int
) -> None:
    mixture, live, position = endless(np.ones(n)), np.ones(n, np.bool_), 0
    pieces = [Piece(0, live.astype(float))]
    while live.sum() > 1:
        position += gap
        ahead = np.bincount(drawn(mixture, position), minlength=n) - sum(
            p.share / p.share.sum() * (q - p.begin)
            for p, q in zip(pieces, [*(p.begin for p in pieces[1:]), position], strict=True)
        )
        live[np.where(live, ahead, -np.inf).argmax()] = False
        mixture = mixture.with_event(SetWeights(position, named(live.astype(float))))
        pieces.append(Piece(position, live.astype(float)))
    assert worst(drawn(mixture, position + 10), pieces) <= 1 + sum(1 / i for i in range(1, n + 1))


def unlucky(many: int, of: int) -> list[Any]:
    """Return the random weightings that leave phases the least room."""
    rng, found = np.random.default_rng(0), list[tuple[float, int, Any]]()
    for i in range(of):
        weights = rng.pareto(0.6, int(rng.integers(3, 60))) + 1e-4
        segment = endless(weights)._eras[0].timeline.segment_at(0)
        assert isinstance(segment, Segment)
        inner = np.arange(len(weights) - 1)
        found.append(
            (
                float(
                    (
                        segment.phases.largest(inner) / (segment.total - segment.tables.share[:, 0])
                    ).max()
                ),
                i,
                weights,
            )
        )
    return [weights for _, _, weights in sorted(found)[:many]]


def test_counts_keep_to_the_unluckiest_weights() -> None:
    night = is_soak()  # 4 * 10^6 draws of 100 out of 10,000 then
    for weights in unlucky(100, 10_000) if night else unlucky(3, 300):
        source = drawn(endless(weights, key=1), 4_000_000 if night else 50_000)
        assert worst(source, [Piece(0, weights)]) <= 2


@pytest.mark.parametrize("n", [2, 3, 10, 50])
@pytest.mark.parametrize("kind", KINDS)
def test_two_seeds_agree_hardly_more_than_chance(n: int, kind: str) -> None:
    weights = draw_weights(np.random.default_rng(n), kind, n)
    one, other = (endless(weights, key=derive_key(seed, "mix")) for seed in (1, 2))
    segment = one._eras[0].timeline.segment_at(0)
    assert isinstance(segment, Segment)
    spread = (
        segment.phases.largest(np.arange(n - 1)) / (segment.total - segment.tables.share[:, 0])
    ).max()
    chance = float(((weights / weights.sum()) ** 2).sum())
    if spread > 0.999:
        assert float((drawn(one, 20_000) == drawn(other, 20_000)).mean()) <= chance + 0.06


# Seeds that came close to 2 or passed it when a part of the correction was taken away.


@pytest.mark.parametrize("n,seed", [(12, 168), (20, 50), (20, 104), (20, 275), (20, 297)])
def test_hard_cases_of_weights_that_are_set_during_the_run(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pieces, events = [Piece(0, rng.dirichlet(np.full(n, 0.3)) + 1e-9)], list[Any]()
    for at in np.cumsum(rng.choice([1, 3, 10, 30, 100, 3 * n, 10 * n, 1_000], 20)).tolist():
        pieces.append(Piece(at, rng.dirichlet(np.full(n, 0.3)) + 1e-9))
        events.append(SetWeights(at, named(pieces[-1].share)))
    mixture = endless(pieces[0].share, block_size=1, log=tuple(events))
    assert worst(drawn(mixture, pieces[-1].begin + 500), pieces) <= 1.75


@pytest.mark.parametrize("n,seed", [(5, 31), (5, 46), (10, 37), (20, 32), (1_000, 1)])
def test_hard_cases_of_ramps(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = [(at, named(rng.dirichlet(np.full(n, 0.3)) + 1e-9)) for at in (50, 3_000, 6_000)]
    schedule = Schedule(points, "linear")
    mixture = Mixture(names(n), schedule, (None,) * n, 1)
    assert worst(drawn(mixture, 6_500), ramps(schedule, n)) <= 1.6


def test_one_of_many_that_has_much_to_get_does_not_keep_all_others_from_theirs() -> None:
    rng, n = np.random.default_rng(2), 1_000
    first, second, third = (rng.pareto(1.2, n) + 1e-3 for _ in range(3))
    second[0], third = 0, np.where(rng.random(n) < 0.2, 0, third)
    schedule = Schedule(
        [(100, named(first)), (5_000, named(second)), (10_000, named(third))], "linear"
    )
    assert (
        worst(drawn(Mixture(names(n), schedule, (None,) * n, 1), 10_500), ramps(schedule, n)) <= 1.6
    )


def test_weights_set_inside_a_block_are_kept_to_from_the_next_blocks_on() -> None:
    # What a cut block gave too much of can only wait its turn; with weights this even that is less than a block.
    rng = np.random.default_rng(0)
    for n in (2, 10, 200):
        a, b = rng.uniform(0.5, 1, n), rng.uniform(0.5, 1, n)
        mixture = endless(a, block_size=1_000, log=(SetWeights(1_437, named(b)),))
        source, share = (
            drawn(mixture, 9_437),
            (437 * a / a.sum() + 1_000 * a / a.sum(), b / b.sum()),
        )
        for blocks in range(2, 9):
            counts = np.bincount(source[: 1_437 + 1_000 * blocks], minlength=n)
            assert float(np.abs(counts - share[0] - 1_000 * blocks * share[1]).max()) <= 2


def test_a_tiny_weight_gets_its_share() -> None:
    source = drawn(endless([0.9998, 0.0002], block_size=1_000), 100_000)
    assert [int((source[:t] == 1).sum()) for t in (25_000, 50_000, 100_000)] == [5, 10, 20]


def test_twelve_equal_sources_share_blocks_of_ten() -> None:
    counts = np.bincount(drawn(endless(np.ones(12), block_size=10), 120), minlength=12)
    assert counts.tolist() == [10] * 12
    assert all(
        len(set(drawn(endless(np.ones(12), block_size=10), 600)[i : i + 10])) == 10
        for i in range(0, 600, 60)
    )


def test_29_of_100_is_29() -> None:
    assert np.bincount(drawn(endless([0.29, 0.71], block_size=100), 100)).tolist() == [29, 71]


@pytest.mark.parametrize(
    "weights,share", [([0.7, 0.3], 700), ([1, 1.999], 333), ([1.0, 1.005], 499)]
)
def test_weights_are_not_truncated(weights: list[float], share: int) -> None:
    assert np.bincount(drawn(endless(weights), 1_000))[0] in (share, share + 1)
    exact = 10**6 * weights[0] / sum(weights)
    assert abs(endless(weights).counts(10**6)[0] - exact) < 1


def test_many_components_are_not_nested_floors() -> None:
    for n in (5, 30):
        weights = 1 + np.arange(n) % 7
        assert worst(drawn(endless(weights, block_size=1), 5_000), [Piece(0, weights)]) <= 2


def test_exact_proportions_stay_exact_far_away() -> None:
    assert endless([3, 1], block_size=1).counts(4 * 10**15).tolist() == [3 * 10**15, 10**15]
    assert endless([0.1, 0.2, 0.3, 0.4]).counts(10**15).tolist() == [
        10**14,
        2 * 10**14,
        3 * 10**14,
        4 * 10**14,
    ]
    far = endless(np.random.default_rng(1).random(50)).counts(10**12)
    weights = np.random.default_rng(1).random(50)
    assert float(np.abs(far - 10**12 * (weights / weights.sum())).max()) <= 2


# ---------------------------------------------------------------- seeking


MIXTURES: list[tuple[str, Callable[[], Mixture]]] = [
    ("static", lambda: endless([5, 3, 1], block_size=1)),
    ("static in blocks", lambda: endless([5, 3, 1], block_size=7)),
    ("one source", lambda: endless([2.0], block_size=3)),
    ("a source without weight", lambda: endless([1, 0, 1], block_size=4)),
    ("large blocks", lambda: endless([0.3, 0.5, 0.2], block_size=5_000)),
    ("many sources", lambda: endless(np.arange(1, 301), block_size=50)),
    ("all_exhausted", lambda: Mixture(names(3), None, (400, 900, 250), 10, "all_exhausted", key=3)),
    (
        "oversample",
        lambda: Mixture(names(3), None, (400, 900, 250), 10, "all_exhausted_oversample", key=3),
    ),
    ("first_exhausted", lambda: Mixture(names(2), None, (700, 900), 64, "first_exhausted", key=3)),
    ("caps", lambda: Mixture(names(2), {"s0": 2, "s1": 1}, (700, 900), 64, max_epochs={"s0": 1.5})),
    ("schedule", lambda: Mixture(names(2), RAMP, (None, None), 1)),
    ("schedule in blocks", lambda: Mixture(names(2), RAMP, (None, None), 30)),
    (
        "schedule while running out",
        lambda: Mixture(names(2), RAMP, (600, 800), 30, "all_exhausted"),
    ),
    ("events", lambda: endless([1, 1, 1], block_size=20, log=LOG)),
]
RAMP = Schedule(
    [(100, {"s0": 1, "s1": 9}), (777, {"s0": 3, "s1": 1}), (900, {"s0": 1, "s1": 0})], "linear"
)
LOG = (
    SetWeights(33, {"s0": 1, "s1": 0, "s2": 5}),
    SetWeights(500, Schedule([(0, named([1, 1, 1])), (999, named([1, 9, 1]))], "cosine")),
    Exhausted(700, "s2", 300),
    SetWeights(1_111, {"s0": 4, "s1": 1, "s2": 1}),
)
every_mixture = pytest.mark.parametrize(
    "make", [make for _, make in MIXTURES], ids=[name for name, _ in MIXTURES]
)


def length(mixture: Mixture) -> int:
    return 1_500 if mixture.size is None else min(1_500, mixture.size)


@every_mixture
def test_draws_of_a_source_are_counted_in_the_order_in_which_they_come(
    make: Callable[[], Mixture],
) -> None:
    mixture = make()
    source, k = mixture.at(np.arange(length(mixture)))
    assert (k == numbered(source)).all()


@pytest.mark.parametrize("n", [1, 2, 3, 10, 50])
@pytest.mark.parametrize("owed", [False, True])
def test_node_by_node_gives_the_draws_of_level_by_level(n: int, owed: bool) -> None:
    weights = named(np.random.default_rng(n).pareto(1.2, n) + 1e-2)
    log = (SetWeights(300, dict.fromkeys(weights, 1.0)), SetWeights(323, weights)) if owed else ()
    mixture = Mixture(tuple(weights), weights, (None,) * n, key=n, log=log)
    for first in (450, 10**6, 10**12):
        segment = mixture._segment(first)
        assert isinstance(segment, Segment)
        low = first - segment.start
        for high in (low + 1, low + 3_000):
            one, other = segment._draws_by_node(low, high, 0), segment._draws_by_level(low, high, 0)
            assert (one[0] == other[0]).all() and (one[1] == other[1]).all()


@every_mixture
def test_find_is_the_inverse(make: Callable[[], Mixture]) -> None:
    mixture = make()
    source, k = mixture.at(np.arange(length(mixture)))
    for position in range(0, len(source), 13 if is_soak() else 67):
        assert find(make(), int(source[position]), int(k[position])) == position
        assert find(mixture, int(source[position]), int(k[position])) == position


@every_mixture
def test_counts_are_sums_of_draws(make: Callable[[], Mixture]) -> None:
    mixture, fresh = make(), make()
    source = drawn(mixture, length(mixture))
    for position in [*range(0, len(source), 37), len(source)]:
        assert (
            fresh.counts(position).tolist()
            == np.bincount(source[:position], minlength=len(mixture.names)).tolist()
        )


@every_mixture
def test_the_order_of_asking_and_the_chunks_do_not_matter(make: Callable[[], Mixture]) -> None:
    whole = make()
    source, k = whole.at(np.arange(length(whole)))
    rng = np.random.default_rng(0)
    shuffled, asked = rng.permutation(len(source)), make()
    for chunk in np.array_split(shuffled, 40):
        found = asked.at(chunk)
        assert (found[0] == source[chunk]).all() and (found[1] == k[chunk]).all()
    for size in (1, 17, 256):
        asked = make()
        begins = list(range(0, len(source), size))[:: max(1, len(source) // size // 50)]
        for begin in (begins, begins[::-1])[size % 2]:
            chunk = np.arange(begin, min(begin + size, len(source)))
            found = asked.at(chunk)
            assert (found[0] == source[chunk]).all() and (found[1] == k[chunk]).all()
    for world in (2, 8):
        ranks = [make().at(np.arange(rank, len(source), world))[0] for rank in range(world)]
        assert all((ranks[rank] == source[rank::world]).all() for rank in range(world))
    assert (make().at(np.asarray([5, 5, 3, 5]))[1] == k[[5, 5, 3, 5]]).all()


@every_mixture
def test_a_pickled_mixture_is_the_same_and_small(make: Callable[[], Mixture]) -> None:
    mixture = make()
    expected = mixture.at(np.arange(length(mixture)))
    saved = pickle.dumps(mixture)
    again = pickle.loads(saved)
    assert again == mixture and len(saved) < 20_000
    assert all(
        (a == b).all() for a, b in zip(again.at(np.arange(length(mixture))), expected, strict=True)
    )


def test_large_strides_and_far_positions_agree_with_neighbours() -> None:
    for block in (1, 10, 1_000):
        mixture = endless(np.arange(1, 40), block_size=block)
        base = 10**12 + 123
        source, k = mixture.at(np.arange(base, base + 40_000))
        picked = np.arange(0, 40_000, 1_999)
        found = endless(np.arange(1, 40), block_size=block).at(base + picked)
        assert (found[0] == source[picked]).all() and (found[1] == k[picked]).all()
        spread = np.asarray([0, 10**6, 10**9, base + 5, 10**15])
        together = mixture.at(spread)
        alone = [mixture.at(spread[i : i + 1]) for i in range(len(spread))]
        assert together[0].tolist() == [int(s[0]) for s, _ in alone]
        assert together[1].tolist() == [int(k[0]) for _, k in alone]


@pytest.mark.parametrize("n", [500, 2000])
@pytest.mark.parametrize("block", [1, 1_000])
def test_position_1e12_takes_milliseconds(n: int, block: int) -> None:
    weights = named(draw_weights(np.random.default_rng(0), "pareto", n))
    mixtures, drawn = dict[int, Mixture](), dict[int, tuple[int, int]]()

    def at(i: int) -> None:
        mixtures[i] = Mixture(names(n), weights, (None,) * n, block)
        source, k = mixtures[i].at(np.asarray([10**12]))
        drawn[i] = int(source[0]), int(k[0])

    assert clocked(at, 5) < 20
    assert clocked(lambda i: find(mixtures[i], *drawn[i]), 5) < 20
    assert {find(mixture, *drawn[i]) for i, mixture in mixtures.items()} == {10**12}


def test_a_long_ramp_over_many_sources_is_cheap() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.dirichlet(np.full(500, 0.5)), rng.dirichlet(np.full(500, 0.5))
    mixture = Mixture(
        names(500), Schedule([(0, named(a)), (2_000_000, named(b))], "linear"), (None,) * 500, 1_000
    )
    assert clocked(lambda _: mixture.counts(2_000_000)) < 500
    counts = mixture.counts(2_000_000)
    edges = np.arange(2_000)[:, None] / 2_000
    assert float(np.abs(counts - 1_000 * (a + (b - a) * edges).sum(axis=0)).max()) <= 2


def test_running_out_of_300_sources_is_cheap() -> None:
    rng = np.random.default_rng(0)
    sizes, weights = rng.integers(1, 100_000, 300), draw_weights(rng, "pareto", 300)
    mixture = Mixture(names(300), named(weights), tuple(sizes.tolist()), stop="all_exhausted")
    assert clocked(lambda _: mixture.counts(int(sizes.sum()))) < 3_000
    assert mixture.counts(int(sizes.sum())).tolist() == sizes.tolist()


def test_a_ramp_of_a_trillion_samples_is_followed_in_stairs() -> None:
    schedule = Schedule([(0, {"s0": 1, "s1": 3}), (10**12, {"s0": 3, "s1": 1})], "linear")
    mixture = Mixture(names(2), schedule, (None, None), 1_000)
    mean = 10**12 // 2 - 125  # weights are those at the first sample of each block of 1,000
    assert abs(mixture.counts(10**12)[0] - (mean - 10**3 // 4 + 125)) <= 2
    assert mixture.weights_at(10**12 // 2)["s0"] == pytest.approx(0.5, abs=1e-4)


def test_a_ramp_keeps_its_integral_sample_by_sample() -> None:
    points = [(0, {"s0": 0.2, "s1": 0.8}), (10_000, {"s0": 0.5, "s1": 0.5})]
    for interpolation in ("linear", "cosine"):
        mixture = Mixture(names(2), Schedule(points, interpolation), (None, None), 1)
        assert abs(mixture.counts(10_000)[0] - 3_500) <= 2


# ---------------------------------------------------------------- blocks


@pytest.mark.parametrize("block", [1, 4, 7])
def test_draws_that_are_never_made_have_no_place(block: int) -> None:
    mix = Mixture(
        ("a", "b"),
        {"a": 1, "b": 2},
        (5, 9),
        key=3,
        stop="all_exhausted",
        block_size=block,
        max_epochs=1,
    )
    source, k = mix.at(np.arange(14))
    assert sorted(zip(source.tolist(), k.tolist(), strict=True)) == [
        *((0, i) for i in range(5)),
        *((1, i) for i in range(9)),
    ]
    asked = [(i, draw) for i, most in ((0, 5), (1, 9)) for draw in range(most + 3)]
    found = mix.positions_of(*(np.asarray(column) for column in zip(*asked, strict=True)))
    for (i, draw), place in zip(asked, found.tolist(), strict=True):
        assert place == next((at for at in range(14) if (source[at], k[at]) == (i, draw)), -1)


def test_a_block_permutes_the_plain_interleave() -> None:
    stop: Any
    for stop, sizes in (
        ("restart", (None,) * 3),
        ("all_exhausted", (40, 50, 11)),
        ("first_exhausted", (40, 50, 11)),
    ):
        weights = {"s0": 3, "s1": 2, "s2": 1}
        plain = Mixture(names(3), weights, sizes, 1, stop)
        for block in (7, 10, 1_000):
            dealt = Mixture(names(3), weights, sizes, block, stop)
            assert dealt.size == plain.size
            whole = 3_000 if plain.size is None else plain.size
            a, b = drawn(plain, whole), drawn(dealt, whole)
            for t in [*range(0, whole, block), plain.size or 0]:
                assert (np.bincount(a[:t], minlength=3) == np.bincount(b[:t], minlength=3)).all()


def test_every_block_has_its_own_order_and_keeps_it() -> None:
    source = drawn(endless([1, 1], block_size=40, key=1), 4_000).reshape(-1, 40)
    assert len({row.tobytes() for row in source}) == 100
    assert (source == drawn(endless([1, 1], block_size=40, key=1), 4_000).reshape(-1, 40)).all()
    assert (
        (source != drawn(endless([1, 1], block_size=40, key=2), 4_000).reshape(-1, 40))
        .any(axis=1)
        .all()
    )


@pytest.mark.parametrize("keys", [(42, 43), (derive_key(42, "mix"), derive_key(43, "mix"))])
def test_neighbouring_seeds_are_not_shifted_copies(keys: tuple[int, int]) -> None:
    a, b = (
        drawn(endless([1, 1], block_size=100, key=key), 10_000).reshape(-1, 100) * 2 - 1.0
        for key in keys
    )
    for lag in range(-60, 61):
        x, y = a[max(0, lag) : 100 + min(0, lag)], b[max(0, -lag) : 100 - max(0, lag)]
        assert abs(float((x * y).mean())) < 5 / np.sqrt(x.size)
    assert float(np.abs(a @ b.T / 100).max()) < 0.6


def test_a1_the_order_of_names_does_not_matter() -> None:
    flows = {
        name: ps.from_sequence([f"{name}{i}" for i in range(9)]) for name in ("c", "a", "d", "b")
    }
    schedule = [(0, {"a": 1, "b": 1, "c": 1, "d": 1}), (20, {"a": 4, "b": 1, "c": 1, "d": 0})]
    for weights in (dict.fromkeys("abcd", 1), {"a": 1, "b": 2, "c": 2.0, "d": 1}, schedule):
        found = list[Any]()
        for order in permutations("abcd"):

            def turned(table: Any, order: Any = order) -> Any:
                return {name: table[name] for name in order}

            asked: Any = turned(weights) if isinstance(weights, dict) else None
            asked = asked or ps.Schedule(
                [(at, turned(table)) for at, table in schedule], "linear", stop={"d": 30}
            )
            ds = ps.mix(turned(flows), asked, seed=3, max_epochs=turned(dict.fromkeys("abcd", 2)))
            found.append((list(ds), ds.tree.description()))
        assert all(each == found[0] for each in found)


def test_a1_a_mixture_takes_its_names_sorted() -> None:
    with pytest.raises(ConfigError, match="sorted, distinct names"):
        Mixture(("y", "x"), None, (None, None))


def test_a10_numbers_are_normalised() -> None:
    flows = {"a": ps.from_sequence(range(9)), "b": ps.from_sequence(range(9))}
    floats: dict[str, Any] = {"a": 1.0, "b": np.float32(2)}
    assert (
        ps.mix(flows, {"a": 1, "b": 2}).tree.description()
        == ps.mix(flows, floats).tree.description()
    )
    one, other = (ps.mix(flows, max_epochs=n, temperature=n).tree for n in (2, 2.0))
    assert json.dumps(one.description()) == json.dumps(other.description())
    assert json.dumps(SetWeights(3, {"b": 1.0, "a": 2}).to_json()) == json.dumps(
        SetWeights(3, {"a": 2, "b": 1}).to_json()
    )


def test_golden_draws() -> None:
    assert drawn(endless([5, 3, 1]), 27).tolist() == GOLDEN_PLAIN
    assert drawn(endless([5, 3, 1], block_size=9, key=1), 27).tolist() == GOLDEN_BLOCKS
    m = Mixture(names(3), None, (3, 5, 2), 1, "all_exhausted")
    assert drawn(m, 10).tolist() == GOLDEN_EXHAUSTED
    m = endless([1, 2, 3, 4], block_size=1, log=(SetWeights(7, named([4, 3, 2, 1])),))
    assert drawn(m, 17).tolist() == GOLDEN_EVENT


GOLDEN_PLAIN = [0, 1, 0, 1, 1, 0, 0, 0, 2, 2, 0, 1, 0, 0, 0, 1, 0, 1, 0, 2, 0, 1, 1, 0, 0, 0, 1]
GOLDEN_BLOCKS = [0, 0, 2, 1, 0, 0, 1, 0, 1, 2, 1, 0, 0, 1, 1, 0, 0, 0, 2, 0, 0, 1, 0, 1, 0, 1, 0]
GOLDEN_EXHAUSTED = [0, 2, 1, 0, 2, 1, 1, 0, 1, 1]
GOLDEN_EVENT = [3, 0, 2, 1, 3, 3, 2, 1, 0, 2, 1, 0, 3, 1, 0, 2, 0]

# ---------------------------------------------------------------- stop rules


LENGTHS = (1, 2, 3, 7, 30, 100)


@pytest.mark.parametrize("block", [1, 7, 10, 1_000])
@pytest.mark.parametrize("stop", STOPS)
def test_stop_rules_end_and_lose_nothing(stop: Any, block: int) -> None:
    for a, b, weights in pairwise_first(LENGTHS, LENGTHS, ([1, 1], [0.9, 0.1], [1, 7])):
        check_stop([a, b], weights, stop, block)
    for sizes in ([1, 30, 100], [7, 7, 7], [100, 3, 2]):
        for weights in ([1, 1, 1], [5, 1, 3], [0.001, 1, 0.5]):
            check_stop(sizes, weights, stop, block)


def check_stop(sizes: list[int], weights: Sequence[float], stop: Any, block: int) -> None:
    n = len(sizes)
    m = Mixture(names(n), named(weights), tuple(sizes), block, stop, key=block)
    if stop == "restart":
        assert m.size is None
        source, k = m.at(np.arange(3 * sum(sizes)))
        assert (k == numbered(source)).all()
        return
    assert m.size is not None
    source, k = m.at(np.arange(m.size))
    counts = np.bincount(source, minlength=n)
    assert (k == numbered(source)).all()
    assert counts.tolist() == m.counts(m.size).tolist()
    assert m.passes.tolist() == [-(-c // s) for c, s in zip(counts.tolist(), sizes, strict=True)]
    with pytest.raises(IndexError):
        m.at(np.asarray([m.size]))
    if stop == "all_exhausted":
        assert counts.tolist() == sizes
        return
    free = endless(
        weights, key=block
    )  # these two rules never change the interleave, they only end it
    if stop == "first_exhausted":
        assert (counts <= sizes).all() and (counts == sizes).any()
        assert m.size == min(find(free, i, size) for i, size in enumerate(sizes))
    else:
        assert (counts >= sizes).all()
        assert m.size == 1 + max(find(free, i, size - 1) for i, size in enumerate(sizes))


@pytest.mark.parametrize("length,other", [(30, 100), (28, 100), (100, 30)])
def test_all_exhausted_neither_hangs_nor_stops_early(length: int, other: int) -> None:
    for block in (1, 10, 1_000):
        m = Mixture(names(2), None, (length, other), block, "all_exhausted")
        assert np.bincount(drawn(m, length + other)).tolist() == [length, other]


def test_first_exhausted_ends_at_the_first_draw_that_would_repeat() -> None:
    m = Mixture(names(2), {"s0": 0.7, "s1": 0.3}, (4_708, 60_000), 1, "first_exhausted")
    assert m.size is not None and 6_725 <= m.size <= 6_727
    assert m.counts(m.size)[0] == 4_708
    assert Mixture(
        names(3), {"s0": 1, "s1": 2, "s2": 1}, (10, 20, 5), 1, "first_exhausted"
    ).size in range(20, 25)


@pytest.mark.parametrize("stop", STOPS)
def test_a_source_of_weight_zero_is_never_drawn_and_never_counts(stop: Any) -> None:
    m = Mixture(names(3), {"s0": 1, "s1": 0, "s2": 1}, (5, 1, 9), 4, stop)
    assert m.opened == (True, False, True)
    assert 1 not in drawn(m, m.size or 500)
    assert m.size == {
        "restart": None,
        "first_exhausted": 10,
        "all_exhausted": 14,
        "all_exhausted_oversample": 18,
    }[stop] or (
        stop != "restart"
        and abs(int(m.size or 0) - {"first_exhausted": 10, "all_exhausted_oversample": 17}[stop])
        <= 1
    )


@pytest.mark.parametrize(
    "caps,want", [(0.5, [5, 3]), (1, [10, 7]), (1.5, [15, 10]), ({"s0": 0.25, "s1": 2}, [2, 14])]
)
def test_caps_are_exact_to_the_sample(caps: Any, want: list[int]) -> None:
    for block in (1, 10, 1_000):
        m = Mixture(names(2), {"s0": 1, "s1": 3}, (10, 7), block, max_epochs=caps)
        assert m.size == sum(want)
        assert np.bincount(drawn(m, sum(want))).tolist() == want
    assert Mixture(names(1), None, (100,), max_epochs=0.29).size == 29


def test_caps_and_the_other_rules() -> None:
    def size(stop: Any, caps: Any) -> int | None:
        return Mixture(names(2), None, (10, 40), 1, stop, max_epochs=caps).size

    assert size("restart", {"s0": 2}) is None
    assert size("all_exhausted", {"s0": 0.5}) == 45
    assert size("all_exhausted", 3) == 50
    assert size("first_exhausted", {"s0": 0.5}) in (10, 11)
    assert size("first_exhausted", 2) in (20, 21)
    assert size("all_exhausted_oversample", {"s0": 2}) == 60


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted", "all_exhausted_oversample"])
def test_the_size_is_none_where_it_depends_on_what_is_not_known(stop: Any) -> None:
    assert Mixture(names(2), None, (None, None), stop=stop).size is None
    known = Mixture(names(2), None, (10, None), stop=stop).size
    assert (known is None) == (stop != "first_exhausted")
    with pytest.raises(ConfigError, match="endless"):
        _ = Mixture(names(2), None, (10, 10)).passes


def test_temperature_takes_roots_of_sizes() -> None:
    assert Mixture(names(2), None, (100, 400), temperature=1).weights_at(0) == pytest.approx(
        {"s0": 0.2, "s1": 0.8}
    )
    assert Mixture(names(2), None, (100, 400), temperature=2).weights_at(0) == pytest.approx(
        {"s0": 1 / 3, "s1": 2 / 3}
    )
    flat = Mixture(names(2), None, (1, 10**9), temperature=1e6).weights_at(0)
    assert flat["s0"] == pytest.approx(0.5, abs=1e-4)


def test_tokens_per_sample_turn_shares_of_tokens_into_samples() -> None:
    m = Mixture(names(2), {"s0": 1, "s1": 1}, (None, None), lengths=(100.0, 300.0))
    assert m.weights_at(0) == pytest.approx({"s0": 0.75, "s1": 0.25})
    assert m.counts(4_000).tolist() == [3_000, 1_000]
    ramp = Schedule([(0, {"s0": 1, "s1": 1}), (8_000, {"s0": 0, "s1": 1})], "linear")
    later = Mixture(names(2), ramp, (None, None), 1, lengths=(100.0, 300.0))
    assert later.weights_at(4_000)["s0"] == pytest.approx(
        0.25 / 100 / (0.25 / 100 + 0.75 / 300), abs=1e-3
    )


# ---------------------------------------------------------------- schedules in a mixture


def test_a_schedule_switches_at_its_exact_position() -> None:
    schedule = Schedule([(0, {"s0": 1, "s1": 0}), (15, {"s0": 0, "s1": 1})])
    for block in (1, 4):
        source = drawn(Mixture(names(2), schedule, (None, None), block), 40)
        assert np.bincount(source[:16], minlength=2).tolist() == [15, 1]
        assert np.bincount(source, minlength=2).tolist() == [15, 25]


def test_weights_of_a_ramp_hold_for_a_block() -> None:
    schedule = Schedule([(0, {"s0": 1, "s1": 0}), (1_000, {"s0": 1, "s1": 1})], "linear")
    mixture = Mixture(names(2), schedule, (None, None), 100, key=1)
    source = drawn(mixture, 1_100)
    assert [int(source[n : n + 100].sum()) for n in (0, 500, 1_000)] == [0, 25, 50]
    assert (
        mixture.weights_at(599)
        == mixture.weights_at(500)
        == pytest.approx({"s0": 0.75, "s1": 0.25})
    )


def test_start_and_stop_of_a_source_are_exact() -> None:
    schedule = Schedule([(0, {"s0": 1, "s1": 1, "s2": 1})], start={"s1": 100}, stop={"s2": 250})
    source = drawn(Mixture(names(3), schedule, (None,) * 3, 1), 600)
    assert 1 not in source[:100] and 2 not in source[250:]
    assert np.bincount(source[100:250], minlength=3).tolist() == [50, 50, 50]


def test_sources_that_wait_for_a_later_start_are_an_error_when_all_others_have_run_out() -> None:
    schedule = Schedule([(0, {"s0": 1, "s1": 1})], start={"s1": 1_000})
    mixture = Mixture(names(2), schedule, (50, 50), 1, "all_exhausted")
    assert (drawn(mixture, 50) == 0).all()
    with pytest.raises(ConfigError, match=r"position 50 .*'s1'.* start only later"):
        mixture.at(np.asarray([50]))


@pytest.mark.parametrize("stop", ["restart", "all_exhausted", "all_exhausted_oversample"])
def test_sources_that_wait_for_a_later_start_are_refused_at_once_where_others_are_endless(
    stop: Any,
) -> None:
    """The run ended at position 100 of a mixture that never ends."""
    points = [(0, {"s0": 1, "s1": 1, "s2": 0})]

    def made(start: int, caps: dict[str, float]) -> Mixture:
        schedule = Schedule(points, start={"s1": start})
        return Mixture(names(3), schedule, (50, None, None), stop=stop, max_epochs=caps)

    if stop != "all_exhausted":
        assert made(100, {"s0": 2}).size is None
        with pytest.raises(ConfigError, match=r"position 100 .*\['s1'\] start only later"):
            assert made(101, {"s0": 2}).size is None
        assert made(101, {}).size is None
    else:
        with pytest.raises(ConfigError, match=r"position 50 .*\['s1'\] start only later"):
            assert made(51, {}).size is None
        assert made(50, {}).size is None


def test_a_source_of_a_schedule_that_runs_out_does_not_come_back() -> None:
    schedule = Schedule([(0, {"s0": 1, "s1": 3}), (300, {"s0": 5, "s1": 1})], "linear")
    m = Mixture(names(2), schedule, (100, 300), 10, "all_exhausted")
    assert m.size == 400
    assert np.bincount(drawn(m, 400)).tolist() == [100, 300]


def test_a6_a_ramp_on_which_all_that_is_left_starts_at_0_has_its_limit() -> None:
    points = [(0, {"s0": 1, "s1": 0, "s2": 0}), (2_000, {"s0": 0, "s1": 1, "s2": 3})]
    for interpolation in ("linear", "cosine"):
        schedule = Schedule(points, interpolation, stop={"s0": 0})
        assert schedule.weights(0) == schedule.weights(1_000) == {"s0": 0, "s1": 0.25, "s2": 0.75}
        m = Mixture(names(3), schedule, (None,) * 3)
        assert m.weights_at(0) == m.weights_at(1_999) == {"s0": 0, "s1": 0.25, "s2": 0.75}
        assert worst(drawn(m, 3_000), [Piece(0, np.asarray([0, 1, 3]))]) <= 2
        assert compute_target_shares(m, 2_000).tolist() == [0, 0.25, 0.75]
        once = Mixture(
            names(3), Schedule(points, interpolation), (300, None, None), max_epochs={"s0": 1}
        )
        source = drawn(once, 1_000)
        assert (
            once.weights_at(999)["s1"] == pytest.approx(0.25)
            and np.bincount(source).tolist()[0] == 300
        )


# ---------------------------------------------------------------- events


def test_an_event_leaves_the_past_alone() -> None:
    for block in (1, 50, 1_000):
        before = endless([3, 1, 1], block_size=block, key=9)
        source, k = before.at(np.arange(3_000))
        for event in (SetWeights(777, named([0, 1, 5])), Exhausted(777, "s0", 400)):
            after = before.with_event(event)
            found = after.at(np.arange(3_000))
            assert (found[0][:777] == source[:777]).all() and (found[1][:777] == k[:777]).all()
            assert 0 not in found[0][777:]
            assert (found[1] == numbered(found[0])).all()
            assert after == endless([3, 1, 1], block_size=block, key=9, log=(event,))
            again = endless([3, 1, 1], block_size=block, key=9, log=(event,)).at(np.arange(3_000))
            assert (again[0] == found[0]).all() and (again[1] == found[1]).all()
        assert (before.at(np.arange(3_000))[0] == source).all() and before.log == ()


def test_events_take_their_place_in_the_log() -> None:
    late, early = SetWeights(900, named([1, 4])), SetWeights(300, named([4, 1]))
    a = endless([1, 1], block_size=1).with_event(late).with_event(early)
    assert a.log == (early, late)
    assert (drawn(a, 2_000) == drawn(endless([1, 1], block_size=1, log=(early, late)), 2_000)).all()
    with pytest.raises(ConfigError, match=r"order .*\[900, 300\]"):
        a.with_log((late, early))


def test_weights_at_tells_what_is_in_force() -> None:
    m = Mixture(names(3), {"s0": 1, "s1": 1, "s2": 2}, (5, None, None), 1, max_epochs={"s0": 1})
    m = m.with_event(SetWeights(100, {"s0": 1, "s1": 3, "s2": 1}))
    assert m.weights_at(0) == {"s0": 0.25, "s1": 0.25, "s2": 0.5}
    assert m.weights_at(99) == pytest.approx({"s0": 0, "s1": 1 / 3, "s2": 2 / 3})
    assert m.weights_at(100) == {"s0": 0, "s1": 0.75, "s2": 0.25}
    assert m.live(0) == names(3) and m.live(50) == ("s1", "s2")


def test_weights_that_a_change_replaced_leave_no_gap() -> None:
    """The first schedule runs out of samples at position 300, before its second source starts."""
    steps = Schedule([(0, {"s0": 1, "s1": 0}), (500, {"s0": 0, "s1": 1})], "step")
    m = Mixture(names(2), steps, (300, 300), stop="all_exhausted")
    with pytest.raises(ConfigError, match="at position 300 all sources"):
        m.at(np.arange(400))
    m = Mixture(names(2), steps, (300, 300), stop="all_exhausted")
    m = m.with_event(SetWeights(200, {"s0": 1, "s1": 1}))
    for mixture in (m, m.with_log(m.log)):
        assert np.bincount(drawn(mixture, 600)).tolist() == [300, 300]


def test_inputs_of_unknown_length_drop_out_where_they_ended() -> None:
    m = Mixture(names(3), {"s0": 2, "s1": 1, "s2": 1}, (None,) * 3, 10, "all_exhausted")
    lengths, position = {0: 40, 1: 25, 2: 60}, 0
    seen = dict.fromkeys(range(3), 0)
    while m.live(position):
        source, k = (int(x[0]) for x in m.at(np.asarray([position])))
        assert k == seen[source]
        if seen[source] == lengths[source]:
            m = m.with_event(Exhausted(position, names(3)[source], seen[source]))
            continue
        seen[source] += 1
        position += 1
    assert seen == lengths and m.size == position == 125
    assert np.bincount(drawn(m, 125)).tolist() == [40, 25, 60]


def test_first_exhausted_ends_where_an_input_of_unknown_length_ended() -> None:
    m = Mixture(names(2), None, (None, 100), 10, "first_exhausted").with_event(
        Exhausted(33, "s0", 17)
    )
    assert m.size == 33 and m.live(33) == ()


def test_adopting_goes_on_with_the_counts_of_another_mixture() -> None:
    counts = endless([1, 3]).counts(1_234)
    adopt = Adopt(1_234, {"s0": int(counts[0]), "s1": int(counts[1])})
    m = endless([1, 1, 2], block_size=10, log=(adopt,))
    source, k = m.at(np.arange(1_234, 5_234))
    assert np.bincount(source).tolist() == [1_000, 1_000, 2_000]
    first = {i: int(k[source == i][0]) for i in range(3)}
    assert first == {0: int(counts[0]), 1: int(counts[1]), 2: 0}
    assert find(m, 2, 0) == 1_234 + int(np.flatnonzero(source == 2)[0])
    for ask in (m.at, lambda positions: m.counts(int(positions[0]))):
        with pytest.raises(IndexError, match="1234.*mixture before it"):
            ask(np.asarray([1_000]))


def test_adopting_a_source_that_is_used_up_leaves_it_out() -> None:
    m = Mixture(
        names(2), None, (50, 80), 10, "all_exhausted", log=(Adopt(70, {"s0": 50, "s1": 20}),)
    )
    assert m.size == 130
    assert (m.at(np.arange(70, 130))[0] == 1).all()


def test_an_event_behind_the_end_is_refused() -> None:
    m = Mixture(names(2), None, (5, 5), 1, "all_exhausted", log=(SetWeights(11, named([1, 2])),))
    with pytest.raises(ConfigError, match="position 11 is after the end of the mixture, 10"):
        m.at(np.asarray([0]))


@pytest.mark.parametrize(
    "event",
    [
        SetWeights(3, {"a": 0.5, "b": 2}),
        SetWeights(3, Schedule([(0, {"a": 1}), (5, {"a": 2})], "cosine", start={"a": 0})),
        Exhausted(10**13, "a", 7),
        Adopt(0, {"a": 5, "b": 0}),
    ],
)
def test_events_are_json(event: Any) -> None:
    assert event_from_json(through_json(event.to_json())) == event


@pytest.mark.parametrize(
    "data", [{}, None, {"event": "other", "at": 3}, {"event": "adopt", "at": "x", "counts": 3}]
)
def test_damaged_events_are_refused(data: Any) -> None:
    with pytest.raises(StateError):
        event_from_json(data)


# ---------------------------------------------------------------- refusals


NAN, INF = float("nan"), float("inf")
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"weights": {"a": 1, "b": -0.1}}, "'b' is -0.1"),
    ({"weights": {"a": NAN, "b": 1}}, "'a' is nan"),
    ({"weights": {"a": INF, "b": 1}}, "'a' is inf"),
    ({"weights": {"a": 0, "b": 0}}, r"all weights are 0 \(\['a', 'b'\]\)"),
    ({"weights": {"a": 1}}, r"'b' is missing"),
    ({"weights": {"a": 1, "b": 1, "c": 1}}, r"'c' is unknown"),
    ({"weights": {}}, "no weights"),
    ({"names": (), "sizes": (), "weights": None}, "has no source; give at least one"),
    ({"names": ("a", "a")}, "sorted, distinct names"),
    ({"sizes": (3,)}, r"each a length or None; correct \['a', 'b'\] and \[3\]"),
    ({"sizes": (3, -1)}, r"correct \['a', 'b'\] and \[3, -1\]"),
    ({"sizes": (0, 3)}, "'a' is empty"),
    (
        {"sizes": (0, 3), "weights": Schedule([(0, {"a": 0, "b": 1}), (9, {"a": 1, "b": 1})])},
        "'a' is empty",
    ),
    (
        {"stop": "all_exhaused"},
        "'all_exhaused'.*'restart', 'first_exhausted', 'all_exhausted' or 'all_exhausted_oversample'",
    ),
    ({"block_size": 0}, "block_size is 0"),
    ({"block_size": 1.5}, "block_size is 1.5"),
    ({"max_epochs": 0}, "max_epochs of 'a' is 0"),
    ({"max_epochs": {"b": -2}}, "max_epochs of 'b' is -2"),
    ({"max_epochs": NAN}, "nan"),
    ({"max_epochs": INF}, "inf.*leave it out"),
    ({"max_epochs": "2"}, "'2'"),
    ({"max_epochs": {"z": 1}}, r"max_epochs names \['z'\]"),
    ({"max_epochs": {"a": 0.01}}, "'a'.*30 samples.*less than one sample"),
    ({"weights": None, "temperature": 0}, "temperature is 0"),
    ({"weights": None, "temperature": NAN}, "temperature is nan"),
    ({"temperature": 2}, "not both"),
    ({"weights": None, "temperature": 2, "sizes": (30, None)}, r"\['b'\].*not known"),
    ({"weights": None, "temperature": 2, "sizes": (30, 0)}, r"\['b'\].*empty"),
    ({"weights": Schedule([(0, {"a": 1})])}, r"'b' is missing"),
    ({"weights": Schedule([(0, {"a": 1, "b": 1, "c": 0})])}, r"'c' is unknown"),
    ({"weights": Schedule([(0, {"a": 1, "b": 1})], unit="steps")}, "in_samples"),
    ({"lengths": (1.0,)}, "one for each source"),
    ({"lengths": (1.0, 0.0)}, "above 0"),
    ({"log": (SetWeights(3, {"a": 1}),)}, r"'b' is missing"),
    ({"log": (Exhausted(3, "z", 1),)}, r"position 3 names \['z'\]"),
    ({"log": (Adopt(3, {"z": 1}),)}, r"position 3 names \['z'\]"),
    ({"log": (Adopt(3, {"a": -1}),)}, "negative counts"),
    ({"log": (SetWeights(-1, {"a": 1, "b": 1}),)}, "from 0 to"),
]


@pytest.mark.parametrize("changes,message", REFUSED)
def test_what_makes_no_sense_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    asked: dict[str, Any] = {
        "names": ("a", "b"),
        "weights": {"a": 1, "b": 2},
        "sizes": (30, 40),
        **changes,
    }
    with pytest.raises(ConfigError, match=message):
        Mixture(**asked)


def test_positions_and_draws_that_are_not_there_are_refused() -> None:
    m = Mixture(names(2), {"s0": 1, "s1": 0}, (5, 5), stop="all_exhausted")
    for ask in (lambda: m.at(np.asarray([5])), lambda: m.counts(6), lambda: m.weights_at(5)):
        with pytest.raises(IndexError, match="which has 5 draws"):
            ask()
    for source, k in ((0, 5), (1, 0), (0, -1)):
        assert find(m, source, k) == -1
    with pytest.raises(IndexError, match="-1"):
        m.at(np.asarray([-1]))
    assert [len(x) for x in m.at(np.arange(0))] == [0, 0]


def test_a13_within_2_at_every_prefix_as_it_comes() -> None:
    flows = {name: ps.from_sequence([name]).repeat() for name in ("a", "b", "c")}
    weights = {"a": 0.6, "b": 0.3, "c": 0.1}
    given = np.asarray([list(weights).index(x) for x in ps.mix(flows, weights, seed=5)[:20_000]])
    assert worst(given, [Piece(0, np.asarray(list(weights.values())))]) <= 2


def test_a15_positions_beyond_those_that_are_counted_are_refused() -> None:
    m, far = endless([3, 1, 2]), np.asarray([(1 << 60) - 3])
    source, k = m.at(far)
    assert find(m, int(source[0]), int(k[0])) == far[0]
    for beyond in ((1 << 60) + 1, 1 << 62, 1 << 63, 1 << 70):
        for ask in (m.counts, m.weights_at):
            with pytest.raises(IndexError):
                ask(beyond)
        for event in (SetWeights(beyond, named([1, 1, 1])), Exhausted(beyond, "s0", 1)):
            with pytest.raises(ConfigError):
                m.with_event(event).at(np.arange(3))
        with pytest.raises(ConfigError):
            m.with_event(Adopt(3, {"s0": beyond}))
        with pytest.raises(ConfigError, match="below 2\\^60"):
            Schedule([(0, named([1, 1])), (beyond, named([1, 2]))])
    assert (
        Mixture(names(2), None, (1 << 70, 3), stop="all_exhausted_oversample").counts(10).sum()
        == 10
    )


# ---------------------------------------------------------------- laws


@examples(60)
@given(data=st.data())
def test_laws_of_random_mixtures(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 6))
    weight = st.one_of(
        st.integers(0, 9), st.floats(0, 10, allow_subnormal=False), st.sampled_from([1e-9, 1e6])
    )
    weights = data.draw(st.lists(weight, min_size=n, max_size=n).filter(any))
    sizes = data.draw(st.lists(st.integers(1, 40), min_size=n, max_size=n))
    stop: Any = data.draw(st.sampled_from([s for s in STOPS if s != "restart"]))
    weights = [min(w, 1e3) if w > 1e-3 or w == 0 else 1e-3 for w in weights]
    m = Mixture(names(n), named(weights), tuple(sizes), data.draw(st.integers(1, 30)), stop, key=7)
    assert m.size is not None
    whole = min(m.size, 3_000)
    source, k = m.at(np.arange(whole))
    assert (k == numbered(source)).all()
    assert all(weights[i] > 0 for i in set(source.tolist()))
    for position in data.draw(st.lists(st.integers(0, whole - 1), max_size=8)) if whole else []:
        assert find(m, int(source[position]), int(k[position])) == position
        assert (m.counts(position) == np.bincount(source[:position], minlength=n)).all()


@examples(200)
@given(
    st.integers(1, 1 << 48).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, d))),
    st.integers(0, (1 << 60) - 1),
)
def test_products_beyond_64_bits_are_divided_exactly(share: tuple[int, int], m: int) -> None:
    d, a = share
    quotient, rest = muldiv(np.asarray([a]), np.asarray([m]), np.asarray([d]))
    assert divmod(a * m, d) == (int(quotient[0]), int(rest[0]))
    if a and m * d // a < 1 << 58:
        x = ceildiv(np.asarray([m]), np.asarray([d]), np.asarray([-(d // 2)]), np.asarray([a]))
        assert int(x[0]) == -(-(m * d - d // 2) // a)


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=60), st.randoms(use_true_random=False))
def test_inner_nodes_have_at_most_two_thirds_of_their_parent(
    weights: list[int], random: Any
) -> None:
    residual = np.asarray([random.uniform(-0.9, 0.9) for _ in weights])
    shape = build_split_tree(np.asarray(weights), residual)
    sums, n = shape.sums(np.asarray(weights)), len(weights)
    inner = np.arange(n, 2 * n - 2)
    assert (3 * sums[inner] <= 2 * sums[n + shape.parent[inner]]).all()
    assert sums[-1] == sum(weights)


def test_weights_become_whole_numbers_in_proportion() -> None:
    assert convert_to_integer_weights(np.asarray([0.29, 0.71])).tolist() == [29, 71]
    assert convert_to_integer_weights(np.asarray([6.0, 0.0, 9.0])).tolist() == [2, 0, 3]
    odd = np.asarray([1 / 3, 1e-300, 1e15, 0.0])
    found = convert_to_integer_weights(odd)
    assert (found > 0).tolist() == [True, True, True, False] and found.sum() <= 1 << 48
    assert convert_to_integer_weights(np.asarray([5e13 + 0.5, 5e13])).sum() <= 1 << 48


def test_caps_that_are_neither_a_number_nor_a_mapping_are_refused() -> None:
    inputs = {"a": ps.from_sequence([0]), "b": ps.from_iterable(lambda: iter([1]), name="b")}
    wrong: list[Any] = [(1, 2), [1], "5", {1}]
    for caps in wrong:
        with pytest.raises(
            ps.ConfigError, match="max_epochs is a .*give a number, or a mapping by name"
        ):
            ps.mix(inputs, max_epochs=caps)
