"""Statistics of packed rows and of their documents, from one window of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ...errors import ConfigError
from ...types import Fold, Ints
from ..packing import (
    OVERFLOWS,
    BestFit,
    ConcatSplit,
    FirstFit,
    GroupLayout,
    Long,
    Overflow,
    Packing,
    RowLengths,
    get_inner_fold,
    plan_groups,
)
from ..steps.packed import PackedOp
from ..steps.seek import Metered

_COMPARED = 1 << 16  # documents


@dataclass(frozen=True)
class MethodShares:
    """A row of `plan.packing(compare=True)`: the first pass, packed by one method.

    - `method` and `overflow` as `pack()` takes them; `current` is true for the method of the pipeline.
    - `rows` made of the documents, and `fill`, the share of their places that hold a token.
    - `crop`: the share of tokens that no row holds; `crop_by_source` has it for each source.
    - `split`: the share of documents spread over rows.
    - `aligned`: the share of rows that begin with the beginning of a document.
    """

    method: str
    overflow: str | None
    current: bool
    rows: int
    fill: float
    crop: float
    split: float
    aligned: float
    crop_by_source: Mapping[str, float]


@dataclass(frozen=True)
class PackedShares:
    """The answer of `plan.packing()`. Shares refer to the first rows of the first pass.

    - `rows` of a pass, and the `tokens` of its documents, with BOS and EOS; None for an endless
      pass. If rows are planned a pass at a time, `rows` is estimated.
    - `fill`: the share of places in rows that hold a token; the rest is padding. For batches that
      are no rows, the share once they are padded to their longest sample.
    - `split`: the share of documents that are spread over rows; `cut`: the share that lose their
      end.
    - `sampled`: the number of documents in the window.
    - `stored`: the dtype of the stored tokens of each source, if it is known without reading.
    - `untrained`: the share of the documents of each source in which no token carries loss, for sources
      with masks; the plan of a dataset reads the masks of the window. With `untrained="skip"` these
      are left out of rows, and the window is the first 4,096 documents of the pass.
    - `methods`: the same documents packed by each method, only with `compare=True`. These are the
      documents of the first pass, or its first 65,536 if there are more.
    """

    rows: int | None
    tokens: int | None
    fill: float
    split: float
    cut: float
    sampled: int
    stored: Mapping[str, str] = field(default_factory=dict[str, str])
    methods: tuple[MethodShares, ...] = ()
    untrained: Mapping[str, float] = field(default_factory=dict[str, float])


def measure_packing(op: PackedOp) -> PackedShares:
    """Return the statistics of the first rows, from lengths alone."""
    rows, size = op.sampled(), op.input.size
    tokens = None if size is None else Metered(op.input, op.unpadded).tokens(size)
    if not len(rows):
        return PackedShares(0, tokens, 0.0, 0.0, 0.0, 0)
    start, stop = rows.marks[op.node], rows.marks[~op.node]
    whole = op.unpadded.of(rows)
    there, firsts = np.minimum(stop, whole) - start, rows.firsts()
    counts = np.diff(firsts)
    length = op.row_length
    if length is None:  # batches of whole samples, padded to the longest of each
        longest = np.maximum.reduceat(whole, firsts[:-1])
        places = int((counts * longest).sum())
    else:
        earlier = op.fold.earlier if isinstance(op.fold, ConcatSplit) else ()
        places = int(RowLengths(length, earlier).begins(np.asarray([len(rows)]))[0])
    begun = start == 0
    lost = np.zeros_like(begun)
    if op.crops:
        lost = begun & (stop < whole)
    elif length is not None and op.truncates:
        lost = begun & (whole > length)
    apart = begun & (stop < whole) & ~lost
    many = max(int(begun.sum()), 1)
    fill = int(there.sum()) / max(places, 1)
    return PackedShares(
        _rows_of_pass(op, tokens, len(rows) / max(int(whole[begun].sum()), 1)),
        tokens,
        fill,
        int(apart.sum()) / many,
        int(lost.sum()) / many,
        int(begun.sum()),
    )


def compare_methods(pack: PackedOp, names: Sequence[str]) -> tuple[MethodShares, ...]:
    """Pack the documents of the first pass by every method, from lengths alone.

    Raises:
        ConfigError: if the groups are no rows of one length.
    """
    length = pack.row_length
    if length is None:
        raise ConfigError(
            "plan.packing(compare=True): batches of whole samples have no other method; compare the "
            "methods of a dataset with pack()"
        )
    size = pack.input.passes.size(0) if pack.input.passes is not None else pack.input.size
    documents = pack.input.locate(np.arange(_COMPARED if size is None else min(size, _COMPARED)))
    sizes, whole = pack.lengths.of(documents), pack.unpadded.of(documents)
    own, inner = pack.fold, get_inner_fold(pack.fold)
    long = inner.long if isinstance(inner, FirstFit | BestFit) else "split"
    folds: list[tuple[str, Overflow | None, Fold]] = [
        ("concat_split", None, ConcatSplit(length)),
        ("first_fit", None, FirstFit(length, long=long)),
        *(("best_fit", overflow, _make_best_fit(length, long, overflow)) for overflow in OVERFLOWS),
    ]
    shares = list[MethodShares]()
    for method, overflow, fold in folds:
        is_own = type(fold) is type(inner) and overflow == getattr(inner, "overflow", None)
        groups = pack.groups_of(documents) if is_own else None
        layout = plan_groups(
            own if is_own else fold,
            sizes,
            0,
            pack.multiple,
            groups,
            pack.group_count if is_own else 1,
        )
        shares.append(_measure_layout(layout, whole, documents.leaf, names, length))
        shares[-1] = replace(shares[-1], method=method, overflow=overflow, current=is_own)
    return tuple(shares)


def _make_best_fit(length: int, long: Long, overflow: Overflow) -> Fold:
    """Return the fold of `pack(length, "best_fit", overflow=)` with its defaults."""
    long = "split" if overflow == "crop" else long
    return Packing(length, "best_fit", long=long, overflow=overflow).fold()


def _measure_layout(
    layout: GroupLayout, sizes: Ints, leaf: Ints, names: Sequence[str], length: int
) -> MethodShares:
    """Measure rows of documents that have these sizes and sources."""
    tokens = np.maximum(np.minimum(layout.stop, sizes[layout.item]) - layout.start, 0)
    pieces = np.bincount(layout.item, minlength=len(sizes))
    had = np.bincount(leaf, sizes, len(names))
    held = np.bincount(leaf[layout.item], tokens, len(names))
    rows, total = len(layout), max(int(sizes.sum()), 1)
    return MethodShares(
        "",
        None,
        False,
        rows,
        int(tokens.sum()) / max(rows * length, 1),
        1 - int(tokens.sum()) / total if sizes.any() else 0.0,
        float((pieces > 1).sum() / max((pieces > 0).sum(), 1)),
        float((layout.start[layout.bounds[:-1]] == 0).sum() / max(rows, 1)),
        {
            name: float(1 - some / every)
            for name, some, every in zip(names, held.tolist(), had.tolist(), strict=True)
            if every
        },
    )


def _rows_of_pass(op: PackedOp, tokens: int | None, each: float) -> int | None:
    """Return the number of rows of a pass, estimated if a pass would have to be planned."""
    if op.is_large and tokens is not None:
        least = 0 if op.row_length is None or op.truncates else -(-tokens // op.row_length)
        return max(round(tokens * each), least)
    return op.size
