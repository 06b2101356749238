"""Packing: documents in rows of equal length. Folds plan rows from sizes; builders copy tokens.

A row is a mapping of its features, `segment_ids` and `positions`, both int32:

- `segment_ids` is 1, 2, ... for the documents of the row and 0 for padding, so `segment_ids > 0` is
  the attention mask.
- `positions` is the offset within the document, continued after a split; 0 for padding.

A document that cannot be read becomes padding of its planned size.
"""

from ..grouping.concat_split import (
    OVERFLOWS,
    ConcatSplit,
    Long,
    Overflow,
    Piece,
    Rebatch,
    join_parts,
)
from ..grouping.grouped_by_key import SOURCE, Apart, group_in, inner_of
from ..grouping.whole_documents import BestFit, FirstFit
from .features import FeatureRows, feature_packing
from .layout import Layout
from .options import METHODS, DType, Method, PackedBatches, Packing, check_dtype
from .plan import Columns, Pieces, adjust_group_count, count_settled_documents, cut_at, plan_groups
from .row import Missing, build_row
from .window import Windows, by_sums

__all__ = [
    "METHODS",
    "OVERFLOWS",
    "SOURCE",
    "Apart",
    "BestFit",
    "Columns",
    "ConcatSplit",
    "DType",
    "FeatureRows",
    "FirstFit",
    "Layout",
    "Long",
    "Method",
    "Missing",
    "Overflow",
    "PackedBatches",
    "Packing",
    "Piece",
    "Pieces",
    "Rebatch",
    "Windows",
    "adjust_group_count",
    "build_row",
    "by_sums",
    "check_dtype",
    "count_settled_documents",
    "cut_at",
    "feature_packing",
    "group_in",
    "inner_of",
    "join_parts",
    "plan_groups",
]
