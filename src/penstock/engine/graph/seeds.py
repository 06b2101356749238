"""The seed of a dataset, for all random steps that have none of their own."""

from __future__ import annotations

from dataclasses import replace
from operator import is_
from typing import TypeVar

from ..mixing.rules import Weighted
from ..steps.random_map import RandomMap
from .nodes import Flow, Hold, Mix, Read, Reorder, random_key

_F = TypeVar("_F", bound=Flow)


def seeded(flow: Flow, seed: int) -> Flow:
    """The tree with `seed` wherever a random step has none; itself where that is nowhere. Mixtures
    carry their own to what lies below them.
    """
    if isinstance(flow, Read) or (isinstance(flow, Mix) and isinstance(flow.rule, Weighted)):
        return flow
    if isinstance(flow, Mix):
        flows = tuple(seeded(child, seed) for child in flow.flows)
        return flow if all(map(is_, flows, flow.flows)) else replace(flow, flows=flows)
    below = seeded(flow.flow, seed)
    return with_seed(flow if below is flow.flow else replace(flow, flow=below), seed)


def with_seed(flow: _F, seed: int | None) -> _F:
    """Return a node with `seed` if it is a random step that has none, else the node itself."""
    if (
        isinstance(flow, Reorder | RandomMap | Hold)
        and flow.seed is None
        and random_key(flow) is not None
    ):
        return flow if seed is None else replace(flow, seed=seed)
    return flow
