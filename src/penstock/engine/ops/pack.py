"""Packs whose lengths are known: groups that a fold decides ahead of time, pass by pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, cast

import numpy as np

from ...types import Fold, Ints, Sizer
from ..base.bounded_dict import BoundedDict
from ..base.integers import check_position, find_distinct_values
from ..base.progress import Progress
from ..base.random import derive_pass_key
from ..base.rows import ProvenanceRows, join_rows, make_empty_rows
from ..packing import (
    Apart,
    BestFit,
    ConcatSplit,
    FirstFit,
    GroupLayout,
    WindowPlanner,
    adjust_group_count,
    count_settled_documents,
    get_inner_fold,
    has_independent_rows,
    plan_groups,
)
from .op import OneInput, Op
from .packed import PackedOp, ranks
from .passes import PassesOp
from .tally import Tally, spend_search, split_passes
from .tokens import Lengths

_SAMPLED = 1 << 14  # documents
_LOCATED = 1 << 22  # documents looked up at a time


class Pass(NamedTuple):
    """One pass of what is packed: its samples, their tokens, the groups that they make; `own` says
    that these are what the fold gives for this pass.
    """

    rows: ProvenanceRows
    sizes: Ints
    plan: GroupLayout
    own: bool


def passes_of(op: Op) -> PassesOp | None:
    """The mixture that ends and was changed, where its passes are those of an op."""
    while isinstance(op, OneInput):
        op = op.flow
    return op if isinstance(op, PassesOp) and op.now is not None else None


class PackOp(PackedOp):
    """Groups that a fold decides from lengths alone; each pass is planned when it is first asked
    for.

    All passes hold as many groups as the first, see `penstock.engine.packing.fitted`.
    """

    def __init__(
        self,
        flow: Op,
        fold: Fold,
        key: int,
        lengths: Lengths,
        sizer: Sizer | None,
        node: int,
        names: Sequence[str],
    ) -> None:
        super().__init__(flow, lengths, sizer, node)
        self.fold, self.key = fold, key
        inner = get_inner_fold(fold)
        self.row_length = (
            inner.length if isinstance(inner, ConcatSplit | FirstFit | BestFit) else None
        )
        self._groups = ranks(flow, names) if isinstance(fold, Apart) else None
        self._apart = 1 if self._groups is None else len(flow.leaves)
        self._plans = BoundedDict[int, Pass](2)  # threads look at a pass and the next
        if has_independent_rows(fold):
            self.together = WindowPlanner(fold, self.multiple, self._apart).together

    @property
    def size(self) -> int:
        return len(self._first.plan)

    @cached_property
    def _first(self) -> Pass:
        return self._planned(self._reference)

    @cached_property
    def _reference(self) -> int:
        """The pass that the others have as many groups as: the first that is told."""
        passes = passes_of(self.flow)
        return passes.first if passes else 0

    def planned(self, epoch: int) -> Pass:
        """The samples of a pass and the groups that they make."""
        if epoch == self._reference:
            return self._first
        if (found := self._plans.get(epoch)) is None:
            self._plans[epoch] = found = self._planned(epoch)
        return found

    def _planned(self, epoch: int) -> Pass:
        samples = cast(int, self.flow.size)
        check_position(epoch, samples)
        parts = [make_empty_rows(self.flow.depth)] if not samples else []
        with Progress("look up the documents to pack", samples, "documents") as progress:
            for start in range(0, samples, _LOCATED):
                places = np.arange(start, min(start + _LOCATED, samples))
                parts.append(self.flow.locate(places + epoch * samples))
                progress.more(len(places))
        rows = join_rows(parts)
        sizes = self.lengths.of(rows)
        groups, key = self._group(rows), self._key(epoch)
        if epoch == self._reference:
            return Pass(
                rows,
                sizes,
                plan_groups(self.fold, sizes, key, self.multiple, groups, self._apart),
                True,
            )
        first = self._first
        before = self._group(first.rows)
        if (
            np.array_equal(sizes, first.sizes)
            and np.array_equal(groups, before)
            and key == self._key(self._reference)
        ):
            return Pass(rows, sizes, first.plan, True)
        own = plan_groups(self.fold, sizes, key, self.multiple, groups, self._apart)
        if len(own) == len(first.plan):
            return Pass(rows, sizes, own, True)
        kinds, was = self._kinds(sizes, groups), self._kinds(first.sizes, before)
        return Pass(
            rows,
            sizes,
            adjust_group_count(own, kinds, first.plan, was, self.fold, self.multiple),
            False,
        )

    def _group(self, rows: ProvenanceRows) -> Ints:
        """The group of each document."""
        return np.zeros(len(rows), np.int64) if self._groups is None else self._groups[rows.leaf]

    def _kinds(self, sizes: Ints, groups: Ints) -> Ints:
        """A number for each document, the same for those that may take each other's place."""
        return sizes if self._groups is None else sizes * len(self._groups) + groups

    def _key(self, epoch: int) -> int:
        """The key of a pass: windows have an order of rows for each, other folds go by their carry
        alone."""
        return derive_pass_key(self.key, epoch) if self.together else self.key

    def under_way(self, position: int) -> bool:
        return self.together > 0 and position % self.size > 0

    @property
    def is_large(self) -> bool:
        """True if a pass has so many documents that plans estimate its rows from a sample."""
        return cast(int, self.flow.size) > _SAMPLED

    def sampled(self) -> ProvenanceRows:
        if not self.is_large:
            places = np.arange(self.size)
            return self.locate(places)
        places = np.arange(_SAMPLED)
        documents = self.flow.locate(places)
        sizes = self.lengths.of(documents)
        made = plan_groups(
            self.fold, sizes, self._key(0), self.multiple, self._group(documents), self._apart
        )
        bounds = made.bounds[: max(len(made) * 9 // 10, 1) + 1]
        pieces = slice(0, int(bounds[-1]))  # rows at the end would have gone on to be filled
        return self.parts(
            documents.take(made.item[pieces]), made.start[pieces], made.stop[pieces], bounds
        )

    def drawn(self, position: int) -> int:
        """Return the number of samples below that determine the groups before a position."""
        epoch, place = divmod(position, self.size or 1)
        samples = cast(int, self.flow.size)
        if not place:
            return epoch * samples
        made = self.planned(epoch)
        if not made.own:
            return (epoch + 1) * samples
        of = self._group(made.rows)
        return epoch * samples + count_settled_documents(
            self.fold, made.sizes, self.key, place, self.multiple, of, self._apart
        )

    def locate(self, positions: Ints) -> ProvenanceRows:
        epoch = positions // self.size
        parts = list[ProvenanceRows]()
        edges = np.flatnonzero(np.diff(epoch, prepend=epoch[0] - 1 if len(epoch) else 0))
        for a, b in pairwise([*edges.tolist(), len(epoch)]):
            made, place = self.planned(int(epoch[a])), positions[a:b] - epoch[a] * self.size
            found, bounds, pieces = made.plan, *made.plan.pieces(place)
            documents = made.rows.take(found.item[pieces])
            parts.append(self.parts(documents, found.start[pieces], found.stop[pieces], bounds))
        return join_rows(parts) if parts else make_empty_rows(self.depth)

    # ------------------------------------------------------------ questions

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        size, index = self.size, self.with_tokens(leaf, index)
        if not len(index) or (
            self.flow.alike and not len(self.flow.find(leaf, index, 0, self.flow.size or 0))
        ):
            return index[:0]

        def rows(epoch: int) -> Ints:
            """The rows of a pass that hold a part of these documents."""
            samples, _, made, _ = self.planned(epoch)
            mine = (samples.leaf == leaf) & np.isin(samples.index, index)
            pieces = np.flatnonzero(mine[made.item])
            return find_distinct_values(np.searchsorted(made.bounds, pieces, side="right") - 1)

        passes, epochs = passes_of(self), range(low // size, (high - 1) // size + 1)
        spend_search(len(epochs), max((self.flow.size or 1) // 16, 64))
        told = [epoch for epoch in epochs if passes is None or passes.told(epoch)]
        found = np.concatenate([index[:0], *(rows(epoch) + epoch * size for epoch in told)])
        return found[(found >= low) & (found < high)]

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        """A document counts in the row in which it begins, its tokens where they are."""
        size = self.size
        # Whole documents: every pass of the same documents has as many of each.
        whole = isinstance(get_inner_fold(self.fold), FirstFit | BestFit) and self.flow.alike
        if not whole and stop // size > start // size:
            tally.look_at_passes(stop // size - start // size, self.flow.size or 0)
        for epoch, first, last, passes in split_passes(start, stop, size, whole):
            rows, _, made, _ = (
                self.planned(epoch) if last - first < size or not whole else self._first
            )
            pieces = slice(int(made.bounds[first]), int(made.bounds[last]))
            leaf, taken = rows.leaf[made.item[pieces]], made.stop[pieces] - made.start[pieces]
            begun = leaf[made.start[pieces] == 0]
            tally.samples += np.bincount(begun, minlength=len(tally.samples)) * (times * passes)
            np.add.at(tally.tokens, leaf, taken * (times * passes))
