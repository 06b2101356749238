"""Arguments of a mixture, checked and converted to numbers. Each error names the argument and the
remedy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Context, Decimal
from fractions import Fraction
from itertools import pairwise
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
from .law import TokenClock
from .timeline import STOPS, Rules, Stop

_LARGEST_BLOCK = 1 << 24

Weights = Mapping[str, float] | Schedule | None
Sizes = Sequence[int | None]


def rules_of(
    names: tuple[str, ...],
    sizes: Sizes,
    stop: Stop,
    block: int,
    key: int,
    caps: float | Mapping[str, float] | None,
    clock: TokenClock | None = None,
) -> Rules:
    """The rules of a mixture, from settings that are refused where they make no sense."""
    if not names:
        raise ConfigError("a mixture has no source; give at least one: mix({name: dataset, ...})")
    if len(set(names)) < len(names) or len(names) != len(sizes):
        raise ConfigError(
            "a mixture needs different names, and one size for each; give one of each for "
            f"{join_first(names)}, {len(sizes)} sizes"
        )
    if list(names) != sorted(names):
        raise ConfigError(
            "the names of a mixture are not sorted, and their order numbers the sources; sort "
            f"them: {join_first(names)}"
        )
    for name, size in zip(names, sizes, strict=True):
        if size is not None and size < 0:
            raise ConfigError(
                f"the size of {name!r} is {size}; give its length, or None if it is not known"
            )
    check_choice(stop, STOPS, "mix(stop={})")
    if not isinstance(block, (int, np.integer)) or not 1 <= block <= _LARGEST_BLOCK:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"block_size is {block!r}; it must be an integer from 1 to {_LARGEST_BLOCK}"
        )
    length = np.asarray(
        [MAX_POSITION if size is None else min(size, MAX_POSITION) for size in sizes], np.int64
    )
    cap = _caps(names, sizes, caps)
    shorter = np.minimum(length, cap)
    none = np.full(len(names), MAX_POSITION)
    most, goal = {
        "restart": (cap, none),
        "first_exhausted": (none, shorter),
        "all_exhausted": (shorter, none),
        "all_exhausted_oversample": (cap, shorter),
    }[stop]
    return Rules(names, stop, int(block), key, hash_names(names), most, goal, clock)


def spans_of(
    names: tuple[str, ...],
    sizes: Sizes,
    weights: Weights,
    temperature: float | None,
    lengths: Any,
    timed: bool = False,
) -> tuple[InterpolationSpan, ...]:
    """The weights of samples over the run; where a mixture is `timed` by a clock, those of
    tokens."""
    if temperature is not None and weights is not None:
        raise ConfigError(
            "temperature computes weights from sizes; give either temperature or weights, not both"
        )
    if isinstance(weights, Schedule):
        if weights.unit != "samples":
            raise ConfigError(
                f"the schedule counts {weights.unit}; convert it with "
                "schedule.in_samples(samples_per_step)"
            )
        check_names(weights.names, names, "the schedule")
        spans = weights.spans(names)
    else:
        if weights is None:
            weights = (
                dict.fromkeys(names, 1.0)
                if temperature is None
                else tempered(names, sizes, temperature, lengths)
            )
        check_weights(weights, "the mixture")
        check_names(weights, names, "the weights of a mixture")
        row = np.asarray([float(weights[name]) for name in names])
        spans = (InterpolationSpan(0, None, row, row, 0, 0, "step"),)
    for name, size, *opened in zip(
        names, sizes, *((s.first + s.last).tolist() for s in spans), strict=True
    ):
        if size == 0 and any(opened):
            raise ConfigError(
                f"the source {name!r} is empty; leave it out of the mixture, or give it weight 0"
            )
    if lengths is None or timed:
        return spans
    if len(lengths) != len(names) or not all(isfinite(x) and x > 0 for x in lengths):
        raise ConfigError(
            "tokens per sample must be numbers above 0, one for each source; correct "
            f"{list(lengths)}"
        )
    each = np.asarray(lengths, np.float64)
    return tuple(replace(span, first=span.first / each, last=span.last / each) for span in spans)


def check_log(log: tuple[Event, ...], names: tuple[str, ...]) -> None:
    """Refuse events out of order or with names that are not in the mixture."""
    at = [event.at for event in log]
    if (
        any(b < a for a, b in pairwise(at))
        or min(at, default=0) < 0
        or max(at, default=0) > MAX_POSITION
    ):
        raise ConfigError(
            "the events of a mixture must be in the order of their positions, from 0 to 2^60; "
            f"correct {at}"
        )
    for event in log:
        named = (
            [event.source]
            if isinstance(event, Exhausted)
            else event.counts
            if isinstance(event, Adopt)
            else ()
        )
        unknown = sorted(set(named) - set(names))
        if unknown:
            raise ConfigError(
                f"an event at position {event.at} names {join_first(unknown)}; name sources of the "
                f"mixture: {join_first(names)}"
            )
        if isinstance(event, Adopt) and not all(
            abs(n) < MAX_POSITION for n in event.surplus.values()
        ):
            raise ConfigError(
                f"an event at position {event.at} adopts a surplus that is not a number of "
                f"samples; correct {dict(event.surplus)}"
            )
        if isinstance(event, Adopt) and not all(
            0 <= count < MAX_POSITION for count in event.counts.values()
        ):
            raise ConfigError(
                f"an event at position {event.at} adopts negative counts, or counts over 2^60; "
                f"correct {event.counts}"
            )


def _caps(names: tuple[str, ...], sizes: Sizes, caps: float | Mapping[str, float] | None) -> Ints:
    """The largest number of draws of each source, `MAX_POSITION` where there is none."""
    asked = (
        dict(caps)
        if isinstance(caps, Mapping)
        else {}
        if caps is None
        else dict.fromkeys(names, caps)
    )
    if unknown := sorted(set(asked) - set(names)):
        hint = suggest_names(unknown[0], names) or f"; the mixture has {join_first(names)}"
        raise ConfigError(f"max_epochs names {join_first(unknown)}{hint}")
    out = np.full(len(names), MAX_POSITION)
    for i, (name, size) in enumerate(zip(names, sizes, strict=True)):
        cap = asked.get(name)
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


def tempered(
    names: tuple[str, ...], sizes: Sizes, temperature: float, lengths: Any = None
) -> dict[str, float]:
    """`size ** (1 / temperature)`, in tokens where `lengths` tells those of a sample. By decimal
    arithmetic: `pow` of the C library may differ between platforms.
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
    each = [1.0] * len(names) if lengths is None else [float(length) for length in lengths]
    logs = [
        context.divide(
            context.ln(context.multiply(Decimal(size or 1), Decimal(repr(length)))), root
        )
        for size, length in zip(sizes, each, strict=True)
    ]
    top = max(logs)  # relative to the largest, so that no temperature overflows
    return {
        name: float(context.exp(context.subtract(log, top)))
        for name, log in zip(names, logs, strict=True)
    }


def _exact(number: Any) -> Fraction:
    """The fraction that was written: 0.1 is one tenth."""
    return Fraction(number) if isinstance(number, Rational) else Fraction(repr(float(number)))


def _is_number(value: Any) -> bool:
    try:
        return isfinite(value)
    except (TypeError, OverflowError):
        return False
