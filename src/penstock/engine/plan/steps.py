"""Global steps and the rows they take, of a plan."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...arguments import check_int, check_position
from ...errors import ConfigError
from ...types import Ints
from ..runtime.step_log import (
    DealtSteps,
    StepRecord,
    dealt_steps,
    first_record,
    rows_of_step,
    wrapped,
)
from ..steps.batch import batches_of_rank, tail_of
from ..steps.op import Op
from ..steps.step import Step
from ..streams.deal import spread_of


def rows_op(op: Op) -> Op:
    """The op below the last batches, of the rows of a run."""
    while op.tail:
        (op,) = op.inputs
    return op


def log_of(
    flow: Step, log: tuple[StepRecord, ...] | None, world_size: int | None, asked: str = "at"
) -> tuple[StepRecord, ...]:
    """The log of a run, or that of one that begins on so many ranks."""
    if log is not None and world_size is not None:
        raise ConfigError(
            f"plan.{asked}: the run stores the number of ranks of its steps; leave out world_size"
        )
    if log is not None:
        return log
    ranks = (
        1
        if world_size is None
        else check_int(world_size, f"plan.{asked.partition('(')[0]}(world_size={{}})", 1)
    )
    tail = tail_of(batches_of_rank(flow, ranks, drop=True))
    return (first_record(spread_of(0, ranks, tail.group, "drop"), tail),)


def rows_of(op: Op, log: tuple[StepRecord, ...], step: int) -> range:
    """The rows of a global step, counted over all passes of an op, up to the end of its pass."""
    found = rows_of_step(log, step, op.passes)
    check_position(found.stop)
    if op.passes is None:
        return found
    return range(found.start, min(found.stop, op.passes.at(found.start).stop))


def rows_given(op: Op, log: tuple[StepRecord, ...], step: int) -> Ints:
    """Return the rows that all ranks are given in a step, in their order; those that fill it up
    come last. None of a step that was jumped over.
    """
    rows_of(op, log, step)  # refuses steps that are too far
    found = [
        wrapped(np.sort(dealt.rows[0]), dealt.starts, op.passes)
        for dealt in dealt_steps(log, range(step, step + 1), op.passes)
    ]
    return np.concatenate([np.zeros(0, np.int64), *found])


def rows_dealt(op: Op, log: tuple[StepRecord, ...], steps: range) -> Iterator[DealtSteps]:
    """The rows that ranks are given in some steps, a stretch of steps at a time."""
    if not steps:
        return
    rows_of(op, log, steps[-1])  # refuses steps that are too far
    for dealt in dealt_steps(log, steps, op.passes):
        yield dealt._replace(rows=wrapped(dealt.rows, dealt.starts[:, None], op.passes))
