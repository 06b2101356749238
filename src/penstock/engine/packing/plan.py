"""Packing ahead of time: a fold run over lengths alone, its groups in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from ...errors import DataError
from ...types import Carry, Fold, Ints, Item, Part
from ..base.progress import Progress
from ..grouping.apart import Apart, inner_of
from ..grouping.fit import BestFit, FirstFit
from ..grouping.pack import ConcatSplit, Piece, negative
from .layout import Layout
from .window import Windows, by_sums

_CHUNK = 1 << 14  # documents that a fold is given before it tells how far it is
_CUT = 1 << 22  # documents cut at a time


def settled(
    fold: Fold,
    lengths: Ints,
    key: int,
    made: Layout,
    rows: int,
    multiple: int = 1,
    of: Ints | None = None,
    groups: int = 1,
) -> int:
    """After how many documents a fold has given so many rows of a plan; all where the end of the
    pass decides.

    >>> from penstock.engine.packing import FirstFit
    >>> sizes = np.array([5, 6, 3, 8])
    >>> settled(FirstFit(8), sizes, 0, plan(FirstFit(8), sizes), 1)
    3
    """
    if rows <= 0:
        return 0
    if by_sums(fold):
        if isinstance(fold, ConcatSplit):
            return int(made.item[made.bounds[rows] - 1]) + 1
        return Windows(fold, multiple, groups).settled(lengths, rows)
    carry, given = fold.init(key), 0
    for number, size in enumerate(lengths.tolist()):
        if given >= rows:
            return number
        carry, ready = _taken(fold, carry, Item(number, size, None), of)
        given += len(ready)
    return len(lengths)


def fitted(
    own: Layout, lengths: Ints, first: Layout, before: Ints, fold: Fold, multiple: int = 1
) -> Layout:
    """The plan of a later pass, made to have as many groups as that of the first pass, so that
    passes stay as long.

    Groups that are missing come from cutting the last ones in two. Where that does not do, each
    document takes a place that one of its length has in the first pass; fewer tokens are cut into
    as many pieces. A pass of other lengths gives up the groups at its end.
    """
    more = len(first) - len(own)
    inside = np.ones(len(own.item), np.bool_)
    inside[own.bounds[:-1]] = False
    cuts = np.flatnonzero(inside)
    if 0 <= more <= len(cuts):
        return replace(own, bounds=np.sort(np.concatenate([own.bounds, cuts[len(cuts) - more :]])))
    was, now = np.argsort(before, kind="stable"), np.argsort(lengths, kind="stable")
    if np.array_equal(before[was], lengths[now]):
        place = np.empty_like(was)
        place[was] = now
        return replace(first, item=place[first.item])
    if more > 0:
        return _halved(
            own,
            len(first),
            multiple if isinstance(inner_of(fold), ConcatSplit | FirstFit | BestFit) else 0,
        )
    bounds = own.bounds[: len(first) + 1]
    return Layout(
        bounds, *(column[: int(bounds[-1])] for column in (own.item, own.start, own.stop))
    )


def _halved(own: Layout, groups: int, multiple: int) -> Layout:
    """So many groups of one piece each: the longest pieces are cut in two, at a multiple (0:
    nowhere), until there are enough.
    """
    item, start, stop = own.item, own.start, own.stop
    while (missing := groups - len(item)) > 0:
        sizes = stop - start
        cut = np.argsort(-sizes, kind="stable")[
            : min(missing, np.count_nonzero(sizes > multiple) if multiple else 0)
        ]
        if not cut.size:
            raise DataError(
                f"pack: the first pass fills {groups} rows, a later one of "
                f"{len(np.unique(own.item))} documents "
                "cannot; pack passes that hold the same documents"
            )
        middle = start + sizes // (2 * multiple) * multiple
        times = np.ones(len(item), np.int64)
        times[cut] = 2
        piece = np.repeat(np.arange(len(item)), times)
        second = np.append(False, piece[1:] == piece[:-1])
        halved = times[piece] == 2
        item, start, stop = (
            item[piece],
            np.where(second, middle[piece], start[piece]),
            np.where(halved & ~second, middle[piece], stop[piece]),
        )
    return Layout(np.arange(len(item) + 1), item, start, stop)


def plan(
    fold: Fold,
    lengths: npt.ArrayLike,
    key: int = 0,
    multiple: int = 1,
    of: Ints | None = None,
    groups: int = 1,
) -> Layout:
    """Run a fold over one pass of lengths, without data: who goes together, as columns.

    All lengths are multiples of `multiple`, and cut at such; `of` are the groups of documents, for
    `Apart`, of which there are so many `groups`. `ConcatSplit` without `max_segments` is computed
    at once (about 0.2 us a document), what is packed in windows window by window, any other fold
    step by step.

    >>> from penstock.engine.packing import FirstFit
    >>> made = plan(FirstFit(8), [5, 6, 3])
    >>> made.bounds.tolist(), made.item.tolist(), made.start.tolist(), made.stop.tolist()
    ([0, 2, 3], [0, 2, 1], [0, 0, 0], [5, 3, 6])
    """
    sizes = np.asarray(lengths, np.int64)
    if by_sums(fold):
        if isinstance(fold, ConcatSplit):
            return _plan_concat(fold.length, sizes)
        return Windows(fold, multiple, groups).planned(
            sizes, key, of if isinstance(fold, Apart) else None
        )
    bounds, number, start, stop = [0], list[int](), list[int](), list[int]()

    def note(groups: Sequence[Sequence[Piece]]) -> None:
        for group in groups:
            for piece in group:
                item, first, last = piece if isinstance(piece, Part) else (piece, 0, piece.size)
                number.append(item.number)
                start.append(first)
                stop.append(last)
            bounds.append(len(number))

    carry = fold.init(key)
    with Progress("pack lengths", len(sizes), "documents") as progress:
        for first in range(0, len(sizes), _CHUNK):
            progress.tell(first)
            for i, size in enumerate(sizes[first : first + _CHUNK].tolist(), first):
                carry, ready = _taken(fold, carry, Item(i, size, None), of)
                if ready:
                    note(ready)
    note(fold.flush(carry))
    return Layout(*(np.array(column, np.int64) for column in (bounds, number, start, stop)))


def _taken(
    fold: Fold, carry: Carry, item: Item, of: Ints | None
) -> tuple[Carry, Sequence[Sequence[Piece]]]:
    """A step, of the group that the item is in."""
    if isinstance(fold, Apart) and of is not None:
        return fold.take(carry, item, f"{of[item.number]:09}")
    return fold.step(carry, item)


def _plan_concat(length: int, lengths: Ints) -> Layout:
    if (bad := np.flatnonzero(lengths < 0)).size:
        raise negative(int(bad[0]), int(lengths[bad[0]]))
    number = np.flatnonzero(lengths)
    ends = np.cumsum(lengths[number])
    starts = ends - lengths[number]
    # A document has a part in every row it touches: from the row of its first token to that of its
    # last.
    parts = [np.zeros((4, 0), np.int64)]
    with Progress("cut documents into rows", len(number), "documents") as progress:
        for a in range(0, len(number), _CUT):
            progress.tell(a)
            parts.append(
                cut_at(length, number[a : a + _CUT], starts[a : a + _CUT], ends[a : a + _CUT])
            )
    row, item, start, stop = np.concatenate(parts, axis=1)
    rows = int(row[-1]) + 1 if len(row) else 0
    return Layout(np.searchsorted(row, np.arange(rows + 1)), item, start, stop)


def cut_at(length: int, number: Ints, starts: Ints, ends: Ints) -> Ints:
    """The parts of some documents, in columns: row, document, and the tokens of it from where to
    where."""
    first = starts // length
    counts = (ends - 1) // length - first + 1
    row = np.repeat(first - np.cumsum(counts) + counts, counts)
    row += np.arange(len(row))
    start, stop = row * length, (row + 1) * length
    np.minimum(stop, np.repeat(ends, counts), out=stop)
    origin = np.repeat(starts, counts)
    start -= origin
    stop -= origin
    np.maximum(start, 0, out=start)
    return np.stack([row, np.repeat(number, counts), start, stop])


class Pieces(Sequence[Part]):
    """The parts of one planned group: entries `start:stop` of columns that all groups of a chunk
    share."""

    __slots__ = ("columns", "start", "stop")

    def __init__(self, columns: Columns, start: int, stop: int) -> None:
        self.columns, self.start, self.stop = columns, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    @overload
    def __getitem__(self, index: int) -> Part: ...
    @overload
    def __getitem__(self, index: slice) -> list[Part]: ...
    def __getitem__(self, index: int | slice) -> Part | list[Part]:
        places = range(self.start, self.stop)[index]
        return (
            self._part(places)
            if isinstance(places, int)
            else [self._part(place) for place in places]
        )

    def _part(self, place: int) -> Part:
        values, starts, stops = self.columns
        return Part(Item(0, 0, values[place]), int(starts[place]), int(stops[place]))


class Columns(NamedTuple):
    """Documents and the ranges of their tokens."""

    values: Sequence[Any]
    starts: Ints
    stops: Ints
