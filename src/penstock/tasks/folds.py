"""Folds that an encoder decides: packs chosen from a buffer, and batches by key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any, NamedTuple, cast

import numpy as np

from ..arrays.trees import append_chunked
from ..engine.base.random import create_sample_generator
from ..errors import ConfigError, Skip
from ..types import Carry, Item, Json
from .hooks import using

BatchGroups = list[list[Item]]
SelectPacksFunction = Callable[[list[Any]], Sequence[Sequence[Any]]]


@dataclass(frozen=True)
class SelectPacks:
    """Fill a buffer of `buffer` samples, let `select` choose packs, and start over.

    Samples that `select` does not choose are dropped.

    >>> fold = SelectPacks(3, lambda samples: [samples[:2], samples[2:]])
    >>> carry = fold.init(0)
    >>> for number, value in enumerate("abc"):
    ...     carry, groups = fold.step(carry, Item(number, 1, value))
    >>> [[item.value for item in group] for group in groups]
    [['a', 'b'], ['c']]
    """

    buffer: int
    select: SelectPacksFunction

    def __post_init__(self) -> None:
        if self.buffer < 1:
            raise ConfigError(f"packing_buffer_size={self.buffer}: give at least 1")

    def init(self, key: int, /) -> Carry:
        return {"key": key, "held": []}

    def step(self, carry: Carry, item: Item, /) -> tuple[Carry, BatchGroups]:
        buffered: list[list[Item]] = append_chunked(carry["held"], item, isqrt(self.buffer) + 1)
        carry = {"key": carry["key"], "held": buffered}
        if sum(map(len, buffered)) < self.buffer:
            return carry, []
        return self.init(carry["key"]), self.flush(carry)

    def flush(self, carry: Carry, /) -> BatchGroups:
        items = [item for chunk in carry["held"] for item in chunk]
        if not items:
            return []
        with using(create_sample_generator(carry["key"], 0, items[0].number)):
            try:
                chosen = self.select([item.value for item in items])
            except Skip:
                return []
        items_by_id = dict[int, list[Item]]()
        for item in reversed(items):
            items_by_id.setdefault(id(item.value), []).append(item)
        return [[self._item(items_by_id.get(id(value))) for value in pack] for pack in chosen]

    def _item(self, candidates: list[Item] | None) -> Item:
        if candidates is None:
            raise ConfigError(
                "select_samples_to_pack returned a sample that is not in its argument: return "
                "lists of its own samples, and change them in pack_selected_samples"
            )
        return candidates.pop() if len(candidates) > 1 else candidates[0]

    def describe(self) -> Json:
        return {"fold": "select_packs", "buffer": self.buffer}


class Grouped(NamedTuple):
    """A sample with its batch key and the batch size of that key."""

    key: str
    size: int
    sample: Any


@dataclass(frozen=True)
class GroupBatches:
    """Batch `Grouped` samples by key; a batch is emitted once it is full.

    Incomplete batches are emitted at the end in the order of their first samples, or dropped.

    >>> fold = GroupBatches()
    >>> carry, out = fold.init(0), []
    >>> for number, key in enumerate("abba"):
    ...     carry, groups = fold.step(carry, Item(number, 1, Grouped(key, 2, number)))
    ...     out += groups
    >>> [[item.value.sample for item in group] for group in out]
    [[1, 2], [0, 3]]
    """

    drop_last: bool = False

    def init(self, key: int, /) -> Carry:
        return {}

    def step(self, carry: Carry, item: Item, /) -> tuple[Carry, BatchGroups]:
        key, size, _ = item.value
        group = [*carry.get(key, []), item]
        others = {name: items for name, items in carry.items() if name != key}
        if len(group) >= size:
            return others, [group]
        return ({**carry, key: group} if key in carry else {**others, key: group}), []

    def flush(self, carry: Carry, /) -> BatchGroups:
        return [] if self.drop_last else list(carry.values())

    def describe(self) -> Json:
        return {"fold": "group_batches", "drop_last": self.drop_last}


def format_group_key(key: Any) -> str:
    """Return the text that represents a group's key in a state.

    >>> format_group_key((224, 224))
    '(224, 224)'
    """
    plain: Any = cast("Any", key).item() if isinstance(key, np.generic) else key
    text = repr(plain)
    if " at 0x" in text:
        raise ConfigError(
            f"batch_group_criterion returned a {type(plain).__name__} as key, whose text differs "
            "between processes: return a number, a string, or a tuple of these"
        )
    return text
