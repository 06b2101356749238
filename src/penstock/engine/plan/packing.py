"""Statistics of packed rows and of their documents, from one window of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..steps.packed import PackedOp
from ..steps.seek import Metered


@dataclass(frozen=True)
class PackedShares:
    """The answer of `plan.packing()`. Shares refer to the first rows of the first pass.

    - `rows` of a pass, and the `tokens` of its documents, with BOS and EOS; None for an endless
      pass. If rows are planned a pass at a time, `rows` is estimated.
    - `fill`: the share of places in rows that hold a token; the rest is padding. For batches that
      are no rows, the share once they are padded to their longest sample.
    - `split`: the share of documents that are spread over rows; `cut`: the share that lose their
      end.
    - `sampled`: the number of documents in the window.
    - `stored`: the dtype of the stored tokens of each source, if it is known without reading.
    """

    rows: int | None
    tokens: int | None
    fill: float
    split: float
    cut: float
    sampled: int
    stored: Mapping[str, str] = field(default_factory=dict[str, str])


def measure_packing(op: PackedOp) -> PackedShares:
    """Return the statistics of the first rows, from lengths alone."""
    rows, size = op.sampled(), op.input.size
    tokens = None if size is None else Metered(op.input, op.unpadded).tokens(size)
    if not len(rows):
        return PackedShares(0, tokens, 0.0, 0.0, 0.0, 0)
    start, stop = rows.marks[op.node], rows.marks[~op.node]
    whole = op.unpadded.of(rows)
    there, firsts = np.minimum(stop, whole) - start, rows.firsts()
    counts = np.diff(firsts)
    length = op.row_length
    if length is None:  # batches of whole samples, padded to the longest of each
        longest = np.maximum.reduceat(whole, firsts[:-1])
        places = int((counts * longest).sum())
    else:
        places = len(rows) * length
    begun = start == 0
    lost = begun & (whole > length) if length is not None and op.truncates else np.zeros_like(begun)
    apart = begun & (stop < whole) & ~lost
    many = max(int(begun.sum()), 1)
    fill = int(there.sum()) / max(places, 1)
    return PackedShares(
        _rows_of_pass(op, tokens, len(rows) / max(int(whole[begun].sum()), 1)),
        tokens,
        fill,
        int(apart.sum()) / many,
        int(lost.sum()) / many,
        int(begun.sum()),
    )


def _rows_of_pass(op: PackedOp, tokens: int | None, each: float) -> int | None:
    """Return the number of rows of a pass, estimated if a pass would have to be planned."""
    if op.is_large and tokens is not None:
        least = 0 if op.row_length is None or op.truncates else -(-tokens // op.row_length)
        return max(round(tokens * each), least)
    return op.size
