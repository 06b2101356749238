"""The rules of mixing, a file each: by position and one draw at a time."""

from .by import By
from .chain import Chain
from .cycle import Cycle
from .rule import MANY, DrawChange, Drawing, Draws, Invertible, LaneShare, Outcome, Rule
from .turns import Turns
from .weighted import ByWeight, FormerMixture, MixtureByPass, Weighted, caps_of

__all__ = [
    "MANY",
    "By",
    "ByWeight",
    "Chain",
    "Cycle",
    "DrawChange",
    "Drawing",
    "Draws",
    "FormerMixture",
    "Invertible",
    "LaneShare",
    "MixtureByPass",
    "Outcome",
    "Rule",
    "Turns",
    "Weighted",
    "caps_of",
]
