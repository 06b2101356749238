"""`ds.limit(n)` and `ds.skip(n)` of a dataset that is not indexed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ...errors import StateError
from ...types import Json, Path
from ..base.cursors import parse_cursor_list
from ..base.shown import format_call
from ..ops.limit import LimitOp, RestOp
from ..ops.op import Op
from .paths import ReplacedMixtures
from .step import Builder, Step, UnaryStep, Written


@dataclass(frozen=True)
class _CountedStep(UnaryStep):
    """A step that counts the items of a stream: every rank reads all, and deals them to lanes."""

    n: int

    def keeps_samples(self, all_of_them: bool) -> bool:
        return not all_of_them

    def _migrate(
        self, cursor: Json, replaced: ReplacedMixtures, epoch: int, path: Path, is_top: bool
    ) -> Json:
        if not is_top and replaced.lanes > 1 and replaced.is_at_or_below(path):
            raise StateError(
                "a limit or skip of a mixture of streams that is to be changed is below another "
                "step, so its lanes are at different items; adopt before the first step of a pass, "
                "or keep the mixture unchanged"
            )
        return self._migrate_items(cursor, replaced, epoch, path)

    def _migrate_items(
        self, cursor: Any, replaced: ReplacedMixtures, epoch: int, path: Path
    ) -> Json:
        """Migrate the lanes of the first items; items that are dealt have the last one's number."""
        if isinstance(cursor, list):
            lanes, number = parse_cursor_list(cursor)  # pyright: ignore[reportUnknownArgumentType]
            return [self._migrate_items(lanes, replaced, epoch, path), number]
        lanes = {
            lane: self.input.migrate_cursor(at, replaced, epoch, path)
            for lane, at in cursor["at"].items()
        }
        return {**cursor, "at": lanes}


@dataclass(frozen=True)
class Limit(_CountedStep):
    """Give the first `n` items of the first pass, in every pass."""

    def describe(self) -> dict[str, Json]:
        return {"limit": self.n}

    def write(self) -> Written:
        return Written(format_call("limit", self.n), self.input)

    @cached_property
    def is_endless(self) -> bool:
        return False

    @property
    def item_limit(self) -> int:
        return self.n

    def bind(self, builder: Builder, seed: int, path: Path) -> Op:
        return LimitOp(builder.op(self.input, seed, path), self.n, self.input.is_endless)

    def _migrate_items(
        self, cursor: Any, replaced: ReplacedMixtures, epoch: int, path: Path
    ) -> Json:
        return super()._migrate_items(cursor, replaced, 0, path)


@dataclass(frozen=True)
class SkipFirst(_CountedStep):
    """Give all items of a pass but the first `n`."""

    def describe(self) -> dict[str, Json]:
        return {"skip": self.n}

    def write(self) -> Written:
        return Written(format_call("skip", self.n), self.input)

    def bind(self, builder: Builder, seed: int, path: Path) -> Op:
        return RestOp(builder.op(self.input, seed, path), self.n, self.input.is_endless)

    def _migrate_items(
        self, cursor: Any, replaced: ReplacedMixtures, epoch: int, path: Path
    ) -> Json:
        # The number of items still to skip, and the lanes.
        first, second = parse_cursor_list(cursor)
        if isinstance(first, list):
            return [self._migrate_items(first, replaced, epoch, path), second]
        return [first, super()._migrate_items(second, replaced, epoch, path)]


def migrate_lanes(
    step: Step, cursors: Mapping[int, Json], replaced: ReplacedMixtures, epoch: int
) -> dict[int, Json]:
    """Return the cursors of the lanes of a run for the present mixtures."""
    while step.is_elementwise and step.only_input is not None:
        step = step.only_input
    if isinstance(step, _CountedStep) and replaced.lanes > 1 and replaced.is_at_or_below(()):
        # All ranks read and deal the items, so all lanes continue after the last delivered one.
        furthest = max(
            (parse_cursor_list(at) for at in cursors.values() if at is not None),
            key=lambda at: at[1],
            default=None,
        )
        cursors = dict.fromkeys(cursors, furthest)
    return {
        lane: step.migrate_cursor(at, replaced, epoch, is_top=True) for lane, at in cursors.items()
    }
