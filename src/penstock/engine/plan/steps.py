"""Global steps and the rows they take, of a plan."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...arguments import check_int, check_position
from ...errors import ConfigError, StateError
from ...types import Ints
from ..graph.nodes import Flow
from ..graph.tail import batches_of_rank, tail_of
from ..ops.batch import BatchOp
from ..ops.gaps import ToldOp
from ..ops.op import Op
from ..ops.pack import passes_of
from ..orders import UnchangedPasses
from ..runtime.step_log import (
    DealtSteps,
    StepRecord,
    dealt_steps,
    first_record,
    rows_of_step,
    wrapped,
)
from ..steps.function_step import FunctionOp
from ..streams.deal import spread_of


def rows_op(op: Op) -> Op:
    """The op below the last batches, of the rows of a run."""
    while op.tail:
        (op,) = op.inputs
    return op


def told_of(op: Op) -> UnchangedPasses | None:
    """Which passes are told, where positions were skipped in some passes only."""
    while isinstance(op, BatchOp | FunctionOp):
        op = op.flow
    return op.order if isinstance(op, ToldOp) else None


def log_of(
    flow: Flow, log: tuple[StepRecord, ...] | None, world_size: int | None, asked: str = "at"
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
    found = rows_of_step(log, step, op.size)
    check_position(found.stop)
    check_even(op, found.start)
    return (
        found
        if op.size is None
        else range(found.start, min(found.stop, (found.start // op.size + 1) * op.size))
    )


def rows_given(op: Op, log: tuple[StepRecord, ...], step: int) -> Ints:
    """Return the rows that all ranks are given in a step, in their order; those that fill it up
    come last. None of a step that was jumped over.
    """
    rows_of(op, log, step)  # refuses what cannot be told
    found = [
        wrapped(np.sort(dealt.rows[0]), dealt.starts, op.size)
        for dealt in dealt_steps(log, range(step, step + 1), op.size)
    ]
    return np.concatenate([np.zeros(0, np.int64), *found])


def rows_dealt(op: Op, log: tuple[StepRecord, ...], steps: range) -> Iterator[DealtSteps]:
    """The rows that ranks are given in some steps, a stretch of steps at a time."""
    if not steps:
        return
    rows_of(op, log, steps[-1])  # refuses what cannot be told
    for dealt in dealt_steps(log, steps, op.size):
        yield dealt._replace(rows=wrapped(dealt.rows, dealt.starts[:, None], op.size))


def check_even(op: Op, start: int) -> None:
    """Raise an error unless all passes up to the present one, and to the pass of a step, have one
    length.
    """
    if told := told_of(op):
        told.check(0, start + 1, op.size)
    passes = passes_of(op)
    if passes is None or passes.now is None or op.size is None:
        return
    last = max(passes.now, start // op.size)
    if any(
        lap <= last and not passes.tells(part)
        for lap, part in zip(passes.laps, passes.parts, strict=True)
    ):
        sizes = ", ".join(
            f"{part.size} from pass {lap} on"
            for lap, part in zip(passes.laps, passes.parts, strict=True)
        )
        raise StateError(
            f"a change of the run altered the length of a pass ({sizes}), so steps cannot be "
            "counted over all passes; ask by position (the next one is plan.position)"
        )
