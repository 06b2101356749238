"""The end of a run: the horizon of a mixture file in samples or rows of its dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from math import ceil

import numpy as np

from ..dataset import Dataset
from ..engine.steps.group import find_pack
from ..engine.steps.mean_lengths import mean_length, mean_loss_tokens
from ..engine.steps.packed import top_pack
from ..engine.steps.seek import Metered
from ..engine.steps.tokens import Lengths
from ..errors import ConfigError
from ..types import MAX_POSITION, Sizer
from .model import MixtureFile


def limit_samples(model: MixtureFile, mixture: Dataset) -> Dataset:
    """Limit the mixture to the horizon, if the horizon counts its samples.

    That is the case for samples, for epochs, and for tokens, with or without loss, that are not packed.
    """
    unit, number = model.horizon or ("steps", 0)
    if unit == "samples":
        return _limit_dataset(mixture, int(number))
    if unit == "epochs":
        return _limit_dataset(mixture, count_pass_samples(model, [mixture]))
    if unit == "tokens" and not model.pack:
        return _limit_dataset(mixture, count_token_samples(mixture, int(number)))
    if unit == "loss_tokens" and not model.pack:
        return _limit_dataset(mixture, count_loss_samples(mixture, int(number)))
    return mixture


def count_pass_samples(model: MixtureFile, datasets: Iterable[Dataset]) -> int:
    """Return the number of samples in the passes of the horizon, over all sources."""
    total = sum(count_distinct_samples(ds) for ds in datasets)
    return int(Fraction(repr(model.horizon[1] if model.horizon else 0)) * total)


def count_distinct_samples(ds: Dataset) -> int:
    """Return the number of samples in one pass over each source of a dataset."""
    once = np.zeros(len(ds.plan.sources), np.int64)
    ds.compiled.op.count_distinct(once)
    return int(once.sum())


def limit_rows(model: MixtureFile, rows: Dataset) -> Dataset:
    """Limit the rows to be batched, if the horizon counts steps or packed tokens."""
    unit, number = model.horizon or ("", 0)
    if unit == "loss_tokens" and model.pack:
        count = _count_loss_rows(rows, int(number))
        steps = _find_first(lambda step: model.row_at(step) >= count, None)
    else:
        steps = count_steps(model)
    return rows if steps is None else _limit_dataset(rows, model.row_at(steps))


def count_steps(model: MixtureFile) -> int | None:
    """Return the number of steps, or None if it depends on the data."""
    unit, number = model.horizon or ("", 0)
    if unit == "tokens" and model.pack:
        return model.step_at(int(number))
    return int(number) if unit == "steps" else None


def count_token_samples(mixture: Dataset, tokens: int, sizer: Sizer | None = None) -> int:
    """Return the number of samples of a mixture that hold `tokens` tokens, as a sizer counts them.

    The plan counts them if lengths are known; otherwise a measured mean length is used.
    """
    if not mixture.tree.lengths_known:
        return ceil(tokens / mean_length("the mixture", mixture.tree, sizer=sizer))
    return _find_tokens(mixture, mixture.compiled.builder.lengths.count_by(sizer), tokens)


def count_loss_samples(mixture: Dataset, tokens: int) -> int:
    """Return the number of samples of a mixture that hold `tokens` tokens that carry loss.

    Raises:
        ConfigError: The lengths or the masks of the samples are not known.
    """
    mean_loss_tokens("the mixture", mixture.tree, call="horizon: loss_tokens")
    return _find_tokens(mixture, mixture.compiled.builder.loss_lengths, tokens)


def _find_tokens(mixture: Dataset, lengths: Lengths, tokens: int) -> int:
    """Return the number of samples that hold so many tokens; all of a pass if it has fewer."""
    tokens_in = Metered(mixture.compiled.op, lengths).tokens
    return _find_first(lambda samples: tokens_in(samples) >= tokens, mixture.plan.size)


def _count_loss_rows(rows: Dataset, tokens: int) -> int:
    """Return the number of rows up to the one that completes so many tokens that carry loss.

    They are counted in whole documents; a document counts in the last row that holds a part of it.
    """
    reason = rows.tree.reason_not_indexed
    pack = None if reason is not None else top_pack(rows.compiled.op)
    below = find_pack(rows.tree)
    if pack is None or below is None:
        raise ConfigError(
            "horizon: loss_tokens needs rows that the plan knows, of one pack above all mixtures, and "
            f"{'its rows are not known ahead' if reason else 'the sources are packed below it'}; use "
            "known lengths (lengths:, or stored tokens) and concat_split or best_fit with overflow: "
            "split, or let the sources end (max_epochs), or count steps or tokens instead"
        )
    documents = count_loss_samples(Dataset(below.input), tokens)
    lengths = rows.compiled.builder.loss_lengths
    tokens_before = Metered(pack.input, lengths).tokens
    size = rows.plan.size
    row = _find_first(lambda row: pack.drawn(row) >= documents, size) - 1
    while size is None or row < size:  # packed together: the document may end in a later row
        first, drawn, layout = pack.rows_together(row)
        is_whole = np.zeros(len(drawn), np.bool_)
        ends = layout.stop == pack.lengths.of(drawn)[layout.item]
        is_whole[layout.item[ends | (pack.crops or pack.truncates)]] = True
        last_row = np.zeros(len(drawn), np.int64)
        row_of_piece = np.repeat(np.arange(len(layout)), np.diff(layout.bounds))
        np.maximum.at(last_row, layout.item, row_of_piece)
        by_row = np.zeros(len(layout), np.int64)
        np.add.at(by_row, last_row[is_whole], lengths.of(drawn)[is_whole])
        begun = pack.drawn(first)
        if len(layout.item) and layout.start[layout.item == layout.item.min()].min() > 0:
            begun -= 1  # the first document began in an earlier row
        reached = int(np.searchsorted(tokens_before(begun) + np.cumsum(by_row), tokens))
        if reached < len(layout):
            return first + reached + 1
        row = first + len(layout)
    return row


def _find_first(reaches: Callable[[int], bool], size: int | None) -> int:
    """Return the smallest number from 1 on that reaches something; at most `size`."""
    low, high = 0, 1
    while not reaches(high) and (size is None or high < size):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle, high)
    return high


def _limit_dataset(ds: Dataset, count: int) -> Dataset:
    """Limit a dataset to `count` items; return it as it is if it has no more.

    An unlimited dataset keeps a new order in every pass.
    """
    if count >= MAX_POSITION:
        raise ConfigError(
            f"the horizon is {count:,} samples, and positions are counted up to 2^60; shorten it"
        )
    indexed = ds.tree.reason_not_indexed is None
    if indexed and ds.compiled.size is not None and ds.compiled.size <= count:
        return ds
    return ds.limit(count)
