"""Items that are taken, and settled out of order: none lost, none given again that was settled, whoever resumes where."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from helpers import through_json
from penstock.engine.plan.records import Address, parse_uid
from penstock.engine.runtime.seal import seal
from penstock.leases import UnsettledItems
from simulated_rollouts import Rollouts, prompts

FOLDER = Path(__file__).resolve().parents[1]


def numbers(n: int) -> ps.Dataset:
    return ps.from_sequence(range(n), name="numbers")


def values(items: list[Any]) -> list[Any]:
    return [item.value for item in items]


def resumed(make: Any, states: Any, rank: int = 0, ranks: int = 1, **options: Any) -> ps.Loader:
    loader = ps.Loader(make(), rank=rank, world_size=ranks, **options)
    loader.load_state_dict(through_json(states))
    return loader


# ------------------------------------------------------------ what is given


def test_passes_end_with_an_empty_list() -> None:
    loader = ps.Loader(numbers(5))
    assert [[*map(tuple, loader.lease(3))] for _ in range(6)] == [
        [("0:0", 0), ("0:1", 1), ("0:2", 2)], [("0:3", 3), ("0:4", 4)], [],
        [("1:0", 0), ("1:1", 1), ("1:2", 2)], [("1:3", 3), ("1:4", 4)], [],
    ]  # fmt: skip


def test_a_run_that_stands_at_the_end_of_a_pass_can_be_taken_from() -> None:
    loader = ps.Loader(numbers(301).batch(2, collate=list))
    it = iter(loader)
    assert [next(it) for _ in range(151)][-1] == [300]
    again = resumed(lambda: numbers(301).batch(2, collate=list), loader.state_dict())
    assert again.lease(2) == [] and values(again.lease(2)) == [[0, 1], [2, 3]]
    assert loader.lease(2) == [] and values(loader.lease(2)) == [[0, 1], [2, 3]]


def test_an_open_item_that_was_not_taken_yet_is_damage() -> None:
    ds = numbers(40).batch(2, collate=list)
    loader = ps.Loader(ds)
    loader.lease(5)
    state = loader.state_dict()
    assert state["settling"]["open"] == [[0, [0, 1, 2, 3, 4]]]
    for item in (5, 6, 9, 19, 20):
        wrong = {**state, "settling": {**state["settling"], "open": [[0, [0, item]]]}}
        with pytest.raises(ps.StateError, match="damaged"):
            ps.Loader(ds).load_state_dict(
                seal({name: value for name, value in wrong.items() if name != "check"})
            )


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize(
    "size, batch", [(0, 1), (1, 1), (3, 1), (50, 1), (50, 4), (23, 8), (24, 8)]
)
def test_ranks_are_dealt_all_items_of_the_plan(ranks: int, size: int, batch: int) -> None:
    def make() -> ps.Dataset:
        ds = numbers(size).shuffle(seed=2)
        return ds.batch(batch, drop_remainder=size == 23, collate=list) if batch > 1 else ds

    ds, found = make(), dict[str, Any]()
    for rank in range(ranks):
        loader = ps.Loader(make(), rank=rank, world_size=ranks)
        for _ in range(2):
            while items := loader.lease(3):
                found |= items
    whole = [*ds, *ps.Loader(ds.repeat(2))][len(ds) :] if size else []
    assert found == {
        f"{epoch}:{i}": whole[epoch * len(ds) + i] for epoch in range(2) for i in range(len(ds))
    }
    for uid, value in found.items():
        index = [sample.index for sample in ds.plan.at(uid)]
        assert index == (value if batch > 1 else [value])


def test_each_rank_has_its_share_of_every_source() -> None:
    ds = ps.mix(
        {"a": ps.from_sequence([0]).repeat(), "b": ps.from_sequence([1]).repeat()},
        {"a": 0.8, "b": 0.2},
    )
    counts = [
        Counter(values(ps.Loader(ds, rank=rank, world_size=5).lease(500))) for rank in range(5)
    ]
    assert all(60 < each[1] < 140 for each in counts), counts


def test_a_requeued_item_comes_before_anything_new() -> None:
    loader = ps.Loader(numbers(10))
    first = loader.lease(4)
    for item in (first[2], first[0]):
        loader.settle(item.uid, "requeue")
    assert values(loader.lease(3)) == [2, 0, 4]
    loader.settle("0:2", "trained")
    assert values(loader.lease(1)) == [5]


def test_what_is_requeued_in_a_later_pass_keeps_its_address() -> None:
    make = numbers(3).shuffle(seed=1).repeat(2).batch(2, collate=list)
    loader = ps.Loader(make)
    before = {item.uid: item.value for item in loader.lease(9)}
    assert loader.lease(9) == [] and len(loader.lease(2)) == 2
    loader.settle("0:1", "requeue")
    assert tuple(loader.lease(1)[0]) == ("0:1", before["0:1"])


@pytest.mark.parametrize("workers, executor", [(0, "inline"), (2, "threads"), (2, "processes")])
def test_workers_change_nothing(workers: int, executor: Any) -> None:
    def make() -> ps.Dataset:
        return (
            numbers(40)
            .shuffle(seed=5)
            .random_map(lambda x, rng: x + int(rng.integers(9)) / 10)
            .batch(2, collate=list)
        )

    with ps.Loader(make(), workers=workers, executor=executor) as loader:
        items = loader.lease(12)
        for item in items[::2]:
            loader.settle(item.uid, "trained")
        loader.settle(items[3].uid, "requeue")
        with resumed(make, loader.state_dict(), workers=workers, executor=executor) as again:
            rest = again.lease(9)
    ds = make()
    assert [item.uid for item in rest] == [
        *(f"0:{i}" for i in range(1, 12, 2)),
        "0:12",
        "0:13",
        "0:14",
    ]
    assert all(item.value == ds[int(item.uid[2:])] for item in [*items, *rest])


# ------------------------------------------------------------ states


def test_a_state_says_what_take_said_only_where_it_was_used() -> None:
    loader = ps.Loader(numbers(9))
    assert next(iter(loader)) == 0 and "settling" not in loader.state_dict()
    assert values(loader.lease(2)) == [1, 2]
    assert loader.state_dict()["settling"]["open"] == [[0, [1, 2]]]
    loader.settle("0:1", "filtered")
    assert loader.state_dict()["settling"]["open"] == [[0, [2]]]


def test_a_state_is_small_however_long_one_rollout_takes() -> None:
    loader = ps.Loader(numbers(1000).repeat())
    loader.lease(1)
    for _ in range(200):
        for item in loader.lease(64):
            loader.settle(item.uid, "trained")
    assert len(json.dumps(loader.state_dict()["settling"])) < 100
    loader.lease(63)
    assert len(json.dumps(loader.state_dict()["settling"])) < 1000


def test_nothing_open_is_an_ordinary_state() -> None:
    loader = ps.Loader(numbers(6))
    for item in loader.lease(4):
        loader.settle(item.uid, "trained")
    assert [*resumed(lambda: numbers(6), loader.state_dict())] == [4, 5]
    steps = ps.Loader(numbers(6))
    for _ in zip(range(4), steps, strict=False):
        pass
    assert values(resumed(lambda: numbers(6), steps.state_dict()).lease(3)) == [4, 5]


def test_results_that_outlive_a_crash_are_settled_before_they_are_given_again() -> None:
    loader = ps.Loader(numbers(9))
    loader.lease(4)
    again = resumed(lambda: numbers(9), loader.state_dict())
    again.settle("0:2", "trained")
    assert values(again.lease(5)) == [0, 1, 3, 4, 5]


def test_a_plan_of_the_run_stands_where_it_took_last() -> None:
    ds = numbers(20).batch(2, collate=list)
    loader = ps.Loader(ds)
    loader.lease(3)
    plan = ds.plan.for_state(loader.state_dict())
    assert plan.position == 3
    edited = plan.skip(range(4, 6)).exclude([("numbers", 19)])
    again = ps.Loader(ds)
    again.load_state_dict(edited.state)
    assert values(again.lease(9)) == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
        [12, 13],
        [14, 15],
        [16, 17],
        [18, 0],
    ]


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_was_seen_is_what_was_settled(ranks: int, drop: bool) -> None:
    ds, dice, settled = (
        numbers(23).shuffle(seed=1).batch(3, drop, collate=list),
        random.Random(2),
        Counter[int](),
    )
    loaders = [ps.Loader(ds, rank=rank, world_size=ranks) for rank in range(ranks)]
    for _ in range(6):
        for loader in loaders:
            for item in loader.lease(dice.randint(1, 3)):
                if dice.random() < 0.6:
                    loader.settle(item.uid, "trained")
                    settled.update(item.value)
    plan = ds.plan.for_state(through_json([loader.state_dict() for loader in loaders]))
    for asked in (plan, plan.rows()):
        (times,) = asked.seen().times
        assert Counter({i: n for i, n in enumerate(times.tolist()) if n}) == settled


def test_other_weights_hold_from_what_was_not_taken() -> None:
    def make() -> ps.Dataset:
        return ps.mix({name: ps.from_sequence([name]).repeat() for name in "ab"}, {"a": 1, "b": 1})

    loader = ps.Loader(make())
    before = values(loader.lease(10))
    assert loader.set_weights({"a": 1, "b": 0}) == 10
    loader.settle("0:3", "trained")
    assert values(loader.lease(4)) == ["a"] * 4
    again = resumed(make, loader.state_dict())
    assert values(again.lease(20)) == [*before[:3], *before[4:], *"a" * 11]
    states = [ps.Loader(make(), rank=rank, world_size=2) for rank in range(2)]
    for rank, other in enumerate(states):
        other.lease(2)
        with pytest.raises(ps.ConfigError, match="needs at="):
            other.set_weights({"a": 1, "b": 0})
        other.set_weights({"a": 1, "b": rank}, at=50)
    with pytest.raises(ps.StateError, match="other changes"):
        resumed(make, [other.state_dict() for other in states])


# ------------------------------------------------------------ ranks


@given(st.data())
@examples(30)
def test_any_ranks_go_on_where_any_ranks_were(data: st.DataObject) -> None:
    """Whatever was settled when, and whoever resumes: what is given is what nobody settled, each once."""
    size = data.draw(st.sampled_from([None, 1, 7, 40]), "size")
    batch, drop = data.draw(st.sampled_from([(1, False), (3, False), (3, True)]), "batch")

    def make() -> ps.Dataset:
        ds = numbers(11).shuffle(seed=3).repeat() if size is None else numbers(size).shuffle(seed=3)
        return ds.batch(batch, drop_remainder=drop, collate=list) if batch > 1 else ds

    reference, states, settled = make(), None, dict[str, str]()
    for _ in range(data.draw(st.integers(1, 4), "lives")):
        ranks = data.draw(st.integers(1, 4), "ranks")
        loaders = [ps.Loader(make(), rank=rank, world_size=ranks) for rank in range(ranks)]
        for loader in loaders:
            if states is not None:
                loader.load_state_dict(states)
        flight: list[dict[str, Any]] = [{} for _ in loaders]
        for _ in range(data.draw(st.integers(0, 25), "steps")):
            rank = data.draw(st.integers(0, ranks - 1), "rank")
            for uid, value in loaders[rank].lease(data.draw(st.integers(1, 5), "k")):
                assert uid not in settled and all(uid not in each for each in flight)
                epoch, item = parse_uid(uid, "{}")
                position = epoch * (reference.plan.size or 0) + item
                indices = [sample.index for sample in reference.plan.at(position)]
                assert indices == (value if batch > 1 else [value])
                flight[rank][uid] = value
            for uid in data.draw(
                st.sets(st.sampled_from([*flight[rank], ""]), max_size=4), "finished"
            ) - {""}:
                fate: Any = data.draw(
                    st.sampled_from(["trained", "filtered", "failed", "requeue"]), "fate"
                )
                loaders[rank].settle(uid, fate)
                del flight[rank][uid]
                if fate != "requeue":
                    settled[uid] = fate
        states = through_json([loader.state_dict() for loader in loaders])
    alone, taken = resumed(make, states), list[str]()
    furthest = max((parse_uid(uid, "{}") for uid in settled), default=Address(0, 0))
    while len(taken) < 400 and (not taken or parse_uid(taken[-1], "{}") <= furthest):
        taken += [uid for uid, _ in alone.lease(7)]
        if size == 0 or (not taken and alone.state_dict()["epoch"] > furthest.epoch + 1):
            break
    assert not settled.keys() & set(taken) and len(set(taken)) == len(taken)
    assert [parse_uid(uid, "{}") for uid in taken] == sorted(parse_uid(uid, "{}") for uid in taken)
    count = reference.plan.size
    due = {
        Address(epoch, item).uid
        for epoch in range(furthest.epoch + 1)
        for item in range(count if count is not None else furthest.item + 1)
        if Address(epoch, item) <= furthest
    }
    assert due - settled.keys() <= set(taken)


def test_the_states_of_all_ranks_are_needed() -> None:
    loaders = [ps.Loader(numbers(30), rank=rank, world_size=3) for rank in range(3)]
    for loader in loaders:
        loader.lease(2)
    states = [loader.state_dict() for loader in loaders]
    for ranks in (1, 2, 3):
        with pytest.raises(ps.StateError, match=r"states of ranks \[0, 2\] are missing"):
            resumed(lambda: numbers(30), states[1], 0, ranks)
    with pytest.raises(ps.StateError, match=r"ranks \[1\] are missing"):
        resumed(lambda: numbers(30), [states[0], states[2]])
    with pytest.raises(ps.StateError, match="two have the same rank"):
        resumed(lambda: numbers(30), [states[0], states[0], states[2]])
    with pytest.raises(ps.StateError, match="states of ranks"):
        numbers(30).plan.for_state(states[0])
    assert len(resumed(lambda: numbers(30), states).lease(30)) == 30


def test_a_rank_that_took_nothing_yet_has_an_ordinary_state() -> None:
    loaders = [ps.Loader(numbers(8), rank=rank, world_size=2) for rank in range(2)]
    first = loaders[1].lease(2)
    for item in first:
        loaders[1].settle(item.uid, "trained")
    left = resumed(lambda: numbers(8), [loader.state_dict() for loader in loaders]).lease(8)
    assert sorted([*values(first), *values(left)]) == [*range(8)]


# ------------------------------------------------------------ refusals


def test_what_is_no_uid_in_flight_is_refused() -> None:
    loader = ps.Loader(numbers(9))
    loader.lease(3)
    loader.settle("0:1", "failed")
    for uid in ("0:1", "0:3", "1:0"):
        with pytest.raises(
            ps.ConfigError,
            match=f"settle\\('{uid}', 'trained'\\): the item is not in flight on this rank",
        ):
            loader.settle(uid, "trained")
    for wrong in ("", "7", "0:01", "0:1 ", "a:b", "-1:2", "0:²", 3, None):
        with pytest.raises(
            ps.ConfigError, match=r"is not a uid|settle\(uid=(3|None)\): give a string"
        ):
            loader.settle(wrong, "trained")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ps.ConfigError, match="trained"):
        loader.settle("0:0", "train")  # pyright: ignore[reportArgumentType]
    loader.settle("0:0", "requeue")
    with pytest.raises(ps.ConfigError, match="is already requeued"):
        loader.settle("0:0", "requeue")
    for k in (0, -1, 1.5, "2"):
        with pytest.raises(ps.ConfigError, match="lease"):
            loader.lease(k)  # pyright: ignore[reportArgumentType]
    with pytest.raises(IndexError, match="no such item"):
        numbers(9).plan.at("0:9")
    with pytest.raises(ps.ConfigError, match="is not a uid"):
        numbers(9).plan.at("9")


def test_a_for_and_a_take_do_not_mix() -> None:
    loader = ps.Loader(numbers(9))
    steps = iter(loader)
    assert next(steps) == 0 and values(loader.lease(2)) == [1, 2]
    with pytest.raises(ps.ConfigError, match="lease"):
        next(steps)
    for asked in (lambda: iter(loader), loader.keys, lambda: loader.seek(0)):
        with pytest.raises(ps.ConfigError, match="lease"):
            asked()
    with pytest.raises(ps.ConfigError, match="lease"):
        iter(resumed(lambda: numbers(9), loader.state_dict()))
    with pytest.raises(ps.StateError, match="only a ps.Loader reads"):
        iter(numbers(9)).load_state_dict(loader.state_dict())


def test_runs_that_cannot_be_taken_from_are_refused() -> None:
    wrong: list[dict[str, Any]] = [{"remainder": "pad"}, {"epoch_length": 3}]
    for options in wrong:
        with pytest.raises(ps.ConfigError, match="lease"):
            ps.Loader(numbers(9), **options).lease(1)
    loader = ps.Loader(numbers(9))
    loader.close()
    with pytest.raises(ps.ConfigError, match="closed"):
        loader.lease(1)


def test_another_pipeline_or_batch_does_not_take_what_is_open() -> None:
    loader = ps.Loader(numbers(12).batch(2))
    loader.lease(2)
    state = loader.state_dict()
    with pytest.raises(ps.StateError, match="items of 2 rows are not settled"):
        resumed(lambda: numbers(12).batch(3), state)
    other = ps.Loader(numbers(12).map(lambda x: x).batch(2))
    with pytest.raises(ps.StateError, match="never settled"):
        other.load_state_dict(state, on_mismatch="adopt")
    assert len(other.lease(2)) == 2
    for uid in ("0:0", "0:1"):
        loader.settle(uid, "trained")
    (item,) = resumed(lambda: numbers(12).batch(4), loader.state_dict()).lease(1)
    assert item.uid == "0:1" and item.value.tolist() == [4, 5, 6, 7]
    loader.lease(1)
    loader.settle("0:2", "trained")
    with pytest.raises(ps.ConfigError, match="in the middle of an item"):
        resumed(lambda: numbers(12).batch(4), loader.state_dict()).lease(1)


@pytest.mark.parametrize(
    "settling",
    [None, [], {}, {"of": [0, 1]}, {"of": [0, 1], "group": 1, "rows": 9, "items": 9, "open": [[0, ["x"]]]},
     {"of": [1, 1], "group": 1, "rows": 9, "items": 9, "open": []}, {"of": [0, 0], "group": 1, "rows": 9, "items": 9, "open": []},
     {"of": [0, 1], "group": 0, "rows": 9, "items": 9, "open": []}, {"of": [0, 1], "group": 1, "rows": 9, "items": 9, "open": [[0, [7]]]},
     {"of": [0, 1], "group": 1, "rows": 9, "items": 9, "open": [[0, [0, 0]]]}, {"of": [0, 1], "group": 1, "rows": 9, "items": 9, "open": [3]}],
)  # fmt: skip
def test_a_state_that_tells_nonsense_is_refused(settling: Any) -> None:
    from penstock.engine.runtime.seal import seal, unseal

    loader = ps.Loader(numbers(9))
    loader.lease(3)
    forged = seal({**unseal(loader.state_dict()), "settling": settling})
    with pytest.raises(ps.StateError):
        resumed(lambda: numbers(9), forged)


# ------------------------------------------------------------ failures


def test_an_item_that_fails_can_be_settled() -> None:
    def broken(x: int) -> int:
        return 1 // (x - 3) + x

    loader = ps.Loader(numbers(9).map(broken))
    assert len(loader.lease(5)) == 3
    with pytest.raises(ZeroDivisionError):
        loader.lease(1)
    assert loader.state_dict()["settling"]["open"] == [[0, [0, 1, 2]]]
    kept = ps.Loader(numbers(9).map(broken), on_error="quarantine")
    assert len(kept.lease(9)) == 9 and len(kept.journal) == 1


def test_an_item_that_fails_when_it_is_given_again_stops_those_behind_it() -> None:
    bad = set[int]()

    def sometimes(x: int) -> int:
        if x in bad:
            raise ValueError(x)
        return x

    loader = ps.Loader(numbers(9).map(sometimes))
    loader.lease(4)
    for uid in ("0:0", "0:1", "0:2"):
        loader.settle(uid, "requeue")
    bad.add(1)
    assert values(loader.lease(3)) == [0]
    with pytest.raises(ValueError, match="1"):
        loader.lease(3)
    assert loader.state_dict()["settling"]["open"] == [[0, [0, 1, 2, 3]]]
    loader.settle("0:1", "failed")
    assert values(loader.lease(3)) == [2, 4, 5]


# ------------------------------------------------------------ bookkeeping alone


@given(
    st.lists(st.tuples(st.sampled_from(["give", "trained", "requeue"]), st.integers(0, 30))),
    st.integers(0, 8),
)
@examples(100)
def test_what_is_open_is_what_was_never_settled(done: list[tuple[Any, int]], waiting: int) -> None:
    in_flight, model = (
        UnsettledItems(Address(0, i) for i in range(waiting)),
        {Address(0, i): "waits" for i in range(waiting)},
    )
    for what, i in done:
        address = Address(0, i)
        if what == "give":
            first = [*in_flight.waiting][:2]
            in_flight.lease(first)
            model |= dict.fromkeys(first, "out")
            continue
        known = model.get(address)
        if known is None or (what == "requeue" and known == "waits"):
            with pytest.raises(ps.ConfigError):
                in_flight.settle(address.uid, what)
            continue
        assert in_flight.settle(address.uid, what) == address
        if what == "requeue":
            model[address] = "waits"
        else:
            del model[address]
    assert in_flight.open == sorted(model) and {*in_flight.leased} == {
        a for a, how in model.items() if how == "out"
    }


# ------------------------------------------------------------ the whole, killed


def check_done(run: dict[str, Any], make: Any = prompts) -> None:
    """Every item of the pass was settled, once, with the value that the plan says."""
    ds = make()
    found = {uid: value for uid, value, _ in run["settled"]}
    assert len(found) == len(run["settled"]) == len(ds)
    assert found == {f"0:{i}": value for i, value in enumerate(ds)}
    fates = Counter(fate for _, _, fate in run["settled"])
    assert 0.3 < fates["trained"] / len(ds) < 0.6 and fates["failed"] > 0


@pytest.mark.parametrize("seed", range(3))
def test_none_is_lost_and_none_trained_twice_whenever_it_is_killed(seed: int) -> None:
    dice, saved, deaths, done = random.Random(seed), None, 0, False
    while not done:
        run = Rollouts(prompts, dice.choice([1, 2, 3]), seed=dice.randrange(1 << 30)).load(saved)
        life = dice.randint(1, 40) if deaths < 50 else 1 << 30
        done = any(not run.step() for _ in range(life))
        saved = run.save() if done or dice.random() < 0.7 else saved
        assert all(
            len(json.dumps(state["settling"])) < 4096
            for state in (saved or {"states": []})["states"]
        )
        deaths += not done
        run.close()
    assert deaths == 50 and saved is not None
    check_done(saved)


@pytest.mark.slow  # processes that are killed
@pytest.mark.parametrize("ranks", [(1, 1, 1, 1), (1, 2, 3, 1)])
def test_none_is_lost_in_a_process_that_is_killed(ranks: tuple[int, ...]) -> None:
    saved: Any = None
    for life, world_size in enumerate(ranks):
        with subprocess.Popen(
            [sys.executable, FOLDER / "simulated_rollouts.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdin and child.stdout
            json.dump({"ranks": world_size, "seed": life, "saved": saved}, child.stdin)
            child.stdin.close()
            for i, line in enumerate(child.stdout):
                saved = json.loads(line)
                if i == 20 and life < len(ranks) - 1:
                    child.kill()
                    break
    assert saved["done"]
    check_done(saved)
