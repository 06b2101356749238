"""Planned packing: run a fold over lengths alone, and return its groups in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from ...errors import DataError
from ...types import Carry, Fold, Ints, Item, Part
from ..base.progress import Progress
from ..grouping.concat_split import ConcatSplit, Piece
from ..grouping.grouped_by_key import Apart, get_inner_fold
from ..grouping.whole_documents import BestFit, FirstFit
from .window import GroupLayout, WindowPlanner, has_independent_rows

_PROGRESS_CHUNK = 1 << 14  # documents between two reports of progress


def count_settled_documents(
    fold: Fold,
    lengths: Ints,
    key: int,
    rows: int,
    multiple: int = 1,
    of: Ints | None = None,
    groups: int = 1,
) -> int:
    """Return the number of documents after which a fold has emitted `rows` rows of a plan.

    All documents, if the end of the pass emits the last of these rows.

    >>> from penstock.engine.packing import FirstFit
    >>> sizes = np.array([5, 6, 3, 8])
    >>> count_settled_documents(FirstFit(8), sizes, 0, 1)
    3
    """
    if rows <= 0:
        return 0
    if has_independent_rows(fold):
        return WindowPlanner(fold, multiple, groups).count_settled(lengths, rows)
    carry, emitted = fold.init(key), 0
    for number, size in enumerate(lengths.tolist()):
        if emitted >= rows:
            return number
        carry, ready = _step_fold(fold, carry, Item(number, size, None), of)
        emitted += len(ready)
    return len(lengths)


def adjust_group_count(
    later: GroupLayout,
    lengths: Ints,
    first: GroupLayout,
    before: Ints,
    fold: Fold,
    multiple: int = 1,
) -> GroupLayout:
    """Adjust the plan of a later pass to the number of groups of the first pass.

    So all passes are equally long. Missing groups are created by dividing the last groups. If that
    is not enough, each document gets the place of a document of its length in the first pass. With
    other lengths, pieces are halved until there are enough. Surplus groups at the end are dropped.
    """
    missing = len(first) - len(later)
    inside = np.ones(len(later.item), np.bool_)
    inside[later.bounds[:-1]] = False
    cuts = np.flatnonzero(inside)
    crops = isinstance(inner := get_inner_fold(fold), BestFit) and inner.crops
    alike = crops and np.array_equal(np.sort(before), np.sort(lengths))
    if 0 <= missing <= len(cuts) and not alike:
        bounds = np.sort(np.concatenate([later.bounds, cuts[len(cuts) - missing :]]))
        return replace(later, bounds=bounds)
    old_order, new_order = np.argsort(before, kind="stable"), np.argsort(lengths, kind="stable")
    if np.array_equal(before[old_order], lengths[new_order]):
        place = np.empty_like(old_order)
        place[old_order] = new_order
        return replace(first, item=place[first.item])
    if missing > 0:
        return _halve_pieces(
            later,
            len(first),
            multiple if isinstance(get_inner_fold(fold), ConcatSplit | FirstFit | BestFit) else 0,
        )
    bounds = later.bounds[: len(first) + 1]
    return GroupLayout(
        bounds, *(column[: int(bounds[-1])] for column in (later.item, later.start, later.stop))
    )


def _halve_pieces(later: GroupLayout, groups: int, multiple: int) -> GroupLayout:
    """Create `groups` groups of one piece each, by halving the longest pieces at a multiple.

    With `multiple` 0, pieces cannot be divided.
    """
    item, start, stop = later.item, later.start, later.stop
    while (missing := groups - len(item)) > 0:
        sizes = stop - start
        cut = np.argsort(-sizes, kind="stable")[
            : min(missing, np.count_nonzero(sizes > multiple) if multiple else 0)
        ]
        if not cut.size:
            raise DataError(
                f"pack: the first pass fills {groups} rows, a later one of "
                f"{len(np.unique(later.item))} documents cannot; pack passes that hold the same "
                "documents"
            )
        middle = start + sizes // (2 * multiple) * multiple
        times = np.ones(len(item), np.int64)
        times[cut] = 2
        piece = np.repeat(np.arange(len(item)), times)
        second = np.append(False, piece[1:] == piece[:-1])
        halved = times[piece] == 2
        item = item[piece]
        start = np.where(second, middle[piece], start[piece])
        stop = np.where(halved & ~second, middle[piece], stop[piece])
    return GroupLayout(np.arange(len(item) + 1), item, start, stop)


def plan_groups(
    fold: Fold,
    lengths: npt.ArrayLike,
    key: int = 0,
    multiple: int = 1,
    of: Ints | None = None,
    groups: int = 1,
) -> GroupLayout:
    """Run a fold over the lengths of one pass, without data, and return its groups.

    All lengths are multiples of `multiple`, and are split at multiples. `of` has the group of each
    document, for `Apart`; `groups` is the number of groups. `ConcatSplit` without `max_segments` is
    vectorised (about 0.2 us a document), windowed folds run window by window, other folds step by
    step.

    >>> from penstock.engine.packing import FirstFit
    >>> layout = plan_groups(FirstFit(8), [5, 6, 3])
    >>> layout.bounds.tolist(), layout.item.tolist(), layout.start.tolist(), layout.stop.tolist()
    ([0, 2, 3], [0, 2, 1], [0, 0, 0], [5, 3, 6])
    """
    sizes = np.asarray(lengths, np.int64)
    if has_independent_rows(fold):
        return WindowPlanner(fold, multiple, groups).planned(
            sizes, key, of if isinstance(fold, Apart) else None
        )
    bounds, number, start, stop = [0], list[int](), list[int](), list[int]()

    def append(groups: Sequence[Sequence[Piece]]) -> None:
        for group in groups:
            for piece in group:
                item, first, last = piece if isinstance(piece, Part) else (piece, 0, piece.size)
                number.append(item.number)
                start.append(first)
                stop.append(last)
            bounds.append(len(number))

    carry = fold.init(key)
    with Progress("pack lengths", len(sizes), "documents") as progress:
        for first in range(0, len(sizes), _PROGRESS_CHUNK):
            progress.tell(first)
            for i, size in enumerate(sizes[first : first + _PROGRESS_CHUNK].tolist(), first):
                carry, ready = _step_fold(fold, carry, Item(i, size, None), of)
                if ready:
                    append(ready)
    append(fold.flush(carry))
    return GroupLayout(*(np.array(column, np.int64) for column in (bounds, number, start, stop)))


def _step_fold(
    fold: Fold, carry: Carry, item: Item, of: Ints | None
) -> tuple[Carry, Sequence[Sequence[Piece]]]:
    """Run a step of a fold, in the group of the item."""
    if isinstance(fold, Apart) and of is not None:
        return fold.take(carry, item, f"{of[item.number]:09}")
    return fold.step(carry, item)


class PlannedPieces(Sequence[Part]):
    """Parts of a planned group: entries `start:stop` of columns shared by the groups of a chunk."""

    __slots__ = ("columns", "start", "stop")

    def __init__(self, columns: PieceColumns, start: int, stop: int) -> None:
        self.columns, self.start, self.stop = columns, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    @overload
    def __getitem__(self, index: int) -> Part: ...
    @overload
    def __getitem__(self, index: slice) -> list[Part]: ...
    def __getitem__(self, index: int | slice) -> Part | list[Part]:
        entries = range(self.start, self.stop)[index]
        if isinstance(entries, int):
            return self._part(entries)
        return [self._part(entry) for entry in entries]

    @property
    def row_length(self) -> int | None:
        """The tokens of the row; None for the length of the packing."""
        lengths = self.columns.lengths
        return None if lengths is None else int(lengths[self.start])

    def _part(self, entry: int) -> Part:
        values, starts, stops, _ = self.columns
        return Part(Item(0, 0, values[entry]), int(starts[entry]), int(stops[entry]))


class PieceColumns(NamedTuple):
    """Documents and the ranges of their tokens; `lengths` of their rows where these differ."""

    values: Sequence[Any]
    starts: Ints
    stops: Ints
    lengths: Ints | None = None
