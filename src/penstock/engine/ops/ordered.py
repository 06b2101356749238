"""Which op an order is."""

from __future__ import annotations

from ...types import Order
from ..orders import (
    AllBut,
    BucketShuffle,
    Gap,
    Pick,
    Portion,
    Repeat,
    RepeatEach,
    Replay,
    Skips,
    Slice,
    WindowShuffle,
)
from .buckets import BucketOp
from .gaps import GapOp, SkipOp
from .op import Op
from .order import OrderOp, PassOp, PickOp, PortionOp, RoundOp, WindowOp
from .repeat_each import RepeatEachOp

_OPS: dict[type, type[OrderOp]] = {
    Repeat: OrderOp,
    RepeatEach: RepeatEachOp,
    BucketShuffle: BucketOp,
    WindowShuffle: WindowOp,
    Slice: RoundOp,
    Replay: RoundOp,
    Pick: PickOp,
    Portion: PortionOp,
    AllBut: PortionOp,
    Gap: GapOp,
    Skips: SkipOp,
}


def ordered(flow: Op, order: Order, key: int) -> OrderOp:
    """The op of an order; one from outside gives every position of a pass once."""
    return _OPS.get(type(order), PassOp)(flow, order, key)
