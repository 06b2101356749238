"""A source that can only be read in sequence: shards one after the other, each read by one lane."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from ...errors import StateError
from ...types import UNKNOWN_DIGEST, Json, Shards, has_digest, is_unidentified
from ..base.cursors import make_cursor_error, parse_cursor_int, parse_cursor_list
from ..base.rows import ProvenanceRows, make_empty_rows
from ..base.seams import world
from ..streams.chunk_cursors import Chunk, ConstantCursor
from ..streams.function_call import Leaf
from ..streams.job import retry_storage
from ..streams.profiler import Profiler
from ..streams.shared_reader import PassCounts
from ..streams.stream import Stream
from ..streams.stream_opener import StreamOpener
from .op import Op

_LONGEST = 1 << 36  # rows of a shard: they are passed one by one


class Shelf:
    """The shards of a source with one open: it is read on from its position, or opened at another
    row.
    """

    def __init__(self, leaf: Leaf, profiler: Profiler | None) -> None:
        self._leaf, self._shards, self._profiler = leaf, cast(Shards, leaf.source), profiler
        self.names = list(self._shards.names())
        self.close()

    def close(self) -> None:
        self._rows: Iterator[Any] = iter(())
        self._at: tuple[int, int] | None = None

    def read(self, shard: int, row: int, n: int) -> list[Any]:
        """Up to `n` rows of a shard from `row` on."""
        read = partial(retry_storage, partial(self._read, shard, row, n))
        return read() if self._profiler is None else self._profiler.time_read(self._leaf.name, read)

    def _read(self, shard: int, row: int, n: int) -> list[Any]:
        at, self._at = self._at, None  # whatever is thrown, the next try opens the shard anew
        try:
            if at != (shard, row):
                self._rows = self._shards.open(self.names[shard], row)
            values = list(islice(self._rows, n))
        except Exception as error:
            error.add_note(
                f"penstock: in {self._leaf.name or 'the source'}, shard {self.names[shard]}"
            )
            raise
        self._at = shard, row + len(values)
        if not values:
            self.close()
        return values


class Witness(NamedTuple):
    """A row of a shard that was read, and the digest of its sample: what is read there after a
    resume must be equal."""

    row: int
    digest: str


_Place: TypeAlias = tuple[int, int, int]
"""A row: the pass, the shard, and its number there."""


class Sharded:
    """Every `lanes`-th shard from the `lane`-th on, one after the other; the cursor is the shard
    and the row.

    Of a source that nothing else identifies, it has the last witness before that row as well. What
    is read from a cursor on begins there; another sample there is an error.
    """

    def __init__(
        self, leaf: Leaf, lane: int = 0, lanes: int = 1, profiler: Profiler | None = None
    ) -> None:
        self.leaf, self._lane, self._lanes = leaf, lane, lanes
        self._shelf = Shelf(leaf, profiler)
        self._watched = is_unidentified(leaf.source) or not has_digest(leaf.source)
        self._expected = dict[
            _Place, tuple[str, int]
        ]()  # of all lanes that share this: digests, and where they stand
        self._equal = set[_Place]()
        self.seek(0, None)

    def cursor(self) -> Json:
        return _cursor(self._shard, self._row, self._witness)

    def seek(self, epoch: int, cursor: Json, /) -> None:
        shard, row, *known = (
            [self._lane, 0]
            if cursor is None
            else parse_cursor_list(cursor, 3 if _has_witness(cursor) else 2)
        )
        self._epoch = epoch
        self._shard = parse_cursor_int(shard)
        self._row = parse_cursor_int(row, _LONGEST)
        self._witness = _witness_of(known[0], self._row) if known else None
        if self._witness and self._shard >= len(self._shelf.names):
            raise make_cursor_error(cursor, "the number of a shard")
        self._unchecked = False
        if self._witness and (place := (epoch, self._shard, self._witness.row)) not in self._equal:
            _, stop = self._expected.get(place, ("", self._row))
            self._expected[place], self._unchecked = (
                (self._witness.digest, min(stop, self._row)),
                True,
            )

    def close(self) -> None:
        self._shelf.close()

    def pull(self, n: int, /) -> Chunk:
        if self._unchecked and self._witness:
            self._pass((self._epoch, self._shard, self._witness.row), self._row)
        while self._shard < len(self._shelf.names):
            if values := self._shelf.read(self._shard, self._row, n):
                before, found = self._witness, self._witnesses(values)
                chunk = Chunk(
                    values,
                    self._rows(len(values)),
                    _ShardTrail(self._shard, self._row, before, found),
                )
                self._row, self._witness = self._row + len(values), found[-1] if found else before
                return chunk
            self._shard, self._row, self._witness = self._shard + self._lanes, 0, None
        return Chunk([], make_empty_rows(0), ConstantCursor(None))

    def _witnesses(self, values: Sequence[Any]) -> Sequence[Witness]:
        """The first rows, and later every so many, so that witnesses cost next to nothing."""
        if not self._watched:
            return ()
        rows = range(self._row, self._row + len(values))
        wanted = [row for row in rows if row < _FIRST or row % _EVERY == 0]
        return [
            self._compared((self._epoch, self._shard, row), values[row - self._row])
            for row in wanted
        ]

    def check(self) -> None:
        """Compare the first sample with its digest in the cursor; others are compared when they are
        read.
        """
        for place, (_, stop) in sorted(self._expected.items())[:1]:
            self._pass(place, stop)

    def _pass(self, place: _Place, stop: int) -> None:
        """Compare the sample at a place, and go on to a row."""
        _, shard, row = place
        self._compared(place, *(self._shelf.read(shard, row, 1) or [None]))
        row += 1
        while row < stop and (more := len(self._shelf.read(shard, row, stop - row))):
            row += more
        self._unchecked = False

    def _compared(self, place: _Place, value: Any) -> Witness:
        """A sample as a witness; refused where a cursor says that it was another one."""
        _, shard, row = place
        found = Witness(row, world.digests.digest_value(value))
        (expected, _) = self._expected.get(place, (UNKNOWN_DIGEST, 0))
        if UNKNOWN_DIGEST not in (expected, found.digest) and expected != found.digest:
            raise StateError(
                f"sample {row} of shard {self._shelf.names[shard]!r} in {self.leaf.name!r} "
                "differs from the sample in the run of the state, so the run would repeat or "
                "lose samples; seed the shuffle of its function (seed=), or give its samples an "
                "identity (from_iterable(..., identity='v1'), or digest() of Shards) if only "
                "details are random, or load with on_mismatch='adopt'"
            )
        if self._expected.pop(place, None):
            self._equal.add(place)
        return found

    def _rows(self, n: int) -> ProvenanceRows:
        index = np.arange(self._row, self._row + n)
        zeros = np.zeros_like(index)
        return ProvenanceRows(
            zeros + self.leaf.number, zeros + self._epoch, index, zeros + self._shard
        )


_FIRST, _EVERY = 8, 64  # rows that are witnesses: so many at first, then one of so many


@dataclass(frozen=True, slots=True)
class _ShardTrail:
    shard: int
    row: int
    before: Witness | None
    found: Sequence[Witness]

    def at(self, count: int, /) -> Json:
        number = bisect_left(self.found, self.row + count, key=lambda witness: witness.row)
        return _cursor(
            self.shard, self.row + count, self.found[number - 1] if number else self.before
        )


def _cursor(shard: int, row: int, witness: Witness | None) -> Json:
    return [shard, row] if witness is None else [shard, row, {"witness": [*witness]}]


def _has_witness(cursor: Json) -> bool:
    return isinstance(cursor, list) and len(cursor) == 3


def _witness_of(told: Any, row: int) -> Witness:
    held = cast("dict[str, Any]", told) if isinstance(told, dict) else {}
    found = parse_cursor_list(held.get("witness"))
    if not isinstance(found[1], str):
        raise make_cursor_error(found[1], "a digest")
    return Witness(parse_cursor_int(found[0], row), found[1])


def without_witnesses(cursor: Any) -> Any:
    """A cursor, at whatever depth, that is taken whatever the samples before it are."""
    if isinstance(cursor, dict):
        return {
            name: without_witnesses(each) for name, each in cast("dict[str, Any]", cursor).items()
        }
    if not isinstance(cursor, list):
        return cursor
    held = cast("list[Any]", cursor)
    return [
        without_witnesses(each)
        for each in held
        if not (isinstance(each, dict) and "witness" in each)
    ]


class ShardsOp(Op):
    """Shards at work."""

    indexed = False

    def __init__(self, named: Leaf, profiler: Profiler | None) -> None:
        self.named, self.profiler = named, profiler

    def stream(self, opening: StreamOpener, passes: PassCounts) -> Stream:
        lane, lanes, mine = opening.own_lane[:3]
        if (shards := len(cast(Shards, self.named.source).names())) >= lanes:
            return self._opened(opening, lane, lanes)
        if len(mine) < lanes:
            _tell_read_by_all(self.named.name, shards, lanes, lanes // len(mine))
        return opening.open_shared(self, lambda: self._opened(opening, 0, 1), passes)

    def _opened(self, opening: StreamOpener, lane: int, lanes: int) -> Sharded:
        found = Sharded(self.named, lane, lanes, self.profiler)
        opening.execution.witnesses.append(found.check)
        return found

    @property
    def leaves(self) -> tuple[int, ...]:
        return (self.named.number,)


@lru_cache(1000)
def _tell_read_by_all(name: str, shards: int, lanes: int, ranks: int) -> None:
    """Said once."""
    logging.getLogger("penstock").warning(
        "%s has %d shards, fewer than the %d lanes of the run, so each of %d ranks reads all of it "
        "and drops the share of the others; make more shards, or take fewer lanes",
        name, shards, lanes, ranks,
    )  # fmt: skip
