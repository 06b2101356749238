"""Mixing: which source each position draws from, and which of its draws that is. Integer
arithmetic, nothing stored.

A mixture is a tree of random splits, within 2 of the weights at every prefix (`split_tree`,
`segment`), or, where weights are shares of tokens and lengths are known, draws in the order of
times (`token_clock`). `blocks` permutes it within blocks of more than one draw. Points of a
schedule, sources that run out and changes during a run (`events`) cut it into segments
(`timeline`).
"""

from .events import Adopt, Event, Exhausted, SetWeights, event_from_json
from .mixture import Mixture, mixture_from_json, mixture_to_json
from .timeline import STOPS, Stop
from .token_clock import IntegerCache, Meter, UnknownMeter

__all__ = [
    "STOPS",
    "Adopt",
    "Event",
    "Exhausted",
    "IntegerCache",
    "Meter",
    "Mixture",
    "SetWeights",
    "Stop",
    "UnknownMeter",
    "event_from_json",
    "mixture_from_json",
    "mixture_to_json",
]
