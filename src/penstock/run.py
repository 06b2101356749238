"""Opens a tree: which parts are indexed, which are streams, and how a lane or a rank gets its share. One `match`
over five nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import lru_cache
from typing import Any, cast

import numpy as np

from .barren import Barren
from .build import Builder, require_indexed, why_not
from .deal import Spread
from .ends import endless
from .errors import ConfigError, StateError
from .feed import Positions, Upstream
from .fold import ShuffleBuffer
from .hold import Holding
from .lanes import Lanes
from .nodes import (
    Batch,
    By,
    Each,
    Flow,
    Head,
    Hold,
    Mix,
    Path,
    Read,
    Reorder,
    Sizer,
    Turns,
    Weighted,
    inputs_of,
)
from .ops.op import standing
from .order import WindowShuffle
from .pack import BestFit, FirstFit
from .reader import ONCE, Dealt, FirstPass, LaneOf, Laps, Reader
from .rounds import Rounds, Share
from .shards import Sharded
from .sources.identity import content
from .step import Leaf
from .streams import Batches, Stream
from .tail import Laned, has_tail, tail_of
from .turns import draws_of
from .types import Fold, Json, Shards
from .weave import Weave
from .work import Hired, Work


def tail_group(flow: Flow) -> int | None:
    """How many rows one item of an indexed flow takes; None where the yield depends on the data."""
    return tail_of(flow).group if why_not(flow) is None else None


def _mixed(flow: Flow) -> bool:
    """Whether several sources are drawn from in turn somewhere below."""
    match flow:
        case Read():
            return False
        case Mix(_, _, Weighted() | By()):
            return True
        case Mix(flows):
            return any(map(_mixed, flows))
        case Reorder(below) | Each(below) | Hold(below):
            return _mixed(below)


class Opener:
    """Opens one tree (or one lane of it) with given hands. `given` is a stream that stands for the rows of the run,
    `path` where in the tree they lie.
    """

    def __init__(
        self,
        builder: Builder,
        hired: Hired,
        spread: Spread,
        lane: LaneOf | None = None,
        given: tuple[Laned, Stream] | None = None,
        path: Path = (),
    ) -> None:
        self.builder, self.hired, self.spread, self.lane, self._given = builder, hired, spread, lane, given
        self.path = path
        self._furthest = dict[Path, Callable[[int | None], int]]()
        self._feed: Positions | Rounds | None = None

    def furthest(self, path: Path, cursor: int | None) -> int:
        """The first position of the mixture at a path that nobody has drawn yet, given the cursor of a lone stream."""
        if path not in self._furthest:
            raise _not_those_of_the_run()
        return self._furthest[path](cursor)

    @property
    def rows(self) -> int | None:
        """The positions of a pass of an indexed flow that ends."""
        return self._feed.op.size if self._feed else None

    def last_key(self, epoch: int, cursor: Json) -> str | None:
        """A digest of what the last position before a cursor is made of; None where only reading could tell."""
        while isinstance(cursor, list) and cursor:
            cursor = cursor[0]
        if self._feed is None or not isinstance(cursor, int) or cursor < 1:
            return None
        try:
            rows = self._feed.rows_at(np.asarray([cursor - 1]), epoch)
        except StateError:  # it came from an input that the mixture which took over does not have
            return None
        names = [self.builder.leaves[int(leaf)].name for leaf in rows.leaf]
        return content([names, rows.epoch.tolist(), rows.index.tolist(), rows.part.tolist()])

    def open(self, flow: Flow, seed: int = 0, path: Path = (), grain: int = 1, laps: Laps = ONCE) -> Stream:
        """The stream of a flow, that many passes of which follow one another."""
        if self._given and flow is self._given[0].flow and path == self._given[0].path:
            return self._given[1]
        if why_not(flow) is None and (self.lane or not has_tail(flow)):
            return self._positions(flow, seed, path, grain, laps)
        match flow:
            case Hold(below, Batch(n, drop)):
                return Batches(self.open(below, seed, path, grain * n, laps), n, drop)
            case Hold(below, fold, size):
                assert not isinstance(fold, Batch)
                key = self.builder.hold_key(flow, seed, path) + self._share.lane & (1 << 64) - 1
                stream = self.open(below, seed, path, laps=laps)
                return Holding(stream, shared(fold, self._share.lanes), size or Sizer(_one), key)
            case Each(below):
                return self._each(flow, self.open(below, seed, path, grain, laps), seed, path)
            case Mix((below,), _, Head()) if self._given:
                return self.open(below, seed, (*path, 0), grain, laps)  # the lanes know their limit
            case Mix((below,), _, Head(n)):
                return self._dealt(path, lambda: self._first(below, n, seed, (*path, 0)), laps)
            case Mix():
                return self._weave(flow, seed, path, laps)
            case Read():
                return self._sharded(self.builder.leaf(flow, path), path, laps)
            case Reorder(_, order):
                require_indexed(
                    flow, type(order).__name__.lower(), "use .shuffle_buffer(n), or put it before that step"
                )
                raise AssertionError("an indexed reorder is an op")

    @property
    def _share(self) -> LaneOf:
        assert self.lane is not None, "only lanes have streams that are not indexed"
        return self.lane

    def _paired(self) -> Opener:
        """The opener of what is zipped: a sample that failed would take the partner of another."""
        twin = copy(self)
        twin.hired = replace(self.hired, paired=True)
        return twin

    def _positions(self, flow: Flow, seed: int, path: Path, grain: int, laps: Laps) -> Stream:
        op, lanes = self.builder.op(flow, seed, path), 1
        if self.lane is None:
            feed = Positions(op, self.spread)
        else:
            lanes = self.lane.lanes
            feed = Rounds(op, Share(self.lane.lane, lanes, _mixed(flow), laps.run))
        if path == self.path:
            self._feed = feed
        work = Work(feed, op, [], self.hired, grain)
        if (mix := self.builder.mixed.get(path)) is not None:

            def reached(cursor: int | None) -> int:
                stand = standing(op, lanes * (work.furthest() if cursor is None else cursor), again=False)
                if (place := stand.get(id(mix))) is None:
                    raise _not_those_of_the_run()
                return place[0] * (mix.size or 0) + place[1]

            self._furthest[path] = reached
        return work

    def _weave(self, flow: Mix, seed: int, path: Path, laps: Laps) -> Stream:
        rule = flow.rule
        inner, draws = rule.seed if isinstance(rule, Weighted) else seed, draws_of(flow, path, *self._share[:2])
        laps = Laps(None if laps.run is None or endless(flow) else laps.run * draws.laps, draws.laps)
        opener = self._paired() if isinstance(rule, Turns) else self
        streams = [opener.open(child, inner, place, laps=laps) for child, place in inputs_of(flow, path)]
        weave = Weave(streams, flow.names, draws, depth_of(flow), self._share)
        if isinstance(rule, Weighted):
            lanes = self._share.lanes
            self._furthest[path] = lambda _: weave.position * lanes
        return weave

    def _sharded(self, leaf: Leaf, path: Path, laps: Laps) -> Stream:
        lane, lanes, mine = self._share[:3]
        if (shards := len(cast(Shards, leaf.source).names())) >= lanes:
            return Sharded(leaf, lane, lanes)
        if len(mine) < lanes:
            _tell_read_by_all(leaf.name, shards, lanes, lanes // len(mine))
        return self._dealt(path, lambda: Sharded(leaf), laps)

    def _first(self, below: Flow, n: int, seed: int, path: Path) -> Stream:
        """The first `n` items of a flow: a run of its own, which every rank goes through."""
        lanes, readers = self._share.lanes, dict[Path, Reader]()
        barren = Barren(lanes, endless(below))

        def opened(lane: int) -> Stream:
            of = LaneOf(lane, lanes, range(lanes), readers, barren)
            return Opener(self.builder, self.hired, Spread(), of, path=path).open(below, seed, path)

        return FirstPass(Lanes(lanes, 0, 1, n, opened, barren, self.hired.most))

    def _dealt(self, path: Path, opened: Callable[[], Stream], laps: Laps) -> Stream:
        """Our share of a stream that is read once for all lanes of the rank."""
        lane, lanes, mine, readers, _ = self._share
        if lanes == 1:
            return opened()
        if path not in readers:
            readers[path] = Reader(opened(), mine, laps)
        return Dealt(readers[path], lane, lanes)

    def _each(self, flow: Each, below: Stream, seed: int, path: Path) -> Stream:
        step = self.builder.step(flow, seed, path)
        if isinstance(below, Work):
            return below.then(step)
        work = Work(Upstream(below), None, [step], self.hired)
        if flow.kind == "flat":
            for place, line in self._furthest.items():
                self._furthest[place] = lambda cursor, line=line: line(cursor) + work.inside
        return work


def _not_those_of_the_run() -> ConfigError:
    return ConfigError(
        "set_weights: the mixture is shuffled, sliced or nested, so its positions are not those of the run; pass at="
    )


@lru_cache(1000)
def _tell_read_by_all(name: str, shards: int, lanes: int, ranks: int) -> None:
    """Said once."""
    logging.getLogger("penstock").warning(
        "%s has %d shards, fewer than the %d lanes of the run: each of %d ranks reads all of it and keeps its "
        "share; more shards, or fewer lanes, would be shared out", name, shards, lanes, ranks,
    )  # fmt: skip


def shared(fold: Fold, lanes: int) -> Fold:
    """A lane's share of a fold: buffers, windows and open rows are those of the run. A few there are in any case, or
    a lane could neither shuffle nor choose.
    """
    match fold:
        case ShuffleBuffer(n):
            return replace(fold, n=_share(n, lanes, 2))
        case WindowShuffle(n):
            return replace(fold, window=_share(n, lanes, 2))
        case FirstFit():
            return replace(fold, open_rows=_share(fold.open_rows, lanes, 4))
        case BestFit():
            window = _share(fold.window, lanes, 64)
            return replace(fold, open_rows=_share(fold.open_rows, lanes, 4), window=window)
        case _:
            return fold


def _share(n: int, lanes: int, least: int) -> int:
    return max(-(-n // lanes), min(n, least))


def _one(value: Any) -> int:
    return 1


def depth_of(flow: Flow) -> int:
    """How many levels of groups the items of a flow have."""
    match flow:
        case Read():
            return 0
        case Mix(flows):
            return max(map(depth_of, flows))
        case Hold(below):
            return depth_of(below) + 1
        case Reorder(below) | Each(below):
            return depth_of(below)
