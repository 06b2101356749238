"""The tail of a pipeline: what stands on top of everything else and only regroups or maps whole
items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from ...errors import ConfigError
from ..base.tree import collate
from ..mixing.rules import Turns
from ..packing import PackedBatches, Packing
from ..steps.function_step import FunctionStep
from ..steps.map import Map
from .ends import endless
from .nodes import Again, Batch, Flow, Head, Hold, Mix, Path, Read, Reorder, Rest, fact

_RANKS = 1 << 16  # numbers of ranks that are tried
_NEAR = 12  # numbers of ranks that are named


@fact
def has_tail(flow: Flow) -> bool:
    """Return whether batches are the last step that forms groups, so that their size is no part of
    the run.

    The tuples of a zip are no groups.
    """
    match flow:
        case Hold(below, Batch()):
            return not (isinstance(below, Mix) and isinstance(below.rule, Turns))
        case FunctionStep(below, is_elementwise=True):
            return has_tail(below)
        case _:
            return False


class Tail(NamedTuple):
    """The top of a tree: the flow of the rows of a run, and the batches over it, outermost last."""

    flow: Flow
    batches: tuple[Batch, ...]

    @property
    def group(self) -> int:
        """How many rows an item takes."""
        return prod(batch.n for batch in self.batches)

    def items(self, rows: int) -> int:
        """How many items so many rows give."""
        for batch in self.batches:
            rows = rows // batch.n if batch.drop_remainder else -(-rows // batch.n)
        return rows


def least_rows(batches: Sequence[Batch]) -> int:
    """The fewest rows that make an item of these batches, at the end of a pass."""
    rows = 1
    for batch in reversed(batches):
        rows = rows * batch.n if batch.drop_remainder else (rows - 1) * batch.n + 1
    return rows


def rows_given(batches: Sequence[Batch], rows: int) -> int:
    """Return the number of rows, of so many, that end up in an item of these batches."""
    unit = 1
    for batch in batches:
        if batch.drop_remainder:
            rows = min(rows, -(-rows // unit) // batch.n * batch.n * unit)
        unit *= batch.n
    return rows


def below_tail(flow: Flow, change: Callable[[Flow], Flow]) -> Flow:
    """The tree with another flow of the rows of a run."""
    if has_tail(flow):
        assert isinstance(flow, Hold | FunctionStep)
        return replace(flow, flow=below_tail(flow.flow, change))
    return change(flow)


def tail_of(flow: Flow) -> Tail:
    """Split off the steps at the top that only regroup or map whole items."""
    batches = tuple[Batch, ...]()
    while has_tail(flow):
        assert isinstance(flow, Hold | FunctionStep)
        if isinstance(flow, Hold) and isinstance(flow.fold, Batch):
            batches = (flow.fold, *batches)
        flow = flow.flow
    return Tail(flow, batches)


@fact
def shares_batches(flow: Flow) -> bool:
    """Return whether a tree has batches that all ranks share."""
    match flow:
        case Read():
            return False
        case Mix(flows):
            return any(map(shares_batches, flows))
        case Hold(_, Batch(over_ranks=True)):
            return True
        case _:
            return shares_batches(flow.flow)


def batches_of_rank(flow: Flow, world_size: int, drop: bool) -> Flow:
    """The tree with batches of all ranks as each rank makes them; `drop` leaves out a short last
    one on every number of ranks, one too.
    """
    if not shares_batches(flow):
        return flow
    if not has_tail(flow):
        raise ConfigError(
            "the ranks share batch(global_batch_size=...), so it must come after all steps that "
            "order, limit or group; put it last, with nothing but maps after it"
        )
    assert isinstance(flow, Hold | FunctionStep)
    below = batches_of_rank(flow.flow, world_size, drop)
    if (
        isinstance(flow, FunctionStep)
        or not isinstance(flow.fold, Batch)
        or not flow.fold.over_ranks
    ):
        return replace(flow, flow=below)
    n = flow.fold.n
    return replace(
        flow, flow=below, fold=Batch(rows_of_rank(n, world_size), drop or flow.fold.drop_remainder)
    )


def shared_by_ranks(flow: Flow, world_size: int) -> Flow:
    """The tree with its last batches, of one rank, as those of all ranks."""
    match flow:
        case Hold(_, Batch() as batch):
            return replace(flow, fold=replace(batch, n=batch.n * world_size, over_ranks=True))
        case FunctionStep(below):
            return replace(flow, flow=shared_by_ranks(below, world_size))
        case _:
            raise AssertionError("no batches at the end")


def rows_of_rank(global_batch_size: int, world_size: int) -> int:
    """The rows of one rank of a global batch; an error names the numbers of ranks that it can be
    shared by."""
    if global_batch_size % world_size == 0:
        return global_batch_size // world_size
    fits = [n for n in range(1, min(global_batch_size, _RANKS) + 1) if global_batch_size % n == 0]
    near = sorted(sorted(fits, key=lambda n: abs(n - world_size))[:_NEAR])
    named = ", ".join(map(str, near)) + (" and others" if len(near) < len(fits) else "")
    raise ConfigError(
        f"global_batch_size={global_batch_size} is not a multiple of world_size={world_size}; use "
        f"a world_size that divides it: {named}"
    )


def batched(flow: Flow, batch: Batch, stack: Callable[[list[Any]], Any] | None) -> Flow:
    """Batches of a flow, stacked as it is usual or by a function. Packed rows are built straight
    into their batch instead of being copied there.
    """
    match flow:
        case Map(groups, Packing() as packing) if stack is None:
            return Map(Hold(groups, batch), PackedBatches(packing))
        case _:
            return Map(Hold(flow, batch), stack or collate)


class Laned(NamedTuple):
    """Return the flow of the lanes of a run: below the tail and its limits, with the rows that the
    limits allow.
    """

    flow: Flow
    path: Path
    limit: int | None


def laned(flow: Flow) -> Laned:
    """Return the flow below the tail: the last batches, limits of an endless flow, and maps above
    them.

    Ranks cannot share out a limit where the lanes of some may end before they gave their share of
    it.
    """
    found, path, limit = Laned(flow, (), None), (), None
    while True:
        match flow:
            case Hold(below, Batch(n)) if has_tail(flow):
                flow, limit = below, limit and limit * n
                found = Laned(flow, path, limit)
            case Head(below, n) if endless(below):
                flow = below
                limit = n if limit is None else min(limit, n)
                found = Laned(flow, path, limit)
            case FunctionStep(below, is_elementwise=True):
                flow = below
            case _:
                return found


@fact
def grouped(flow: Flow) -> bool:
    """Whether items of a flow are batches, packed rows or other groups. A zip's tuples are none."""
    match flow:
        case Read():
            return False
        case Mix(flows):
            return any(map(grouped, flows))
        case Hold(Mix(_, _, Turns()) as below, Batch()):
            return grouped(below)
        case Hold():
            return True
        case Reorder(below) | FunctionStep(below) | Head(below) | Rest(below) | Again(below):
            return grouped(below)
