"""A flow opened for one rank: one stream, whether positions are shared out or lanes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .barren import Barren
from .build import Builder
from .deal import Spread
from .ends import endless
from .lanes import Lanes
from .nodes import Path
from .reader import FirstPass, LaneOf, Reader
from .run import Opener
from .streams import Stream
from .tail import laned
from .work import Hired

LANES = 48


def lanes_for(world_size: int) -> int:
    """How many lanes a run has that does not say: many world sizes divide them."""
    return -(-LANES // world_size) * world_size


@dataclass(frozen=True)
class Opened:
    """The items of one rank as a stream. `furthest(path, position)` is the first position of the mixture at a path
    that was not drawn yet where the stream stands (at this position, where it has one).
    """

    stream: Stream
    builder: Builder
    furthest: Callable[[Path, int | None], int]
    last: Callable[[int, Any], dict[str, str | None]]
    """For a pass and a cursor: digests of what came last, by lane."""
    rows: int | None = None
    """The positions of a pass, where they are shared out and it ends."""


def open_positions(builder: Builder, hired: Hired, spread: Spread) -> Opened:
    """An indexed flow: the positions of this rank."""
    opener = Opener(builder, hired, spread)
    stream = opener.open(builder.root)
    return Opened(stream, builder, opener.furthest, lambda epoch, at: {"0": opener.last_key(epoch, at)}, opener.rows)


def open_lanes(builder: Builder, hired: Hired, lanes: int, rank: int, ranks: int) -> Opened:
    """Any other flow: the lanes of this rank in turn, and over them the tail. The tree is compiled once for all."""
    rows, parts = laned(builder.root), dict[int, Opener]()
    mine, readers, barren = range(rank, lanes, ranks), dict[Path, Reader](), Barren(lanes // ranks, endless(rows.flow))
    here = len(mine)
    most = None if hired.most is None else max(1, hired.most // here)
    each = replace(hired, window=hired.window and max(2, hired.window // here), most=most)

    def opened(lane: int) -> Stream:
        parts[lane] = Opener(builder, each, Spread(), LaneOf(lane, lanes, mine, readers, barren), path=rows.path)
        return parts[lane].open(rows.flow, path=rows.path)

    limit = None if rows.limit is None else len(range(rank, rows.limit, ranks))
    stream = Lanes(lanes, rank, ranks, limit, opened, barren, most)

    def furthest(path: Path, _: int | None) -> int:
        stream.open_all()
        return max(part.furthest(path, None) for part in parts.values())

    def last(epoch: int, at: Any) -> dict[str, str | None]:
        """None of a lane that gave nothing, and was perhaps not opened."""
        given = {lane: cursor for lane, cursor in at["at"].items() if cursor is not None}
        return {**dict.fromkeys(at["at"]), **{lane: parts[int(lane)].last_key(epoch, given[lane]) for lane in given}}

    given = stream if limit is None else FirstPass(stream)
    tail = Opener(builder, hired, Spread(), given=(rows, given))
    return Opened(tail.open(builder.root), builder, furthest, last)
