"""`plan.diff` of plans that agree for long: equal to comparing all samples, and without doing so."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from penstock.engine.plan.lookup import PlanLookup
from penstock.engine.plan.records import find_difference
from penstock.errors import ConfigError
from penstock.plan import count_agreeing

COMPARED = 1_500  # positions


@dataclass(frozen=True)
class Options:
    """Options of a random pipeline; two plans differ in one or two of them."""

    sizes: tuple[int, ...] = (40, 90, 25)
    longer: int = 0  # one document of the last source is so many tokens longer
    order: str = "shuffle"
    seed: int = 0
    weights: tuple[int, ...] = (3, 2, 1)
    later: tuple[int, ...] | None = None
    at: int = 200
    ramp: bool = False
    block_size: int = 1
    stop: str = "restart"
    max_epochs: float | None = None
    unit: str = "samples"
    one_source_per: int = 1
    change: int | None = None  # the position of a change of weights
    limit: int | None = None
    pack: str | None = None
    row: int = 16
    batch: int | None = None
    drop: bool = False


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "sizes": st.tuples(*[st.integers(8, 120)] * 3),
    "longer": st.integers(0, 1),
    "order": st.sampled_from(["shuffle", "repeat", "portion", "window", "endless", "in_order"]),
    "seed": st.integers(0, 1),
    "weights": st.tuples(*[st.integers(1, 4)] * 3),
    "later": st.none() | st.tuples(*[st.integers(0, 4)] * 3).filter(any),
    "at": st.integers(50, 900),
    "ramp": st.booleans(),
    "block_size": st.sampled_from([1, 10, 64]),
    "stop": st.sampled_from(
        ["restart", "first_exhausted", "all_exhausted", "all_exhausted_oversample"]
    ),
    "max_epochs": st.sampled_from([None, 1, 2.5, 6]),
    "unit": st.sampled_from(["samples", "tokens"]),
    "one_source_per": st.sampled_from([1, 1, 4]),
    "change": st.none() | st.integers(2, 30),
    "limit": st.none() | st.integers(100, 2_000),
    "pack": st.sampled_from([None, "concat_split", "best_fit"]),
    "row": st.sampled_from([8, 16]),
    "batch": st.none() | st.integers(2, 5),
    "drop": st.booleans(),
}


def source(name: str, size: int, options: Options) -> Any:
    rng = np.random.default_rng(len(name) + size)
    lengths = rng.integers(0 if size % 2 else 1, 8, size)
    lengths[-1] += options.longer if name == "c" else 0
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    ds: Any = ps.from_tokens(np.zeros(int(offsets[-1]), np.uint16), offsets, name=name)
    match options.order:
        case "shuffle":
            return ds.shuffle()
        case "repeat":
            return ds.shuffle().repeat(3)
        case "portion":
            return ds.split("20%")[0].shuffle()
        case "window":
            return ds.shuffle(window=8)
        case "endless":
            return ds.shuffle().repeat()
        case _:
            return ds


@cache
def plan_of(options: Options) -> Any:
    """Return the plan of some options; None if they are invalid."""
    names = "abc"
    weights: Any = dict(zip(names, options.weights, strict=True))
    if options.later is not None:
        points = [(0, weights), (options.at, dict(zip(names, options.later, strict=True)))]
        weights = ps.Schedule(points, "linear" if options.ramp else "step")
    try:
        ds: Any = ps.mix(
            {
                name: source(name, size, options)
                for name, size in zip(names, options.sizes, strict=True)
            },
            weights,
            seed=options.seed,
            block_size=options.block_size,
            stop=options.stop,  # type: ignore[arg-type]
            max_epochs=options.max_epochs,
            unit=options.unit,  # type: ignore[arg-type]
            one_source_per=options.one_source_per,
        )
        ds = ds if options.limit is None else ds.limit(options.limit)
        ds = ds if options.pack is None else ds.pack(options.row, options.pack)  # type: ignore[arg-type]
        ds = ds if options.batch is None else ds.batch(options.batch, options.drop, list)
        plan = ds.plan
        if options.change is not None:
            loader = ps.Loader(ds)
            for _ in zip(range(options.change), loader, strict=False):
                pass
            loader.set_weights({"a": 1, "b": 5, "c": 1})
            plan = plan.for_state(loader.state_dict())
        assert plan.at(0)
    except (ConfigError, IndexError):
        return None
    return plan


@st.composite
def pairs(draw: Any) -> tuple[Options, Options]:
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=8, unique=True))
    one = replace(Options(), **{name: draw(VALUES[name]) for name in names})
    changed = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=2, unique=True))
    return one, replace(one, **{name: draw(VALUES[name]) for name in changed})


def first_difference(one: Any, other: Any, within: range) -> int | None:
    part = slice(within.start, within.stop)
    return find_difference(one.at(part), other.at(part))


@given(pairs(), st.integers(0, 50))
@examples(400)
def test_the_first_difference_is_the_one_of_all_samples(
    options: tuple[Options, Options], start: int
) -> None:
    one, other = map(plan_of, options)
    if one is None or other is None:
        return
    ends = [plan.size for plan in (one, other) if plan.size is not None]
    within = range(start, max(min([COMPARED, *(3 * end for end in ends)]), start))
    expected = first_difference(one, other, within)
    assert one.diff(other, within).first == expected
    agreed = count_agreeing(one.compiled, other.compiled, within.stop)
    before = first_difference(one, other, range(agreed))
    assert before is None, (agreed, before)


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of positions that plans look up from now on."""
    counts, at = list[int](), PlanLookup._samples

    def count(self: Any, positions: Any) -> Any:
        counts.append(len(positions))
        return at(self, positions)

    monkeypatch.setattr(PlanLookup, "_samples", count)
    return counts


@pytest.mark.parametrize("unit", ["samples", "tokens"])
@pytest.mark.parametrize("pack", [None, "concat_split", "best_fit"])
def test_plans_that_agree_for_long_look_few_samples_up(
    unit: str, pack: str | None, lookups: list[int]
) -> None:
    later, base = 1_000_000, Options(sizes=(50_000, 90_000, 25_000), unit=unit, pack=pack)
    one = plan_of(replace(base, later=(1, 1, 1), at=later))
    other = plan_of(replace(base, later=(1, 1, 2), at=later))
    lookups.clear()
    found = one.diff(other, range(2_000_000))
    assert found.first is not None and found.first > 100_000
    assert sum(lookups) < 10_000
    assert one.at(found.first) != other.at(found.first)
    assert one.at(found.first - 1) == other.at(found.first - 1)


def test_equal_plans_look_no_sample_up(lookups: list[int]) -> None:
    base = Options(sizes=(50_000, 90_000, 25_000), unit="tokens", pack="best_fit", batch=4)
    plans = [plan_of.__wrapped__(base) for _ in range(2)]
    lookups.clear()
    assert not plans[0].diff(plans[1], range(10**9)) and not lookups


def test_a_cap_counts_from_its_first_missing_draw_on(lookups: list[int]) -> None:
    base = Options(sizes=(50_000, 90_000, 25_000))
    one, other = (plan_of(replace(base, max_epochs=cap)) for cap in (4, 3))
    lookups.clear()
    found = one.diff(other)
    assert found.first is not None and sum(lookups) < 1_000
    assert one.at(found.first) != other.at(found.first)
    assert one.at(found.first - 1) == other.at(found.first - 1)
