"""A mixture as JSON: all that its order depends on, so that a later process can go on with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ...errors import ConfigError, StateError
from ...schedule import Schedule
from ...types import Json
from .events import event_from_json
from .law import Gone
from .mixture import Mixture


def mixture_to_json(mixture: Mixture) -> dict[str, Json]:
    """Plain JSON; `mixture_from_json` reads it back, without the lengths that a clock goes by.

    >>> made = Mixture(("a", "b"), {"a": 3, "b": 1}, (None, 2), key=7)
    >>> mixture_from_json(mixture_to_json(made)) == made
    True
    """
    weights, caps = mixture.weights, mixture.max_epochs
    return {
        "names": list(mixture.names),
        "weights": dict(weights) if isinstance(weights, Mapping) else None,
        "schedule": weights.to_json() if isinstance(weights, Schedule) else None,
        "sizes": list(mixture.sizes),
        "block_size": mixture.block_size,
        "stop": mixture.stop,
        "max_epochs": dict(caps) if isinstance(caps, Mapping) else caps,
        "temperature": mixture.temperature,
        "key": mixture.key,
        "log": [event.to_json() for event in mixture.log],
        "lengths": None if mixture.lengths is None else list(mixture.lengths),
        "clock": mixture.meters is not None,
    }


def mixture_from_json(saved: Any) -> Mixture:
    """The mixture that was saved."""
    try:
        found: dict[str, Any] = dict(cast("Mapping[str, Any]", saved))
        weights, schedule, lengths, clock = (
            found.pop(name) for name in ("weights", "schedule", "lengths", "clock")
        )
        names = tuple(found.pop("names"))
        return Mixture(
            names,
            weights if schedule is None else Schedule.from_json(schedule),
            tuple(found.pop("sizes")),
            log=tuple(map(event_from_json, found.pop("log"))),
            lengths=None if lengths is None else tuple(lengths),
            meters=tuple(map(Gone, names)) if clock else None,
            **found,
        )
    except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
        raise StateError(
            f"a mixture in the state cannot be read ({error}); the state is damaged, load an "
            "earlier one"
        ) from error
