"""Building many planned rows at once, where documents are plain vectors: a few NumPy calls for many
documents."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...types import Ints
from ..base.dtypes import TOKENS, narrowed
from ..base.ints import held
from ..base.spans import Spans, are_alike
from ..grouping.pack import Piece
from .plan import Pieces

Array = npt.NDArray[Any]

_RAMP = np.arange(1 << 16, dtype=np.int32)
_COLUMNS: tuple[str, ...] = ("tokens", "segment_ids", "positions")
_BLOCK = 1 << 15  # tokens that are laid into one array: more would be memory that is new every time


class Laid(NamedTuple):
    """What rows are made of, end to end: parts of documents, and the padding between them. Of each
    its `tokens`, its `places` in the document, its `number` in the row, `counts` tokens; `bounds`
    is where rows begin.
    """

    tokens: list[Array]
    places: list[Array]
    number: npt.NDArray[np.int32]
    counts: Ints
    bounds: list[int]


def build_plain(
    groups: Sequence[Sequence[Piece]],
    length: int,
    dtype: Any,
    pad: Any,
    multiple: int,
    sizes: Sequence[int],
) -> list[dict[str, Array]] | None:
    """All rows of the groups, stacked, so many at a time: what `build_row` makes of each, with one
    more axis in front.

    None where that takes more: features, lists, dtypes of several kinds, or anything that is wrong
        and must be named.
    """
    if (found := _laid(groups, length, multiple, dtype, pad)) is None:
        return None
    kind = _kind(found.tokens, dtype)
    made, row = list[dict[str, Array]](), 0
    for edges in _blocks(sizes, length):
        rows = edges[-1]
        a, b = found.bounds[row], found.bounds[row + rows]
        if (tokens := _together(found.tokens[a:b], rows * length, kind)) is None:
            return None
        columns: tuple[Array, ...] = (
            tokens,
            found.number[a:b].repeat(found.counts[a:b]),
            np.concatenate(found.places[a:b]),
        )
        block = [column.reshape(rows, length) for column in columns]
        for a, b in pairwise(edges):
            made.append(dict(zip(_COLUMNS, [column[a:b] for column in block], strict=True)))
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


def _laid(
    groups: Sequence[Sequence[Piece]], length: int, multiple: int, dtype: Any, pad: Any
) -> Laid | None:
    """What lies in the rows, if these are neighbours of one plan, and it is plain vectors of what
    was expected."""
    first, last = groups[0], groups[-1]
    if not isinstance(first, Pieces) or not isinstance(last, Pieces):
        return None
    # Behind a change of weights the next row may be of another plan, or of an earlier place in this
    # one.
    rows = [
        group for group in groups if isinstance(group, Pieces) and group.columns is first.columns
    ]
    if len(rows) < len(groups) or any(row.stop != behind.start for row, behind in pairwise(rows)):
        return None
    some, (values, starts, stops) = slice(first.start, last.stop), first.columns
    starts, stops = starts[some], stops[some]
    if int(stops.max()) >= len(_RAMP) or (pieces := _pieces(values, some, starts, stops)) is None:
        return None
    counts = np.fromiter(map(len, pieces), np.int64, len(pieces))
    takes = stops - starts
    tails = takes - counts
    if tails.any() and (tails.min() < 0 or tails.max() >= multiple):
        return None
    bounds = np.asarray([*(row.start for row in rows), last.stop], np.int64) - first.start
    left = length - np.add.reduceat(takes, bounds[:-1])
    kind = _kind(pieces, dtype)
    if left.min() < 0 or not np.can_cast(pieces[0].dtype, kind, "same_kind"):
        return None
    # The number of a document in its row: counted over all rows, less those before its row.
    number = np.arange(1, len(pieces) + 1, dtype=np.int32)
    number -= np.repeat(bounds[:-1].astype(np.int32), np.diff(bounds))
    places = [_RAMP[a:b] for a, b in zip(starts.tolist(), (starts + counts).tolist(), strict=True)]
    laid = Laid(pieces, places, number, counts, bounds.tolist())
    tails[bounds[1:] - 1] += left
    if not tails.any():
        return laid
    with suppress(OverflowError):
        return _padded(laid, tails, held(pad, kind), kind) if kind.kind in "iu" else None
    return None


def _padded(laid: Laid, tails: Ints, pad: Any, kind: np.dtype[Any]) -> Laid:
    """The same with so much padding after each part."""
    after = np.flatnonzero(tails) + 1
    counts, most = tails[after - 1], int(tails.max())
    bounds = np.asarray(laid.bounds)
    return Laid(
        _between(laid.tokens, after.tolist(), counts.tolist(), np.full(most, pad, kind)),
        _between(laid.places, after.tolist(), counts.tolist(), np.zeros(most, np.int32)),
        np.insert(laid.number, after, 0),
        np.insert(laid.counts, after, counts),
        (bounds + np.searchsorted(after, bounds, side="right")).tolist(),
    )


def _between(
    pieces: list[Array], after: list[int], counts: list[int], padding: Array
) -> list[Array]:
    """The pieces, and so much padding before some of them."""
    out, done = list[Array](), 0
    for place, count in zip(after, counts, strict=True):
        out += pieces[done:place]
        out.append(padding[:count])
        done = place
    return out + pieces[done:]


def _kind(pieces: list[Array], dtype: Any) -> np.dtype[Any]:
    """The dtype of the rows: pieces are all integers, or all of one dtype."""
    if dtype is not None:
        return np.dtype(dtype)
    return TOKENS if pieces[0].dtype.kind in "iu" else pieces[0].dtype


def _pieces(values: Sequence[Any], some: slice, starts: Ints, stops: Ints) -> list[Array] | None:
    """Parts of documents, if these are vectors of integers, or of one other dtype."""
    if isinstance(values, Spans):
        return values.parts(some, starts, stops) if values.plain else None
    docs: Sequence[Any] = values[some]
    if list(map(type, docs)).count(np.ndarray) < len(docs) or not are_alike(docs):
        return None
    return [
        doc[start:stop]
        for doc, start, stop in zip(docs, starts.tolist(), stops.tolist(), strict=True)
    ]


def _together(pieces: list[Array], size: int, kind: np.dtype[Any]) -> Array | None:
    """The tokens of all pieces, as those of a dtype; None where it does not have them."""
    tokens = np.empty(size, kind)
    dtypes = {piece.dtype for piece in pieces}
    try:
        if len(dtypes) > 1:
            pieces = [narrowed(piece, kind) for piece in pieces]
        elif kind.kind in "fc" or not np.can_cast(pieces[0].dtype, kind):
            pieces = [narrowed(np.concatenate(pieces), kind)]
        np.concatenate(pieces, out=tokens, casting="same_kind")
    except OverflowError:
        return None
    return tokens
