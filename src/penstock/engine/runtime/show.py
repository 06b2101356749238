"""Where a run stands, for people: the head of what an iterator or a loader shows."""

from __future__ import annotations

from collections.abc import Sequence

from ..base.cursors import parse_cursor_int
from ..graph.ends import endless
from ..graph.show import shown
from ..graph.shown import Shown, attempt, counted
from .session import Session


def shown_run(kind: str, session: Session, items: int | None, notes: Sequence[str] = ()) -> Shown:
    """`kind` is what shows itself, `items` how many it gives in a pass, `notes` what else is to be
    said."""
    stops = not attempt(lambda: endless(session.base), False)
    most = f" of {counted(items, 'item')}" if items is not None else "" if stops else ", endless"
    at = attempt(lambda: _standing(session), "")
    return shown(
        f"{kind}{most}" + "".join(f", {each}" for each in [*notes, at] if each), session.flow
    )


def _standing(session: Session) -> str:
    if session.group:
        item = parse_cursor_int(session.out.cursor()) // (
            session.group * session.setting.world_size
        )
        return f"at item {item:,} of pass {session.epoch}"
    given = counted(sum(session.samples.values()), "sample")
    return f"{counted(session.lanes, 'lane')}, in pass {session.epoch}, {given} given since it was opened"
