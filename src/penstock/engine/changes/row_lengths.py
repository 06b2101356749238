"""Adoption of another row length during a run: rows before a position keep the length they had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np

from ...types import Json
from ..base.passes import Passes
from ..orders import Skips
from ..packing import ConcatSplit, LengthPlan, RowLengths
from ..steps.batch import tail_of
from ..steps.group import find_pack
from ..steps.planned_lengths import is_limit
from ..steps.step import Step
from .edits import Edit, RowsBefore, Skipped


class SavedRun(Protocol):
    """The position of a run in a state, and the description of its pipeline."""

    @property
    def pipeline(self) -> Any: ...
    @property
    def epoch(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def pass_sizes(self) -> Passes | None: ...


def find_other_lengths(base: Step, saved: SavedRun) -> dict[str, Json] | None:
    """Return the description of the saved rows if those of a tree continue them with another length.

    Args:
        base: the present tree.
        saved: the position and the pipeline of the run.
    """
    pack, then = find_pack(tail_of(base).rows), _find_fold(saved.pipeline)
    if pack is None or then is None or not isinstance(fold := pack.fold, ConcatSplit):
        return None
    plan = fold.plan and fold.plan.to_json()
    if then["length"] == fold.length and then.get("lengths") == plan:
        return None
    if not pack.cuts_rows or then["fold"] != "concat_split" or (saved.epoch and _has_limit(base)):
        return None
    return then


def keep_row_lengths(base: Step, saved: SavedRun, edits: Sequence[Edit]) -> tuple[Edit, ...]:
    """Return the changes of a run, with the row lengths of a saved pipeline before its position.

    The lengths that the present pipeline plans for later steps begin after it.

    Args:
        base: the present tree.
        saved: the position and the pipeline of the run.
        edits: the changes in the state.
    """
    then, pack = find_other_lengths(base, saved), find_pack(tail_of(base).rows)
    if then is None or pack is None:
        return tuple(edits)
    fold = cast("ConcatSplit", pack.fold)
    row = saved.position + (0 if saved.pass_sizes is None else saved.pass_sizes.start(saved.epoch))
    skips = Skips.of((edit.start, edit.count) for edit in edits if isinstance(edit, Skipped))
    if skips.points:
        row = int(skips.down(np.asarray([row]), None, 0)[0][0])
    before = tuple((edit.until, edit.length) for edit in edits if isinstance(edit, RowsBefore))
    if not before and (planned := then.get("lengths")) is not None:
        before = LengthPlan.from_json(planned).find_earlier()
    past = RowLengths(cast("int", then["length"]), before)
    lengths = [(until, length) for until, length in before if until < row]
    if row:
        lengths.append((row, int(past.of(np.asarray([row - 1]))[0])))
    if fold.plan is not None:
        tokens = int(past.begins(np.asarray([row]))[0])
        lengths += fold.plan.find_earlier(row, saved.step, tokens)
    others = (edit for edit in edits if not isinstance(edit, RowsBefore))
    return (*others, *(RowsBefore(until, length) for until, length in lengths))


def _find_fold(description: Any) -> dict[str, Json] | None:
    """Return the description of the fold whose rows are those of a run."""
    while isinstance(description, dict):
        step = cast("dict[str, Json]", description)
        if "fold" in step:
            return step if isinstance(step.get("length"), int) else None
        if not ({"pack", "map", "batch"} & step.keys() or is_limit(step)):
            return None
        description = step.get("of")
    return None


def _has_limit(step: Step) -> bool:
    """Return whether a limit is above the pack of a run."""
    step = tail_of(step).rows
    while step.is_elementwise and step.only_input is not None:
        step = step.only_input
    return is_limit(step.describe())
