"""Mixing: which source each position draws from, and which of its draws that is. Integer
arithmetic, nothing stored.

A mixture is a tree of random splits, within 2 of the weights at every prefix (`shape`, `segment`,
`build`), or, where weights are shares of tokens and lengths are known, draws in the order of times
(`clock`); and within blocks of more than one draw a permutation of that (`blocks`). What changes
its law cuts it into segments (`timeline`): the points of a schedule, a source that ran out, and
what happened during a run, which its log keeps (`events`).
"""

from .drawing import DrawChange, Drawing, Invertible
from .events import Adopt, Event, Exhausted, SetWeights, event_from_json
from .law import Gone, Meter
from .mixture import Mixture
from .saved import mixture_from_json, mixture_to_json
from .timeline import STOPS, Stop

__all__ = [
    "STOPS",
    "Adopt",
    "DrawChange",
    "Drawing",
    "Event",
    "Exhausted",
    "Gone",
    "Invertible",
    "Meter",
    "Mixture",
    "SetWeights",
    "Stop",
    "event_from_json",
    "mixture_from_json",
    "mixture_to_json",
]
