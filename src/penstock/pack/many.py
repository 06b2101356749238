"""Building many planned rows at once, where documents are plain vectors: a few NumPy calls for many documents."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..folds.pack import Piece
from ..types import Ints
from .plan import Pieces

Array = npt.NDArray[Any]

_RAMP = np.arange(1 << 16, dtype=np.int32)
_BLOCK = 1 << 14  # tokens that are laid into one array: more would be memory that is new every time


class Laid(NamedTuple):
    """Parts of documents, in the order of their rows: `tails` is the padding after each, `bounds` where rows begin."""

    pieces: list[Array]
    starts: list[int]
    tokens: Ints
    tails: Ints
    bounds: Ints


def build_plain(
    groups: Sequence[Sequence[Piece]], length: int, dtype: Any, pad: Any, multiple: int, sizes: Sequence[int]
) -> list[dict[str, Array]] | None:
    """All rows of the groups, stacked, so many at a time: what `build_row` makes of each, with one more axis in front.

    None where that takes more: features, lists, mixed dtypes, or anything that is wrong and must be named.
    """
    if (found := _documents(groups, length, multiple)) is None:
        return None
    first = found.pieces[0].dtype
    kind = first if dtype is None else np.dtype(dtype)
    if not np.can_cast(first, kind, "same_kind") or (found.tails.any() and not _holds(kind, pad)):
        return None
    made, row = list[dict[str, Array]](), 0
    for edges in _blocks(sizes, length):
        rows = edges[-1]
        block = _laid(found, row, row + rows, kind, pad)
        columns = {name: column.reshape(rows, length) for name, column in block.items()}
        made += [{name: column[a:b] for name, column in columns.items()} for a, b in pairwise(edges)]
        row += rows
    return made


def _blocks(sizes: Sequence[int], length: int) -> list[list[int]]:
    """Where items of so many rows begin, in blocks of about as many tokens."""
    blocks = list[list[int]]()
    for size in sizes:
        if not blocks or blocks[-1][-1] * length >= _BLOCK:
            blocks.append([0])
        blocks[-1].append(blocks[-1][-1] + size)
    return blocks


def _documents(groups: Sequence[Sequence[Piece]], length: int, multiple: int) -> Laid | None:
    """What lies in the rows, if these are neighbours of one plan, and it is plain vectors of what was expected."""
    first, last = groups[0], groups[-1]
    if not isinstance(first, Pieces) or not isinstance(last, Pieces):
        return None
    # Behind a change of weights the next row may be of another plan, or of an earlier place in this one.
    rows = [group for group in groups if isinstance(group, Pieces) and group.columns is first.columns]
    if len(rows) < len(groups) or any(row.stop != behind.start for row, behind in pairwise(rows)):
        return None
    docs, starts, stops = (column[first.start : last.stop] for column in first.columns)
    if list(map(type, docs)).count(np.ndarray) < len(docs) or max(stops) >= len(_RAMP):
        return None
    if [doc.dtype for doc in docs].count(docs[0].dtype) < len(docs) or [doc.ndim for doc in docs].count(1) < len(docs):
        return None
    pieces = [doc[start:stop] for doc, start, stop in zip(docs, starts, stops, strict=True)]
    tokens = np.fromiter(map(len, pieces), np.int64, len(pieces))
    takes = np.subtract(stops, starts)
    tails = takes - tokens
    if tails.any() and (tails.min() < 0 or tails.max() >= multiple):
        return None
    bounds = np.asarray([*(row.start for row in rows), last.stop], np.int64) - first.start
    left = length - np.add.reduceat(takes, bounds[:-1])
    if left.min() < 0:
        return None
    tails[bounds[1:] - 1] += left
    return Laid(pieces, starts, tokens, tails, bounds)


def _laid(found: Laid, first: int, last: int, kind: np.dtype[Any], pad: Any) -> dict[str, Array]:
    """The columns of some rows, end to end."""
    begins = found.bounds[first : last + 1]
    a, b = int(begins[0]), int(begins[-1])
    pieces, takes, tails = found.pieces[a:b], found.tokens[a:b], found.tails[a:b]
    ramps = [_RAMP[start : start + many] for start, many in zip(found.starts[a:b], takes.tolist(), strict=True)]
    # The number of a document in its row: counted over all rows, less those before its row.
    numbers = np.arange(1, b - a + 1, dtype=np.int32) - np.repeat((begins[:-1] - a).astype(np.int32), np.diff(begins))
    if tails.any():
        numbers = np.stack([numbers, np.zeros_like(numbers)], axis=1).ravel()
        takes = np.stack([takes, tails], axis=1).ravel()
        most = int(tails.max())
        pieces = _tailed(pieces, tails.tolist(), np.full(most, pad, kind))
        ramps = _tailed(ramps, tails.tolist(), np.zeros(most, np.int32))
    tokens = np.empty(int(takes.sum()), kind)
    np.concatenate(pieces, out=tokens, casting="same_kind")
    return {"tokens": tokens, "segment_ids": np.repeat(numbers, takes), "positions": np.concatenate(ramps)}


def _tailed(pieces: list[Array], tails: list[int], padding: Array) -> list[Array]:
    """The pieces, each with padding of a length after it."""
    parts = ((piece, padding[:many]) if many else (piece,) for piece, many in zip(pieces, tails, strict=True))
    return [part for both in parts for part in both]


def _holds(kind: np.dtype[Any], pad: Any) -> bool:
    """Whether padding is a whole number that arrays of whole numbers take as it is."""
    return kind.kind in "iu" and isinstance(pad, int) and np.iinfo(kind).min <= pad <= np.iinfo(kind).max
