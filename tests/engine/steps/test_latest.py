"""The last draw of each source: answers of a plan, position by position."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock as ps
from penstock.engine.steps.op import last_samples


def flows() -> dict[str, ps.Dataset]:
    return {
        name: ps.from_sequence(range(5 + 3 * i)).shuffle(seed=i) for i, name in enumerate("abc")
    }


MIXED: dict[str, Callable[[], ps.Dataset]] = {
    "mix": lambda: ps.mix(flows(), {"a": 3, "b": 2, "c": 1}, seed=1),
    "a pass": lambda: ps.mix(
        flows(), {"a": 3, "b": 2, "c": 1}, seed=1, stop="first_exhausted"
    ).repeat(),
    "nested": lambda: ps.mix(
        {"m": ps.mix(flows(), {"a": 1, "b": 1, "c": 1}), "z": ps.from_sequence(range(4))},
        {"m": 2, "z": 1},
    ),
    "mapped, in batches": lambda: (
        ps.mix(flows(), {"a": 3, "b": 2, "c": 1}, seed=1).map(str).batch(2)
    ),
}


@pytest.mark.parametrize("name", MIXED)
def test_what_came_last_of_each_source_is_what_the_plan_says(name: str) -> None:
    ds = MIXED[name]()
    op, plan, leaves = ds.compiled.op, ds.plan, ds.compiled.builder.leaves
    lengths = {
        leaf.name: (4 if leaf.name == "z" else 5 + 3 * "abc".index(leaf.name[-1]))
        for leaf in leaves
    }
    last, seen = dict[str, tuple[int, int]](), set[str]()
    for position in range(1, 60):
        last |= {sample.source: (sample.epoch, sample.index) for sample in plan.at(position - 1)}
        found: dict[int, Any] = last_samples(op, position)
        told = {
            leaves[leaf].name: (one[0][-1], one[1][-1])
            for leaf, one in found.items()
            if len(one) == 3
        }
        passed = plan.counts(position)
        if name != "a pass":
            assert told.keys() == {each for each in last if passed[each] % lengths[each]}
        assert told.items() <= last.items()
        seen |= told.keys()
    assert seen == {*lengths}


def test_of_sources_that_are_shuffled_together_it_is_the_last_of_all() -> None:
    both = ps.from_sequence(range(4)).concat(ps.from_sequence(range(3))).shuffle(seed=1)
    op, plan = both.compiled.op, both.plan
    for position in range(1, 7):
        (sample,), told = plan.at(position - 1), last_samples(op, position)
        of = plan.sources.index(sample.source)
        assert told[0] == told[1] == [[0], [sample.index], [of]]
    assert last_samples(op, 7) == {0: [[1]], 1: [[1]]}
    assert all(len(sample) == 3 for sample in last_samples(op, 7, ends=True).values())
    assert last_samples(op, 0) == {}
