"""Cursors of streams when another mixture takes over: every input that both have stays where it
is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import StateError
from ...types import Json
from ..base.cursors import parse_cursor_int, parse_cursor_list
from ..mixing import Exhausted, event_from_json
from ..ops.again import pass_of
from ..steps.function_step import FunctionStep
from .draws import draws_of
from .indexed import why_not
from .nodes import Again, Batch, Flow, Head, Hold, Mix, Path, Rest, inputs_of


class Taken(NamedTuple):
    """The mixtures of streams that were taken over in a run of so many lanes: by their places, the
    names that their inputs had.
    """

    names: Mapping[Path, Sequence[str]]
    lanes: int

    def below(self, path: Path) -> bool:
        """Whether there is one at or below a place."""
        return any(place[: len(path)] == path for place in self.names)


def all_moved(
    flow: Flow, cursors: Mapping[int, Json], taken: Taken, epoch: int, path: Path
) -> dict[int, Json]:
    """The cursors of the lanes of a flow as those of the same flow with its present mixtures."""
    top = flow
    while isinstance(top, FunctionStep) and top.is_elementwise:
        top = top.flow
    if isinstance(top, Head | Rest) and taken.lanes > 1 and taken.below(path):
        # Read once and dealt out by turns: all lanes go on behind the last item that one of them
        # gave.
        furthest = max(
            (parse_cursor_list(at) for at in cursors.values() if at is not None),
            key=lambda at: at[1],
            default=None,
        )
        cursors = dict.fromkeys(cursors, furthest)
    return {lane: migrate_cursor(flow, at, taken, epoch, path, top) for lane, at in cursors.items()}


def migrate_cursor(
    flow: Flow, cursor: Json, taken: Taken, epoch: int, path: Path = (), top: Flow | None = None
) -> Json:
    """The cursor of a flow as one of the same flow with its present mixtures; `top` is what all
    lanes give."""
    if cursor is None or why_not(flow) is None:
        return cursor
    if isinstance(flow, Head | Rest) and flow is not top and taken.lanes > 1 and taken.below(path):
        raise StateError(
            "a limit or skip of a mixture of streams that is to be changed is below another "
            "step, so its lanes are at different items; adopt before the first step of a pass, "
            "or keep the mixture unchanged"
        )
    match flow:
        case FunctionStep():
            many, below = False, flow
            while (
                isinstance(below, FunctionStep) and why_not(below) is not None
            ):  # they are one piece of work
                many, below = many or below.CALL.expands, below.flow
            if not many:
                return migrate_cursor(below, cursor, taken, epoch, path, top)
            inner, skip = parse_cursor_list(cursor)
            return [migrate_cursor(below, inner, taken, epoch, path), skip]
        case Hold(below, Batch()):
            return migrate_cursor(below, cursor, taken, epoch, path)
        case Hold(below):
            inner, oldest, number, *rest = parse_cursor_list(cursor, 6)
            if oldest != number and taken.below(path):
                raise StateError(
                    f"a {type(flow.fold).__name__} holds samples of a mixture of streams that is "
                    "to be changed; adopt before the first step of a pass, or keep the mixture "
                    "unchanged"
                )
            return [migrate_cursor(below, inner, taken, epoch, path), oldest, number, *rest]
        case Head(below):
            return _limited(below, cursor, taken, 0, path)
        case Rest(below):
            return _rest(below, cursor, taken, epoch, path)
        case Again(below):
            done, inner = parse_cursor_list(cursor)
            return [
                done,
                migrate_cursor(
                    below, inner, taken, pass_of(flow.epochs, epoch, parse_cursor_int(done)), path
                ),
            ]
        case Mix():
            return _mixed(flow, cursor, taken, epoch, path)
        case _:
            return cursor


def _rest(below: Flow, cursor: Any, taken: Taken, epoch: int, path: Path) -> Json:
    """Items after the first ones: the number still to come, and the lanes.

    If they are dealt to lanes, each is a pair with the number of the last item.
    """
    one, other = parse_cursor_list(cursor)
    if isinstance(one, list):
        return [_rest(below, one, taken, epoch, path), other]
    return [one, _limited(below, other, taken, epoch, path)]


def _limited(below: Flow, cursor: Any, taken: Taken, epoch: int, path: Path) -> Json:
    """The first items of a flow: lanes of their own, and where they are dealt out the number of the
    last one."""
    if isinstance(cursor, list):
        lanes, number = parse_cursor_list(cursor)  # pyright: ignore[reportUnknownArgumentType]
        return [_limited(below, lanes, taken, epoch, path), number]
    return {
        **cursor,
        "at": {
            lane: migrate_cursor(below, at, taken, epoch, path) for lane, at in cursor["at"].items()
        },
    }


def _mixed(flow: Mix, cursor: Json, taken: Taken, epoch: int, path: Path) -> Json:
    position, draws, drawn, inputs = parse_cursor_list(cursor, 4)
    places = dict(enumerate(range(len(inputs))))
    if path in taken.names:
        was = list(taken.names[path])
        places = {i: was.index(name) for i, name in enumerate(flow.names) if name in was}
        draws = _draws(flow, was, parse_cursor_int(position) * taken.lanes, draws, drawn)
        drawn = [drawn[places[i]] if i in places else 0 for i in range(len(flow.flows))]
    below = list[Json]()
    for i, (child, place) in enumerate(inputs_of(flow, path)):
        own, inner = inputs[places[i]] if i in places else (epoch * draws_of(flow, path).laps, None)
        below.append([own, migrate_cursor(child, inner, taken, parse_cursor_int(own), place)])
    return [position, draws, drawn, below]


def _draws(flow: Mix, was: list[str], position: int, saved: Any, drawn: Any) -> Json:
    """The draws of a mixture that goes on where another one stood at a position of the run."""
    passes, over, events = parse_cursor_list(saved, 3)
    counts = {
        name: parse_cursor_int(count)
        for name, count in zip(was, drawn, strict=True)
        if name in flow.names
    }
    gone = [
        event
        for event in map(event_from_json, events)
        if isinstance(event, Exhausted) and event.source in counts
    ]
    log = [Exhausted(position, event.source, event.count) for event in gone]
    given = dict(zip(was, passes, strict=True))
    fresh = [name for name in flow.names if name not in counts]
    return [
        [given.get(name, 0) for name in flow.names],
        bool(over) and not fresh,
        [event.to_json() for event in log],
    ]
