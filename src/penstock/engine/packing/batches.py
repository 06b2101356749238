"""Vectorised building of planned rows from plain vectors: few NumPy calls for many documents."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...types import Ints
from ..base.dtypes import TOKEN_DTYPE, cast_array
from ..base.integers import cast_scalar
from ..base.spans import DocumentSpans, are_alike
from ..grouping.concat_split import Piece
from .plan import PlannedPieces
from .row import CACHED_RAMP

Array = npt.NDArray[Any]

_PACKED_COLUMNS: tuple[str, ...] = ("tokens", "segment_ids", "positions")
_BLOCK_TOKENS = (
    1 << 15
)  # tokens in one array; larger arrays would be freshly mapped memory each time


class RowContents(NamedTuple):
    """Contents of rows, concatenated: parts of documents, and padding between them.

    A part has its `tokens`, their `positions` in the document, its `number` in the row, and its
    `counts` of tokens. `bounds` are the offsets of rows.
    """

    tokens: list[Array]
    positions: list[Array]
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
    """Build the rows of the groups in stacks of `sizes` rows, equal to `build_row` of each.

    Return None for other documents (features, lists, mixed dtypes) and for invalid ones, so that
    `build_row` reports the error.
    """
    if (laid := _lay_out_rows(groups, length, multiple, dtype, pad)) is None:
        return None
    kind = _choose_dtype(laid.tokens, dtype)
    stacks, row = list[dict[str, Array]](), 0
    for edges in _split_into_blocks(sizes, length):
        rows = edges[-1]
        a, b = laid.bounds[row], laid.bounds[row + rows]
        if (tokens := _concatenate_tokens(laid.tokens[a:b], rows * length, kind)) is None:
            return None
        columns: tuple[Array, ...] = (
            tokens,
            laid.number[a:b].repeat(laid.counts[a:b]),
            np.concatenate(laid.positions[a:b]),
        )
        block = [column.reshape(rows, length) for column in columns]
        for a, b in pairwise(edges):
            stacks.append(
                dict(zip(_PACKED_COLUMNS, [column[a:b] for column in block], strict=True))
            )
        row += rows
    return stacks


def _split_into_blocks(sizes: Sequence[int], length: int) -> list[list[int]]:
    """Return the row offsets of items, in blocks of similar numbers of tokens."""
    blocks = list[list[int]]()
    for size in sizes:
        if not blocks or blocks[-1][-1] * length >= _BLOCK_TOKENS:
            blocks.append([0])
        blocks[-1].append(blocks[-1][-1] + size)
    return blocks


def _lay_out_rows(
    groups: Sequence[Sequence[Piece]], length: int, multiple: int, dtype: Any, pad: Any
) -> RowContents | None:
    """Return the contents of rows that are neighbours of one plan and have plain, valid vectors."""
    first, last = groups[0], groups[-1]
    if not isinstance(first, PlannedPieces) or not isinstance(last, PlannedPieces):
        return None
    # After a change of weights the next row may be of another plan, or earlier in this one.
    rows = [
        group
        for group in groups
        if isinstance(group, PlannedPieces) and group.columns is first.columns
    ]
    if len(rows) < len(groups) or any(row.stop != after.start for row, after in pairwise(rows)):
        return None
    part, (values, starts, stops) = slice(first.start, last.stop), first.columns
    starts, stops = starts[part], stops[part]
    if (
        int(stops.max()) >= len(CACHED_RAMP)
        or (pieces := _slice_documents(values, part, starts, stops)) is None
    ):
        return None
    counts = np.fromiter(map(len, pieces), np.int64, len(pieces))
    takes = stops - starts
    tails = takes - counts
    if tails.any() and (tails.min() < 0 or tails.max() >= multiple):
        return None
    bounds = np.asarray([*(row.start for row in rows), last.stop], np.int64) - first.start
    left = length - np.add.reduceat(takes, bounds[:-1])
    kind = _choose_dtype(pieces, dtype)
    if left.min() < 0 or not np.can_cast(pieces[0].dtype, kind, "same_kind"):
        return None
    # The number of a document in its row: the number over all rows, minus the documents before.
    number = np.arange(1, len(pieces) + 1, dtype=np.int32)
    number -= np.repeat(bounds[:-1].astype(np.int32), np.diff(bounds))
    positions = [
        CACHED_RAMP[a:b] for a, b in zip(starts.tolist(), (starts + counts).tolist(), strict=True)
    ]
    laid = RowContents(pieces, positions, number, counts, bounds.tolist())
    tails[bounds[1:] - 1] += left
    if not tails.any():
        return laid
    with suppress(OverflowError):
        return (
            _add_padding(laid, tails, cast_scalar(pad, kind), kind) if kind.kind in "iu" else None
        )
    return None


def _add_padding(laid: RowContents, tails: Ints, pad: Any, kind: np.dtype[Any]) -> RowContents:
    """Add `tails` entries of padding after the parts."""
    after = np.flatnonzero(tails) + 1
    counts, longest = tails[after - 1], int(tails.max())
    bounds = np.asarray(laid.bounds)
    return RowContents(
        _insert_padding(laid.tokens, after.tolist(), counts.tolist(), np.full(longest, pad, kind)),
        _insert_padding(
            laid.positions, after.tolist(), counts.tolist(), np.zeros(longest, np.int32)
        ),
        np.insert(laid.number, after, 0),
        np.insert(laid.counts, after, counts),
        (bounds + np.searchsorted(after, bounds, side="right")).tolist(),
    )


def _insert_padding(
    pieces: list[Array], after: list[int], counts: list[int], padding: Array
) -> list[Array]:
    """Insert `counts` entries of padding at some indices of the pieces."""
    out, done = list[Array](), 0
    for place, count in zip(after, counts, strict=True):
        out += pieces[done:place]
        out.append(padding[:count])
        done = place
    return out + pieces[done:]


def _choose_dtype(pieces: list[Array], dtype: Any) -> np.dtype[Any]:
    """Return the dtype of rows whose pieces are all integers, or all of one dtype."""
    if dtype is not None:
        return np.dtype(dtype)
    return TOKEN_DTYPE if pieces[0].dtype.kind in "iu" else pieces[0].dtype


def _slice_documents(
    values: Sequence[Any], part: slice, starts: Ints, stops: Ints
) -> list[Array] | None:
    """Slice documents that are vectors of integers, or of one other dtype; else return None."""
    if isinstance(values, DocumentSpans):
        return values.parts(part, starts, stops) if values.plain else None
    docs: Sequence[Any] = values[part]
    if list(map(type, docs)).count(np.ndarray) < len(docs) or not are_alike(docs):
        return None
    return [
        doc[start:stop]
        for doc, start, stop in zip(docs, starts.tolist(), stops.tolist(), strict=True)
    ]


def _concatenate_tokens(pieces: list[Array], size: int, kind: np.dtype[Any]) -> Array | None:
    """Concatenate the tokens of all pieces in a dtype; return None if it cannot hold them."""
    tokens = np.empty(size, kind)
    dtypes = {piece.dtype for piece in pieces}
    try:
        if len(dtypes) > 1:
            pieces = [cast_array(piece, kind) for piece in pieces]
        elif kind.kind in "fc" or not np.can_cast(pieces[0].dtype, kind):
            pieces = [cast_array(np.concatenate(pieces), kind)]
        np.concatenate(pieces, out=tokens, casting="same_kind")
    except OverflowError:
        return None
    return tokens
