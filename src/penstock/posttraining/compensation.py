"""Compensation of lost items in `mix(count="settled")`, whose weights count the trained items.

A single rank replaces a lost item at once. Ranks cannot see what others lost. So each rank reports,
receives the reports of all ranks, and continues as after a resume: from the position of the
furthest rank. The items that other ranks had not reached are divided among all ranks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from ..engine.base.canonical_json import compute_fingerprint
from ..engine.base.cursors import parse_cursor_int, parse_cursor_list
from ..engine.changes.edits import ChangedDraws, changed
from ..engine.mixing import Mixture
from ..engine.plan.records import Address
from ..engine.runtime.session import Session
from ..engine.steps.mix import bind_mixtures
from ..engine.steps.mix_op import MixOp
from ..errors import ConfigError, PenstockError, StateError
from ..types import Json
from .in_flight import InFlight, RankProgress
from .replacements import ReplacedDraws, Replacements


class Compensation:
    """Replaces lost items in the mixture of a run; `log` records the replacement draws."""

    def __init__(self, session: Session) -> None:
        draws = cast("MixOp", bind_mixtures(session.compiled.builder)[()]).schedule
        if not isinstance(draws, ReplacedDraws):
            draws = ReplacedDraws(cast("Mixture", draws), Replacements())
        self._session, self._draws, self._must_reopen = session, draws, False
        position, in_flight = self._position, self._in_flight
        self.log: list[dict[str, Json]] = [
            {"from": position},
            *(
                {"position": draw, "source": name}
                for draw, name in draws.replacements.draws
                if draw >= position
            ),
        ]
        if in_flight.lost:
            # The states of ranks that did not know of each other's losses: now all ranks know.
            needed = [address.item for address in in_flight.open_on_all_ranks]
            self._replace(in_flight.lost, position, needed)
            in_flight.lost.clear()

    @property
    def _in_flight(self) -> InFlight:
        return cast("InFlight", self._session.section)

    @property
    def _position(self) -> int:
        return parse_cursor_int(self._session.out.cursor())

    def lose(self, address: Address) -> None:
        """Replace a lost item; on several ranks, at the next `compensate`."""
        if self._session.setting.world_size > 1:
            self._in_flight.lost.append(address.item)
        else:
            needed = [other.item for other in self._in_flight.open]
            self._replace([address.item], self._position, needed)

    def reopen(self, cursor: Json = None) -> None:
        """Reopen the run at a cursor, or where it is, if draws were replaced."""
        session = self._session
        if self._must_reopen:
            session.flow = changed(session.base, session.changes, session.epoch)
            session.reopen(session.out.cursor() if cursor is None else cursor)
            self._must_reopen = False

    def report(self) -> dict[str, Json]:
        """Return the progress of this rank, for the other ranks."""
        session, in_flight = self._session, self._in_flight
        changes = compute_fingerprint([change.to_json() for change in session.changes])
        return {
            "of": [session.setting.rank, session.setting.world_size],
            "at": self._position,
            "open": [address.item for address in in_flight.open],
            "lost": [*in_flight.lost],
            "made": changes,
        }

    def compensate(self, reports: Sequence[Any]) -> None:
        """Replace the lost items of all ranks, and continue from the furthest position."""
        reports, session = self._read(reports), self._session
        lost = sorted(item for report in reports for item in report["lost"])
        if not lost:
            return
        furthest = max(report["at"] for report in reports)
        not_reached = list[Address]()
        for report in reports:
            spread = replace(session.sharding, rank=report["of"][0])
            progress = RankProgress(0, report["at"], spread, None, None, [])
            not_reached += progress.items_before(0, furthest)
        needed = [
            *(item for report in reports for item in report["open"]),
            *(item for _, item in not_reached),
        ]
        before = session.changes, session.flow, self._draws, [*self.log]
        try:
            self._replace(lost, furthest, needed)
            self.reopen(furthest)
        except BaseException:
            session.changes, session.flow, self._draws, self.log = before
            self._must_reopen = False
            raise
        self._in_flight.lost.clear()
        self._in_flight.waiting |= dict.fromkeys(
            sorted(not_reached)[session.setting.rank :: session.setting.world_size]
        )

    def _read(self, reports: Sequence[Any]) -> list[Any]:
        """Return the reports in the order of their ranks, if they are the current ones of all."""
        own, setting = json.loads(json.dumps(self.report())), self._session.setting
        by_rank = json.loads(json.dumps(list(reports)))
        try:
            by_rank = sorted(
                by_rank, key=lambda report: parse_cursor_int(parse_cursor_list(report["of"])[0])
            )
            ranks = [report["of"] for report in by_rank]
            for report in by_rank:
                for item in [report["at"], *report["open"], *report["lost"]]:
                    parse_cursor_int(item)
        except (LookupError, TypeError, PenstockError) as error:
            raise ConfigError(
                f"compensate: a report cannot be read ({error!r}); give the settled_report() of "
                "every rank"
            ) from error
        if ranks != [[rank, setting.world_size] for rank in range(setting.world_size)]:
            raise ConfigError(
                f"compensate: the reports are of ranks {str(ranks)[:80]}; give one report for each "
                f"of the {setting.world_size} ranks"
            )
        if any(report["made"] != own["made"] for report in by_rank):
            raise StateError(
                "compensate: the reports were made at different times or by different runs, because "
                "the ranks have replaced different draws; take all reports after the same call"
            )
        if by_rank[setting.rank] != own:
            raise ConfigError(
                "compensate: this rank leased or settled items after its report; report, gather the "
                "reports of all ranks, and call compensate before you lease or settle more items"
            )
        return by_rank

    def _replace(self, lost: Sequence[int], position: int, needed: Sequence[int]) -> None:
        """Schedule a replacement draw for each lost item, from a position without leases on.

        The changes of the run keep only the `needed` draws before that position.
        """
        session, draws = self._session, self._draws
        sources: list[int] = draws.at(np.asarray(lost, np.int64))[0].tolist()
        names = [draws.names[source] for source in sources]
        replacements = draws.replace_lost(names, position, np.asarray(sorted(needed), np.int64))
        others = [edit for edit in session.changes if not isinstance(edit, ChangedDraws)]
        self._draws, self._must_reopen = ReplacedDraws(draws.mixture, replacements), True
        session.changes = (*others, ChangedDraws((), replacements))
        for draw, name in replacements.draws[-len(names) :]:
            self.log.append({"position": draw, "source": name})
