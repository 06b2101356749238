"""Properties of all function steps: descriptions, positions, pickles, exact resume, errors that name their sample."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from example_counts import rounds
from helpers import numbers
from penstock.engine.steps.filter import Filter
from penstock.engine.steps.flat_map import FlatMap
from penstock.engine.steps.function_step import FunctionStep, describe_function
from penstock.engine.steps.map import Map
from penstock.engine.steps.map_with_index import MapWithIndex
from penstock.engine.steps.random_map import RandomMap
from penstock.engine.steps.skipping_map import SkippingMap
from penstock.engine.steps.with_source import WithSource


def double(x: int) -> int:
    return 2 * x


def is_even(x: int) -> bool:
    return x % 2 == 0


def copies(x: int) -> list[int]:
    return [x] * (x % 3)


def only_even(x: int) -> int:
    if x % 2:
        raise ps.Skip
    return x


def add(x: int, y: int) -> int:
    return x + y


def jitter(x: int, rng: np.random.Generator) -> float:
    return x + rng.random()


def provenance(x: int, source: str, epoch: int, index: int) -> tuple[Any, ...]:
    return x, source, epoch, index


STEPS: dict[type[FunctionStep], Callable[[ps.Dataset], ps.Dataset]] = {
    Map: lambda ds: ds.map(double),
    SkippingMap: lambda ds: ds.map(only_even, may_skip=True),
    Filter: lambda ds: ds.filter(is_even),
    FlatMap: lambda ds: ds.flat_map(copies),
    MapWithIndex: lambda ds: ds.map_with_index(add),
    RandomMap: lambda ds: ds.random_map(jitter, seed=3, name="noise"),
    WithSource: lambda ds: ds.with_source(provenance),
}
DESCRIPTIONS = {
    Map: {"map": "double"},
    SkippingMap: {"may_skip": "only_even"},
    Filter: {"filter": "is_even"},
    FlatMap: {"flat": "copies"},
    MapWithIndex: {"index": "add"},
    RandomMap: {"random": "jitter", "seed": 3, "step": "noise"},
    WithSource: {"source": "provenance"},
}
each_step = pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)


@each_step
def test_its_description_is_that_of_saved_states(step: type[FunctionStep]) -> None:
    ds = STEPS[step](numbers())
    assert type(ds.tree) is type(pickle.loads(pickle.dumps(ds.tree))) is step
    described = ds.tree.description()
    assert described.pop("of") == numbers().tree.description()
    assert described == DESCRIPTIONS[step]
    assert repr(ds).partition(" -> ")[2].startswith(f"{step.METHOD}(")


@each_step
def test_it_has_positions_unless_it_drops(step: type[FunctionStep]) -> None:
    ds = STEPS[step](numbers())
    reason = ds.tree.reason_not_indexed
    assert ds.tree.keeps_positions == ds.compiled.op.indexed == (reason is None)  # type: ignore[union-attr]
    if reason is None:
        assert [ds[i] for i in range(len(ds))] == list(ds) == ds[range(len(ds))]
        assert [sample.index for sample in ds.plan.at(7)] == [7]
    else:
        assert reason.startswith(f"{step.METHOD}({step.OPTION}) gives a number of samples")


@each_step
@pytest.mark.parametrize("batched", [False, True])
def test_it_resumes_exactly(step: type[FunctionStep], batched: bool) -> None:
    def make(rank: int, world_size: int) -> ps.Loader:
        ds = STEPS[step](numbers(12).shuffle(seed=1))
        return ps.Loader(
            ds.batch(3, collate=list) if batched else ds, rank=rank, world_size=world_size
        )

    ps.testing.assert_resumes(lambda: make(0, 1), at_most=rounds(4, 64))


@each_step
def test_its_errors_name_the_sample(step: type[FunctionStep]) -> None:
    def fail(*args: Any) -> Any:
        raise ValueError("no")

    ds = step(numbers(name="digits").tree, fail)
    with pytest.raises(ValueError, match="no") as caught:
        next(iter(ps.Dataset(ds)))
    assert "digits[0] (pass 0)" in str(caught.value.__notes__)


@pytest.mark.parametrize("step", [Map, Filter, MapWithIndex, RandomMap, WithSource])
def test_only_a_skipping_map_may_skip(step: type[FunctionStep]) -> None:
    def skip(*args: Any) -> Any:
        raise ps.Skip("short")

    with pytest.raises(ps.ConfigError, match=r"raised Skip \(short\)"):
        list(ps.Dataset(step(numbers().tree, skip)))


def test_a_version_is_a_part_of_the_name() -> None:
    def tokenize(text: str) -> list[str]:
        return text.split()

    assert describe_function(tokenize).endswith("tokenize")
    tokenize.version = 2  # type: ignore[attr-defined]
    assert describe_function(tokenize).endswith("tokenize version 2")
