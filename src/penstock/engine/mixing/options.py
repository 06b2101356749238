"""Options of a mixture, checked and converted to numbers. Each error names the option and the
remedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Context, Decimal
from fractions import Fraction
from math import floor, isfinite
from numbers import Rational
from typing import Any

import numpy as np

from ...arguments import check_choice, join_first, suggest_names
from ...errors import ConfigError
from ...schedule import InterpolationSpan, Schedule, check_names, check_weights
from ...types import MAX_POSITION, Ints
from ..base.random import hash_names
from .events import Adopt, Event, Exhausted
from .timeline import STOPS, Limits, Stop

_LARGEST_BLOCK = 1 << 24

Weights = Mapping[str, float] | Schedule | None
Sizes = Sequence[int | None]


def compute_limits(
    names: tuple[str, ...],
    sizes: Sizes,
    stop: Stop,
    block: int,
    key: int,
    max_epochs: float | Mapping[str, float] | None,
) -> Limits:
    """Return the limits of a mixture; raise `ConfigError` for an invalid option."""
    if not names:
        raise ConfigError("a mixture has no source; give at least one: mix({name: dataset, ...})")
    in_order = list(names) == sorted({*names}) and len(names) == len(sizes)
    if not in_order or any(size is not None and size < 0 for size in sizes):
        raise ConfigError(
            "a mixture needs sorted, distinct names, and for each a length or None; correct "
            f"{join_first(names)} and {join_first(sizes)}"
        )
    check_choice(stop, STOPS, "mix(stop={})")
    if not isinstance(block, (int, np.integer)) or not 1 <= block <= _LARGEST_BLOCK:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"block_size is {block!r}; it must be an integer from 1 to {_LARGEST_BLOCK}"
        )
    none = np.full(len(names), MAX_POSITION)
    lengths = [MAX_POSITION if size is None else min(size, MAX_POSITION) for size in sizes]
    cap = _compute_caps(names, sizes, max_epochs)
    shorter = np.minimum(np.asarray(lengths, np.int64), cap)
    most, goal = {
        "restart": (cap, none),
        "first_exhausted": (none, shorter),
        "all_exhausted": (shorter, none),
        "all_exhausted_oversample": (cap, shorter),
    }[stop]
    return Limits(names, stop, int(block), key, hash_names(names), most, goal)


def compute_spans(
    names: tuple[str, ...],
    sizes: Sizes,
    weights: Weights,
    temperature: float | None = None,
    lengths: Sequence[float] | None = None,
    by_clock: bool = False,
) -> tuple[InterpolationSpan, ...]:
    """Return the weights of samples over the run; those of tokens for a token clock.

    With mean `lengths` of the samples, the weights given are shares of tokens.
    """
    if temperature is not None and weights is not None:
        raise ConfigError(
            "temperature computes weights from sizes; give either temperature or weights, not both"
        )
    if isinstance(weights, Schedule):
        if weights.unit != "samples":
            if weights.unit == "fraction":
                remedy = "convert it with schedule.resolve_fractions(samples)"
            else:
                remedy = "store tokens, whose lengths are known, or use schedule.in_samples(n)"
            raise ConfigError(f"the schedule counts {weights.unit}, not samples; {remedy}")
        check_names(weights.names, names, "the schedule")
        spans = weights.spans(names)
    else:
        if temperature is not None:
            weights = compute_temperature_weights(names, sizes, temperature, lengths)
        elif weights is None:
            weights = dict.fromkeys(names, 1.0)
        check_weights(weights, "the mixture")
        check_names(weights, names, "the weights of a mixture")
        row = np.asarray([float(weights[name]) for name in names])
        spans = (InterpolationSpan(0, None, row, row, 0, 0, "step"),)
    opened = np.any([span.first + span.last > 0 for span in spans], axis=0)
    for name, size, has_weight in zip(names, sizes, opened, strict=True):
        if size == 0 and has_weight:
            raise ConfigError(
                f"the source {name!r} is empty; leave it out of the mixture, or give it weight 0"
            )
    if lengths is None or by_clock:
        return spans
    if len(lengths) != len(names) or not all(isfinite(x) and x > 0 for x in lengths):
        raise ConfigError(
            "tokens per sample must be numbers above 0, one for each source; correct "
            f"{list(lengths)}"
        )
    mean = np.asarray(lengths, np.float64)
    return tuple(replace(span, first=span.first / mean, last=span.last / mean) for span in spans)


def check_log(log: tuple[Event, ...], names: tuple[str, ...]) -> None:
    """Raise `ConfigError` for events out of order, or with unknown names or impossible numbers."""
    at = [event.at for event in log]
    if at != sorted(at) or not all(0 <= position <= MAX_POSITION for position in at):
        raise ConfigError(
            "the events of a mixture must be in the order of their positions, from 0 to 2^60; "
            f"correct {at}"
        )
    for event in log:
        counts, surplus = dict[str, int](), dict[str, float]()
        if isinstance(event, Exhausted):
            counts = {event.source: event.count}
        if isinstance(event, Adopt):
            counts, surplus = {**event.counts}, {**event.surplus}
        if unknown := sorted({*counts} - {*names}):
            raise ConfigError(
                f"an event at position {event.at} names {join_first(unknown)}; name sources of the "
                f"mixture: {join_first(names)}"
            )
        if not all(0 <= count < MAX_POSITION for count in counts.values()):
            raise ConfigError(
                f"an event at position {event.at} has negative counts, or counts over 2^60; "
                f"correct {counts}"
            )
        if not all(abs(n) < MAX_POSITION for n in surplus.values()):
            raise ConfigError(
                f"an event at position {event.at} has a surplus that is not a number of samples; "
                f"correct {surplus}"
            )


def _compute_caps(
    names: tuple[str, ...], sizes: Sizes, max_epochs: float | Mapping[str, float] | None
) -> Ints:
    """Return the largest number of draws of each source, `MAX_POSITION` for no limit."""
    caps = max_epochs if isinstance(max_epochs, Mapping) else dict.fromkeys(names, max_epochs)
    if unknown := sorted({*caps} - {*names}):
        hint = suggest_names(unknown[0], names) or f"; the mixture has {join_first(names)}"
        raise ConfigError(f"max_epochs names {join_first(unknown)}{hint}")
    out = np.full(len(names), MAX_POSITION)
    for i, (name, size) in enumerate(zip(names, sizes, strict=True)):
        cap = caps.get(name)
        if cap is None:
            continue
        if not _is_number(cap) or cap <= 0:
            raise ConfigError(
                f"max_epochs of {name!r} is {cap!r}; give a number above 0, or leave it out for "
                "no limit"
            )
        if size:
            out[i] = min(MAX_POSITION, floor(_exact(cap) * size))
            if out[i] == 0:
                raise ConfigError(
                    f"max_epochs={cap} of {name!r} ({size} samples) is less than one sample; "
                    "raise it, or give the source weight 0"
                )
    return out


def compute_temperature_weights(
    names: tuple[str, ...], sizes: Sizes, temperature: float, lengths: Any = None
) -> dict[str, float]:
    """Return `size ** (1 / temperature)` by name, in tokens if mean `lengths` are given.

    Decimal arithmetic, because `pow` of the C library may differ between platforms.
    """
    if not _is_number(temperature) or temperature <= 0:
        raise ConfigError(
            f"temperature is {temperature!r}; give a number above 0 (1: proportional to size)"
        )
    if unknown := [name for name, size in zip(names, sizes, strict=True) if size is None]:
        raise ConfigError(
            f"temperature needs the sizes of all sources, and the sizes of {join_first(unknown)} are not "
            "known; give weights instead"
        )
    if empty := [name for name, size in zip(names, sizes, strict=True) if size == 0]:
        raise ConfigError(
            f"the sources {join_first(empty)} are empty; leave them out of the mixture"
        )
    context, root = Context(prec=25), Decimal(repr(float(temperature)))
    logs = list[Decimal]()
    for size, length in zip(sizes, [1.0] * len(names) if lengths is None else lengths, strict=True):
        tokens = context.multiply(Decimal(size or 1), Decimal(repr(float(length))))
        logs.append(context.divide(context.ln(tokens), root))
    largest = max(logs)  # relative to the largest, so that no temperature overflows
    powers = (float(context.exp(context.subtract(log, largest))) for log in logs)
    return dict(zip(names, powers, strict=True))


def _exact(number: Any) -> Fraction:
    """Return the fraction that was written: 0.1 is one tenth."""
    return Fraction(number) if isinstance(number, Rational) else Fraction(repr(float(number)))


def _is_number(value: Any) -> bool:
    try:
        return isfinite(value)
    except (TypeError, OverflowError):
        return False
