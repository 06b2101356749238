"""Rows and row lengths of the global steps of a run that a mixture file describes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Literal, NamedTuple, TypeAlias

from ..engine.base.step_plan import EqualSteps, NumberPlan, iter_equal_steps
from ..errors import ConfigError
from ..schedule import Schedule

BorderUnit: TypeAlias = Literal["steps", "rows", "tokens"]


class Border(NamedTuple):
    """A position in a run: a number of global steps, rows, or tokens that rows have room for."""

    unit: BorderUnit
    number: int


@dataclass(frozen=True)
class StageSizes:
    """The equal steps of a stage, and the step at which it ends; None for a stage without an end."""

    steps: EqualSteps
    end: int | None

    @staticmethod
    def follow(
        before: Sequence[StageSizes], rows: int, length: int, until: Border | None
    ) -> StageSizes:
        """Return the stage after others.

        Args:
            before: the stages before.
            rows: the rows of a global step.
            length: the tokens of a row.
            until: the end of the stage. It ends with the first step at or after that.

        Raises:
            ConfigError: the stage has no step.
        """
        step = row = tokens = 0
        if before:
            last = before[-1]
            if last.end is None:
                raise ConfigError(f"stage {len(before)} has no end: add until")
            step, row, tokens, *_ = count_before([last.steps], last.end)
        steps = EqualSteps(step, row, tokens, rows, length)
        end = None if until is None else find_step([steps], until)
        if end is not None and end <= step:
            raise ConfigError(
                f"stage {len(before) + 1} has no step: it begins at step {step:,}, and ends at "
                f"{until and until.number:,} {until and until.unit}"
            )
        return StageSizes(steps, end)


def divide_run(
    rows: int | Schedule, length: int | Schedule, resolve: Callable[[float], Border]
) -> tuple[EqualSteps, ...]:
    """Return the stretches of global steps of one size.

    Args:
        rows: the rows of a global step.
        length: the tokens of a row.
        resolve: returns a fraction of the run as a border.
    """
    return tuple(iter_equal_steps(_make_plan(rows, resolve), _make_plan(length, resolve)))


def _make_plan(number: int | Schedule, resolve: Callable[[float], Border]) -> NumberPlan:
    if not isinstance(number, Schedule):
        return NumberPlan(((0, number),))
    points = tuple((at, int(value)) for at, value in number.numbers or ())
    if number.unit != "fraction":
        return NumberPlan(points, "tokens" if number.unit == "tokens" else "steps")
    borders = [resolve(at) for at, _ in points]
    found = {border.number: value for border, (_, value) in zip(borders, points, strict=True)}
    return NumberPlan(tuple(found.items()), borders[0].unit)


def resolve_fraction(fraction: float | Fraction, length: int) -> int:
    """Return the first step, row or token at or after a fraction of a run of this length."""
    exact = fraction if isinstance(fraction, Fraction) else Fraction(repr(fraction))
    return ceil(exact * length)


def count_before(stretches: Sequence[EqualSteps], step: int) -> EqualSteps:
    """Return the rows and tokens before a global step, and the size of that step.

    >>> count_before([EqualSteps(0, 0, 0, 2, 8), EqualSteps(3, 6, 48, 4, 8)], 5)
    EqualSteps(step=5, row=14, tokens=112, rows=4, length=8)
    """
    here = stretches[bisect_right(stretches, step, key=lambda each: each.step) - 1]
    rows = (step - here.step) * here.rows
    return here._replace(step=step, row=here.row + rows, tokens=here.tokens + rows * here.length)


def find_step(stretches: Sequence[EqualSteps], border: Border) -> int:
    """Return the first global step at or after a border.

    >>> find_step([EqualSteps(0, 0, 0, 2, 8), EqualSteps(3, 6, 48, 4, 8)], Border("tokens", 81))
    5
    """
    if border.unit == "steps":
        return border.number
    column = EqualSteps._fields.index("row" if border.unit == "rows" else "tokens")
    number = max(bisect_right(stretches, border.number, key=lambda each: each[column]) - 1, 0)
    here = stretches[number]
    of_step = here.rows if border.unit == "rows" else here.rows * here.length
    step = here.step - (here[column] - border.number) // of_step
    later = stretches[number + 1 : number + 2]
    return min([step, *(each.step for each in later)])
