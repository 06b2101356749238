"""A run through five stages: rows of 512 to 8,192 tokens, a batch ramp, and changes by hand, killed 20 times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from example_counts import pick_cases, rounds
from helpers import through_json

STEPS = rounds(60, 2_000)
LENGTHS = ps.Schedule({STEPS * i // 5: 512 << i for i in range(5)}, unit="steps")
BATCHES = ps.Schedule({0: 24, STEPS // 2: 48}, unit="steps")
CHANGES = {
    STEPS * 3 // 10: "weights",
    STEPS * 9 // 20: "another source",
    STEPS * 13 // 20: "weights again",
    STEPS * 3 // 4: "exclude",
}
WEIGHTS = {
    "weights": {"a": 1, "b": 4, "c": 2},
    "another source": {"a": 2, "b": 1, "c": 1, "d": 2},
    "weights again": {"a": 1, "b": 1, "c": 1, "d": 5},
}
REMOVED = [("a", index) for index in range(50)]
Step = tuple[int, int, list[int]]


def documents(name: str, number: int, mean: int) -> ps.Dataset:
    rng = np.random.default_rng(number)
    lengths = rng.integers(20, 2 * mean, rounds(20_000, 40_000) // number)
    begins = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.arange(begins[-1]) % (1 << 26) + (number << 26)
    return ps.from_tokens(ids.astype(np.int32), begins, name=name).shuffle()


SOURCES = {
    "a": documents("a", 1, 600),
    "b": documents("b", 2, 1_500),
    "c": documents("c", 3, 300),
    "d": documents("d", 4, 900),
}


def rows(weights: dict[str, int]) -> ps.Dataset:
    flows = {name: SOURCES[name] for name in weights}
    return ps.mix(flows, weights, unit="tokens", seed=7).pack(LENGTHS)


def run(ranks_at: Callable[[int], int], kills: set[int]) -> tuple[list[Step], Any]:
    """Return what all ranks delivered in each step, and the last state.

    A kill loses the steps since the last state, and other loaders continue.
    """
    weights, out = {"a": 3, "b": 2, "c": 1}, list[Step]()
    state: Any = None

    def begin(step: int, on_mismatch: Any = "error") -> tuple[list[ps.Loader], list[Any]]:
        ranks = ranks_at(step)
        loaders = [
            ps.Loader(rows(weights), global_batch_size=BATCHES, rank=rank, world_size=ranks)
            for rank in range(ranks)
        ]
        if state:
            for loader in loaders:
                loader.load_state_dict(state, on_mismatch)
        return loaders, [*map(iter, loaders)]

    loaders, its = begin(0)
    state, saved = through_json(loaders[0].state_dict()), 0
    while len(out) < STEPS:
        step = len(out)
        if step in kills:
            kills = kills - {step}
            loaders, its = begin(step)
            del out[saved:]
            continue
        if (change := CHANGES.get(step)) == "another source":
            weights, state = WEIGHTS[change], through_json(loaders[0].state_dict())
            loaders, its = begin(step, "adopt")
        for loader in loaders:
            if change == "exclude":
                loader.exclude(REMOVED)
            elif change is not None and change != "another source":
                loader.set_weights(WEIGHTS[change])
        if change is not None or step % 17 == 0:
            states = [loader.state_dict() for loader in loaders]
            assert all(each == states[0] for each in states)
            state, saved = through_json(states[0]), step
        given = [row for it in its for row in next(it)["tokens"]]
        out.append((len(given), len(given[0]), sorted(hash(row.tobytes()) for row in given)))
    return out, through_json(loaders[0].state_dict())


@pytest.fixture(scope="module")
def reference() -> tuple[list[Step], Any]:
    return run(lambda _: 1, set())


@pytest.mark.parametrize(
    "ranks", pick_cases([0, 8, 3, 2], 2), ids=lambda ranks: str(ranks or "changing")
)
def test_a_run_through_five_stages_is_one_function_of_its_position(
    ranks: int, reference: tuple[list[Step], Any]
) -> None:
    rng = np.random.default_rng(ranks)
    kills = {*rng.choice(np.arange(5, STEPS - 5), 20, replace=False).tolist()} - {*CHANGES}
    several = [1, 2, 3, 8, 4, 6, 12]
    out, state = run(lambda step: ranks or several[step % len(several)], kills)
    assert out == reference[0]
    assert state["step"] == STEPS


def test_the_plan_of_such_a_run_names_all_of_it(reference: tuple[list[Step], Any]) -> None:
    out, state = reference
    shapes = [(many, length) for many, length, _ in out]
    assert shapes == [
        (24 if step < STEPS // 2 else 48, 512 << step * 5 // STEPS) for step in range(STEPS)
    ]
    plan = rows(WEIGHTS["another source"]).batch(global_batch_size=BATCHES).plan.for_state(state)
    tokens = np.cumsum([many * length for many, length in shapes]).tolist()
    rng = np.random.default_rng(0)
    for step in sorted({0, STEPS - 1, *rng.choice(STEPS, 20).tolist()}):
        assert sum(plan.counts(step=step + 1, unit="tokens").values()) == tokens[step]
        found = list(plan.at(step=step))
        for sample in (found[0], found[-1]):
            assert step in plan.find(sample.source, sample.index, steps=range(step, step + 1))
    asked = range(STEPS // 2 - 2, STEPS // 2 + 2)
    table = plan.audit(asked).table().to_pydict()
    audited = [*zip(table["step"], table["source"], table["index"], strict=True)]
    assert {*audited} == {
        (step, sample.source, sample.index) for step in asked for sample in plan.at(step=step)
    }
    for name, index in REMOVED:
        later = plan.find(name, index, steps=range(STEPS * 3 // 4 + 1, STEPS))
        assert all(
            sample.masked
            for step in later
            for sample in plan.at(step=step)
            if (sample.source, sample.index) == (name, index)
        )
