"""Folds that pack documents into rows by size.

A carry is plain lists and dicts; `step` copies what it changes. A group holds an `Item` for a whole
document and a `Part` for a piece of one. Documents without tokens are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

from ...arguments import check_choice
from ...arrays.trees import join_batches, slice_batch
from ...errors import ConfigError, DataError
from ...types import Carry, Item, Json, Part
from .row_lengths import EarlierLengths, LengthPlan

Long: TypeAlias = Literal["split", "error", "truncate"]
Overflow: TypeAlias = Literal["split", "never", "crop"]
Piece: TypeAlias = Item | Part
Row: TypeAlias = list[Piece]

LONG_CHOICES: tuple[Long, ...] = get_args(Long)
LONG_IN_STATES = {"truncate": "cut"}
"""Values of `long` whose spelling in descriptions, and so in states, differs: it never changes."""

OVERFLOWS: tuple[Overflow, ...] = get_args(Overflow)


def check_settings(fold: Any) -> None:
    """Raise `ConfigError` for invalid settings of a fold, by name."""
    for field in fields(fold):
        value = getattr(fold, field.name)
        if field.name == "long":
            check_choice(value, LONG_CHOICES, "pack(long={})")
        elif field.name == "overflow":
            check_choice(value, OVERFLOWS, "pack(overflow={})")
        elif field.name not in ("drop_remainder", "earlier", "plan") and (
            value is not None or field.name not in ("max_segments", "rows")
        ):
            least = 4 if field.name == "rows" else 1
            if not isinstance(value, int) or value < least:
                raise ConfigError(
                    f"pack: {field.name} must be a whole number of at least {least}, not {value!r}"
                )


# ---------------------------------------------------------------- folds that split


@dataclass(frozen=True)
class ConcatSplit:
    """Concatenate documents, and split them every `length` tokens.

    Every token occurs once and in order, and only the last row of a pass has padding; documents are
    split. With `max_segments` a row is closed, and padded, at that number of documents. `earlier`
    lists pairs (row, row length) from before a change of the run; `describe` omits it. `plan` has
    the lengths of a schedule; `length` is its last one.

    >>> from penstock.engine.packing import plan_groups
    >>> plan_groups(ConcatSplit(4), [3, 6]).stop.tolist()
    [3, 1, 5, 6]
    """

    KEY = None

    length: int
    max_segments: int | None = None
    earlier: EarlierLengths = ()
    plan: LengthPlan | None = None

    def __post_init__(self) -> None:
        check_settings(self)

    def init(self, key: int, /) -> Carry:
        return {"held": [], "room": self.length}

    def step(self, carry: Carry, item: Item, /) -> tuple[Carry, list[Row]]:
        return _fill_rows(carry, item, self.length, self.max_segments)

    def flush(self, carry: Carry, /) -> list[Row]:
        return [carry["held"]] if carry["held"] else []

    def restored(self, carry: Carry, /) -> Carry:
        return _recompute_carry(carry, self.length)

    def describe(self) -> Json:
        plan: dict[str, Json] = {} if self.plan is None else {"lengths": self.plan.to_json()}
        length: dict[str, Json] = {"length": self.length, "max_segments": self.max_segments}
        return {"fold": "concat_split", **length, **plan}


@dataclass(frozen=True)
class Rebatch:
    """Regroup the rows of batches into batches of `n` rows, built by `join_parts`.

    >>> from penstock.engine.packing import plan_groups
    >>> plan_groups(Rebatch(4), [3, 6]).bounds.tolist()
    [0, 2, 3, 4]
    """

    KEY = None

    n: int
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        check_settings(self)

    def init(self, key: int, /) -> Carry:
        return {"held": [], "room": self.n}

    def step(self, carry: Carry, item: Item, /) -> tuple[Carry, list[Row]]:
        return _fill_rows(carry, item, self.n, None)

    def flush(self, carry: Carry, /) -> list[Row]:
        return [carry["held"]] if carry["held"] and not self.drop_remainder else []

    def restored(self, carry: Carry, /) -> Carry:
        return _recompute_carry(carry, self.n)

    def describe(self) -> Json:
        return {"fold": "rebatch", "n": self.n, "drop_remainder": self.drop_remainder}


def join_parts(parts: Sequence[Piece]) -> Any:
    """Build a batch of `Rebatch`: join the parts of trees of arrays along axis 0.

    >>> import numpy as np
    >>> join_parts([Part(Item(0, 3, np.arange(3)), 1, 3), Item(1, 2, np.arange(2))])
    array([1, 2, 0, 1])
    """
    return join_batches(
        [
            slice_batch(p.item.value, p.start, p.stop) if isinstance(p, Part) else p.value
            for p in parts
        ]
    )


def _fill_rows(
    carry: Carry, item: Item, length: int, max_segments: int | None
) -> tuple[Carry, list[Row]]:
    held: Row = carry["held"]
    room: int = carry["room"]
    size, start = count_tokens(item), 0
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


def _recompute_carry(carry: Carry, length: int) -> Carry:
    """Recompute a carry of `_fill_rows` from its items."""
    held = [*carry["held"]]
    return {"held": held, "room": compute_room(held, length)}


# ---------------------------------------------------------------- helpers of folds that pack


def count_tokens(piece: Piece) -> int:
    """Return the tokens of a document, or of a part of one."""
    if isinstance(piece, Part):
        return piece.stop - piece.start
    size = int(piece.size)
    if size < 0:
        raise make_negative_size_error(piece.number, size)
    return size


def make_negative_size_error(number: int, size: int) -> DataError:
    """Return the error for a size below 0."""
    return DataError(
        f"a size of {size}: sizes and lengths count tokens, from 0", where=f"item {number}"
    )


def collect_settings(fold: Any) -> dict[str, Json]:
    """Return the settings of a fold for its description."""
    settings = {field.name: getattr(fold, field.name) for field in fields(fold)}
    if "long" in settings:
        settings["long"] = LONG_IN_STATES.get(settings["long"], settings["long"])
    return settings


def compute_room(row: Row, length: int) -> int:
    """Return the room left in an open row."""
    room = length - sum(map(count_tokens, row))
    if room < 1:
        raise ValueError(f"{room} tokens left in an open row")
    return room
