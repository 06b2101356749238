"""Items that a trainer finishes out of order: `Loader.lease`, `settle` and `compensate`.

`Leases` leases items of a run, and reads them again after a resume. `UnsettledItems` holds the items that
are not settled, as a section of the state. `Compensation` replaces lost items in
`mix(count="settled")`. The engine knows none of this. A session has two hooks: `section` adds a
section to the state, and `begin_items`, `reopen_items` and `reopen_lane` deliver whole items, also
again.

Items in flight (leased, and not settled yet): the section that leases add to a state.

The state of such a run is a position, and the items below it that are not settled. Each rank has
its own position. `UnsettledItems.merge` moves the states of all ranks to the furthest position: the items
that the other ranks had not reached become items to lease.

In a run in lanes no item can be computed alone. So each item in flight has a mark, the cursor of
its lane before an item at or before it, and a resume reads the lane from there. Items are numbered
as one rank delivers them: lane `l` of `L` delivers items `l`, `l + L`, ... of a pass. `behind`
counts the rounds by which a lane is behind the run.

Compensation of lost items in `mix(count="settled")`, whose weights count the trained items.

A single rank replaces a lost item at once. Ranks cannot see what others lost. So each rank reports,
receives the reports of all ranks, and continues as after a resume: from the position of the
furthest rank. The items that other ranks had not reached are divided among all ranks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice, pairwise, takewhile
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args

import numpy as np

from .arguments import check_choice
from .engine.base.canonical_json import compute_fingerprint
from .engine.base.cursors import parse_cursor_int, parse_cursor_list
from .engine.base.shown import counted
from .engine.changes.edits import ChangedDraws, Edit, changed
from .engine.mixing import Mixture
from .engine.plan.records import Address, parse_uid
from .engine.runtime.delivery import Delivery
from .engine.runtime.session import Session
from .engine.runtime.states import SavedState
from .engine.steps.batch import rows_of_lanes, tail_of
from .engine.steps.mix import bind_mixtures
from .engine.steps.mix_history import FURTHEST
from .engine.steps.mix_op import MixOp
from .engine.steps.step import Step
from .engine.streams.rank_sharding import RankSharding
from .errors import ConfigError, PenstockError, StateError
from .replacements import ReplacedDraws, Replacements, counts_settled_items, replay_log
from .stores.limits import RANKS
from .types import Json

Settlement: TypeAlias = Literal["trained", "filtered", "failed", "requeue"]

SETTLEMENTS: tuple[Settlement, ...] = get_args(Settlement)

_CHUNK = 1 << 16  # items listed at a time


class UnsettledItems:
    """Items of a rank that are leased, and items that wait to be leased (again), in order.

    Attributes:
        leased: the items that the trainer holds.
        waiting: the items that the next `lease` returns first.
        lost: numbers of lost items that the mixture has not replaced yet.
        open_on_all_ranks: the open items of all ranks, in the loaded state.
        used: whether items were leased, so that states have the section.
    """

    key = "settling"

    def __init__(self, waiting: Iterable[Address] = ()) -> None:
        self.leased = dict[Address, None]()
        self.waiting = dict.fromkeys(sorted(waiting))
        self.lost, self.open_on_all_ranks = list[int](), list[Address]()
        self.used = bool(self.waiting)

    @property
    def open(self) -> list[Address]:
        """All items that are not settled, in the order of the plan."""
        return sorted([*self.leased, *self.waiting])

    def lease(self, addresses: Iterable[Address]) -> None:
        """Lease items that wait."""
        for address in addresses:
            self.leased[address] = None
            del self.waiting[address]

    def settle(self, uid: str, settlement: Settlement) -> Address:
        """Settle an item; also one that waits, because its result survived a crash."""
        check_choice(settlement, SETTLEMENTS, "settle(uid, {})")
        address = parse_uid(uid, "settle({!r})")
        if address in self.waiting and settlement == "requeue":
            raise ConfigError(
                f"settle({uid!r}, 'requeue'): the item is already requeued; settle it "
                "after lease() gives it again"
            )
        if address not in self.leased and address not in self.waiting:
            raise ConfigError(
                f"settle({uid!r}, {settlement!r}): the item is not in flight on this rank, "
                "because it was settled before or never leased here; settle each item once, on "
                "the rank that leased it"
            )
        self.leased.pop(address, None)
        self.waiting.pop(address, None)
        if settlement == "requeue":
            self.waiting[address] = None
        return address

    # ------------------------------------------------------------ the section of the state

    def to_json(self, session: Session) -> Json | None:
        """Return the section; None if no item was leased."""
        if not self.used:
            return None
        items = session.compiled.size if session.group else None
        return _describe_items(session.sharding, session.rows(), items, self.open, self.lost)

    def load(self, state: SavedState, session: Session, adopting: bool) -> UnsettledItems:
        """Return the share of this rank of the open items in a merged state."""
        if self.key not in state.sections:
            return UnsettledItems()
        if state.lanes is not None:
            return _load_lanes(state, session, adopting)
        spread, saved = session.sharding, RankProgress.from_state(state)
        if saved.open:
            _require_same_pipeline(len(saved.open), adopting)
        if saved.open and saved.spread.group != spread.group:
            raise StateError(
                f"{len(saved.open)} items of {saved.spread.group} rows are not settled, but items "
                f"have {spread.group} rows here; settle them before you change the batch size"
            )
        loaded = UnsettledItems(saved.open[spread.rank :: spread.world_size])
        loaded.lost, loaded.open_on_all_ranks = [*saved.lost], saved.open
        return loaded

    def merge(self, states: Sequence[SavedState]) -> list[SavedState]:
        """Return the states of all ranks, each moved to the furthest position."""
        return (_merge_ranks if states[0].lanes is None else _merge_lanes)(states)

    def open_items(self, state: SavedState) -> tuple[int, Sequence[Address]]:
        """Return the number of rows in an item, and the open items of a merged state."""
        saved = RankProgress.from_state(state)
        return saved.spread.group, saved.open

    def replay(self, tree: Step, edits: Sequence[Edit], log: Sequence[Any]) -> tuple[Edit, ...]:
        """Return the changes of a run with all replacement draws of its log."""
        return replay_log(tree, edits, log)


def _describe_items(
    spread: RankSharding,
    rows: int | None,
    items: int | None,
    addresses: Iterable[Address],
    lost: Sequence[int],
) -> dict[str, Json]:
    """Describe open items for a state. A pass has `rows` rows and `items` items."""
    by_epoch: list[Json] = [
        [epoch, [item for _, item in group]]
        for epoch, group in groupby(addresses, lambda address: address.epoch)
    ]
    return {
        "of": [spread.rank, spread.world_size],
        "group": spread.group,
        "rows": rows,
        "items": items,
        "open": by_epoch,
        **({"lost": [*lost]} if lost else {}),
    }


def _require_same_pipeline(count: int, adopting: bool) -> None:
    if adopting:
        raise StateError(
            f"{count} items of the state were leased and never settled; call Loader.lease() of "
            "the pipeline that saved it, which gives them again"
        )


def _corrupted(error: Exception) -> StateError:
    return StateError(
        f"the settled items in the state cannot be read ({error!r}); the state is damaged, load "
        "an earlier one"
    )


# ---------------------------------------------------------------- runs with positions


class RankProgress(NamedTuple):
    """The position of a rank in its state, and the open items below it.

    `rows` and `items` are those of a pass, None if it is endless.
    """

    epoch: int
    at: int
    spread: RankSharding
    rows: int | None
    items: int | None
    open: list[Address]
    lost: tuple[int, ...] = ()

    @staticmethod
    def from_state(state: SavedState) -> RankProgress:
        """Read the progress of a rank from its state."""
        try:
            saved: Any = state.sections[UnsettledItems.key]
            rank, ranks = map(parse_cursor_int, parse_cursor_list(saved["of"]))
            rows, items = (
                None if saved[name] is None else parse_cursor_int(saved[name])
                for name in ("rows", "items")
            )
            addresses = [
                Address(parse_cursor_int(epoch), parse_cursor_int(item))
                for epoch, numbers in saved["open"]
                for item in numbers
            ]
            epoch, at, group = state.epoch, state.position, parse_cursor_int(saved["group"])
            lost = tuple(map(parse_cursor_int, saved.get("lost", [])))
            if rank >= ranks or ranks > RANKS or group < 1 or addresses != sorted(set(addresses)):
                raise ValueError(
                    f"rank {rank} of {ranks}, items of {group} rows, {len(addresses)} open"
                )
            if addresses and not addresses[-1] < (epoch, -(-at // group)):
                raise ValueError(f"{addresses[-1]} lies above the position")
        except (LookupError, TypeError, ValueError) as error:
            raise _corrupted(error) from error
        spread = RankSharding(rank, ranks, group, keeps_groups=True)
        return RankProgress(epoch, at, spread, rows, items, addresses, lost)

    def items_before(self, epoch: int, at: int) -> list[Address]:
        """Return the items of this rank between its position and a later one."""
        if (self.epoch, self.at) == (epoch, at):
            return []
        if self.epoch < epoch and self.rows is None:
            raise StateError(
                f"the states are of different runs, because one is in pass {epoch} of an endless "
                "dataset; pass the states of one run"
            )
        addresses = list[Address]()
        for number in range(self.epoch, epoch + 1):
            row = self.at if number == self.epoch else 0
            stop = at if number == epoch else self.rows
            limit = _CHUNK if stop is None else min(_CHUNK, max(1, stop - row))
            while (stop is None or row < stop) and len(
                items := self.spread.next_groups(row, number, self.rows, limit)
            ):
                addresses += [
                    Address(number, item)
                    for item in items.tolist()
                    if stop is None or item * self.spread.group < stop
                ]
                row += len(items) * self.spread.size
        return [address for address in addresses if self.items is None or address.item < self.items]


def _merge_ranks(states: Sequence[SavedState]) -> list[SavedState]:
    ranks = [RankProgress.from_state(state) for state in states if state.sections]
    without = [state for state in states if not state.sections]  # of ranks that leased nothing
    spread, rows, items = ranks[0].spread, ranks[0].rows, ranks[0].items
    world_size, known = spread.world_size, {rank.spread.rank for rank in ranks}
    missing = [rank for rank in range(world_size) if rank not in known]
    if len(known) < len(ranks) or any(
        rank.spread.world_size != world_size or rank.spread.rank >= world_size for rank in ranks
    ):
        raise StateError(
            "the states are from different positions or runs, because two have the same rank or "
            "other world sizes; pass one state for each rank, all saved after the same step"
        )
    if len(without) != len(missing):
        raise StateError(
            f"items were leased on {world_size} ranks, and the states of ranks {missing[:8]} are "
            "missing; load the states of all ranks as a list, whatever the number of ranks now"
        )
    if any(state.changes != states[0].changes for state in states):
        raise StateError(
            "the states are of different runs, because the ranks have different changes "
            "(weights, edits); make changes on all ranks after the same step"
        )
    for rank, state in zip(missing, without, strict=True):
        share = RankSharding(rank, world_size, spread.group, keeps_groups=True)
        ranks.append(RankProgress(state.epoch, state.position, share, rows, items, []))
    if len({rank.rows for rank in ranks}) > 1:
        raise StateError(
            "the ranks are in passes of different lengths; save when all ranks are in one pass"
        )
    last = max(states, key=lambda state: (state.epoch, state.position))
    epoch, at = last.epoch, last.position
    addresses = sorted(
        address for rank in ranks for address in [*rank.open, *rank.items_before(epoch, at)]
    )
    lost = sorted({item for rank in ranks for item in rank.lost})
    section = _describe_items(RankSharding(0, 1, spread.group), rows, items, addresses, lost)
    records = max(
        (state.records or [] for state in states), key=lambda log: log[-1].get("gives") == "items"
    )
    furthest: dict[str, Any] = {"epoch": epoch, "at": at, "last": last.last, "latest": last.latest}
    sections: dict[str, Json] = {UnsettledItems.key: section}
    return [replace(state, records=records, sections=sections, **furthest) for state in states]


# ---------------------------------------------------------------- runs in lanes


class LaneMark(NamedTuple):
    """The cursor of a lane before one of its items."""

    item: int
    cursor: Json


class UnsettledLanes(UnsettledItems):
    """Items in flight of a run in lanes. `marks` has a mark for each open item."""

    def __init__(
        self,
        lanes: int,
        behind: Mapping[int, int] | None = None,
        marks: Mapping[Address, LaneMark] | None = None,
    ) -> None:
        super().__init__(marks or ())
        self.lanes, self.behind, self.marks = lanes, {**(behind or {})}, {**(marks or {})}
        self.used = self.used or any(self.behind.values())

    def settle(self, uid: str, settlement: Settlement) -> Address:
        address = super().settle(uid, settlement)
        if settlement != "requeue":
            self.marks.pop(address, None)
        return address

    def to_json(self, session: Session) -> Json | None:
        if not self.used:
            return None
        by_lane = list[Json]()
        for (epoch, _), addresses in self._by_lane(self.open):
            mark = self.marks[addresses[0]]
            by_lane.append([epoch, mark.item, mark.cursor, [item for _, item in addresses]])
        return {
            "behind": {str(lane): rounds for lane, rounds in self.behind.items() if rounds},
            "open": by_lane,
        }

    def next_address(self, before: Any, after: Any, session: Session) -> Address:
        """Return the address of the item between two cursors of the run, and mark it."""
        rank, world_size = session.setting.rank, session.setting.world_size
        turn = parse_cursor_int(after["turn"]) - world_size
        turn += (rank - turn) % world_size  # a state has one turn for all ranks
        lane = turn % self.lanes
        address = Address(session.epoch, turn - self.behind.get(lane, 0) * self.lanes)
        self.marks[address] = LaneMark(address.item, before["at"][str(lane)])
        return address

    def read_again(
        self, wanted: Sequence[Address], session: Session
    ) -> Iterator[tuple[Address, Any]]:
        """Read items again, lane by lane."""
        for (epoch, lane), addresses in self._by_lane(wanted):
            mark, remaining = self.marks[addresses[0]], dict.fromkeys(addresses)
            delivery, number = session.reopen_lane(epoch, lane, mark.cursor), mark.item
            try:
                while remaining:
                    cursor: Any = delivery.cursor()
                    value, address = delivery.next(), Address(epoch, number)
                    if address in remaining:
                        self.marks[address] = LaneMark(number, cursor["at"][str(lane)])
                        yield address, value
                        del remaining[address]
                    number += self.lanes
            except StopIteration:
                raise StateError(
                    f"item {next(iter(remaining)).uid} was leased, but its lane ends before it "
                    "now, because the data or the functions of the lane have changed; restore "
                    "them, or load an earlier state"
                ) from None
            finally:
                delivery.stream.close()

    def _by_lane(
        self, addresses: Iterable[Address]
    ) -> Iterator[tuple[tuple[int, int], list[Address]]]:
        def lane_of(address: Address) -> tuple[int, int]:
            return address.epoch, address.item % self.lanes

        ordered = sorted(addresses, key=lambda address: (*lane_of(address), address.item))
        for lane, group in groupby(ordered, lane_of):
            yield lane, list(group)


def _merge_lanes(states: Sequence[SavedState]) -> list[SavedState]:
    furthest = max(state.items for state in states)
    behind, items = dict[str, int](), list[Any]()
    if len({state.epoch for state in states}) > 1:
        raise StateError(
            "the states are from different positions or runs, because the ranks are in different "
            "passes; save all ranks after the same step"
        )
    for state in states:
        saved: Any = state.sections.get(UnsettledItems.key, {"behind": {}, "open": []})
        turn, lanes = state.items, state.lanes or 1
        try:
            for lane in map(int, {**state.at, **saved["behind"]}):
                before = parse_cursor_int(saved["behind"].get(str(lane), 0))
                behind[str(lane)] = (
                    before
                    + (furthest - lane + lanes - 1) // lanes
                    - (turn - lane + lanes - 1) // lanes
                )
            items += saved["open"]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _corrupted(error) from error
    section = {"behind": behind, "open": items}
    return [
        replace(state, items=furthest, sections={UnsettledItems.key: section}) for state in states
    ]


def _load_lanes(state: SavedState, session: Session, adopting: bool) -> UnsettledLanes:
    saved: Any = state.sections[UnsettledItems.key]
    turn, now = state.items, state.epoch
    lanes, rank, world_size = session.lanes, session.setting.rank, session.setting.world_size
    marks = dict[Address, LaneMark]()
    try:
        behind = {int(lane): parse_cursor_int(rounds) for lane, rounds in saved["behind"].items()}
        if lanes % world_size and (saved["open"] or any(behind.values())):
            raise StateError(
                f"the state holds items that were leased in {counted(lanes, 'lane')}, which "
                f"{world_size} ranks cannot share out; resume on a number of ranks that "
                "divides the lanes"
            )
        for epoch, first, cursor, items in saved["open"]:
            lane = parse_cursor_int(first) % lanes
            in_this_pass = parse_cursor_int(epoch) == now
            end = turn - behind.get(lane, 0) * lanes if in_this_pass else FURTHEST
            possible, numbers = range(first, end, lanes), list[int](items)
            valid = sorted({item for item in numbers if item in possible})
            if not numbers or numbers != valid or epoch > now:
                raise ValueError(
                    f"{numbers[:9]} are no items of lane {lane} from {first} on, up to {end}"
                )
            _require_same_pipeline(len(numbers), adopting)
            if lane % world_size == rank:
                marks |= {Address(epoch, item): LaneMark(first, cursor) for item in numbers}
    except StateError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise _corrupted(error) from error
    ours = {lane: rounds for lane, rounds in behind.items() if lane % world_size == rank}
    return UnsettledLanes(lanes, ours, marks)


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
    def _in_flight(self) -> UnsettledItems:
        return cast("UnsettledItems", self._session.section)

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
            session.tree = changed(session.base, session.changes, session.epoch)
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
        before = session.changes, session.tree, self._draws, [*self.log]
        try:
            self._replace(lost, furthest, needed)
            self.reopen(furthest)
        except BaseException:
            session.changes, session.tree, self._draws, self.log = before
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


class LeasedItem(NamedTuple):
    """An item and its uid, which is the same in every run of the pipeline: `plan.at(uid)`."""

    uid: str
    value: Any


class Leases:
    """Leases items of a run, instead of delivering them in order.

    An item keeps its value here until `lease` returns it, so an exception in between loses no item.

    Args:
        session: the run, with a section `UnsettledItems`.
        fill: fills the item buffer of the run, and raises `StopIteration` at the end of the pass.
    """

    def __init__(self, session: Session, fill: Callable[[], object]) -> None:
        self._compensation = Compensation(session) if counts_settled_items(session.tree) else None
        self._session, self._fill = session, fill
        self._values, self._pass_ended = dict[Address, Any](), False
        if session.group:
            session.begin_items()
        else:
            _require_separate_lanes(session)
            if not isinstance(session.section, UnsettledLanes):
                session.section = UnsettledLanes(session.lanes)
        self._in_flight.used = True

    @property
    def _in_flight(self) -> UnsettledItems:
        return cast("UnsettledItems", self._session.section)

    def lease(self, k: int) -> list[LeasedItem]:
        """Lease the next `k` items, first those that wait to be leased again.

        Returns:
            Items: fewer at the end of a pass, and before an item that fails; none after the last
            item of a pass, and then items of the next pass.
        """
        if self._compensation:
            self._compensation.reopen()
        waiting = self._in_flight.waiting
        self._read_waiting(k)
        try:
            self._draw(k - len(waiting))
        except Exception:
            if not waiting:
                raise
        ready = list(takewhile(self._values.__contains__, islice(waiting, k)))
        items = [LeasedItem(address.uid, self._values[address]) for address in ready]
        self._in_flight.lease(ready)
        for address in ready:
            del self._values[address]
        self._pass_ended = not items
        return items

    def settle(self, uid: str, settlement: Settlement) -> None:
        """Settle a leased item."""
        address = self._in_flight.settle(uid, settlement)
        self._values.pop(address, None)
        if self._compensation and settlement in ("filtered", "failed"):
            self._compensation.lose(address)

    def compensation(self, call: str) -> Compensation:
        """Return the compensation of lost items; an error names the `call` that needs it."""
        if not self._compensation:
            raise ConfigError(
                f"{call} needs mix(count='settled'), because no other pipeline depends on "
                "settled items; add it to the mixture"
            )
        return self._compensation

    def _read_waiting(self, k: int) -> None:
        """Read the first `k` waiting items again, up to an item that fails."""
        waiting = self._in_flight.waiting
        wanted = [address for address in islice(waiting, k) if address not in self._values]
        try:
            for address, value in self._read_again(wanted):
                self._values[address] = value
        except Exception:
            if next(iter(waiting)) not in self._values:
                raise

    def _read_again(self, wanted: Sequence[Address]) -> Iterator[tuple[Address, Any]]:
        if isinstance(self._in_flight, UnsettledLanes):
            yield from self._in_flight.read_again(wanted, self._session)
            return
        for epoch, group in groupby(wanted, lambda address: address.epoch):
            addresses = list(group)
            items = np.asarray([address.item for address in addresses], np.int64)
            delivery = self._session.reopen_items(epoch, items)
            try:
                for address in addresses:
                    yield address, delivery.next()
            finally:
                delivery.stream.close()

    def _draw(self, count: int) -> None:
        """Take `count` new items of the run, or as many as the pass still has."""
        waiting, values = self._in_flight.waiting, self._values
        while count > 0 and self._has_more():
            out = self._session.out
            addresses = self._next_addresses(out, min(count, out.stop - out.used))
            for address in addresses:
                # No call between these statements: an interrupt there would lose the item.
                waiting[address], values[address] = None, out.values[out.used]
                out.used += 1
            count -= len(addresses)

    def _next_addresses(self, out: Delivery, count: int) -> list[Address]:
        """Return the addresses of the next buffered items."""
        session, in_flight = self._session, self._in_flight
        if isinstance(in_flight, UnsettledLanes):
            cursors = [out.cursor_before(item) for item in range(out.used, out.used + count + 1)]
            return [in_flight.next_address(*pair, session) for pair in pairwise(cursors)]
        row = parse_cursor_int(out.cursor())
        items = session.sharding.next_groups(row, session.epoch, session.rows(), count)[:count]
        return [Address(session.epoch, item) for item in items.tolist()]

    def _has_more(self) -> bool:
        """Fill the buffer; from the next pass if the last `lease` returned the end of this one."""
        while True:
            try:
                self._fill()
                return True
            except StopIteration:
                in_flight = self._in_flight
                if in_flight.waiting or not self._pass_ended:
                    return False
                self._session.next_pass()
                self._session.require_pass()
                self._pass_ended = False
                if isinstance(in_flight, UnsettledLanes):
                    in_flight.behind.clear()


def _require_separate_lanes(session: Session) -> None:
    """Raise `ConfigError` if an item belongs to no single lane, or the ends of passes are unknown."""
    if tail_of(session.tree).batches or rows_of_lanes(session.tree).limit is not None:
        raise ConfigError(
            "lease() gives the rows one by one if the number of rows depends on the data; leave "
            "out the batch() and the limit() above, and count and batch the rows that you take"
        )
    if session.reads_all_lanes:
        raise ConfigError(
            f"lease(): the number of rows depends on the data, and {session.setting.world_size} "
            f"ranks cannot share out the {counted(session.lanes, 'lane')} of the run; start the "
            "run with lanes= a multiple of every number of ranks that it may have"
        )
    if session.setting.world_size > 1 and not session.tree.is_endless:
        raise ConfigError(
            "lease() on several ranks: the number of rows depends on the data, so the ends of the "
            "ranks' passes are unknown; repeat() the dataset, so that it is endless"
        )
