"""Items in flight (leased, and not settled yet): the section that leases add to a state.

The state of such a run is a position, and the items below it that are not settled. Each rank has
its own position. `InFlight.merge` moves the states of all ranks to the furthest position: the items
that the other ranks had not reached become items to lease.

In a run in lanes no item can be computed alone. So each item in flight has a mark, the cursor of
its lane before an item at or before it, and a resume reads the lane from there. Items are numbered
as one rank delivers them: lane `l` of `L` delivers items `l`, `l + L`, ... of a pass. `behind`
counts the rounds by which a lane is behind the run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from ..arguments import check_choice
from ..engine.base.cursors import parse_cursor_int, parse_cursor_list
from ..engine.base.shown import counted
from ..engine.changes.edits import Edit
from ..engine.plan.records import Address, parse_uid
from ..engine.runtime.session import Session
from ..engine.runtime.states import SavedState
from ..engine.steps.mix_history import FURTHEST
from ..engine.steps.step import Step
from ..engine.streams.rank_sharding import RankSharding
from ..errors import ConfigError, StateError
from ..stores.limits import RANKS
from ..types import Json
from .replacements import replay_log

Settlement: TypeAlias = Literal["trained", "filtered", "failed", "requeue"]

SETTLEMENTS: tuple[Settlement, ...] = get_args(Settlement)

_CHUNK = 1 << 16  # items listed at a time


class InFlight:
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

    def load(self, state: SavedState, session: Session, adopting: bool) -> InFlight:
        """Return the share of this rank of the open items in a merged state."""
        if self.key not in state.sections:
            return InFlight()
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
        loaded = InFlight(saved.open[spread.rank :: spread.world_size])
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
            saved: Any = state.sections[InFlight.key]
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
    sections: dict[str, Json] = {InFlight.key: section}
    return [replace(state, records=records, sections=sections, **furthest) for state in states]


# ---------------------------------------------------------------- runs in lanes


class LaneMark(NamedTuple):
    """The cursor of a lane before one of its items."""

    item: int
    cursor: Json


class LanesInFlight(InFlight):
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
        saved: Any = state.sections.get(InFlight.key, {"behind": {}, "open": []})
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
    return [replace(state, items=furthest, sections={InFlight.key: section}) for state in states]


def _load_lanes(state: SavedState, session: Session, adopting: bool) -> LanesInFlight:
    saved: Any = state.sections[InFlight.key]
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
    return LanesInFlight(lanes, ours, marks)
