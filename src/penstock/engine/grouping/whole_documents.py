"""Folds that keep documents whole: first fit and best fit, by size."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from itertools import compress
from math import isqrt
from typing import cast

from ...arguments import check_int
from ...arrays.trees import append_chunked, build_chunks
from ...errors import DataError
from ...types import Carry, Item, Json, Part
from .concat_split import (
    Long,
    Overflow,
    Piece,
    Row,
    check_settings,
    collect_settings,
    compute_room,
    count_tokens,
)

_CROP_ROWS = 16  # rows in a window of cropped documents, at least


@dataclass(frozen=True)
class FirstFit:
    """Put each document into the oldest open row with room; rows are about 99% full at 64 rows.

    A row closes when it is full, has `max_segments` documents, or is the oldest of more than
    `open_rows`. `long` handles a document over the length of a row: "split" makes full rows and a
    rest that is packed like a document. With "error" it is an error; with "truncate" only its
    first `length` tokens are packed. Documents without tokens are skipped. A step scans the open
    rows. This is first fit in bounded space, see Csirik and Johnson, "Bounded space on-line bin
    packing: best is better than first" (2001).

    >>> from penstock.engine.packing import plan_groups
    >>> plan_groups(FirstFit(8), [5, 6, 3, 2]).item.tolist()
    [0, 2, 1, 3]
    """

    KEY = None

    length: int
    open_rows: int = 64
    max_segments: int | None = None
    long: Long = "split"

    def __post_init__(self) -> None:
        check_settings(self)

    def init(self, key: int, /) -> Carry:
        return {"rows": [], "space": []}

    def step(self, carry: Carry, item: Item, /) -> tuple[Carry, list[Row]]:
        size, piece, ready = _split_full_rows(item, self.length, self.long)
        if piece is None:
            return carry, ready
        rows: list[Row] = [*carry["rows"]]
        space: list[int] = [*carry["space"]]
        at = next((i for i, room in enumerate(space) if room >= size), len(space))
        if at == len(space):
            rows.append([])
            space.append(self.length)
        rows[at] = [*rows[at], piece]
        space[at] -= size
        if space[at] == 0 or len(rows[at]) == self.max_segments:
            ready.append(rows.pop(at))
            del space[at]
        elif len(rows) > self.open_rows:
            ready.append(rows.pop(0))
            del space[0]
        return {"rows": rows, "space": space}, ready

    def flush(self, carry: Carry, /) -> list[Row]:
        return [*carry["rows"]]

    def restored(self, carry: Carry, /) -> Carry:
        rows = [[*row] for row in carry["rows"] if row]
        return {"rows": rows, "space": [compute_room(row, self.length) for row in rows]}

    def describe(self) -> Json:
        return {"fold": "first_fit", **collect_settings(self)}


@dataclass(frozen=True)
class BestFit:
    """Put each document into the fullest open row with room, longest documents first.

    Each step of packing places `window` documents, in order of decreasing size (`window=1`: in
    order of arrival). Rows that are full or have `max_segments` documents close. The `open_rows`
    emptiest of the others stay open for the next window, until `8 * open_rows` more rows were
    opened. With windows of 1,000 text documents, rows are more than 99.9% full; larger windows pack
    tighter and hold more documents. Rows that close together are ordered by the arrival of their
    first (longest) document, and the documents of a row by arrival. `long` and `max_segments` are
    as for `FirstFit`. Best-fit decreasing in bounded space; the fullest rows close first, as in
    Csirik and Johnson (2001).

    `overflow="split"` needs known lengths, and an endless input or the same documents in every
    pass. It packs windows of `rows` rows (256, or 1,024 for rows of 8,192 tokens or more)
    independently, so no row depends on earlier windows. A document that fits nowhere in its window
    is split over the room left. This mode ignores `open_rows`, `window` and `max_segments`.

    `overflow="crop"` fills every row and splits no document. It packs each `window` of documents
    into three quarters of the rows that they could fill; what fits nowhere stays for the next
    window. The room left in a row takes the beginning of the shortest of these; its rest is
    dropped, as is everything after the first `length` tokens of a document. At the end of a pass
    the documents left fill as many rows as they can. This mode ignores `open_rows`.

    >>> from penstock.engine.packing import plan_groups
    >>> plan_groups(BestFit(8), [5, 6, 2, 3]).item.tolist()
    [0, 3, 1, 2]
    """

    KEY = "BestFit"

    length: int
    open_rows: int = 4
    max_segments: int | None = None
    long: Long = "split"
    window: int = 1000
    overflow: Overflow = "never"
    rows: int | None = None

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def windowed(self) -> bool:
        """Return whether windows are packed independently, if lengths are known."""
        return self.overflow == "split"

    @property
    def crops(self) -> bool:
        """Return whether documents are cropped so that every row is full."""
        return self.overflow == "crop"

    @property
    def together(self) -> int:
        """The rows of an independent window."""
        return self.rows or choose_window_rows(self.length)

    def init(self, key: int, /) -> Carry:
        return {"window": [], "rows": [], "space": [], "born": [], "opened": 0}

    def step(self, carry: Carry, item: Item, /) -> tuple[Carry, list[Row]]:
        long = "truncate" if self.crops and self.long == "split" else self.long
        size, piece, ready = _split_full_rows(item, self.length, long)
        if piece is None:
            return carry, ready
        if self.crops and size == self.length:
            return carry, [[piece]]
        width = isqrt(self.window) + 1
        window = append_chunked(cast("list[Row]", carry["window"]), piece, width)
        if width * (len(window) - 1) + len(window[-1]) < self.window:
            return {**carry, "window": window}, ready
        if self.crops:
            if len(window[-1]) < width or not _holds_rows(window, self.length):
                return {**carry, "window": window}, ready
            rest, closed = _crop_window(window, self.length, 3, 4)
            return {**carry, "window": build_chunks(rest, width)}, closed
        carry, closed = self._pack_window(carry, window)
        return carry, ready + closed

    def flush(self, carry: Carry, /) -> list[Row]:
        if self.crops:
            return _crop_window(carry["window"], self.length, 1, 1)[1]
        carry, closed = self._pack_window(carry, carry["window"])
        return closed + _sort_rows(carry["rows"])

    def restored(self, carry: Carry, /) -> Carry:
        window = [piece for chunk in carry["window"] for piece in chunk if count_tokens(piece)]
        rows = sorted(
            ([*row] for row in carry["rows"] if row), key=lambda row: compute_room(row, self.length)
        )
        space = [compute_room(row, self.length) for row in rows]
        opened = check_int(carry["opened"], "{} rows", 0)
        born = [check_int(birth, "row {}", 0) for _, birth in zip(rows, carry["born"], strict=True)]
        return {
            "window": build_chunks(window, isqrt(self.window) + 1),
            "rows": rows,
            "space": space,
            "born": born,
            "opened": opened,
        }

    def describe(self) -> Json:
        return {"fold": "best_fit", **collect_settings(self)}

    def _pack_window(self, carry: Carry, window: list[Row]) -> tuple[Carry, list[Row]]:
        # Three parallel lists, sorted by space: the rows, the space left in each, and the number of
        # rows that were opened before each.
        rows: list[Row] = [*carry["rows"]]
        space: list[int] = [*carry["space"]]
        born: list[int] = [*carry["born"]]
        opened: int = carry["opened"]
        closed: list[Row] = []
        for piece in sorted(
            [piece for chunk in window for piece in chunk], key=count_tokens, reverse=True
        ):
            size = count_tokens(piece)
            at = bisect_left(space, size)
            if at < len(space):
                row, room, birth = [*rows.pop(at), piece], space.pop(at) - size, born.pop(at)
            else:
                row, room, birth, opened = [piece], self.length - size, opened, opened + 1
            if room == 0 or len(row) == self.max_segments:
                closed.append(row)
            else:
                at = bisect_right(space, room)
                rows.insert(at, row)
                space.insert(at, room)
                born.insert(at, birth)
        # Without a limit on age, a row that fits no document would stay in every cursor.
        oldest, fullest = opened - 8 * self.open_rows, len(rows) - self.open_rows
        if opened > carry["opened"] and (fullest > 0 or min(born, default=oldest) < oldest):
            stays = [i >= fullest and birth >= oldest for i, birth in enumerate(born)]
            closed += [row for row, stay in zip(rows, stays, strict=True) if not stay]
            rows, space = [*compress(rows, stays)], [*compress(space, stays)]
            born = [*compress(born, stays)]
        carry = {"window": [], "rows": rows, "space": space, "born": born, "opened": opened}
        return carry, _sort_rows(closed)


def _holds_rows(chunks: list[Row], length: int) -> bool:
    """Return whether a window has the tokens of enough rows to fill them well."""
    return sum(count_tokens(piece) for chunk in chunks for piece in chunk) >= _CROP_ROWS * length


def _crop_window(chunks: list[Row], length: int, part: int, of: int) -> tuple[Row, list[Row]]:
    """Fill `part / of` of the rows that a window can fill; return the pieces left, and the rows.

    A piece that fits nowhere is longer than the room left in each row. So the rows are full if at
    least as many pieces fit nowhere as rows have room.
    """
    pieces = sorted((piece for chunk in chunks for piece in chunk), key=count_tokens, reverse=True)
    tokens = sum(map(count_tokens, pieces))
    low, high = 0, tokens // length
    while low < high:
        middle = (low + high + 1) // 2
        _, space, late = _fit_pieces(pieces, length, middle)
        low, high = (middle, high) if sum(map(bool, space)) <= len(late) else (low, middle - 1)
    count = -(-low * part // of)
    rows, space, late = _fit_pieces(pieces, length, count)
    while sum(map(bool, space)) > len(late):  # fewer rows are rarely harder to fill
        count -= 1
        rows, space, late = _fit_pieces(pieces, length, count)
    rows = [sorted(row, key=_get_item_number) for row in rows]
    for row, room in zip(rows, space, strict=True):
        if room:
            piece = late.pop()
            row.append(Part(piece.item if isinstance(piece, Part) else piece, 0, room))
    return sorted(late, key=_get_item_number), sorted(
        rows, key=lambda row: min(map(_get_item_number, row))
    )


def _fit_pieces(pieces: Row, length: int, count: int) -> tuple[list[Row], list[int], Row]:
    """Put pieces, longest first, into the fullest of `count` rows: rows, room, pieces left."""
    rows, late = [list[Piece]() for _ in range(count)], list[Piece]()
    room = [(length, row) for row in range(count)]  # sorted
    for piece in pieces:
        size = count_tokens(piece)
        at = bisect_left(room, (size, -1))
        if at == len(room):
            late.append(piece)
            continue
        left, row = room.pop(at)
        rows[row].append(piece)
        if left > size:
            insort(room, (left - size, row))
    space = [0] * count
    for left, row in room:
        space[row] = left
    return rows, space, late


def choose_window_rows(length: int) -> int:
    """Return the default number of rows of an independent window."""
    return 256 if length < 8192 else 1024


def _sort_rows(rows: list[Row]) -> list[Row]:
    # By arrival, not by size: otherwise long documents would begin every window and every row.
    return [
        sorted(row, key=_get_item_number)
        for row in sorted(rows, key=lambda row: _get_item_number(row[0]))
    ]


def _split_full_rows(item: Item, length: int, long: Long) -> tuple[int, Piece | None, list[Row]]:
    """Split off full rows; return the size of the rest, the rest, and the full rows."""
    size = count_tokens(item)
    if size <= length:
        return size, item if size else None, []
    if long == "error":
        raise make_too_long_error(size, length, item.number)
    if long == "truncate":
        return length, Part(item, 0, length), []
    rest = size % length
    full: list[Row] = [
        [Part(item, start, start + length)] for start in range(0, size - rest, length)
    ]
    return rest, Part(item, size - rest, size) if rest else None, full


def _get_item_number(piece: Piece) -> int:
    return piece.item.number if isinstance(piece, Part) else piece.number


def make_too_long_error(size: int, length: int, number: int) -> DataError:
    """Return the error for a document over the length of a row, with `long="error"`."""
    return DataError(
        f"{size} tokens, more than a row of {length}: use a longer row, filter such documents out "
        "before pack, or pack with long='split' or long='truncate'",
        where=f"item {number}",
    )
