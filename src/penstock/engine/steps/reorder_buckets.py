"""A shuffle by buckets, and the sums of its lengths: those of a bucket are the same in every
pass."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ...types import MAX_POSITION, Ints
from ..base.bounded_dict import BoundedDict
from ..base.rows import compute_bounds
from ..orders import BucketShuffle
from .block_totals import BlockSums, BlockTotals, in_order, load_or_make_totals
from .read import ReadOp
from .reorder_op import PassOp
from .tokens import Lengths, Sums


class BucketOp(PassOp):
    """A shuffle by buckets. Over anything but a source as it lies a bucket may hold other samples
    in another pass."""

    order: BucketShuffle

    def summed(self, lengths: Lengths) -> Sums:
        return (
            BucketSums(self, lengths) if isinstance(self.input, ReadOp) else super().summed(lengths)
        )


class BucketSums(Sums):
    """The tokens of buckets, added up once; before a bucket of a pass lie whole runs of them, and
    some of its run."""

    op: BucketOp

    def __init__(self, op: BucketOp, lengths: Lengths) -> None:
        super().__init__(op, lengths, op.order.rows)
        self._runs = BoundedDict[int, Ints](2)  # threads look at a pass and the next

    @cached_property
    def _buckets(self) -> BlockTotals:
        """The tokens of every bucket, as they were dealt: by one scan of the lengths as they
        lie."""
        op, order = self.op, self.op.order
        source, described = op.known() or (None, None)
        key = {"order": described, "sizes": self.lengths.described}
        found = load_or_make_totals(source, key, self._looked_up, order.together)
        self.lengths.least[op.leaves[0]] = found.least
        assert len(found) == -(-self.span // order.rows)
        return found

    def _looked_up(self, epoch: int = 0) -> BlockSums:
        op, n = self.op, self.span
        lengths = self.lengths.by_leaf[op.leaves[0]]
        out = np.zeros(-(-n // op.order.rows), np.int64)
        least = MAX_POSITION

        def look(start: int, stop: int) -> tuple[Ints, Ints]:
            return op.order.bucket_of(np.arange(start, stop), n, op.key), lengths[start:stop]

        for bucket, found in in_order("add up lengths", n, look):
            np.add.at(out, bucket, found)
            least = min(least, int(found.min(initial=MAX_POSITION)))
        return BlockSums(out[:, None], least)

    def tokens_of_pass(self) -> Ints:
        return self._buckets.total

    def edge(self, epoch: int, block: int) -> Ints:
        run = min(block // self.op.order.together, len(self._of_runs))
        first = run * self.op.order.together
        inside = self._tokens(epoch, np.arange(first, block))
        return np.asarray([self._before(epoch)[run] + int(inside.sum())])

    def holding(self, epoch: int, token: int) -> tuple[int, int]:
        runs, together = self._before(epoch), self.op.order.together
        run = max(int(np.searchsorted(runs, token, side="right")) - 1, 0)
        first, last = run * together, min((run + 1) * together, -(-self.span // self.grain))
        edges = compute_bounds(self._tokens(epoch, np.arange(first, last))) + int(runs[run])
        block = min(int(np.searchsorted(edges, token, side="right")), len(edges) - 1) - 1
        return (first + max(block, 0)) * self.grain, int(edges[max(block, 0)])

    def _tokens(self, epoch: int, places: Ints) -> Ints:
        """The tokens of the buckets at places of a pass."""
        passes = np.full_like(places, epoch)
        buckets = self.op.order.buckets(places, self.span, self.op.key, passes)
        low = int(buckets.min(initial=MAX_POSITION))  # those of a run lie together
        return self._buckets.some(low, int(buckets.max(initial=low - 1)) + 1)[buckets - low, 0]

    def _before(self, epoch: int) -> Ints:
        """The tokens before every run of buckets of a pass."""
        if (found := self._runs.get(epoch)) is None:
            places = np.arange(len(self._of_runs))
            order = self.op.order.runs(places, self.span, self.op.key, np.full_like(places, epoch))
            self._runs[epoch] = found = compute_bounds(self._of_runs[order])
        return found

    @cached_property
    def _of_runs(self) -> Ints:
        """The tokens of every whole run of buckets, as they were dealt."""
        return self._buckets.runs[: self.span // self.op.order.rows // self.op.order.together, 0]
