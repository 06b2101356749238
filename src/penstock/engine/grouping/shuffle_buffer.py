"""A shuffle buffer: random draws from the next `n` samples."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from ...arguments import check_int
from ...arrays.trees import append_chunked, build_chunks
from ...types import Carry, Item, Json
from ..base.random import draw_integer

Groups = list[list[Item]]


@dataclass(frozen=True)
class ShuffleBuffer:
    """Draw each sample at random from the next `n`; groups have one sample.

    The carry holds `n - 1` samples. A step costs a hash and two lists of about sqrt(n) entries. A
    sample is drawn at most `n - 1` positions early, but can stay arbitrarily long. For indexed data
    prefer `shuffle`, which is exact and stores nothing.

    >>> from penstock.types import Item
    >>> fold = ShuffleBuffer(3)
    >>> carry, out = fold.init(7), []
    >>> for i in range(6):
    ...     carry, groups = fold.step(carry, Item(i, 1, None))
    ...     out += groups
    >>> len(out), sorted(item.number for [item] in out + fold.flush(carry))
    (4, [0, 1, 2, 3, 4, 5])
    """

    KEY = "ShuffleBuffer"

    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", check_int(self.n, "shuffle_buffer(n={})", 1))

    def init(self, key: int, /) -> Carry:
        return {"key": key, "drawn": 0, "held": []}

    def step(self, carry: Carry, item: Item, /) -> tuple[Carry, Groups]:
        held: list[list[Item]] = carry["held"]
        width = isqrt(self.n) + 1
        if (len(held[:-1]) * width + len(held[-1]) if held else 0) < self.n - 1:
            return {**carry, "held": append_chunked(held, item, width)}, []
        row, place = divmod(draw_integer(carry["key"], carry["drawn"], self.n), width)
        drawn = item
        if row * width + place < self.n - 1:
            # The new item replaces the drawn one.
            changed = [*held[row]]
            drawn, changed[place] = changed[place], item
            held = [*held]
            held[row] = changed
        return {"key": carry["key"], "drawn": carry["drawn"] + 1, "held": held}, [[drawn]]

    def flush(self, carry: Carry, /) -> Groups:
        left: list[Item] = [item for chunk in carry["held"] for item in chunk]
        out: Groups = []
        for turn in range(carry["drawn"], carry["drawn"] + len(left)):
            place = draw_integer(carry["key"], turn, len(left))
            left[place], left[-1] = left[-1], left[place]
            out.append([left.pop()])
        return out

    def restored(self, carry: Carry, /) -> Carry:
        key = check_int(carry["key"], "the key {}", 0)
        drawn = check_int(carry["drawn"], "{} draws", 0)
        held = [item for chunk in carry["held"] for item in chunk if item.number >= 0]
        return {"key": key, "drawn": drawn, "held": build_chunks(held, isqrt(self.n) + 1)}

    def describe(self) -> Json:
        return {"fold": "shuffle_buffer", "n": self.n}
