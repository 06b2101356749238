"""What was seen, against what was delivered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

import penstock as ps


def letters(name: str, rows: int) -> ps.Dataset:
    return ps.from_sequence(range(rows), name=name)


def documents(name: str, rows: int) -> ps.Dataset:
    offsets = np.concatenate([[0], np.cumsum(np.random.default_rng(rows).integers(1, 30, rows))])
    return ps.from_tokens(np.arange(offsets[-1], dtype=np.int32), offsets, name=name)


def both() -> ps.Dataset:
    return ps.mix({"a": letters("a", 50).shuffle(), "b": letters("b", 9).shuffle()}, {"a": 3, "b": 1}, seed=4)


FLOWS: dict[str, Callable[[], ps.Dataset]] = {
    "mixed": both,
    "batched": lambda: both().batch(4),
    "capped": lambda: ps.mix({"a": letters("a", 50), "b": letters("b", 9)}, max_epochs={"a": 1.5, "b": 2.5}),
    "over": lambda: ps.concat(letters("a", 20), letters("b", 7)).shuffle().repeat(),
    "sliced": lambda: ps.mix({"a": letters("a", 50)[3:40:2].shuffle(), "b": letters("b", 9)}),
    "twice": lambda: ps.mix({"a": letters("a", 12).repeat(3), "b": letters("b", 9).shuffle(window=4)}),
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
    told = {(n, i): t for n, times in zip(seen.names, seen.times, strict=True) for i, t in enumerate(times) if t}
    assert told == given
    assert seen.documents == {n: len([key for key in given if key[0] == n]) for n in plan.sources}
    assert seen.samples == {n: sum(t for key, t in given.items() if key[0] == n) for n in plan.sources}
    assert seen.repeats() == dict(sorted(Counter(given.values()).items()))
    lines = [tuple(line.values()) for batch in seen.batches() for line in batch.to_pylist()]
    assert lines == sorted((source, index, times) for (source, index), times in given.items())


def test_tokens_are_those_of_different_documents() -> None:
    plan = documents("a", 40).repeat().pack(16).plan
    source = {(s.index): s for s in plan.at(slice(0, 500))}
    assert plan.seen(500).tokens == {"a": 0 + int(sum(np.random.default_rng(40).integers(1, 30, 40)))}
    assert len(source) == 40


def test_by_a_step_and_by_a_state() -> None:
    with ps.Loader(both().batch(4), rank=0, world_size=2) as loader:
        for _ in zip(range(7), loader, strict=False):
            pass
        state = loader.state_dict()
    plan = both().batch(4).plan
    at = plan.after(state).seen()
    assert sum(at.samples.values()) == 56
    assert at.samples == plan.seen(step=7, world_size=2).samples == plan.after(state).seen(step=7).samples


def test_what_is_found_comes_one_after_the_other() -> None:
    plan = both().plan
    places = plan.finds("b", 3, range(5, 10**15))
    assert [next(places) for _ in range(4)] == plan.find("b", 3, range(5, 200))[:4]
    assert list(plan.finds("a", 7, range(3, 70_000))) == plan.find("a", 7, range(3, 70_000))
    ends = plan.finds("a", 7)  # of what never ends
    assert [next(ends) for _ in range(4)] == plan.find("a", 7, range(400))[:4]
