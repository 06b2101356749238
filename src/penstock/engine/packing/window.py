"""Windowed packing: each window of documents fills a fixed number of rows.

Documents stay whole if they fit; the rare others are split over the room left. A window holds the
documents that begin in a fixed range of tokens, so its location needs no plan.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np

from ...errors import ConfigError
from ...types import Ints
from ..base.integers import find_distinct_values
from ..base.random import permute
from ..base.rows import compute_bounds
from ..grouping.concat_split import ConcatSplit, make_negative_size_error
from ..grouping.grouped_by_key import Apart, get_inner_fold
from ..grouping.row_lengths import EarlierLengths
from ..grouping.whole_documents import BestFit, choose_window_rows, make_too_long_error

_ROWS_PER_GROUP = 64  # in a window, so that the partial row of a group costs little


@dataclass(frozen=True, eq=False)
class GroupLayout:
    """Groups in int64 columns: group `r` has the parts `bounds[r]:bounds[r + 1]`.

    A part is `item[start:stop]`. `len(layout)` is the number of groups.
    """

    bounds: Ints
    item: Ints
    start: Ints
    stop: Ints

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def find_group(self, part: int) -> int:
        return int(np.searchsorted(self.bounds, part, side="right")) - 1

    def pieces(self, groups: Ints) -> tuple[Ints, Ints]:
        """Return the offsets of some groups in their concatenation, and the parts of all of them."""
        starts = self.bounds[groups]
        bounds = compute_bounds(self.bounds[groups + 1] - starts)
        return bounds, np.repeat(starts - bounds[:-1], np.diff(bounds)) + np.arange(int(bounds[-1]))


def has_independent_rows(fold: object) -> TypeGuard[ConcatSplit | BestFit | Apart]:
    """Return whether the rows of a fold follow from the number of tokens before them."""
    match fold:
        case ConcatSplit():
            return fold.max_segments is None
        case BestFit():
            return fold.windowed
        case Apart(inner):
            return has_independent_rows(inner)
        case _:
            return False


class WindowPlanner:
    """Locations and contents of the windows of a pass, for folds whose rows are independent.

    Documents have multiples of `multiple` tokens. The documents that begin in the `span` tokens of
    a window fit into `rows` rows. The last window of a pass also has the remainder.

    >>> windows = WindowPlanner(BestFit(8, rows=4))
    >>> windows.span, windows.many(60), windows.last(60, lambda: 0)
    (25, 2, 6)
    """

    def __init__(
        self, fold: ConcatSplit | BestFit | Apart, multiple: int = 1, groups: int = 1
    ) -> None:
        inner = get_inner_fold(fold)
        assert isinstance(inner, BestFit | ConcatSplit)
        self.length, self.multiple, self.groups = inner.length, multiple, groups
        self.whole = isinstance(inner, BestFit)
        self.long = inner.long if isinstance(inner, BestFit) else "split"
        self.rows = (
            inner.together if isinstance(inner, BestFit) else choose_window_rows(inner.length)
        )
        if isinstance(fold, Apart):
            self.rows = fold.rows or max(self.rows, _ROWS_PER_GROUP * groups)
            if self.rows < 2 * groups + 2:
                raise ConfigError(
                    f"pack(rows={self.rows}, group_by={fold.by!r}): {groups} sources need windows "
                    f"of at least {2 * groups + 2} rows"
                )
        self.span = (self.rows - groups) * self.length + groups * multiple
        self.in_order = isinstance(fold, ConcatSplit)
        self.earlier: EarlierLengths = fold.earlier if isinstance(fold, ConcatSplit) else ()
        if self.in_order:
            self.rows, self.span = 1, self.length

    @property
    def together(self) -> int:
        """The number of rows that depend on each other; 0 if each has its own tokens."""
        return 0 if self.in_order else self.rows

    def many(self, tokens: int) -> int:
        """Return the number of windows of a pass, given its tokens."""
        return max(tokens // self.span, 1)

    def last(self, tokens: int, least: Callable[[], int]) -> int:
        """Return the rows of the last window; a single window takes `least()` rows, by best fit."""
        windows = self.many(tokens)
        if windows == 1:
            return least()
        tokens -= (windows - 1) * self.span  # an earlier document may take up to a row of these
        if self.groups > 1:
            return (tokens + self.groups * (self.length - self.multiple)) // self.length
        return min(-(-tokens // self.length) + 1, (tokens - self.length) // self.multiple + 1)

    def pieces(self, sizes: Ints, first: int, begin: int, end: int) -> tuple[Ints, Ints, Ints]:
        """Split documents into pieces of at most a row, and return those that begin in a window.

        `first` is the token at which the first document begins; the window has the tokens
        `begin:end`. Columns are the document, the offset of the piece in it, and its tokens.
        """
        if not self.whole:
            begins = first + np.cumsum(sizes) - sizes
            start, stop = np.maximum(begin - begins, 0), np.minimum(end - begins, sizes)
            item = np.flatnonzero(stop > start)
            return item, start[item], (stop - start)[item]
        if self.long == "error" and (long := np.flatnonzero(sizes > self.length)).size:
            raise make_too_long_error(int(sizes[long[0]]), self.length, int(long[0]))
        counts = -(-sizes // self.length)
        item = np.repeat(np.arange(len(sizes)), counts)
        start = (np.arange(len(item)) - np.repeat(np.cumsum(counts) - counts, counts)) * self.length
        token = first + (np.cumsum(sizes) - sizes)[item] + start
        inside = (token >= begin) & (token < end)
        item, start = item[inside], start[inside]
        return item, start, np.minimum(sizes[item] - start, self.length)

    def packed(
        self,
        pieces: tuple[Ints, Ints, Ints],
        rows: int,
        key: int,
        number: int,
        of: Ints | None = None,
    ) -> GroupLayout:
        """Return the rows of a window, in random order if they depend on each other.

        Best fit creates rows with long documents first, which is a bad order for training. `of` has
        the group of each document.
        """
        item, start, sizes = pieces
        if of is None:
            layout = fill_rows(sizes, self.length, rows, self.multiple)
        else:
            layout = self._by_group(sizes, of[item], rows)
        bounds, parts = layout.pieces(permute(np.arange(rows), rows, key, number))
        columns = (column[parts] for column in (layout.item, layout.start, layout.stop))
        return _place_parts(GroupLayout(bounds, *columns), item, start)

    def cut(self, pieces: tuple[Ints, Ints, Ints], length: int) -> GroupLayout:
        """Return rows in order, which are cut from the pieces one after the other."""
        item, start, sizes = pieces
        return _place_parts(cut_rows(length, sizes), item, start)

    def _by_group(self, sizes: Ints, of: Ints, rows: int) -> GroupLayout:
        """Pack pieces into rows of one group each."""
        groups = find_distinct_values(of)
        members = [np.flatnonzero(of == group) for group in groups.tolist()]
        tokens = np.asarray([int(sizes[pieces].sum()) for pieces in members])
        row_counts = -(-tokens // self.length)
        for _ in range(rows - int(row_counts.sum())):  # spare rows go to the fullest groups
            row_counts[int((tokens / row_counts).argmax())] += 1
        layouts = list[GroupLayout]()
        for pieces, count in zip(members, row_counts.tolist(), strict=True):
            layout = (
                fill_rows(sizes[pieces], self.length, count, self.multiple)
                if self.whole
                else self._evenly(sizes[pieces], count)
            )
            layouts.append(
                GroupLayout(np.diff(layout.bounds), pieces[layout.item], layout.start, layout.stop)
            )
        counts, *columns = (
            np.concatenate(column) for column in zip(*map(_get_columns, layouts), strict=True)
        )
        return GroupLayout(compute_bounds(counts), *columns)

    def _evenly(self, sizes: Ints, rows: int) -> GroupLayout:
        """Concatenate pieces, and split them into rows of similar numbers of tokens."""
        begins, total = compute_bounds(sizes), int(sizes.sum()) // self.multiple
        edges = np.arange(rows + 1) * total // rows * self.multiple
        cuts = find_distinct_values(np.concatenate([begins, edges]))
        start, stop = cuts[:-1], cuts[1:]
        item = np.searchsorted(begins, start, side="right") - 1
        bounds = np.searchsorted(start, edges)
        return GroupLayout(bounds, item, start - begins[item], stop - begins[item])

    def least(self, sizes: Ints, of: Ints | None = None) -> int:
        """Return the rows that all documents of a pass need, by best fit if they stay whole."""
        item, _, pieces = self.pieces(sizes, 0, 0, int(sizes.sum()))
        if of is None:
            return count_needed_rows(pieces, self.length)
        by_group = (pieces[of[item] == group] for group in find_distinct_values(of[item]).tolist())
        return sum(
            count_needed_rows(group, self.length)
            if self.whole
            else -(-int(group.sum()) // self.length)
            for group in by_group
        )

    def planned(self, sizes: Ints, key: int, of: Ints | None = None) -> GroupLayout:
        """Pack all windows of a pass; `of` has the group of each document."""
        if self.in_order:
            return cut_rows(self.length, sizes)
        if self.long == "truncate":
            sizes = np.minimum(sizes, self.length)
        begins = compute_bounds(sizes)
        tokens = int(begins[-1])
        if not tokens:
            return GroupLayout(np.zeros(1, np.int64), *(np.zeros(0, np.int64),) * 3)
        windows, layouts = self.many(tokens), list[GroupLayout]()
        for number in range(windows):
            is_last = number == windows - 1
            begin = number * self.span
            end = tokens if is_last else begin + self.span
            first = int(np.searchsorted(begins, begin, side="right")) - 1
            stop = int(np.searchsorted(begins, end))
            pieces = self.pieces(sizes[first:stop], int(begins[first]), begin, end)
            rows = self.last(tokens, lambda: self.least(sizes, of)) if is_last else self.rows
            groups = None if of is None else of[first:stop]
            layout = self.packed(pieces, rows, key, number, groups)
            layouts.append(
                GroupLayout(np.diff(layout.bounds), layout.item + first, layout.start, layout.stop)
            )
        counts, *columns = (
            np.concatenate(column) for column in zip(*map(_get_columns, layouts), strict=True)
        )
        return GroupLayout(compute_bounds(counts), *columns)

    def count_settled(self, sizes: Ints, rows: int) -> int:
        """Return the number of documents of a pass that its first `rows` rows depend on."""
        if self.long == "truncate":
            sizes = np.minimum(sizes, self.length)
        begins = compute_bounds(sizes)
        if self.in_order:
            return int(np.searchsorted(begins, rows * self.length))
        window = min(-(-rows // self.rows), self.many(int(begins[-1])))
        if window == self.many(int(begins[-1])):
            return len(sizes)
        return int(np.searchsorted(begins, window * self.span))


def _place_parts(layout: GroupLayout, item: Ints, start: Ints) -> GroupLayout:
    """Return a layout of pieces as one of the documents that the pieces are parts of."""
    offset = start[layout.item]
    return GroupLayout(
        layout.bounds, item[layout.item], offset + layout.start, offset + layout.stop
    )


def _get_columns(layout: GroupLayout) -> tuple[Ints, Ints, Ints, Ints]:
    return layout.bounds, layout.item, layout.start, layout.stop


def cut_rows(length: int, sizes: Ints) -> GroupLayout:
    """Cut concatenated documents into rows of `length` tokens.

    >>> cut_rows(4, np.array([3, 6])).stop.tolist()
    [3, 1, 5, 6]
    """
    if (bad := np.flatnonzero(sizes < 0)).size:
        raise make_negative_size_error(int(bad[0]), int(sizes[bad[0]]))
    number = np.flatnonzero(sizes)
    ends = np.cumsum(sizes[number])
    starts = ends - sizes[number]
    # A document has a part in every row from the row of its first token to the row of its last.
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
    rows = int(row[-1]) + 1 if len(row) else 0
    return GroupLayout(
        np.searchsorted(row, np.arange(rows + 1)), np.repeat(number, counts), start, stop
    )


def fill_rows(sizes: Ints, length: int, rows: int, multiple: int = 1) -> GroupLayout:
    """Pack pieces of at most `length` tokens into `rows` rows of that length.

    A piece that fits nowhere is split over the room left, and no row stays empty. So there must be
    between `rows * multiple` and `rows * length` tokens; pieces are split at multiples. The pieces
    of a row keep their order. Best-fit decreasing, see Johnson et al., "Worst-case performance
    bounds for simple one-dimensional packing algorithms" (1974).

    >>> layout = fill_rows(np.array([5, 6, 2, 3]), 8, 2)
    >>> layout.item.tolist(), layout.bounds.tolist(), layout.stop.tolist()
    ([1, 2, 0, 3], [0, 2, 4], [6, 2, 5, 3])
    """
    row, left = _assign_best_fit(sizes, length, rows)
    late = np.flatnonzero(row < 0)
    piece, row = np.flatnonzero(row >= 0), row[row >= 0]
    start, stop = np.zeros_like(piece), sizes[piece]
    if len(late):
        parts = _split_over_rows(late.tolist(), sizes[late].tolist(), left)
        piece, row, start, stop = (
            np.concatenate(pair) for pair in zip((piece, row, start, stop), parts, strict=True)
        )
    for empty in np.flatnonzero(np.bincount(row, minlength=rows) == 0).tolist():
        piece, row, start, stop = _fill_empty_row(empty, piece, row, start, stop, multiple)
    order = np.argsort(piece, kind="stable")  # no two parts of a piece are in one row
    order = order[_stable_order(row[order], rows)]
    bounds = np.searchsorted(row[order], np.arange(rows + 1))
    return GroupLayout(bounds, piece[order], start[order], stop[order])


def _stable_order(numbers: Ints, most: int) -> Ints:
    """Return the stable order of numbers up to `most`; NumPy sorts small ones by radix sort."""
    return np.argsort(numbers.astype(np.uint16) if most < 1 << 16 else numbers, kind="stable")


def count_needed_rows(sizes: Ints, length: int) -> int:
    """Return the number of rows that best fit opens without a limit.

    >>> count_needed_rows(np.array([5, 6, 2, 3]), 8)
    2
    """
    return int(_assign_best_fit(sizes, length, len(sizes))[0].max(initial=-1)) + 1


def _assign_best_fit(sizes: Ints, length: int, rows: int) -> tuple[Ints, list[int]]:
    """Return the row of each piece (-1 if none has room), and the room left in each row."""
    order = _stable_order(length - sizes, length)
    full = int(np.searchsorted(-sizes[order], -length, side="right"))  # each fills a row
    opened = min(full, rows)
    # A row with room is encoded as room * rows + row, in a sorted list that ends with a sentinel.
    sentinel, codes = (length + 1) * rows, list[int]()
    open_rows = [sentinel]
    for size in (sizes[order[full:]] * rows).tolist():
        at = bisect_left(open_rows, size)
        code = open_rows[at]
        if code < sentinel:
            del open_rows[at]
        elif opened < rows:
            code, opened = length * rows + opened, opened + 1
        else:
            codes.append(-1)
            continue
        codes.append(code)
        if code - size >= rows:
            insort(open_rows, code - size, 0, at)
    placed = np.full(len(sizes), -1)
    placed[order[:rows]] = np.arange(min(len(sizes), rows))  # for the pieces that fill a row
    numbers = np.asarray(codes, np.int64)
    placed[order[full:]] = np.where(numbers < 0, -1, numbers % max(rows, 1))
    left = [0] * opened + [length] * (rows - opened)
    for key in open_rows[:-1]:
        left[key % rows] = key // rows
    return placed, left


def _split_over_rows(pieces: list[int], sizes: list[int], left: list[int]) -> Ints:
    """Split pieces over the rows with the most room: piece, row, start, stop of each part."""
    parts = list[tuple[int, int, int, int]]()
    rows = iter(sorted(range(len(left)), key=lambda row: (-left[row], row)))
    row = next(rows)
    for piece, size in zip(pieces, sizes, strict=True):
        done = 0
        while done < size:
            while not left[row]:
                row = next(rows)
            take = min(left[row], size - done)
            parts.append((piece, row, done, done + take))
            left[row] -= take
            done += take
    return np.asarray(parts, np.int64).T


def _fill_empty_row(
    empty: int, piece: Ints, row: Ints, start: Ints, stop: Ints, multiple: int
) -> tuple[Ints, Ints, Ints, Ints]:
    """Move half of the pieces of the row with the most into an empty row.

    If all rows have one piece, move half of the longest piece.
    """
    counts = np.bincount(row)
    if counts.max() > 1:
        members = np.flatnonzero(row == counts.argmax())
        row = row.copy()
        row[members[len(members) // 2 :]] = empty
        return piece, row, start, stop
    longest = int((stop - start).argmax())
    begin, end = int(start[longest]), int(stop[longest])
    middle = begin + (end - begin) // (2 * multiple) * multiple
    stop = stop.copy()
    stop[longest] = middle
    return (
        np.append(piece, piece[longest]),
        np.append(row, empty),
        np.append(start, middle),
        np.append(stop, end),
    )
