"""Orders: pure, vectorised maps from positions to positions of the input.

Positions are unbounded: position `p` of an input with passes of length `n` is sample `p % n` of
pass `p // n`. `down` maps positions to positions of the input. `up` is its inverse, or -1 for
positions that do not occur. "Laps" are replay numbers: how often a fixed set was repeated.
"""

from .buckets import BucketShuffle
from .passes import Repeat, RepeatEach, Replay
from .portion import Portion, parse_fraction
from .shuffle import BlockShuffle, Shuffle, WindowShuffle
from .slices import AllBut, FixedSet, Gap, Pick, Skips, Slice, Stride

__all__ = [
    "AllBut",
    "BlockShuffle",
    "BucketShuffle",
    "FixedSet",
    "Gap",
    "Pick",
    "Portion",
    "Repeat",
    "RepeatEach",
    "Replay",
    "Shuffle",
    "Skips",
    "Slice",
    "Stride",
    "WindowShuffle",
    "parse_fraction",
]
