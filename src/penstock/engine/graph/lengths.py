"""Tokens of a sample on average: from lengths that are known, however deep, or measured, once and
aloud."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sized
from dataclasses import replace
from math import fsum
from typing import Any, cast

import numpy as np

from ...errors import ConfigError
from ...schedule import Schedule
from ...types import is_source
from ..base.progress import Progress
from ..base.sizes import sum_lengths
from ..mixing.rules import Chain, Invertible, Turns, Weighted
from ..ops.mix import MixOp
from ..orders import FixedSet, Gap, Slice
from ..packing import Packing
from ..steps.function_step import FunctionStep
from ..steps.map import Map
from .build import Builder
from .ends import endless
from .indexed import counted_for, lengths_known, why_not
from .nodes import Batch, Flow, Hold, Mix, Read, Reorder, Without

_LOG = logging.getLogger("penstock")
_MEASURED = 256  # samples
_LONG_RUN = 1 << 40  # draws after which the shares of an endless mixture are close to their limits
_CHUNK = 1 << 16  # samples of a slice that are looked up together


def weighed(flow: Mix, rule: Weighted) -> Weighted:
    """The rule with the mean tokens of a sample of each input, where it needs them. Where every
    length is known, and none has no tokens at all, shares of tokens go by the clock.
    """
    if rule.unit != "tokens" and not (
        isinstance(rule.weights, Schedule) and rule.weights.unit == "tokens"
    ):
        return rule
    each = zip(flow.names, flow.flows, strict=True)
    lengths = tuple((name, mean_length(name, child, rule.seed)) for name, child in each)
    known = rule.unit == "tokens" and all(lengths_known(child) for child in flow.flows)
    clock = known and all(
        mean != 1 or known_mean(child) for (_, mean), child in zip(lengths, flow.flows, strict=True)
    )
    return replace(rule, lengths=lengths, clock=clock)


def mean_length(name: str, flow: Flow, seed: int = 0) -> float:
    """The mean tokens of a sample in a pass of a flow; measured on some of its samples where no
    lengths are known."""
    known = known_mean(flow)
    return known if known else max(1.0, _measured(name, flow, seed) if known is None else 0)


def known_mean(flow: Flow) -> float | None:
    """The mean tokens of a sample as far as lengths tell; None where only reading would."""
    match flow:
        case Read(source):
            lengths = source.lengths() if is_source(source) else None
            return (
                None if lengths is None or not len(lengths) else sum_lengths(lengths) / len(lengths)
            )
        case Map(_, Packing() as packing):
            return float(packing.length)
        case Map(Hold(Mix(partners, _, Turns()), Batch(n)), fn) if fn is tuple and n == len(
            partners
        ):
            return _sum_of_means(partners)
        case FunctionStep(below, keeps_lengths=True):
            return known_mean(below)
        case Map(below, fn) if counted_for(fn, below):
            return known_mean(below)
        case Reorder(below, FixedSet()):
            return _mean_of_fixed(flow) if lengths_known(flow) else None
        case Reorder(below, order):
            lost = isinstance(order, Without) or (isinstance(order, Gap) and not endless(below))
            return None if lost else known_mean(below)
        case Mix(_, _, Weighted() | Chain()) if why_not(flow) is None:
            return _mean_of_mixture(flow)
        case _:
            return None


def _sum_of_means(partners: tuple[Flow, ...]) -> float | None:
    """Of tuples: a zip ends with its shortest input."""
    sizes = [Builder(each).op(each).size if why_not(each) is None else 0 for each in partners]
    count = min((size for size in sizes if size is not None), default=None)
    means = list[float]()
    for each, size in zip(partners, sizes, strict=True):
        mean = known_mean(
            each if size == count or count is None else Reorder(each, Slice(0, count))
        )
        if mean is None:
            return None
        means.append(mean)
    return fsum(means)


def _mean_of_fixed(flow: Flow) -> float | None:
    """Of the rows that a slice or a share picks, one by one; None if there are none."""
    builder = Builder(flow)
    op, tokens = builder.op(flow), 0
    count = op.size or 0
    with Progress("add up lengths", count, "samples") as progress:
        for start in range(0, count, _CHUNK):
            places = np.arange(start, min(start + _CHUNK, count))
            rows = op.locate(places)
            for leaf in builder.leaves:
                source = leaf.source
                lengths = source.lengths() if is_source(source) else None
                mine = rows.index[rows.leaf == leaf.number]
                tokens += int(lengths[mine].sum()) if lengths is not None else 0
            progress.more(len(places))
    return tokens / count if count else None


def _mean_of_mixture(flow: Mix) -> float | None:
    """By how often each input is drawn from: in a pass, or in the long run."""
    op = Builder(flow).op(flow)
    assert isinstance(op, MixOp) and isinstance(op.schedule, Invertible)
    drawn = op.schedule.counts(_LONG_RUN if op.size is None else op.size).tolist()
    parts = list[float]()
    for child, count in zip(flow.flows, drawn, strict=True):
        mean = known_mean(child) if count else 0.0
        if mean is None:
            return None
        parts.append(count * mean)
    return fsum(parts) / max(1, sum(drawn))


def _measured(name: str, flow: Flow, seed: int) -> float:
    op = Builder(flow).op(flow, seed)
    size = op.size
    if size == 0:
        return 0.0
    many = _MEASURED if size is None else min(_MEASURED, size)
    places = np.arange(many) * ((size or many) // max(many, 1))
    values = op.values(op.locate(places))
    mean = sum(tokens_of(value, name) for value in values) / max(1, many)
    _LOG.warning(
        "mix: the lengths of %r are not known, so %d of its samples were read: %.1f tokens each "
        "on average; the states of the run store this figure",
        name,
        many,
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
            raise ConfigError(
                f"mix(unit='tokens'): samples of {name!r} hold no sequence to count; tokenise "
                "before mixing, or use unit='samples'"
            )
        return lengths[0]
    if isinstance(sample, tuple):
        parts = cast("tuple[Any, ...]", sample)
        if parts and all(isinstance(part, list | tuple | np.ndarray | Mapping) for part in parts):
            return sum(tokens_of(part, name) for part in parts)
    if isinstance(sample, list | tuple | np.ndarray | str | bytes):
        return len(sample)  # pyright: ignore[reportUnknownArgumentType]
    raise ConfigError(
        f"mix(unit='tokens'): a sample of {name!r} is a {type(sample).__name__}, which has no "
        "length; tokenise before mixing, or use unit='samples'"
    )
