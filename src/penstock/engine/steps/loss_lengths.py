"""Tokens that carry loss, by sample of each source: their numbers, and the samples without any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from ...errors import ConfigError
from ...types import LOSS_MASKS, FileSource, Flags, HasLossCounts, Ints, LossCounts, Sizer
from ..base.seams import world
from ..base.sizes import DerivedLengths
from ..streams.function_call import Leaf
from .tokens import Lengths


def make_loss_lengths(sources: Sequence[Leaf], lengths: Lengths) -> Lengths:
    """Return the number of tokens that carry loss in each sample, where lengths are known.

    The first token of a sample is not predicted. Without masks, all others carry loss.

    Raises:
        ConfigError: if only reading the samples tells, or if labels are not those of tokens.
    """
    by_leaf, digests = list(lengths.by_leaf), list[str | None]()
    for source in sources:
        if not len(sizes := by_leaf[source.number]):
            continue  # empty, or of unknown lengths, which no mixture by this unit has
        counts = _count_loss(source, "mix(unit='loss_tokens')")
        known = counts is not None
        _require_token_masks(source, counts.masks if known else ())
        by_leaf[source.number] = counts.count if known else DerivedLengths(sizes, _count_predicted)
        digests.append(world.digests.digest_memory(counts.count) if known else None)
    return Lengths(by_leaf, f"loss tokens {digests}")


def _require_token_masks(source: Leaf, masks: Sequence[str]) -> None:
    """Raise if the samples have a mask or labels that are no list, such as the class of a text."""
    samples: Any = source.source
    if any(getattr(samples, name, None) is not None for name in ("counts", "counted")):
        return  # texts, whose tokens a function makes
    for name in [name for name in LOSS_MASKS if name not in masks]:
        column = samples.column_alone(name) if isinstance(samples, FileSource) else samples
        sample: Any = None if column is None else column.read(np.zeros(1, np.int64))[0]
        if isinstance(sample, Mapping) and np.ndim(cast("Any", sample).get(name, ())) != 1:
            raise ConfigError(
                f"mix(unit='loss_tokens'): {name!r} of {source.name!r} has no value for each "
                "token; rename the column, or leave it out with read(columns=)"
            )


def _count_predicted(sizes: Ints) -> Ints:
    return np.maximum(sizes - 1, 0)


def find_untrained(
    sources: Sequence[Leaf], lengths: Lengths, sizer: Sizer | None
) -> list[Flags | None]:
    """Return the samples of each source that a sizer leaves out; None for sources without any.

    Raises:
        ConfigError: if only reading the samples tells which carry loss.
    """
    if sizer is None or (rule := sizer.untrained) is None:
        return [None] * len(sources)
    left_out = list[Flags | None]()
    for source in sources:
        flags = None
        if (counts := _count_loss(source, "pack(untrained='skip')")) is not None:
            flags = rule.find_untrained(counts, np.asarray(lengths.by_leaf[source.number][:]))
        left_out.append(flags if flags is not None and flags.any() else None)
    return left_out


def _count_loss(source: Leaf, call: str) -> LossCounts | None:
    """Return the loss counts of a source; None if all of its tokens carry loss."""
    if not isinstance(source.source, HasLossCounts):
        raise ConfigError(
            f"{call}: the source {source.name!r} does not say which of its tokens carry loss; give "
            "it a method loss_counts(), see penstock.types.HasLossCounts"
        )
    try:
        return source.source.loss_counts()
    except ConfigError as error:
        raise ConfigError(f"{call}: {error}") from None
