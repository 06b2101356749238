"""Which op an order is."""

from __future__ import annotations

from ..orders import AllBut, BucketShuffle, Gap, Pick, Portion, Repeat, RepeatEach, Replay, Slice, Told, WindowShuffle
from ..types import Order
from .buckets import BucketOp
from .op import Op
from .order import GapOp, OrderOp, PassOp, PickOp, PortionOp, RoundOp, ToldOp, WindowOp
from .repeat_each import RepeatEachOp


def ordered(flow: Op, order: Order, key: int) -> OrderOp:
    """The op of an order."""
    match order:
        case Repeat():
            return OrderOp(flow, order, key)
        case RepeatEach():
            return RepeatEachOp(flow, order, key)
        case BucketShuffle():
            return BucketOp(flow, order, key)
        case WindowShuffle():
            return WindowOp(flow, order, key)
        case Slice() | Replay():
            return RoundOp(flow, order, key)
        case Pick():
            return PickOp(flow, order, key)
        case Portion() | AllBut():
            return PortionOp(flow, order, key)
        case Gap():
            return GapOp(flow, order, key)
        case Told():
            return ToldOp(flow, order, key)
        case _:
            return PassOp(flow, order, key)
