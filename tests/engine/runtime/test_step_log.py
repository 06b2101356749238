"""The log of how many rows steps took: rows of a step, and where a run goes on in the middle of one."""

from __future__ import annotations

from dataclasses import replace

from penstock.engine.base.batch_size import BatchSize
from penstock.engine.base.passes import Passes
from penstock.engine.runtime.step_log import StepLog, StepRecord

TEN = Passes.uniform(10)
FILLED = StepRecord(0, 0, 4, 2, "pad", (BatchSize(2),))
PADDED = StepLog((FILLED,), TEN)


def test_a_step_that_is_filled_up_goes_beyond_the_end_of_its_pass() -> None:
    assert [PADDED.padded_rows(step) for step in range(4)] == [
        range(0, 4), range(4, 8), range(8, 12), range(10, 14)
    ]  # fmt: skip
    assert PADDED.rows(2) == range(8, 10)
    assert StepLog((FILLED,), None).padded_rows(5) == range(20, 24)


def test_rows_that_fill_up_a_step_come_last_and_from_the_beginning_of_the_pass() -> None:
    assert PADDED.rows_given(2).tolist() == [8, 9, 0, 1]
    assert PADDED.steps_of_row(0) == [0, 2] and PADDED.steps_of_row(9) == [2]
    assert PADDED.steps_of_row(11) == [3, 5]
    short = StepLog((FILLED,), Passes.uniform(3))
    assert short.rows_given(0).tolist() == [0, 1, 2, 0]


def test_a_step_that_is_left_over_ends_with_its_pass() -> None:
    kept = StepLog((replace(FILLED, remainder="keep"),), TEN)
    found = [kept.padded_rows(step) for step in range(6)]
    assert found == [
        range(0, 4),
        range(4, 8),
        range(8, 10),
        range(10, 14),
        range(14, 18),
        range(18, 20),
    ]
    starts, stops, records = kept.padded_rows_of(range(6))
    assert [*map(range, starts.tolist(), stops.tolist())] == found and records.tolist() == [0] * 6


def test_a_run_that_goes_on_within_a_step_begins_an_entry_there() -> None:
    for row in (0, 4, 8, 10, 14, 20, 24, 34):
        assert PADDED.continue_with(FILLED, row) == PADDED, row
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
        continued = PADDED.continue_with(FILLED, row).records
        assert continued == (FILLED, replace(FILLED, step=steps, row=row)), row
    endless = StepLog((FILLED,), None)
    assert endless.continue_with(FILLED, 9).records == (FILLED, replace(FILLED, step=3, row=9))
    assert endless.continue_with(FILLED, 8) == endless
