"""Changes of a mixture during a run. Their log is part of the mixture: replaying it repeats the
run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...errors import StateError
from ...schedule import Schedule, sort_by_name
from ...types import Json


@dataclass(frozen=True)
class SetWeights:
    """Other weights, or another schedule, from position `at` on.

    >>> event_from_json(SetWeights(10, {"a": 1.0}).to_json())
    SetWeights(at=10, weights={'a': 1})
    """

    at: int
    weights: Mapping[str, float] | Schedule

    def __post_init__(self) -> None:
        if not isinstance(self.weights, Schedule):
            object.__setattr__(self, "weights", sort_by_name(self.weights))

    def to_json(self) -> dict[str, Json]:
        """Plain JSON; `event_from_json` reads it back."""
        if isinstance(self.weights, Schedule):
            return {"event": "set_weights", "at": self.at, "schedule": self.weights.to_json()}
        return {"event": "set_weights", "at": self.at, "weights": dict(self.weights)}


@dataclass(frozen=True)
class Exhausted:
    """A source of unknown length gave its last sample: it is out from position `at` on, after
    `count` draws."""

    at: int
    source: str
    count: int

    def to_json(self) -> dict[str, Json]:
        """Plain JSON; `event_from_json` reads it back."""
        return {"event": "exhausted", "at": self.at, "source": self.source, "count": self.count}


@dataclass(frozen=True)
class Adopt:
    """A mixture that continues at position `at` of another one.

    `counts` are the draws of each source up to there, `surplus` those beyond its share.
    """

    at: int
    counts: Mapping[str, int]
    surplus: Mapping[str, float] = field(default_factory=dict[str, float])

    def to_json(self) -> dict[str, Json]:
        """Plain JSON; `event_from_json` reads it back."""
        return {
            "event": "adopt",
            "at": self.at,
            "counts": dict(self.counts),
            "surplus": dict(self.surplus),
        }


Event: TypeAlias = SetWeights | Exhausted | Adopt


def event_from_json(data: Any) -> Event:
    """The event that `to_json` wrote."""
    try:
        match data["event"]:
            case "set_weights" if "schedule" in data:
                return SetWeights(int(data["at"]), Schedule.from_json(data["schedule"]))
            case "set_weights":
                return SetWeights(int(data["at"]), dict(data["weights"]))
            case "exhausted":
                return Exhausted(int(data["at"]), str(data["source"]), int(data["count"]))
            case "adopt":
                return Adopt(
                    int(data["at"]),
                    {str(name): int(count) for name, count in data["counts"].items()},
                    {str(name): float(n) for name, n in data.get("surplus", {}).items()},
                )
            case other:
                raise StateError(
                    f"the state of a mixture has an unknown event {other!r}, perhaps from a newer "
                    "version; resume with the release that wrote it"
                )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(
            f"an event of a mixture cannot be read ({error!r}); the state is damaged, load an "
            "earlier one"
        ) from error
