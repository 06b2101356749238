"""Samples that a plan reports as seen, against the delivered ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps


def letters(name: str, rows: int) -> ps.Dataset:
    return ps.from_sequence(range(rows), name=name)


def documents(name: str, rows: int) -> ps.Dataset:
    offsets = np.concatenate([[0], np.cumsum(np.random.default_rng(rows).integers(1, 30, rows))])
    return ps.from_tokens(np.arange(offsets[-1], dtype=np.int32), offsets, name=name)


def both() -> ps.Dataset:
    return ps.mix(
        {"a": letters("a", 50).shuffle(), "b": letters("b", 9).shuffle()}, {"a": 3, "b": 1}, seed=4
    )


FLOWS: dict[str, Callable[[], ps.Dataset]] = {
    "mixed": both,
    "batched": lambda: both().batch(4),
    "capped": lambda: ps.mix(
        {"a": letters("a", 50), "b": letters("b", 9)}, max_epochs={"a": 1.5, "b": 2.5}
    ),
    "over": lambda: ps.concat(letters("a", 20), letters("b", 7)).shuffle().repeat(),
    "sliced": lambda: ps.mix({"a": letters("a", 50)[3:40:2].shuffle(), "b": letters("b", 9)}),
    "twice": lambda: ps.mix(
        {"a": letters("a", 12).repeat(3), "b": letters("b", 9).shuffle(window=4)}
    ),
    "limited": lambda: both().limit(30).repeat(),
    "packed": lambda: ps.mix({"a": documents("a", 40), "b": documents("b", 7)}).pack(16),
    "whole": lambda: documents("a", 90).shuffle().repeat().pack(32, method="best_fit"),
}


@pytest.mark.parametrize("name", FLOWS)
@pytest.mark.parametrize("position", [0, 1, 30, 111, 400])
def test_it_is_what_was_delivered(name: str, position: int) -> None:
    plan = FLOWS[name]().plan
    given = Counter((s.source, s.index) for s in plan.at(slice(0, position)) if not s.start)
    seen = plan.seen(position)
    told = {
        (n, i): t
        for n, times in zip(seen.names, seen.times, strict=True)
        for i, t in enumerate(times)
        if t
    }
    assert told == given
    assert seen.documents == {n: len([key for key in given if key[0] == n]) for n in plan.sources}
    assert seen.samples == {
        n: sum(t for key, t in given.items() if key[0] == n) for n in plan.sources
    }
    assert seen.repeats() == dict(sorted(Counter(given.values()).items()))
    lines = [tuple(line.values()) for batch in seen.batches() for line in batch.to_pylist()]
    assert lines == sorted((source, index, times) for (source, index), times in given.items())


def test_tokens_are_those_of_different_documents() -> None:
    plan = documents("a", 40).repeat().pack(16).plan
    source = {(s.index): s for s in plan.at(slice(0, 500))}
    assert plan.seen(500).tokens == {
        "a": 0 + int(sum(np.random.default_rng(40).integers(1, 30, 40)))
    }
    assert len(source) == 40


def test_by_a_step_and_by_a_state() -> None:
    with ps.Loader(both().batch(4), rank=0, world_size=2) as loader:
        for _ in zip(range(7), loader, strict=False):
            pass
        state = loader.state_dict()
    plan = both().batch(4).plan
    at = plan.for_state(state).seen()
    assert sum(at.samples.values()) == 56
    assert (
        at.samples
        == plan.seen(step=7, world_size=2).samples
        == plan.for_state(state).seen(step=7).samples
    )


def test_steps_that_were_jumped_over_are_not_seen() -> None:
    ds = both().batch(4)
    with ps.Loader(ds, rank=0, world_size=2) as loader:
        next(iter(loader))
        loader.seek(1_000_000_000)
        next(iter(loader))
        state = loader.state_dict()
    plan = ds.plan.for_state(state)
    given = Counter((s.source, s.index) for step in (0, 1_000_000_000) for s in plan.at(step=step))
    assert sum(given.values()) == 16 and documents_seen(plan.seen()) == given
    assert (
        sum(plan.counts(step=1_000_000_000).values()) == 8 == len(plan.audit(range(1000)).table())
    )
    assert plan.at(step=5) == () and plan.find("a", 3, steps=range(1, 1000)) == []
    with ps.Loader(ds) as other:  # the log continues
        other.load_state_dict(state)
        next(iter(other))
        assert sum(ds.plan.for_state(other.state_dict()).seen().samples.values()) == 20


def test_what_was_given_before_a_run_went_back_is_seen_twice() -> None:
    """By the changes that it had then, through states, with other batches."""
    ds = both().batch(4, collate=list)
    with ps.Loader(ds) as loader:
        keys = [key for _ in zip(range(6), loader, strict=False) for key in loader.keys()]
        loader.seek(2)
        loader.set_weights({"a": 0, "b": 1})
        state = loader.state_dict()
    again = both().batch(3, collate=list)
    with ps.Loader(again) as loader:
        loader.load_state_dict(state)
        keys += [key for _ in zip(range(5), loader, strict=False) for key in loader.keys()]
        loader.seek(1)
        plan = again.plan.for_state(loader.state_dict())
    given = Counter((source, index) for source, _, index in keys)
    assert documents_seen(plan.seen()) == documents_seen(plan.seen(step=1)) == given
    by_source = Counter(source for source, _, _ in keys)
    assert plan.seen().samples == plan.counts(step=1) == by_source
    assert plan.seen(step=0).samples == {"a": 0, "b": 0}


def test_what_was_given_again_and_again_is_counted_in_a_state_of_one_size() -> None:
    ds = both().batch(4)

    def gone_back(times: int, loader: Any) -> Any:
        for _ in range(times):
            for step, count in ((0, 2), (1, 3)):
                loader.seek(step)
                _ = list(zip(range(count), loader, strict=False))
        return loader.state_dict()

    with ps.Loader(ds) as loader, ps.Loader(ds) as other:
        few = gone_back(4, loader)
        other.load_state_dict(few)
        many = gone_back(36, other)
        assert len(str(many)) < len(str(few)) + 20
    first, rest = ds.plan.seen(step=2), ds.plan.seen(step=4)
    seen = ds.plan.for_state(many).seen()
    assert sum(rest.samples.values()) == 16 and seen.samples == ds.plan.for_state(many).counts(
        step=4
    )
    second = {
        name: rest.samples[name] - ds.plan.seen(step=1).samples[name] for name in ds.plan.sources
    }
    assert seen.samples == {
        name: 40 * (first.samples[name] + second[name]) for name in ds.plan.sources
    }


def test_what_was_given_before_a_run_went_back_is_forgotten_by_an_adopting_load() -> None:
    with ps.Loader(both().batch(4)) as loader:
        _ = list(zip(range(6), loader, strict=False))
        loader.seek(2)
        state = loader.state_dict()
    other = ps.mix(
        {"a": letters("a", 50).shuffle(), "b": letters("b", 9).shuffle()}, {"a": 1, "b": 3}, seed=4
    ).batch(4)
    with ps.Loader(other) as loader:
        loader.load_state_dict(state, on_mismatch="adopt")
        assert "it gave before it went back are no longer counted" in loader.warnings[-1]
        assert sum(other.plan.for_state(loader.state_dict()).seen().samples.values()) == 8


def test_an_iterator_that_goes_to_an_item_has_not_given_those_before() -> None:
    ds = both()
    it = iter(ds)
    keys = [key for _ in zip(range(9), it, strict=False) for key in it.keys()]
    for item in (4, 40):
        it.seek(item)
        next(it)
        keys += it.keys()
    assert documents_seen(ds.plan.for_state(it.state_dict()).seen()) == Counter(
        (name, index) for name, _, index in keys
    )


@pytest.mark.parametrize("remainder", ["drop", "keep"])
def test_short_items_that_were_taken_stay_seen_after_a_load(remainder: Any) -> None:
    ds = ps.from_sequence(range(11), name="a").batch(4, collate=list)

    def seen_after_take(states: Any) -> Any:
        ranks = [ps.Loader(ds, rank=rank, world_size=2, remainder=remainder) for rank in range(2)]
        for loader in ranks:
            if states:
                loader.load_state_dict(states)
        for loader in ranks if states is None else ():
            while items := loader.lease(2):
                for item in items:
                    loader.settle(item.uid, "trained")
        return [loader.state_dict() for loader in ranks]

    states = seen_after_take(None)
    for _ in range(3):
        assert ds.plan.for_state(states).seen().repeats() == {1: 11}
        states = seen_after_take(states)


def test_items_that_one_rank_takes_after_a_load_are_not_seen_before_they_are_settled() -> None:
    ds = ps.from_sequence(range(11), name="a").batch(2, collate=list)

    def resumed(ranks: int, states: Any) -> list[ps.Loader]:
        loaders = [ps.Loader(ds, rank=rank, world_size=ranks) for rank in range(ranks)]
        for loader in loaders:
            loader.load_state_dict(states)
        return loaders

    alone = ps.Loader(ds)
    alone.settle(alone.lease(2)[0].uid, "trained")
    pair = resumed(2, [alone.state_dict()])
    taken = pair[1].lease(9)
    for item in taken[1:]:
        pair[1].settle(item.uid, "trained")
    states = [loader.state_dict() for loader in pair]
    given = Counter(("a", index) for item in taken[1:] for index in item.value) + Counter(
        [("a", 0), ("a", 1)]
    )
    for _ in range(2):
        assert documents_seen(ds.plan.for_state(states).seen()) == given
        states = [loader.state_dict() for loader in resumed(3, states)]


def documents_seen(seen: Any) -> Counter[tuple[str, int]]:
    columns = zip(seen.names, seen.times, strict=True)
    return Counter(
        {(name, i): n for name, times in columns for i, n in enumerate(times.tolist()) if n}
    )


def test_what_is_found_comes_one_after_the_other() -> None:
    plan = both().plan
    places = plan.iter_find("b", 3, range(5, 10**15))
    assert [next(places) for _ in range(4)] == plan.find("b", 3, range(5, 200))[:4]
    assert list(plan.iter_find("a", 7, range(3, 70_000))) == plan.find("a", 7, range(3, 70_000))
    ends = plan.iter_find("a", 7)  # of what never ends
    assert [next(ends) for _ in range(4)] == plan.find("a", 7, range(400))[:4]


def test_what_was_seen_is_told_where_no_step_can_follow() -> None:
    """The pass is shorter than the steps that the run would go on with: that ended in a `ZeroDivisionError`."""
    rows = ps.from_sequence(range(3), name="rows")
    loader = ps.Loader(rows.batch(2))
    list(loader)
    longer = rows.batch(4, drop_remainder=True)
    later = ps.Loader(longer)
    later.load_state_dict(loader.state_dict())
    plan = longer.plan.for_state(later.state_dict())
    assert plan.seen().samples == plan.counts(step=plan.next_step) == {"rows": 3}


def test_a_dataset_without_items_has_no_next_step() -> None:
    """It raised a `ZeroDivisionError`."""
    nothing = ps.from_sequence(range(8))[4:4]
    after = nothing.plan.for_state(ps.Loader(nothing).state_dict())
    assert (after.next_step, after.seen().samples) == (0, {"data": 0})
