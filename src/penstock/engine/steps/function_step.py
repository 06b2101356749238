"""A function applied to every sample: the base of `Map`, `Filter` and the other function steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from ...types import Ints, Json, Path, is_source
from ..base.cursors import parse_cursor_list
from ..base.passes import Passes
from ..base.rows import ProvenanceRows
from ..base.shown import attempt, format_call, shorten_name
from ..streams.empty_passes import EndlessSearch
from ..streams.execution import ExecutionLoop
from ..streams.feed import StreamFeed
from ..streams.function_call import FunctionCall
from ..streams.shared_reader import PassCounts
from ..streams.stream import Stream
from ..streams.stream_opener import StreamOpener
from .op import Op, UnaryOp
from .paths import Migration
from .read import NUMBERS
from .step import Builder, UnaryStep, Written
from .tokens import At, Lengths


def name_of(fn: Any) -> str:
    """Return the name of a function: stable across processes, never an address."""
    name = getattr(fn, "__qualname__", None)
    return str(name) if name else type(fn).__qualname__


def describe_function(fn: Any) -> str:
    """Return the name of a function, with its attribute `version` if the user sets one.

    >>> def tokenize(text): return text.split()
    >>> tokenize.version = 2
    >>> describe_function(tokenize)
    'tokenize version 2'
    """
    version = getattr(fn, "version", None)
    return f"{name_of(fn)} version {version}" if isinstance(version, int | str) else name_of(fn)


def format_function(fn: Any) -> str | None:
    """Return the name of a function of a user as a call has it; None for a private function."""
    name = attempt(lambda: describe_function(fn), type(fn).__name__).rpartition("<locals>.")[2]
    return None if name.startswith("_") else shorten_name(name)


class FunctionOp(UnaryOp):
    """A compiled function step: the positions of its input, with other values.

    Args:
        below: the compiled input.
        call: the function.
        search: makes the search, for a number of lanes, that fails if an endless input yields no
            items. For steps that drop samples.
    """

    keeps_order = True

    def __init__(
        self, below: Op, call: FunctionCall, search: Callable[[int], EndlessSearch] | None = None
    ) -> None:
        super().__init__(below)
        self.call, self.search = call, search
        self.indexed = below.indexed and not call.drops

    @property
    def function(self) -> FunctionCall:
        return self.call

    @property
    def tail(self) -> bool:
        return not (self.call.drops or self.call.needs_index) and self.input.tail

    def stream(self, opening: StreamOpener, passes: PassCounts) -> Stream:
        if self.indexed and (opening.lane or not self.tail):
            return opening.open_positions(self, passes)
        lower = replace(opening.execution, stage=opening.execution.stage + 1)
        below = replace(opening, execution=lower).open(self.input, passes)
        joins = isinstance(below, ExecutionLoop)
        work = (
            below.add_step(self.call)
            if joins
            else ExecutionLoop(StreamFeed(below), None, [self.call], opening.execution)
        )
        if self.search is not None:
            work.search = self.search(opening.own_lane.lanes)
        if self.call.expands and not joins:
            for place, drawn in opening.drawn.items():
                opening.drawn[place] = lambda epoch, drawn=drawn: (
                    drawn(epoch) + work.is_inside_sample
                )
        return work

    def find_first(self, leaves: int, leaf: int, number: int, position: int) -> int | None:
        return self.input.find_first(leaves, leaf, number, position)

    # Asked only where the function makes as many tokens of a row as are known of it.
    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        self.input.tokens(position, lengths, out, times)

    def holding(self, token: int, lengths: Lengths) -> At:
        return self.input.holding(token, lengths)

    def known(self) -> tuple[object, Json] | None:
        return self.input.known()

    @property
    def passes(self) -> Passes | None:
        return self.input.passes

    def values(self, rows: ProvenanceRows) -> Sequence[Any]:
        return self.call.apply(self.input.values(rows), rows)


@dataclass(frozen=True)
class FunctionStep(UnaryStep):
    """A function applied to every sample of its input."""

    KEY: ClassVar[str]
    """The name of the step in descriptions, states and random keys."""
    METHOD: ClassVar[str]
    """The method of a dataset that makes the step."""
    OPTION: ClassVar[str] = ""
    """The argument of that method that makes this step and no other."""
    CALL: ClassVar[type[FunctionCall]]
    COMPILED: ClassVar[type[FunctionOp]] = FunctionOp

    varies_by_pass: ClassVar[bool] = False
    """True if equal samples of two passes may have different results."""
    keeps_values: ClassVar[bool] = False
    """True if every item is an unchanged sample of the input."""
    keeps_lengths: ClassVar[bool] = False
    """True if every item has as many tokens as its sample."""

    fn: Any

    @property
    def keeps_positions(self) -> bool:
        return not self.CALL.drops

    @property
    def is_elementwise(self) -> bool:
        return not (self.CALL.drops or self.CALL.needs_index)

    # ------------------------------------------------------------ description

    def describe(self) -> dict[str, Json]:
        return {self.KEY: describe_function(self.fn)}

    def identity(self) -> dict[str, Json]:
        return (
            self._describe_over(lambda step: step.identity())
            if self.in_tail
            else self.description()
        )

    def write(self) -> Written | None:
        return Written(self._format_call(), self.input)

    def _format_call(self, **options: Any) -> str:
        return format_call(self.METHOD, format_function(self.fn), self.OPTION or None, **options)

    @property
    def functions(self) -> tuple[Any, ...]:
        return (self.fn,)

    # ------------------------------------------------------------ facts

    @cached_property
    def reason_not_indexed(self) -> str | None:
        if self.keeps_positions:
            return self.input.reason_not_indexed
        step = f"{self.METHOD}({self.OPTION})"
        return f"{step} gives a number of samples that depends on the data"

    @cached_property
    def repeats_source(self) -> bool:
        return not self.varies_by_pass and self.input.repeats_source

    @cached_property
    def in_tail(self) -> bool:
        return self.is_elementwise and self.input.in_tail

    @property
    def keeps_passes(self) -> bool:
        return True

    def keeps_samples(self, all_of_them: bool) -> bool:
        return self.keeps_values and not all_of_them

    def mean_tokens(self) -> float | None:
        return self.input.mean_tokens() if self.keeps_lengths else None

    # ------------------------------------------------------------ compilation and runs

    def collect(self, builder: Builder, seed: int, path: Path) -> None:
        super().collect(builder, seed, path)
        builder.add_mark(self, path)

    def key(self, seed: int, path: Path) -> int:
        """Return the key of the random numbers; 0 if the step draws none."""
        return 0

    def bind(self, builder: Builder, seed: int, path: Path) -> Op:
        below, timing = builder.op(self.input, seed, path), builder.timing
        profiler, name = (timing.profiler, timing.name_of_step(self)) if timing else (None, "")
        call = self.CALL(
            self.fn,
            self.key(seed, path),
            builder.mark(self, path),
            builder.leaves,
            self.input.forms_groups,
            profiler,
            name,
        )
        if call.drops and (self.input.is_endless or (below.indexed and below.size is None)):
            return self.COMPILED(below, call, self._make_search(builder, below))
        return self.COMPILED(below, call)

    def _make_search(self, builder: Builder, below: Op) -> Callable[[int], EndlessSearch]:
        """Return the maker of the search for items in an endless input, by number of lanes."""
        sources = np.zeros(len(builder.leaves), np.bool_)
        sources[[*below.leaves]] = True
        for leaf in builder.leaves:
            sources[leaf.number] &= not is_source(leaf.source) or len(leaf.source) < NUMBERS
        return partial(EndlessSearch, sources.tolist(), self.input.repeats_source)

    def _migrate(self, cursor: Json, at: Migration) -> Json:
        # Neighbouring function steps are one piece of work, with one cursor.
        expands, below = self.CALL.expands, self.input
        while isinstance(below, FunctionStep) and below.reason_not_indexed is not None:
            expands, below = expands or below.CALL.expands, below.input
        if not expands:
            return below.migrate_cursor(cursor, at)
        inner, skip = parse_cursor_list(cursor)
        return [below.migrate_cursor(inner, at), skip]
