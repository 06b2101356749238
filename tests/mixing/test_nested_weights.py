"""Weights of an inner mixture that are set during a run, where the one above it looks at its length."""

from __future__ import annotations

from typing import Any

import pytest

import penstock as ps


@pytest.mark.parametrize(
    "above", [{"temperature": 1.0}, {"weights": {"i": 3, "x": 1}, "max_epochs": {"i": 0.5}}], ids=["temperature", "cap"]
)
def test_weights_within_do_not_change_what_a_mixture_above_has_given(above: Any) -> None:
    inner = ps.mix(
        {"a": ps.from_sequence(range(4)), "b": ps.from_sequence(range(40))}, {"a": 1, "b": 1}, stop="first_exhausted"
    )
    ds = ps.mix({"i": inner, "x": ps.from_sequence(range(50))}, **above)
    want = list(ps.Loader(ds)) if ds.plan.size is not None else None
    with ps.Loader(ds) as loader:
        given = [next(iter(loader)) for _ in range(20)]
        with pytest.raises(ps.ConfigError, match="set_weights: a mixture above this one"):
            loader.set_weights({"a": 1, "b": 9})
        assert want is None or given + list(loader) == want  # as if nobody had asked


def test_weights_within_change_where_the_one_above_does_not_look_at_lengths() -> None:
    inner = ps.mix({"a": ps.from_sequence(range(4)), "b": ps.from_sequence(range(40))}, {"a": 1, "b": 1})
    ds = ps.mix({"i": inner, "x": ps.from_sequence(range(50))}, {"i": 1, "x": 1})
    with ps.Loader(ds) as loader:
        keys = list[Any]()
        for number, _ in zip(range(60), loader, strict=False):
            keys += loader.keys()
            if number == 20:
                loader.set_weights({"a": 1, "b": 9})
        plan = ds.plan.after(loader.state_dict())
        assert [sample.key for sample in plan.at(slice(0, 60))] == keys
