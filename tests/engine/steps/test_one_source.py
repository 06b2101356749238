"""`mix(one_source_per=)`: global steps of one source, over ranks, resumes, changes and packing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from helpers import numbers, through_json
from penstock.errors import ConfigError, StateError

NAMES = "abc"


def inputs(*sizes: int) -> dict[str, ps.Dataset]:
    return {
        name: ps.from_sequence([(name, i) for i in range(size)], name=name).shuffle()
        for name, size in zip(NAMES, sizes, strict=False)
    }


def per_step(*sizes: int, **options: Any) -> ps.Dataset:
    options = {"weights": {"a": 2, "b": 1, "c": 1}, "one_source_per": "global_step", **options}
    return ps.mix(inputs(*sizes or (40, 50, 60)), seed=1, **options)


class Ranks:
    """All ranks of a run; a step is the rows of all of them, sorted."""

    def __init__(
        self, ds: ps.Dataset, world: int, rows: int, state: Any = None, **options: Any
    ) -> None:
        self.ds = ds.batch(rows // world, collate=list)
        self.loaders = [
            ps.Loader(self.ds, rank=rank, world_size=world, **options) for rank in range(world)
        ]
        if state is not None:
            for loader in self.loaders:
                loader.load_state_dict(state)
        self.iterators = [iter(loader) for loader in self.loaders]

    def step(self) -> list[Any]:
        items = [next(each, None) for each in self.iterators]
        if items == [None] * len(items):
            self.iterators = [iter(loader) for loader in self.loaders]
            items = [next(each) for each in self.iterators]
        return sorted(row for item in items if item is not None for row in item)

    def steps(self, n: int) -> list[list[Any]]:
        return [self.step() for _ in range(n)]

    @property
    def state(self) -> Any:
        return through_json(self.loaders[0].state_dict())


def sources(step: Sequence[Any]) -> set[str]:
    return {name for name, _ in step}


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 12])
def test_steps_are_equal_on_any_number_of_ranks(world: int) -> None:
    steps = Ranks(per_step(), world, 12).steps(60)
    assert steps == Ranks(per_step(), 1, 12).steps(60)
    assert all(len(sources(step)) == 1 for step in steps)
    assert Counter(step[0][0] for step in steps) == {"a": 30, "b": 15, "c": 15}


def test_a_number_of_rows_is_indexed() -> None:
    ds = per_step(one_source_per=12)
    assert Ranks(ds, 1, 12).steps(20) == [
        sorted(ds[list(range(i, i + 12))]) for i in range(0, 240, 12)
    ]
    assert Ranks(ds, 1, 12).steps(20) == Ranks(per_step(), 1, 12).steps(20)


@pytest.mark.parametrize(
    "ask",
    [
        lambda ds: ds[0],
        lambda ds: next(iter(ds)),
        lambda ds: ds.plan.at(3),
        lambda ds: ds.batch(4)[1],
    ],
)
def test_without_the_rows_of_a_step_there_is_no_order(ask: Any) -> None:
    with pytest.raises(ConfigError, match="one_source_per=<rows>"):
        ask(per_step())


def test_a_global_batch_size_gives_the_rows() -> None:
    ds = per_step().batch(global_batch_size=12, collate=list)
    steps = Ranks(per_step(), 1, 12).steps(10)
    assert [sorted(batch) for batch in ds[list(range(10))]] == steps
    want = [
        sorted((s.source, s.index) for s in ds.plan.at(step=k, world_size=4)) for k in range(10)
    ]
    assert want == steps
    nested = per_step().batch(3, collate=list).batch(global_batch_size=4, collate=list)
    rows = [[row for part in batch for row in part] for batch in nested[list(range(10))]]
    assert [*map(sorted, rows)] == steps


@given(data=st.data())
def test_random_runs(data: Any) -> None:
    """Ranks, global batches and weights change on the way; every step has one source, as planned."""
    draw = data.draw
    sizes = [draw(st.integers(16, 50)) for _ in NAMES]
    stop = draw(st.sampled_from(["restart", "all_exhausted", "first_exhausted"]))
    ds, state, given_steps = per_step(*sizes, stop=stop), None, list[list[Any]]()
    for _ in range(draw(st.integers(1, 4))):
        world = draw(st.sampled_from([1, 2, 3, 4]))
        rows = world * draw(st.integers(1, 4))
        run = Ranks(ds, world, rows, state)
        for _ in range(draw(st.integers(0, 6))):
            if draw(st.integers(0, 3)) == 3:
                weights = {name: draw(st.integers(1, 4)) for name in NAMES}
                assert len({loader.set_weights(weights) for loader in run.loaders}) == 1
            given_steps.append(run.step())
            assert len(sources(given_steps[-1])) == 1
            assert len(given_steps[-1]) == rows
        state = run.state
        plan = run.ds.plan.for_state(state)
        for number, step in enumerate(given_steps):
            planned = plan.at(step=number)
            assert sorted((s.source, s.index) for s in planned) == step
            first = planned[0]
            assert number in plan.find(first.source, first.index, steps=range(len(given_steps)))


def test_another_global_batch_begins_where_each_source_stands() -> None:
    first = Ranks(per_step(), 4, 8)
    steps = first.steps(10)
    later = Ranks(per_step(), 3, 6, first.state)
    steps += later.steps(10)
    assert {len(sources(step)) for step in steps} == {1}
    counts = Counter(row for step in steps for row in step)
    assert len(counts) == sum(counts.values()) - sum(n - 1 for n in counts.values())
    taken = Counter(name for step in steps for name, _ in step)
    assert abs(taken["a"] - 70) <= 2 * 8 and sum(taken.values()) == 140
    assert Ranks(per_step(), 1, 6, later.state).steps(5) == later.steps(5)


def test_weights_change_between_steps() -> None:
    run = Ranks(per_step(one_source_per=12), 1, 8)  # a step ends within a stretch
    run.steps(2)
    assert run.loaders[0].set_weights({"a": 0, "b": 1, "c": 0}) == 24
    steps = run.steps(4)
    assert len(sources(steps[0])) == 1
    assert [sources(step) for step in steps[1:]] == [{"b"}] * 3


def test_nested_mixtures_share_the_steps() -> None:
    inner = ps.mix(inputs(40, 50), one_source_per="global_step")
    outer = {"x": inner, "c": inputs(1, 1, 30)["c"]}
    steps = Ranks(ps.mix(outer, one_source_per="global_step"), 2, 6).steps(80)
    assert Counter(step[0][0] for step in steps if len(sources(step)) == 1) == {
        "a": 20,
        "b": 20,
        "c": 40,
    }
    group = {"x": ps.mix(inputs(40, 50)), "c": inputs(1, 1, 30)["c"]}
    mixed = [
        sources(step) for step in Ranks(ps.mix(group, one_source_per="global_step"), 2, 6).steps(40)
    ]
    assert Counter(map(frozenset, mixed)) == {frozenset("ab"): 20, frozenset("c"): 20}
    with pytest.raises(ConfigError, match="comes after mix"):
        ps.mix(outer)


@pytest.mark.parametrize(
    "change",
    [
        lambda ds: ds.shuffle(window=4),
        lambda ds: ds.filter(bool),
        lambda ds: ds.zip(numbers(9)),
        lambda ds: numbers(9).concat(ds),
        lambda ds: ds.skip(3),
        lambda ds: ds.batch_by_tokens(4, len),
        lambda ds: ds.limit(7).repeat(),
    ],
)
def test_what_would_move_rows_between_steps_is_refused(change: Any) -> None:
    with pytest.raises(ConfigError, match="comes after mix"):
        ps.Loader(change(per_step()).batch(4, collate=list), rank=0, world_size=2)


def test_what_keeps_steps_is_allowed() -> None:
    steps = Ranks(per_step(), 2, 6).steps(20)
    assert Ranks(per_step().map(tuple).limit(600), 2, 6).steps(20) == steps
    assert Ranks(per_step().skip(12), 2, 6).steps(18) == steps[2:]
    finite = per_step(stop="all_exhausted")
    assert Ranks(finite.repeat(), 2, 6).steps(30) == Ranks(finite, 2, 6).steps(30)


def test_skipped_steps_are_whole() -> None:
    run = Ranks(per_step(), 2, 8)
    run.steps(3)
    plan = run.ds.plan.for_state(run.state)
    after = Ranks(per_step(), 2, 8, plan.skip(steps=range(4, 6)).state).steps(3)
    steps = Ranks(per_step(), 2, 8).steps(8)
    assert after == [steps[3], *steps[6:]]
    with pytest.raises(ConfigError, match="no whole number of steps"):
        plan.skip(range(7, 8))


def documents(n: int = 40) -> dict[str, ps.Dataset]:
    rng, out = np.random.default_rng(1), dict[str, ps.Dataset]()
    for token, name in enumerate(NAMES, 1):
        ends = np.cumsum([0, *rng.integers(1, 12, n)])
        out[name] = ps.from_tokens(np.full(int(ends[-1]), token), ends, name=name).shuffle()
    return out


@pytest.mark.parametrize("unit", ["samples", "tokens"])
@pytest.mark.parametrize("method", ["concat_split", "best_fit", "first_fit"])
def test_each_source_packs_by_itself(method: Any, unit: Any) -> None:
    shares = {"a": 2, "b": 1, "c": 1}
    options: Any = {"seed": 3, "unit": unit, "one_source_per": 4}
    packed = ps.mix(documents(), shares, **options).pack(16, method)
    by_hand = {name: ds.pack(16, method) for name, ds in documents().items()}
    assert packed.tree.description() == ps.mix(by_hand, shares, **options).tree.description()
    for at in range(0, 200, 4):
        tokens = np.concatenate([row["tokens"] for row in packed[list(range(at, at + 4))]])
        assert len({*tokens[tokens > 0].tolist()}) == 1
    rows = packed.plan.counts(400)
    assert rows["a"] > 0


def test_functions_before_pack_move_below_the_mixture() -> None:
    mixed = ps.mix(documents(), one_source_per=4)
    rows = mixed.map(lambda tokens: tokens + 1).pack(16)
    assert {*np.unique(next(iter(rows))["tokens"]).tolist()} <= {0, 2, 3, 4}
    for change in (lambda ds: ds.map_with_index(lambda i, x: x), lambda ds: ds.limit(40)):
        with pytest.raises(ConfigError, match=r"ps\.mix\(\{name: ds\.pack"):
            change(mixed).pack(16)


@pytest.mark.parametrize("world,lanes", [(1, None), (2, None), (2, 4), (4, 2), (2, 1), (3, 2)])
def test_streams_in_lanes(world: int, lanes: int | None) -> None:
    streams = {
        name: ds.filter(lambda row: row[1] % 7 > 0) for name, ds in inputs(40, 50, 60).items()
    }
    ds = ps.mix(streams, {"a": 2, "b": 1, "c": 1}, one_source_per="global_step")
    run = Ranks(ds, world, 12, lanes=lanes)
    steps = run.steps(80)
    assert {len(sources(step)) for step in steps} == {1}
    assert abs(sum(sources(step) == {"a"} for step in steps) - 40) <= 4


def test_streams_continue_on_as_many_ranks_only() -> None:
    streams = {
        name: ds.filter(lambda row: row[1] % 7 > 0) for name, ds in inputs(40, 50, 60).items()
    }
    ds = ps.mix(streams, one_source_per="global_step")
    run = Ranks(ds, 2, 12)
    run.steps(3)
    states = [through_json(loader.state_dict()) for loader in run.loaders]
    for world, rows in ((1, 12), (2, 8)):
        with pytest.raises(StateError, match="continue on as many ranks"):
            Ranks(ds, world, rows, states)
    options: Any = {"stop": "all_exhausted"}, {"max_epochs": 1}
    for option in options:
        with pytest.raises(ConfigError, match="use stop='restart'"):
            ps.mix(streams, one_source_per=4, **option)


@pytest.mark.parametrize("per", [0, -1, 2.5, True, None, "step", 1 << 30])
def test_wrong_values_are_refused(per: Any) -> None:
    with pytest.raises(ConfigError, match="one_source_per"):
        per_step(one_source_per=per)


def test_it_does_not_go_with_other_rules() -> None:
    with pytest.raises(ConfigError, match="leave out max_epochs and one_source_per"):
        per_step(one_source_per=4, count="settled")
    with pytest.raises(ConfigError, match="a rule replaces all other options"):
        ps.mix(inputs(3, 3), one_source_per=4, rule=object())  # pyright: ignore[reportArgumentType]


def test_a_state_of_single_samples_is_adopted() -> None:
    plain = Ranks(ps.mix(inputs(40, 50, 60), {"a": 2, "b": 1, "c": 1}, seed=1), 2, 8)
    before = plain.steps(7)
    ds = per_step().batch(4, collate=list)
    loaders = [ps.Loader(ds, rank=rank, world_size=2) for rank in range(2)]
    for loader in loaders:
        loader.load_state_dict(plain.state, on_mismatch="adopt")
    iterators = [iter(loader) for loader in loaders]
    later = [sorted(row for each in iterators for row in next(each)) for _ in range(10)]
    assert {len(sources(step)) for step in later} == {1}
    assert len({row for step in before + later[:1] for row in step}) == 64


@pytest.mark.parametrize("nested", [False, True])
def test_weights_that_were_set_hold_in_other_global_batches(nested: bool) -> None:
    ds = per_step()
    if nested:
        outer = {"x": ds, "y": ps.from_sequence([("y", i) for i in range(9)], name="y")}
        ds = ps.mix(outer, {"x": 4, "y": 1}, one_source_per="global_step")
    run = Ranks(ds, 2, 8)
    run.steps(5)
    only_b, only_c = {"a": 0, "b": 1, "c": 0}, {"a": 0, "b": 0, "c": 1}
    for loader in run.loaders:
        loader.set_weights(only_b)
        loader.set_weights(only_c, at=200)
    run.steps(5)
    run = Ranks(ds, 3, 6, run.state)
    names = [step[0][0] for step in run.steps(60)]
    run = Ranks(ds, 1, 5, run.state)
    names += [step[0][0] for step in run.steps(20)]
    names = [name for name in names if name != "y"]
    first = names.index("c")
    assert {*names[:first]} == {"b"} and {*names[first:]} == {"c"}
    assert 15 <= first <= 26


def test_steps_that_are_left_out_later_keep_the_global_batch() -> None:
    run = Ranks(per_step(), 2, 8)
    run.steps(3)
    state = run.ds.plan.for_state(run.state).skip(steps=range(5, 7)).state
    with pytest.raises(StateError, match="load it with the same global batch"):
        Ranks(per_step(), 2, 6, state)
    later = Ranks(per_step(), 4, 8, state)
    later.steps(4)
    assert {len(sources(step)) for step in Ranks(per_step(), 2, 6, later.state).steps(9)} == {1}
