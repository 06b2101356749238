"""The seed of a dataset, for all random steps that have none of their own."""

from __future__ import annotations

from dataclasses import replace

from ..folds import ShuffleBuffer
from ..mixing.rules import Weighted
from ..orders import FixedSet, Gap, Repeat, RepeatEach, Replay, Told, WindowShuffle
from .nodes import Each, Flow, Hold, Mix, Read, Reorder, Without


def seeded(flow: Flow, seed: int) -> Flow:
    """The tree with `seed` wherever a random step has none. Mixtures carry their own to what lies below them."""
    match flow:
        case Read() | Mix(_, _, Weighted()):
            return flow
        case Mix(flows):
            return replace(flow, flows=tuple(seeded(child, seed) for child in flows))
        case Reorder(below, FixedSet() | Repeat() | RepeatEach() | Replay() | Gap() | Told() | Without()):
            return replace(flow, flow=seeded(below, seed))
        case Reorder(below, _, None) | Each(below, "random", _, None):
            return replace(flow, flow=seeded(below, seed), seed=seed)
        case Hold(below, ShuffleBuffer() | WindowShuffle(), _, None):
            return replace(flow, flow=seeded(below, seed), seed=seed)
        case _:
            return replace(flow, flow=seeded(flow.flow, seed))
