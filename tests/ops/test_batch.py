"""Batches of several passes: what is counted, found and read is what a look at each batch shows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import penstock as ps


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
        assert any(s.index == index and s.epoch == epoch for p in plan.find("web", index) for s in plan.at(p))


@pytest.mark.parametrize("columns", [True, False])
@pytest.mark.parametrize("many", [1, 2, 3, 4, 5, 8, 9, 12, 13])
def test_a_function_of_several_gives_every_sample_once(many: int, columns: bool) -> None:
    def twice(some: Any) -> Any:
        assert len(some) <= 4
        return {"x": np.asarray(some) * 2, "text": [str(x) for x in some]} if columns else [2 * x for x in some]

    ds = ps.from_sequence(range(many)).map(twice, batched=4)
    want = [{"x": 2 * x, "text": str(x)} if columns else 2 * x for x in range(many)]
    assert list(ds) == want
    assert list(ds.batch(many, collate=list)) == [want]
