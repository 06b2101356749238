"""Weights that are set during a run: within another mixture, and for where lanes have ended."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

import penstock as ps
from penstock.engine.mixing import Adopt, Mixture
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    "above",
    [{"temperature": 1.0}, {"weights": {"i": 3, "x": 1}, "max_epochs": {"i": 0.5}}],
    ids=["temperature", "cap"],
)
def test_weights_within_do_not_change_what_a_mixture_above_has_given(above: Any) -> None:
    inner = ps.mix(
        {"a": ps.from_sequence(range(4)), "b": ps.from_sequence(range(40))},
        {"a": 1, "b": 1},
        stop="first_exhausted",
    )
    ds = ps.mix({"i": inner, "x": ps.from_sequence(range(50))}, **above)
    want = list(ps.Loader(ds)) if ds.plan.size is not None else None
    with ps.Loader(ds) as loader:
        given = [next(iter(loader)) for _ in range(20)]
        with pytest.raises(
            ps.ConfigError,
            match="set_weights would change the length of this mixture, and a mixture above it",
        ):
            loader.set_weights({"a": 1, "b": 9})
        assert want is None or given + list(loader) == want  # as if nobody had asked


def test_weights_within_change_where_the_one_above_does_not_look_at_lengths() -> None:
    inner = ps.mix(
        {"a": ps.from_sequence(range(4)), "b": ps.from_sequence(range(40))}, {"a": 1, "b": 1}
    )
    ds = ps.mix({"i": inner, "x": ps.from_sequence(range(50))}, {"i": 1, "x": 1})
    with ps.Loader(ds) as loader:
        keys = list[Any]()
        for number, _ in zip(range(60), loader, strict=False):
            keys += loader.keys()
            if number == 20:
                loader.set_weights({"a": 1, "b": 9})
        plan = ds.plan.for_state(loader.state_dict())
        assert [sample.key for sample in plan.at(slice(0, 60))] == keys


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("at", [30, 36, 38, 41, 60])
def test_weights_of_streams_may_be_set_for_where_some_lanes_have_ended(lanes: int, at: int) -> None:
    a = ps.from_sequence(range(20), name="a").filter(lambda x: x % 7 != 3)
    b = ps.from_sequence(range(30), name="b").filter(lambda x: x % 5 != 2)
    ds = ps.mix({"a": a, "b": b}, {"a": 1, "b": 1}, stop="all_exhausted")
    want = sorted(ps.Loader(ds, lanes=lanes))
    for taken in (0, 20, 33, 40):
        with ps.Loader(ds, lanes=lanes) as loader, ps.Loader(ds, lanes=lanes) as other:
            loader.set_weights({"a": 1, "b": 3}, at=at)
            given = list(islice(loader, taken))
            other.load_state_dict(loader.state_dict())
            assert sorted([*given, *other]) == want


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_weights_of_a_mixture_of_which_a_beginning_is_left_out(lanes: int) -> None:
    a, b = ps.from_sequence(range(300), name="a"), ps.from_sequence(range(1000, 1300), name="b")
    ds = ps.mix({"a": a, "b": b}, {"a": 1, "b": 1}).skip(5).filter(lambda x: x % 5)
    with ps.Loader(ds, lanes=lanes) as loader, ps.Loader(ds, lanes=lanes) as other:
        given = list(islice(loader, 40))
        at = loader.set_weights({"a": 0, "b": 1})
        given += islice(loader, 60)
        assert any(x < 1000 for x in given[:40])
        assert all(x >= 1000 for x in given[60:])
        other.set_weights({"a": 0, "b": 1}, at=at)
        assert list(islice(other, 100)) == given


@pytest.mark.parametrize("taken", [4, 9, 20])
def test_weights_of_an_endless_input_are_set_in_the_first_pass_only(taken: int) -> None:
    """A regression test: each pass of a zip that ends begins the endless mixture again, so weights
    set in a later pass changed delivered samples."""
    mixture = ps.mix({name: ps.from_sequence(range(7)) for name in "ab"}, seed=1)
    ds = ps.from_sequence(range(8), name="x").zip(mixture)
    with ps.Loader(ds) as loader:
        given = list[Any]()
        while len(given) < taken:
            given += [loader.keys() for _ in islice(loader, taken - len(given))]
        if taken < 8:
            assert loader.set_weights({"a": 1, "b": 3}) == taken
        else:
            with pytest.raises(ConfigError, match="the same samples in every pass"):
                loader.set_weights({"a": 1, "b": 3})
        plan = ds.plan.for_state(loader.state_dict())
    assert [[sample.key for sample in plan.at(step=step)] for step in range(taken)] == given


@pytest.mark.parametrize("surplus", [float("nan"), float("inf")])
def test_an_adopted_surplus_is_a_number_of_samples(surplus: float) -> None:
    event = Adopt(4, {"a": 2, "b": 2}, {"a": surplus})
    with pytest.raises(ConfigError, match="a surplus that is not a number of samples"):
        Mixture(("a", "b"), {"a": 1, "b": 1}, (None, None), log=(event,))
