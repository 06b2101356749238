"""Fractions of the inputs of a mixture: fixed sets of samples by seed and name, repeated by the weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from helpers import numbers


def ids(ds: ps.Dataset, count: int = 600) -> list[Any]:
    return [ds[i] for i in range(count)]


@examples(60)
@given(
    n=st.integers(4, 60),
    more=st.integers(0, 30),
    fraction=st.sampled_from([0.25, "50%", 0.9, 1 / 3]),
    seed=st.integers(0, 5),
    orders=st.lists(st.sampled_from(["shuffle", "map", "window", "repeat"]), max_size=3),
)
def test_a_fraction_is_fixed(
    n: int, more: int, fraction: Any, seed: int, orders: list[str]
) -> None:
    """It repeats as a whole, whatever stands above it, and appended samples change no earlier choice."""

    def mixture(n: int, orders: list[str]) -> ps.Dataset:
        ds = numbers(n, "x")
        for order in orders:
            match order:
                case "shuffle":
                    ds = ds.shuffle()
                case "map":
                    ds = ds.map(int)
                case "window":
                    ds = ds.shuffle(window=3)
                case _:
                    ds = ds.repeat(2)
        return ps.mix({"a": ds}, unique_fraction={"a": fraction}, seed=seed)

    plain = mixture(n, [])
    chosen = list(dict.fromkeys(ids(plain, 2 * n)))
    share = 0.5 if fraction == "50%" else fraction
    assert abs(len(chosen) - share * n) <= 1 and chosen == sorted(chosen)
    size, above = len(chosen), mixture(n, orders)
    for p in range(4):
        passes = [above[i] for i in range(p * size, (p + 1) * size)]
        if "repeat" not in orders:  # which puts several passes into one
            assert sorted(passes) == chosen
    assert {*ids(above, 8 * size)} == {*chosen}
    grown = {x for x in ids(mixture(n + more, orders), 8 * (n + more)) if x < n}
    assert grown == {*chosen}


def test_seed_and_name_choose() -> None:
    inputs = {name: numbers(100, "x") for name in "ab"}
    found = [
        {*ids(ps.mix({name: inputs[name]}, unique_fraction=0.2, seed=seed))}
        for name, seed in (("a", 0), ("b", 0), ("a", 1), ("a", 0))
    ]
    assert found[0] == found[3] and len({frozenset(one) for one in found}) == 3
    both = ps.mix(inputs, unique_fraction={"a": 0.2})
    assert {*ids(both)} - found[0] == {*range(100)} - found[0]


def test_shares_caps_and_sizes_count_the_fraction() -> None:
    inputs = {"a": numbers(100, "a").shuffle(), "b": numbers(50, "b")}
    ds = ps.mix(inputs, unique_fraction={"a": 0.25}, stop="all_exhausted", max_epochs={"a": 2})
    assert len(ds) == 25 + 50
    assert ps.mix(inputs, unique_fraction={"a": 0.5}, temperature=1).plan.counts(1_000) == {
        "a": 500,
        "b": 500,
    }


def test_a_run_is_resumed_and_planned() -> None:
    def build() -> ps.Dataset:
        inputs = {"a": numbers(90, "a").shuffle().map(int), "b": numbers(30, "b").shuffle()}
        return ps.mix(inputs, {"a": 2, "b": 1}, unique_fraction={"a": "20%"}, seed=5).batch(3)

    loader = ps.Loader(build())
    run = iter(loader)
    for _ in range(17):
        next(run)
    state = loader.state_dict()
    wanted = [next(run).tolist() for _ in range(30)]
    again = ps.Loader(build())
    again.load_state_dict(state)
    run = iter(again)
    assert [next(run).tolist() for _ in range(30)] == wanted
    plan = build().plan
    chosen = {int(x) for step in range(40) for x in np.atleast_1d(build()[step])}
    unused = next(i for i in range(90) if i not in chosen and i >= 30)
    assert list(plan.find("a", unused)) == []


def test_another_fraction_is_another_pipeline() -> None:
    a, b = (ps.mix({"a": numbers(50, "a")}, unique_fraction=f) for f in (0.5, 0.4))
    loader = ps.Loader(a)
    next(iter(loader))
    with pytest.raises(ps.StateError, match="of another pipeline"):
        ps.Loader(b).load_state_dict(loader.state_dict())
    whole = ps.mix({"a": numbers(50, "a")})
    assert (
        whole.tree.description()
        == ps.mix({"a": numbers(50, "a")}, unique_fraction=1).tree.description()
    )


@pytest.mark.parametrize(
    ("fraction", "message"),
    [
        ({"b": 0.5}, r"unique_fraction names \['b'\]; the mixture has \['a'\]"),
        (0, "unique_fraction of 'a': 0: give a share between 0 and 1"),
        (1.5, "unique_fraction of 'a': 1.5: give a share between 0 and 1"),
        ({"a": "x"}, "unique_fraction of 'a': 'x': give a share between 0 and 1"),
        (0.01, "unique_fraction of 'a' is 0.01, which is less than one of its 20 samples"),
    ],
)
def test_invalid_fractions(fraction: Any, message: str) -> None:
    with pytest.raises(ps.ConfigError, match=message):
        ps.mix({"a": numbers(20, "a")}, unique_fraction=fraction)


def test_inputs_without_fixed_positions() -> None:
    stream = ps.from_iterable(lambda: iter(range(9)), identity=1)
    with pytest.raises(ps.IndexedError, match="unique_fraction of 'a' needs random access"):
        ps.mix({"a": stream}, unique_fraction=0.5)
    inner = ps.mix({"x": numbers(9, "x")})
    with pytest.raises(ps.ConfigError, match="the input is a mixture: give unique_fraction to it"):
        ps.mix({"a": inner.map(int)}, unique_fraction=0.5)
    endless = ps.zip(numbers(9, "x").repeat(), numbers(9, "y").repeat())
    with pytest.raises(ps.ConfigError, match="the input never ends"):
        ps.mix({"a": endless}, unique_fraction=0.5)
    filtered = ps.mix({"a": numbers(100, "x").filter(lambda x: x % 2)}, unique_fraction=0.5)
    assert 15 < len({*filtered.head(500)}) < 35


def test_a_rule_takes_no_fraction() -> None:
    class Alternate:
        def schedule(self, sizes: Any) -> Any:
            raise AssertionError

    with pytest.raises(ps.ConfigError, match="a rule replaces all other options"):
        ps.mix({"a": numbers(9, "x")}, unique_fraction=0.5, rule=Alternate())  # pyright: ignore[reportArgumentType]


def test_a_fraction_of_tuples_is_chosen_as_a_whole() -> None:
    """It was chosen among the partners, so tuples had samples of the wrong inputs."""
    pairs = numbers(40, "a").zip(numbers(40, "b").map(str), numbers(40, "c").map(float))
    for ds in (pairs, pairs.shuffle(seed=1).map(tuple), pairs.batch(2, collate=list)):
        mixed = ps.mix({"m": ds}, unique_fraction="25%", stop="all_exhausted")
        items = [each for item in mixed for each in (item if isinstance(item, list) else [item])]
        assert len(items) == 10
        assert all(b == str(a) and c == float(a) and isinstance(a, int) for a, b, c in items)
        assert len({a for a, _, _ in items}) == 10
    numbered = numbers(40, "a").map_with_index(lambda index, value: (index, value))
    found = list(ps.mix({"m": numbered}, unique_fraction="25%", stop="all_exhausted"))
    assert len(found) == 10 and len({value for _, value in found}) == 10
