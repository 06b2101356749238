"""Changes of a mixture during a run. Their log is part of the mixture: replaying it repeats the
run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ...errors import StateError
from ...schedule import Schedule, sort_by_name
from ...types import MAX_POSITION, Json


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


@dataclass(frozen=True)
class MadeUp:
    """The draws put in: `counts` of each source before position `at`, and from there on those of
    `draws`, positions with sources. `known` are draws before `at` that are still needed: position,
    source, and which of its draws.
    """

    at: int
    counts: Mapping[str, int]
    draws: tuple[tuple[int, str], ...]
    known: tuple[tuple[int, str, int], ...] = ()

    def to_json(self) -> dict[str, Json]:
        """Plain JSON; `event_from_json` reads it back."""
        draws, known = dict[str, list[Json]](), dict[str, list[Json]]()
        for position, name in self.draws:
            draws.setdefault(name, []).append(position)
        for position, name, k in self.known:
            known.setdefault(name, []).append([position, k])
        return {
            "event": "made_up",
            "at": self.at,
            "counts": dict(self.counts),
            "draws": draws,
            "known": known,
        }


Event: TypeAlias = SetWeights | Exhausted | Adopt | MadeUp


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
            case "made_up":
                return _made_up(data)
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


def _made_up(data: Any) -> MadeUp:
    counts = {str(name): _number(count) for name, count in data["counts"].items()}
    draws = sorted(
        (_number(place), str(name)) for name, places in data["draws"].items() for place in places
    )
    known = sorted(
        (_number(place), str(name), _number(k))
        for name, pairs in data["known"].items()
        for place, k in pairs
    )
    at, places, before = (
        _number(data["at"]),
        [place for place, _ in draws],
        [place for place, *_ in known],
    )
    if (
        len({*places, *before}) < len(places) + len(before)
        or any(p < at for p in places)
        or any(p >= at for p in before)
    ):
        raise StateError(
            "the made-up draws of a mixture are not in order; the state is damaged, load an "
            "earlier one"
        )
    if sum(counts.values()) > at:
        raise StateError(
            "a mixture has more made-up draws than draws; the state is damaged, load an earlier one"
        )
    return MadeUp(at, counts, tuple(draws), tuple(known))


def _number(saved: Any) -> int:
    if type(saved) is not int or not 0 <= saved < MAX_POSITION:
        raise StateError(
            f"a draw of a mixture in the state is {saved!r}; the state is damaged, load an "
            "earlier one"
        )
    return saved
