"""`pack(Schedule(...))`: row lengths by global step, once the rows of each step are known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from ...errors import ConfigError
from ...types import Json
from ..base.step_plan import RowsByStep
from ..packing import ConcatSplit
from .mix import find_length_plan, mixture_below_functions
from .step import Step, iter_steps


def is_limit(description: Mapping[str, Json]) -> bool:
    """Return whether a step gives the first items of its input."""
    match description:
        case {"order": "slice", "start": 0, "step": 1} | {"limit": _}:
            return True
        case _:
            return False


def find_end(step: Step) -> int | None:
    """Return the number of rows at which limits end a run; None without limits.

    Args:
        step: the tree that gives the rows, without the batches of its tail.
    """
    end: int | None = None
    while step.only_input is not None and (step.is_elementwise or is_limit(step.describe())):
        description = step.describe()
        if is_limit(description):
            rows = int(cast("int", description.get("limit", description.get("count"))))
            end = rows if end is None else min(rows, end)
        step = step.only_input
    return end if step.is_endless else None


def with_rows_per_step(step: Step, rows: RowsByStep, end: int | None = None) -> Step:
    """Return the tree of the rows of a run, whose packed rows have lengths by step.

    Args:
        step: the tree, without the batches of its tail.
        rows: the rows of a global step by step.
        end: the rows of the run, if it ends.

    Raises:
        ConfigError: if steps above the pack put rows elsewhere.
    """
    if not any(_has_plan(below) for below, _ in iter_steps(step)):
        return step
    if _has_plan(step):
        changed: Any = step
        plan = changed.fold.plan.with_rows(rows, end)
        return replace(changed, fold=replace(changed.fold, plan=plan))
    if mixture_below_functions(step) is step and all(map(find_length_plan, step.children)):
        return step.with_children(
            tuple(with_rows_per_step(child, rows, end) for child in step.children)
        )
    if step.only_input is None or not (step.is_elementwise or is_limit(step.describe())):
        written = step.write()
        what = "another step" if written is None else written.text
        raise ConfigError(
            f"pack(Schedule(...)) sets row lengths by global step, and {what} above it moves its "
            "rows; only map, limit and batch may follow "
            "it, or mix(one_source_per=) come before"
        )
    return step.with_children((with_rows_per_step(step.only_input, rows, end),))


def require_equal_lengths(step: Step) -> None:
    """Raise `ConfigError` if the rows of a tree change their length, so the first fill no last step."""
    if any(_has_plan(below) for below, _ in iter_steps(step)):
        raise ConfigError(
            "Loader(remainder='pad') fills the last step with the first rows, and "
            "pack(Schedule(...)) gives them another length; leave out remainder="
        )


def _has_plan(step: Step) -> bool:
    fold = getattr(step, "fold", None)
    return isinstance(fold, ConcatSplit) and fold.plan is not None
