"""Adoption of another row length during a run: rows before a position keep the length they had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from ...types import Json
from ..base.passes import Passes
from ..orders import Skips
from ..steps.batch import tail_of
from ..steps.group import find_pack, is_limit
from ..steps.step import Step
from .edits import Edit, RowsBefore, Skipped


def keep_row_lengths(
    base: Step, saved: Json, edits: Sequence[Edit], epoch: int, at: int, passes: Passes | None
) -> tuple[Edit, ...]:
    """Return the changes of a run, with the row length of a saved pipeline before a row.

    Args:
        base: the present tree.
        saved: the description of the saved pipeline.
        edits: the changes in the state.
        epoch: the pass in which the run stands.
        at: the first row of that pass that was not delivered.
        passes: the passes of the run in the state.
    """
    pack, then = find_pack(tail_of(base).rows), _find_fold(saved)
    now = pack and cast("dict[str, Json]", pack.fold.describe())
    if pack is None or then is None or now is None or then["length"] == now.get("length"):
        return tuple(edits)
    if not pack.cuts_rows or then["fold"] != now["fold"] or (epoch and _has_limit(base)):
        return tuple(edits)
    row = at + (0 if passes is None else passes.start(epoch))
    skips = Skips.of((edit.start, edit.count) for edit in edits if isinstance(edit, Skipped))
    if skips.points:
        row = int(skips.down(np.asarray([row]), None, 0)[0][0])
    return (*edits, RowsBefore(row, cast("int", then["length"]))) if row else tuple(edits)


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
