"""Building many planned rows at once, where documents are plain vectors: a few NumPy calls for hundreds of rows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ..folds.pack import Piece
from .plan import Columns, Pieces

_RAMP = np.arange(1 << 16, dtype=np.int32)


def build_plain(
    groups: Sequence[Sequence[Piece]], length: int, dtype: Any, pad: Any = 0, multiple: int = 1
) -> dict[str, np.ndarray[Any, Any]] | None:
    """All rows of the groups, stacked: what `build_row` makes of each, with one more axis in front.

    None where that takes more: features, lists, mixed dtypes, or anything that is wrong and must be named.
    """
    first, last = groups[0], groups[-1]
    if not isinstance(first, Pieces) or not isinstance(last, Pieces):
        return None
    # Behind a change of weights the next row may be of another plan, or of an earlier place in this one.
    rows = [group for group in groups if isinstance(group, Pieces) and group.columns is first.columns]
    if len(rows) < len(groups) or any(row.stop != behind.start for row, behind in pairwise(rows)):
        return None
    a, b = first.start, last.stop
    docs, starts, stops = Columns(*(column[a:b] for column in first.columns))
    if set(map(type, docs)) != {np.ndarray} or {(doc.dtype, doc.ndim) for doc in docs} != {(docs[0].dtype, 1)}:
        return None
    takes = np.subtract(stops, starts)
    bounds = np.asarray([row.start for row in rows], np.int64) - a
    left = length - np.add.reduceat(takes, bounds)
    kind = docs[0].dtype if dtype is None else np.dtype(dtype)
    if max(len(docs), max(stops)) >= len(_RAMP) or not np.can_cast(docs[0].dtype, kind, "same_kind"):
        return None
    if left.any() and (left.min() < 0 or not _holds(kind, pad)):
        return None
    pieces = [doc[start:stop] for doc, start, stop in zip(docs, starts, stops, strict=True)]
    there = np.fromiter(map(len, pieces), np.int64, len(pieces))
    tails = takes - there
    if tails.any() and (tails.min() < 0 or tails.max() >= multiple or not _holds(kind, pad)):
        return None
    ramps = [_RAMP[start : start + many] for start, many in zip(starts, there.tolist(), strict=True)]
    ends = np.append(bounds[1:], len(docs))
    tails[ends - 1] += left
    # The number of a document in its row: counted over all rows, less those before its row.
    numbers = _RAMP[1 : len(docs) + 1] - np.repeat(bounds.astype(np.int32), ends - bounds)
    takes = there
    if tails.any():
        numbers = np.stack([numbers, np.zeros_like(numbers)], axis=1).ravel()
        takes = np.stack([there, tails], axis=1).ravel()
        padding, nothing = np.full(length, pad, kind), np.zeros(length, np.int32)
        pieces, ramps = _tailed(pieces, tails.tolist(), padding), _tailed(ramps, tails.tolist(), nothing)
    tokens = np.empty(len(groups) * length, kind)
    np.concatenate(pieces, out=tokens, casting="same_kind")
    columns = {"tokens": tokens, "segment_ids": np.repeat(numbers, takes), "positions": np.concatenate(ramps)}
    return {name: column.reshape(-1, length) for name, column in columns.items()}


def _tailed(pieces: list[Any], tails: list[int], padding: np.ndarray[Any, Any]) -> list[Any]:
    """The pieces, each with padding of a length after it."""
    parts = ((piece, padding[:many]) if many else (piece,) for piece, many in zip(pieces, tails, strict=True))
    return [part for both in parts for part in both]


def _holds(kind: np.dtype[Any], pad: Any) -> bool:
    """Whether padding is a whole number that arrays of whole numbers take as it is."""
    return kind.kind in "iu" and isinstance(pad, int) and np.iinfo(kind).min <= pad <= np.iinfo(kind).max
