"""How full packed rows are, and what becomes of documents in them, as one window of rows tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..ops.fit import FitOp
from ..ops.pack import PackOp
from ..ops.packed import PackedOp
from ..packing import BestFit, FirstFit, inner_of


@dataclass(frozen=True)
class PackedShares:
    """What `plan.packing()` tells. Shares are of the rows that were looked at, the first ones of
    the first pass.

    - `rows` of a pass, and the `tokens` that its documents have, with BOS and EOS; None where
      passes never end. Where rows are planned a pass at a time, `rows` is estimated.
    - `fill`: the share of the places in rows that hold a token; the rest is padding. Of batches
      that are no rows, as they are once padded to their longest.
    - `split`: the share of the documents of which a row has a part only, and `cut`: of those whose
      end is lost.
    - `sampled`: the documents that were looked at.
    - `stored`: the dtype in which each source stores its tokens, where that is known without
      reading.
    """

    rows: int | None
    tokens: int | None
    fill: float
    split: float
    cut: float
    sampled: int
    stored: Mapping[str, str] = field(default_factory=dict[str, str])


def packing_of(op: PackedOp) -> PackedShares:
    """What a sample of its rows tells, from lengths alone."""
    rows, size = op.sampled(), op.flow.size
    tokens = None if size is None else op.plain_tokens(size)
    if not len(rows):
        return PackedShares(0, tokens, 0.0, 0.0, 0.0, 0)
    start, stop = rows.marks[op.node], rows.marks[~op.node]
    whole = op.plain.of(rows) + op.extra_each
    there, firsts = np.minimum(stop, whole) - start, rows.firsts()
    counts = np.diff(firsts)
    length = op.row_length
    if length is None:  # batches of whole samples, padded to the longest of each
        longest = np.maximum.reduceat(whole, firsts[:-1])
        places = int((counts * longest).sum())
    else:
        places = len(rows) * length
    begun = start == 0
    lost = begun & (whole > length) if length is not None and _cuts(op) else np.zeros_like(begun)
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


def _cuts(op: PackedOp) -> bool:
    """Whether documents over a row lose their ends."""
    if isinstance(op, FitOp):
        return op.windows.long == "truncate"
    fold = inner_of(op.fold) if isinstance(op, PackOp) else None
    return isinstance(fold, FirstFit | BestFit) and fold.long == "truncate"


def _rows_of_pass(op: PackedOp, tokens: int | None, each: float) -> int | None:
    """The rows of a pass; about, by those for each token of their documents, where they would have
    to be planned."""
    if isinstance(op, PackOp) and op.is_large and tokens is not None:
        least = 0 if op.row_length is None or _cuts(op) else -(-tokens // op.row_length)
        return max(round(tokens * each), least)
    return op.size
