"""Batches over batches: how many items a pass gives, and which rows come to be in them, is told as it is delivered."""

from __future__ import annotations

from itertools import product

import penstock as ps
from penstock.engine.base.batch_size import least_rows
from penstock.engine.steps.batch import tail_of

SIZES, DROPS = (1, 2, 3), (False, True)


def test_steps_over_nested_batches_are_told_as_they_are_delivered() -> None:
    for rows, sizes, drops in product(
        (1, 4, 5, 7), product(SIZES, repeat=3), product(DROPS, repeat=3)
    ):
        ds = ps.from_sequence(list(range(rows)), name="n")
        for n, drop in zip(sizes, drops, strict=True):
            ds = ds.batch(n, drop_remainder=drop, collate=list)
        if not len(ds):
            continue
        with ps.Loader(ds) as loader:
            passes = [loader.keys() for _ in range(2) for _ in loader]
            state = loader.state_dict()
        assert len(passes) == 2 * len(ds)
        for plan in (ds.plan, ds.plan.for_state(state)):
            assert [[s.key for s in plan.at(step=step)] for step in range(2 * len(ds))] == passes, (
                rows,
                sizes,
                drops,
            )


def test_the_fewest_rows_of_an_item_are_those_of_which_there_is_one() -> None:
    for sizes, drops in product(product((1, 2, 3, 4), repeat=3), product(DROPS, repeat=3)):
        ds = ps.from_sequence(list(range(100)), name="n")
        for n, drop in zip(sizes, drops, strict=True):
            ds = ds.batch(n, drop_remainder=drop, collate=list)
        tail = tail_of(ds.tree)
        assert least_rows(tail.batches) == next(rows for rows in range(100) if tail.items(rows)), (
            sizes,
            drops,
        )
