"""Folds that pack documents of several features, each with its own row length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import le
from typing import Any, ClassVar, Protocol, cast

import numpy as np

from ..arguments import check_int
from ..errors import DataError
from ..types import Carry, Item, Json, Part

Row = list[Item | Part]
Span = tuple[int, int]


def length_of(value: Any) -> int:
    """Return the entries of a feature along its first axis; a single number counts as one."""
    return (
        len(cast("Sequence[Any]", value))
        if isinstance(value, list | tuple) or np.ndim(value)
        else 1
    )


def lengths_of(element: Any, names: Sequence[str]) -> list[int]:
    """Return the lengths of the features with these names."""
    if not isinstance(element, Mapping):
        raise DataError(f"packing takes dicts of features, not a {type(element).__name__}")
    features = cast("Mapping[str, Any]", element)
    if missing := [name for name in names if name not in features]:
        raise DataError(f"packing: the document lacks {missing}, it has {sorted(features)}")
    return [length_of(features[name]) for name in names]


@dataclass(frozen=True)
class FeatureCapacity:
    """Capacity of a row for each feature.

    >>> FeatureCapacity(("inputs", "targets"), (512, 128)).describe()
    {'inputs': 512, 'targets': 128}
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]

    def check(self, lengths: Sequence[int], item: Item) -> None:
        """Raise `DataError` if a document does not fit into an empty row."""
        for name, length, size in zip(self.names, lengths, self.sizes, strict=True):
            if length > size:
                raise DataError(
                    f"feature {name!r} has {length} entries, a row has room for {size}: truncate "
                    "or filter such documents before packing, or give it longer rows",
                    where=f"item {item.number}",
                )

    def describe(self) -> Json:
        return dict(zip(self.names, self.sizes, strict=True))


# ---------------------------------------------------------------- whole documents


class Arrangement(Protocol):
    """Order in which rows that were packed together are emitted, after `before` earlier rows."""

    def order(self, rows: Sequence[Row], before: int) -> Sequence[int]: ...
    def describe(self) -> Json: ...


