"""The loader: one run whatever the hands, states, weights changed on the way, bad samples, refusals."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, chain, islice, pairwise, repeat
from typing import Any

import numpy as np
import pytest

import penstock as ps
from helpers import through_json
from penstock.engine.base.thread_pool import Task
from penstock.stores import storage

LANES = 12


def numbers(n: int, start: int = 0) -> ps.Dataset:
    return ps.from_sequence(range(start, start + n))


def mixture(weights: Any = None, **options: Any) -> ps.Dataset:
    inputs = {
        "a": numbers(500).shuffle(),
        "b": numbers(300, 10_000).shuffle(),
        "c": numbers(70, 20_000).shuffle(),
    }
    return ps.mix(inputs, weights or {"a": 5, "b": 3, "c": 2}, block_size=10, seed=3, **options)


def indexed() -> ps.Dataset:
    return mixture().map(lambda x: x * 2).batch(3, collate=list)


def by_lanes() -> ps.Dataset:
    kept = mixture().filter(lambda x: x % 7).flat_map(lambda x: [x] * (x % 3))
    return kept.map(lambda x: [x] * (x % 5 + 1)).pack(16).batch(2)


def rows_by_lanes() -> ps.Dataset:
    kept = mixture().filter(lambda x: x % 7).flat_map(lambda x: [x] * (x % 3))
    return kept.map(lambda x: [x] * (x % 5 + 1)).pack(16)


PIPELINES = pytest.mark.parametrize("make", [indexed, by_lanes])
ROWS = pytest.mark.parametrize("make", [indexed, rows_by_lanes])


def shown(batch: Any) -> str:
    return json.dumps(batch, default=lambda array: array.tolist())


def lockstep(
    make: Any, ranks: int, steps: int, states: Any = None, workers: int = 0
) -> tuple[list[Any], list[Any]]:
    """Every rank's items of each step, and every rank's state (through JSON) at the end."""
    loaders = [
        ps.Loader(make(), rank=r, world_size=ranks, lanes=LANES, workers=workers, remainder="keep")
        for r in range(ranks)
    ]
    try:
        if states is not None:
            for loader in loaders:
                loader.load_state_dict(states)
        runs = [iter(loader) for loader in loaders]
        items = [[next(run) for run in runs] for _ in range(steps)]
        return items, [through_json(loader.state_dict()) for loader in loaders]
    finally:
        for loader in loaders:
            loader.close()


@PIPELINES
def test_any_number_of_threads_gives_one_run(make):
    whole = [shown(x) for x in islice(make(), 60)]
    for workers in (0, 1, 2, 4):
        with ps.Loader(make(), workers=workers) as loader:
            assert [shown(x) for x in islice(loader, 60)] == whole
    with ps.Loader(make(), workers=2, executor="inline") as loader:
        assert [shown(x) for x in islice(loader, 60)] == whole


def rows(steps: list[Any], ranks: int) -> list[Any]:
    """Merge the items of the ranks in steps of twelve batches, sorted within a step."""
    batches = [batch for step in steps for batch in step]
    if isinstance(batches[0], dict):
        return [sorted(map(shown, batches[i : i + 12])) for i in range(0, len(batches), 12)]
    return [sorted(chain(*batches[i : i + 12])) for i in range(0, len(batches), 12)]


@ROWS
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
def test_world_sizes_give_one_global_sequence(make, ranks):
    whole, _ = lockstep(make, 1, 120)
    assert rows(lockstep(make, ranks, 120 // ranks, workers=ranks % 3)[0], ranks) == rows(whole, 1)


@ROWS
def test_world_size_changes_in_the_middle(make):
    whole, _ = lockstep(make, 1, 120)
    first, states = lockstep(make, 2, 18)
    second, states = lockstep(make, 3, 12, states, workers=2)
    third, _ = lockstep(make, 1, 48, states)
    assert rows(first + second + third, 1) == rows(whole, 1)


@pytest.mark.parametrize("ranks", [2, 3, 4, 6])
def test_a_batch_takes_the_next_rows_of_the_ranks_own_lanes_in_turn(ranks):
    """Every global step has the same rows, for every number of ranks that share a global batch."""

    def make() -> ps.Dataset:
        return rows_by_lanes().map(lambda row: row["tokens"].tolist())

    alone = [*islice(ps.Loader(make(), lanes=LANES), 60)]
    loaders = [
        ps.Loader(make().batch(12 // ranks, collate=list), rank=r, world_size=ranks, lanes=LANES)
        for r in range(ranks)
    ]
    for step in zip(*(islice(loader, 5) for loader in loaders), strict=True):
        due, alone = alone[:12], alone[12:]
        assert list(step) == [due[r::ranks] for r in range(ranks)]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_limit_under_the_tail_counts_the_rows_of_the_run(ranks):
    for ds in (
        rows_by_lanes().limit(24).batch(4, collate=list),
        rows_by_lanes().batch(4, collate=list).limit(6),
    ):
        loaders = [
            ps.Loader(ds, rank=r, world_size=ranks, lanes=LANES, remainder="keep")
            for r in range(ranks)
        ]
        assert [sum(len(batch) for batch in loader) for loader in loaders] == [24 // ranks] * ranks


def test_a_run_goes_on_after_a_limit_was_counted_on_another_number_of_ranks():
    make = lambda: rows_by_lanes().limit(60)  # noqa: E731
    whole = [shown(x) for x in ps.Loader(make(), lanes=LANES)]
    first, states = lockstep(make, 2, 9)
    assert all(state["drawn"] == 9 for state in states)
    with ps.Loader(make(), lanes=LANES) as loader:
        loader.load_state_dict(states)
        assert [shown(row) for step in first for row in step] + [
            shown(row) for row in loader
        ] == whole


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_tuples_of_a_zip_stay_whole_on_every_rank(ranks):
    for keep in (
        numbers(30).zip(numbers(30, 100)),
        numbers(30).zip(numbers(30, 100).filter(lambda x: True)),
    ):
        for rank in range(ranks):
            found = list(ps.Loader(keep, rank=rank, world_size=ranks, lanes=6, remainder="keep"))
            assert len(found) == 30 // ranks and all(b == a + 100 for a, b in found)


def test_one_state_of_an_indexed_run_serves_all_ranks():
    whole, _ = lockstep(indexed, 1, 60)
    first, states = lockstep(indexed, 3, 8)
    rest, _ = lockstep(indexed, 4, 9, states[1])
    assert rows(first + rest, 4) == rows(whole, 1)
    assert len({json.dumps(state) for state in states}) == 1


# ---------------------------------------------------------------- steps, dealt out


def dealt(ds: ps.Dataset, ranks: int, **options: Any) -> list[ps.Loader]:
    return [ps.Loader(ds, rank=rank, world_size=ranks, **options) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", range(2, 17))
def test_every_source_has_its_share_on_every_rank(ranks: int) -> None:
    # By turns 0.4 and 0.6 over five ranks gave one of them no sample of the light source.
    weights, rows = {"a": 0.4, "b": 0.59, "c": 0.01}, 4_000
    ds = ps.mix({name: numbers(1_000) for name in weights}, weights, block_size=1)
    for loader in dealt(ds, ranks):
        with loader:
            list(islice(loader, rows))
            for name, weight in weights.items():
                sigma = (rows * weight * (1 - weight)) ** 0.5
                assert abs(loader.stats()["samples"][name] - rows * weight) < 4 * sigma, (
                    ranks,
                    name,
                )


@pytest.mark.parametrize("ranks", [2, 3, 5, 64])
def test_the_rows_of_a_step_are_those_of_one_rank_and_each_rank_has_its_own_in_order(
    ranks: int,
) -> None:
    runs = [iter(loader) for loader in dealt(numbers(100_000).batch(3, collate=list), ranks)]
    seen = set[tuple[int, ...]]()
    for step in range(200 // ranks + 5):
        batches = [next(run) for run in runs]
        first = 3 * ranks * step
        assert sorted(chain(*batches)) == list(range(first, first + 3 * ranks))
        assert all(batch == sorted(batch) for batch in batches)
        seen.add(tuple(x - first for x in batches[0]))
    assert len(seen) > 5, "every step is dealt in its own way"


def test_steps_of_more_rows_than_a_table_holds_are_dealt_too() -> None:
    batches = [
        next(iter(loader)) for loader in dealt(numbers(50_000).batch(2_500, collate=list), 4)
    ]
    assert sorted(chain(*batches)) == list(range(10_000))


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize(("rows", "batch"), [(1003, 8), (1003, 7), (7, 1)])
def test_a9_every_rank_makes_the_same_number_of_steps(rows: int, batch: int, drop: bool) -> None:
    ds = numbers(rows).shuffle().batch(batch, collate=list, drop_remainder=drop)
    whole = rows // (4 * batch)
    for remainder, steps in (("drop", whole), ("pad", -(-rows // (4 * batch)))):
        loaders = dealt(ds, 4, remainder=remainder)
        passes = [[list(loader) for loader in loaders] for _ in range(2)]
        assert [len(loader) for loader in loaders] == [steps] * 4
        for ranks in passes:
            assert [len(rank) for rank in ranks] == [steps] * 4
            assert all(len(x) == batch for rank in ranks for x in rank)
            given = [x for rank in ranks for item in rank for x in item]
            assert len(set(given)) == (rows if remainder == "pad" else whole * 4 * batch)


def test_keep_shares_out_what_is_left_as_it_is() -> None:
    for drop, items in ((False, [32, 32, 31, 31]), (True, [32, 31, 31, 31])):
        loaders = dealt(
            numbers(1003).batch(8, collate=list, drop_remainder=drop), 4, remainder="keep"
        )
        given = [list(loader) for loader in loaders]
        assert [len(rank) for rank in given] == items == [len(loader) for loader in loaders]
        assert len({x for rank in given for item in rank for x in item}) == (1000 if drop else 1003)


def test_padding_is_marked_in_the_loader_and_in_batches_that_are_mappings() -> None:
    ds = numbers(7).shuffle().map(lambda x: {"x": x})
    loaders = dealt(ds.batch(2), 2, remainder="pad")
    for _ in range(9):  # passes: each deals its steps in its own way
        kept = list[int]()
        for loader in loaders:
            for batch in loader:
                assert batch["x"].shape == batch["valid"].shape == (2,)
                assert batch["valid"].tolist() == loader.valid.tolist()
                kept += batch["x"][batch["valid"]].tolist()
        assert sorted(kept) == list(range(7))
    with ps.Loader(ds.batch(4), remainder="pad") as alone:
        assert [batch["valid"].tolist() for batch in alone] == [
            [True] * 4,
            [True, True, True, False],
        ]
    with ps.Loader(ds.batch(4)) as plain:
        assert [(len(batch["x"]), plain.valid.tolist()) for batch in plain] == [
            (4, [True] * 4),
            (3, [True] * 3),
        ]
    own = ds.map(lambda x: {**x, "valid": 1}).batch(2)
    with (
        ps.Loader(own, remainder="pad") as loader,
        pytest.raises(ps.ConfigError, match="rename that key with .rename"),
    ):
        next(iter(loader))


def test_padding_of_a_pass_that_is_shorter_than_a_step_goes_round() -> None:
    loaders = dealt(numbers(3).batch(2, collate=list), 4, remainder="pad")
    given = [(list(loader), loader) for loader in loaders]
    assert sorted(x for batches, _ in given for batch in batches for x in batch) == [
        0,
        0,
        0,
        1,
        1,
        1,
        2,
        2,
    ]


def test_what_is_left_out_is_said_once_and_a_pass_without_a_step_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for loader in dealt(numbers(11).batch(2), 2):
        assert len(list(loader)) == len(list(loader))
    assert [record.getMessage() for record in caplog.records] == [
        "every pass omits its last 3 of 11 rows, which fill no step of 2 ranks with 2 rows each; "
        "Loader(remainder='pad') or 'keep' delivers them too"
    ]
    for loader in dealt(numbers(11).batch(4), 3):
        with pytest.raises(
            ps.ConfigError, match=r"11 rows, and 3 ranks with 4 each take 12.*repeat\(\).*'pad'"
        ):
            next(iter(loader))


def test_a16_a_global_batch_is_kept_on_any_world_size_and_may_change() -> None:
    # 24 rows a step on 1, 3, 8, 2, 24, 6 and 1 ranks, then 32, then 12: one sequence of samples.
    ds, state, found = mixture(), None, list[list[int]]()
    worlds = [(1, 24), (3, 8), (8, 3), (2, 12), (24, 1), (6, 4), (1, 24), (4, 8), (2, 6), (1, 12)]
    for ranks, batch in worlds:
        loaders = dealt(ds.batch(batch, collate=list), ranks)
        if state is not None:
            for loader in loaders:
                loader.load_state_dict(state)
        runs = [iter(loader) for loader in loaders]
        found += [sorted(x for run in runs for x in next(run)) for _ in range(3)]
        state = through_json(loaders[-1].state_dict())
    whole = list(islice(ds, sum(map(len, found))))
    bounds = list(accumulate(map(len, found), initial=0))
    assert found == [sorted(whole[a:b]) for a, b in pairwise(bounds)]
    assert state is not None and [
        (r["step"], r["row"], r["rows"], r["ranks"]) for r in state["records"]
    ] == [
        (3 * n, sum(3 * r * b for r, b in worlds[:n]), ranks * batch, ranks)
        for n, (ranks, batch) in enumerate(worlds)
    ]
    # What every step held is told by the plan of the run, with no word of ranks: steps of the past and to come.
    plan = ds.batch(7, collate=list).plan.for_state(state)
    bounds += [bounds[-1] + 12, bounds[-1] + 24]
    keys = [sample.key for sample in ds.plan.at(slice(0, bounds[-1]))]
    for step, (a, b) in enumerate(pairwise(bounds)):
        assert [sample.key for sample in plan.at(step=step)] == keys[a:b]
    with pytest.raises(ps.ConfigError, match="leave out world_size"):
        plan.at(step=3, world_size=2)


def test_weights_set_after_the_short_step_of_a_pass_hold_from_the_next_one() -> None:
    """Weights that are set at the end of a pass begin with the next one."""
    flows = {"a": numbers(2), "b": numbers(10)}
    ds = ps.mix(flows, {"a": 1, "b": 1}, stop="first_exhausted").batch(2, collate=list)
    with ps.Loader(ds) as run:
        it = iter(run)
        assert [(next(it), len(run.keys()))[1] for _ in range(3)] == [2, 2, 1]
        assert run.set_weights({"a": 0, "b": 1}) == 5
        state = through_json(run.state_dict())
    with ps.Loader(ds) as run:
        run.load_state_dict(state)
        assert not list(run)
        it = iter(run)
        keys = [(next(it), run.keys())[1] for _ in range(3)]
        plan = ds.plan.for_state(run.state_dict())
        keys += [run.keys() for _ in it]
    assert [[key[0] for key in batch] for batch in keys] == [["b", "b"]] * 5
    assert plan.position == plan.next_step == 6
    assert [[sample.key for sample in plan.at(place)] for place in range(3, 8)] == keys
    assert [[sample.key for sample in plan.at(step=step)] for step in range(3, 8)] == keys


def test_the_plan_of_a_run_whose_batches_got_smaller_knows_the_short_steps_of_before() -> None:
    def made(n: int) -> ps.Dataset:
        rows = ps.from_sequence(range(19), name="a").batch(3, drop_remainder=True, collate=list)
        return rows.batch(n, collate=list)

    with ps.Loader(made(4)) as run:
        want = [run.keys() for _ in run]
        state = run.state_dict()
    assert [len(keys) for keys in want] == [12, 6]
    plan = made(1).plan.for_state(state)
    assert [[sample.key for sample in plan.at(step=step)] for step in range(2)] == want


@pytest.mark.parametrize("remainder", ["drop", "pad"])
@pytest.mark.parametrize("drop", [False, True])
def test_the_plan_of_a_run_knows_its_steps_over_passes(remainder: Any, drop: bool) -> None:
    ds, state, delivered = numbers(50).shuffle(), None, list[list[Any]]()
    for ranks, batch, steps in [(2, 3, 4), (1, 7, 6), (3, 4, 9), (1, 5, 25), (2, 4, 8)]:
        loaders = dealt(
            ds.batch(batch, collate=list, drop_remainder=drop), ranks, remainder=remainder
        )
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        runs = [chain.from_iterable(repeat(loader, 9)) for loader in loaders]
        for _ in range(steps):
            found = list[Any]()
            for run, loader in zip(runs, loaders, strict=True):
                next(run)
                found += loader.keys()
            delivered.append(sorted(found))
        state = through_json(loaders[0].state_dict())
    assert state is not None
    plan = ds.batch(3, collate=list).plan.for_state(state)
    assert [
        sorted(sample.key for sample in plan.at(step=step)) for step in range(len(delivered))
    ] == delivered


def test_steps_of_a_run_can_be_left_out() -> None:
    ds = numbers(1000).shuffle()
    loaders = dealt(ds.batch(4, collate=list), 3)
    runs = [iter(loader) for loader in loaders]
    _ = [next(run) for _ in range(5) for run in runs]
    plan = ds.batch(4, collate=list).plan.for_state(loaders[0].state_dict())
    edited, whole = plan.skip(steps=range(6, 8)), list(ds)
    for loader in loaders:
        loader.load_state_dict(edited.state)
    runs = [iter(loader) for loader in loaders]
    steps = [sorted(x for run in runs for x in next(run)) for _ in range(2)]
    assert steps == [sorted(whole[60:72]), sorted(whole[96:108])]
    with pytest.raises(ps.ConfigError, match="the past cannot change"):
        plan.skip(steps=range(4, 6))


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 0},
        {"rows": 5},
        {"ranks": 0},
        {"ranks": True},
        {"step": 1},
        {"row": -1},
        {"remainder": "some"},
        {"batches": [[4]]},
        {"batches": [[0, False]]},
        {"batches": 7},
        {"more": 1},
        None,
    ],
)
def test_a_state_without_a_log_of_its_steps_is_refused(change: Any) -> None:
    with ps.Loader(numbers(9)) as loader:
        state = loader.state_dict()
        (record,) = state["records"]
        for records in ([{**record, **change}],) if change else ([], None, 7, [7], [[0, 0, 4, 1]]):
            with pytest.raises(ps.StateError):
                loader.load_state_dict(_sealed({**state, "records": records}))
        assert loader.state_dict() == state


def test_a_second_iterator_takes_over_and_the_first_says_so() -> None:
    with ps.Loader(numbers(10)) as loader:
        first = iter(loader)
        assert next(first) == 0
        second = iter(loader)
        assert next(second) == 1
        with pytest.raises(ps.ConfigError, match="replaced this iterator"):
            next(first)
        assert list(second) == list(range(2, 10))
        assert list(second) == []


def test_a_loader_has_a_length_where_a_pass_has_one() -> None:
    assert len(ps.Loader(numbers(10).batch(4))) == 3
    assert len(ps.Loader(numbers(10).batch(4, drop_remainder=True))) == 2
    assert len(ps.Loader(numbers(10).batch(2).batch(2))) == 3
    assert len(ps.Loader(numbers(100).repeat(), epoch_length=7, rank=1, world_size=2)) == 4
    assert len(ps.Loader(numbers(3), epoch_length=7)) == 3
    assert ps.Loader(numbers(3).repeat()), "a loader is something, however long"
    with pytest.raises(TypeError, match="epoch_length"):
        len(ps.Loader(numbers(3).repeat()))
    with pytest.raises(TypeError, match="filter"):
        len(ps.Loader(numbers(3).filter(bool)))
    with ps.Loader(numbers(10).batch(4)) as loader:
        assert [len(list(loader)) for _ in range(2)] == [len(loader)] * 2


def test_a_missing_rank_is_named_by_its_lanes():
    _, states = lockstep(by_lanes, 3, 4)
    with (
        ps.Loader(by_lanes(), lanes=LANES) as loader,
        pytest.raises(ps.StateError, match=r"lanes \[1, 4, 7, 10\]"),
    ):
        loader.load_state_dict([states[0], states[2]])


def test_passes_follow_each_other_and_a_state_at_the_end_goes_on_with_the_next():
    make = lambda: numbers(10).shuffle().batch(4, collate=list)  # noqa: E731
    with ps.Loader(make()) as loader:
        passes = [list(loader) for _ in range(3)]
        assert all(sorted(chain(*p)) == list(range(10)) for p in passes)
        assert passes[0] != passes[1] != passes[2]
    with ps.Loader(make()) as loader:
        assert list(loader) == passes[0]
        state = loader.state_dict()
    with ps.Loader(make()) as loader:
        loader.load_state_dict(state)
        assert [list(loader), list(loader)] == passes[1:]


# ---------------------------------------------------------------- weights


@pytest.mark.parametrize(("make", "lanes"), [(indexed, 1), (by_lanes, 1), (by_lanes, 4)])
def test_weights_set_in_a_run_are_saved_resumed_and_replayed(make, lanes):
    ramp = ps.Schedule([(0, {"a": 1, "b": 1, "c": 1}), (400, {"a": 1, "b": 9, "c": 0})], "linear")
    with ps.Loader(make(), lanes=lanes) as loader:
        run, items, saved, places = iter(loader), [], None, []
        for step in range(80):
            if step == 13:
                places.append(loader.set_weights({"a": 1, "b": 0, "c": 9}))
            if step == 31:
                places.append(loader.set_weights(ramp))
            if step == 50:
                saved = json.dumps(loader.state_dict())
            items.append(shown(next(run)))
        end = loader.state_dict()
    with ps.Loader(make(), lanes=lanes, workers=2) as resumed:
        resumed.load_state_dict(json.loads(str(saved)))
        assert [shown(x) for x in islice(resumed, 30)] == items[50:]
        assert json.dumps(resumed.state_dict()) == json.dumps(end)
    with ps.Loader(make(), lanes=lanes) as replayed:  # the log alone, moved to the beginning
        start = {**replayed.state_dict(), "changes": end["changes"]}
        replayed.load_state_dict(_sealed(start))
        assert [shown(x) for x in islice(replayed, 80)] == items
    assert places == sorted(places)


def _sealed(state: dict[str, Any]) -> dict[str, Any]:
    from penstock.engine.runtime.seal import seal

    return seal(
        {k: v for k, v in state.items() if k not in ("penstock", "version", "order", "check")}
    )


def test_all_ranks_switch_weights_on_one_sample():
    def run(ranks: int) -> list[list[int]]:
        loaders = [
            ps.Loader(indexed(), rank=r, world_size=ranks, workers=r % 2) for r in range(ranks)
        ]
        runs, items = [iter(loader) for loader in loaders], list[Any]()
        for step in range(48 // ranks):
            if step * ranks == 24:
                assert (
                    len({loader.set_weights({"a": 0, "b": 1, "c": 9}) for loader in loaders}) == 1
                )
            items += [next(run) for run in runs]
        for loader in loaders:
            loader.close()
        return [sorted(chain(*items[i : i + 4])) for i in range(0, 48, 4)]

    assert run(1) == run(2) == run(4)


def test_the_past_cannot_be_changed():
    with ps.Loader(indexed()) as loader:
        list(islice(loader, 10))
        with pytest.raises(ps.ConfigError, match="up to position 30"):
            loader.set_weights({"a": 1, "b": 1, "c": 1}, at=29)
        with pytest.raises(ps.ConfigError, match="fits 0 of the mixtures"):
            ps.Loader(ps.mix({"m": mixture(), "n": numbers(3)})).set_weights({"x": 1})
        with pytest.raises(ps.ConfigError, match="no mixture"):
            ps.Loader(numbers(5)).set_weights({"a": 1})


@pytest.mark.parametrize("packed", [False, True])
def test_adopting_other_weights_and_a_new_source_leaves_every_source_where_it_was(packed):
    def make(weights: dict[str, float], *names: str) -> ps.Dataset:
        starts = {"a": 0, "b": 10_000, "d": 30_000}
        mixed = ps.mix(
            {n: numbers(400, starts[n]).shuffle() for n in names}, weights, block_size=10
        )
        return (
            mixed.map(lambda x: [x] * 3).pack(7).batch(2)
            if packed
            else mixed.batch(4, collate=list)
        )

    def draws(loader: ps.Loader, steps: int) -> list[tuple[str, int, int]]:
        keys = []
        for _ in islice(loader, steps):
            for key in loader.keys():
                keys += [key] if keys[-1:] != [key] else []  # a document may go on in the next row
        return keys

    def joined(first: list[Any], second: list[Any]) -> list[Any]:
        return first + second[first[-1] == second[0] :]

    with ps.Loader(make({"a": 1, "b": 3}, "a", "b"), lanes=1) as loader:
        before, state = draws(loader, 20), loader.state_dict()
        whole = joined(before, draws(loader, 20))
    with ps.Loader(make({"a": 5, "b": 1, "d": 4}, "a", "b", "d"), lanes=1) as loader:
        with pytest.raises(ps.StateError, match=r"weights.a: saved 1, now 5"):
            loader.load_state_dict(state)
        loader.load_state_dict(state, on_mismatch="adopt")
        after = draws(loader, 40)
        again = loader.state_dict()
        rest = [shown(x) for x in islice(loader, 10)]
    drawn = joined(before, after)
    for name in "ab":
        kept = [key for key in drawn if key[0] == name]
        assert kept == list(dict.fromkeys(kept)), "nothing is drawn twice"
        alone = [key for key in whole if key[0] == name]
        assert kept[: len(alone)] == alone[: len(kept)], "the source goes on in its own order"
    assert sum(key[0] == "d" for key in after) > len(after) * 0.3
    with ps.Loader(make({"a": 5, "b": 1, "d": 4}, "a", "b", "d"), lanes=1) as loader:
        loader.load_state_dict(through_json(again))
        assert [shown(x) for x in islice(loader, 10)] == rest


# ---------------------------------------------------------------- samples that fail


def skip_tens(x: int) -> int:
    if x % 10 == 3:
        raise ps.Skip
    return x


def skip_all(x: object) -> object:
    raise ps.Skip


def refuse(x: int) -> int:
    if x % 10 == 3:
        raise ValueError(f"cannot read {x}")
    return x


@pytest.mark.parametrize("workers", [0, 2])
def test_raise_names_the_sample_and_stays_before_it(workers):
    with ps.Loader(numbers(20).map(refuse).batch(2, collate=list), workers=workers) as loader:
        run = iter(loader)
        assert next(run) == [0, 1]
        for _ in range(2):
            with pytest.raises(ValueError, match="cannot read 3") as caught:
                next(run)
            assert "data[3] (pass 0)" in caught.value.__notes__[0]
        assert loader.state_dict()["at"] == 2


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_map_that_may_skip_drops_samples_and_batches_are_filled_up(workers):
    ds = numbers(25).map(skip_tens, may_skip=True).batch(4, collate=list)
    with ps.Loader(ds, workers=workers) as loader:
        assert list(chain(*loader)) == [x for x in range(25) if x % 10 != 3]
        assert loader.journal == []


def test_skip_anywhere_else_is_refused_and_the_remedy_named():
    for ds in (
        numbers(9).map(skip_tens),
        numbers(9).filter(skip_tens),
        numbers(9).batch(2).map(skip_all),
    ):
        for on_error in ("raise", "quarantine"):
            with (
                ps.Loader(ds, on_error=on_error) as loader,
                pytest.raises(ps.ConfigError, match=r"may_skip=True"),
            ):
                list(loader)
    with pytest.raises(ps.ConfigError, match=r"may_skip=True"):
        numbers(9).map(skip_tens)[3]
    with pytest.raises(ps.errors.IndexedError, match=r"map\(may_skip=True\)"):
        len(numbers(9).map(skip_tens, may_skip=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_quarantine_replaces_bad_samples_alike_for_any_workers_and_after_a_resume(workers):
    make = lambda: mixture().map(refuse).batch(8, collate=list)  # noqa: E731
    whole = list(islice(mixture().batch(8, collate=list), 60))
    with ps.Loader(make(), workers=workers, on_error="quarantine", max_errors=500) as loader:
        run = iter(loader)
        head = [next(run) for _ in range(25)]
        state = through_json(loader.state_dict())
        given = head + [next(run) for _ in range(35)]
        journal = {(e["source"], e["epoch"], e["index"]): e for e in loader.journal}
    for batch, full in zip(given, whole, strict=True):
        assert all(x == y or y % 10 == 3 for x, y in zip(batch, full, strict=True))
        assert not any(x % 10 == 3 for x in batch)
    assert all("cannot read" in e["error"] and e["source"] in "abc" for e in journal.values())
    with ps.Loader(make(), on_error="quarantine", max_errors=500) as loader:
        loader.load_state_dict(state)
        assert list(islice(loader, 35)) == given[25:]
        again = {(e["source"], e["epoch"], e["index"]): e for e in loader.journal}
        assert {e["used"] for e in state["journal"]} <= {e["used"] for e in again.values()}
        both = [
            key for key in journal if key in again and journal[key]["used"] and again[key]["used"]
        ]
        assert both and all(journal[key] == again[key] for key in both)


def test_too_many_errors_stop_the_run():
    with ps.Loader(numbers(100).map(refuse), on_error="quarantine", max_errors=4) as loader:
        with pytest.raises(ps.DataError, match=r"5 samples failed, more than max_errors=4"):
            list(loader)


# ---------------------------------------------------------------- states that do not fit


def state_of(make: Any) -> dict[str, Any]:
    with ps.Loader(make()) as loader:
        list(islice(loader, 5))
        return loader.state_dict()


@PIPELINES
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda s: None, "a mapping, not a NoneType"),
        (lambda s: {}, "not a state of Penstock"),
        (lambda s: {"next_index": 4}, "next_index"),
        (lambda s: {**s, "version": 0}, "version 0.*resume with the release that wrote it"),
        (lambda s: {**s, "order": 99}, "order 99"),
        (lambda s: {k: v for k, v in s.items() if k != "at"}, "damaged"),
        (lambda s: {**s, "epoch": 7}, "damaged"),
        (lambda s: {**s, "check": "0"}, "damaged"),
        (lambda s: [], "list of states is empty"),
        (lambda s: _sealed({**s, "epoch": -1}), "'epoch' is -1, not a count"),
        (lambda s: _sealed({**s, "at": "here"}), "here"),
    ],
)
def test_bad_states_are_refused_and_leave_the_loader_where_it_was(make, spoil, message):
    state = state_of(make)
    with ps.Loader(make()) as loader:
        list(islice(loader, 3))
        before = json.dumps(loader.state_dict())
        with pytest.raises(ps.StateError, match=message):
            loader.load_state_dict(spoil(state))
        assert json.dumps(loader.state_dict()) == before
        whole = [shown(x) for x in islice(make(), 6)]
        assert [shown(x) for x in islice(loader, 3)] == whole[3:]


def test_a_foreign_pipeline_is_refused_with_the_differences():
    state = state_of(indexed)
    other = mixture({"a": 1, "b": 1, "c": 1}).map(lambda x: x * 2).batch(5, collate=list)
    with ps.Loader(other) as loader, pytest.raises(ps.StateError) as caught:
        loader.load_state_dict(state)
    for line in ("weights.a: saved 5, now 1", "on_mismatch='adopt'"):
        assert line in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "workers=-1"),
        (
            {"timeout": 3.0},
            "timeout=3.0: give more than 0 seconds, and workers=1 at least with the executor 'threads'",
        ),
        (
            {"timeout": 0.0, "workers": 2, "executor": "processes"},
            "timeout=0.0: give more than 0 seconds",
        ),
        ({"executor": "fibres"}, "'inline', 'threads', 'processes' or 'ray'"),
        ({"prefetch": 0}, "prefetch=0"),
        ({"rank": 0}, "both or neither"),
        ({"rank": 3, "world_size": 3}, "0 to world_size - 1"),
        ({"lanes": 0}, "lanes=0"),
        ({"on_error": "ignore"}, "'raise' or 'quarantine'"),
        ({"max_errors": -1}, "max_errors=-1"),
        ({"remainder": "wrap"}, "'drop', 'pad' or 'keep'"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(ps.ConfigError, match=message):
        ps.Loader(numbers(5), **options)


def test_a_closed_loader_says_so_and_closing_twice_is_fine():
    loader = ps.Loader(numbers(5), workers=2)
    loader.close()
    loader.close()
    with pytest.raises(ps.ConfigError, match="closed"):
        next(iter(loader))


def test_stats_count_samples_by_source():
    with ps.Loader(mixture().batch(10, collate=list)) as loader:
        list(islice(loader, 30))
        assert loader.stats()["samples"] == {"a": 150, "b": 90, "c": 60}
        assert loader.stats()["items"] == 30
        assert len(loader.keys()) == 10


def test_stats_go_on_over_passes():
    with ps.Loader(numbers(10).batch(2), workers=1) as loader:
        for n in (1, 2, 3):
            list(loader)
            assert (
                loader.stats()["samples"] == {"data": 10 * n} and loader.stats()["items"] == 5 * n
            )


def test_a_closed_loader_gives_nothing_that_was_at_hand_whatever_is_tried():
    loader = ps.Loader(numbers(9_999), workers=1)
    rows = iter(loader)
    list(islice(rows, 300))
    loader.close()
    with pytest.raises(ps.StateError):
        loader.load_state_dict({})
    with pytest.raises(ps.ConfigError, match="closed"):
        next(rows)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_nothing_is_at_hand_in_a_forked_process():
    code = (
        "import os, penstock as ps\n"
        "from penstock.engine.streams.execution import Pace\n"
        "Pace.took = lambda pace, items, seconds: setattr(pace, 'size', 64)\n"  # however slow it is here
        "loader = ps.Loader(ps.from_sequence(range(9_999)), workers=1)\n"
        "rows = iter(loader)\n"
        "[next(rows) for _ in range(300)]\n"
        "assert loader._session.out.stop > loader._session.out.used + 1, 'some are at hand'\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        next(rows)\n"
        "    except ps.ConfigError as error:\n"
        "        print('refused' if 'in each process' in str(error) else error, flush=True)\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "print(next(rows), flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.stdout.split() == ["refused", "300"], done.stderr


# ---------------------------------------------------------------- epochs of a chosen length


@pytest.mark.parametrize(
    "dataset", [numbers(7).shuffle().repeat(), numbers(7).filter(lambda x: x != 3).repeat()]
)
def test_epochs_of_a_chosen_length_go_on_where_the_last_one_ended(dataset: ps.Dataset) -> None:
    want = list(islice(dataset, 15))
    loader = ps.Loader(dataset, epoch_length=5)
    assert [list(loader) for _ in range(3)] == [want[:5], want[5:10], want[10:]]
    for stop in range(16):
        first, again = (
            ps.Loader(dataset, epoch_length=5),
            ps.Loader(dataset, workers=2, epoch_length=5),
        )
        given = list(islice(chain.from_iterable(first for _ in range(9)), stop))
        again.load_state_dict(through_json(first.state_dict()))
        # What is left of the epoch, also if that is nothing, and then whole ones.
        left = 5 - stop % 5 if stop % 5 or not stop else 0
        assert given == want[:stop] and list(again) == want[stop : stop + left]
        again.close()
    with pytest.raises(ps.ConfigError, match="epoch_length=0"):
        ps.Loader(dataset, epoch_length=0)


def test_the_end_of_a_pass_ends_an_epoch_too() -> None:
    loader = ps.Loader(numbers(7), epoch_length=5)
    assert [list(loader) for _ in range(3)] == [[0, 1, 2, 3, 4], [5, 6], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize(
    "dataset", [numbers(12).shuffle(seed=1), numbers(14).filter(lambda x: x not in (2, 5))]
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_no_epoch_is_empty_if_epochs_divide_a_pass(dataset: ps.Dataset, ranks: int) -> None:
    options: dict[str, Any] = {"epoch_length": 2 * ranks, "remainder": "keep", "world_size": ranks}
    options |= {} if dataset.tree.reason_not_indexed is None else {"lanes": 2}

    def open_loaders() -> list[ps.Loader]:
        return [ps.Loader(dataset, rank=rank, **options) for rank in range(ranks)]

    whole = [
        list(ps.Loader(dataset, rank=rank, **{**options, "epoch_length": None}))
        for rank in range(ranks)
    ]
    sizes = [min(2, size - at) for size in [len(whole[0])] for at in range(0, size, 2)]
    first = open_loaders()
    for epoch in range(2 * len(sizes)):
        again = open_loaders()
        states = through_json([loader.state_dict() for loader in first])
        for loader in again:
            loader.load_state_dict(states)
        items = [list(loader) for loader in first]
        assert [len(items_of_rank) for items_of_rank in items] == [
            sizes[epoch % len(sizes)]
        ] * ranks
        assert [list(loader) for loader in again] == items


@pytest.mark.parametrize("epoch_length", [1, 3])
def test_an_empty_dataset_has_empty_epochs(epoch_length: int) -> None:
    loader = ps.Loader(numbers(0), epoch_length=epoch_length)
    assert [list(loader) for _ in range(3)] == [[], [], []]


def test_a16_an_epoch_counts_the_items_of_all_ranks() -> None:
    dataset = numbers(100).repeat()
    ranks = dealt(dataset, 2, epoch_length=5)
    assert [sorted(chain(*(list(rank) for rank in ranks))) for _ in range(2)] == [
        list(range(6)),
        list(range(6, 12)),
    ]
    first = dealt(dataset, 2, epoch_length=6)
    runs = [iter(loader) for loader in first]
    assert sorted(next(run) for run in runs) == [0, 1]
    rest = dealt(dataset, 4, epoch_length=6)
    for loader in rest:
        loader.load_state_dict(first[0].state_dict())
    assert sorted(chain(*(list(loader) for loader in rest))) == [2, 3, 4, 5]
    assert sorted(chain(*(list(loader) for loader in rest))) == list(range(6, 14))


def test_lanes_share_out_the_draws_of_a_mixture() -> None:
    # Draws of their own in one order would give all ranks batches of one source at a time.
    streams = {
        name: numbers(1000).map(lambda _, name=name: name).filter(bool).repeat() for name in "ab"
    }
    loader = ps.Loader(ps.mix(streams, {"a": 6, "b": 4}, block_size=10), lanes=4)
    steps = [list(islice(loader, 4)) for _ in range(50)]
    together = sum(len(set(step)) == 1 for step in steps)
    assert together < 20, "by chance it is about one in six"
    drawn = [x for step in steps for x in step]
    assert all(
        drawn[i : i + 20].count("a") == 12 for i in range(0, 200, 20)
    )  # whole rounds of whole blocks
    assert len({tuple(step[lane] for step in steps) for lane in range(4)}) == 4


@pytest.mark.parametrize(
    ("method", "options"),
    [("concat_split", {}), ("first_fit", {"open_rows": 4}), ("best_fit", {"window": 16})],
)
def test_weights_set_under_a_pack_that_was_planned(method: Any, options: Any) -> None:
    def tokens(seed: int, n: int) -> ps.Dataset:
        lengths = np.random.default_rng(seed).integers(1, 20, n)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return ps.from_tokens(np.arange(offsets[-1]), offsets).shuffle()

    flows = {"a": tokens(1, 900), "b": tokens(2, 900)}
    ds = (
        ps.mix(flows, {"a": 1, "b": 1}, stop="all_exhausted", block_size=10)
        .pack(64, method, **options)
        .batch(2)
    )
    assert len(ds) > 60

    def keys(loader: ps.Loader, steps: int) -> list[Any]:
        return [loader.keys() for _, _ in zip(range(steps), loader, strict=False)]

    with ps.Loader(ds) as plain, ps.Loader(ds) as loader:
        before = keys(plain, 30)
        assert keys(loader, 12) == before[:12]
        at = loader.set_weights({"a": 9, "b": 1})
        state = loader.state_dict()
        rest = keys(loader, 30)
    shares = [
        sum(source == "a" for step in rest[4:20] for source, _, _ in step),
        sum(map(len, rest[4:20])),
    ]
    assert 0.8 * shares[1] < shares[0], (at, shares)
    with ps.Loader(ds, workers=2) as resumed:
        resumed.load_state_dict(through_json(state))
        assert keys(resumed, 30) == rest
    with ps.Loader(ds) as replayed:
        replayed.set_weights({"a": 9, "b": 1}, at=at)
        assert keys(replayed, 42) == before[:12] + rest


# ---------------------------------------------------------------- how far ahead


class _Clock:
    """A scheduler whose time passes only where a function says so, and whose hands work at once."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def spawn(self, workers: int) -> _Clock:
        return self

    def submit(self, task: Callable[[], Any], /) -> Task:
        done = Task(task)
        done.run()
        return done

    def close(self, seconds: float | None = None, /) -> None: ...


