"""Items by their addresses, for trainers that finish them out of order: the next of a rank, and
what became of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, islice, pairwise, takewhile
from typing import Any, NamedTuple

import numpy as np

from ...errors import ConfigError
from ...types import Json
from ..base.cursors import parse_cursor_int
from ..graph.build import Builder
from ..graph.edits import changed, settled_mixture
from ..graph.ends import endless
from ..graph.shown import counted
from ..graph.tail import laned, tail_of
from ..streams.stream import Stream
from ..streams.work import Hired
from .delivery import Delivery
from .in_lanes import LaneLedger, lane_cursor
from .opened import open_lanes, open_listed
from .session import Session
from .settling import Address, Settlement, whole_items
from .shares import Shares


class LeasedItem(NamedTuple):
    """An item and its address in the plan, which is the same in every run of the pipeline:
    `plan.at(uid)`."""

    uid: str
    value: Any


class Taking:
    """A session with leases. `filled` has the next item, and raises at the end of the pass.

    Buffered items keep their values until they are delivered, so an exception in between loses
    none.
    """

    def __init__(self, session: Session, filled: Callable[[], object]) -> None:
        self._shares = Shares(session) if settled_mixture(session.flow) else None
        self._session, self._filled = session, filled
        self._values, self._over = dict[Address, Any](), False
        if not session.group:
            check_lanes_taken(session)
            if not isinstance(session.ledger, LaneLedger):
                session.ledger = LaneLedger(session.lanes)
            session.ledger.used = True
            return
        cursor, before = session.out.cursor(), session.spread
        session.spread = whole_items(before, parse_cursor_int(cursor), session.rows())
        try:
            session.reopen(cursor)
        except BaseException:
            session.spread = before
            raise
        session.begin_items()
        session.ledger.used = True

    def lease(self, k: int) -> list[LeasedItem]:
        """The next `k` items: first those that wait to be given again. Fewer at the end of a pass
        and before a failure; none where the pass has no more, and asked again those of the next
        one.
        """
        ledger = self._session.ledger
        if self._shares:
            self._shares.refresh()
        self._recall(k)
        try:
            self._draw(k - len(ledger.waiting))
        except Exception:
            if not ledger.waiting:
                raise
        ready = list(takewhile(self._values.__contains__, islice(ledger.waiting, k)))
        found = [LeasedItem(address.uid, self._values[address]) for address in ready]
        ledger.give(ready)
        for address in ready:
            del self._values[address]
        self._over = not found
        return found

    def settle(self, uid: str, settlement: Settlement) -> None:
        """What became of an item."""
        self._values.pop(address := self._session.ledger.settle(uid, settlement), None)
        if self._shares and settlement in ("filtered", "failed"):
            self._shares.lose(address)

    def shares(self, asked: str) -> Shares:
        """What is put in for what was lost."""
        if not self._shares:
            raise ConfigError(
                f"{asked} needs mix(count='settled'), because no other pipeline depends on "
                "settled items; add it to the mixture"
            )
        return self._shares

    def _recall(self, k: int) -> None:
        """Have the values of the first `k` that wait at hand, up to one that fails."""
        wanted = [
            address
            for address in islice(self._session.ledger.waiting, k)
            if address not in self._values
        ]
        try:
            for address, value in self._again(wanted):
                self._values[address] = value
        except Exception:
            if next(iter(self._session.ledger.waiting)) not in self._values:
                raise

    def _again(self, wanted: Sequence[Address]) -> Iterator[tuple[Address, Any]]:
        """Items once more, and which of those that are wanted each is."""
        session = self._session
        if isinstance(session.ledger, LaneLedger):
            yield from session.ledger.again(wanted, partial(_lane, session))
            return
        for epoch, some in groupby(wanted, lambda address: address.epoch):
            addresses = list(some)
            delivery = _named(session, epoch, [address.item for address in addresses])
            try:
                for address in addresses:
                    yield address, delivery.next()
            finally:
                delivery.stream.close()

    def _draw(self, many: int) -> None:
        """So many items that nobody was given before, or as many as the pass still has."""
        waiting, values = self._session.ledger.waiting, self._values
        while many > 0 and self._more():
            out = self._session.out
            addresses = self._next(out, min(many, out.stop - out.used))
            for address in addresses:
                waiting[address], values[address] = None, out.values[out.used]
                out.used += (
                    1  # no call stands between these: an interrupt there would lose the item
                )
            many -= len(addresses)

    def _next(self, out: Delivery, many: int) -> list[Address]:
        """The addresses of items that are at hand."""
        session, ledger = self._session, self._session.ledger
        if isinstance(ledger, LaneLedger):
            cursors = [out.before(item) for item in range(out.used, out.used + many + 1)]
            return [
                ledger.next(*pair, session.setting, session.epoch) for pair in pairwise(cursors)
            ]
        items = session.spread.groups(
            parse_cursor_int(out.cursor()), session.epoch, session.rows(), many
        )[:many]
        return [Address(session.epoch, item) for item in items.tolist()]

    def _more(self) -> bool:
        """Buffer something new; of the next pass if the last answer was that this pass has ended."""
        while True:
            try:
                self._filled()
                return True
            except StopIteration:
                ledger = self._session.ledger
                if ledger.waiting or not self._over:
                    return False
                self._session.next_pass()
                self._session.require_pass()
                self._over = False
                if isinstance(ledger, LaneLedger):
                    ledger.behind.clear()


def check_lanes_taken(session: Session) -> None:
    """Raise an error for leases from lanes if an item belongs to no single lane, or the ends of
    passes are unknown.
    """
    if tail_of(session.flow).batches or laned(session.flow).limit is not None:
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
    if session.setting.world_size > 1 and not endless(session.flow):
        raise ConfigError(
            "lease() on several ranks: the number of rows depends on the data, so the ends of the "
            "ranks' passes are unknown; repeat() the dataset, so that it is endless"
        )


def _named(session: Session, epoch: int, items: list[int]) -> Delivery:
    """Some items of a pass, once more."""
    builder, hired = _anew(session, epoch)
    return _given(
        session,
        builder,
        open_listed(builder, hired, epoch, np.asarray(items, np.int64)),
        len(items),
    )


def _lane(session: Session, epoch: int, lane: int, cursor: Json) -> Delivery:
    """A lane of a pass alone, from a cursor of its own on."""
    builder, hired = _anew(session, epoch)
    alone = replace(session.setting, rank=lane, world_size=session.lanes)
    delivery = _given(session, builder, open_lanes(builder, hired, session.lanes, alone).stream, 1)
    delivery.seek(epoch, lane_cursor(lane, cursor))
    return delivery


def _anew(session: Session, epoch: int) -> tuple[Builder, Hired]:
    """The tree of a pass, and whose hands compute it."""
    flow = session.flow if epoch == session.epoch else changed(session.base, session.changes, epoch)
    builder, setting = session.compiled.of(flow).builder, session.setting
    return builder, Hired(
        session.journal,
        builder.leaves,
        session.budget,
        session.executor,
        setting.window,
        setting.most,
    )


def _given(session: Session, builder: Builder, stream: Stream, wide: int) -> Delivery:
    return Delivery(
        stream, builder.leaves, wide, None, session.budget.most // 4, session.setting.form
    )
