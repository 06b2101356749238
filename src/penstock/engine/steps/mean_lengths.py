"""The mean number of tokens of a sample: from known lengths, or measured once, with a warning."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sized
from dataclasses import replace
from typing import Any, cast

import numpy as np

from ...errors import ConfigError, NoTokensError
from ...schedule import TokenUnit
from ...types import Sizer
from ..mixing.rules import Weighted
from ..streams.function_call import SampleFailure
from .mix import Mix
from .seek import Metered
from .step import Builder, Step

_LOG = logging.getLogger("penstock")
_MEASURED = 256  # samples
_LONG = 1 << 20  # samples that count as a pass of an input without an end


def weigh_tokens(mix: Mix, rule: Weighted) -> Weighted:
    """Return the rule with the mean tokens of a sample of each input, if it needs them.

    If every length is known, and no input is without tokens, shares of tokens go by the clock.
    """
    if not rule.token_units:
        return rule
    inputs = [*zip(mix.names, mix.inputs, strict=True)]

    def measure(unit: TokenUnit) -> tuple[tuple[str, float], ...]:
        if unit == "loss_tokens":
            return tuple((name, mean_loss_tokens(name, step, rule.seed)) for name, step in inputs)
        return tuple(
            (name, mean_length(name, step, rule.seed, rule.sizer)) for name, step in inputs
        )

    first, *others = rule.token_units
    lengths = measure(first)
    rule = replace(rule, point_lengths=measure(others[0]) if others else None)
    if rule.unit == "loss_tokens":
        return replace(rule, lengths=lengths, clock=True)
    known = rule.unit == "tokens" and all(child.lengths_known for child in mix.inputs)
    clock = known and all(
        mean != 1 or child.mean_tokens()
        for (_, mean), child in zip(lengths, mix.inputs, strict=True)
    )
    return replace(rule, lengths=lengths, clock=clock)


def mean_loss_tokens(
    name: str, step: Step, seed: int = 0, call: str = "mix(unit='loss_tokens')"
) -> float:
    """Return the mean number of tokens that carry loss in a sample of a pass."""
    if not step.lengths_known:
        raise ConfigError(
            f"{call}: the lengths of the samples of {name!r} are not known; read "
            "files of tokens and masks, ps.read(..., lengths='tokens'), which penstock tokenize "
            "writes, or count samples"
        )
    builder = Builder(step)
    op = builder.op(step, seed)
    size = _LONG if op.size is None else op.size
    tokens = Metered(op, builder.loss_lengths).tokens(size)
    if size and not tokens:
        raise ConfigError(f"{call}: no token of {name!r} carries loss; leave the input out")
    return tokens / size if size else 1.0


def mean_length(name: str, step: Step, seed: int = 0, sizer: Sizer | None = None) -> float:
    """Return the mean tokens of a sample in a pass, as a sizer counts them.

    It is measured on some samples if lengths are unknown.
    """
    known = step.mean_tokens()
    if known and sizer is not None:
        known = _count_mean(step, seed, sizer)
    return known if known else max(1.0, _measure(name, step, seed, sizer) if known is None else 0)


def _count_mean(step: Step, seed: int, sizer: Sizer) -> float:
    builder = Builder(step)
    op = builder.op(step, seed)
    size = _LONG if op.size is None else op.size
    tokens = Metered(op, builder.lengths.count_by(sizer)).tokens(size)
    return tokens / max(1, size)


def _measure(name: str, step: Step, seed: int, sizer: Sizer | None) -> float:
    op = Builder(step).op(step, seed)
    size = op.size
    if size == 0:
        return 0.0
    count = _MEASURED if size is None else min(_MEASURED, size)
    positions = np.arange(count) * ((size or count) // max(count, 1))
    try:
        values = op.values(op.locate(positions))
    except SampleFailure as failure:
        failure.cause.add_note(f"penstock: mix: while the lengths of {name!r} are measured")
        raise failure.cause from None
    lengths = np.asarray([tokens_of(value, name) for value in values], np.int64)
    mean = int((lengths if sizer is None else sizer.counted(lengths)).sum()) / max(1, count)
    _LOG.warning(
        "mix: the lengths of %r are not known, so %d of its samples were read: %.1f tokens each "
        "on average; the states of the run store this figure",
        name,
        count,
        mean,
    )
    return mean


def tokens_of(sample: Any, name: str) -> int:
    """Return the number of tokens of a sample: its length, or the length of its first sequence, or
    their sum in a tuple.
    """
    if isinstance(sample, Mapping):
        values: Iterable[Any] = cast("Mapping[str, Any]", sample).values()
        lengths = [
            len(cast("Sized", value))
            for value in values
            if isinstance(value, list | tuple | np.ndarray)
        ]
        if not lengths:
            raise NoTokensError(name, "holds no sequence to count")
        return lengths[0]
    if isinstance(sample, tuple):
        parts = cast("tuple[Any, ...]", sample)
        if parts and all(isinstance(part, list | tuple | np.ndarray | Mapping) for part in parts):
            return sum(tokens_of(part, name) for part in parts)
    if isinstance(sample, list | tuple | np.ndarray | str | bytes):
        return len(sample)  # pyright: ignore[reportUnknownArgumentType]
    raise NoTokensError(name, f"is a {type(sample).__name__}, which has no length")
