"""Whether a flow ends."""

from __future__ import annotations

from collections.abc import Mapping

from ..orders import Pick, Repeat, Slice
from ..schedule import Schedule
from .nodes import Again, By, Chain, Cycle, Each, Flow, Hold, Mix, Reorder, Turns, Weighted


def endless(flow: Flow) -> bool:
    """Whether a flow is known never to end."""
    match flow:
        case Mix(flows, names, Weighted() as rule):
            return _restarts(rule, flows, names)
        case Mix(flows, _, Chain() | Cycle()):
            return any(map(endless, flows))
        case Mix(flows, _, Turns() | By()):
            return all(map(endless, flows))
        case Mix(_, _, Again(epochs)):
            return epochs is None
        case Reorder(below, Repeat(epochs)):
            return epochs is None or endless(below)
        case Reorder(below, Slice() | Pick()):
            return False
        case Reorder(below) | Each(below) | Hold(below):
            return endless(below)
        case _:
            return False


def _restarts(rule: Weighted, flows: tuple[Flow, ...], names: tuple[str, ...]) -> bool:
    """Whether a mixture never ends; inputs of weight 0 do not count, and a cap ends only what has a length."""
    caps = rule.max_epochs
    capped = dict.fromkeys(names) if isinstance(caps, float | int) else dict(caps or ())
    points: list[Mapping[str, float]] = [dict.fromkeys(names, 1.0)]
    if isinstance(rule.weights, Schedule):
        points = [weights for _, weights in rule.weights.points]
    elif rule.weights is not None:
        points = [dict(rule.weights)]
    live = [(name, flow) for name, flow in zip(names, flows, strict=True) if any(point.get(name) for point in points)]
    match rule.stop:
        case "restart":
            return any(name not in capped or endless(flow) for name, flow in live)
        case "first_exhausted":
            return all(endless(flow) for _, flow in live)
        case _:
            return any(endless(flow) for _, flow in live)
