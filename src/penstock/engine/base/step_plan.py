"""Batch sizes and row lengths that change at global steps known beforehand."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

from ...arguments import check_int
from ...errors import ConfigError
from ...schedule import Schedule

StepUnit: TypeAlias = Literal["steps", "tokens"]

RowsByStep: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs of a global step, the first of them 0, and the rows of a global step from there on."""


@dataclass(frozen=True)
class NumberPlan:
    """A number by global step, or by the tokens that the rows before have room for.

    `points` are pairs of a step or token, the first of them 0, and a number. A number begins with a
    global step, the first at or after its point.
    """

    points: tuple[tuple[int, int], ...]
    unit: StepUnit = "steps"

    def __str__(self) -> str:
        points = ", ".join(f"{at}: {number}" for at, number in self.points)
        return f"{{{points}}} by {self.unit}"

    def number_at(self, step: int, tokens: int) -> int:
        """Return the number at a step, before which rows have room for so many tokens."""
        at = step if self.unit == "steps" else tokens
        return self.points[bisect_right(self.points, at, key=lambda point: point[0]) - 1][1]

    def steps_until_next(self, step: int, tokens: int, tokens_of_step: int) -> int | None:
        """Return the number of steps until the next point; None after the last one."""
        at = step if self.unit == "steps" else tokens
        i = bisect_right(self.points, at, key=lambda point: point[0])
        if i == len(self.points):
            return None
        left = self.points[i][0] - at
        return left if self.unit == "steps" else -(-left // tokens_of_step)


def parse_number_plan(schedule: Schedule, call: str, example: str) -> NumberPlan:
    """Return the plan of a schedule of numbers by steps or tokens.

    Args:
        schedule: the schedule.
        call: the call that errors name.
        example: the points of a right one.

    Raises:
        ConfigError: if it is no such schedule.
    """
    if schedule.numbers is None or schedule.unit not in ("steps", "tokens"):
        raise ConfigError(
            f"{call}: give numbers by steps or tokens, such as Schedule({example}, unit='steps')"
        )
    if schedule.interpolation != "step" or schedule.numbers[0][0] != 0:
        raise ConfigError(f"{call}: the first number begins at 0, and numbers are not interpolated")
    points = tuple((at, check_int(n, f"{call}: {{}}", 1)) for at, n in schedule.numbers)
    return NumberPlan(points, schedule.unit)


class EqualSteps(NamedTuple):
    """Steps of `rows` rows of `length` tokens each, from a step on that begins at row `row`."""

    step: int
    row: int
    rows: int
    length: int


def iter_equal_steps(
    rows: NumberPlan, lengths: NumberPlan, row: int = 0, step: int = 0, tokens: int = 0
) -> Iterator[EqualSteps]:
    """Yield the stretches of equal steps of two plans.

    Args:
        rows: the rows of a global step.
        lengths: the tokens of a row.
        row: the first row of global step `step`.
        step: that step.
        tokens: the tokens that the rows before have room for.

    >>> for stretch in iter_equal_steps(NumberPlan(((0, 2), (3, 4))), NumberPlan(((0, 8), (50, 16)), "tokens")):
    ...     print(stretch)
    EqualSteps(step=0, row=0, rows=2, length=8)
    EqualSteps(step=3, row=6, rows=4, length=8)
    EqualSteps(step=4, row=10, rows=4, length=16)
    """
    while True:
        batch_size, length = rows.number_at(step, tokens), lengths.number_at(step, tokens)
        yield EqualSteps(step, row, batch_size, length)
        plans = (rows, lengths)
        ends = [plan.steps_until_next(step, tokens, batch_size * length) for plan in plans]
        if not (known := [steps for steps in ends if steps is not None]):
            return
        steps = min(known)
        step, row = step + steps, row + steps * batch_size
        tokens += steps * batch_size * length


def resolve_rows(rows: NumberPlan, lengths: NumberPlan) -> RowsByStep:
    """Return the rows of a global step by step.

    >>> resolve_rows(NumberPlan(((0, 2), (33, 4)), "tokens"), NumberPlan(((0, 8),)))
    ((0, 2), (3, 4))
    """
    stages = [*iter_equal_steps(rows, lengths)]
    changed = [now for before, now in pairwise(stages) if before.rows != now.rows]
    return ((0, stages[0].rows), *((stage.step, stage.rows) for stage in changed))
