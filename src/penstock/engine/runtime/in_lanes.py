"""Taking from a run in lanes: no item of it can be computed alone, so each that is open keeps the
cursor of its lane before it, and a resume reads the lane from the first of them on.

The number of an item is the turn at which its lane gives it in a run on one rank: lane `l` of `L`
gives items `l`, `l + L`, ... of a pass. Ranks that stand at different turns go on at the furthest;
`behind` says how many rounds a lane of the others lies behind that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from ...errors import StateError
from ...types import Json
from ..base.cursors import parse_cursor_int, parse_lane_number
from ..graph.history import FURTHEST
from ..graph.shown import counted
from ..streams.deal import Spread
from .setting import Setting
from .settling import Address, Ledger, ledger_from, nobody_takes


class LaneMark(NamedTuple):
    """The cursor of a lane before one of its items."""

    item: int
    cursor: Json


@dataclass
class LaneLedger(Ledger):
    """In-flight items of a lane run. `marks` has, for every open address, the nearest earlier
    cursor.
    """

    lanes: int
    behind: dict[int, int] = field(default_factory=dict[int, int])
    marks: dict[Address, LaneMark] = field(default_factory=dict[Address, LaneMark])

    def __post_init__(self) -> None:
        super().__init__()

    def settle(self, uid: str, settlement: Any) -> Address:
        address = super().settle(uid, settlement)
        if settlement != "requeue":
            self.marks.pop(address, None)
        return address

    def told(self, spread: Spread, rows: int | None, items: int | None) -> dict[str, Json]:
        found = list[Json]()
        for (epoch, _), some in self._by_lane(self.open):
            mark = self.marks[some[0]]
            found.append([epoch, mark.item, mark.cursor, [item for _, item in some]])
        return {
            "behind": {str(lane): rounds for lane, rounds in self.behind.items() if rounds},
            "open": found,
        }

    def next(self, before: Any, after: Any, setting: Setting, epoch: int) -> Address:
        """The address of the item between two cursors of the run; its mark is noted."""
        turn = parse_cursor_int(after["turn"]) - setting.world_size
        turn += (setting.rank - turn) % setting.world_size  # a state has one turn for all ranks
        lane = turn % self.lanes
        address = Address(epoch, turn - self.behind.get(lane, 0) * self.lanes)
        self.marks[address] = LaneMark(address.item, before["at"][str(lane)])
        return address

    def again(self, wanted: Sequence[Address], opened: Any) -> Iterator[tuple[Address, Any]]:
        """Open items once more, lane by lane. `opened(epoch, lane, cursor)` is a delivery of one
        lane alone."""
        for (epoch, lane), some in self._by_lane(wanted):
            mark, left = self.marks[some[0]], dict.fromkeys(some)
            delivery, number = opened(epoch, lane, mark.cursor), mark.item
            try:
                while left:
                    before = delivery.cursor()["at"][str(lane)]
                    value, address = delivery.next(), Address(epoch, number)
                    if address in left:
                        self.marks[address] = LaneMark(number, before)
                        yield address, value
                        del left[address]
                    number += self.lanes
            except StopIteration:
                raise StateError(
                    f"item {next(iter(left)).uid} was leased, but its lane ends before it now, "
                    "because the data or the functions of the lane have changed; restore them, "
                    "or load an earlier state"
                ) from None
            finally:
                delivery.stream.close()

    def _by_lane(
        self, addresses: Iterable[Address]
    ) -> Iterator[tuple[tuple[int, int], list[Address]]]:
        def lane_of(address: Address) -> tuple[int, int]:
            return address.epoch, address.item % self.lanes

        for lane, some in groupby(
            sorted(addresses, key=lambda one: (*lane_of(one), one.item)), lane_of
        ):
            yield lane, list(some)


def lane_cursor(lane: int, cursor: Json) -> Json:
    """The cursor of a run of one lane alone."""
    return {"at": {str(lane): cursor}, "turn": lane, "ended": []}


def lanes_levelled(bodies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The states of all ranks of a run in lanes, as if all stood at the turn of the furthest."""
    furthest, behind, found = (
        max(parse_cursor_int(body.get("turn")) for body in bodies),
        dict[str, int](),
        list[Any](),
    )
    if len({parse_cursor_int(body["epoch"]) for body in bodies}) > 1:
        raise StateError(
            "the states are from different positions or runs, because the ranks are in different "
            "passes; save all ranks after the same step"
        )
    for body in bodies:
        saved, turn, lanes = (
            body.get("settling", {"behind": {}, "open": []}),
            parse_cursor_int(body["turn"]),
            body["lanes"],
        )
        try:
            for lane in map(parse_lane_number, {**body["at"], **saved["behind"]}):
                before = parse_cursor_int(saved["behind"].get(str(lane), 0))
                behind[str(lane)] = (
                    before
                    + (furthest - lane + lanes - 1) // lanes
                    - (turn - lane + lanes - 1) // lanes
                )
            found += saved["open"]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise _damaged(error) from error
    return [
        {**body, "turn": furthest, "settling": {"behind": behind, "open": found}} for body in bodies
    ]


def ledger_in(
    body: Mapping[str, Any], spread: Spread, setting: Setting, lanes: int, takes: bool
) -> Ledger:
    """Our share of what the states of all ranks leave open; `takes` says that it can be given again
    here."""
    if "lanes" not in body or "settling" not in body:
        return ledger_from(body, spread, takes)
    saved, turn, ours = body["settling"], parse_cursor_int(body["turn"]), LaneLedger(lanes)
    try:
        behind = {
            parse_lane_number(lane): parse_cursor_int(rounds)
            for lane, rounds in saved["behind"].items()
        }
        if lanes % setting.world_size and (saved["open"] or any(behind.values())):
            raise StateError(
                f"the state holds items that were leased in {counted(lanes, 'lane')}, which "
                f"{setting.world_size} ranks cannot share out; resume on a number of ranks that "
                "divides the lanes"
            )
        for epoch, first, cursor, items in saved["open"]:
            lane = parse_cursor_int(first) % lanes
            end = (
                turn - behind.get(lane, 0) * lanes
                if parse_cursor_int(epoch) == body["epoch"]
                else FURTHEST
            )
            places = range(first, end, lanes)
            numbers = list[int](items)
            if (
                not numbers
                or numbers != sorted({item for item in numbers if item in places})
                or epoch > body["epoch"]
            ):
                raise ValueError(
                    f"{numbers[:9]} are no items of lane {lane} from {first} on, up to {end}"
                )
            if not takes:
                raise nobody_takes(len(numbers))
            if lane % setting.world_size == setting.rank:
                ours.marks |= {Address(epoch, item): LaneMark(first, cursor) for item in numbers}
    except StateError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(error) from error
    ours.behind = {
        lane: rounds for lane, rounds in behind.items() if lane % setting.world_size == setting.rank
    }
    ours.wait(ours.marks)
    ours.used |= any(ours.behind.values())
    return ours


def _damaged(error: Exception) -> StateError:
    return StateError(
        f"the settled items in the state cannot be read ({error!r}); the state is damaged, load "
        "an earlier one"
    )