def test_cheap_steps_do_not_pile_up_dear_samples() -> None:
    # Collating costs next to nothing, so more and more batches were made ahead: twenty thousand decoded images.
    clock, made = _Clock(), list[int]()

    def dear(x: int) -> list[int]:
        clock.time += 0.001
        made.append(x)
        return [x]

    with storage.override_world(sched=clock):
        batches = numbers(100_000).flat_map(dear).batch(32, collate=list)
        with ps.Loader(batches.filter(bool), workers=4) as loader:
            for given, _ in enumerate(islice(loader, 60), 1):
                assert len(made) - 32 * given <= 2 * 8 * 32


@pytest.mark.parametrize("workers", [0, 2])
def test_two_threads_over_one_loader_get_every_item_once(workers: int) -> None:
    ds = ps.from_sequence(range(3_000)).shuffle(seed=1).filter(lambda x: x % 7).shuffle_buffer(10)
    want = sorted(ds)
    with ps.Loader(ds, workers=workers) as loader, ThreadPoolExecutor(2) as pool:
        rows = iter(loader)
        got = [pool.submit(list[int], rows) for _ in range(2)]
        assert sorted([x for part in got for x in part.result()]) == want
        assert loader.stats()["epoch"] == 1


@pytest.mark.parametrize(
    "call", ["state_dict", "metrics", "verdict", "lease", "set_weights", "next"]
)
def test_calls_of_the_pipeline_on_its_worker_threads_are_refused(call: str) -> None:
    """They waited for a lock whose holder waited for them, without end."""

    def asks(x: int) -> int:
        calls: dict[str, Callable[[], Any]] = {
            "lease": lambda: loader.lease(1),
            "set_weights": lambda: loader.set_weights({"a": 1}),
            "next": lambda: next(items),
        }
        calls.get(call, lambda: getattr(loader, call)())()
        return x

    with ps.Loader(ps.from_sequence(range(20)).map(asks), workers=1) as loader:
        items = iter(loader)
        with pytest.raises(ps.ConfigError, match="on a worker thread of the same loader"):
            next(items)


