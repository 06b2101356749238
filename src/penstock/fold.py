"""Folds that group by order of arrival and by size. Each decides who goes together and touches no data.

A carry is plain lists and dicts of items: `step` copies what it changes, so a cursor can be taken of any carry
at any time. Only `.size` and `.number` of an item are looked at, so a fold can be planned from lengths alone.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from math import isqrt

from .errors import ConfigError, DataError
from .ints import whole
from .random import pick
from .tree import grown, regrown
from .types import Carry, Item, Json

Groups = list[list[Item]]


@dataclass(frozen=True)
class ShuffleBuffer:
    """Draw each sample at random from the next `n` that were not given yet; gives groups of one.

    Holds `n - 1` samples between steps. One step costs a hash and two lists of about sqrt(n) entries.
    A sample is never drawn more than `n - 1` places early, but can stay for long: use `shuffle` where
    the data is indexed, it is exact and holds nothing.

    >>> from penstock.types import Item
    >>> fold = ShuffleBuffer(3)
    >>> carry, out = fold.init(7), []
    >>> for i in range(6):
    ...     carry, groups = fold.step(carry, Item(i, 1, None))
    ...     out += groups
    >>> len(out), sorted(item.number for [item] in out + fold.flush(carry))
    (4, [0, 1, 2, 3, 4, 5])
    """

    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", whole(self.n, "shuffle_buffer(n={})", 1))

    def init(self, key: int, /) -> Carry:
        return {"key": key, "drawn": 0, "held": []}

    def step(self, carry: Carry, item: Item, /) -> tuple[Carry, Groups]:
        held: list[list[Item]] = carry["held"]
        width = isqrt(self.n) + 1
        if (len(held[:-1]) * width + len(held[-1]) if held else 0) < self.n - 1:
            return {**carry, "held": grown(held, item, width)}, []
        row, place = divmod(pick(carry["key"], carry["drawn"], self.n), width)
        drawn = item
        if row * width + place < self.n - 1:
            # The new one takes the place of the one drawn.
            changed = [*held[row]]
            drawn, changed[place] = changed[place], item
            held = [*held]
            held[row] = changed
        return {"key": carry["key"], "drawn": carry["drawn"] + 1, "held": held}, [[drawn]]

    def flush(self, carry: Carry, /) -> Groups:
        left: list[Item] = [item for chunk in carry["held"] for item in chunk]
        out: Groups = []
        for turn in range(carry["drawn"], carry["drawn"] + len(left)):
            place = pick(carry["key"], turn, len(left))
            left[place], left[-1] = left[-1], left[place]
            out.append([left.pop()])
        return out

    def restored(self, carry: Carry, /) -> Carry:
        key, drawn = whole(carry["key"], "the key {}", 0), whole(carry["drawn"], "{} draws", 0)
        held = [item for chunk in carry["held"] for item in chunk if item.number >= 0]
        return {"key": key, "drawn": drawn, "held": regrown(held, isqrt(self.n) + 1)}

    def describe(self) -> Json:
        return {"fold": "shuffle_buffer", "n": self.n}


@dataclass(frozen=True)
class GroupByLength:
    """Groups of `n` samples of similar size: one bucket up to each bound (included), one above the last.

    A full bucket is given out at once; the short groups left at the end of a pass come shortest sizes first.

    >>> from penstock.types import Item
    >>> fold = GroupByLength((10, 100), 2)
    >>> carry = fold.init(0)
    >>> for number, size in enumerate([10, 70, 9]):
    ...     carry, groups = fold.step(carry, Item(number, size, None))
    >>> [[item.size for item in group] for group in groups]
    [[10, 9]]
    """

    bounds: tuple[int, ...]
    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", whole(self.n, "group_by_length(n={})", 1))
        bounds = tuple(whole(bound, "group_by_length: the bound {}") for bound in self.bounds)
        object.__setattr__(self, "bounds", bounds)
        ascending = all(a < b for a, b in zip(self.bounds, self.bounds[1:], strict=False))
        if not self.bounds or not ascending:
            raise ConfigError(f"group_by_length: bounds must be ascending sizes such as (64, 256), not {self.bounds!r}")

    def init(self, key: int, /) -> Carry:
        return {"buckets": [list[Item]() for _ in range(len(self.bounds) + 1)]}

    def step(self, carry: Carry, item: Item, /) -> tuple[Carry, Groups]:
        buckets: list[list[Item]] = [*carry["buckets"]]
        which = bisect_left(self.bounds, item.size)
        group = [*buckets[which], item]
        full = len(group) == self.n
        buckets[which] = [] if full else group
        return {"buckets": buckets}, [group] if full else []

    def flush(self, carry: Carry, /) -> Groups:
        return [bucket for bucket in carry["buckets"] if bucket]

    def restored(self, carry: Carry, /) -> Carry:
        again = self.init(0)
        for item in (item for bucket in carry["buckets"] for item in bucket):
            again, _ = self.step(again, item)
        return again

    def describe(self) -> Json:
        return {"fold": "group_by_length", "bounds": list(self.bounds), "n": self.n}


@dataclass(frozen=True)
class BatchByTokens:
    """Groups of neighbours, each as long as fits in `max_tokens`.

    A group costs the sum of its sizes; with `padded=True` the number of its samples times the longest, which is
    what the batch takes once it is padded. `DataError` for a sample that does not fit alone.

    >>> from penstock.types import Item
    >>> fold = BatchByTokens(10)
    >>> carry, out = fold.init(0), []
    >>> for number, size in enumerate([4, 6, 3, 8]):
    ...     carry, groups = fold.step(carry, Item(number, size, None))
    ...     out += groups
    >>> [[item.size for item in group] for group in out + fold.flush(carry)]
    [[4, 6], [3], [8]]
    """

    max_tokens: int
    padded: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_tokens", whole(self.max_tokens, "batch_by_tokens(max_tokens={})", 1))

    def init(self, key: int, /) -> Carry:
        return {"held": [], "total": 0, "longest": 0}

    def step(self, carry: Carry, item: Item, /) -> tuple[Carry, Groups]:
        size = int(item.size)
        if size > self.max_tokens:
            raise DataError(
                f"{size} tokens, more than max_tokens={self.max_tokens}: raise max_tokens, or cut or filter "
                "long samples before batch_by_tokens",
                where=f"item {item.number}",
            )
        held: list[Item] = carry["held"]
        total, longest = carry["total"] + size, max(carry["longest"], size)
        cost = (len(held) + 1) * longest if self.padded else total
        if cost <= self.max_tokens:
            return {"held": [*held, item], "total": total, "longest": longest}, []
        return {"held": [item], "total": size, "longest": size}, [held]

    def flush(self, carry: Carry, /) -> Groups:
        return [carry["held"]] if carry["held"] else []

    def restored(self, carry: Carry, /) -> Carry:
        again = self.init(0)
        for item in carry["held"]:
            again, _ = self.step(again, item)
        return again

    def describe(self) -> Json:
        return {"fold": "batch_by_tokens", "max_tokens": self.max_tokens, "padded": self.padded}
