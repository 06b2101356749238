"""Folds that pack: which documents share a row, decided from their sizes.

A carry is plain lists and dicts; `step` copies what it changes. Groups hold an `Item` where a document is whole and
a `Part` where it is split. Documents without a token are skipped.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import compress
from math import isqrt
from typing import Any, Literal, TypeAlias, cast, get_args

from ..base.hints import chosen
from ..base.ints import whole
from ..base.tree import cut, grown, join, regrown
from ..errors import ConfigError, DataError
from ..types import Carry, Item, Json, Part

Long: TypeAlias = Literal["split", "refuse", "cut"]
Piece: TypeAlias = Item | Part
Row: TypeAlias = list[Piece]

LONGS: tuple[Long, ...] = get_args(Long)


def _check(fold: Any) -> None:
    """Refuse settings of a fold that cannot work, by name."""
    for field in fields(fold):
        value = getattr(fold, field.name)
        if field.name == "long":
            chosen(value, LONGS, "pack(long={})")
        elif field.name != "drop_remainder" and (value is not None or field.name != "max_segments"):
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"pack: {field.name} must be a whole number of at least 1, not {value!r}")


# ---------------------------------------------------------------- folds that split


@dataclass(frozen=True)
class ConcatSplit:
    """Documents end to end, cut every `length` tokens: no padding but in the last row of a pass.

    Every token once and in order, at the price of documents that are split. With `max_segments` a row is closed,
    and padded, once it has that many documents. Documents without a token are skipped.

    >>> from penstock.pack import plan
    >>> plan(ConcatSplit(4), [3, 6]).stop.tolist()
    [3, 1, 5, 6]
    """

    length: int
    max_segments: int | None = None

    def __post_init__(self) -> None:
        _check(self)

    def init(self, key: int, /) -> Carry:
        return {"held": [], "room": self.length}

    def step(self, carry: Carry, item: Item, /) -> tuple[Carry, list[Row]]:
        return _fill(carry, item, self.length, self.max_segments)

    def flush(self, carry: Carry, /) -> list[Row]:
        return [carry["held"]] if carry["held"] else []

    def restored(self, carry: Carry, /) -> Carry:
        return _refilled(carry, self.length)

    def describe(self) -> Json:
        return {"fold": "concat_split", "length": self.length, "max_segments": self.max_segments}


@dataclass(frozen=True)
class Rebatch:
    """Batches of `n` rows, cut from the rows of the batches that come in; build them with `join_parts`.

    >>> from penstock.pack import plan
    >>> plan(Rebatch(4), [3, 6]).bounds.tolist()
    [0, 2, 3, 4]
    """

    n: int
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        _check(self)

    def init(self, key: int, /) -> Carry:
        return {"held": [], "room": self.n}

    def step(self, carry: Carry, item: Item, /) -> tuple[Carry, list[Row]]:
        return _fill(carry, item, self.n, None)

    def flush(self, carry: Carry, /) -> list[Row]:
        return [carry["held"]] if carry["held"] and not self.drop_remainder else []

    def restored(self, carry: Carry, /) -> Carry:
        return _refilled(carry, self.n)

    def describe(self) -> Json:
        return {"fold": "rebatch", "n": self.n, "drop_remainder": self.drop_remainder}


def join_parts(parts: Sequence[Piece]) -> Any:
    """The batch that `Rebatch` decided on: the parts of trees of arrays, joined along axis 0.

    >>> import numpy as np
    >>> join_parts([Part(Item(0, 3, np.arange(3)), 1, 3), Item(1, 2, np.arange(2))])
    array([1, 2, 0, 1])
    """
    return join([cut(p.item.value, p.start, p.stop) if isinstance(p, Part) else p.value for p in parts])


def _fill(carry: Carry, item: Item, length: int, max_segments: int | None) -> tuple[Carry, list[Row]]:
    held: Row = carry["held"]
    room: int = carry["room"]
    size, start = _size(item), 0
    ready: list[Row] = []
    while start < size:
        stop = min(size, start + room)
        held = [*held, item if stop - start == size else Part(item, start, stop)]
        room -= stop - start
        start = stop
        if room == 0 or len(held) == max_segments:
            ready.append(held)
            held, room = [], length
    return {"held": held, "room": room}, ready


def _refilled(carry: Carry, length: int) -> Carry:
    """What `_fill` left, made anew."""
    held = [*carry["held"]]
    return {"held": held, "room": _room(held, length)}


def _room(row: Row, length: int) -> int:
    """What is left of an open row."""
    room = length - sum(map(_size, row))
    if room < 1:
        raise ValueError(f"{room} tokens left in an open row")
    return room


# ---------------------------------------------------------------- folds that keep documents whole


@dataclass(frozen=True)
class FirstFit:
    """Each document goes whole into the oldest open row that has room; about 99% full with 64 open rows.

    A row closes when it is full, has `max_segments` documents, or is the oldest of more than `open_rows`. A document
    longer than a row is cut into full rows and a rest that is packed like a document (`long="split"`), is an error
    (`"refuse"`), or keeps its first `length` tokens and loses the others (`"cut"`). Documents without a token are
    skipped. First-fit in bounded space, see Csirik and Johnson, "Bounded space on-line bin packing: best is better
    than first" (2001). A step looks at the open rows one by one.

    >>> from penstock.pack import plan
    >>> plan(FirstFit(8), [5, 6, 3, 2]).item.tolist()
    [0, 2, 1, 3]
    """

    length: int
    open_rows: int = 64
    max_segments: int | None = None
    long: Long = "split"

    def __post_init__(self) -> None:
        _check(self)

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
        return {"rows": rows, "space": [_room(row, self.length) for row in rows]}

    def describe(self) -> Json:
        return {"fold": "first_fit", **_settings(self)}


@dataclass(frozen=True)
class BestFit:
    """Each document goes whole into the open row with the least room that it fits in, longest documents first.

    Places `window` documents at a time, in order of decreasing size (`window=1` places each as it comes). Rows that
    are full or have `max_segments` documents close; of the others the `open_rows` emptiest stay open for the next
    window, each until `8 * open_rows` more rows were opened. With a window of 1,000 documents of text, rows are more
    than 99.9% full. Rows that close together come in order of the arrival of the longest document each began with,
    the documents of a row in order of arrival. `long` and `max_segments` are as for `FirstFit`. Best-fit decreasing
    in bounded space, the fullest rows closed first as in Csirik and Johnson (2001). A larger window packs tighter,
    and holds more documents.

    >>> from penstock.pack import plan
    >>> plan(BestFit(8), [5, 6, 2, 3]).item.tolist()
    [0, 3, 1, 2]
    """

    length: int
    open_rows: int = 4
    max_segments: int | None = None
    long: Long = "split"
    window: int = 1000

    def __post_init__(self) -> None:
        _check(self)

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
        window = [piece for chunk in carry["window"] for piece in chunk if _size(piece)]
        rows = sorted(([*row] for row in carry["rows"] if row), key=lambda row: _room(row, self.length))
        space, opened = [_room(row, self.length) for row in rows], whole(carry["opened"], "{} rows", 0)
        born = [whole(birth, "row {}", 0) for _, birth in zip(rows, carry["born"], strict=True)]
        return {
            "window": regrown(window, isqrt(self.window) + 1),
            "rows": rows,
            "space": space,
            "born": born,
            "opened": opened,
        }

    def describe(self) -> Json:
        return {"fold": "best_fit", **_settings(self)}

    def _place(self, carry: Carry, window: list[Row]) -> tuple[Carry, list[Row]]:
        # Three lists in step, by growing space: the rows, the space left in each, how many were opened before it.
        rows: list[Row] = [*carry["rows"]]
        space: list[int] = [*carry["space"]]
        born: list[int] = [*carry["born"]]
        opened: int = carry["opened"]
        closed: list[Row] = []
        for piece in sorted([piece for chunk in window for piece in chunk], key=_size, reverse=True):
            size = _size(piece)
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
        # Without the limit on age a row that nothing fits in could be held for ever, and every cursor with it.
        oldest, fullest = opened - 8 * self.open_rows, len(rows) - self.open_rows
        if opened > carry["opened"] and (fullest > 0 or min(born, default=oldest) < oldest):
            stays = [i >= fullest and birth >= oldest for i, birth in enumerate(born)]
            closed += [row for row, stay in zip(rows, stays, strict=True) if not stay]
            rows, space, born = [*compress(rows, stays)], [*compress(space, stays)], [*compress(born, stays)]
        carry = {"window": [], "rows": rows, "space": space, "born": born, "opened": opened}
        return carry, _arranged(closed)


def _arranged(rows: list[Row]) -> list[Row]:
    # By arrival, not by size: else every window would begin with long documents, and every row too.
    return [sorted(row, key=_number) for row in sorted(rows, key=lambda row: _number(row[0]))]


def _shorten(item: Item, length: int, long: Long) -> tuple[int, Piece | None, list[Row]]:
    """What of a document must be fitted into a row, its size, and the full rows cut from the document before."""
    size = _size(item)
    if size <= length:
        return size, item if size else None, []
    if long == "refuse":
        raise DataError(
            f"{size} tokens, more than a row of {length}: use a longer row, filter such documents out before pack, "
            "or pack with long='split' or long='cut'",
            where=f"item {item.number}",
        )
    if long == "cut":
        return length, Part(item, 0, length), []
    rest = size % length
    full: list[Row] = [[Part(item, start, start + length)] for start in range(0, size - rest, length)]
    return rest, Part(item, size - rest, size) if rest else None, full


def _size(piece: Piece) -> int:
    if isinstance(piece, Part):
        return piece.stop - piece.start
    size = int(piece.size)
    if size < 0:
        raise negative(piece.number, size)
    return size


def negative(number: int, size: int) -> DataError:
    """The error for a size below 0."""
    return DataError(f"a size of {size}: sizes and lengths count tokens, from 0", where=f"item {number}")


def _number(piece: Piece) -> int:
    return piece.item.number if isinstance(piece, Part) else piece.number


def _settings(fold: Any) -> dict[str, Json]:
    return {field.name: getattr(fold, field.name) for field in fields(fold)}
