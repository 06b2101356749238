"""Documents that a run has delivered before a position: how often each, and how many tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...arrays.columnar import import_arrow
from ...types import Ints, Sizes, is_source
from ..base.progress import Progress
from ..base.rows import ProvenanceRows
from ..runtime.step_log import RowsGiven
from ..steps.op import Op
from ..steps.tally import Tally
from ..streams.compiled_step import CompiledStep
from ..streams.function_call import Leaf

Times: TypeAlias = npt.NDArray[np.int32]

_SCAN = 1 << 17  # positions looked at together


@dataclass(frozen=True, eq=False)
class Seen:
    """Delivery counts of each document: `times[i]` for source `names[i]`, int32, one entry a
    document.

    A packed document that is cut counts where it begins, and whole.

    >>> import penstock as ps
    >>> seen = ps.from_sequence("abcd", name="letters").repeat().plan.seen(6)
    >>> seen.samples, seen.documents, seen.repeats()
    ({'letters': 6}, {'letters': 4}, {1: 2, 2: 2})
    """

    names: tuple[str, ...]
    times: tuple[Times, ...]
    lengths: tuple[Sizes | None, ...]

    @property
    def samples(self) -> dict[str, int]:
        """Delivered documents by source, counting repeats.

        >>> import penstock as ps
        >>> ps.from_sequence("abcd", name="letters").plan.seen(3).samples
        {'letters': 3}
        """
        return {name: int(times.sum()) for name, times in zip(self.names, self.times, strict=True)}

    @property
    def documents(self) -> dict[str, int]:
        """Distinct delivered documents by source."""
        return {
            name: int(np.count_nonzero(times))
            for name, times in zip(self.names, self.times, strict=True)
        }

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens of the distinct delivered documents, by source with known lengths."""
        both = zip(self.names, self.times, self.lengths, strict=True)
        return {
            name: int(sizes[np.flatnonzero(times)].sum())
            for name, times, sizes in both
            if sizes is not None
        }

    def repeats(self, source: str | None = None) -> dict[int, int]:
        """Return a histogram: the number of documents delivered once, twice and so on, without
        those never delivered.

        Args:
            source: of one source; without it of all.
        """
        found = np.zeros(1, np.int64)
        for name, times in zip(self.names, self.times, strict=True):
            if source in (None, name):
                more = np.bincount(times)
                found = np.pad(found, (0, max(0, len(more) - len(found))))
                found[: len(more)] += more
        return {n: int(found[n]) for n in np.flatnonzero(found).tolist() if n}

    def indices(self, source: str) -> Ints:
        """Return the delivered documents of a source, in ascending order.

        Args:
            source: its name.
        """
        return np.flatnonzero(self.times[self.names.index(source)])

    def batches(self) -> Iterator[Any]:
        """Yield a `pyarrow.RecordBatch` for each part of a source: source, index, and number of
        deliveries.
        """
        pa = import_arrow()
        for number, times in enumerate(self.times):
            there = np.flatnonzero(times)
            for start in range(0, len(there), _SCAN):
                index = there[start : start + _SCAN]
                source = pa.DictionaryArray.from_arrays(
                    np.full(len(index), number, np.int32), list(self.names)
                )
                yield pa.RecordBatch.from_arrays(
                    [source, pa.array(index), pa.array(times[index].astype(np.int64))],
                    schema=self.schema,
                )

    @property
    def schema(self) -> Any:
        """The `pyarrow.Schema` of the batches."""
        pa = import_arrow()
        named = pa.dictionary(pa.int32(), pa.string())
        return pa.schema([("source", named), ("index", pa.int64()), ("times", pa.int64())])


class _Documents(Tally):
    """Counts of each document of each source."""

    by_document = True

    def __init__(self, times: list[Times], packs: Sequence[int]) -> None:
        super().__init__(len(times), packs)
        self.times = times

    def add(self, rows: ProvenanceRows, times: int) -> None:
        begun = np.ones(len(rows.leaf), np.bool_)
        for node in self.packs:
            if node in rows.marks:
                begun &= rows.marks[node] == 0
        leaf, index = rows.leaf[begun], rows.index[begun]
        order = np.argsort(leaf, kind="stable")
        cuts = np.flatnonzero(np.diff(leaf[order])) + 1
        for mine in np.split(order, cuts) if len(leaf) else ():
            np.add.at(self.times[int(leaf[mine[0]])], index[mine], times)

    def documents(self, op: CompiledStep, start: int, stop: int, times: int) -> None:
        """Count equal passes by looking at one of them."""
        assert isinstance(op, Op)
        if op.repeats and op.size is not None:
            first, last = -(-start // op.period), stop // op.period
            if last - first > 1:
                begin, end = first * op.period, last * op.period
                self.one_by_one(op, begin, begin + op.period, times * (last - first))
                self.one_by_one(op, start, begin, times)
                start = end
        self.one_by_one(op, start, stop, times)


def count_seen(
    op: Op,
    leaves: Sequence[Leaf],
    packs: Sequence[int],
    given: RowsGiven,
    located: Callable[[Ints], ProvenanceRows],
    looked: bool,
) -> Seen:
    """Count how often each document was delivered.

    Args:
        given: the positions of the op that were delivered.
        located: finds what lies at positions.
        looked: whether only `located` tells what was delivered.
    """
    known = [leaf.source if is_source(leaf.source) else None for leaf in leaves]
    times = [np.zeros(0 if source is None else len(source), np.int32) for source in known]
    tally = _Documents(times, packs)
    if packs or looked:
        with Progress("count documents", sum(map(len, given.stretches)), "positions") as progress:
            for some in (
                stretch[at : at + _SCAN]
                for stretch in given.stretches
                for at in range(0, len(stretch), _SCAN)
            ):
                tally.add(located(np.arange(some.start, some.stop)), 1)
                progress.more(len(some))
    else:
        for stretch in given.stretches:
            op.count(tally, stretch.start, stretch.stop)
        tally.require_inputs()
    for positions, many in ((given.left_out, -1), (given.repeated, 1)):
        for start in range(0, len(positions), _SCAN):
            tally.add(located(positions[start : start + _SCAN]), many)
    lengths = [None if source is None else source.lengths() for source in known]
    return Seen(tuple(leaf.name for leaf in leaves), tuple(times), tuple(lengths))


def sum_seen(first: Seen, others: Sequence[tuple[Seen, int]]) -> Seen:
    """Sum delivery counts over parts of a run, each with a factor; sources are those of the first."""
    times = [
        sum(
            (
                other.times[other.names.index(name)] * n
                for other, n in others
                if name in other.names
            ),
            start=own,
        )
        for name, own in zip(first.names, first.times, strict=True)
    ]
    return Seen(first.names, tuple(times), first.lengths)
