"""The base of all steps: trees, facts, and their agreement with compiled steps."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given

import penstock as ps
from example_counts import examples
from penstock.engine.base.batch_size import BatchSize
from penstock.engine.steps.batch import Batch, tail_of
from penstock.engine.steps.map import Map
from penstock.engine.steps.mix import Mix, find_mixtures
from penstock.engine.steps.paths import SLICE
from penstock.engine.steps.read import single_source
from penstock.engine.steps.step import Builder, Step, iter_steps
from penstock.engine.steps.zip import Zip
from penstock.testing import build, pipelines


def numbers(n: int = 9, name: str = "") -> ps.Dataset:
    return ps.from_sequence(range(n), name=name or None)


def test_steps_come_before_their_inputs_with_their_paths() -> None:
    tree = ps.mix({"b": numbers()[2:], "a": numbers()}, seed=1).map(str).tree
    found = [(type(step).__name__, path) for step, path in iter_steps(tree)]
    assert found == [
        ("Map", ()),
        ("Mix", ()),
        ("Read", ("a",)),
        ("Reorder", ("b",)),
        ("Read", ("b", SLICE)),
    ]


def test_a_deep_chain_is_walked_without_recursion() -> None:
    tree: Step = numbers().tree
    for _ in range(5_000):
        tree = Map(tree, str)
    assert sum(1 for _ in iter_steps(tree)) == 5_001
    single = single_source(numbers().shuffle().map(str).tree)
    assert single is not None and single[0].children == ()
    assert single_source(numbers().batch(2).tree) is None


@examples(60)
@given(pipelines())
def test_facts_of_steps_agree_with_their_compiled_form(recipe: Any) -> None:
    tree = build(recipe).tree
    builder = Builder(tree)
    assert builder.op(tree).tail == tree.in_tail
    assert builder.op(tree).indexed == (tree.reason_not_indexed is None)
    if tree.reason_not_indexed is None:
        assert (builder.op(tree).size is None) == tree.is_endless
    for step, _ in iter_steps(tree):
        assert step.with_children(step.children) == step
        assert json.loads(json.dumps(step.description())) == step.description()
    assert pickle.loads(pickle.dumps(tree)).identity() == tree.identity()


def test_a_seed_reaches_the_steps_that_have_none() -> None:
    tree = numbers().shuffle().map(str).shuffle(seed=3).tree
    seeded = tree.seeded(5)
    assert [getattr(step, "seed", None) for step, _ in iter_steps(seeded)] == [3, None, 5, None]
    assert seeded.seeded(7) is seeded
    mixture = ps.mix({"a": numbers().shuffle()}, seed=1).tree
    assert mixture.seeded(5) is mixture


def test_the_tail_has_the_last_batches() -> None:
    tree = numbers().map(str).batch(4).batch(2, drop_remainder=True, collate=list).tree
    assert tail_of(tree).batches == (BatchSize(4), BatchSize(2, drop_remainder=True))
    assert type(tail_of(tree).rows) is Map
    zipped = numbers().zip(numbers()).tree
    assert type(zipped) is Zip and tail_of(zipped).batches == ()
    assert not zipped.in_tail and not zipped.forms_groups and isinstance(zipped.input, Batch)


def test_mixtures_are_found_by_path() -> None:
    inner = ps.mix({"x": numbers(), "y": numbers(5)}, seed=2)
    tree = ps.mix({"in": inner, "out": numbers()}, seed=1).batch(2).tree
    assert set(find_mixtures(tree)) == {(), ("in",)}
    assert all(isinstance(mix, Mix) for mix in find_mixtures(tree).values())


@pytest.mark.parametrize("make", [lambda ds: ds.limit(3), lambda ds: ds.repeat(2), lambda ds: ds.skip(2)])  # fmt: skip
def test_steps_of_streams_are_not_indexed(make: Any) -> None:
    tree = make(numbers().filter(bool)).tree
    assert tree.reason_not_indexed == "filter() gives a number of samples that depends on the data"
    with pytest.raises(ps.IndexedError, match=r"this needs random access, but filter\(\)"):
        tree.require_indexed("this", "iterate instead")
