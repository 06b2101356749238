"""Shuffles, slices, repeats and every other order of an indexed input: integers to integers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from ...types import Json, Order, Path, is_source
from ..base.progress import Progress
from ..base.shown import counted, format_call, format_description, format_percent, quote_name
from ..orders import (
    AllBut,
    BlockShuffle,
    BucketShuffle,
    FixedSet,
    Gap,
    Pick,
    Portion,
    Repeat,
    RepeatEach,
    Replay,
    Shuffle,
    Skips,
    Slice,
    WindowShuffle,
)
from .block_totals import BlockSums, load_or_make_totals
from .op import Op
from .paths import SLICE
from .reorder_buckets import BucketOp
from .reorder_gaps import GapOp, SkipOp
from .reorder_op import OrderOp, PassOp, PickOp, PortionOp, RoundOp, WindowOp, find_selected_source
from .reorder_repeat_each import RepeatEachOp
from .step import Builder, RandomStep, Step, UnaryStep, Written

_CHUNK = 1 << 16  # samples of a slice that are looked up together


_COMPILED: dict[type, type[OrderOp]] = {
    Repeat: OrderOp,
    RepeatEach: RepeatEachOp,
    BucketShuffle: BucketOp,
    WindowShuffle: WindowOp,
    Slice: RoundOp,
    Replay: RoundOp,
    Pick: PickOp,
    Portion: PortionOp,
    AllBut: PortionOp,
    Gap: GapOp,
    Skips: SkipOp,
}
"""The ops of orders. An order of a user gives every position of a pass once: `PassOp`."""


@dataclass(frozen=True)
class OrderStep(UnaryStep):
    """A step that gives samples of its input in another order."""

    @property
    def is_order(self) -> bool:
        return True

    @property
    def keeps_passes(self) -> bool:
        return True

    @cached_property
    def lengths_known(self) -> bool:
        return self.input.lengths_known

    @cached_property
    def token_counter(self) -> tuple[str, str] | None:
        return self.input.token_counter

    def mean_tokens(self) -> float | None:
        return self.input.mean_tokens()


@dataclass(frozen=True)
class Reorder(RandomStep, OrderStep):
    """Give samples in an order, or a part of them, or several times."""

    order: Order

    @property
    def _fixed(self) -> bool:
        """True for a fixed set: the same samples in every pass."""
        return FixedSet in type(self.order).__mro__  # checks of protocols are slow

    @property
    def kind(self) -> str | None:
        """The `KEY` of the order, written down so that its class can be renamed.

        Orders of users are of the kind "reorder" unless they have a `KEY`.
        """
        return getattr(self.order, "KEY", "reorder")

    def child_paths(self, path: Path) -> list[tuple[Step, Path]]:
        # A slice with nothing above it has a path of its own.
        return [(self.input, (*path, SLICE) if path and self._fixed else path)]

    # ------------------------------------------------------------ description

    def describe(self) -> dict[str, Json]:
        return {**self.describe_keys(), **cast("dict[str, Json]", self.order.describe())}

    def write(self) -> Written:
        return Written(self._format(), self.input)

    def _format(self) -> str:
        def shuffle(**options: Any) -> str:
            return format_call("shuffle", **options, seed=self.seed, name=quote_name(self.name))

        match self.order:
            case Shuffle():
                return shuffle()
            case BlockShuffle(rows, window):
                return shuffle(block=(rows, window))
            case BucketShuffle(rows):
                return shuffle(buckets=rows)
            case WindowShuffle(window):
                return shuffle(window=window)
            case Slice(start, count, step):
                stop = start + count * step
                return format_call("slice", start, stop, None if step == 1 else step)
            case AllBut(indices):
                return f"without {counted(len(indices), 'row')}"
            case Pick(indices):
                return format_call("select", counted(len(indices), "row"))
            case Portion(some, of, key, others):
                part = of - some if others else some
                return format_call("split", format_percent(part / of), seed=key or None)
            case Gap(0, count):
                return format_call("skip", count)
            case Repeat(epochs):
                return format_call("repeat", epochs)
            case RepeatEach(n):
                return format_call("repeat_each", n)
            case Replay(epochs):
                return format_call("repeat", epochs, reshuffle=False)
            case order:
                return format_description(order.describe(), self.seed, self.name)

    # ------------------------------------------------------------ facts

    def keeps_stretches(self, rows: int, repeated: bool) -> bool:
        match self.order:
            case Repeat() | Replay():
                return True
            case Slice(start, count, 1):
                return start % rows == 0 and not (repeated and count % rows)
            case Gap(start, count):
                return start % rows == 0 and count % rows == 0
            case _:
                return False

    @cached_property
    def is_endless(self) -> bool:
        match self.order:
            case Repeat(epochs) | Replay(epochs):
                return epochs is None or self.input.is_endless
            case _:
                # An order of a user may end over an endless input.
                return not self._fixed and self.input.is_endless and self.order.size(None) is None

    @cached_property
    def repeats_source(self) -> bool:
        return isinstance(self.order, Repeat | Replay) and self.input.repeats_source

    @property
    def excludes_below(self) -> bool:
        is_endless_gap = isinstance(self.order, Gap) and self.input.is_endless
        return is_endless_gap or isinstance(self.order, RepeatEach)

    @property
    def keeps_passes(self) -> bool:
        return not isinstance(self.order, FixedSet | Replay | Repeat)

    def keeps_samples(self, all_of_them: bool) -> bool:
        return not (all_of_them and self._fixed)

    def mean_tokens(self) -> float | None:
        if self._fixed:
            return self._mean_of_selection() if self.lengths_known else None
        loses = isinstance(self.order, Gap) and not self.input.is_endless
        return None if loses else self.input.mean_tokens()

    def _mean_of_selection(self) -> float | None:
        """Return the mean tokens of the selected samples, looked up one by one; None for none."""
        builder = Builder(self)
        op = builder.op(self)
        if not (count := op.size or 0):
            return None

        def add_up() -> BlockSums:
            return BlockSums(np.asarray([[self._add_lengths(builder, op, count)]]), 0)

        source, sets = find_selected_source(op) or (None, [])
        return int(load_or_make_totals(source, {"total": sets}, add_up).total[0]) / count

    @staticmethod
    def _add_lengths(builder: Builder, step: Op, count: int) -> int:
        tokens = 0
        with Progress("add up lengths", count, "samples") as progress:
            for start in range(0, count, _CHUNK):
                positions = np.arange(start, min(start + _CHUNK, count))
                rows = step.locate(positions)
                for leaf in builder.leaves:
                    source = leaf.source
                    lengths = source.lengths() if is_source(source) else None
                    indices = rows.index[rows.leaf == leaf.number]
                    tokens += int(lengths[indices].sum()) if lengths is not None else 0
                progress.more(len(positions))
        return tokens

    # ------------------------------------------------------------ compilation

    def bind(self, builder: Builder, seed: int, path: Path) -> Op:
        ((below, place),) = self.child_paths(path)
        op = builder.op(below, seed, place)
        if not op.indexed:
            name = type(self.order).__name__.lower()
            self.require_indexed(name, "use .shuffle_buffer(n), or put it before that step")
        order = self.order
        if builder.rows and isinstance(order, Slice) and op.size is not None and order.step > 0:
            # A slice over other numbers of rows ends with its input.
            most = len(range(order.start, op.size, order.step))
            order = replace(order, count=min(order.count, most))
        compiled = _COMPILED.get(type(order), PassOp)
        return compiled(op, order, self.order_key(seed, path))
