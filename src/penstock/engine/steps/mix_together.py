"""Many shuffled sources looked up in one evaluation: where each gives a few samples, calls are what
takes long."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import numpy as np

from ...types import MAX_POSITION, Ints
from ..base.random import MIN_FEISTEL_SIZE, permute, permute_each
from ..base.rows import ProvenanceRows
from ..orders import Repeat, Shuffle
from .op import Op
from .read import ReadOp
from .reorder_op import OrderOp, PassOp
from .tokens import Lengths, Means, Sums

_WORTH = 4  # sources
_EACH = 128  # positions of a source; from more on it is as well to look at each by itself


class ShuffledSources:
    """The inputs of a mix that are sources shuffled whole, of some size; `mine` says which these
    are."""

    def __init__(self, inputs: Sequence[Op]) -> None:
        found: dict[int, PassOp] = {
            i: op for i, op in enumerate(map(_find_shuffled_source, inputs)) if op is not None
        }
        if len(found) < _WORTH:
            found = {}
        self.mine = np.isin(np.arange(len(inputs)), list(found))
        self._ops: list[PassOp] = list(found.values())
        self._place = np.cumsum(self.mine) - 1
        self._sizes = np.asarray([op.size for op in self._ops], np.int64)
        self._leaves = np.asarray([op.leaf for op in self._ops], np.int64)

    def locate(self, source: Ints, k: Ints) -> ProvenanceRows | None:
        """The samples that are the `k`-th of inputs, one each; None where that is not for here."""
        if not self._ops or len(k) > _EACH * len(self._ops) or not self.mine[source].all():
            return None
        member = self._place[source]
        epoch = k // self._sizes[member]
        index = self._permute(member, k - epoch * self._sizes[member], epoch)
        return ProvenanceRows(self._leaves[member], epoch, index, np.zeros_like(index))

    def _permute(self, member: Ints, place: Ints, epoch: Ints) -> Ints:
        """The samples at places of passes."""
        first = int(epoch.min(initial=MAX_POSITION))
        span = int(epoch.max(initial=first)) - first + 1
        numbers = member * span + (epoch - first)
        passes, which = cast("tuple[Ints, Ints]", np.unique(numbers, return_inverse=True))
        owner: list[int] = (passes // span).tolist()
        keys = [self._ops[i].key for i in owner]
        return permute_each(
            place, which, self._sizes[owner].tolist(), keys, (passes % span + first).tolist()
        )

    def tokens(self, drawn: Ints, lengths: Lengths, out: Ints, times: int) -> None:
        """Add the tokens of the first so many samples of inputs."""
        if not self._ops:
            return
        drawn, each = drawn[self.mine], [lengths.sums(op) for op in self._ops]
        epoch = drawn // self._sizes
        place = drawn - epoch * self._sizes
        sums = [some for some in each if isinstance(some, Sums)]
        if sums:
            found = self._sum(sums, epoch, place, lengths)
        else:
            whole = np.asarray([some.tokens_of_pass for some in each if isinstance(some, Means)])
            found = whole * epoch + (whole / self._sizes * place).astype(np.int64)
        out[self._leaves] += found * times

    def _sum(self, sums: Sequence[Sums], epoch: Ints, place: Ints, lengths: Lengths) -> Ints:
        found = np.asarray([some.tokens_of_pass()[0] for some in sums]) * epoch
        block = place // [some.grain for some in sums]
        edges = zip(sums, epoch.tolist(), block.tolist(), strict=True)
        found += [int(some.edge(e, b)[0]) for some, e, b in edges]
        start = block * [some.grain for some in sums]
        many = place - start
        stops = np.cumsum(many)
        member = np.repeat(np.arange(len(sums)), many)
        places = np.arange(len(member)) - np.repeat(stops - many - start, many)
        index = self._permute(member, places, epoch[member])
        for i, (stop, count) in enumerate(zip(stops.tolist(), many.tolist(), strict=True)):
            if count:
                found[i] += int(
                    lengths.by_leaf[self._leaves[i]][index[stop - count : stop]].sum(dtype=np.int64)
                )
        return found


class PermutedSources:
    """The inputs of a mix where all are sources, as they lie or shuffled whole, with functions on
    them or without: one permutation for each is all there is to do.
    """

    def __init__(self, inputs: Sequence[Op]) -> None:
        found = [line for line in map(_find_permuted_source, inputs) if line is not None]
        self._keys = [key for _, key in found] if len(found) == len(inputs) else []
        self._leaves = np.asarray([leaf.named.number for leaf, _ in found], np.int64)
        self._sizes = np.asarray([leaf.size for leaf, _ in found], np.int64)

    def locate(self, source: Ints, k: Ints) -> ProvenanceRows | None:
        """The samples that are the `k`-th of inputs, one each; None where inputs are others."""
        if not self._keys or not len(k):
            return None
        order, groups = by_input(source, len(self._keys))
        who, starts, stops = np.asarray(groups).T
        k, many, sizes = k[order], stops - starts, self._sizes[who]
        first = np.minimum.reduceat(k, starts) // sizes
        last = np.maximum.reduceat(k, starts) // sizes
        passes = np.repeat(first, many)
        place = k - np.repeat(first * sizes, many)
        for j in np.flatnonzero(last > first).tolist():
            own = slice(starts[j], stops[j])
            more = place[own] // sizes[j]
            passes[own] += more
            place[own] -= more * sizes[j]
        for (i, a, b), n, one, other in zip(
            groups, sizes.tolist(), first.tolist(), last.tolist(), strict=True
        ):
            if (key := self._keys[i]) is not None:
                place[a:b] = permute(place[a:b], n, key, one if one == other else passes[a:b])
        epoch, index = np.empty((2, len(k)), np.int64)
        epoch[order], index[order] = passes, place
        return ProvenanceRows(self._leaves[source], epoch, index, np.zeros_like(k))


def by_input(source: Ints, inputs: int) -> tuple[Ints, list[tuple[int, int, int]]]:
    """A stable order that brings equal inputs together, and (input, start, stop) for each that
    occurs."""
    order = np.argsort(source.astype(np.int16 if inputs < 1 << 15 else np.int64), kind="stable")
    many = np.bincount(source)
    present = np.flatnonzero(many)
    edges = pairwise([0, *np.cumsum(many[present]).tolist()])
    return order, [(i, a, b) for i, (a, b) in zip(present.tolist(), edges, strict=True)]


def _find_permuted_source(op: Op) -> tuple[ReadOp, int | None] | None:
    """A source, and the key of the shuffle on it, if there is one."""
    key: int | None = None
    while type(op) is not ReadOp:
        if type(op) is PassOp and type(op.order) is Shuffle and key is None:
            key = op.key
        elif type(op) is OrderOp and isinstance(op.order, Repeat):
            if key is not None:  # the passes below are shuffled as one
                return None
        elif not op.indexed or op.function is None or op.function.needs_index:
            return None
        (op,) = op.inputs
    return op, key


def _find_shuffled_source(op: Op) -> PassOp | None:
    """A source that is shuffled whole, perhaps pass after pass."""
    while type(op) is OrderOp and isinstance(op.order, Repeat):
        op = op.input
    if type(op) is not PassOp or type(op.order) is not Shuffle or type(op.input) is not ReadOp:
        return None
    return op if op.input.size >= MIN_FEISTEL_SIZE else None
