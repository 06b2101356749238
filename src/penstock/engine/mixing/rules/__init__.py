"""The rules of mixing, a file each: by position and one draw at a time."""

from .by import By
from .chain import Chain
from .cycle import Cycle
from .rule import MANY, DrawChange, Drawing, Draws, Invertible, LaneShare, Outcome, Rule
from .turns import Turns
from .weighted import ByWeight, Changed, Past, Weighted, caps_of

__all__ = [
    "MANY",
    "By",
    "ByWeight",
    "Chain",
    "Changed",
    "Cycle",
    "DrawChange",
    "Drawing",
    "Draws",
    "Invertible",
    "LaneShare",
    "Outcome",
    "Past",
    "Rule",
    "Turns",
    "Weighted",
    "caps_of",
]
