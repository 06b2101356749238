"""Packs whose lengths are known: groups that a fold decides ahead of time, pass by pass."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...arguments import check_position
from ...types import Flags, Fold, Ints, Sizer
from ..base.bounded_dict import BoundedDict
from ..base.integers import find_distinct_values
from ..base.passes import Passes
from ..base.progress import Progress
from ..base.random import derive_pass_key
from ..base.rows import ProvenanceRows, join_rows, make_empty_rows
from ..packing import (
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
from .op import UNKNOWN, Op
from .pack_windows import WindowPackOp
from .packed import PackedOp
from .tally import Tally, spend_search
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


class PackOp(PackedOp):
    """Groups that a fold decides from lengths alone; each pass is planned when it is first asked
    for.

    All passes hold as many groups as the first pass, or as the first one after a change of the run
    (`replanned`). `penstock.engine.packing.adjust_group_count` adds or removes groups of the others.
    """

    def __init__(
        self,
        input: Op,
        fold: Fold,
        key: int,
        lengths: Lengths,
        sizer: Sizer | None,
        node: int,
        names: Sequence[str],
        left_out: Sequence[Flags | None],
        replanned: Sequence[int] = (),
    ) -> None:
        super().__init__(input, fold, lengths, sizer, node, names, left_out)
        self.key, self._replanned = key, replanned
        self._lengths, self._sizer, self._names, self._left_out = lengths, sizer, names, left_out
        inner = get_inner_fold(fold)
        self.row_length = (
            inner.length if isinstance(inner, ConcatSplit | FirstFit | BestFit) else None
        )
        self.crops = isinstance(inner, BestFit) and inner.crops
        truncates = isinstance(inner, FirstFit | BestFit) and inner.long == "truncate"
        self.truncates = truncates or self.crops
        self._plans = BoundedDict[int, Pass](2)  # threads look at a pass and the next
        self._first = BoundedDict[int, Pass](2)
        if has_independent_rows(fold):
            self.together = WindowPlanner(fold, self.multiple, self.group_count).together

    @property
    def passes(self) -> Passes:
        return self._passes

    @cached_property
    def _passes(self) -> Passes:
        epochs = sorted({*self._below.epochs, *self._replanned})
        return Passes.of((epoch, self._count_rows(epoch)) for epoch in epochs)

    def _count_rows(self, epoch: int) -> int:
        if epoch == 0 and (first := self._first_pass) is not None:
            assert first.size is not None
            return first.size
        return len(self._planned_alone(epoch).plan)

    @cached_property
    def _first_pass(self) -> WindowPackOp | None:
        """The rows of a large first pass by sums of tokens, without a list of its documents."""
        if not (self.is_large and has_independent_rows(self.fold)):
            return None
        given = self._lengths, self._sizer, self.node, self._names, self._left_out
        return WindowPackOp(self.input, self.fold, self.key, *given)

    @property
    def size(self) -> int:
        return self.passes.sizes[0]

    @cached_property
    def _below(self) -> Passes:
        passes = self.input.passes
        assert passes is not None, "only passes that end are planned"
        return passes

    def planned(self, epoch: int) -> Pass:
        """The samples of a pass and the groups that they make."""
        if (found := self._plans.get(epoch)) is None:
            self._plans[epoch] = found = self._planned(epoch)
        return found

    def _planned_alone(self, epoch: int) -> Pass:
        """Plan a pass that decides how many groups it has; later ones have as many."""
        if (found := self._first.get(epoch)) is None:
            rows, sizes = self._documents_of(epoch)
            plan = plan_groups(
                self.fold,
                sizes,
                self._key(epoch),
                self.multiple,
                self.groups_of(rows),
                self.group_count,
            )
            self._first[epoch] = found = Pass(rows, sizes, plan, True)
        return found

    def _documents_of(self, epoch: int) -> tuple[ProvenanceRows, Ints]:
        """Return the samples of a pass, and their tokens."""
        samples, first = self._below.size(epoch), self._below.start(epoch)
        check_position(epoch, samples)
        parts = [make_empty_rows(self.input.depth)] if not samples else []
        with Progress("look up the documents to pack", samples, "documents") as progress:
            for start in range(0, samples, _LOCATED):
                places = np.arange(start, min(start + _LOCATED, samples))
                parts.append(self.input.locate(places + first))
                progress.more(len(places))
        rows = join_rows(parts)
        return rows, self.lengths.of(rows)

    def _planned(self, epoch: int) -> Pass:
        replanned = sorted({*self._below.epochs, *self._replanned})
        reference = replanned[bisect_right(replanned, epoch) - 1]
        first = self._planned_alone(reference)
        if epoch == reference:
            return first
        rows, sizes = self._documents_of(epoch)
        groups, key = self.groups_of(rows), self._key(epoch)
        kinds, was = (
            self._kinds(sizes, groups),
            self._kinds(first.sizes, self.groups_of(first.rows)),
        )
        if np.array_equal(kinds, was) and key == self._key(reference):
            return Pass(rows, sizes, first.plan, True)
        own = plan_groups(self.fold, sizes, key, self.multiple, groups, self.group_count)
        if len(own) == len(first.plan):
            return Pass(rows, sizes, own, True)
        return Pass(
            rows,
            sizes,
            adjust_group_count(own, kinds, first.plan, was, self.fold, self.multiple),
            False,
        )

    def _kinds(self, sizes: Ints, groups: Ints | None) -> Ints:
        """A number for each document, the same for those that may take each other's place."""
        return sizes if groups is None else sizes * self.group_count + groups

    def _key(self, epoch: int) -> int:
        """The key of a pass: windows have an order of rows for each, other folds go by their carry
        alone."""
        return derive_pass_key(self.key, epoch) if self.together else self.key

    @property
    def is_large(self) -> bool:
        return self._below.sizes[0] > _SAMPLED

    def sampled(self) -> ProvenanceRows:
        if not self.is_large:
            places = np.arange(self.size)
            return self.locate(places)
        places = np.arange(_SAMPLED)
        documents = self.input.locate(places)
        sizes = self.lengths.of(documents)
        made = plan_groups(
            self.fold,
            sizes,
            self._key(0),
            self.multiple,
            self.groups_of(documents),
            self.group_count,
        )
        bounds = made.bounds[: max(len(made) * 9 // 10, 1) + 1]
        pieces = slice(0, int(bounds[-1]))  # rows at the end would have gone on to be filled
        return self.parts(
            documents.take(made.item[pieces]), made.start[pieces], made.stop[pieces], bounds
        )

    def drawn(self, position: int) -> int:
        """Return the number of samples below that determine the groups before a position."""
        found = self.passes.at(position)
        first, place = self._below.start(found.epoch), position - found.start
        if not place:
            return first
        if found.epoch == 0 and self._first_pass is not None:
            return self._first_pass.drawn(position)
        made = self.planned(found.epoch)
        if not made.own:
            return first + self._below.size(found.epoch)
        of = self.groups_of(made.rows)
        return first + count_settled_documents(
            self.fold, made.sizes, self.key, place, self.multiple, of, self.group_count
        )

    def find_first_held(self, position: int) -> int:
        return self._below.start(self.passes.at(position).epoch)

    def locate(self, positions: Ints) -> ProvenanceRows:
        epoch, place = self.passes.split(positions)
        parts = list[ProvenanceRows]()
        edges = np.flatnonzero(np.diff(epoch, prepend=epoch[0] - 1 if len(epoch) else 0))
        for a, b in pairwise([*edges.tolist(), len(epoch)]):
            if epoch[a] == 0 and self._first_pass is not None:
                parts.append(self._first_pass.locate(place[a:b]))
                continue
            made = self.planned(int(epoch[a]))
            found, bounds, pieces = made.plan, *made.plan.pieces(place[a:b])
            documents = made.rows.take(found.item[pieces])
            parts.append(self.parts(documents, found.start[pieces], found.stop[pieces], bounds))
        return join_rows(parts) if parts else make_empty_rows(self.depth)

    # ------------------------------------------------------------ questions

    def nth(self, leaf: Ints, number: Ints, last: bool = False) -> Ints:
        if self._first_pass is None:
            return super().nth(leaf, number, last)
        found = self._first_pass.nth(leaf, number, last)
        return np.where(found < self.passes.size(0), found, UNKNOWN)

    def rows_together(self, row: int) -> tuple[int, ProvenanceRows, GroupLayout]:
        found = self.passes.at(row)
        if found.epoch == 0 and self._first_pass is not None:
            return self._first_pass.rows_together(row)
        made = self.planned(found.epoch)
        return found.start, made.rows, made.plan

    def find_row(self, document: int) -> int | None:
        if self._first_pass is not None:
            return self._first_pass.find_row(document)
        plan = self.planned(0).plan
        pieces = np.flatnonzero(plan.item >= document)
        return plan.find_group(int(pieces[0])) if len(pieces) else None

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        passes, index = self.passes, self.with_tokens(leaf, index)
        if not len(index) or (
            self.input.repeats and not len(self.input.find(leaf, index, 0, self.input.size or 0))
        ):
            return index[:0]

        def rows(epoch: int) -> Ints:
            """The rows of a pass that hold a part of these documents."""
            if epoch == 0 and self._first_pass is not None:
                return self._first_pass.find(leaf, index, 0, passes.size(0))
            samples, _, made, _ = self.planned(epoch)
            mine = (samples.leaf == leaf) & np.isin(samples.index, index)
            pieces = np.flatnonzero(mine[made.item])
            return find_distinct_values(np.searchsorted(made.bounds, pieces, side="right") - 1)

        epochs = range(passes.at(low).epoch, passes.at(high - 1).epoch + 1)
        spend_search(len(epochs), max((self.input.size or 1) // 16, 64))
        found = np.concatenate(
            [index[:0], *(rows(epoch) + passes.start(epoch) for epoch in epochs)]
        )
        return found[(found >= low) & (found < high)]

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        """A document counts in the row in which it begins, its tokens where they are."""
        passes = self.passes

        def part(a: int, b: int, epoch: int, times: int = times) -> None:
            if epoch == 0 and self._first_pass is not None:
                return self._first_pass.count(tally, a, b, times)
            rows, _, made, _ = self.planned(epoch)
            pieces = slice(int(made.bounds[a]), int(made.bounds[b]))
            leaf, taken = rows.leaf[made.item[pieces]], made.stop[pieces] - made.start[pieces]
            begun = leaf[made.start[pieces] == 0]
            tally.samples += np.bincount(begun, minlength=len(tally.samples)) * times
            np.add.at(tally.tokens, leaf, taken * times)

        first, last = passes.at(start), passes.at(stop)
        if first.epoch == last.epoch:
            return part(start - first.start, stop - first.start, first.epoch)
        part(start - first.start, first.size, first.epoch)
        between = range(first.epoch + 1, last.epoch)
        whole = isinstance(get_inner_fold(self.fold), FirstFit | BestFit) and not self.crops
        if whole and self.input.repeats:
            # documents stay whole: every pass has as many of each
            part(0, passes.sizes[0], 0, times * len(between))
        else:
            tally.look_at_passes(len(between) + 1, self.input.size or 0)
            for epoch in between:
                part(0, passes.size(epoch), epoch)
        if stop > last.start:
            part(0, stop - last.start, last.epoch)
