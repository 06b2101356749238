"""Windows of documents, each into exactly so many rows: whole where they fit, the rare rest over
the room that is left.

A window takes what begins in a fixed number of tokens, so where it lies needs no plan.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import TypeGuard

import numpy as np

from ...errors import ConfigError
from ...types import Ints
from ..base.ints import distinct
from ..base.random import permute
from ..base.rows import bounds_of
from ..grouping.apart import Apart, inner_of
from ..grouping.fit import BestFit, together, too_long
from ..grouping.pack import ConcatSplit
from .layout import Layout

_EACH = 64  # rows of a window for each group, so that the one that is not full costs little


def by_sums(fold: object) -> TypeGuard[ConcatSplit | BestFit | Apart]:
    """Whether the rows of a fold follow from how many tokens lie before them."""
    match fold:
        case ConcatSplit():
            return fold.max_segments is None
        case BestFit():
            return fold.windowed
        case Apart(inner):
            return by_sums(inner)
        case _:
            return False


class Windows:
    """Where the windows of a pass lie, and what is in them, for a fold of which any row is known
    without those before.

    Documents hold multiples of `multiple` tokens. What begins in the `span` tokens of a window ends
    within `rows` rows. The last of a pass takes what is left too.

    >>> windows = Windows(BestFit(8, rows=4))
    >>> windows.span, windows.many(60), windows.last(60, lambda: 0)
    (25, 2, 6)
    """

    def __init__(self, fold: BestFit | Apart, multiple: int = 1, groups: int = 1) -> None:
        inner = inner_of(fold)
        assert isinstance(inner, BestFit | ConcatSplit)
        self.length, self.multiple, self.groups = inner.length, multiple, groups
        self.whole = isinstance(inner, BestFit)
        self.long = inner.long if isinstance(inner, BestFit) else "split"
        self.rows = inner.together if isinstance(inner, BestFit) else together(inner.length)
        if isinstance(fold, Apart):
            self.rows = fold.rows or max(self.rows, _EACH * groups)
            if self.rows < 2 * groups + 2:
                raise ConfigError(
                    f"pack(rows={self.rows}, group_by={fold.by!r}): {groups} sources need windows "
                    "of at least "
                    f"{2 * groups + 2} rows"
                )
        self.span = (self.rows - groups) * self.length + groups * multiple

    def many(self, tokens: int) -> int:
        """The windows of a pass of so many tokens."""
        return max(tokens // self.span, 1)

    def last(self, tokens: int, least: Callable[[], int]) -> int:
        """The rows of its last window; `least` tells what best fit takes where there is no
        other."""
        many = self.many(tokens)
        if many == 1:
            return least()
        tokens -= (many - 1) * self.span  # a document from before it may take up to a row of them
        if self.groups > 1:
            return (tokens + self.groups * (self.length - self.multiple)) // self.length
        return min(-(-tokens // self.length) + 1, (tokens - self.length) // self.multiple + 1)

    def pieces(self, sizes: Ints, first: int, begin: int, end: int) -> tuple[Ints, Ints, Ints]:
        """Of documents of which the first begins at a token: the pieces of at most a row that begin
        in a window, as
        columns: the document, where in it the piece begins, its tokens.
        """
        if not self.whole:
            begins = first + np.cumsum(sizes) - sizes
            start, stop = np.maximum(begin - begins, 0), np.minimum(end - begins, sizes)
            item = np.flatnonzero(stop > start)
            return item, start[item], (stop - start)[item]
        if self.long == "refuse" and (long := np.flatnonzero(sizes > self.length)).size:
            raise too_long(int(sizes[long[0]]), self.length, int(long[0]))
        many = -(-sizes // self.length)
        item = np.repeat(np.arange(len(sizes)), many)
        start = (np.arange(len(item)) - np.repeat(np.cumsum(many) - many, many)) * self.length
        there = first + (np.cumsum(sizes) - sizes)[item] + start
        mine = (there >= begin) & (there < end)
        item, start = item[mine], start[mine]
        return item, start, np.minimum(sizes[item] - start, self.length)

    def packed(
        self,
        pieces: tuple[Ints, Ints, Ints],
        rows: int,
        key: int,
        number: int,
        of: Ints | None = None,
    ) -> Layout:
        """The rows of a window, in a random order: longest first is how they were made, and no
        order to learn from. `of` is the group of each document.
        """
        item, start, sizes = pieces
        if of is None:
            made = fill(sizes, self.length, rows, self.multiple)
        else:
            made = self._by_group(sizes, of[item], rows)
        bounds, parts = made.pieces(permute(np.arange(rows), rows, key, number))
        piece = made.item[parts]
        return Layout(
            bounds, item[piece], start[piece] + made.start[parts], start[piece] + made.stop[parts]
        )

    def _by_group(self, sizes: Ints, of: Ints, rows: int) -> Layout:
        """Pieces in rows of one group each."""
        groups = distinct(of)
        mine = [np.flatnonzero(of == group) for group in groups.tolist()]
        tokens = np.asarray([int(sizes[each].sum()) for each in mine])
        many = -(-tokens // self.length)
        for _ in range(rows - int(many.sum())):  # those that are left go where rows are the fullest
            many[int((tokens / many).argmax())] += 1
        made = list[Layout]()
        for each, count in zip(mine, many.tolist(), strict=True):
            how = (
                fill(sizes[each], self.length, count, self.multiple)
                if self.whole
                else self._evenly(sizes[each], count)
            )
            made.append(Layout(np.diff(how.bounds), each[how.item], how.start, how.stop))
        counts, *columns = (
            np.concatenate(column) for column in zip(*map(_columns, made), strict=True)
        )
        return Layout(bounds_of(counts), *columns)

    def _evenly(self, sizes: Ints, rows: int) -> Layout:
        """Pieces end to end, cut into rows of about as many tokens."""
        begins, total = bounds_of(sizes), int(sizes.sum()) // self.multiple
        edges = np.arange(rows + 1) * total // rows * self.multiple
        cuts = distinct(np.concatenate([begins, edges]))
        start, stop = cuts[:-1], cuts[1:]
        item = np.searchsorted(begins, start, side="right") - 1
        bounds = np.searchsorted(start, edges)
        return Layout(bounds, item, start - begins[item], stop - begins[item])

    def least(self, sizes: Ints, of: Ints | None = None) -> int:
        """How many rows all documents of a pass take, by best fit where they stay whole."""
        item, _, pieces = self.pieces(sizes, 0, 0, int(sizes.sum()))
        if of is None:
            return needed(pieces, self.length)
        mine = (pieces[of[item] == group] for group in distinct(of[item]).tolist())
        return sum(
            needed(each, self.length) if self.whole else -(-int(each.sum()) // self.length)
            for each in mine
        )

    def planned(self, sizes: Ints, key: int, of: Ints | None = None) -> Layout:
        """All windows of a pass of these documents, `of` these groups."""
        if self.long == "truncate":
            sizes = np.minimum(sizes, self.length)
        begins = bounds_of(sizes)
        tokens = int(begins[-1])
        if not tokens:
            return Layout(np.zeros(1, np.int64), *(np.zeros(0, np.int64),) * 3)
        many, made = self.many(tokens), list[Layout]()
        for number in range(many):
            begin, end = (
                number * self.span,
                tokens if number == many - 1 else (number + 1) * self.span,
            )
            first, stop = (
                int(np.searchsorted(begins, begin, side="right")) - 1,
                int(np.searchsorted(begins, end)),
            )
            pieces = self.pieces(sizes[first:stop], int(begins[first]), begin, end)
            rows = (
                self.rows if number < many - 1 else self.last(tokens, lambda: self.least(sizes, of))
            )
            found = self.packed(pieces, rows, key, number, None if of is None else of[first:stop])
            made.append(Layout(np.diff(found.bounds), found.item + first, found.start, found.stop))
        sizes_of, *columns = (
            np.concatenate(column) for column in zip(*map(_columns, made), strict=True)
        )
        return Layout(bounds_of(sizes_of), *columns)

    def settled(self, sizes: Ints, rows: int) -> int:
        """How many documents of a pass were looked at for so many of its rows."""
        if self.long == "truncate":
            sizes = np.minimum(sizes, self.length)
        begins = bounds_of(sizes)
        window = min(-(-rows // self.rows), self.many(int(begins[-1])))
        if window == self.many(int(begins[-1])):
            return len(sizes)
        return int(np.searchsorted(begins, window * self.span))


def _columns(layout: Layout) -> tuple[Ints, Ints, Ints, Ints]:
    return layout.bounds, layout.item, layout.start, layout.stop


def fill(sizes: Ints, length: int, rows: int, multiple: int = 1) -> Layout:
    """Pieces of at most `length` tokens in `rows` rows of that length: best fit, longest first.

    A piece that fits nowhere whole is split over the room that is left, and no row stays empty:
        there must be at least
    `rows * multiple` tokens, and at most `rows * length`, all cut at multiples. The pieces of a row
    are in their order. Best-fit decreasing, see Johnson et al., "Worst-case performance bounds for
    simple one-dimensional packing algorithms" (1974).

    >>> made = fill(np.array([5, 6, 2, 3]), 8, 2)
    >>> made.item.tolist(), made.bounds.tolist(), made.stop.tolist()
    ([1, 2, 0, 3], [0, 2, 4], [6, 2, 5, 3])
    """
    row, left = _placed(sizes, length, rows)
    late = np.flatnonzero(row < 0)
    piece, row = np.flatnonzero(row >= 0), row[row >= 0]
    start, stop = np.zeros_like(piece), sizes[piece]
    if len(late):
        parts = _spread(late.tolist(), sizes[late].tolist(), left)
        piece, row, start, stop = (
            np.concatenate(pair) for pair in zip((piece, row, start, stop), parts, strict=True)
        )
    for empty in np.flatnonzero(np.bincount(row, minlength=rows) == 0).tolist():
        piece, row, start, stop = _shared(empty, piece, row, start, stop, multiple)
    order = np.argsort(piece, kind="stable")  # no two parts of a piece are in one row
    order = order[_in_order(row[order], rows)]
    bounds = np.searchsorted(row[order], np.arange(rows + 1))
    return Layout(bounds, piece[order], start[order], stop[order])


def _in_order(numbers: Ints, most: int) -> Ints:
    """The order of numbers up to `most`, equal ones as they come: small numbers are sorted without
    comparing any."""
    return np.argsort(numbers.astype(np.uint16) if most < 1 << 16 else numbers, kind="stable")


def needed(sizes: Ints, length: int) -> int:
    """How many rows best fit opens where it may open as many as it wants.

    >>> needed(np.array([5, 6, 2, 3]), 8)
    2
    """
    return int(_placed(sizes, length, len(sizes))[0].max(initial=-1)) + 1


def _placed(sizes: Ints, length: int, rows: int) -> tuple[Ints, list[int]]:
    """The row of each piece, -1 where none has room, and the room that is left in each row."""
    order = _in_order(length - sizes, length)
    full = int(np.searchsorted(-sizes[order], -length, side="right"))  # these take a row each
    opened = min(full, rows)
    # A row with room is one number, the room times `rows` and the row: sorted, and after them one
    # beyond all.
    beyond, taken = (length + 1) * rows, list[int]()
    open_rows = [beyond]
    for size in (sizes[order[full:]] * rows).tolist():
        at = bisect_left(open_rows, size)
        found = open_rows[at]
        if found < beyond:
            del open_rows[at]
        elif opened < rows:
            found, opened = length * rows + opened, opened + 1
        else:
            taken.append(-1)
            continue
        taken.append(found)
        if found - size >= rows:
            insort(open_rows, found - size, 0, at)
    placed = np.full(len(sizes), -1)
    placed[order[:rows]] = np.arange(min(len(sizes), rows))  # of those that take one each
    numbers = np.asarray(taken, np.int64)
    placed[order[full:]] = np.where(numbers < 0, -1, numbers % max(rows, 1))
    left = [0] * opened + [length] * (rows - opened)
    for key in open_rows[:-1]:
        left[key % rows] = key // rows
    return placed, left


def _spread(pieces: list[int], sizes: list[int], left: list[int]) -> Ints:
    """The parts of pieces that fit nowhere, over the rows with the most room: piece, row, from
    where, to where."""
    parts, by_room = (
        list[tuple[int, int, int, int]](),
        sorted(range(len(left)), key=lambda row: (-left[row], row)),
    )
    rows = iter(by_room)
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


def _shared(
    empty: int, piece: Ints, row: Ints, start: Ints, stop: Ints, multiple: int
) -> tuple[Ints, Ints, Ints, Ints]:
    """Half of what is in the row with the most pieces into one without; where all have one, half of
    the longest."""
    many = np.bincount(row)
    if many.max() > 1:
        mine = np.flatnonzero(row == many.argmax())
        row = row.copy()
        row[mine[len(mine) // 2 :]] = empty
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
