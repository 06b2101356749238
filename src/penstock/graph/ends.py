"""Whether a flow ends."""

from __future__ import annotations

from ..orders import FixedSet, Repeat, Replay
from .nodes import Again, Each, Flow, Hold, Mix, Reorder, Rest, fact


@fact
def endless(flow: Flow) -> bool:
    """Whether a flow is known never to end."""
    match flow:
        case Mix(flows, names, rule):
            return rule.endless(names, [*map(endless, flows)])
        case Again(_, epochs):
            return epochs is None
        case Reorder(below, Repeat(epochs) | Replay(epochs)):
            return epochs is None or endless(below)
        case Reorder(below, FixedSet()):
            return False
        case Reorder(below) | Each(below) | Hold(below) | Rest(below):
            return endless(below)
        case _:
            return False