@dataclass(frozen=True)
class Bins:
    """Put each document into one of up to `n` open rows in which all its features fit.

    This is the first such row, or with `best` the fullest. A document that fits nowhere closes all
    rows. Every feature begins at the next multiple of its `align`; rows hold at most `most`
    documents.

    >>> fold = Bins(FeatureCapacity(("a", "b"), (4, 2)), 2, (1, 1))
    >>> carry = fold.init(0)
    >>> for number, sizes in enumerate([(3, 1), (2, 1), (1, 1)]):
    ...     carry, _ = fold.step(carry, Item(number, 0, {"a": [0] * sizes[0], "b": [0] * sizes[1]}))
    >>> [[item.number for item in row] for row in fold.flush(carry)]
    [[0, 2], [1]]
    """

    KEY = None
    reads_values: ClassVar[bool] = True

    capacity: FeatureCapacity
    n: int
    align: tuple[int, ...]
    best: bool = False
    most: int | None = None
    arranged: Arrangement | None = None

    def init(self, key: int, /) -> Carry:
        return {"rows": [], "left": [], "given": 0}

    def step(self, carry: Carry, item: Item, /) -> tuple[Carry, list[Row]]:
        lengths, sizes = lengths_of(item.value, self.capacity.names), self.capacity.sizes
        self.capacity.check(lengths, item)
        rows: list[Row] = [*carry["rows"]]
        left: list[list[int]] = [*carry["left"]]
        emitted, ready = int(carry["given"]), list[Row]()
        at = self._choose_row(rows, left, lengths)
        if at == self.n:
            ready, emitted = self._arrange(rows, emitted), emitted + len(rows)
            rows, left, at = [], [], 0
        if at == len(rows):
            rows.append([])
            left.append([*sizes])
        rows[at] = [*rows[at], item]
        left[at] = self._space_left(left[at], lengths)
        return {"rows": rows, "left": left, "given": emitted}, ready

    def flush(self, carry: Carry, /) -> list[Row]:
        return self._arrange(carry["rows"], carry["given"])

    def restored(self, carry: Carry, /) -> Carry:
        rows: list[Row] = [[*row] for row in carry["rows"]]
        left = list[list[int]]()
        for row in rows:
            capacity = [*self.capacity.sizes]
            for item in row:
                capacity = self._space_left(
                    capacity, lengths_of(cast("Item", item).value, self.capacity.names)
                )
            if not row or min(capacity) < 0:
                raise ValueError(f"an open row with room for {capacity}")
            left.append(capacity)
        return {"rows": rows, "left": left, "given": check_int(carry["given"], "{} rows", 0)}

    def describe(self) -> Json:
        return {
            "fold": "pack_features",
            "method": "best_fit" if self.best else "first_fit",
            "lengths": self.capacity.describe(),
            "open_rows": self.n,
            "align": list(self.align),
            "most": self.most,
            "arranged": None if self.arranged is None else self.arranged.describe(),
        }

    def _choose_row(
        self, rows: Sequence[Row], left: Sequence[Sequence[int]], lengths: Sequence[int]
    ) -> int:
        """Return the row for a document of these lengths; a new row if no open one has room."""
        fits = (
            at
            for at, capacity in enumerate(left)
            if all(map(le, lengths, capacity)) and (self.most is None or len(rows[at]) < self.most)
        )
        return (
            min(fits, key=lambda at: sum(left[at]), default=len(rows))
            if self.best
            else next(fits, len(rows))
        )

    def _space_left(self, left: Sequence[int], lengths: Sequence[int]) -> list[int]:
        """Return the space left in a row after a document and its alignment."""
        return [
            size - -(-(size - capacity + length) // step) * step
            for size, capacity, length, step in zip(
                self.capacity.sizes, left, lengths, self.align, strict=True
            )
        ]

    def _arrange(self, rows: Sequence[Row], emitted: int) -> list[Row]:
        if self.arranged is None or not rows:
            return [*rows]
        return [rows[i] for i in self.arranged.order(rows, emitted)]


# ---------------------------------------------------------------- concatenated documents


@dataclass(frozen=True)
class EndToEnd:
    """Concatenate documents until a feature of the row is full; the rest begins the next row.

    `cut` marks the features that are split; the others stay whole in every piece. A piece of a
    split document has a `Part` for each feature that is split. With `keep_full`, a document that
    exactly fills a row in some feature gets its own row, after the open one.

    >>> fold = EndToEnd(FeatureCapacity(("a", "b"), (4, 2)), (True, True))
    >>> _, [row] = fold.step(fold.init(0), Item(0, 0, {"a": [0] * 3, "b": [0] * 3}))
    >>> [(part.start, part.stop) for part in row]
    [(0, 3), (0, 2)]
    """

    KEY = None
    reads_values: ClassVar[bool] = True

    capacity: FeatureCapacity
    cut: tuple[bool, ...]
    keep_full: bool = False

    def init(self, key: int, /) -> Carry:
        return {"row": [], "used": [0] * len(self.cut), "full": []}

    def step(self, carry: Carry, item: Item, /) -> tuple[Carry, list[Row]]:
        lengths, sizes = lengths_of(item.value, self.capacity.names), self.capacity.sizes
        spare = [size - length for size, length in zip(sizes, lengths, strict=True)]
        if self.keep_full and min(spare) == 0:
            return {**carry, "full": [*carry["full"], item]}, []
        row: Row = carry["row"]
        used: list[int] = carry["used"]
        full, start, ready = [[full] for full in carry["full"]], [0] * len(lengths), list[Row]()
        while True:
            stop = self._fits(lengths, start, used)
            if stop is not None and stop == lengths:
                row = [*row, *self._piece(item, start, stop, lengths)]
                used = [a + b - c for a, b, c in zip(used, stop, start, strict=True)]
                return {"row": row, "used": used, "full": [only[0] for only in full]}, ready
            if stop is not None and any(
                b > a for a, b, cut in zip(start, stop, self.cut, strict=True) if cut
            ):
                row, start = [*row, *self._piece(item, start, stop, lengths)], self._rest(stop)
            elif not row:
                self.capacity.check(
                    [0 if cut else length for cut, length in zip(self.cut, lengths, strict=True)],
                    item,
                )
            ready += [row, *full]
            row, used, full = [], [0] * len(lengths), []

    def flush(self, carry: Carry, /) -> list[Row]:
        return [*([carry["row"]] if carry["row"] else []), *([item] for item in carry["full"])]

    def restored(self, carry: Carry, /) -> Carry:
        row: Row = [*carry["row"]]
        used = [0] * len(self.cut)
        for item, spans in iter_row_documents(row, self.cut):
            lengths = lengths_of(item.value, self.capacity.names)
            sizes = [
                n if span is None else span[1] - span[0]
                for n, span in zip(lengths, spans, strict=True)
            ]
            used = [a + b for a, b in zip(used, sizes, strict=True)]
        if any(taken > size for taken, size in zip(used, self.capacity.sizes, strict=True)):
            raise ValueError(f"an open row of {used}")
        for document in carry["full"]:
            lengths_of(document.value, self.capacity.names)  # a part of a document has no value
        return {"row": row, "used": used, "full": [*carry["full"]]}

    def describe(self) -> Json:
        return {
            "fold": "pack_features",
            "method": "concat_split",
            "lengths": self.capacity.describe(),
            "cut": list(self.cut),
            "keep_full": self.keep_full,
        }

    def _rest(self, stop: Sequence[int]) -> list[int]:
        """Return the start of the next piece; features that are not split begin at 0 again."""
        return [end if cut else 0 for end, cut in zip(stop, self.cut, strict=True)]

    def _fits(
        self, lengths: Sequence[int], start: Sequence[int], used: Sequence[int]
    ) -> list[int] | None:
        """Return the stop of each feature in the row; None if a whole feature does not fit."""
        out = list[int]()
        for length, begin, taken, size, cut in zip(
            lengths, start, used, self.capacity.sizes, self.cut, strict=True
        ):
            if not cut and length > size - taken:
                return None
            out.append(min(length, begin + size - taken) if cut else length)
        return out

    def _piece(
        self, item: Item, start: Sequence[int], stop: Sequence[int], lengths: Sequence[int]
    ) -> Row:
        if not any(start) and [*stop] == [*lengths]:
            return [item]
        return [Part(item, a, b) for a, b, cut in zip(start, stop, self.cut, strict=True) if cut]


def iter_row_documents(
    row: Sequence[Item | Part], cut: Sequence[bool]
) -> Iterator[tuple[Item, list[Span | None]]]:
    """Iterate over the documents of a row, with the span of each split feature."""
    members = iter(row)
    for member in members:
        if isinstance(member, Item):
            yield member, [None] * len(cut)
        else:
            parts = [member, *islice(members, sum(cut) - 1)]
            spans = iter([(cast("Part", part).start, cast("Part", part).stop) for part in parts])
            yield member.item, [next(spans) if is_cut else None for is_cut in cut]
