"""`batch(global_batch_size=Schedule(...))`: global batches that change at planned steps."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ...errors import ConfigError
from ...schedule import Schedule
from ..base.step_plan import NumberPlan, RowsByStep, parse_number_plan, resolve_rows
from ..packing import LengthPlan
from .batch import change_last_batches, tail_of
from .compiled import Compiled
from .group import find_pack
from .planned_lengths import find_end
from .step import Step


def plan_batches(step: Step, schedule: Schedule) -> RowsByStep:
    """Return the rows of the global steps of a schedule, by step.

    Args:
        step: the tree that gives the rows.
        schedule: the rows of a global step, by steps or by the tokens that rows have room for.

    Raises:
        ConfigError: if the schedule has no numbers, or if borders in tokens need row lengths.
    """
    call = "batch(global_batch_size=Schedule(...))"
    rows = parse_number_plan(schedule, call, "{0: 256, 10_000: 1024}")
    if tail_of(step).batches:
        raise ConfigError(
            f"{call}: the dataset has batches already; leave out the other .batch(...)"
        )
    if step.reason_not_indexed is not None:
        raise ConfigError(f"{call}: {step.reason_not_indexed}")
    end = find_end(step)
    if not step.is_endless and end is None:
        raise ConfigError(
            f"{call}: the steps of a run do not stop at the ends of passes, and the dataset ends; "
            "add .repeat() before, and .limit(rows) after that if the run ends"
        )
    if rows.unit != "tokens":
        return resolve_rows(rows.at_rows(end, call), NumberPlan(((0, 1),)))
    pack = find_pack(step)
    fold: Any = None if pack is None else pack.fold
    length = getattr(fold, "length", None)
    if not isinstance(length, int):
        raise ConfigError(
            f"{call}: borders in tokens need rows of equal length; pack the documents, or give "
            "the borders in steps"
        )
    lengths: LengthPlan | None = getattr(fold, "plan", None)
    if lengths is None:
        return resolve_rows(rows, NumberPlan(((0, length),)))
    return resolve_rows(rows, lengths.at_rows(end, "pack(Schedule(...))"))


def rows_by_step(step: Step) -> RowsByStep | None:
    """Return the planned rows of the global steps of a tree; None without a plan."""
    return next((batch.by_step for batch in tail_of(step).batches if batch.by_step), None)


@dataclass(frozen=True)
class Stages:
    """The pipelines of a run whose global batches change, each from a step on.

    Attributes:
        rows: the rows of a global step by step.
        pipelines: the pipeline of each of these stages.
    """

    rows: RowsByStep
    pipelines: tuple[Compiled, ...]

    @staticmethod
    def of(
        step: Step, rows: RowsByStep, of_rank: Callable[[Step], Step], compiled: Compiled
    ) -> Stages:
        """Return the stages of a tree.

        Args:
            step: the tree with the batches of all ranks.
            rows: the rows of its global steps by step.
            of_rank: returns the tree that one rank runs.
            compiled: compiles the trees.
        """

        def with_rows(many: int) -> Step:
            return change_last_batches(step, lambda size: replace(size, n=many))

        trees = (of_rank(with_rows(many)) for _, many in rows)
        return Stages(rows, tuple(map(compiled.of, trees)))

    def at(self, step: int) -> Compiled:
        """Return the pipeline of a step."""
        return self.pipelines[self._number_of(step)]

    def end_of(self, step: int) -> int | None:
        """Return the step at which the stage of a step ends; None for the last one."""
        later = self.rows[self._number_of(step) + 1 :]
        return later[0][0] if later else None

    def _number_of(self, step: int) -> int:
        return bisect_right(self.rows, step, key=lambda stage: stage[0]) - 1
