"""Masked documents: they keep their places in rows and batches, as padding without loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...errors import DataError
from ...types import Flags, Ints, Json, Path
from ..base.passes import Passes
from ..base.rows import HOLE, ProvenanceRows
from ..base.shown import counted
from ..packing import Missing
from ..streams.chunk_cursors import Chunk
from ..streams.function_call import Leaf, SampleFailure, to_list
from ..streams.shared_reader import PassCounts
from ..streams.stream import Stream, UnaryStream
from ..streams.stream_opener import StreamOpener
from .op import Op, Scope, UnaryOp, iter_reads
from .seek import At
from .step import Builder, UnaryStep, Written
from .tokens import Lengths

_TRIES = 16  # documents that may show the form of one


@dataclass(frozen=True)
class DocumentMask:
    """Documents of a source that are masked from a row of the run on.

    Rows are counted over all passes. Streams have no rows to count: they mask these documents
    wherever they read them, and `row` says how many items the run had delivered.
    """

    source: str
    row: int
    indices: tuple[int, ...]

    def to_json(self) -> dict[str, Json]:
        return {"mask": self.source, "row": self.row, "indices": list(self.indices)}


class CompiledMasks:
    """Masks by leaf: the masked indices, sorted, and the first row without each."""

    def __init__(self, masks: Sequence[DocumentMask], leaves: Sequence[Leaf]) -> None:
        numbers = {leaf.name: leaf.number for leaf in leaves}
        first_rows = dict[int, dict[int, int]]()
        for mask in masks:
            if mask.source in numbers:
                rows = first_rows.setdefault(numbers[mask.source], {})
                for index in mask.indices:
                    rows[index] = min(mask.row, rows.get(index, mask.row))
        self._by_leaf = {
            leaf: np.asarray(sorted(rows.items()), np.int64).T for leaf, rows in first_rows.items()
        }

    def find(self, rows: ProvenanceRows, positions: Ints | None = None) -> Flags:
        """Return which flat rows are masked at the positions of their items, or anywhere."""
        masked = np.zeros(len(rows.leaf), np.bool_)
        for leaf, (indices, first_rows) in self._by_leaf.items():
            at = np.searchsorted(indices, rows.index).clip(max=len(indices) - 1)
            here = (rows.leaf == leaf) & (indices[at] == rows.index)
            if positions is not None and here.any():
                here &= np.repeat(positions, np.diff(rows.firsts())) >= first_rows[at]
            masked |= here
        return masked

    def excluded(self) -> Iterator[tuple[int, Ints]]:
        """Yield the leaves, and the masked indices of each."""
        return ((leaf, indices) for leaf, (indices, _) in self._by_leaf.items())

    def find_items(self, rows: ProvenanceRows) -> list[bool]:
        """Return which items hold a masked sample, wherever they are."""
        masked = self.find(rows)
        if not masked.any():
            return [False] * len(rows)
        return np.logical_or.reduceat(masked, rows.firsts()[:-1]).tolist()


def read_similar(input: Op, row: ProvenanceRows, start: int) -> Any:
    """Read a document near a missing one in its source, `start` from it, to show its form."""
    (size,) = {len(op.source) for op in iter_reads(input) if op.leaf == row.leaf[0] and op.source}
    marks = {node: row.marks[node] for node in row.marks if node != HOLE}
    for step in range(start, _TRIES + 1):
        with suppress(SampleFailure):
            return input.values(replace(row, index=(row.index + step) % size, marks=marks))[0]
    raise DataError(
        f"a document and the {_TRIES} after it in its source cannot be read, so rows that lack "
        "it have no form; see whether the source is corrupted"
    )


def mark_masked(rows: ProvenanceRows, masked: Flags) -> ProvenanceRows:
    """Return rows in which masked flat rows are holes."""
    if not masked.any():
        return rows
    holes = masked.astype(np.int64)
    if HOLE in rows.marks:
        holes |= rows.marks[HOLE]
    return replace(rows, marks={**rows.marks, HOLE: holes})


class MaskOp(UnaryOp):
    """The items of an input in which some documents are masked; `by_row` masks from rows on."""

    keeps_order = True

    def __init__(self, input: Op, masks: CompiledMasks, by_row: bool) -> None:
        super().__init__(input)
        self.masks, self._by_row = masks, by_row

    def locate(self, positions: Ints) -> ProvenanceRows:
        rows = self.input.locate(positions)
        return mark_masked(rows, self.masks.find(rows, positions if self._by_row else None))

    def values(self, rows: ProvenanceRows) -> Sequence[Any]:
        if self.depth or HOLE not in rows.marks:
            return self.input.values(rows)
        masked = rows.marks[HOLE] > 0
        try:
            values = to_list(self.input.values(rows))
        except Exception:  # a masked document need not be readable
            left = np.flatnonzero(~masked)
            shown = iter(self.input.values(rows.take(left)) if len(left) else [])
            values = [
                read_similar(self.input, rows.slice(i, i + 1), 0) if is_masked else next(shown)
                for i, is_masked in enumerate(masked.tolist())
            ]
        return [
            Missing(value) if hole else value
            for value, hole in zip(values, masked.tolist(), strict=True)
        ]

    def stream(self, opening: StreamOpener, passes: PassCounts) -> Stream:
        if self._by_row:
            return opening.open_positions(self, passes)
        return MaskedStream(opening.open(self.input, passes), self.masks)

    def excluded(self) -> Iterator[tuple[int, Ints]]:
        yield from self.masks.excluded()
        yield from self.input.excluded()

    @property
    def passes(self) -> Passes | None:
        return self.input.passes

    def tokens(self, position: int, lengths: Lengths, out: Ints, times: int = 1) -> None:
        self.input.tokens(position, lengths, out, times)

    def holding(self, token: int, lengths: Lengths) -> At:
        return self.input.holding(token, lengths)

    def scopes(
        self, above: int = 0, packed: bool = False, among: Op | None = None
    ) -> Iterator[Scope]:
        return self.input.scopes(above, packed, among)


class MaskedStream(UnaryStream):
    """The samples of a stream; some are masked."""

    def __init__(self, stream: Stream, masks: CompiledMasks) -> None:
        self._input, self._masks = stream, masks

    def pull(self, n: int, /) -> Chunk:
        chunk = self._input.pull(n)
        masked = self._masks.find_items(chunk.rows)
        if not any(masked):
            return chunk
        pairs = zip(chunk.values, masked, strict=True)
        return chunk._replace(values=[Missing(value) if gone else value for value, gone in pairs])

    def cursor(self) -> Json:
        return self._input.cursor()

    def seek(self, epoch: int, cursor: Json, /) -> None:
        self._input.seek(epoch, cursor)

    def input_at(self, epoch: int, cursor: Json, /) -> tuple[object, int, Json]:
        return self._input, epoch, cursor

    def close(self) -> None:
        self._input.close()


@dataclass(frozen=True)
class MaskDocuments(UnaryStep):
    """Mask documents in the rows of a run, each from a row on; or wherever a stream reads them."""

    masks: tuple[DocumentMask, ...]
    by_row: bool = True

    def describe(self) -> dict[str, Json]:
        return {"mask": [mask.to_json() for mask in self.masks]}

    def write(self) -> Written:
        documents = counted(sum(len(mask.indices) for mask in self.masks), "document")
        return Written(f"masked {documents}", self.input)

    @property
    def is_order(self) -> bool:
        return self.input.is_order

    @property
    def is_elementwise(self) -> bool:
        return True

    @property
    def keeps_passes(self) -> bool:
        return True

    @cached_property
    def repeats_source(self) -> bool:
        return self.input.repeats_source

    @cached_property
    def lengths_known(self) -> bool:
        return self.input.lengths_known

    @cached_property
    def token_counter(self) -> tuple[str, str] | None:
        return self.input.token_counter

    def mean_tokens(self) -> float | None:
        return self.input.mean_tokens()

    def bind(self, builder: Builder, seed: int, path: Path) -> Op:
        below = builder.op(self.input, seed, path)
        return MaskOp(below, CompiledMasks(self.masks, builder.leaves), self.by_row)
