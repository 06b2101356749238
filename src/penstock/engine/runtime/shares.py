"""Shares of a mixture by what was trained: for what is lost draws are put in, at once on one rank.

Ranks cannot see what others lost. Each reports, all are given the reports of all at one point, and
go on as after a
resume: from where the furthest stands, with what the others have not taken dealt out among them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from ...errors import ConfigError, PenstockError, StateError
from ...types import Json
from ..base.canonical_json import compute_fingerprint
from ..base.cursors import parse_cursor_int, parse_cursor_list
from ..graph.edits import Change, changed
from ..mixing import Corrected, MadeUp, Mixture
from ..ops.mix import MixOp
from .session import Session
from .settling import Address, StandingOf


class Shares:
    """A session whose mixture counts what was settled. `log` tells the draws that were put in."""

    def __init__(self, session: Session) -> None:
        drawing = cast("MixOp", session.compiled.builder.mixed[()]).schedule
        if not isinstance(drawing, Corrected):
            drawing = Corrected(cast("Mixture", drawing), MadeUp(0, {}, ()))
        self._session, self._drawing, self._stale = session, drawing, False
        frontier = parse_cursor_int(session.out.cursor())
        owed = [draw for draw in drawing.made.draws if draw[0] >= frontier]
        self.log: list[dict[str, Json]] = [
            {"from": frontier},
            *({"position": at, "source": name} for at, name in owed),
        ]
        if (
            lost := session.ledger.lost
        ):  # in states of ranks that did not know of each other's; now all do
            self._put_in(lost, frontier, [address.item for address in session.ledger.of_all])
            lost.clear()

    def lose(self, address: Address) -> None:
        """One more of the same source comes next; on several ranks, when all know."""
        session = self._session
        if session.setting.world_size > 1:
            session.ledger.lost.append(address.item)
        else:
            self._put_in(
                [address.item],
                parse_cursor_int(session.out.cursor()),
                [open_.item for open_ in session.ledger.open],
            )

    def refresh(self, at: Json = None) -> None:
        """Have the run go on by what was put in."""
        session = self._session
        if self._stale:
            session.flow = changed(session.base, session.changes, session.epoch)
            session.reopen(session.out.cursor() if at is None else at)
            self._stale = False

    def report(self) -> dict[str, Json]:
        """What the other ranks are to know of this one."""
        session, ledger = self._session, self._session.ledger
        of: Json = [session.setting.rank, session.setting.world_size]
        at, made = (
            parse_cursor_int(session.out.cursor()),
            compute_fingerprint([change.to_json() for change in session.changes]),
        )
        return {
            "of": of,
            "at": at,
            "open": [one.item for one in ledger.open],
            "lost": [*ledger.lost],
            "made": made,
        }

    def compensate(self, reports: Sequence[Any]) -> None:
        """Put draws in for what was lost on all ranks, and go on where the furthest stands."""
        found, session = self._read(reports), self._session
        lost = sorted(item for report in found for item in report["lost"])
        if not lost:
            return
        frontier = max(report["at"] for report in found)
        holes = list[Address]()
        for report in found:
            spread = replace(session.spread, rank=report["of"][0])
            holes += StandingOf(0, report["at"], spread, None, None, []).not_taken(0, frontier)
        needed = [
            *(item for report in found for item in report["open"]),
            *(item for _, item in holes),
        ]
        before = session.changes, session.flow, self._drawing, [*self.log]
        try:
            self._put_in(lost, frontier, needed)
            self.refresh(frontier)
        except BaseException:
            session.changes, session.flow, self._drawing, self.log = before
            self._stale = False
            raise
        session.ledger.lost.clear()
        session.ledger.waiting |= dict.fromkeys(
            sorted(holes)[session.setting.rank :: session.setting.world_size]
        )

    def _read(self, reports: Sequence[Any]) -> list[Any]:
        """The reports in the order of their ranks, if they are those of all ranks of this
        moment."""
        found, mine, ranks = (
            json.loads(json.dumps(list(reports))),
            self.report(),
            self._session.setting.world_size,
        )
        try:
            found = sorted(
                found, key=lambda report: parse_cursor_int(parse_cursor_list(report["of"])[0])
            )
            of = [report["of"] for report in found]
            for report in found:
                for item in [report["at"], *report["open"], *report["lost"]]:
                    parse_cursor_int(item)
        except (LookupError, TypeError, PenstockError) as error:
            raise ConfigError(
                f"compensate: a report cannot be read ({error!r}); give the settled_report() of "
                "every rank"
            ) from error
        if of != [[rank, ranks] for rank in range(ranks)]:
            raise ConfigError(
                f"compensate: the reports are of ranks {str(of)[:80]}; give one report for each of "
                f"the {ranks} ranks"
            )
        if any(report["made"] != mine["made"] for report in found):
            raise StateError(
                "compensate: the reports were made at different times or by different runs, because "
                "the ranks have replaced different draws; take all reports after the same call"
            )
        if found[self._session.setting.rank] != json.loads(json.dumps(mine)):
            raise ConfigError(
                "compensate: this rank leased or settled items after its report; report, gather the "
                "reports of all ranks, and call compensate before you lease or settle more items"
            )
        return found

    def _put_in(self, lost: Sequence[int], frontier: int, needed: Sequence[int]) -> None:
        """Schedule a replacement draw for each of these items, from a position without leases on.

        Of those before it, only the needed ones are still known.
        """
        session, drawing = self._session, self._drawing
        sources: list[int] = drawing.at(np.asarray(lost, np.int64))[0].tolist()
        names = [drawing.names[source] for source in sources]
        made = drawing.lost(names, frontier, np.asarray(sorted(needed), np.int64))
        others = [
            edit
            for edit in session.changes
            if not (isinstance(edit, Change) and isinstance(edit.event, MadeUp))
        ]
        self._drawing, self._stale = Corrected(drawing.mixture, made), True
        session.changes = (*others, Change((), 0, made))
        for place, name in made.draws[-len(names) :]:
            self.log.append({"position": place, "source": name})
