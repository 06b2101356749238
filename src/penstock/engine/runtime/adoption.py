"""Continuing a run with another pipeline: within its pass, or from the next pass on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import StateError
from ...types import Json
from ..base.cursors import parse_cursor_int
from ..changes.adopt import (
    FindProgress,
    adopt_state,
    keep_changes,
    make_moved_error,
    with_other_rows,
)
from ..changes.edits import Edit, changed
from ..changes.next_pass import (
    begin_streams_with_next_pass,
    begin_with_next_pass,
    find_reordered_sources,
    have_same_orders,
    require_adopted_passes,
    without_last_limit,
)
from ..changes.row_lengths import find_other_lengths, keep_row_lengths
from ..steps.batch import rows_of_lanes, tail_of
from ..steps.limit import migrate_lanes
from ..steps.paths import Migration
from ..steps.step import Builder, Step
from .states import SavedState, require_same_packing

Changes = tuple[Edit, ...]


@dataclass(frozen=True)
class Adoption:
    """The tree of another pipeline, and the state of a run that it takes over.

    Attributes:
        base: the tree without the changes of the run.
        saved: the state of all ranks.
        cursors: the cursors of its lanes.
        changes: the changes in it.
        indexed: whether the run is one of positions.
    """

    base: Step
    saved: SavedState
    cursors: Mapping[int, Json]
    changes: Changes
    indexed: bool

    def continue_pass(
        self, positions: FindProgress, regrouped: bool
    ) -> tuple[Changes, Mapping[int, Json]]:
        """Return the changes of a run that continues its pass, and the cursors of its lanes.

        Args:
            positions: the positions of the mixtures of a tree.
            regrouped: whether mixtures depend on the global steps, and these are others now.

        Raises:
            StateError: if samples would be lost or repeated.
        """
        base, saved, before = self.base, self.saved, self.changes
        self._require_packing()
        if self.indexed:
            before = keep_row_lengths(base, saved, before)
        else:
            self._require_orders()
        adopted = adopt_state(
            base, before, saved.mixtures, saved.epoch, positions, saved.row_counts
        )
        changes = adopted.edits
        if regrouped:
            start = 0 if saved.pass_sizes is None else saved.pass_sizes.start(saved.epoch)
            row = start + parse_cursor_int(self.cursors[0])
            changes = keep_changes(changes, before, row, base)
        else:
            require_adopted_passes(base, changes, before, saved.epoch)
        if self.indexed:
            self._require_orders()
            self._require_earlier_passes(tail_of(changed(base, changes)).rows)
        migration = Migration(adopted.streams, saved.lanes or 1, saved.epoch)
        return changes, migrate_lanes(rows_of_lanes(base).step, self.cursors, migration)

    @property
    def _has_delivered(self) -> bool:
        return any(cursor for cursor in self.cursors.values()) or self.saved.epoch > 0

    def _require_packing(self) -> None:
        """Raise `StateError` if the run delivered rows that are packed differently now."""
        if self._has_delivered:
            lengths_vary = self.indexed and find_other_lengths(self.base, self.saved) is not None
            now = self.base.description()
            require_same_packing(self.saved.pipeline, now, lengths_vary)

    def _require_orders(self) -> None:
        """Raise `StateError` if the run delivered samples that are in another order now."""
        if not self._has_delivered:
            return
        before, now = self.saved.pipeline, self.base.description()
        later_pass = self.indexed and self.saved.epoch > 0
        moved = find_reordered_sources(before, now, movable=not later_pass)
        if not moved and (grown := Builder(self.base).other_rows(self.saved.row_counts)):
            # The rows that they had in earlier passes follow from the present orders.
            ranges = (without_last_limit(each) for each in (before, now))
            reordered = find_reordered_sources(*ranges, movable=False)
            moved = [
                name
                for name in reordered
                if any(f"{each}/".startswith(f"{name}/") for each in grown)
            ]
        if moved:
            raise make_moved_error(moved)

    def _require_earlier_passes(self, tree: Step) -> None:
        """Raise `StateError` at the end of a pass if the pipeline orders earlier passes otherwise."""
        saved, passes = self.saved, Builder(tree).op(tree).passes
        if saved.position and (passes is None or passes.size(saved.epoch) > saved.position):
            return  # a longer limit continues the pass
        if saved.next_pass and not have_same_orders(saved.pipeline, self.base.description()):
            raise StateError("adopt: the pipeline orders samples of earlier passes differently")

    def with_other_rows(self, changes: Changes) -> Changes:
        """Return the changes of a run of positions whose sources may have other numbers of rows."""
        saved, at = self.saved, parse_cursor_int(self.cursors[0])
        return with_other_rows(
            self.base, changes, saved.row_counts, saved.epoch, at, saved.pass_sizes
        )

    def begin_pass(self) -> tuple[Changes | None, int]:
        """Return the changes of a run whose next pass is one of the new pipeline, and that pass;
        None within a pass.
        """
        saved, given = self.saved, (self.base, self.changes, self.saved.mixtures)
        if not self.indexed:
            if any(cursor is not None for cursor in self.cursors.values()):
                return None, saved.epoch
            return begin_streams_with_next_pass(*given, saved.row_counts), saved.epoch
        sizes, until = saved.pass_sizes, saved.next_pass
        if sizes is None or until is None:
            return None, saved.epoch
        return begin_with_next_pass(*given, saved.row_counts, sizes, until), until
