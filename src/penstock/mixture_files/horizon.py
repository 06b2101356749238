"""Where a run ends: the horizon of a mixture file, in what its dataset counts."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import ceil

import numpy as np

from ..dataset import Dataset
from ..engine.base.ints import FAR
from ..engine.graph.indexed import lengths_known
from ..engine.graph.lengths import mean_length
from ..errors import ConfigError
from .model import MixtureFile


def drawn(model: MixtureFile, mixture: Dataset) -> Dataset:
    """The mixture up to the horizon, where that is a number of its samples: also of passes, or of
    tokens that are not packed.
    """
    unit, number = model.horizon or ("steps", 0)
    if unit == "samples":
        return _first(mixture, int(number))
    if unit == "epochs":
        return _first(mixture, samples_of_passes(model, [mixture]))
    if unit == "tokens" and not model.pack:
        return _first(mixture, samples_of(mixture, int(number)))
    return mixture


def samples_of_passes(model: MixtureFile, datasets: Iterable[Dataset]) -> int:
    """The samples of as many passes over all sources as the horizon says."""
    total = 0
    for ds in datasets:
        once = np.zeros(len(ds.plan.sources), np.int64)
        ds.compiled.op.once(once)
        total += int(once.sum())
    return int(Fraction(repr(model.horizon[1] if model.horizon else 0)) * total)


def ended(model: MixtureFile, rows: Dataset) -> Dataset:
    """What is batched, up to the horizon, where that is a number of steps: also of tokens in packed
    rows."""
    steps = steps_of(model)
    return rows if steps is None else _first(rows, steps * model.rows_of_step)


def steps_of(model: MixtureFile) -> int | None:
    """The steps of the run, where the file tells them without its data."""
    unit, number = model.horizon or ("", 0)
    if unit == "tokens" and model.pack:
        return ceil(number / model.per_step[1])
    return int(number) if unit == "steps" else None


def samples_of(mixture: Dataset, tokens: int) -> int:
    """How many samples of a mixture hold so many tokens: as the plan counts them where lengths are
    known, else by a mean that is measured.
    """
    if not lengths_known(mixture.flow):
        return ceil(tokens / mean_length("the mixture", mixture.flow))

    def held(samples: int) -> int:
        return sum(mixture.plan.counts(samples, unit="tokens").values())

    low, high = 0, 1
    end = mixture.plan.size
    while held(high) < tokens and (end is None or high < end):
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if held(middle) < tokens else (low, middle)
    return high


def _first(ds: Dataset, count: int) -> Dataset:
    """So many items; where there are no more the dataset as it is, with an order of its own in
    every pass."""
    if count > FAR:
        raise ConfigError(f"the horizon comes to {count:,} samples: they are counted up to 2^62")
    if ds.compiled.op.indexed and ds.compiled.size is not None and ds.compiled.size <= count:
        return ds
    return ds.limit(count)
