"""A pipeline adopted at the end of a pass: its plan names what earlier passes gave, or is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from helpers import pairwise


def rows(name: str) -> ps.Dataset:
    return ps.from_sequence(range(31 if name == "z" else 30), name=name)


def documents(name: str) -> ps.Dataset:
    """Documents of one length for each name."""
    n, size = 30, 3 + ord(name) % 5
    return ps.from_tokens(np.arange(n * size), np.arange(0, n * size + 1, size), name=name)


INPUTS: dict[str, tuple[str, str]] = {
    "an input more": ("vw", "vwx"),
    "an input more before": ("vw", "uvw"),
    "an input less": ("vwx", "vw"),
    "another order": ("vw", "wv"),
    "another input": ("vw", "vz"),
    "the same inputs": ("vw", "vw"),
}

JOINED: dict[str, Callable[[list[ps.Dataset]], ps.Dataset]] = {
    "concat": lambda inputs: ps.concat(*inputs),
    "zip": lambda inputs: inputs[0].zip(*inputs[1:]).map(lambda row: row[0]),
    "mix": lambda inputs: ps.mix(
        {each.sources[0]: each for each in inputs}, stop="all_exhausted", seed=1
    ),
    "shuffled inputs": lambda inputs: ps.concat(*(each.shuffle() for each in inputs)),
    "first exhausted": lambda inputs: ps.mix(
        {each.sources[0]: each for each in inputs}, stop="first_exhausted"
    ),
}

ABOVE: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "nothing": lambda ds: ds,
    "limit": lambda ds: ds.limit(25),
    "shuffle": lambda ds: ds.shuffle(seed=1),
    "limit and shuffle": lambda ds: ds.limit(25).shuffle(),
    "shuffle and limit": lambda ds: ds.shuffle(window=5).limit(25),
    "select": lambda ds: ds.select(list(range(20))).shuffle(buckets=2),
    "repeat": lambda ds: ds.limit(25).repeat(2),
    "best fit": lambda ds: ds.pack(20, method="best_fit"),
    "windows": lambda ds: ds.pack(20, method="best_fit", rows=6),
    "rows of a source": lambda ds: ds.pack(20, group_by="__source__"),
    "first fit": lambda ds: ds.limit(25).pack(20, method="first_fit"),
}


def take_pass(loader: ps.Loader, run: list[list[Any]], steps: int = 1 << 30) -> None:
    for _ in loader:
        run.append(sorted(loader.keys()))
        if (steps := steps - 1) == 0:
            return


def require_true_answers(ds: ps.Dataset, state: Any, run: list[list[Any]]) -> int:
    """Compare the plan of a run with what it gave; return how many steps the plan knows."""
    plan, known = ds.plan.for_state(state), 0
    for step, given in enumerate(run):
        try:
            answer = plan.at(step=step)
        except ps.StateError as error:
            assert "another pipeline was adopted" in str(error) or "no longer has" in str(error)
        else:
            assert sorted(sample.key for sample in answer) == given
            known += 1
    return known


@pytest.mark.parametrize(("change", "joined", "above"), pairwise([*INPUTS], [*JOINED], [*ABOVE]))
def test_the_past_is_true_or_an_error(change: str, joined: str, above: str) -> None:
    made = rows if above in list(ABOVE)[:7] else documents
    if made is documents and joined == "zip":
        joined = "concat"

    def build(names: str) -> ps.Dataset:
        return ABOVE[above](JOINED[joined]([made(name) for name in names])).batch(2, collate=list)

    before, after = INPUTS[change]
    run: list[list[Any]] = []
    with ps.Loader(build(before)) as loader:
        take_pass(loader, run)
        state = loader.state_dict()
    ds = build(after)
    with ps.Loader(ds) as loader:
        loader.load_state_dict(state, on_mismatch="adopt")
        known = require_true_answers(ds, loader.state_dict(), run)
        assert change != "the same inputs" or known == len(run)
        take_pass(loader, run, 3)
        assert require_true_answers(ds, loader.state_dict(), run) >= 3


@pytest.mark.parametrize("change", ["an input less", "another input", "another order"])
@pytest.mark.parametrize("joined", ["concat", "zip", "shuffled inputs"])
@pytest.mark.parametrize("above", ["shuffle", "limit and shuffle", "shuffle and limit", "select"])
def test_within_a_pass_other_sources_below_a_shuffle_are_an_error(
    change: str, joined: str, above: str
) -> None:
    """One step in 30 looked like the last one of the former pipeline, and was accepted."""

    def build(names: str) -> ps.Dataset:
        return ABOVE[above](JOINED[joined]([rows(name) for name in names]))

    before, after = INPUTS[change]
    with ps.Loader(build(before)) as saved, ps.Loader(build(after)) as loader:
        for _ in range(12):
            next(iter(saved))
            with pytest.raises(ps.StateError, match="adopt"):
                loader.load_state_dict(saved.state_dict(), on_mismatch="adopt")


ORDERS: dict[str, Callable[[ps.Dataset, ps.Dataset], ps.Dataset]] = {
    "none": lambda v, _: v.limit(20),
    "shuffle": lambda v, _: v.shuffle().limit(20),
    "seed": lambda v, _: v.shuffle(seed=2).limit(20),
    "window": lambda v, _: v.shuffle(window=5).limit(20),
    "slice": lambda v, _: v[5:25],
    "step": lambda v, _: v.concat(v)[::3],
    "backwards": lambda v, _: v[19::-1],
    "sample": lambda v, _: v.sample(20, seed=1),
    "select": lambda v, _: v.select(list(range(4, 24))),
    "copies": lambda v, _: v.repeat_each(2).limit(20),
    "parts": lambda v, w: ps.concat(v[:10], w[:10]),
    "mixture": lambda v, w: ps.mix({"v": v, "w": w}, stop="all_exhausted").limit(20),
    "functions": lambda v, _: v.limit(20).map(str),
}


@pytest.mark.parametrize(("before", "after"), pairwise([*ORDERS], [*ORDERS]))
def test_another_order_of_the_next_pass(before: str, after: str) -> None:
    v, w = rows("v"), rows("w")
    run: list[list[Any]] = []
    with ps.Loader(ORDERS[before](v, w).batch(2, collate=list)) as loader:
        take_pass(loader, run)
        state = loader.state_dict()
    ds = ORDERS[after](v, w).batch(2, collate=list)
    with ps.Loader(ds) as loader:
        loader.load_state_dict(state, on_mismatch="adopt")
        take_pass(loader, run, 2)
        known = require_true_answers(ds, loader.state_dict(), run)
        assert known == len(run) or {before, after} != {"none", "functions"}


@pytest.mark.parametrize("steps", [1, 5, 6, 17, 40])
@pytest.mark.parametrize("after", ["vwx", "uvw", "wv"])
def test_inputs_come_within_a_window_of_documents(steps: int, after: str) -> None:
    def build(names: str) -> ps.Dataset:
        mixed = ps.mix({name: documents(name).shuffle() for name in names}, seed=1)
        return mixed.pack(20, method="best_fit", rows=6).batch(1)

    run: list[list[Any]] = []
    with ps.Loader(build("vw")) as loader:
        take_pass(loader, run, steps)
        state = loader.state_dict()
    ds = build(after)
    with ps.Loader(ds) as loader:
        loader.load_state_dict(state, on_mismatch="adopt")
        take_pass(loader, run, 15)
        assert require_true_answers(ds, loader.state_dict(), run) == len(run)
    parts = [key for step in run for key in step]
    first = [key for key in parts if key[1] == 0]
    assert {key[0] for key in parts} == set(after)
    assert len(first) >= len({*first}) > 30
