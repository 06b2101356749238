"""Tokens that carry loss in the rows of a plan, from lengths and stored masks.

A place of a row carries loss if its token is predicted and trained on. The first token of a
document's part in a row is not predicted. Others are trained on unless `loss_mask` is 0 or the label
is ignored, exactly as `CausalLM` makes labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..arrays.trees import collate
from ..engine.base.row_files import locate_row
from ..engine.base.rows import HOLE, ProvenanceRows, compute_bounds
from ..engine.packing import PackedBatches, Packing
from ..engine.packing.row import get_end_value, get_feature_setting
from ..engine.runtime.step_log import StepLog
from ..engine.steps.batch import tail_of
from ..engine.steps.batched_function import Collated
from ..engine.steps.compiled import Compiled
from ..engine.steps.function_step import format_function
from ..engine.steps.map import keeps_token_counts
from ..engine.steps.packed import packs_of, top_pack
from ..engine.steps.step import Step, iter_steps
from ..engine.streams.function_call import Leaf
from ..errors import ConfigError, DataError, make_no_value_error
from ..types import FileSource, Flags, Ints, Source
from .causal_lm import CausalLM

_IGNORED = -100
_MASKS = ("loss_mask", "labels")
_DOCUMENTS = 1 << 12  # documents whose masks are read at a time
_ROWS = 1 << 14  # rows that are located at a time
_ADVICE = "count batches by penstock.integrations.losses.count_loss_tokens, and add them up by reduce_loss_tokens"


class LossTokens:
    """Counts the tokens that carry loss in the rows of a compiled tree.

    Args:
        compiled: the tree of a rank, whose last batches make the items.

    Raises:
        ConfigError: if the tokens of a row, or their masks, are not known beforehand.
    """

    def __init__(self, compiled: Compiled) -> None:
        root = compiled.tree
        if (reason := root.reason_not_indexed) is not None:
            raise make_unknown_error(reason)
        self._ignore = _require_known_functions(root)
        self._op = compiled.op
        while self._op.tail:
            (self._op,) = self._op.inputs
        self._sources, self._lengths = compiled.builder.leaves, compiled.builder.lengths
        self._pack, self._packing = top_pack(self._op), _find_packing(root)
        if len(packs_of(self._op)) > (self._pack is not None):
            raise make_unknown_error("rows are packed below a mixture, a zip or another pack")
        if self._pack is None and not tail_of(root).rows.lengths_known:
            raise make_unknown_error("the lengths of the samples are not known")
        self._masks = DocumentMasks(self._sources, self._packing, self._ignore)

    def count_steps(self, log: StepLog, steps: range) -> int:
        """Return the number of tokens that carry loss in some global steps, over all ranks.

        Args:
            log: the global steps of the run.
            steps: the steps to count.
        """
        total, rows, pending = 0, list[Ints](), 0
        for step in steps:
            rows.append(_rows_of_step(log, step))
            pending += len(rows[-1])
            if pending >= _ROWS or step == steps[-1]:
                total += int(self.count_rows(np.concatenate(rows)).sum())
                rows, pending = [], 0
        return total

    def count_rows(self, rows: Ints) -> Ints:
        """Return the number of tokens that carry loss in each row.

        Args:
            rows: the rows, counted over all passes.
        """
        located = self._op.locate(rows)
        starts, stops = self._parts(located)
        counts = np.zeros(len(located.leaf), np.int64)
        for source in np.unique(located.leaf).tolist():
            mine = np.flatnonzero(located.leaf == source)
            index, begin, end = located.index[mine], starts[mine], stops[mine]
            known = self._masks.count(source, index, begin, end)
            counts[mine] = np.maximum(end - begin - 1, 0) if known is None else known
        if HOLE in located.marks:  # masked documents are padding
            counts[located.marks[HOLE] != 0] = 0
        return np.diff(compute_bounds(counts)[located.firsts()])

    def _parts(self, rows: ProvenanceRows) -> tuple[Ints, Ints]:
        """Return the range of tokens of each document, with BOS and EOS."""
        if self._pack is None or self._packing is None:  # batches of whole documents
            lengths = self._lengths.of(rows)
            return np.zeros_like(lengths), lengths
        node = self._pack.node
        return rows.marks[node], np.minimum(rows.marks[~node], self._pack.unpadded.of(rows))


class DocumentMasks:
    """Counts the tokens that carry loss in parts of documents, from their masks alone.

    Args:
        sources: the sources.
        packing: the function that builds rows; None for batches of whole documents.
        ignore: the label of tokens that carry no loss.
    """

    def __init__(
        self, sources: Sequence[Leaf], packing: Packing | None, ignore: int = _IGNORED
    ) -> None:
        self._sources, self._packing, self._ignore = sources, packing, ignore
        self._masks = dict[int, _Masks | None]()  # by source, opened at first use

    def count(self, source: int, index: Ints, starts: Ints, stops: Ints) -> Ints | None:
        """Return the tokens that carry loss in parts of documents; None if they have no masks.

        Args:
            source: the number of the source.
            index: its documents.
            starts: the first token of each part, counted with BOS.
            stops: the end of each part.
        """
        if source not in self._masks:
            opened = cast("Source", self._sources[source].source)
            self._masks[source] = _open_masks(opened, self._packing)
        if (masks := self._masks[source]) is None:
            return None
        documents, numbers = np.unique(index, return_inverse=True)
        counts, order = np.zeros(len(index), np.int64), np.argsort(numbers, kind="stable")
        for low in range(0, len(documents), _DOCUMENTS):
            read = documents[low : low + _DOCUMENTS]
            flags = masks.read(read, self._ignore, self._sources[source])
            sums = compute_bounds(np.concatenate(flags).astype(np.int64))
            begins = compute_bounds(np.asarray([len(part) for part in flags]))
            a, b = np.searchsorted(numbers[order], [low, low + len(read)])
            some = order[a:b]
            first = begins[numbers[some] - low]
            if (stops[some] > np.diff(begins)[numbers[some] - low]).any():
                raise DataError(
                    f"loss_tokens: the masks of {self._sources[source].name!r} are shorter than the "
                    "stored lengths of its documents; check that the lengths belong to this data"
                )
            predicted = np.minimum(first + starts[some] + 1, first + stops[some])
            counts[some] = sums[first + stops[some]] - sums[predicted]
        return counts


@dataclass(frozen=True)
class _Masks:
    """Masks of the documents of a source: columns, and the value of each at BOS and EOS."""

    columns: Mapping[str, Source]
    ends: Mapping[str, tuple[Any, Any]]

    def read(self, index: Ints, ignore: int, owner: Leaf) -> list[Flags]:
        """Return for each token of documents, with BOS and EOS, whether it is trained on.

        Raises:
            DataError: if a document or a token has no value.
            ConfigError: if a document has one label, and not one for each token.
        """
        flags: list[Flags] | None = None
        for name, source in self.columns.items():
            values = [np.asarray(sample.get(name)) for sample in source.read(index)]
            for number, mask in zip(index.tolist(), values, strict=True):
                if mask.dtype == np.object_ and any(value is None for value in mask.flat):
                    place = locate_row(owner.source, number)
                    raise make_no_value_error(name, str(place[0]) if place else owner.name)
                if mask.ndim != 1:
                    raise make_unknown_error(
                        f"{name!r} of {owner.name!r} has one value for each document, not for each token"
                    )
            kept = [self._flags(name, mask, ignore) for mask in values]
            flags = kept if flags is None else [a & b for a, b in zip(flags, kept, strict=True)]
        assert flags is not None
        return flags

    def _flags(self, name: str, values: npt.NDArray[Any], ignore: int) -> Flags:
        bos, eos = self.ends[name]
        none = 0 if name == "loss_mask" else ignore
        ends = [[value != none] if value is not None else [] for value in (bos, eos)]
        return np.concatenate([ends[0], values != none, ends[1]]).astype(np.bool_)


def _open_masks(source: Source, packing: Packing | None) -> _Masks | None:
    """Return the masks that the documents of a source have; None if all tokens are trained on."""
    if getattr(source, "counts", None) is not None or not len(source):
        return None  # texts, whose tokens a function counts and makes
    first = source.read(np.zeros(1, np.int64))[0]
    if not isinstance(first, Mapping):
        return None
    names = [*cast("Mapping[str, Any]", first)]
    if packing is not None:
        listed = names if packing.features is None else packing.features
        names = [name for name in listed if name in names and name not in packing.unpacked]
    columns, ends = dict[str, Source](), dict[str, tuple[Any, Any]]()
    for name in _MASKS:
        if name in names:
            alone = source.column_alone(name) if isinstance(source, FileSource) else None
            columns[name] = alone or source
            ends[name] = (None, None)
            if packing is not None:
                pad, is_lead = get_feature_setting(packing.pad, name, 0), names[0] == name
                bos, eos = (
                    get_end_value(setting, name, pad, is_lead)
                    for setting in (packing.bos, packing.eos)
                )
                ends[name] = bos, eos
    return _Masks(columns, ends) if columns else None


def _require_known_functions(root: Step) -> int:
    """Return the label that is ignored; raise for functions that may change what carries loss."""
    ignore = _IGNORED
    for step, _ in iter_steps(root):
        # A fold measures documents whose lengths are known, and calls no function.
        for fn in () if "fold" in step.describe() else step.functions:
            called = fn.fn if isinstance(fn, Collated) else fn
            if isinstance(called, CausalLM):
                ignore = called.ignore
            elif not _keeps_loss(called, step):
                raise make_unknown_error(
                    f"{format_function(called)} may change which tokens carry loss; set its "
                    "attribute keeps_loss = True if it does not"
                )
    if ignore >= 0:
        raise make_unknown_error(f"CausalLM(ignore={ignore}) may ignore any token")
    return ignore


def _keeps_loss(fn: Any, step: Step) -> bool:
    """Return whether a function of a step keeps which tokens carry loss."""
    if fn is collate or isinstance(fn, Packing | PackedBatches):
        return True
    if step.only_input is not None and keeps_token_counts(fn, step.only_input):
        return not {*getattr(fn, "keep", ())} & {*_MASKS}
    return bool(getattr(fn, "keeps_loss", False))


def _find_packing(root: Step) -> Packing | None:
    """Return the function that builds packed rows."""
    for step, _ in iter_steps(root):
        for fn in step.functions:
            if isinstance(fn, Packing | PackedBatches):
                return fn if isinstance(fn, Packing) else fn.packing
    return None


def measure_untrained(compiled: Compiled) -> dict[str, float]:
    """Return the share of untrained documents of each source with masks, in a window of packed rows.

    The window is the one of `plan.packing()`. If such documents are left out, it is the first
    documents of the pass.

    Args:
        compiled: a tree that packs by known lengths.
    """
    packs, packing = packs_of(compiled.op), _find_packing(compiled.tree)
    if not packs or packing is None:
        return {}
    pack = packs[0]
    sources: Sequence[Leaf] = compiled.builder.leaves
    if packing.untrained == "skip":
        size = pack.input.size
        rows = pack.input.locate(np.arange(_DOCUMENTS if size is None else min(size, _DOCUMENTS)))
        sizer = replace(packing.sizer, multiple=1, most=packing.length if pack.truncates else None)
        stops = compiled.builder.lengths.count_by(sizer).of(rows)
    else:
        rows = pack.sampled()
        stops = pack.unpadded.of(rows)
        if pack.truncates:
            stops = np.minimum(stops, rows.marks.get(~pack.node, stops))
    begun = rows.marks[pack.node] == 0 if pack.node in rows.marks else np.ones_like(stops, np.bool_)
    masks, shares = DocumentMasks(sources, packing), dict[str, float]()
    for source in map(int, np.unique(rows.leaf)):
        mine = np.flatnonzero((rows.leaf == source) & begun)
        counts = masks.count(source, rows.index[mine], np.zeros_like(mine), stops[mine])
        if counts is not None and len(mine):
            shares[sources[source].name] = int((counts == 0).sum()) / len(mine)
    return shares


def _rows_of_step(log: StepLog, step: int) -> Ints:
    """Return the rows that all ranks receive in a step, without those that fill it up."""
    rows = log.rows(step)
    if log.record_of(step).remainder == "pad":
        return np.arange(rows.start, rows.stop)
    return log.rows_given(step)


def make_unknown_error(reason: str) -> ConfigError:
    """Return the error for a number of loss tokens that no plan knows.

    Args:
        reason: why it is unknown.
    """
    return ConfigError(f"loss_tokens: the number is not known beforehand: {reason}; {_ADVICE}")
