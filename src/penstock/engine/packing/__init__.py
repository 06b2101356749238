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
from ..grouping.grouped_by_key import SOURCE, Apart, get_group, get_inner_fold
from ..grouping.row_lengths import EarlierLengths, LengthPlan, PassCuts, RowLengths
from ..grouping.whole_documents import BestFit, FirstFit
from .options import (
    METHODS,
    UNTRAINED,
    DType,
    Method,
    PackedBatches,
    Packing,
    Untrained,
    check_dtype,
    make_crop_error,
    make_length_plan,
)
from .plan import (
    PieceColumns,
    PlannedPieces,
    adjust_group_count,
    count_settled_documents,
    plan_groups,
)
from .row import Missing, RowBuilder, RowFormat, build_rows
from .window import GroupLayout, WindowPlanner, has_independent_rows

__all__ = [
    "METHODS",
    "OVERFLOWS",
    "SOURCE",
    "UNTRAINED",
    "Apart",
    "BestFit",
    "ConcatSplit",
    "DType",
    "EarlierLengths",
    "FirstFit",
    "GroupLayout",
    "LengthPlan",
    "Long",
    "Method",
    "Missing",
    "Overflow",
    "PackedBatches",
    "Packing",
    "PassCuts",
    "Piece",
    "PieceColumns",
    "PlannedPieces",
    "Rebatch",
    "RowBuilder",
    "RowFormat",
    "RowLengths",
    "Untrained",
    "WindowPlanner",
    "adjust_group_count",
    "build_rows",
    "check_dtype",
    "count_settled_documents",
    "get_group",
    "get_inner_fold",
    "has_independent_rows",
    "join_parts",
    "make_crop_error",
    "make_length_plan",
    "plan_groups",
]
