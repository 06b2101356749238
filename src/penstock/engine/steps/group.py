"""`pack`, `fold` and all other groups by a fold over the sizes of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

from ...errors import ConfigError, DataError, PositionError, StateError
from ...types import Fold, Json, Path, Sizer
from ..base.cursors import parse_cursor_list
from ..base.shown import format_description
from ..grouping import BatchByTokens, BucketByLength, ShuffleBuffer
from ..orders import WindowShuffle
from ..packing import (
    SOURCE,
    Apart,
    ConcatSplit,
    EarlierLengths,
    Packing,
    get_inner_fold,
    has_independent_rows,
)
from .batch import format_packing
from .exclude import find_replanned_passes
from .function_step import describe_function
from .group_stream import GroupOp
from .loss_lengths import find_untrained
from .op import Op
from .pack import PackOp
from .pack_windows import WindowPackOp
from .packed import PackedOp
from .paths import Migration
from .planned_lengths import is_limit
from .step import Builder, GroupStep, RandomStep, Step, Written

_METHODS = {"concat_split": "pack", "first_fit": "pack", "best_fit": "pack", "rebatch": "batch"}


@dataclass(frozen=True)
class Group(RandomStep, GroupStep):
    """Group samples by a fold over their sizes."""

    fold: Fold
    size: Sizer | None = None

    @property
    def kind(self) -> str | None:
        """The `KEY` of the fold, written down so that its class can be renamed.

        Folds of users are of the kind "fold" unless they have a `KEY`.
        """
        return getattr(self.fold, "KEY", "fold")

    @cached_property
    def forms_groups(self) -> bool:
        return not isinstance(self.fold, ShuffleBuffer | WindowShuffle) or self.input.forms_groups

    @cached_property
    def forms_batches(self) -> bool:
        return isinstance(get_inner_fold(self.fold), BatchByTokens | BucketByLength)

    # ------------------------------------------------------------ description

    def describe(self) -> dict[str, Json]:
        return {
            **self.describe_keys(),
            **cast("dict[str, Json]", self.fold.describe()),
            **({} if self.size is None else {"size": describe_function(self.size.measure)}),
        }

    def write(self) -> Written | None:
        return Written(format_description(self.fold.describe(), self.seed, self.name), self.input)

    def write_built(self, fn: Any) -> Written | None:
        if not isinstance(fn, Packing):
            return self.write()
        plan = self.fold.plan if isinstance(self.fold, ConcatSplit) else None
        return Written(f"pack({plan})" if plan else format_packing(fn), self.input)

    @property
    def functions(self) -> tuple[Any, ...]:
        return () if self.size is None else (self.size.measure,)

    # ------------------------------------------------------------ facts

    @cached_property
    def reason_not_indexed(self) -> str | None:
        if (reason := self.input.reason_not_indexed) is not None:
            return reason
        fold, name = self.fold, self._method()
        if isinstance(fold, Apart) and fold.by != SOURCE:
            name, needs = f"pack(group_by={fold.by!r})", "values of the samples"
        elif name == "shuffle_buffer()":
            needs = "the samples in its buffer"
        elif getattr(fold, "reads_values", False):
            needs = "values of the samples"
        elif self.size is not None and not self.size.by_length:
            needs = "sizes that a function gives"
        elif not self.input.lengths_known:
            if any(
                "batch" in step.describe() for step in (self.input, self.input.only_input) if step
            ):
                return (
                    f"{name} over batches cannot be planned ahead: {name.strip('()')} before batch"
                )
            needs = "the lengths of the samples"
        elif self.input.is_endless and not has_independent_rows(fold):
            return f"{name} over an endless dataset cannot be planned ahead (limit(n) makes it end)"
        else:
            return None
        return f"{name} needs {needs}, which are not known beforehand"

    def _method(self) -> str:
        """Return the method of a dataset that adds the fold, or the class of a custom one."""
        fold = type(self.fold)
        if "penstock." not in fold.__module__:
            return fold.__name__
        kind = str(self.describe()["fold"])
        return f"{_METHODS.get(kind, kind)}()"

    @property
    def needs_lengths(self) -> bool:
        over_sources = self.input.is_order or self.input.only_input is None
        return over_sources and self.size is not None and self.size.by_length

    # ------------------------------------------------------------ compilation and runs

    def bind(self, builder: Builder, seed: int, path: Path) -> Op:
        below, key = builder.op(self.input, seed, path), self.key(seed, path)
        fold, names = self.fold, [leaf.name for leaf in builder.leaves]
        if self.reason_not_indexed is not None:
            return GroupOp(below, fold, self.size, self.order_key(seed, path), names)
        if isinstance(fold, Apart) and len(below.leaves) == 1:
            fold = fold.fold
        if isinstance(fold, ConcatSplit):
            fold = self._with_planned_lengths(fold, builder.earlier_lengths.get(path))
        lengths, mark = builder.lengths, builder.mark(self, path)
        left_out = find_untrained(builder.leaves, lengths, self.size)
        if has_independent_rows(fold) and (below.size is None or below.repeats):
            packed = WindowPackOp(below, fold, key, lengths, self.size, mark, names, left_out)
            _require_tokens(packed, names)
            return packed
        if isinstance(fold, ConcatSplit) and fold.earlier:
            raise PositionError(
                "rows of passes that hold different documents cannot change their length within a "
                "pass"
            )
        replanned = () if path else find_replanned_passes(builder.root)
        return PackOp(below, fold, key, lengths, self.size, mark, names, left_out, replanned)

    def require_cuts(self) -> None:
        """Raise `ConfigError` if row lengths cannot follow a schedule."""
        if self.reason_not_indexed is not None:
            raise ConfigError(f"pack(Schedule(...)): {self.reason_not_indexed}")
        if not self.input.is_endless:
            raise ConfigError(
                "pack(Schedule(...)): the steps of a run do not stop at the ends of passes, and the "
                "documents end; add .repeat() before pack"
            )

    def _with_planned_lengths(
        self, fold: ConcatSplit, earlier: EarlierLengths | None
    ) -> ConcatSplit:
        """Return the fold with the row lengths of its schedule; `earlier` of rows below a mixture."""
        if fold.plan is None or fold.earlier:
            return fold
        if fold.plan.rows is None:
            raise ConfigError(
                "pack(Schedule(...)) sets row lengths by global step, whose rows are not known: "
                "add .batch(global_batch_size=n), or open a Loader"
            )
        return replace(fold, earlier=fold.plan.find_earlier() if earlier is None else earlier)

    @property
    def cuts_rows(self) -> bool:
        """True if row lengths may change in a run: any row follows from the tokens before it."""
        if not isinstance(self.fold, ConcatSplit) or self.reason_not_indexed is not None:
            return False
        return has_independent_rows(self.fold)

    def _migrate(self, cursor: Json, at: Migration) -> Json:
        inner, oldest, number, *rest = parse_cursor_list(cursor, 6)
        if oldest != number and at.replaces_below():
            raise StateError(
                f"{self._method()} holds samples of a mixture of streams that is to be "
                "changed; adopt before the first step of a pass, or keep the mixture unchanged"
            )
        return [self.input.migrate_cursor(inner, at), oldest, number, *rest]


def _require_tokens(packed: PackedOp, names: Sequence[str]) -> None:
    """Refuse to search forever for a token that never comes."""
    below = packed.input
    if below.size is None and not any(map(packed.lengths.any_token, below.leaves)):
        sources = " or ".join(repr(names[leaf]) for leaf in below.leaves)
        raise DataError(
            f"pack: no document of {sources} has a token, so an endless pass has no row; "
            "leave these sources out"
        )


def find_pack(step: Step) -> Group | None:
    """Return the pack whose rows are those of a run, with nothing above but maps and a limit."""
    while not isinstance(step, Group):
        if step.only_input is None or not (step.is_elementwise or is_limit(step.describe())):
            return None
        step = step.only_input
    return step


def with_earlier_lengths(step: Step, earlier: EarlierLengths) -> Step:
    """Return the tree of a run whose first rows were packed to other lengths."""
    if isinstance(step, Group) and isinstance(step.fold, ConcatSplit):
        return replace(step, fold=replace(step.fold, earlier=earlier))
    if step.only_input is None:
        raise StateError(
            "the state has rows of several lengths, and the pipeline has no pack of concat_split; "
            "load the state into the pipeline that saved it"
        )
    return step.with_children((with_earlier_lengths(step.only_input, earlier),))
