"""Folds: grouping rules that depend on sizes and order of arrival, and read no data.

A carry is plain lists and dicts of items. `step` copies what it changes, so a cursor can store any
carry at any time. Folds use `.size` and `.number` of items only, so they can be planned from
lengths; `Bins` and `EndToEnd`, which measure several features, also use `.value`.
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
