"""Tokens that carry loss, by sample of each source: their numbers, and the samples without any."""

from __future__ import annotations

import numpy as np

from ...errors import ConfigError
from ...types import Flags, HasLossCounts, LossCounts, Sizer
from ..streams.function_call import Leaf
from .step import Builder


def find_untrained(builder: Builder, sizer: Sizer | None) -> list[Flags | None]:
    """Return the samples of each source that a sizer leaves out; None for sources without any.

    Raises:
        ConfigError: if only reading the samples tells which carry loss.
    """
    if sizer is None or (rule := sizer.untrained) is None:
        return [None] * len(builder.leaves)
    left_out = list[Flags | None]()
    for leaf in builder.leaves:
        counts = count_loss(leaf, "pack(untrained='skip')")
        lengths = builder.lengths.by_leaf[leaf.number]
        flags = None if counts is None else rule.find_untrained(counts, np.asarray(lengths[:]))
        left_out.append(flags if flags is not None and flags.any() else None)
    return left_out


def count_loss(leaf: Leaf, call: str) -> LossCounts | None:
    """Return the loss counts of a source; None if all of its tokens carry loss.

    Raises:
        ConfigError: if only reading the samples tells.
    """
    if not isinstance(leaf.source, HasLossCounts):
        raise ConfigError(
            f"{call}: the source {leaf.name!r} does not say which of its tokens carry loss; give it "
            "a method loss_counts(), see penstock.types.HasLossCounts"
        )
    try:
        return leaf.source.loss_counts()
    except ConfigError as error:
        raise ConfigError(f"{call}: {error}") from None
