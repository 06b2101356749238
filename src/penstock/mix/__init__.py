"""Mixing: which source each position draws from, and which of its draws that is. Integer arithmetic, nothing stored.

A mixture is a plain interleave, exact at every prefix (`plan`, `segment`, `shape`), whose order is permuted inside blocks
(`blocks`). What happens during a run is an event in its log (`events`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from fractions import Fraction
from functools import cached_property
from math import floor, isfinite
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..schedule import Schedule, Span, check_names, check_weights
from ..types import Ints
from .blocks import Blocks
from .events import Adopt, Event, Exhausted, SetWeights, event_from_json
from .plan import Plan, Rules, State
from .segment import FAR
from .shape import Floats

__all__ = ["STOPS", "Adopt", "Event", "Exhausted", "Mixture", "SetWeights", "event_from_json"]

STOPS = ("restart", "first_exhausted", "all_exhausted", "all_exhausted_oversample")

_LARGEST_BLOCK = 1 << 24


@dataclass(frozen=True)
class Mixture:
    """Named sources drawn from by weight: after any number of draws each count is within 2 of what its weight asks.

    `sizes` are the lengths of one pass, None where endless or unknown; `weights` relative numbers, a `Schedule` or None (equal, or
    by `temperature`). Inside blocks of `block_size` the order is random, keyed by `key`. `lengths` are mean tokens per
    sample: weights then are shares of tokens. A source that drops out shares what it is ahead or behind with those that stay.

    >>> m = Mixture(("a", "b"), {"a": 3, "b": 1}, (None, 2), block_size=1)
    >>> source, k = m.at(np.arange(8))
    >>> source.tolist(), k.tolist()
    ([0, 1, 0, 0, 0, 1, 0, 0], [0, 0, 1, 2, 3, 1, 4, 5])
    >>> m.find(1, 250_000_000_000)
    1000000000001
    """

    names: tuple[str, ...]
    weights: Mapping[str, float] | Schedule | None
    sizes: tuple[int | None, ...]
    block_size: int = 1000
    stop: str = "restart"
    max_epochs: float | Mapping[str, float] | None = None
    temperature: float | None = None
    key: int = 0
    log: tuple[Event, ...] = ()
    lengths: tuple[float, ...] | None = None
    _eras: tuple[Blocks, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_shape(self)
        spans = _spans(self)
        for event in self.log:
            _check_event(event, self.names)
        _check_sizes(self)
        if any(b.at < a.at for a, b in zip(self.log, self.log[1:], strict=False)):
            raise ConfigError(f"the events of a mixture must be in order of their positions: {[e.at for e in self.log]}")
        assert spans

    # ------------------------------------------------------------ questions

    @property
    def size(self) -> int | None:
        """The number of draws in one pass of the mixture; None if it is endless, or depends on a length that is not known."""
        return self._last.plan.size()
