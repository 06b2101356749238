"""The order is one function, for random trees.

A run, `ds[i]`, the plan before and after, its inverse and its sums agree. Nothing outside the run
changes it: the order of names, a save, or workers.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

import penstock as ps
from example_counts import examples
from helpers import as_lists, through_json
from shared_processes import shared_processes
from trees import Key, Tree, begun, build, described, other_order, packable, show

FEW = 24


def told(plan: Any, start: int, stop: int) -> list[list[Key]]:
    """The keys of some positions, as the plan says."""
    out: list[list[Key]] = [[] for _ in range(start, stop)]
    for sample in plan.at(slice(start, stop)):
        out[sample.position - start].append(sample.key)
    return out


def delivered(
    ds: ps.Dataset, steps: int, state: Any = None, save_at: int = 0, **options: Any
) -> tuple[list[Any], Any]:
    """The next items and their keys, over as many passes as it takes, and the state after some of them."""
    out = list[Any]()
    with packable(), ps.Loader(ds, **options) as loader:
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


@examples(1000)
@given(tree=described(), at=st.integers(0, FEW))
@packable()
def test_what_is_delivered_is_what_the_plan_says(tree: Tree, at: int) -> None:
    note(show(tree))
    ds = build(tree)
    got, state = delivered(ds, FEW, save_at=at)
    items, keys = [as_lists(item) for item, _ in got], [keys for _, keys in got]
    plan = ds.plan.for_state(state)
    assert told(ds.plan, 0, len(got)) == told(plan, 0, len(got)) == keys
    assert [
        [sample.key for sample in plan.at(step=step)] for step in range(0, len(got), 7)
    ] == keys[::7]
    check_inverse(plan, 0, len(got))
    check_sums(plan, (0, at, len(got)))
    size = len(got) if plan.size is None else min(plan.size, len(got))
    assert [as_lists(ds[i]) for i in range(size)] == items[:size]
    rest, _ = delivered(build(tree), len(got) - plan.position, state)
    assert [as_lists(item) for item, _ in rest] == items[plan.position :]
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
            assert plan.counts(position) == begun(plan, position), position


@examples(150)
@given(tree=described(), at=st.integers(0, FEW))
def test_the_order_of_names_is_no_part_of_the_order(tree: Tree, at: int) -> None:
    note(show(tree))
    one, other = build(tree), build(other_order(tree))
    want, state = delivered(one, FEW, save_at=at)
    found, _ = delivered(other, FEW)
    assert [(as_lists(item), keys) for item, keys in found] == [
        (as_lists(item), keys) for item, keys in want
    ]
    where = one.plan.for_state(state).position
    rest, _ = delivered(other, len(want) - where, state)
    assert [keys for _, keys in rest] == [keys for _, keys in want[where:]]


@examples(300)
@given(tree=described(), at=st.integers(0, FEW), ranks=st.integers(1, 2))
def same_over_processes(tree: Tree, at: int, ranks: int) -> None:
    note(show(tree))
    options: Any = {"rank": ranks - 1, "world_size": ranks, "remainder": "keep"}
    want, state = delivered(build(tree), FEW, save_at=at, **options)
    found, saved = delivered(
        build(tree), FEW, save_at=at, workers=2, executor="processes", **options
    )
    assert [(as_lists(item), keys) for item, keys in found] == [
        (as_lists(item), keys) for item, keys in want
    ]
    assert saved == state


@pytest.mark.slow
def test_processes_change_nothing() -> None:
    with shared_processes():
        same_over_processes()


# ---------------------------------------------------------------- ranks

shapes = st.tuples(st.integers(1, 4), st.integers(1, 3))


def rows_of(tree: Tree) -> Tree:
    """A tree without the last batches and the maps over them: what it gives are the rows of a run."""
    while tree[0] in ("batch", "map", "random_map"):
        tree = tree[1]
    return tree


def steps_of(rows: list[list[Key]], at: int, size: int, remainder: str) -> list[list[Key]]:
    """The keys of the global steps from a row of a pass on."""
    found = [rows[i : i + size] for i in range(at, len(rows), size)]
    if found and len(found[-1]) < size:
        match remainder:
            case "drop":
                del found[-1]
            case "pad":
                found[-1] = [
                    *found[-1],
                    *(rows[i % len(rows)] for i in range(size - len(found[-1]))),
                ]
    return [[key for keys in step for key in keys] for step in found]


def rounds(
    ds: ps.Dataset, world: int, states: Any, most: int | None, remainder: Any
) -> tuple[list[list[Key]], Any]:
    """The keys of all ranks together, step by step to the end of a pass, and their states."""
    out = list[list[Key]]()
    with ExitStack() as stack:
        loaders = [
            ps.Loader(ds, rank=r, world_size=world, remainder=remainder) for r in range(world)
        ]
        for loader in map(stack.enter_context, loaders):
            if states:
                loader.load_state_dict(states)
        its = [iter(loader) for loader in loaders]
        while most is None or len(out) < most:
            there = [next(it, None) is not None for it in its]
            assert all(there) or remainder == "keep" or not any(there), (
                f"some ranks end before others: {there}"
            )
            if not any(there):
                break
            out.append(
                [
                    key
                    for loader, one in zip(loaders, there, strict=True)
                    if one
                    for key in loader.keys()
                ]
            )
        return out, through_json([loader.state_dict() for loader in loaders])


@examples(500)
@given(
    tree=described().map(rows_of),
    first=shapes,
    then=shapes,
    cut=st.integers(0, 6),
    remainder=st.sampled_from(["drop", "pad", "keep"]),
)
@packable()
def test_ranks_share_out_the_rows_of_the_run(
    tree: Tree, first: Any, then: Any, cut: int, remainder: Any
) -> None:
    """However many ranks there were and are, however large their batches, to the end of two passes."""
    note(show(tree))
    plan = build(tree).plan
    size = 40 if plan.size is None else plan.size
    states, at = None, 0
    for (world, batch), epoch, most in ((first, 0, cut), (then, 0, None), (then, 1, None)):
        step, left = world * batch, "keep" if world == 1 and remainder == "drop" else remainder
        rows = told(plan, epoch * size, (epoch + 1) * size)
        most = most and min(most, size // step)  # in a ragged step ranks are not at one moment
        want = steps_of(rows, at, step, left)[:most]
        most = len(want) if most is not None or plan.size is None else None
        ds = build(tree).batch(batch, collate=list)
        if left != "keep" and not at and not steps_of(rows, 0, step, left):
            with pytest.raises(ps.ConfigError, match="a pass has"):
                rounds(ds, world, states, None, remainder)
            return
        found, states = rounds(ds, world, states, most, remainder)
        assert list(map(sorted, found)) == list(map(sorted, want))
        assert world > 1 or found == want
        at = min(at + len(want) * step, size) if most is not None and plan.size is not None else 0
        if plan.size is None:
            return
