"""Folds: grouping rules that depend on sizes and order of arrival, and read no data.

A carry is plain lists and dicts of items. `step` copies what it changes, so a cursor can store any
carry at any time. Folds use `.size` and `.number` of items only, so they can be planned from
lengths.
"""

from .by_length import BatchByTokens, BucketByLength
from .concat_split import ConcatSplit, Rebatch
from .grouped_by_key import SOURCE, Apart
from .shuffle_buffer import ShuffleBuffer
from .whole_documents import BestFit, FirstFit

__all__ = [
    "SOURCE",
    "Apart",
    "BatchByTokens",
    "BestFit",
    "BucketByLength",
    "ConcatSplit",
    "FirstFit",
    "Rebatch",
    "ShuffleBuffer",
]
