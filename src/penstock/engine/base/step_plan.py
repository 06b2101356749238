"""Batch sizes and row lengths that change at global steps known beforehand."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias, get_args

from ...arguments import check_int
from ...errors import ConfigError
from ...schedule import Schedule, scale_fraction

StepUnit: TypeAlias = Literal["steps", "rows", "tokens", "fraction"]

RowsByStep: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs of a global step, the first of them 0, and the rows of a global step from there on."""

_COUNTED: tuple[StepUnit, ...] = get_args(StepUnit)[:3]  # in the order of a position


@dataclass(frozen=True)
class NumberPlan:
    """A number by global step, by rows, or by the tokens that the rows before have room for.

    `points` are pairs of a step, row or token, the first of them 0, and a number. A number begins
    with a global step, the first at or after its point. `at_rows` gives fractions of a run a place.
    """

    points: tuple[tuple[float, int], ...]
    unit: StepUnit = "steps"

    def __str__(self) -> str:
        points = ", ".join(f"{at}: {number}" for at, number in self.points)
        return f"{{{points}}} by {self.unit}"

    def number_at(self, position: Sequence[int]) -> int:
        """Return the number of a step, before which a run has these steps, rows and tokens."""
        return self.points[self._next(position[_COUNTED.index(self.unit)]) - 1][1]

    def steps_until_next(self, position: Sequence[int], of_step: Sequence[int]) -> int | None:
        """Return the number of steps until the next point; None after the last one.

        Args:
            position: the steps, rows and tokens before.
            of_step: the steps (1), rows and tokens of a step.
        """
        column = _COUNTED.index(self.unit)
        i = self._next(position[column])
        if i == len(self.points):
            return None
        return -((position[column] - int(self.points[i][0])) // of_step[column])

    def _next(self, at: int) -> int:
        return bisect_right(self.points, at, key=lambda point: point[0])

    def at_rows(self, rows: int | None, call: str) -> NumberPlan:
        """Return the plan with rows in the place of fractions of a run.

        Args:
            rows: the rows of the run; None if it has no end.
            call: the call that errors name.
        """
        if self.unit != "fraction":
            return self
        if rows is None:
            raise ConfigError(
                f"{call}: unit='fraction' counts from the end of the run, which has none; add "
                ".limit(rows) before .batch(global_batch_size=...)"
            )
        points = {scale_fraction(at, rows): number for at, number in self.points}
        return NumberPlan(tuple(points.items()), "rows")


def parse_number_plan(schedule: Schedule, call: str, example: str) -> NumberPlan:
    """Return the plan of a schedule of numbers by steps, tokens or fractions of a run.

    Args:
        schedule: the schedule.
        call: the call that errors name.
        example: the points of a right one.

    Raises:
        ConfigError: if it is no such schedule.
    """
    if schedule.numbers is None or schedule.unit in ("samples", "loss_tokens"):
        raise ConfigError(
            f"{call}: give numbers by steps or tokens, or by fractions of a run that ends, such as "
            f"Schedule({example}, unit='steps')"
        )
    if schedule.interpolation != "step" or schedule.numbers[0][0] != 0:
        raise ConfigError(f"{call}: the first number begins at 0, and numbers are not interpolated")
    points = tuple((at, check_int(n, f"{call}: {{}}", 1)) for at, n in schedule.numbers)
    return NumberPlan(points, schedule.unit)


class EqualSteps(NamedTuple):
    """Steps of `rows` rows of `length` tokens each, from a step on that begins at row `row`.

    The rows before have room for `tokens` tokens.
    """

    step: int
    row: int
    tokens: int
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
    EqualSteps(step=0, row=0, tokens=0, rows=2, length=8)
    EqualSteps(step=3, row=6, tokens=48, rows=4, length=8)
    EqualSteps(step=4, row=10, tokens=80, rows=4, length=16)
    """
    while True:
        position = step, row, tokens
        batch_size, length = rows.number_at(position), lengths.number_at(position)
        yield EqualSteps(*position, batch_size, length)
        of_step = 1, batch_size, batch_size * length
        ends = [plan.steps_until_next(position, of_step) for plan in (rows, lengths)]
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
    return _list_changes((each.step, each.rows) for each in iter_equal_steps(rows, lengths))


def resolve_lengths(rows: NumberPlan, lengths: NumberPlan) -> RowsByStep:
    """Return the tokens of a row by step.

    >>> resolve_lengths(NumberPlan(((0, 2),)), NumberPlan(((0, 8), (33, 16)), "tokens"))
    ((0, 8), (3, 16))
    """
    return _list_changes((each.step, each.length) for each in iter_equal_steps(rows, lengths))


def _list_changes(numbers: Iterable[tuple[int, int]]) -> RowsByStep:
    """Return the first pair of a step and a number, and each with another number than before."""
    first, *later = numbers
    return (first, *(now for before, now in pairwise((first, *later)) if before[1] != now[1]))
