"""Folds that batch by length: samples of similar size, or up to a number of tokens."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from ...arguments import check_int
from ...errors import ConfigError, DataError
from ...types import Carry, Item, Json

Groups = list[list[Item]]


@dataclass(frozen=True)
class BucketByLength:
    """Groups of `n` samples of similar size, in buckets separated by bounds.

    A bucket includes its upper bound. A full bucket is emitted at once; partial buckets follow at
    the end of a pass, smallest sizes first.

    >>> from penstock.types import Item
    >>> fold = BucketByLength((10, 100), 2)
    >>> carry = fold.init(0)
    >>> for number, size in enumerate([10, 70, 9]):
    ...     carry, groups = fold.step(carry, Item(number, size, None))
    >>> [[item.size for item in group] for group in groups]
    [[10, 9]]
    """

    KEY = None

    bounds: tuple[int, ...]
    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", check_int(self.n, "bucket_by_length(n={})", 1))
        bounds = tuple(check_int(bound, "bucket_by_length: the bound {}") for bound in self.bounds)
        object.__setattr__(self, "bounds", bounds)
        ascending = all(a < b for a, b in zip(self.bounds, self.bounds[1:], strict=False))
        if not self.bounds or not ascending:
            raise ConfigError(
                "bucket_by_length: bounds must be ascending sizes such as (64, 256), not "
                f"{self.bounds!r}"
            )

    def init(self, key: int, /) -> Carry:
        return {"buckets": [list[Item]() for _ in range(len(self.bounds) + 1)]}

    def step(self, carry: Carry, item: Item, /) -> tuple[Carry, Groups]:
        buckets: list[list[Item]] = [*carry["buckets"]]
        bucket = bisect_left(self.bounds, item.size)
        group = [*buckets[bucket], item]
        full = len(group) == self.n
        buckets[bucket] = [] if full else group
        return {"buckets": buckets}, [group] if full else []

    def flush(self, carry: Carry, /) -> Groups:
        return [bucket for bucket in carry["buckets"] if bucket]

    def restored(self, carry: Carry, /) -> Carry:
        again = self.init(0)
        for item in (item for bucket in carry["buckets"] for item in bucket):
            again, _ = self.step(again, item)
        return again

    def describe(self) -> Json:
        return {"fold": "bucket_by_length", "bounds": list(self.bounds), "n": self.n}


@dataclass(frozen=True)
class BatchByTokens:
    """Groups of neighbours that fit into `max_tokens`.

    The cost of a group is the sum of its sizes, or, with `padded=True`, the number of its samples
    times the longest size, as after padding. A sample over `max_tokens` is a `DataError`.

    >>> from penstock.types import Item
    >>> fold = BatchByTokens(10)
    >>> carry, out = fold.init(0), []
    >>> for number, size in enumerate([4, 6, 3, 8]):
    ...     carry, groups = fold.step(carry, Item(number, size, None))
    ...     out += groups
    >>> [[item.size for item in group] for group in out + fold.flush(carry)]
    [[4, 6], [3], [8]]
    """

    KEY = None

    max_tokens: int
    padded: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "max_tokens", check_int(self.max_tokens, "batch_by_tokens(max_tokens={})", 1)
        )

    def init(self, key: int, /) -> Carry:
        return {"held": [], "total": 0, "longest": 0}

    def step(self, carry: Carry, item: Item, /) -> tuple[Carry, Groups]:
        size = int(item.size)
        if size > self.max_tokens:
            raise DataError(
                f"{size} tokens, more than max_tokens={self.max_tokens}: raise max_tokens, or "
                "truncate or filter long samples before batch_by_tokens",
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
