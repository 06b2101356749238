"""Folds: who goes together, decided from sizes and order of arrival. A fold touches no data.

A carry is plain lists and dicts of items: `step` copies what it changes, so a cursor can be taken
    of any carry at any
time. Only `.size` and `.number` of an item are looked at, so a fold can be planned from lengths
alone; `Bins` and `EndToEnd`, which measure several features, look at its value too.
"""

from .apart import SOURCE, Apart
from .bins import Bins, EndToEnd, FeatureRoom
from .by_length import BatchByTokens, BucketByLength
from .fit import BestFit, FirstFit
from .pack import ConcatSplit, Rebatch
from .shuffle_buffer import ShuffleBuffer

__all__ = [
    "SOURCE",
    "Apart",
    "BatchByTokens",
    "BestFit",
    "Bins",
    "BucketByLength",
    "ConcatSplit",
    "EndToEnd",
    "FeatureRoom",
    "FirstFit",
    "Rebatch",
    "ShuffleBuffer",
]
