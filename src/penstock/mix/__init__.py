"""Mixing: which source each position draws from, and which of its draws that is. Integer arithmetic, nothing stored.

A mixture is a plain interleave, exact at every prefix (`shape`, `segment`, `plan`), dealt out in random order inside
blocks (`blocks`). What happens to it during a run is an event in its log (`events`).
"""

from .events import Adopt, Event, Exhausted, SetWeights, event_from_json
from .mixture import Mixture
from .rules import STOPS
from .saved import mixture_from_json, mixture_to_json

__all__ = [
    "STOPS",
    "Adopt",
    "Event",
    "Exhausted",
    "Mixture",
    "SetWeights",
    "event_from_json",
    "mixture_from_json",
    "mixture_to_json",
]
