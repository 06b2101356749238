"""Folds that keep documents whole: which share a row, decided from their sizes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import compress
from math import isqrt
from typing import cast

from ...errors import DataError
from ...types import Carry, Item, Json, Part
from ..base.ints import whole
from ..base.tree import grown, regrown
from .pack import Long, Overflow, Piece, Row, check, room_of, settings_of, tokens_in


@dataclass(frozen=True)
class FirstFit:
    """Each document goes whole into the oldest open row that has room; about 99% full with 64 open
    rows.

    A row closes when it is full, has `max_segments` documents, or is the oldest of more than
    `open_rows`. A document longer than a row is cut into full rows and a rest that is packed like a
    document (`long="split"`), is an error (`"refuse"`), or keeps its first `length` tokens and
    loses the others (`"truncate"`). Documents without a token are skipped. First-fit in bounded space,
    see Csirik and Johnson, "Bounded space on-line bin packing: best is better than first" (2001). A
    step looks at the open rows one by one.

    >>> from penstock.engine.packing import plan
    >>> plan(FirstFit(8), [5, 6, 3, 2]).item.tolist()
    [0, 2, 1, 3]
    """

    KEY = None

    length: int
    open_rows: int = 64
    max_segments: int | None = None
    long: Long = "split"

    def __post_init__(self) -> None:
        check(self)

    def init(self, key: int, /) -> Carry:
        return {"rows": [], "space": []}

    def step(self, carry: Carry, item: Item, /) -> tuple[Carry, list[Row]]:
        size, piece, ready = _shorten(item, self.length, self.long)
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
        return {"rows": rows, "space": [room_of(row, self.length) for row in rows]}

    def describe(self) -> Json:
        return {"fold": "first_fit", **settings_of(self)}


@dataclass(frozen=True)
class BestFit:
    """Each document goes whole into the open row with the least room that it fits in, longest
    documents first.

    Places `window` documents at a time, in order of decreasing size (`window=1` places each as it
    comes). Rows that are full or have `max_segments` documents close; of the others the `open_rows`
    emptiest stay open for the next window, each until `8 * open_rows` more rows were opened. With a
    window of 1,000 documents of text, rows are more than 99.9% full. Rows that close together come
    in order of the arrival of the longest document each began with, the documents of a row in order
    of arrival. `long` and `max_segments` are as for `FirstFit`. Best-fit decreasing in bounded
    space, the fullest rows closed first as in Csirik and Johnson (2001). A larger window packs
    tighter, and holds more documents.

    Where lengths are known, and the flow never ends or has the same documents in every pass,
    `overflow="split"` packs windows of `rows` rows (256, 1,024 for rows of 8,192 tokens or more)
    one by one: any row is known without those before. A document that fits nowhere in its window is
    split over the room that is left there. `open_rows`, `window` and `max_segments` are for the
    others.

    >>> from penstock.engine.packing import plan
    >>> plan(BestFit(8), [5, 6, 2, 3]).item.tolist()
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
        check(self)

    @property
    def windowed(self) -> bool:
        """Whether windows are packed one by one, where lengths are known."""
        return self.overflow == "split"

    @property
    def together(self) -> int:
        """The rows of a window where any is known without those before."""
        return self.rows or together(self.length)

    def init(self, key: int, /) -> Carry:
        return {"window": [], "rows": [], "space": [], "born": [], "opened": 0}

    def step(self, carry: Carry, item: Item, /) -> tuple[Carry, list[Row]]:
        _, piece, ready = _shorten(item, self.length, self.long)
        if piece is None:
            return carry, ready
        width = isqrt(self.window) + 1
        window = grown(cast("list[Row]", carry["window"]), piece, width)
        if width * (len(window) - 1) + len(window[-1]) < self.window:
            return {**carry, "window": window}, ready
        carry, closed = self._place(carry, window)
        return carry, ready + closed

    def flush(self, carry: Carry, /) -> list[Row]:
        carry, closed = self._place(carry, carry["window"])
        return closed + _arranged(carry["rows"])

    def restored(self, carry: Carry, /) -> Carry:
        window = [piece for chunk in carry["window"] for piece in chunk if tokens_in(piece)]
        rows = sorted(
            ([*row] for row in carry["rows"] if row), key=lambda row: room_of(row, self.length)
        )
        space, opened = (
            [room_of(row, self.length) for row in rows],
            whole(carry["opened"], "{} rows", 0),
        )
        born = [whole(birth, "row {}", 0) for _, birth in zip(rows, carry["born"], strict=True)]
        return {
            "window": regrown(window, isqrt(self.window) + 1),
            "rows": rows,
            "space": space,
            "born": born,
            "opened": opened,
        }

    def describe(self) -> Json:
        return {"fold": "best_fit", **settings_of(self)}

    def _place(self, carry: Carry, window: list[Row]) -> tuple[Carry, list[Row]]:
        # Three lists in step, by growing space: the rows, the space left in each, how many were
        # opened before it.
        rows: list[Row] = [*carry["rows"]]
        space: list[int] = [*carry["space"]]
        born: list[int] = [*carry["born"]]
        opened: int = carry["opened"]
        closed: list[Row] = []
        for piece in sorted(
            [piece for chunk in window for piece in chunk], key=tokens_in, reverse=True
        ):
            size = tokens_in(piece)
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
        # Without the limit on age a row that nothing fits in could be held for ever, and every
        # cursor with it.
        oldest, fullest = opened - 8 * self.open_rows, len(rows) - self.open_rows
        if opened > carry["opened"] and (fullest > 0 or min(born, default=oldest) < oldest):
            stays = [i >= fullest and birth >= oldest for i, birth in enumerate(born)]
            closed += [row for row, stay in zip(rows, stays, strict=True) if not stay]
            rows, space, born = (
                [*compress(rows, stays)],
                [*compress(space, stays)],
                [*compress(born, stays)],
            )
        carry = {"window": [], "rows": rows, "space": space, "born": born, "opened": opened}
        return carry, _arranged(closed)


def together(length: int) -> int:
    """The rows of a window where nobody says."""
    return 256 if length < 8192 else 1024


def _arranged(rows: list[Row]) -> list[Row]:
    # By arrival, not by size: else every window would begin with long documents, and every row too.
    return [sorted(row, key=_number) for row in sorted(rows, key=lambda row: _number(row[0]))]


def _shorten(item: Item, length: int, long: Long) -> tuple[int, Piece | None, list[Row]]:
    """What of a document must be fitted into a row, its size, and the full rows cut from the
    document before."""
    size = tokens_in(item)
    if size <= length:
        return size, item if size else None, []
    if long == "refuse":
        raise too_long(size, length, item.number)
    if long == "truncate":
        return length, Part(item, 0, length), []
    rest = size % length
    full: list[Row] = [
        [Part(item, start, start + length)] for start in range(0, size - rest, length)
    ]
    return rest, Part(item, size - rest, size) if rest else None, full


def _number(piece: Piece) -> int:
    return piece.item.number if isinstance(piece, Part) else piece.number


def too_long(size: int, length: int, number: int) -> DataError:
    """The error for a document over a row where such are refused."""
    return DataError(
        f"{size} tokens, more than a row of {length}: use a longer row, filter such documents out "
        "before pack, "
        "or pack with long='split' or long='truncate'",
        where=f"item {number}",
    )
