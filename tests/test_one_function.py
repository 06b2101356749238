"""The order is one function: what a run delivers, `ds[i]`, the plan before and after, its inverse and its sums agree,
for random trees, and nothing that is not part of the run changes it: names' order, a save, workers."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
from hypothesis import given, note
from hypothesis import strategies as st

import penstock as ps
from amounts import examples
from trees import Key, Tree, build, described, show

FEW = 24


def plain(x: Any) -> Any:
    """An item that can be compared."""
    if isinstance(x, dict):
        return {key: plain(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return type(x)(map(plain, x))
    return x.tolist() if isinstance(x, np.ndarray | np.generic) else x


def told(plan: Any, start: int, stop: int) -> list[list[Key]]:
    """The keys of some positions, as the plan says."""
    out: list[list[Key]] = [[] for _ in range(start, stop)]
    for sample in plan.at(slice(start, stop)):
        out[sample.position - start].append(sample.key)
    return out


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state, allow_nan=False))


def delivered(ds: ps.Dataset, steps: int, state: Any = None, save_at: int = 0) -> tuple[list[Any], Any]:
    """The next items and their keys, over as many passes as it takes, and the state after some of them."""
    out = list[Any]()
    with ps.Loader(ds) as loader:
        if state is not None:
            loader.load_state_dict(state)
        saved, empty = loader.state_dict(), 0  # passes in a row; the first may be the end of one
        while len(out) < steps and empty < 2:
            empty += 1
            for item in islice(loader, steps - len(out)):
                out.append((item, loader.keys()))
                empty = 0
                if len(out) == save_at:
                    saved = loader.state_dict()
    return out, through_json(saved)


@examples(600)
@given(tree=described(), at=st.integers(0, FEW))
def test_what_is_delivered_is_what_the_plan_says(tree: Tree, at: int) -> None:
    note(show(tree))
    ds = build(tree)
    got, state = delivered(ds, FEW, save_at=at)
    items, keys = [plain(item) for item, _ in got], [keys for _, keys in got]
    plan = ds.plan.after(state)
    assert told(ds.plan, 0, len(got)) == told(plan, 0, len(got)) == keys
    assert [[sample.key for sample in plan.at(step=step)] for step in range(0, len(got), 7)] == keys[::7]
    check_inverse(plan, 0, len(got))
    check_sums(plan, (0, at, len(got)))
    size = len(got) if plan.size is None else min(plan.size, len(got))
    assert [plain(ds[i]) for i in range(size)] == items[:size]
    rest, _ = delivered(build(tree), len(got) - plan.position, state)
    assert [plain(item) for item, _ in rest] == items[plan.position :]
    assert [key for _, key in rest] == keys[plan.position :]


def check_inverse(plan: Any, start: int, stop: int) -> None:
    where = dict[tuple[str, int], set[int]]()
    for sample in plan.at(slice(start, stop)):
        where.setdefault((sample.source, sample.index), set()).add(sample.position)
    for source in plan.sources:
        for index in range(0, plan._rows(plan._leaf(source)), 3):
            found = plan.find(source, index, within=range(start, stop))
            assert found == sorted(where.get((source, index), ())), (source, index)


def check_sums(plan: Any, positions: tuple[int, ...]) -> None:
    for position in positions:
        if plan.size != 0:
            tally = Counter(sample.source for sample in plan.at(slice(0, position)))
            assert plan.counts(position) == {name: tally[name] for name in plan.sources}, position
