"""Leased items that are not settled yet: bookkeeping for trainers that finish items out of order.
Numbers only.

A run with leases has a position, and exceptions below it: the items that are not settled. Below the
first of them everything is settled. On several ranks each has its own position; together they are a
run on one rank at the furthest position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from ...errors import ConfigError, StateError
from ...types import Json
from ..base.arguments import check_choice
from ..base.cursors import parse_cursor_int, parse_cursor_list
from ..base.limits import RANKS
from ..streams.deal import Spread

Settlement: TypeAlias = Literal["trained", "filtered", "failed", "requeue"]

SETTLEMENTS: tuple[Settlement, ...] = get_args(Settlement)

_MANY = 1 << 16  # items asked for at a time


class Address(NamedTuple):
    """An item of the plan: the pass, and which item of the pass."""

    epoch: int
    item: int

    @property
    def uid(self) -> str:
        """The address as text.

        >>> Address(0, 17).uid, address_of("0:17", "settle({!r})")
        ('0:17', Address(epoch=0, item=17))
        """
        return f"{self.epoch}:{self.item}"


def address_of(uid: str, where: str) -> Address:
    """The address that a uid is; an error says `where` it was given."""
    epoch, _, item = uid.partition(":") if isinstance(uid, str) else ("", "", "")  # pyright: ignore[reportUnnecessaryIsInstance]
    if (
        epoch.isdecimal()
        and item.isdecimal()
        and (found := Address(int(epoch), int(item))).uid == uid
    ):
        return found
    raise ConfigError(
        f"{where.format(uid)}: this is not a uid; give the uid of an item from lease(), such as "
        "'0:17'"
    )


class Ledger:
    """Items in flight, and items waiting to be leased (again), in order.

    `used`: items were leased. `lost`: items lost from a mixture that replaces them. `of_all`: items
    open on any rank at load.
    """

    def __init__(self, waiting: Iterable[Address] = ()) -> None:
        self.flight, self.lost, self.of_all = dict[Address, None](), list[int](), list[Address]()
        self.wait(waiting)

    @property
    def open(self) -> list[Address]:
        """All that is not settled, in the order of the plan."""
        return sorted([*self.flight, *self.waiting])

    def wait(self, addresses: Iterable[Address]) -> None:
        """These are to be given (again), in the order of the plan."""
        self.waiting = dict.fromkeys(sorted(addresses))
        self.used = bool(self.waiting)

    def give(self, addresses: Iterable[Address]) -> None:
        """These were waiting, and are in flight now."""
        for address in addresses:
            self.flight[address] = None
            del self.waiting[address]

    def settle(self, uid: str, settlement: Settlement) -> Address:
        """Settle an item. An item that waits may be settled too: its result survived a crash."""
        check_choice(settlement, SETTLEMENTS, "settle(uid, {})")
        address = address_of(uid, "settle({!r})")
        if address in self.waiting and settlement == "requeue":
            raise ConfigError(
                f"settle({uid!r}, 'requeue'): the item is already requeued; settle it "
                "after lease() gives it again"
            )
        if address not in self.flight and address not in self.waiting:
            raise ConfigError(
                f"settle({uid!r}, {settlement!r}): the item is not in flight on this rank, "
                "because it was settled before or never leased here; settle each item once, on "
                "the rank that leased it"
            )
        self.flight.pop(address, None)
        self.waiting.pop(address, None)
        if settlement == "requeue":
            self.waiting[address] = None
        return address

    def told(self, spread: Spread, rows: int | None, items: int | None) -> dict[str, Json]:
        """Describe the items for a state. `rows` are those of the present pass, `items` their
        contents.
        """
        found: list[Json] = [
            [epoch, [item for _, item in some]]
            for epoch, some in groupby(self.open, lambda address: address.epoch)
        ]
        of: Json = [spread.rank, spread.world_size]
        lost: dict[str, Json] = {"lost": [*self.lost]} if self.lost else {}
        return {
            "of": of,
            "group": spread.group,
            "rows": rows,
            "items": items,
            "open": found,
            **lost,
        }


class StandingOf(NamedTuple):
    """What the state of one rank tells: where it stands, and what is open below."""

    epoch: int
    at: int
    spread: Spread
    rows: int | None
    items: int | None
    open: list[Address]
    lost: tuple[int, ...] = ()

    @staticmethod
    def by(body: Mapping[str, Any]) -> StandingOf:
        try:
            saved = body["settling"]
            rank, ranks = map(parse_cursor_int, parse_cursor_list(saved["of"]))
            rows, items = (
                None if saved[name] is None else parse_cursor_int(saved[name])
                for name in ("rows", "items")
            )
            found = [
                Address(parse_cursor_int(lap), parse_cursor_int(item))
                for lap, some in saved["open"]
                for item in some
            ]
            epoch, at, group = (
                parse_cursor_int(body["epoch"]),
                parse_cursor_int(body["at"]),
                parse_cursor_int(saved["group"]),
            )
            lost = tuple(map(parse_cursor_int, saved.get("lost", [])))
            if rank >= ranks or ranks > RANKS or group < 1 or found != sorted(set(found)):
                raise ValueError(
                    f"rank {rank} of {ranks}, items of {group} rows, {len(found)} open"
                )
            if found and not found[-1] < (epoch, -(-at // group)):
                raise ValueError(f"{found[-1]} lies above the position")
        except (LookupError, TypeError, ValueError) as error:
            raise StateError(
                f"the settled items in the state cannot be read ({error!r}); the state is "
                "damaged, load an earlier one"
            ) from error
        return StandingOf(
            epoch, at, Spread(rank, ranks, group, whole=True), rows, items, found, lost
        )

    def not_taken(self, epoch: int, at: int) -> list[Address]:
        """The items of this rank between where it stands and a later position."""
        if (self.epoch, self.at) == (epoch, at):
            return []
        if self.epoch < epoch and self.rows is None:
            raise StateError(
                f"the states are of different runs, because one is in pass {epoch} of an endless "
                "dataset; pass the states of one run"
            )
        found = list[Address]()
        for each in range(self.epoch, epoch + 1):
            first, stop = self.at if each == self.epoch else 0, at if each == epoch else self.rows
            most = (
                _MANY if stop is None else min(_MANY, max(1, stop - first))
            )  # no more than could be wanted
            while (stop is None or first < stop) and len(
                items := self.spread.groups(first, each, self.rows, most)
            ):
                found += [
                    Address(each, item)
                    for item in items.tolist()
                    if stop is None or self._row(item) < stop
                ]
                first += len(items) * self.spread.size
        return [address for address in found if self.items is None or address.item < self.items]

    def _row(self, item: int) -> int:
        return item * self.spread.group


def levelled(bodies: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the states of all ranks of a run with leases, each moved to the furthest position."""
    told = [StandingOf.by(body) for body in bodies if "settling" in body]
    if not told:
        return list(bodies)
    ranks, by_rank = told[0].spread.world_size, {one.spread.rank: one for one in told}
    plain = [body for body in bodies if "settling" not in body]  # of ranks that took nothing yet
    missing = [rank for rank in range(ranks) if rank not in by_rank]
    if len(by_rank) < len(told) or any(
        one.spread.world_size != ranks or one.spread.rank >= ranks for one in told
    ):
        raise StateError(
            "the states are from different positions or runs, because two have the same rank or "
            "other world sizes; pass one state for each rank, all saved after the same step"
        )
    if len(plain) != len(missing):
        raise StateError(
            f"items were leased on {ranks} ranks, and the states of ranks {missing[:8]} are "
            "missing; load the states of all ranks as a list, whatever the number of ranks now"
        )
    if any(other["changes"] != bodies[0]["changes"] for other in bodies):
        raise StateError(
            "the states are of different runs, because the ranks have different changes "
            "(weights, edits); make changes on all ranks after the same step"
        )
    one, last = (
        told[0],
        max(
            bodies, key=lambda body: (parse_cursor_int(body["epoch"]), parse_cursor_int(body["at"]))
        ),
    )
    for rank, body in zip(missing, plain, strict=True):
        spread = Spread(rank, ranks, one.spread.group, whole=True)
        told.append(
            StandingOf(
                parse_cursor_int(body["epoch"]),
                parse_cursor_int(body["at"]),
                spread,
                one.rows,
                one.items,
                [],
            )
        )
    epoch, at = parse_cursor_int(last["epoch"]), parse_cursor_int(last["at"])
    if len({each.rows for each in told}) > 1:
        raise StateError(
            "the ranks are in passes of different lengths; save when all ranks are in one pass"
        )
    left = Ledger(
        sorted(address for each in told for address in [*each.open, *each.not_taken(epoch, at)])
    )
    left.lost = sorted({item for each in told for item in each.lost})
    settling = left.told(Spread(0, 1, one.spread.group), one.rows, one.items)
    records = max(
        (body["records"] for body in bodies), key=lambda log: log[-1].get("gives") == "items"
    )
    furthest = {
        "epoch": epoch,
        "at": at,
        "last": last["last"],
        "latest": last["latest"],
        "records": records,
    }
    return [{**body, **furthest, "settling": settling} for body in bodies]


