"""What a cursor in a state must be: a position, a list, the number of a lane."""

from __future__ import annotations

from typing import Any

from ...errors import StateError
from ...types import Json
from .spelling import canonical

_FURTHEST = 1 << 53  # no run gets there; what lies behind is damage


def as_int(cursor: Json, most: int = _FURTHEST) -> int:
    """A cursor that must be a position."""
    if isinstance(cursor, bool) or not isinstance(cursor, int) or not 0 <= cursor < most:
        raise bad_cursor(cursor, "a position" if most == _FURTHEST else f"a number below {most}")
    return cursor


def check_reach(place: int, where: str) -> None:
    """Refuse to go to a place that no cursor tells.

    >>> check_reach(1 << 53, "seek(9007199254740992)")
    Traceback (most recent call last):
    ...
    IndexError: seek(9007199254740992) is behind sample or pass 2^53: no run gets there
    """
    if place >= _FURTHEST:
        raise IndexError(f"{where} is behind sample or pass 2^53: no run gets there")


def as_list(cursor: Json, length: int = 2) -> list[Any]:
    """A cursor that must be a list of so many entries."""
    if not isinstance(cursor, list) or len(cursor) != length:
        raise bad_cursor(cursor, f"a list of {length}")
    return cursor


def stands_at(found: Json, asked: Json) -> bool:
    """Whether a cursor is the one that was asked for; null asks for the beginning, however that is
    written."""
    if isinstance(asked, list) and isinstance(found, list):
        return len(asked) == len(found) and all(map(stands_at, found, asked))
    return asked is None or canonical(found) == canonical(asked)


def bad_cursor(cursor: Json, wanted: str) -> StateError:
    """The error for a cursor of another shape than the pipeline's."""
    return StateError(
        f"a cursor in the state is {str(cursor)[:80]!r} where {wanted} should be; it is of another "
        "pipeline or damaged"
    )


def lane_number(number: Any) -> int:
    """The number of a lane, which JSON keeps as text."""
    if not isinstance(number, str) or not number.isdecimal():
        raise StateError(
            f"the state has a cursor for lane {number!r}, which is no number; it is damaged"
        )
    return int(number)
