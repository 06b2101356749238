"""The log of how many rows steps took: rows of a step, and where a run goes on in the middle of one."""

from __future__ import annotations

from dataclasses import replace

from penstock.engine.base.batch_size import BatchSize
from penstock.engine.base.passes import Passes
from penstock.engine.runtime.step_log import StepRecord, logged, rows_of_step, rows_of_steps

TEN = Passes.uniform(10)
PADDED = (StepRecord(0, 0, 4, 2, "pad", (BatchSize(2),)),)


def test_a_step_that_is_filled_up_goes_beyond_the_end_of_its_pass() -> None:
    assert [rows_of_step(PADDED, step, TEN) for step in range(4)] == [
        range(0, 4), range(4, 8), range(8, 12), range(10, 14)
    ]  # fmt: skip
    assert rows_of_step(PADDED, 5, None) == range(20, 24)


def test_a_step_that_is_left_over_ends_with_its_pass() -> None:
    kept = (replace(PADDED[0], remainder="keep"),)
    found = [rows_of_step(kept, step, TEN) for step in range(6)]
    assert found == [
        range(0, 4),
        range(4, 8),
        range(8, 10),
        range(10, 14),
        range(14, 18),
        range(18, 20),
    ]
    starts, stops, records = rows_of_steps(kept, range(6), TEN)
    assert [*map(range, starts.tolist(), stops.tolist())] == found and records.tolist() == [0] * 6


def test_a_run_that_goes_on_within_a_step_begins_an_entry_there() -> None:
    now = PADDED[0]
    for row in (0, 4, 8, 10, 14, 20, 24, 34):
        assert logged(PADDED, row, now, TEN) == PADDED, row
    for row in (
        1,
        5,
        9,
        11,
        15,
        19,
        21,
        29,
        37,
    ):  # in the last step of a pass too, and in later passes
        steps = row // 10 * 3 - (-(row % 10) // 4)
        assert logged(PADDED, row, now, TEN) == (*PADDED, replace(now, step=steps, row=row)), row
    assert (
        logged(PADDED, 9, now, None) == (*PADDED, replace(now, step=3, row=9))
        and logged(PADDED, 8, now, None) == PADDED
    )