def ledger_from(body: Mapping[str, Any], spread: Spread, takes: bool) -> Ledger:
    """Our share of what a state of all ranks leaves open; `takes` says that it can be given again
    here."""
    if "settling" not in body:
        return Ledger()
    told = StandingOf.by(body)
    if told.open and not takes:
        raise nobody_takes(len(told.open))
    if told.open and told.spread.group != spread.group:
        raise StateError(
            f"{len(told.open)} items of {told.spread.group} rows are not settled, but items have "
            f"{spread.group} rows here; settle them before you change the batch size"
        )
    left = Ledger(told.open[spread.rank :: spread.world_size])
    left.lost, left.of_all = [*told.lost], told.open
    return left


def nobody_takes(many: int) -> StateError:
    """The error for a state that leaves items open where nobody would take them."""
    return StateError(
        f"{many} items of the state were leased and never settled; call Loader.lease() of the "
        "pipeline that saved it, which gives them again"
    )


def whole_items(spread: Spread, at: int, rows: int | None) -> Spread:
    """The spread of a run that stands at a row and is taken from, item by item."""
    if at % spread.group and at != rows:
        raise ConfigError(
            f"take: the run is at row {at}, in the middle of an item of {spread.group} rows; take "
            "batches of the size that the run has used so far"
        )
    return replace(spread, remainder="keep", whole=True)
