"""The end of a run: the horizon of a mixture file in samples or rows of its dataset."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import ceil

import numpy as np

from ..dataset import Dataset
from ..engine.steps.mean_lengths import mean_length
from ..engine.steps.seek import Metered
from ..errors import ConfigError
from ..types import MAX_POSITION, Sizer
from .model import MixtureFile


def limit_samples(model: MixtureFile, mixture: Dataset) -> Dataset:
    """Limit the mixture to the horizon, if the horizon counts its samples.

    That is the case for samples, for epochs, and for tokens that are not packed.
    """
    unit, number = model.horizon or ("steps", 0)
    if unit == "samples":
        return _limit_dataset(mixture, int(number))
    if unit == "epochs":
        return _limit_dataset(mixture, count_pass_samples(model, [mixture]))
    if unit == "tokens" and not model.pack:
        return _limit_dataset(mixture, count_token_samples(mixture, int(number)))
    return mixture


def count_pass_samples(model: MixtureFile, datasets: Iterable[Dataset]) -> int:
    """Return the number of samples in the passes of the horizon, over all sources."""
    total = 0
    for ds in datasets:
        once = np.zeros(len(ds.plan.sources), np.int64)
        ds.compiled.op.once(once)
        total += int(once.sum())
    return int(Fraction(repr(model.horizon[1] if model.horizon else 0)) * total)


def limit_rows(model: MixtureFile, rows: Dataset) -> Dataset:
    """Limit the rows to be batched, if the horizon counts steps or packed tokens."""
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
    if not mixture.flow.lengths_known:
        return ceil(tokens / mean_length("the mixture", mixture.flow, sizer=sizer))
    lengths = mixture.compiled.builder.lengths.count_by(sizer)
    tokens_in = Metered(mixture.compiled.op, lengths).tokens
    low, high = 0, 1
    size = mixture.plan.size
    while tokens_in(high) < tokens and (size is None or high < size):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if tokens_in(middle) < tokens else (low, middle)
    return high


def _limit_dataset(ds: Dataset, count: int) -> Dataset:
    """Limit a dataset to `count` items; return it as it is if it has no more.

    An unlimited dataset keeps a new order in every pass.
    """
    if count >= MAX_POSITION:
        raise ConfigError(
            f"the horizon is {count:,} samples, and positions are counted up to 2^60; shorten it"
        )
    indexed = ds.flow.reason_not_indexed is None
    if indexed and ds.compiled.size is not None and ds.compiled.size <= count:
        return ds
    return ds.limit(count)
