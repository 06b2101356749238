"""Leases of the items of a run, for trainers that finish items out of order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice, pairwise, takewhile
from typing import Any, NamedTuple, cast

import numpy as np

from ..engine.base.cursors import parse_cursor_int
from ..engine.base.shown import counted
from ..engine.plan.records import Address
from ..engine.runtime.delivery import Delivery
from ..engine.runtime.session import Session
from ..engine.steps.batch import rows_of_lanes, tail_of
from ..errors import ConfigError
from .compensation import Compensation
from .in_flight import InFlight, LanesInFlight, Settlement
from .replacements import counts_settled_items


class LeasedItem(NamedTuple):
    """An item and its uid, which is the same in every run of the pipeline: `plan.at(uid)`."""

    uid: str
    value: Any


class Leases:
    """Leases items of a run, instead of delivering them in order.

    An item keeps its value here until `lease` returns it, so an exception in between loses no item.

    Args:
        session: the run, with a section `InFlight`.
        fill: fills the item buffer of the run, and raises `StopIteration` at the end of the pass.
    """

    def __init__(self, session: Session, fill: Callable[[], object]) -> None:
        self._compensation = Compensation(session) if counts_settled_items(session.flow) else None
        self._session, self._fill = session, fill
        self._values, self._pass_ended = dict[Address, Any](), False
        if session.group:
            session.begin_items()
        else:
            _require_separate_lanes(session)
            if not isinstance(session.section, LanesInFlight):
                session.section = LanesInFlight(session.lanes)
        self._in_flight.used = True

    @property
    def _in_flight(self) -> InFlight:
        return cast("InFlight", self._session.section)

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
        if isinstance(self._in_flight, LanesInFlight):
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
        if isinstance(in_flight, LanesInFlight):
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
                if isinstance(in_flight, LanesInFlight):
                    in_flight.behind.clear()


def _require_separate_lanes(session: Session) -> None:
    """Raise `ConfigError` if an item belongs to no single lane, or the ends of passes are unknown."""
    if tail_of(session.flow).batches or rows_of_lanes(session.flow).limit is not None:
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
    if session.setting.world_size > 1 and not session.flow.is_endless:
        raise ConfigError(
            "lease() on several ranks: the number of rows depends on the data, so the ends of the "
            "ranks' passes are unknown; repeat() the dataset, so that it is endless"
        )
