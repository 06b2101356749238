"""Facts about flows: that one never ends, and that its passes are alike."""

from __future__ import annotations

from ..mixing.rules import Turns
from ..orders import FixedSet, Repeat, Replay
from ..steps.function_step import FunctionStep
from .nodes import Again, Flow, Hold, Mix, Read, Reorder, Rest, fact, is_counter


@fact
def endless(flow: Flow) -> bool:
    """Whether a flow is known never to end."""
    match flow:
        case Mix((numbers, counted), _, Turns()) if is_counter(numbers):
            return endless(counted)
        case Mix(flows, names, rule):
            return rule.endless(names, [*map(endless, flows)])
        case Again(_, epochs):
            return epochs is None
        case Reorder(below, Repeat(epochs) | Replay(epochs)):
            return epochs is None or endless(below)
        case Reorder(below, FixedSet()):
            return False
        case Reorder(below) | FunctionStep(below) | Hold(below) | Rest(below):
            return endless(below)
        case _:
            return False


@fact
def alike(flow: Flow) -> bool:
    """Return whether a flow gives the samples of one source, again and again in its order."""
    match flow:
        case Read():
            return True
        case Again(below) | Reorder(below, Repeat() | Replay()):
            return alike(below)
        case FunctionStep(below):
            return not flow.varies_by_pass and alike(below)
        case _:
            return False
