"""Validation of weights from users, and their conversion to plain numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, cast

import numpy as np

from ...errors import ConfigError
from .arguments import join_first, suggest_names
from .dtypes import MAX_EXACT_FLOAT_INT

_MAX_WEIGHT = 1e100  # sums of weights stay finite


def check_weights(weights: Mapping[str, float], where: str) -> None:
    """Raise `ConfigError` for weights that are missing, no numbers, negative, infinite or all 0."""
    if not weights:
        raise ConfigError(f"{where} has no weights: give {{name: weight, ...}}")
    for name, weight in weights.items():
        number = parse_number(weight)
        if isinstance(weight, str) or number is None or not isfinite(number) or number < 0:
            raise ConfigError(
                f"{where}: the weight of {name!r} is {weight!r}; it must be a finite number, 0 or "
                "more"
            )
        if number > _MAX_WEIGHT:
            raise ConfigError(
                f"{where}: the weight of {name!r} is {weight!r}, more than {_MAX_WEIGHT:g}; scale all "
                "weights"
            )
    if not any(weights.values()):
        raise ConfigError(
            f"{where}: all weights are 0 ({join_first(sorted(weights))}); give at least one source a "
            "weight"
        )


def convert_to_json_number(value: Any) -> Any:
    """Convert NumPy numbers, fractions and decimals to JSON numbers; return other values as is.

    >>> [convert_to_json_number(x) for x in (np.int64(2), np.float32(0.5), 2.0, "much")]
    [2, 0.5, 2, 'much']
    """
    if isinstance(value, np.integer):
        return int(cast("Any", value))
    if isinstance(value, np.floating) or not isinstance(value, str | int | float | None):
        number = parse_number(value)
        value = cast("Any", value) if number is None else number
    if isinstance(value, float) and value.is_integer() and abs(value) < MAX_EXACT_FLOAT_INT:
        return int(value)  # so that 2 and 2.0 are equal in a state
    return value


def sort_by_name(table: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a mapping to JSON numbers sorted by name, so that its order has no effect.

    >>> sort_by_name({"b": 2.0, "a": 0.5})
    {'a': 0.5, 'b': 2}
    """
    return {name: convert_to_json_number(table[name]) for name in sorted(table, key=str)}


def check_names(given: Iterable[str], names: Iterable[str], where: str) -> None:
    """Raise `ConfigError` for missing and unknown names, with a suggestion."""
    given, names = set(given), set(names)
    missing, unknown = sorted(names - given), sorted(given - names)
    parts = [
        f"{word} {join_first(group)}"
        for word, group in (("missing", missing), ("unknown", unknown))
        if group
    ]
    if parts:
        hint = suggest_names(unknown[0], missing or names) if unknown else ""
        raise ConfigError(
            f"{where} must name the same sources everywhere: {', '.join(parts)}{hint}"
        )


def parse_number(value: Any) -> float | None:
    """Convert a value to a float, or return `None`."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
