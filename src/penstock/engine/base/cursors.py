"""Validation of cursors in states: positions and lists."""

from __future__ import annotations

from typing import Any

from ...errors import PositionError
from ...types import MAX_POSITION, Json
from .canonical_json import encode_canonical_json


def parse_cursor_int(cursor: Json, most: int = MAX_POSITION) -> int:
    """Return a cursor that must be a position below `most`."""
    if isinstance(cursor, bool) or not isinstance(cursor, int) or not 0 <= cursor < most:
        raise make_cursor_error(
            cursor, "a position" if most == MAX_POSITION else f"a number below {most}"
        )
    return cursor


def parse_cursor_list(cursor: Json, length: int = 2) -> list[Any]:
    """Return a cursor that must be a list of `length` entries."""
    if not isinstance(cursor, list) or len(cursor) != length:
        raise make_cursor_error(cursor, f"a list of {length}")
    return cursor


def is_cursor_at(cursor: Json, target: Json) -> bool:
    """Return whether a cursor equals a target; null as target is the beginning in any spelling."""
    if isinstance(target, list) and isinstance(cursor, list):
        return len(target) == len(cursor) and all(map(is_cursor_at, cursor, target))
    return target is None or encode_canonical_json(cursor) == encode_canonical_json(target)


def make_cursor_error(cursor: Json, wanted: str) -> PositionError:
    """Return the error for a cursor whose shape does not fit the pipeline."""
    return PositionError(
        f"a cursor in the state is {str(cursor)[:80]!r} where {wanted} should be; it is of another "
        "pipeline or damaged"
    )
