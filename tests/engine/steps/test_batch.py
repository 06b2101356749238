"""Batches of several passes: what is counted, found and read is what a look at each batch shows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.engine.steps.tally import Tally


def passes(rows: int, size: int, *, shuffled: bool, drop: bool) -> ps.Dataset:
    """Batches whose passes leave rows over, in an order that is the same in each pass or is not."""
    ds = ps.from_sequence(range(rows), name="web")
    return (ds.shuffle(seed=3) if shuffled else ds).batch(size, drop_remainder=drop).repeat(5)


@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize(("rows", "size"), [(23, 5), (10, 4), (7, 7), (9, 2), (13, 8)])
def test_counts_of_batches_over_passes(rows: int, size: int, shuffled: bool, drop: bool) -> None:
    plan = passes(rows, size, shuffled=shuffled, drop=drop).plan
    a_pass = rows // size if drop else -(-rows // size)
    steps = 5 * a_pass
    assert plan.size == steps
    seen = Counter[tuple[int, int]]()
    for position in range(steps + 1):
        assert plan.counts(position) == {"web": seen.total()}, position
        if position < steps:
            seen.update((sample.epoch, sample.index) for sample in plan.at(position))
    assert set(seen.values()) == {1}
    whole = passes(rows, size, shuffled=shuffled, drop=drop)
    for start in range(0, steps, 3):
        part = whole.skip(start)
        want = sum(len(whole.plan.at(position)) for position in range(start, steps))
        assert part.plan.counts(steps - start) == {"web": want}
    for epoch, index in seen:
        assert any(
            s.index == index and s.epoch == epoch
            for p in plan.find("web", index)
            for s in plan.at(p)
        )


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("many", [1, 2, 3, 4, 5, 8, 9, 12, 13])
def test_a_function_of_several_gives_every_sample_once(many: int, columns: bool) -> None:
    def twice(some: Any) -> Any:
        assert len(some) <= 4
        return (
            {"x": np.asarray(some) * 2, "text": [str(x) for x in some]}
            if columns
            else [2 * x for x in some]
        )

    ds = ps.from_sequence(range(many)).map(twice, batched=4)
    want = [{"x": 2 * x, "text": str(x)} if columns else 2 * x for x in range(many)]
    assert list(ds) == want
    assert list(ds.batch(many, collate=list)) == [want]


def finite() -> ps.Dataset:
    parts = {
        "a": ps.from_sequence(range(7), name="a"),
        "b": ps.from_sequence(range(12), name="b").shuffle(seed=1),
    }
    return ps.mix(parts, {"a": 1, "b": 2}, stop="all_exhausted", max_epochs=1, seed=3)


WHERE = {
    "batches": lambda: ps.from_sequence(range(10), name="a").batch(4, collate=list),
    "whole batches": lambda: ps.from_sequence(range(12), name="a").batch(
        4, drop_remainder=True, collate=list
    ),
    "mixture": finite,
    "mixture in batches": lambda: finite().batch(4, collate=list),
}


@pytest.mark.parametrize("what", WHERE)
def test_where_a_source_gives_its_nth_sample_over_passes(what: str) -> None:
    op = WHERE[what]().compiled.op
    assert op.size is not None
    positions = np.arange(5 * op.size)
    rows = op.locate(positions)
    where = np.repeat(positions, np.diff(rows.levels[0])) if rows.levels else positions
    for leaf in set(rows.ungrouped().leaf.tolist()) if rows.levels else set(rows.leaf.tolist()):
        mine = where[(rows.ungrouped() if rows.levels else rows).leaf == leaf]
        number = np.arange(len(mine))
        found = op.nth(np.full_like(number, leaf), number)
        assert ((found == mine) | (found < 0)).all()
        assert (found >= 0).all() or "batches" not in what or "mixture" in what
        assert (found[: len(mine) // 5] >= 0).all()


@pytest.mark.parametrize("fold", ["first_fit", "best_fit", "concat_split"])
def test_rows_that_are_packed_are_counted_from_anywhere_in_any_pass(fold: Any) -> None:
    ends = np.cumsum([0, 3, 8, 2, 5, 7, 1, 4, 6, 2, 9])
    packed = ps.from_tokens(np.arange(ends[-1]), ends, name="a").shuffle(seed=1).pack(10, fold)
    op = packed.compiled.op
    assert op.size is not None

    def count(start: int, stop: int) -> tuple[int, int]:
        tally = Tally(1)
        op.count(tally, start, stop)
        return int(tally.samples[0]), int(tally.tokens[0])

    seen = [count(0, position) for position in range(4 * op.size + 1)]
    for start in range(4 * op.size):
        for stop in range(start, 4 * op.size + 1):
            assert count(start, stop) == tuple(
                b - a for a, b in zip(seen[start], seen[stop], strict=True)
            )


def test_columns_of_other_types_keep_their_numbers() -> None:
    """A function that gives whole numbers for some samples and fractions for others: none becomes the other."""

    def halves(xs: list[int]) -> dict[str, Any]:
        column = np.asarray(xs)
        return {"x": column / 2 if xs[0] >= 4 else column}

    ds = ps.from_sequence(range(8), name="a").map(halves, batched=4).batch(8, collate=list)
    found = [sample["x"] for sample in ds[0]]
    assert found == [0, 1, 2, 3, 2.0, 2.5, 3.0, 3.5]
    assert [isinstance(x, int) for x in found] == [True] * 4 + [False] * 4
