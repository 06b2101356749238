"""The seed of a dataset, for all random steps that have none of their own."""

from __future__ import annotations

from dataclasses import replace
from operator import is_

from ..folds import ShuffleBuffer
from ..mixing.rules import Weighted
from ..orders import FixedSet, Gap, Repeat, RepeatEach, Replay, Told, WindowShuffle
from .nodes import Each, Flow, Hold, Mix, Read, Reorder, Without


def seeded(flow: Flow, seed: int) -> Flow:
    """The tree with `seed` wherever a random step has none; itself where that is nowhere. Mixtures carry their own to
    what lies below them.
    """
    if isinstance(flow, Read) or (isinstance(flow, Mix) and isinstance(flow.rule, Weighted)):
        return flow
    if isinstance(flow, Mix):
        flows = tuple(seeded(child, seed) for child in flow.flows)
        return flow if all(map(is_, flows, flow.flows)) else replace(flow, flows=flows)
    below = seeded(flow.flow, seed)
    match flow:
        case Reorder(_, FixedSet() | Repeat() | RepeatEach() | Replay() | Gap() | Told() | Without()):
            pass
        case Reorder(_, _, None) | Each(_, "random", _, None) | Hold(_, ShuffleBuffer() | WindowShuffle(), _, None):
            return replace(flow, flow=below, seed=seed)
        case _:
            pass
    return flow if below is flow.flow else replace(flow, flow=below)