def test_what_another_thread_takes_while_this_one_waited_is_not_given_again() -> None:
    """Another thread runs wherever something is called; here it does after every wait."""
    with ps.Loader(ps.from_sequence(range(300)).filter(lambda x: x % 7)) as loader:
        rows, others, took = iter(loader), list[int](), loader._watch.record_wait

        def switched(began: float, ended: float) -> None:
            took(began, ended)
            for _ in range(min(3, loader._session.out.stop - loader._session.out.used)):
                others.append(next(rows))

        loader._watch.record_wait = switched
        mine = [*rows]
    assert len(others) > 10
    assert sorted(mine + others) == [x for x in range(300) if x % 7]


def test_what_another_thread_puts_into_the_same_place_is_not_taken_for_the_item_of_before() -> None:
    """One item was given twice and another one never."""
    with ps.Loader(ps.from_sequence(range(300)).filter(lambda x: x % 7)) as loader:
        rows, others, took = iter(loader), list[int](), loader._watch.record_wait

        def switched(began: float, ended: float) -> None:
            took(began, ended)
            out = loader._session.out
            if not others:
                others.extend(out.values[out.used : out.stop])
                out.used = out.stop
                out.fill()

        loader._watch.record_wait = switched
        mine = [*rows]
    assert sorted(mine + others) == [x for x in range(300) if x % 7]


