"""Global steps and the rows they take, of a plan."""

from __future__ import annotations

from ..base.ints import whole, within_reach
from ..errors import ConfigError, StateError
from ..graph.nodes import Flow
from ..graph.tail import tail_of
from ..ops.batch import BatchOp
from ..ops.each import EachOp
from ..ops.gaps import ToldOp
from ..ops.op import Op
from ..ops.pack import passes_of
from ..orders import Told
from ..runtime.sizes import Size, rows_of_step, size_of
from ..streams.deal import spread_of


def rows_op(op: Op) -> Op:
    """The op below the last batches, of the rows of a run."""
    while op.tail:
        (op,) = op.inputs
    return op


def told_of(op: Op) -> Told | None:
    """Which passes are told, where positions were skipped in some passes only."""
    while isinstance(op, BatchOp | EachOp):
        op = op.flow
    return op.order if isinstance(op, ToldOp) else None


def rows_of(flow: Flow, op: Op, log: tuple[Size, ...] | None, step: int, world_size: int | None) -> range:
    """The rows of a global step, counted over all passes of an op; of no run on so many ranks."""
    log, tail = log_of(flow, log, world_size, "at(step=)"), tail_of(flow)
    found = rows_of_step(log, step, op.size)
    within_reach(found.stop)
    check_even(op, found.start)
    whole_step = next(entry.size for entry in reversed(log) if entry.step <= step)
    # The last step of a pass may be short: batches below the outermost drop what fills none of them.
    return found[: tail.given(len(found))] if len(found) < whole_step else found


def log_of(flow: Flow, log: tuple[Size, ...] | None, world_size: int | None, asked: str = "at") -> tuple[Size, ...]:
    """The log of a run, or that of one that begins on so many ranks."""
    if log is not None and world_size is not None:
        raise ConfigError(f"plan.{asked}: the run knows on how many ranks it made its steps; leave out world_size")
    ranks, tail = 1 if world_size is None else whole(world_size, "plan.at(world_size={})", 1), tail_of(flow)
    return log or (size_of(spread_of(0, ranks, tail.group, "drop"), tail),)


def check_even(op: Op, start: int) -> None:
    """Steps are counted by passes of one length: those up to the present one, and on to that of a step."""
    if told := told_of(op):
        told.check(0, start + 1, op.size)
    passes = passes_of(op)
    if passes is None or passes.now is None or op.size is None:
        return
    last = max(passes.now, start // op.size)
    if any(lap <= last and not passes.tells(part) for lap, part in zip(passes.laps, passes.parts, strict=True)):
        sizes = ", ".join(
            f"{part.size} from pass {lap} on" for lap, part in zip(passes.laps, passes.parts, strict=True)
        )
        raise StateError(
            f"a change on the way changed how long a pass is ({sizes}), so steps cannot be counted over all passes; "
            "ask by position: plan.position is the next one"
        )
