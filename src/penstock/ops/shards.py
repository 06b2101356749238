"""A source that can only be read in sequence: shards one after the other, each read by one lane."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import Any, cast

import numpy as np

from ..base.cursors import as_int, as_list
from ..base.rows import Rows, empty_rows
from ..streams.clock import Clock
from ..streams.opening import Opening
from ..streams.reader import Laps
from ..streams.retry import patiently
from ..streams.step import Leaf
from ..streams.stream import Stream
from ..streams.trail import Chunk, Fixed
from ..types import Json, Shards
from .op import Op

_LONGEST = 1 << 36  # rows of a shard: they are passed one by one


class Shelf:
    """The shards of a source, of which one is open: it is read on where it stands, or opened at another row."""

    def __init__(self, leaf: Leaf, clock: Clock | None) -> None:
        self._leaf, self._shards, self._clock = leaf, cast(Shards, leaf.source), clock
        self.names = list(self._shards.names())
        self.close()

    def close(self) -> None:
        self._rows: Iterator[Any] = iter(())
        self._at: tuple[int, int] | None = None

    def read(self, shard: int, row: int, n: int) -> list[Any]:
        """Up to `n` rows of a shard from `row` on."""
        read = partial(patiently, partial(self._read, shard, row, n))
        return read() if self._clock is None else self._clock.reading(self._leaf.name, read)

    def _read(self, shard: int, row: int, n: int) -> list[Any]:
        at, self._at = self._at, None  # whatever is thrown, the next try opens the shard anew
        try:
            if at != (shard, row):
                self._rows = self._shards.open(self.names[shard], row)
            values = list(islice(self._rows, n))
        except Exception as error:
            error.add_note(f"penstock: in {self._leaf.name}, shard {self.names[shard]}")
            raise
        self._at = shard, row + len(values)
        if not values:
            self.close()
        return values


class Sharded:
    """Every `lanes`-th shard from the `lane`-th on, one after the other; the cursor is the shard and the row."""

    def __init__(self, leaf: Leaf, lane: int = 0, lanes: int = 1, clock: Clock | None = None) -> None:
        self.leaf, self._lane, self._lanes = leaf, lane, lanes
        self._shelf = Shelf(leaf, clock)
        self.seek(0, None)

    def cursor(self) -> Json:
        return [self._shard, self._row]

    def seek(self, epoch: int, cursor: Json, /) -> None:
        shard, row = (self._lane, 0) if cursor is None else as_list(cursor)
        self._epoch, self._shard, self._row = epoch, as_int(shard), as_int(row, _LONGEST)

    def close(self) -> None:
        self._shelf.close()

    def pull(self, n: int, /) -> Chunk:
        while self._shard < len(self._shelf.names):
            if values := self._shelf.read(self._shard, self._row, n):
                chunk = Chunk(values, self._rows(len(values)), _ShardTrail(self._shard, self._row))
                self._row += len(values)
                return chunk
            self._shard, self._row = self._shard + self._lanes, 0
        return Chunk([], empty_rows(0), Fixed(None))

    def _rows(self, n: int) -> Rows:
        index = np.arange(self._row, self._row + n)
        zeros = np.zeros_like(index)
        return Rows(zeros + self.leaf.number, zeros + self._epoch, index, zeros + self._shard)


@dataclass(frozen=True, slots=True)
class _ShardTrail:
    shard: int
    row: int

    def at(self, count: int, /) -> Json:
        return [self.shard, self.row + count]


class ShardsOp(Op):
    """Shards at work."""

    indexed = False

    def __init__(self, named: Leaf, clock: Clock | None) -> None:
        self.named, self.clock = named, clock

    def stream(self, opening: Opening, laps: Laps) -> Stream:
        lane, lanes, mine = opening.share[:3]
        if (shards := len(cast(Shards, self.named.source).names())) >= lanes:
            return Sharded(self.named, lane, lanes, self.clock)
        if len(mine) < lanes:
            _tell_read_by_all(self.named.name, shards, lanes, lanes // len(mine))
        return opening.dealt(self, lambda: Sharded(self.named, clock=self.clock), laps)

    @property
    def leaves(self) -> tuple[int, ...]:
        return (self.named.number,)


@lru_cache(1000)
def _tell_read_by_all(name: str, shards: int, lanes: int, ranks: int) -> None:
    """Said once."""
    logging.getLogger("penstock").warning(
        "%s has %d shards, fewer than the %d lanes of the run: each of %d ranks reads all of it and keeps its "
        "share; more shards, or fewer lanes, would be shared out", name, shards, lanes, ranks,
    )  # fmt: skip
