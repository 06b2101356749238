"""Questions that every node of a compiled tree answers.

An op answers about positions: which samples lie there (`locate`, integers only, nothing is read),
what they are (`values`), where a sample comes up (`find`), how many a stretch holds (`count`), how
far its inputs were drawn (`before`). `UnaryOp` passes every question on: an op says only what it
changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...types import Ints, Json, Path, Source
from ..base.passes import Passes
from ..base.rows import ProvenanceRows
from ..streams.function_call import FunctionCall
from ..streams.shared_reader import PassCounts
from ..streams.stream import Stream
from ..streams.stream_opener import StreamOpener
from .seek import At, holding
from .tally import Tally
from .tokens import Lengths, SummedStep, Sums

Scope: TypeAlias = "tuple[int, Op | None, int]"
"""A leaf, what a bad sample of it is exchanged in, and how many levels of groups stand above."""

UNKNOWN = -2
"""A position that arithmetic does not tell."""


class Before(NamedTuple):
    """The progress of an input.

    `early`: later positions may still deliver drawn samples. `first`: no earlier one ever does.
    `replays`: a later pass may deliver the same positions again. `again`: an earlier pass did.
    `pending`: later positions may still deliver so many of the last drawn samples.
    """

    op: Op
    position: int
    early: bool
    first: int = 0
    replays: bool = False
    again: bool = False
    pending: int = 0


class Op(SummedStep):
    """A node of a compiled tree. `size` is the length of a pass, None where it never ends; `depth`
    how many levels of groups its items have; `inputs` what lies below.
    """

    inputs: tuple[Op, ...] = ()
    depth: int = 0
    indexed: bool = True
    """True if its n-th item can be computed without earlier items; else it can only be
    streamed."""
    source: Source | None = None  # what the values are read from, where that is all
    only_input: Op | None = None
    """The input of an op over one."""
    one_pass: bool = False
    """True if a pass of it takes one pass of its input."""
    keeps_order: bool = False
    """True if its items are in the order of its only input, perhaps with gaps or copies."""

    @property
    def size(self) -> int | None:
        raise NotImplementedError

    @property
    def passes(self) -> Passes | None:
        """The passes of an order that ends; None for one that does not."""
        return None if self.size is None else Passes.uniform(self.size)

    @property
    def tail(self) -> bool:
        """Return whether batches are the last step that forms groups, so that their size is no part
        of the run.
        """
        return False

    def locate(self, positions: Ints) -> ProvenanceRows:
        """The samples behind positions."""
        raise NotImplementedError

    def values(self, rows: ProvenanceRows) -> Sequence[Any]:
        """The items that rows are: a list, or what is `Columnar` for the step above."""
        raise NotImplementedError

    def stream(self, opening: StreamOpener, passes: PassCounts) -> Stream:
        """Its items one after the other, as one lane or rank has them."""
        return opening.open_positions(self, passes)

    # ------------------------------------------------------------ backwards

    def find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        """The positions in `[low, high)` whose items hold any of these samples of a leaf, sorted,
        each once. In passes that are not told there are none.
        """
        if high <= low or not len(index) or self.size == 0:
            return np.zeros(0, np.int64)
        return self._find(leaf, index, low, high)

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        raise NotImplementedError

    def nth(self, leaf: Ints, number: Ints, last: bool = False) -> Ints:
        """Return the first positions with samples of leaves of these numbers or later ones.

        A position is `UNKNOWN` where arithmetic does not find it. `last`: the last positions with a
        part of a sample of these numbers or earlier ones.
        """
        return number if self.leaf is not None else np.full(len(leaf), UNKNOWN)

    def find_first(self, leaves: int, leaf: int, number: int, position: int) -> int | None:
        """Return the first position with a sample of a leaf of this number or a later one, given
        a position where one is that may come after it. `leaves` is the number of all leaves.

        Rows that are packed together hold their documents in no order. None: not known here.
        """
        return None

    # ------------------------------------------------------------ sums

    def count(self, tally: Tally, start: int, stop: int, times: int = 1) -> None:
        """Add to a tally what lies at positions `[start, stop)`, so many times."""
        if stop <= start:
            return
        if tally.by_document and self.leaf is not None:
            tally.documents(self, start, stop, times)
        else:
            self._count(tally, start, stop, times)

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        tally.one_by_one(self, start, stop, times)

    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        """Add, by leaf, the tokens of everything before a position, so many times."""
        lengths.sums(self).before(position, out, times)

    def holding(self, token: int, lengths: Lengths) -> At:
        """A position at which a token begins, or one not long before it, and the tokens before that
        position."""
        return holding(self, token, lengths)

    def summed(self, lengths: Lengths) -> Sums:
        """Sums of lengths over its passes, where no other op tells them."""
        return Sums(self, lengths)

    def known(self) -> tuple[object, Json] | None:
        """The source whose samples it gives in another order, and which that is; None for anything
        else."""
        return None

    def count_distinct(self, out: Ints) -> None:
        """Note how many different samples of each leaf there are to draw from: its length, or what
        slices leave."""
        for each in self.inputs:
            each.count_distinct(out)

    # ------------------------------------------------------------ how far

    def before(self, position: int, early: bool = False) -> Iterator[Before]:
        """Return the progress of the inputs once everything before a position was delivered; none
        for inputs in another order.
        """
        raise NotImplementedError

    def find_progress(self, position: int, early: bool = False) -> tuple[int, int] | None:
        """Return, for a mixture, the pass and the place up to which everything before a position
        was drawn.
        """
        return None

    @property
    def mixture(self) -> Path | None:
        """The place of the mixture that this is, or that these steps lie on."""
        return None

    def reached(self, position: int) -> int | None:
        """Return the position of the mixture once everything before a position was delivered; None
        if it is unknown.
        """
        for mix, (epoch, place) in _iter_progress(Before(self, position, False)):
            if mix.mixture == self.mixture:
                return (0 if mix.passes is None else mix.passes.start(epoch)) + place
        return None

    def scopes(
        self, above: int = 0, packed: bool = False, among: Op | None = None
    ) -> Iterator[Scope]:
        """Return the positions of the leaves, for replacing bad samples.

        Each has the leaf, the op to draw a replacement from (`among`, the top of a line of steps
        that keep single samples; None in a pack, which leaves a hole), and the number of group
        levels above.
        """
        for each in self.inputs:
            yield from each.scopes(above, packed)

    @property
    def ending(self) -> Op:
        """The part of a line of steps that has passes, where the whole is repeated for ever."""
        return self

    # ------------------------------------------------------------ what it is

    @property
    def function(self) -> FunctionCall | None:
        """The function of a function step; None for any other op."""
        return None

    @property
    def mixed(self) -> bool:
        """True if several sources are drawn from in turn somewhere in it."""
        return any(each.mixed for each in self.inputs)

    @property
    def leaf(self) -> int | None:
        """The only leaf of an input of single samples; None if there are several, or groups."""
        return None

    @property
    def has_steady_counts(self) -> bool:
        """True if the same range of any two passes holds as many samples of each leaf."""
        return False

    @property
    def repeats(self) -> bool:
        """True if every pass gives the same samples, in any order."""
        return False

    @property
    def period(self) -> int:
        """The positions after which an input of one leaf gives the same samples again, in whatever
        order."""
        assert self.size is not None
        return self.size

    def excluded(self) -> Iterator[tuple[int, Ints]]:
        """Yield leaves and indices of their samples that are excluded from some position on."""
        for each in self.inputs:
            yield from each.excluded()

    @property
    def leaves(self) -> tuple[int, ...]:
        """The numbers of all leaves."""
        return tuple(leaf for each in self.inputs for leaf in each.leaves)


def find_progress_below(op: Op, position: int) -> dict[int, tuple[int, int]]:
    """Return the passes, and places in them, of the mixtures in an op once everything before a
    position was delivered.
    """
    return {id(mix): place for mix, place in _iter_progress(Before(op, position, False))}


def _iter_progress(given: Before, top: bool = True) -> Iterator[tuple[Op, tuple[int, int]]]:
    op = given.op
    if (place := op.find_progress(given.position, given.early)) is not None:
        yield op, place
    for below in op.before(given.position, given.early):
        if not below.again and (top or not below.replays):
            yield from _iter_progress(below, top and op.one_pass)


class UnaryOp(Op):
    """An op over one other, which it passes every question on to."""

    one_pass = True

    def __init__(self, input: Op) -> None:
        self.input = self.only_input = input
        self.inputs, self.depth, self.indexed = (input,), input.depth, input.indexed

    def scopes(
        self, above: int = 0, packed: bool = False, among: Op | None = None
    ) -> Iterator[Scope]:
        return self.input.scopes(above, packed, among or self)

    @property
    def ending(self) -> Op:
        return self.input.ending if self.size is None else self

    @property
    def mixture(self) -> Path | None:
        return self.input.mixture

    @property
    def size(self) -> int | None:
        return self.input.size

    def locate(self, positions: Ints) -> ProvenanceRows:
        return self.input.locate(positions)

    def values(self, rows: ProvenanceRows) -> Sequence[Any]:
        return self.input.values(rows)

    def _find(self, leaf: int, index: Ints, low: int, high: int) -> Ints:
        return self.input.find(leaf, index, low, high)

    def nth(self, leaf: Ints, number: Ints, last: bool = False) -> Ints:
        return number if self.leaf is not None else self.input.nth(leaf, number, last)

    def _count(self, tally: Tally, start: int, stop: int, times: int) -> None:
        self.input.count(tally, start, stop, times)

    def before(self, position: int, early: bool = False) -> Iterator[Before]:
        yield Before(self.input, position, early)

    @property
    def leaf(self) -> int | None:
        return self.input.leaf

    @property
    def has_steady_counts(self) -> bool:
        return self.size is not None and self.input.has_steady_counts

    @property
    def repeats(self) -> bool:
        return self.input.repeats

    @property
    def period(self) -> int:
        return self.input.period


class Groups(UnaryOp):
    """An op whose items are groups of those below."""

    def __init__(self, input: Op) -> None:
        super().__init__(input)
        self.depth = input.depth + 1

    @property
    def leaf(self) -> int | None:
        return None


def iter_reads(op: Op) -> Iterator[Op]:
    """Yield the sources of an op."""
    if not op.inputs:
        yield op
    for each in op.inputs:
        yield from iter_reads(each)


def last_samples(
    root: Op, position: int, ends: Set[int] | None = None
) -> dict[int, list[list[int]]]:
    """Return the last sample before a position by leaf.

    Leaves that an op orders together share one. Leaves at the end of a pass have the number of the
    next pass, since that may have another order; those in `ends` have the last of that pass. Other
    leaves are left out then.

    >>> from penstock import from_sequence, mix
    >>> ds = mix({"a": from_sequence("xyz"), "b": from_sequence("uvw")}, {"a": 2, "b": 1})
    >>> last_samples(ds.compiled.op, 4)
    {0: [[1]], 1: [[0], [0], [0]]}
    """
    found, todo = dict[int, list[list[int]]](), [Before(root, position, ends is not None)]
    while todo:
        op, position, early, *_ = todo.pop()
        below = [] if op.leaf is not None else [*op.before(position, early)]
        todo += below
        passes = op.passes
        if below or passes is None or not position or (ends and ends.isdisjoint(op.leaves)):
            continue
        current = passes.at(position)
        one = [[current.epoch]]
        if ends is not None or current.start != position:
            rows = op.locate(np.asarray([position - 1]))
            place = np.searchsorted(sorted(op.leaves), rows.leaf).tolist()
            one = [rows.epoch.tolist(), rows.index.tolist(), place]
        found |= dict.fromkeys(op.leaves, one)
    return dict(sorted(found.items()))
