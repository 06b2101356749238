"""Rows of documents whose lengths are known, whoever decides which documents they hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from ...types import Flags, Fold, Ints, Sizer, Source
from ..base.fallback import log_fallback
from ..base.rows import HOLE, ROW_LENGTH, ProvenanceRows
from ..base.spans import DocumentSpans, SpanSource, join_spans
from ..packing import Apart, GroupLayout, Missing, PieceColumns, PlannedPieces
from ..streams.function_call import to_list
from .batch import BatchOp
from .mask import read_similar
from .op import UNKNOWN, Before, Groups, Op, Scope, iter_reads
from .tally import Tally
from .tokens import Lengths

_FEW = 16  # documents of each source
_CHUNK = 1 << 18  # documents looked up together


class PackedOp(Groups):
    """Groups of parts of documents. `node` numbers it among the ops that leave marks.

    Documents have the sizes `lengths`; without padding and truncation they have `unpadded`.
    """

    def __init__(
        self,
        input: Op,
        fold: Fold,
        lengths: Lengths,
        sizer: Sizer | None,
        node: int,
        names: Sequence[str],
        left_out: Sequence[Flags | None],
    ) -> None:
        super().__init__(input)
        self.fold = fold
        self._groups = ranks(input, names) if isinstance(fold, Apart) else None
        self.group_count = 1 if self._groups is None else len(input.leaves)
        self.lengths, self.node = lengths.count_by(sizer).without(left_out), node
        self.unpadded = lengths.count_by(sizer and replace(sizer, multiple=1)).without(left_out)
        self.multiple = sizer.multiple if sizer else 1

    def groups_of(self, documents: ProvenanceRows) -> Ints | None:
        """Return the group of each document, where they are packed apart."""
        return None if self._groups is None else self._groups[documents.leaf]

    @property
    def is_large(self) -> bool:
        """True if a pass has so many documents that plans estimate its rows from a sample."""
        return False

    def drawn(self, position: int) -> int:
        """Return the number of samples below that determine the groups before a position."""
        raise NotImplementedError

    def find_first_held(self, position: int) -> int:
        """Return the first sample below that a group from a position on may hold."""
        raise NotImplementedError

    row_length: int | None = None
    """The tokens of a row; None of batches."""

    truncates: bool = False
    """True if documents longer than a row lose their ends."""

    crops: bool = False
    """True if documents lose their ends so that every row is full."""

    together: int = 0
    """How many rows are packed at a time, the last of a pass with what is left; 0 where no row
    depends on what comes later.
    """

    def sampled(self) -> ProvenanceRows:
        """A window of its rows, the first of the first pass, without packing the whole."""
        raise NotImplementedError

    def parts(
        self, documents: ProvenanceRows, start: Ints, stop: Ints, bounds: Ints
    ) -> ProvenanceRows:
        """Groups of documents, each from token `start` to `stop`."""
        documents.part = documents.part + start
        documents.marks = {**documents.marks, self.node: start, ~self.node: stop}
        return documents.grouped(bounds)

    def measure_crops(self, rows: ProvenanceRows) -> Ints:
        """Return the tokens that rows of a pack that truncates cut off each of their documents."""
        whole, stop = self.unpadded.of(rows), rows.marks.get(~self.node, np.zeros_like(rows.leaf))
        lost = whole - stop
        if not self.crops:
            lost[stop != self.row_length] = 0  # other pieces continue in the next row
        return np.where(stop > 0, np.maximum(lost, 0), 0)

    def values(self, rows: ProvenanceRows) -> Sequence[Any]:
        inner = rows.ungrouped()
        first = inner.firsts()[:-1]
        starts, stops = rows.marks[self.node][first], rows.marks[~self.node][first]
        lengths = rows.marks[ROW_LENGTH][first] if ROW_LENGTH in rows.marks else None
        columns = PieceColumns(self._documents(inner, rows.levels[0]), starts, stops, lengths)
        return [PlannedPieces(columns, a, b) for a, b in pairwise(rows.levels[0].tolist())]

    def _documents(self, rows: ProvenanceRows, groups: Ints) -> Sequence[Any]:
        """The documents of groups; one that cannot be read is shown by the first of its group that
        can."""
        if HOLE not in rows.marks:
            try:
                found = self._spans(rows)
            except Exception as error:
                read = to_list(self.input.values(rows))  # finds out which document it was
                log_fallback("pack", error)
                return read
            return to_list(self.input.values(rows)) if found is None else found
        gone = rows.marks[HOLE][rows.firsts()[:-1]] > 0
        there = np.flatnonzero(~gone)
        found = dict(
            zip(
                there.tolist(),
                self.input.values(rows.take(there)) if len(there) else [],
                strict=True,
            )
        )
        values = list[Any]()
        for a, b in pairwise(groups.tolist()):
            shown = next((found[i] for i in range(a, b) if i in found), None)
            for i in range(a, b):
                if i not in found and shown is None:
                    shown = read_similar(self.input, rows.slice(i, i + 1), 1)
                values.append(found[i] if i in found else Missing(shown))
        return values

    @cached_property
    def _stored(self) -> dict[int, Source | None]:
        """The sources of the documents of each leaf: an input packed by known lengths only reads
        them.
        """
        return {int(op.leaf or 0): op.source for op in iter_reads(self.input)}

    def _spans(self, rows: ProvenanceRows) -> DocumentSpans | None:
        """Return the places of documents; None if they do not lie end to end."""
        if rows.levels or not len(rows):
            return None
        if len(rows) < _FEW * len(self._stored):
            return None  # by the source, that takes longer than reading them
        order = np.argsort(rows.leaf, kind="stable")
        found = list[DocumentSpans]()
        for some in np.split(order, np.flatnonzero(np.diff(rows.leaf[order])) + 1):
            source = self._stored[int(rows.leaf[some[0]])]
            spans = source.spans(rows.index[some]) if isinstance(source, SpanSource) else None
            if spans is None:
                return None
            found.append(spans)
        return join_spans(found, order)

    # ------------------------------------------------------------ questions

    def with_tokens(self, leaf: int, index: Ints) -> Ints:
        """Leave out documents without tokens: no row holds them."""
        if leaf not in self.leaves:
            return index
        return index[np.asarray(self.lengths.by_leaf[leaf][index]) > 0]

    @cached_property
    def empty(self) -> Lengths | None:
        """Lengths of 1 for each document without tokens, which is in no row."""
        if all(map(self.lengths.none_empty, self.leaves)):
            return None
        return self.lengths.derive("empty", lambda lengths: (lengths == 0).astype(np.int64))

    def count_distinct(self, out: Ints) -> None:
        self.input.count_distinct(out)
        below: list[Op] = [] if self.empty is None else [self.input]
        while below:
            step = below.pop()
            if step.leaf is None or step.size is None:
                below += step.inputs
            else:
                out[step.leaf] -= self._count_empty(step, step.leaf, step.size, int(out[step.leaf]))

    def _count_empty(self, step: Op, leaf: int, size: int, different: int) -> int:
        """Return the number of different documents without tokens in a pass of one source."""
        assert self.empty is not None
        if size == different:
            counts = np.zeros(leaf + 1, np.int64)
            step.tokens(size, self.empty, counts)
            return int(counts[leaf])
        lengths = self.empty.by_leaf[leaf]
        is_given = np.zeros(len(lengths), np.bool_)
        for start in range(0, size, _CHUNK):
            rows = step.locate(np.arange(start, min(start + _CHUNK, size)))
            is_given[rows.index] = True
        return int(lengths[np.flatnonzero(is_given)].sum())

    def nth(self, leaf: Ints, number: Ints, last: bool = False) -> Ints:
        return np.full(len(leaf), UNKNOWN)

    def rows_together(self, row: int) -> tuple[int, ProvenanceRows, GroupLayout]:
        """Return the rows that are packed together with one: the first of them, their documents in
        the order of the input, and where these lie.
        """
        raise NotImplementedError

    def find_first(self, leaves: int, leaf: int, number: int, position: int) -> int | None:
        first, documents, layout = self.rows_together(position)
        tally = Tally(leaves, [self.node])
        self.count(tally, 0, first)
        is_asked = documents.leaf[layout.item] == leaf
        begun = np.sort(layout.item[is_asked & (layout.start == 0)])
        before = max(number - int(tally.samples[leaf]), 0)
        if before >= len(begun):
            return None
        pieces = np.flatnonzero(is_asked & (layout.item >= begun[before]))
        return first + layout.find_group(int(pieces[0]))

    def find_row(self, document: int) -> int | None:
        """Return the first row of the first pass with a part of a document, or of a later one."""
        raise NotImplementedError

    def before(self, position: int, early: bool = False) -> Iterator[Before]:
        begins = position == (0 if self.passes is None else self.passes.at(position).start)
        drawn = self.drawn(position)
        yield Before(self.input, drawn, not begins, pending=drawn - self.find_first_held(position))

    def scopes(
        self, above: int = 0, packed: bool = False, among: Op | None = None
    ) -> Iterator[Scope]:
        return self.input.scopes(above + 1, True)

    @property
    def has_steady_counts(self) -> bool:
        return False

    @property
    def repeats(self) -> bool:
        return False


def ranks(input: Op, names: Sequence[str]) -> Ints:
    """The place of each leaf of an input among the others by name, so that no order in which they
    were written counts."""
    out = np.zeros(len(names), np.int64)
    out[sorted(input.leaves, key=names.__getitem__)] = np.arange(len(input.leaves))
    return out


def packs_of(op: Op) -> list[PackedOp]:
    """Return the packing ops of a tree, the outermost first."""
    below = [pack for each in op.inputs for pack in packs_of(each)]
    return [op, *below] if isinstance(op, PackedOp) else below


def top_pack(op: Op) -> PackedOp | None:
    """Return the outermost packing op above all mixtures."""
    while op.only_input is not None and not isinstance(op, PackedOp):
        op = op.only_input
    return op if isinstance(op, PackedOp) else None


def packed_before(op: Op, position: int) -> range:
    """The positions before one of whose rows an earlier end of the pass would make others, and
    perhaps some before
    them: the last window takes what fills no other.
    """
    if isinstance(op, PackedOp):
        if not op.together or op.passes is None or not position:
            return range(position, position)
        start = op.passes.at(position - 1).start
        window = max((position - 1 - start) // op.together - 1, 0)
        return range(start + window * op.together, position)
    below = op.before(position) if op.only_input is not None else ()
    many = max(
        (each.position - packed_before(each.op, each.position).start for each in below), default=0
    )
    if many and isinstance(op, BatchOp):
        many = -(-many // op.n) + 1
    return range(max(position - many, 0), position)


def find_window(root: Op, position: int) -> list[int]:
    """Return the first row and the number of rows of the window of whole documents that has the
    last row before a position; nothing if there is none.
    """
    if isinstance(root, PackedOp):
        if not root.together or not position:
            return []
        first, _, layout = root.rows_together(position - 1)
        return [first, len(layout)]
    below = [] if root.only_input is None else [*root.before(position)]
    return [number for each in below for number in find_window(each.op, each.position)]


def replanned_passes(rows: Op, position: int) -> tuple[int, ...]:
    """Return the passes from which on planned rows lack samples that are excluded at a position."""
    op = rows
    while op.only_input is not None:
        if isinstance(op, PackedOp):
            if op.passes is None:
                break
            found = op.passes.at(position)
            return (found.epoch,) if found.start == position else (found.epoch, found.epoch + 1)
        below = next(iter(op.before(position)), None)
        if below is None:
            break
        op, position = below.op, below.position
    return ()
