"""What a saved state holds, read with care: the states of all ranks as one, lanes, the journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import StateError
from .streams import as_int
from .types import Json


def entries_of(body: Mapping[str, Any], name: str) -> Sequence[Any]:
    """The list of this name, empty where there is none."""
    found = body.get(name, [])
    if not isinstance(found, list):
        raise StateError(f"the state's {name!r} is a {type(found).__name__}, not a list; it is damaged")
    return found  # pyright: ignore[reportUnknownVariableType]


def merged(bodies: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], dict[int, Json]]:
    """One state out of those of all ranks."""
    body = bodies[0]
    cursors = dict[int, Json]()
    for other in bodies:
        for name in ("fingerprint", "epoch", "lanes"):
            if other.get(name) != body.get(name):
                raise StateError(
                    f"the states are of different moments or runs: {name} is {body.get(name)!r} in one, "
                    f"{other.get(name)!r} in another"
                )
        at = other.get("at")
        if isinstance(at, Mapping) and "lanes" in other:
            cursors |= {lane_number(lane): cursor for lane, cursor in at.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        else:
            if cursors and cursors[0] != at:
                raise StateError(f"the states are of different moments: one stands at {cursors[0]}, another at {at}")
            cursors[0] = at
    if None in cursors.values() or not cursors:
        raise StateError("the state has no cursor; it is damaged, or was never a saved position")
    if "turn" not in body:
        return body, cursors
    turns = [as_int(other.get("turn")) for other in bodies]
    ended = [lane for other in bodies for lane in entries_of(other, "ended")]
    if len(set(turns)) > 1 and not ended:
        raise StateError(
            f"the states are of different moments: the ranks stood at turns {turns}; save on all ranks after the "
            "same step"
        )
    return {**body, "turn": max(turns), "ended": ended}, cursors


def lane_number(number: Any) -> int:
    """The number of a lane, which JSON keeps as text."""
    if not isinstance(number, str) or not number.isdecimal():
        raise StateError(f"the state has a cursor for lane {number!r}, which is no number; it is damaged")
    return int(number)


def sample_of(entry: Any) -> tuple[str, int, int]:
    """Which sample an entry of the journal is about."""
    try:
        return str(entry["source"]), int(entry["epoch"]), int(entry["index"])
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"an entry of the state's journal names no sample ({entry!r}); it is damaged") from error
