"""Changes in a later pass of a mixture that ends: the plan and the run are one function, in passes before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

import penstock as ps
from helpers import pairwise_first, through_json

Key = tuple[str, int, int]
FAR = 90


def numbers(n: int, name: str) -> ps.Dataset:
    return ps.from_sequence(range(n), name=name).shuffle()


def two(stop: Any = "all_exhausted", **weights: float) -> ps.Dataset:
    rows = {name: numbers(8, name) for name in weights}
    return ps.mix(rows, weights, stop=stop)


def steps(loader: ps.Loader, n: int) -> list[list[Key]]:
    """The keys of the next items, over as many passes as it takes."""
    out = list[list[Key]]()
    while len(out) < n:
        out += [loader.keys() for _ in islice(iter(loader), n - len(out))]
    return out


def told(plan: Any, start: int, stop: int) -> list[list[Key]]:
    out: list[list[Key]] = [[] for _ in range(start, stop)]
    for sample in plan.at(slice(start, stop)):
        out[sample.position - start].append(sample.key)
    return out


def check(ds: ps.Dataset, loader: ps.Loader, past: list[list[Key]]) -> None:
    """Assert that plan and run agree, for this loader and for one that resumes."""
    state = through_json(loader.state_dict())
    plan = ds.plan.for_state(state)
    assert plan.position == len(past)
    assert told(plan, 0, len(past)) == past
    run = past + steps(loader, FAR - len(past))
    assert told(plan, 0, FAR) == run
    assert told(ds.plan.for_state(loader.state_dict()), 0, FAR) == run
    with ps.Loader(ds) as again:
        again.load_state_dict(state)
        assert steps(again, FAR - len(past)) == run[len(past) :]
    for source in plan.sources:
        where = [
            i
            for i, keys in enumerate(run)
            if (source, 3) in {(name, index) for name, _, index in keys}
        ]
        assert plan.find(source, 3, within=range(FAR)) == where
        assert plan.counts(FAR)[source] == sum(key[0] == source for keys in run for key in keys)


@pytest.mark.parametrize("cut", [3, 18, 32, 37])
@pytest.mark.parametrize("batch", [1, 2])
def test_weights_set_in_a_later_pass_hold_from_there_on(cut: int, batch: int) -> None:
    ds = two(a=1, b=1) if batch == 1 else two(a=1, b=1).batch(batch)
    with ps.Loader(ds) as loader:
        past = steps(loader, cut // batch)
        assert loader.set_weights({"a": 9, "b": 1}) == len(past) * batch
        check(ds, loader, past)
        past += steps(loader, 0)
    with ps.Loader(ds) as loader:
        past = steps(loader, cut // batch)
        loader.set_weights({"a": 9, "b": 1})
        past += steps(loader, 5)
        loader.set_weights({"a": 1, "b": 7})
        past += steps(loader, 20)
        loader.set_weights({"a": 5, "b": 7}, at=88)
        check(ds, loader, past)


def test_weights_that_change_how_long_a_pass_is() -> None:
    ds = two("first_exhausted", a=1, b=1)
    with ps.Loader(ds) as loader:
        past = steps(loader, 20)
        loader.set_weights({"a": 9, "b": 1})
        rest = [loader.keys() for _ in loader]  # to the end of the pass
        state = loader.state_dict()
        later = [[loader.keys() for _ in loader] for _ in range(3)]
    assert len(rest) < len(later[0]) + 5 and len({len(each) for each in later}) == 1
    run = [*past, *rest, *(keys for each in later for keys in each)]
    plan = ds.plan.for_state(state)
    assert plan.position == plan.next_step == 20 + len(rest)
    assert told(plan, 0, len(run)) == run
    assert [[sample.key for sample in plan.at(step=step)] for step in range(len(run))] == run
    for source in "ab":
        where = [i for i, keys in enumerate(run) if keys[0][::2] == (source, 3)]
        assert plan.find(source, 3, within=range(len(run))) == where
        assert plan.counts(len(run))[source] == sum(keys[0][0] == source for keys in run)
        assert plan.seen(len(run)).samples[source] == plan.counts(len(run))[source]


def test_weights_of_a_nested_mixture_that_ends() -> None:
    inner = two(a=1, b=1)
    ds = ps.mix({"in": inner, "out": numbers(50, "out")}, {"in": 2, "out": 1})
    with ps.Loader(ds) as loader:
        past = steps(loader, 40)
        drawn = sum(key[0] != "out" for keys in past for key in keys)
        assert loader.set_weights({"a": 9, "b": 1}) == drawn > 16
        check(ds, loader, past)
    with ps.Loader(ds) as loader:
        past = steps(loader, 40)
        with pytest.raises(ps.ConfigError, match="the past cannot change"):
            loader.set_weights({"a": 9, "b": 1}, at=drawn - 1)
        assert loader.set_weights({"a": 9, "b": 1}, at=drawn + 9) == drawn + 9
        check(ds, loader, past)


def test_inside_another_mixture_passes_may_become_longer_and_shorter() -> None:
    ds = ps.mix(
        {"in": two("first_exhausted", a=1, b=1), "out": numbers(50, "out")}, {"in": 2, "out": 1}
    )
    with ps.Loader(ds) as loader:
        past = steps(loader, 40)
        loader.set_weights({"a": 9, "b": 1})
        past += steps(loader, 13)
        loader.set_weights({"a": 1, "b": 1})
        check(ds, loader, past)


def test_weights_of_a_repeated_mixture() -> None:
    ds = two("first_exhausted", a=1, b=1).repeat()
    with ps.Loader(ds) as loader:
        past = steps(loader, 40)
        assert loader.set_weights({"a": 9, "b": 1}) == 40
        past += steps(loader, 13)
        check(ds, loader, past)


def test_packs_of_a_mixture_whose_passes_change_their_length() -> None:
    """The run goes on through them all."""

    def store(n: int) -> ps.Dataset:
        return ps.from_tokens(list(range(3 * n)), list(range(0, 3 * n + 1, 3))).shuffle()

    ds = ps.mix({"a": store(9), "b": store(8)}, {"a": 1, "b": 1}, stop="first_exhausted").pack(4)
    with ps.Loader(ds) as loader:
        steps(loader, 3)
        loader.set_weights({"a": 9, "b": 1})
        for _ in range(4):
            state = loader.state_dict()
            rest = [loader.keys() for _ in loader]
            plan = ds.plan.for_state(state)
            assert told(plan, plan.position, plan.position + len(rest)) == rest


def test_weights_set_at_the_end_of_a_pass() -> None:
    ds = two("first_exhausted", a=1, b=1)
    with ps.Loader(ds) as loader:
        first = [loader.keys() for _ in loader]
        state = loader.state_dict()
        assert loader.set_weights({"a": 9, "b": 1}) == len(first)
        second = [loader.keys() for _ in loader]
    with ps.Loader(
        ps.mix(
            {"a": numbers(8, "a"), "b": numbers(8, "b")}, {"a": 9, "b": 1}, stop="first_exhausted"
        )
    ) as one:
        one.load_state_dict(state, on_mismatch="adopt")
        assert len([one.keys() for _ in one]) == len(second)


@pytest.mark.parametrize("cut", [3, 16, 21, 37])
def test_a_mixture_adopted_in_one_pass_is_told_in_the_next_ones(cut: int) -> None:
    """The pass of the change goes on; those after it are of the new mixture, from their beginning."""
    before = two(a=1, b=1)
    after = two(a=3, b=1)
    with ps.Loader(before) as loader:
        past = steps(loader, cut)
        state = loader.state_dict()
    with ps.Loader(after) as loader:
        loader.load_state_dict(state, on_mismatch="adopt")
        check(after, loader, past)


def test_a_source_added_in_the_first_pass_is_told_in_the_next_one() -> None:
    rows = {"a": numbers(8, "a"), "b": numbers(8, "b")}
    with ps.Loader(ps.mix(rows, stop="all_exhausted")) as loader:
        past = steps(loader, 3)
        state = loader.state_dict()
    ds = ps.mix({**rows, "d": numbers(1, "d")}, stop="all_exhausted")
    with ps.Loader(ds) as loader:
        loader.load_state_dict(state, on_mismatch="adopt")
        run = past + steps(loader, 60)
        plan = ds.plan.for_state(loader.state_dict())
    assert told(plan, 0, 63) == run


@pytest.mark.parametrize("cut", [16, 32])
def test_a_source_that_takes_the_place_of_another_was_in_no_earlier_pass(cut: int) -> None:
    with ps.Loader(two(a=1, b=1)) as loader:
        steps(loader, cut)
        state = loader.state_dict()
    ds = two(a=1, d=1)
    with ps.Loader(ds) as loader:
        loader.load_state_dict(state, on_mismatch="adopt")
        plan = ds.plan.for_state(loader.state_dict())
        run = steps(loader, FAR - cut)
    for index in range(8):
        where = [
            cut + i
            for i, keys in enumerate(run)
            if ("d", index) in {(name, row) for name, _, row in keys}
        ]
        assert plan.find("d", index, within=range(FAR)) == where


def test_a_source_added_in_a_later_pass_is_told_from_there_on() -> None:
    rows = {"a": numbers(8, "a"), "b": numbers(8, "b")}
    with ps.Loader(ps.mix(rows, stop="all_exhausted")) as loader:
        run = steps(loader, 20)
        state = loader.state_dict()
    ds = ps.mix({**rows, "d": numbers(1, "d")}, stop="all_exhausted")
    with ps.Loader(ds) as loader:
        loader.load_state_dict(state, on_mismatch="adopt")
        plan = ds.plan.for_state(loader.state_dict())
        run += steps(loader, 50)
    assert told(plan, 0, len(run)) == run
    assert [[sample.key for sample in plan.at(step=step)] for step in range(len(run))] == run


def test_changes_upon_changes_over_many_passes() -> None:
    ds = two(a=1, b=1)
    with ps.Loader(ds) as loader:
        past = steps(loader, 19)
        loader.set_weights({"a": 9, "b": 1})
        past += steps(loader, 10)
        state = loader.state_dict()
    for weights in ({"a": 1, "b": 4}, {"a": 4, "b": 1}):
        ds = two("all_exhausted", **weights)
        with ps.Loader(ds) as loader:
            loader.load_state_dict(through_json(state), on_mismatch="adopt")
            past += steps(loader, 9)
            loader.set_weights({"a": 1, "b": 2})
            past += steps(loader, 9)
            state = loader.state_dict()
            if weights["a"] == 4:
                check(ds, loader, past)


def test_a_pack_over_a_limit_keeps_what_it_gave_when_weights_change() -> None:
    """All that the limit gives was seen already: what is set then lies after it, not at its beginning."""
    flows = {name: ps.from_tokens(range(9), [0, 1, 9]) for name in "abc"}
    ds = ps.mix(flows).limit(4).pack(4)
    with ps.Loader(ds) as loader:
        past = steps(loader, 1)
        assert loader.set_weights({"a": 0, "b": 0, "c": 1}) == 4
        assert told(ds.plan.for_state(loader.state_dict()), 0, 1) == past


@pytest.mark.parametrize("over", ["limit", "slice", "replay"])
def test_weights_of_what_is_gone_through_again_are_refused(over: str) -> None:
    mixed = two(a=1, b=1)
    ds = {"limit": mixed.limit(9), "slice": mixed[1::2], "replay": mixed.repeat(reshuffle=False)}[
        over
    ]
    with ps.Loader(ds) as loader:
        steps(loader, 20)
        with pytest.raises(ps.ConfigError, match="the same samples in every pass"):
            loader.set_weights({"a": 9, "b": 1})


AGAIN: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "limit": lambda mixed: mixed.limit(9),
    "limit in batches": lambda mixed: mixed.limit(9).batch(1),
    "repeated": lambda mixed: mixed.limit(9).repeat(3),
    "skip": lambda mixed: mixed.skip(3),
    "replay": lambda mixed: mixed.repeat(reshuffle=False),
    "nested": lambda mixed: ps.mix(
        {"in": mixed.limit(9), "out": numbers(50, "out")}, {"in": 2, "out": 1}
    ),
}


@pytest.mark.parametrize("begun", [4, 9, 13, 35])
@pytest.mark.parametrize("over", AGAIN)
def test_another_mixture_is_adopted_in_the_first_pass_of_a_limit_only(
    over: str, begun: int
) -> None:
    """Passes that were over were told by the mixture that took over in a later one."""
    flows = [AGAIN[over](two(a=1, b=weight)) for weight in (1, 4)]
    with ps.Loader(flows[0]) as loader:
        past, state = steps(loader, begun), loader.state_dict()
    with ps.Loader(flows[1]) as loader:
        if (over, begun) in (("limit", 4), ("limit in batches", 4), ("skip", 4), ("skip", 9)):
            loader.load_state_dict(state, on_mismatch="adopt")
            check(flows[1], loader, past)
        elif (over, begun) in (("limit", 9), ("limit in batches", 9), ("skip", 13)):
            loader.load_state_dict(state, on_mismatch="adopt")
            assert [loader.keys() for _ in loader] == []
            assert [loader.keys() for _ in loader] == told(flows[1].plan, begun, 2 * begun)
        else:
            with pytest.raises(ps.StateError, match="gives its samples again"):
                loader.load_state_dict(state, on_mismatch="adopt")


@pytest.mark.parametrize("over", ["split", "replay", "shuffle"])
def test_a_mixture_that_ends_is_refused_within_what_is_taken_as_a_whole(over: str) -> None:
    """An `AssertionError` it was."""
    mixed = two(a=1, b=1)
    ds = {
        "split": mixed.split(0.3)[1],
        "replay": mixed.repeat(reshuffle=False),
        "shuffle": mixed.shuffle(),
    }[over]
    with ps.Loader(two("restart", a=1, b=1)) as loader:
        steps(loader, 5)
        state = loader.state_dict()
    with pytest.raises(ps.StateError, match="shuffled as a whole"):
        ps.Loader(ds).load_state_dict(state, on_mismatch="adopt")


def test_an_input_that_had_no_weight_goes_on_with_a_pass_it_has_not_begun() -> None:
    ds = two(a=1, b=1).repeat()
    with ps.Loader(ds) as loader:
        past = steps(loader, 40)
        loader.set_weights({"a": 0, "b": 1})
        past += steps(loader, 20)
        loader.set_weights({"a": 1, "b": 1})
        check(ds, loader, past)
        run = past + steps(loader, 60)
    drawn = [key for keys in run for key in keys if key[0] == "a"]
    assert len(set(drawn)) == len(drawn)


def test_samples_are_left_out_from_where_the_run_stands_also_of_an_input_without_weight() -> None:
    ds = two(a=1, b=1).repeat()
    with ps.Loader(ds) as loader:
        past = steps(loader, 16)
        loader.set_weights({"a": 0, "b": 1})
        past += steps(loader, 9)
        loader.load_state_dict(ds.plan.for_state(loader.state_dict()).exclude([("a", 3)]).state)
        assert told(ds.plan.for_state(loader.state_dict()), 0, 25) == past


def test_the_plan_of_a_pass_looks_at_no_pass_of_another_length() -> None:
    """Neither for its sums, which end with the pass, nor for bad samples, which it looks for a little ahead."""

    def readable(x: int) -> int:
        if x == 2:
            raise ValueError
        return x

    rows = {
        name: ps.from_sequence(range(n), name=name).map(readable)
        for name, n in (("a", 5), ("b", 9))
    }
    ds = ps.mix(rows, stop="first_exhausted")
    with ps.Loader(ds, on_error="quarantine") as loader:
        past = steps(loader, 7)
        loader.set_weights({"a": 1, "b": 9})
        plan = ds.plan.for_state(loader.state_dict())
    assert told(plan, 0, 7) == past
    size = plan.size
    assert size is not None and sum(plan.counts(size).values()) == size
    coming = told(plan, 0, 2 * size)
    where = [i for i, [key] in enumerate(coming) if key[::2] == ("a", 3)]
    assert where and plan.find("a", 3, within=range(2 * size)) == where
    packed = ps.mix(
        {name: ps.from_tokens(range(20), range(21)) for name in "ab"}, stop="first_exhausted"
    ).pack(4)
    with ps.Loader(packed) as loader:
        steps(loader, 3)
        loader.set_weights({"a": 1, "b": 9})
        plan = packed.plan.for_state(loader.state_dict())
    assert plan.size is not None and sum(plan.counts(plan.size, "tokens").values()) > 0


def _apart(n: int) -> ps.Dataset:
    return numbers(n, "z")


OVER: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "nothing": lambda mixed: mixed,
    "batches": lambda mixed: mixed.batch(2),
    "shuffle": lambda mixed: mixed.shuffle(),
    "shuffled batches": lambda mixed: mixed.shuffle().batch(3),
    "repeat each": lambda mixed: mixed.repeat_each(2),
    "repeat": lambda mixed: mixed.repeat(2),
    "repeat of a shuffle": lambda mixed: mixed.shuffle().repeat(2),
    "same order again": lambda mixed: mixed.repeat(2, reshuffle=False),
    "zip": lambda mixed: ps.zip(mixed, _apart(60)),
    "concat": lambda mixed: ps.concat(mixed, _apart(4)),
    "mixture": lambda mixed: ps.mix({"in": mixed, "out": _apart(20)}, stop="all_exhausted"),
    "short mixture": lambda mixed: ps.mix({"in": mixed, "out": _apart(200)}, stop="first_exhausted"),
    "mixture of a concat": lambda mixed: ps.mix(
        {"in": ps.concat(mixed, _apart(4)), "out": numbers(5, "w")}, stop="all_exhausted"
    ),
    "slice": lambda mixed: mixed[::2],
    "part": lambda mixed: mixed.split(0.3)[1],
    "stream": lambda mixed: mixed.filter(bool),
    "stream of a shuffle": lambda mixed: mixed.shuffle().filter(bool),
    "repeated stream": lambda mixed: mixed.filter(bool).repeat(2),
}  # fmt: skip

BEGUN = ["between", "within", "at the end"]
OTHERS: dict[str, tuple[ps.Dataset, ps.Dataset]] = {
    "an input more": (two(a=1, b=1), two(a=1, b=1, c=1)),
    "other weights": (two("first_exhausted", a=1, b=1), two("first_exhausted", a=3, b=1)),
    "another end": (two("first_exhausted", a=2, b=1), two("all_exhausted", a=2, b=1)),
}


def of_pass(loader: ps.Loader) -> Counter[tuple[str, int]]:
    """The samples of the rest of a pass; each pass of a source is counted alike."""
    return Counter((name, index) for _ in loader for name, _, index in loader.keys())


def passes_of(ds: ps.Dataset, count: int) -> list[Counter[tuple[str, int]]]:
    with ps.Loader(ds) as loader:
        return [of_pass(loader) for _ in range(count)]


def go_to(loader: ps.Loader, ds: ps.Dataset, after: int, begun: str) -> list[list[Key]]:
    """Take some whole passes and a part of the next; return the items of that part."""
    with ps.Loader(ds) as other:
        per_pass = sum(1 for _ in other)
    steps(loader, after * per_pass)
    count = {"between": 0, "within": 2, "at the end": per_pass}[begun]
    if after and not count:
        assert of_pass(loader) == Counter()
    return steps(loader, count)


@pytest.mark.parametrize(
    "over,other,after,begun", pairwise_first([*OVER], [*OTHERS], [0, 1], BEGUN)
)
def test_passes_after_an_adoption_are_those_of_the_new_pipeline(
    over: str, other: str, after: int, begun: str
) -> None:
    """They kept the length of the former mixture below a shuffle, a repeat or another mixture."""
    before, now = (OVER[over](mixed) for mixed in OTHERS[other])
    wanted = passes_of(now, after + 4)
    with ps.Loader(before) as loader:
        past = go_to(loader, before, after, begun)
        state = loader.state_dict()
    with ps.Loader(now) as loader:
        try:
            loader.load_state_dict(state, on_mismatch="adopt")
        except ps.StateError as error:
            assert "end of" in str(error)
            assert begun == "within" or (begun == "at the end" and "stream" in over), str(error)
            return
        state = through_json(loader.state_dict())
        run = [of_pass(loader) for _ in range(4)]
        items = loader.stats()["items"]
    assert run[1:] == wanted[after + 1 :]
    assert past or run[0] == wanted[after]
    with ps.Loader(now) as loader:
        loader.load_state_dict(state)
        assert [of_pass(loader) for _ in run] == run
    if "stream" not in over:
        plan = now.plan.for_state(state)
        found = [s for at in range(items) for s in plan.at(step=plan.next_step + at)]
        assert Counter(sample.key[::2] for sample in found) == sum(run, start=Counter())


@pytest.mark.parametrize(
    "over,stop,after,begun",
    pairwise_first([*OVER], ["first_exhausted", "all_exhausted"], [0, 1], BEGUN),
)
def test_passes_after_other_weights_are_those_of_a_pipeline_with_these_weights(
    over: str, stop: str, after: int, begun: str
) -> None:
    before, now = (OVER[over](two(stop, a=weight, b=1)) for weight in (1, 3))
    wanted = passes_of(now, after + 4)
    with ps.Loader(before) as loader:
        go_to(loader, before, after, begun)
        try:
            loader.set_weights({"a": 3, "b": 1})
        except ps.ConfigError:
            assert over not in ("nothing", "batches", "stream")
            return
        of_pass(loader)
        assert [of_pass(loader) for _ in range(3)] == wanted[after + 1 :]


@pytest.mark.parametrize("more", [8, 12])
@pytest.mark.parametrize("begun", ["between", "at the end"])
def test_excluded_samples_stay_excluded_in_the_passes_of_a_new_pipeline(
    begun: str, more: int
) -> None:
    """Positions from which on samples are excluded are others in the new pipeline."""
    before, now = (
        ps.mix(
            {
                "in": ps.mix({"a": numbers(8, "a"), "b": numbers(rows, "b")}, stop="all_exhausted"),
                "z": _apart(20),
            },
            stop="all_exhausted",
        )
        for rows in (8, more)
    )
    with ps.Loader(before) as loader:
        steps(loader, 40)
        plan = before.plan.for_state(loader.state_dict()).exclude([("in/a", 3), ("in/a", 5)])
        loader.load_state_dict(plan.state)
        steps(loader, 32)
        if begun == "between":
            assert of_pass(loader) == Counter()
        state = loader.state_dict()
    with ps.Loader(now) as loader:
        loader.load_state_dict(state, on_mismatch="adopt")
        if begun == "at the end":
            assert of_pass(loader) == Counter()
        run = [of_pass(loader) for _ in range(12)]
    times = sum(run, start=Counter[tuple[str, int]]())
    assert all(each.total() == 28 + more for each in run)
    assert {times["in/b", i] for i in range(more)} == {12}
    assert {times["in/a", i] for i in (3, 5)} == {0}
    assert {times["in/a", i] for i in (0, 1, 2, 4, 6, 7)} <= {15, 16, 17}


@pytest.mark.parametrize(
    "over",
    [
        lambda mixed: mixed.repeat_each(2),
        lambda mixed: mixed.repeat_each(2).batch(2),
        lambda mixed: mixed.repeat(2),
        lambda mixed: mixed.concat(numbers(3, "z")),
        lambda mixed: mixed.zip(numbers(40, "z")),
        lambda mixed: mixed.shuffle(),
        lambda mixed: mixed.repeat(2, reshuffle=False),
    ],
)
def test_excluded_samples_stay_excluded_under_every_step(over: Callable[[Any], Any]) -> None:
    """Draws were counted once for each repetition, so these samples came again for a while."""

    def make(rows: int) -> ps.Dataset:
        mixed = ps.mix({"a": numbers(rows, "a"), "b": numbers(8, "b")}, stop="all_exhausted")
        return over(mixed)

    with ps.Loader(make(13)) as loader:
        loader.exclude([("b", 7)])
        for _ in range(3):
            assert ("b", 7) not in of_pass(loader)
        state = loader.state_dict()
    with ps.Loader(make(14)) as loader:
        try:
            loader.load_state_dict(state, on_mismatch="adopt")
        except ps.StateError as error:
            assert "would come again" in str(error)
            return
        for _ in range(6):
            found = of_pass(loader)
            assert found["a", 3] and ("b", 7) not in found
