"""A search for replaced samples scans at most twice the range in question."""

from __future__ import annotations

from typing import Any

import numpy as np

import penstock as ps
from penstock.engine.plan.journaled_rows import JournaledRows
from penstock.engine.streams.journal import JournalEntry, SampleDraw


def test_what_was_exchanged_is_looked_for_no_further_than_twice_what_is_asked() -> None:
    compiled = (
        ps.from_sequence(range(10), name="a").shuffle(window=4).repeat().batch(2).plan.compiled
    )
    op, asked = compiled.op, list[int]()
    whole: Any = op.find

    def find(leaf: int, index: Any, low: int, high: int) -> Any:
        asked.append(high)
        return whole(leaf, index, low, high)

    op.find = find
    bad, other = SampleDraw("a", 1, 3), SampleDraw("a", 0, 9)
    replaced = JournaledRows(
        op,
        compiled.builder.leaves,
        {each: JournalEntry("bad", used=4, at=4) for each in (bad, other)},
        0,
    )
    everything = replaced.locate(np.arange(20))
    for position in (0, 1, 3, 4, 5, 7, 9, 20, 12, 3):
        assert replaced.count_extra(position).tolist() == [0]
        assert asked[-1] <= max(1, 2 * position) or position in (12, 3)
    assert len(asked) == len({*asked}), "what is known is not looked for again"
    assert max(asked) <= 32
    assert everything.index.tolist() != op.locate(np.arange(20)).index.tolist()
