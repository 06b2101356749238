"""A function applied to every sample: the base of `Map`, `Filter` and the other function steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar

from ...types import Ints, Json
from ..base.passes import Passes
from ..base.rows import ProvenanceRows
from ..ops.op import OneInput, Op
from ..ops.tokens import At, Lengths
from ..streams.empty_passes import EndlessSearch
from ..streams.execution import ExecutionLoop
from ..streams.feed import Upstream
from ..streams.opening import Opening
from ..streams.reader import Laps
from ..streams.step import FunctionCall
from ..streams.stream import Stream


def name_of(fn: Any) -> str:
    """Return the name of a function: stable across processes, never an address."""
    name = getattr(fn, "__qualname__", None)
    return str(name) if name else type(fn).__qualname__


def describe_function(fn: Any) -> str:
    """Return the name of a function, with its attribute `version` if the user sets one.

    >>> def tokenise(text): return text.split()
    >>> tokenise.version = 2
    >>> describe_function(tokenise)
    'tokenise version 2'
    """
    version = getattr(fn, "version", None)
    return f"{name_of(fn)} version {version}" if isinstance(version, int | str) else name_of(fn)


def describe_keys(seed: int | None, name: str | None) -> dict[str, Json]:
    """Return the seed and the name of a random step, as far as the user gave them."""
    return {**({} if seed is None else {"seed": seed}), **({} if name is None else {"step": name})}


class FunctionOp(OneInput):
    """A compiled function step: the positions of its input, with other values.

    Args:
        below: the compiled input.
        call: the function.
        search: makes the search, for a number of lanes, that fails if an endless input yields no
            items. For steps that drop samples.
    """

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
        return not (self.call.drops or self.call.needs_index) and self.flow.tail

    def stream(self, opening: Opening, laps: Laps) -> Stream:
        if self.indexed and (opening.lane or not self.tail):
            return opening.positions(self, laps)
        lower = replace(opening.execution, stage=opening.execution.stage + 1)
        below = replace(opening, execution=lower).open(self.flow, laps)
        joins = isinstance(below, ExecutionLoop)
        work = (
            below.then(self.call)
            if joins
            else ExecutionLoop(Upstream(below), None, [self.call], opening.execution)
        )
        if self.search is not None:
            work.search = self.search(opening.share.lanes)
        if self.call.expands and not joins:
            for place, drawn in opening.drawn.items():
                opening.drawn[place] = lambda epoch, drawn=drawn: drawn(epoch) + work.inside
        return work

    # Asked only where the function makes as many tokens of a row as are known of it.
    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        self.flow.tokens(position, lengths, out, times)

    def holding(self, token: int, lengths: Lengths) -> At:
        return self.flow.holding(token, lengths)

    def known(self) -> tuple[object, Json] | None:
        return self.flow.known()

    @property
    def passes(self) -> Passes | None:
        return self.flow.passes

    def values(self, rows: ProvenanceRows) -> Sequence[Any]:
        return self.call.apply(self.flow.values(rows), rows)


Input = TypeVar("Input", covariant=True)


@dataclass(frozen=True)
class FunctionStep(Generic[Input]):
    """A function applied to every sample of its input.

    `Input` is the type of any step: the union of all is defined above this folder.
    """

    KEY: ClassVar[str]
    """The name of the step in descriptions, states and random keys."""
    METHOD: ClassVar[str]
    """The method of a dataset that makes the step."""
    OPTION: ClassVar[str] = ""
    """The argument of that method that makes this step and no other."""
    CALL: ClassVar[type[FunctionCall]]
    COMPILED: ClassVar[type[FunctionOp]] = FunctionOp

    is_random: ClassVar[bool] = False
    """True if the function receives a random generator."""
    varies_by_pass: ClassVar[bool] = False
    """True if equal samples of two passes may have different results."""
    keeps_values: ClassVar[bool] = False
    """True if every item is an unchanged sample of the input."""
    keeps_lengths: ClassVar[bool] = False
    """True if every item has as many tokens as its sample."""

    flow: Input
    fn: Any

    @property
    def keeps_positions(self) -> bool:
        """True if the n-th item comes from the n-th sample."""
        return not self.CALL.drops

    @property
    def is_elementwise(self) -> bool:
        """True if there is one item for each sample, wherever the sample is in the pass.

        The size of batches below such a step may change during a run.
        """
        return not (self.CALL.drops or self.CALL.needs_index)

    def describe(self) -> dict[str, Json]:
        """Return the step without its input, as states and fingerprints have it."""
        return {self.KEY: describe_function(self.fn)}