def test_a_loader_with_workers_is_refused_behind_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    with ps.Loader(ps.from_sequence(range(9)), workers=1) as loader:
        rows = iter(loader)
        next(rows)
        monkeypatch.setattr("penstock.loader.get_pid", lambda: -1)
        with pytest.raises(ps.ConfigError, match="open a loader in each process"):
            next(rows)


@pytest.mark.slow  # processes of jax.distributed
def test_c1_the_ranks_of_jax_are_found() -> None:
    pytest.importorskip("jax")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    code = (
        "import sys, jax, penstock as ps\n"
        "jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))\n"
        "print(len(ps.Loader(ps.from_sequence(range(10)))), ps.Loader(ps.from_sequence(range(10)))._session.sharding.rank)"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, address, str(rank)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    assert [rank.communicate(timeout=600)[0].split() for rank in ranks] == [["5", "0"], ["5", "1"]]


# ---------------------------------------------------------------- seek


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("endless", [False, True])
def test_a_loader_goes_to_any_step_of_its_run(ranks: int, endless: bool) -> None:
    """The items from there, and the place in the state, are those of the run that went all the way."""
    ds = ps.from_sequence(range(23), name="a").shuffle(seed=1)
    ds = (ds.repeat() if endless else ds).batch(3, collate=list)
    for rank in range(ranks):
        options: Any = {
            "rank": rank,
            "world_size": ranks,
            "epoch_length": 5 * ranks if endless else None,
        }
        items, states, parts = list[Any](), list[Any](), ("at", "epoch", "last", "step")
        with ps.Loader(ds, **options) as loader:
            for _ in range(3):
                for item in loader:
                    items.append(item)
                    states.append(loader.state_dict())
        with ps.Loader(ds, **options, workers=1) as loader:
            for step in (7, 0, 3, len(items) - 1, 1):
                loader.seek(step)
                it = iter(loader)
                assert next(it) == items[step]
                state = loader.state_dict()
                assert [state[part] for part in parts] == [states[step][part] for part in parts]
                loader.seek(2)
                assert next(it) == items[2], "also while a pass is under way"


def test_a_run_that_went_back_counts_its_steps_anew_from_there() -> None:
    ds = ps.from_sequence(range(40), name="a")
    with ps.Loader(ds.batch(2, collate=list)) as loader:
        _ = [next(iter(loader)) for _ in range(6)]
        state = loader.state_dict()
    with ps.Loader(ds.batch(5, collate=list)) as loader:
        loader.load_state_dict(state)
        assert next(iter(loader)) == [12, 13, 14, 15, 16]
        loader.seek(7)
        assert next(iter(loader)) == [17, 18, 19, 20, 21]
        loader.seek(3)  # of the run that took 2 at a time
        assert next(iter(loader)) == [6, 7, 8, 9, 10]
        loader.seek(4)
        assert next(iter(loader)) == [11, 12, 13, 14, 15]
        plan = ds.batch(5, collate=list).plan.for_state(loader.state_dict())
        assert [sample.index for sample in plan.at(step=4)] == [11, 12, 13, 14, 15]


def test_seek_keeps_what_was_changed_on_the_way() -> None:
    ds = ps.mix({"a": ps.from_sequence("a"), "b": ps.from_sequence("b")}, seed=1)
    with ps.Loader(ds) as loader:
        first = [next(iter(loader)) for _ in range(10)]
        loader.set_weights({"a": 1, "b": 0})
        loader.seek(0)
        assert [next(iter(loader)) for _ in range(14)] == [*first, *"aaaa"]


def test_steps_that_cannot_be_counted_are_not_sought() -> None:
    with (
        ps.Loader(ps.from_sequence(range(9)).filter(bool)) as loader,
        pytest.raises(ps.IndexedError, match="filter"),
    ):
        loader.seek(3)
    with ps.Loader(ps.from_sequence(range(9))) as loader:
        for wrong, error in ((-1, ps.ConfigError), (1.5, ps.ConfigError), (1 << 63, IndexError)):
            with pytest.raises(error):
                loader.seek(wrong)  # pyright: ignore[reportArgumentType]
        assert next(iter(loader)) == 0


def test_seek_to_what_no_cursor_tells_is_refused() -> None:
    """The error spoke of a damaged state."""
    a = ps.from_sequence(range(2), name="a")
    for ds, step in ((a.repeat(), 1 << 60), (a.repeat().batch(4), 1 << 58), (a, 1 << 61)):
        with ps.Loader(ds) as loader:
            with pytest.raises(IndexError, match=r"positions are counted up to 2\^60"):
                loader.seek(step)
            next(iter(loader))
            assert loader.state_dict()["step"] == 1
    with pytest.raises(IndexError, match="positions are counted up to"):
        iter(a.repeat()).seek(1 << 60)


def test_the_remedy_for_another_pipeline_works() -> None:
    def half(x: int) -> float:
        return x / 2

    rows = ps.from_sequence(range(20), name="rows")
    saved = ps.Loader(rows.shuffle(seed=1))
    first = next(iter(saved))
    state = saved.state_dict()
    other = ps.Loader(rows.shuffle(seed=2))
    with pytest.raises(
        ps.StateError,
        match=r"seed: saved 1, now 2\nload it into the pipeline that saved it, or adopt it",
    ):
        other.load_state_dict(state)
    with pytest.raises(ps.StateError, match="adopt: .*shuffle"):
        other.load_state_dict(state, on_mismatch="adopt")
    halves = ps.Loader(rows.shuffle(seed=1).map(half))
    with pytest.raises(ps.StateError, match=r"half\): not in the saved run"):
        halves.load_state_dict(state)
    halves.load_state_dict(state, on_mismatch="adopt")
    assert sorted([first, *(2 * x for x in halves)]) == [*range(20)]
