"""Orders: pure maps from positions to positions, vectorised. A new one is three short methods.

Positions are unbounded: position `p` of a flow with passes of length `n` is sample `p % n` of pass
    `p // n`.
`down` maps positions to positions of the flow below; `up` is its inverse, where a position below
may not occur above it is -1. "Laps" count the times a fixed order was gone through again.
"""

from .buckets import BucketShuffle
from .parts import AllBut, FixedSet, Gap, Pick, Slice, Stride
from .passes import Repeat, RepeatEach, Replay, Told
from .portion import Portion, fraction_of
from .shuffle import BlockShuffle, Shuffle, WindowShuffle

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
    "Slice",
    "Stride",
    "Told",
    "WindowShuffle",
    "fraction_of",
]
