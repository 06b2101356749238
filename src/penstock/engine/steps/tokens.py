"""Tokens before a position: sums of lengths, by leaf.

Most ops tell them by arithmetic from those below. Where an order puts samples of a pass anywhere,
the lengths of a pass are added up once, and the sums of some are kept; where passes differ too,
those of all passes before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ...types import MAX_POSITION, Flags, Ints, Json, Sizer, Sizes
from ..base.bounded_dict import BoundedDict
from ..base.rows import ProvenanceRows, compute_bounds
from ..base.seams import world
from ..base.sizes import DerivedLengths, KeptLengths, iter_chunks
from ..grouping.concat_split import make_negative_size_error
from ..streams.stream_opener import OpenableStep
from .block_totals import BlockSums, BlockTotals, in_order, load_or_make_totals
from .tally import require_countable_passes

_BLOCK = 1024  # samples of a leaf, as they lie, of which a sum is kept
_GRAIN = 64  # positions, of one leaf, of which a sum is kept
_CHUNK = 1 << 18  # positions looked up at a time
_BLOCKS_IN_MEMORY = 1 << 18  # blocks of all passes with sums in memory; two passes at least
_PASSES_IN_MEMORY = 16
_SMALL = 1 << 13  # positions times leaves of a pass whose sums are kept by position
_SMALL_PASSES_IN_MEMORY = 4
_ENDLESS = 1 << 20  # positions that count as a pass of what has none


class At(NamedTuple):
    """A document, and the token at which it begins."""

    document: int
    token: int


class SummedStep(OpenableStep):
    """A compiled step whose token lengths can be added up."""

    @property
    def repeats(self) -> bool:
        """True if every pass gives the same samples, in any order."""
        raise NotImplementedError

    @property
    def leaves(self) -> tuple[int, ...]:
        """The numbers of all leaves."""
        raise NotImplementedError

    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        """Add, by leaf, the tokens of everything before a position, some times."""
        raise NotImplementedError

    def holding(self, token: int, lengths: Lengths) -> At:
        """Return a document that begins at a token or shortly before it."""
        raise NotImplementedError

    def summed(self, lengths: Lengths) -> Sums:
        """Return the sums of lengths over passes."""
        raise NotImplementedError

    def known(self) -> tuple[object, Json] | None:
        """Return the source that this step reorders, and the order; None for any other step."""
        raise NotImplementedError


class Lengths:
    """The length of every sample of every leaf, and the sums made of them.

    `described` tells lengths that are derived from those of the sources from these.
    """

    def __init__(self, by_leaf: Sequence[Sizes], described: str = "") -> None:
        self.by_leaf, self.described = tuple(by_leaf), described
        self.extra = 0  # tokens that every sample has in any case
        self.least = dict[int, int]()  # the least length of a leaf, where it is known
        self._derived = dict[str, Lengths]()
        self.means = dict[int, float]()  # of ops that were searched in
        self._ends = dict[int, Ints]()
        self._sums = dict[int, Sums]()

    def of(self, rows: ProvenanceRows) -> Ints:
        """Of the samples that rows are."""
        out = np.empty(len(rows.leaf), np.int64)
        if len(out) and (rows.leaf == rows.leaf[0]).all():
            return self.by_leaf[int(rows.leaf[0])][rows.index].astype(np.int64)
        for leaf in np.flatnonzero(np.bincount(rows.leaf)).tolist():
            where = rows.leaf == leaf
            out[where] = self.by_leaf[leaf][rows.index[where]]
        return out

    def total(self, leaf: int) -> int:
        """The tokens of a leaf."""
        return int(self._blocks(leaf)[-1])

    def until(self, leaf: int, place: int) -> int:
        """Return the tokens before a sample of a leaf."""
        if not place:
            return 0
        block = place // _BLOCK
        return int(self._blocks(leaf)[block]) + int(
            self.by_leaf[leaf][block * _BLOCK : place].sum(dtype=np.int64)
        )

    def holding(self, leaf: int, token: int) -> tuple[int, int]:
        """The sample of a leaf that holds one of its tokens, and the tokens before it."""
        blocks = self._blocks(leaf)
        block = max(int(np.searchsorted(blocks, token, side="right")) - 1, 0)
        ends = np.cumsum(
            self.by_leaf[leaf][block * _BLOCK : (block + 1) * _BLOCK], dtype=np.int64
        ) + int(blocks[block])
        place = int(np.searchsorted(ends, token, side="right"))
        return block * _BLOCK + place, int(ends[place - 1]) if place else int(blocks[block])

    def _blocks(self, leaf: int) -> Ints:
        """The tokens before every so many samples of a leaf, and in all."""
        if leaf not in self._ends:
            parts, start = [np.zeros(0, np.int64)], 0
            for part in iter_chunks(self.by_leaf[leaf]):
                least = int(part.argmin())
                if part[least] < self.extra:
                    raise make_negative_size_error(start + least, int(part[least]) - self.extra)
                parts.append(np.add.reduceat(part, np.arange(0, len(part), _BLOCK), dtype=np.int64))
                start += len(part)
            self._ends[leaf] = compute_bounds(np.concatenate(parts))
        return self._ends[leaf]

    def sums(self, op: SummedStep) -> Means | Sums:
        """The sums over an op that tells none."""
        return self.get_exact_sums(op)

    def get_exact_sums(self, op: SummedStep) -> Sums:
        """Add the tokens of a range, each sample by its own length."""
        if id(op) not in self._sums:
            self._sums[id(op)] = op.summed(self)
        return self._sums[id(op)]

    @cached_property
    def about(self) -> Lengths:
        """Sums that take the mean length of a pass for each of its samples, without a look at the
        pass.
        """
        return _About(self)

    def derive(self, name: str, make: Callable[[Ints], Ints]) -> Lengths:
        """Return the lengths that a function makes of these; the name identifies the function."""
        if name not in self._derived:
            derived = [DerivedLengths(lengths, make) for lengths in self.by_leaf]
            self._derived[name] = Lengths(derived, f"{self.described} {name}".strip())
        return self._derived[name]

    def count_by(self, sizer: Sizer | None) -> Lengths:
        """Return the sizes of samples by a sizer that measures lengths."""
        if sizer is None or (sizer.extra, sizer.multiple, sizer.most) == (0, 1, None):
            return self
        most = "" if sizer.most is None else f", at most {sizer.most}"
        sizes = self.derive(f"plus {sizer.extra}, in {sizer.multiple}s{most}", sizer.counted)
        sizes.extra = sizer.extra
        return sizes

    def without(self, left_out: Sequence[Flags | None]) -> Lengths:
        """Return the lengths in which samples that are left out have 0, by leaf."""
        if all(flags is None for flags in left_out):
            return self
        digests = [
            None if flags is None else world.digests.digest_memory(flags) for flags in left_out
        ]
        by_leaf = [
            sizes if flags is None else KeptLengths(sizes, flags)
            for sizes, flags in zip(self.by_leaf, left_out, strict=True)
        ]
        return Lengths(by_leaf, f"{self.described} without {digests}".strip())

    def none_empty(self, leaf: int) -> bool:
        """Return whether every sample of a leaf has a token."""
        if not self.extra and leaf not in self.least:
            parts = (int(part.min(initial=1)) for part in iter_chunks(self.by_leaf[leaf]))
            self.least[leaf] = min(parts, default=1)
        return self.extra > 0 or self.least[leaf] > 0

    def any_token(self, leaf: int) -> bool:
        """Return whether any sample of a leaf has a token."""
        sizes = self.by_leaf[leaf]
        return bool(sizes[:_GRAIN].any()) or any(part.any() for part in iter_chunks(sizes))

    def between(self, op: SummedStep, start: int, stop: int, out: Ints, times: int) -> None:
        """Add what a few samples hold, by looking at each."""
        if stop > start:
            positions = np.arange(start, stop)
            rows = op.locate(positions)
            np.add.at(out, rows.leaf, self.of(rows) * times)


class _About(Lengths):
    """Lengths whose sums are means."""

    def __init__(self, exact: Lengths) -> None:
        super().__init__(exact.by_leaf, exact.described)
        self.exact = exact
        self._means = dict[int, Means]()

    def _blocks(self, leaf: int) -> Ints:
        return self.exact._blocks(leaf)

    def sums(self, op: SummedStep) -> Means | Sums:
        if id(op) not in self._means:
            self._means[id(op)] = Means(op, self.exact)
        return self._means[id(op)]


class Means:
    """About as many tokens of an op as its first pass lets expect."""

    def __init__(self, op: SummedStep, lengths: Lengths) -> None:
        self.span = op.size or _ENDLESS
        whole = np.zeros(len(lengths.by_leaf), np.int64)
        op.tokens(self.span, lengths, whole)
        self._whole = [(leaf, int(whole[leaf])) for leaf in op.leaves]

    @property
    def tokens_of_pass(self) -> int:
        """The tokens of a pass."""
        return sum(whole for _, whole in self._whole)

    def before(self, position: int, out: Ints, times: int) -> None:
        """Add the tokens before a position, counted over all passes."""
        epoch, place = divmod(position, self.span)
        for leaf, whole in self._whole:
            out[leaf] += whole * (epoch * times)
        self.within(epoch, place, out, times)

    def within(self, epoch: int, place: int, out: Ints, times: int) -> None:
        """Add the tokens before a place of a pass."""
        for leaf, whole in self._whole:
            out[leaf] += whole * place // self.span * times


class Sums:
    """The tokens of an op, looked up pass by pass. An op that never ends is cut into stretches in
    place of passes."""

    def __init__(self, op: SummedStep, lengths: Lengths, grain: int = 0) -> None:
        self.op, self.lengths = op, lengths
        self.span, self.repeats = (
            (_ENDLESS, False) if op.size is None else (max(op.size, 1), op.repeats)
        )
        self.leaves = np.asarray(op.leaves)
        self._place = np.zeros(len(lengths.by_leaf), np.int64)
        self._place[self.leaves] = np.arange(len(op.leaves))
        is_small = self.span * len(op.leaves) <= _SMALL
        self.grain = grain or (1 if is_small else _GRAIN * len(op.leaves))
        blocks = -(-self.span // self.grain)
        most = _SMALL_PASSES_IN_MEMORY if is_small else _PASSES_IN_MEMORY
        kept = min(max(_BLOCKS_IN_MEMORY // blocks, 2), most)
        self._passes = BoundedDict[int, BlockTotals](kept)
        self._totals = [
            np.zeros(len(op.leaves), np.int64)
        ]  # of all passes before the n-th, where they differ

    def before(self, position: int, out: Ints, times: int) -> None:
        """Add the tokens before a position, counted over all passes."""
        epoch, place = divmod(position, self.span)
        self.until(epoch, out, times)
        self.within(epoch, place, out, times)

    def until(self, epoch: int, out: Ints, times: int) -> None:
        """Add the tokens of all passes before one."""
        out[self.leaves] += self._until(epoch) * times

    def within(self, epoch: int, place: int, out: Ints, times: int) -> None:
        """Add the tokens before a place of a pass."""
        if place:
            block, start = place // self.grain, epoch * self.span + place // self.grain * self.grain
            out[self.leaves] += self.edge(epoch, block) * times
            self.lengths.between(self.op, start, epoch * self.span + place, out, times)

    def holding(self, epoch: int, token: int) -> tuple[int, int]:
        """Return the last place with a sum before a token of a pass, and the tokens before that
        place.
        """
        block, before = self._in_pass(epoch).holding(token)
        return min(block * self.grain, self.span), before

    def tokens_of_pass(self) -> Ints:
        """The tokens of each leaf in a pass, where all are alike."""
        held = next(iter(self._passes.values()), None)  # any is as good: none is added up for it
        return (self._in_pass(0) if held is None else held).total

    def _until(self, epoch: int) -> Ints:
        if self.repeats:
            return self.tokens_of_pass() * epoch if epoch else self._totals[0]
        require_countable_passes(epoch, self.span)
        while len(self._totals) <= epoch:
            self._totals.append(self._totals[-1] + self._in_pass(len(self._totals) - 1).total)
        return self._totals[epoch]

    def edge(self, epoch: int, block: int) -> Ints:
        """The tokens of each leaf before a block of a pass."""
        return self._in_pass(epoch).before(block)

    def _in_pass(self, epoch: int) -> BlockTotals:
        """The tokens of each leaf in every so many places of a pass."""
        if (found := self._passes.get(epoch)) is None:
            found = self._added_up(epoch)
            self._passes[epoch] = found
        return found

    def _added_up(self, epoch: int) -> BlockTotals:
        """Add up lengths one by one, on all cores; cache the sums if they belong to a source."""
        source, order = self.op.known() or (None, None)
        sizes = self.lengths.described
        key = {"order": order, "pass": epoch, "grain": self.grain, "sizes": sizes}
        found = load_or_make_totals(source, key, lambda: self._looked_up(epoch))
        for leaf in self.op.leaves if len(self.op.leaves) == 1 else ():
            self.lengths.least[leaf] = found.least
        return found

    def _looked_up(self, epoch: int) -> BlockSums:
        grain, many = self.grain, len(self.leaves)
        sums, least, at = np.zeros((-(-self.span // grain), many), np.int64), MAX_POSITION, 0

        def look(start: int, stop: int) -> tuple[Ints, int]:
            places = np.arange(start, stop)
            rows = self.op.locate(places + epoch * self.span)
            part = np.zeros((-(-len(places) // grain)) * many, np.int64)
            lengths = self.lengths.of(rows)
            np.add.at(part, (places - start) // grain * many + self._place[rows.leaf], lengths)
            return part.reshape(-1, many), int(lengths.min(initial=MAX_POSITION))

        for part, low in in_order(
            "add up lengths", self.span, look, max(_CHUNK // grain, 1) * grain
        ):
            sums[at : at + len(part)] = part
            at, least = at + len(part), min(least, low)
        return BlockSums(sums, least)
