"""`ds.repeat()` of a dataset that is not indexed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...types import Json, Path
from ..base.cursors import parse_cursor_int, parse_cursor_list
from ..base.shown import format_call
from ..ops.again import AgainOp, pass_of
from ..ops.op import Op
from .paths import ReplacedMixtures
from .step import Builder, UnaryStep, Written


@dataclass(frozen=True)
class RepeatPasses(UnaryStep):
    """Join `epochs` passes of a stream; `None` is endless."""

    epochs: int | None

    def describe(self) -> dict[str, Json]:
        return {"repeat": self.epochs}

    def write(self) -> Written:
        return Written(format_call("repeat", self.epochs), self.input)

    @cached_property
    def is_endless(self) -> bool:
        return self.epochs is None

    @cached_property
    def repeats_source(self) -> bool:
        return self.input.repeats_source

    def bind(self, builder: Builder, seed: int, path: Path) -> Op:
        return AgainOp(builder.op(self.input, seed, path), self.epochs)

    def _migrate(
        self, cursor: Json, replaced: ReplacedMixtures, epoch: int, path: Path, is_top: bool
    ) -> Json:
        done, inner = parse_cursor_list(cursor)
        epoch = pass_of(self.epochs, epoch, parse_cursor_int(done))
        return [done, self.input.migrate_cursor(inner, replaced, epoch, path)]
