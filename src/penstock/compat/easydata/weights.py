"""Weights over the run: EasyData's names for `penstock.Schedule`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from ...errors import ConfigError
from ...schedule import Interpolation, Schedule, check_weights


def check_mapping(weights: object, location: str) -> None:
    """Raise if weights are not a mapping by name."""
    if not isinstance(weights, Mapping):
        raise ConfigError(
            f"{location}: the weights are a {type(weights).__name__}; give a mapping "
            "{name: weight, ...}"
        )


def check_sum(weights: Mapping[str, float], location: str) -> None:
    """Raise if weights do not sum to 1, as schedule points and mix stages require."""
    check_mapping(weights, location)
    check_weights(weights, location)
    total = fsum(weights.values())
    if abs(total - 1) > 1e-6:
        raise ConfigError(f"{location}: the weights sum to {total:.6g}, not to 1: {dict(weights)}")


@dataclass(frozen=True)
class WeightSchedulePoint:
    """Weights from a step on; `step` counts samples of the mixture, not training steps.

    Args:
        step: samples drawn before these weights apply.
        weights: weight by dataset, with sum 1.

    >>> WeightSchedulePoint(step=10_000, weights={"code": 0.5, "text": 0.5}).step
    10000
    """

    step: int
    weights: Mapping[str, float]

    def __post_init__(self) -> None:
        check_sum(self.weights, f"WeightSchedulePoint(step={self.step})")


class WeightScheduler:
    """Weights as a function of samples drawn; "step", "linear" or "cosine" between points.

    With batches of 256, `step=10_000` is reached at training step 39. To use training steps,
    multiply them by the samples of a step.

    Args:
        schedule: the points.
        interpolation: "step", "linear" or "cosine".

    >>> points = [WeightSchedulePoint(0, {"a": 0.2, "b": 0.8}), WeightSchedulePoint(10_000, {"a": 0.5, "b": 0.5})]
    >>> WeightScheduler(points, interpolation="linear").get_weights(5_000)
    {'a': 0.35, 'b': 0.65}
    """

    def __init__(
        self, schedule: Sequence[WeightSchedulePoint], interpolation: Interpolation = "step"
    ) -> None:
        self.schedule = Schedule([(point.step, point.weights) for point in schedule], interpolation)

    def get_weights(self, step: int) -> dict[str, float]:
        """Return the weights at a step, with sum 1.

        They are constant before the first point and after the last.

        Args:
            step: number of samples drawn.
        """
        return self.schedule.weights(step)

    @property
    def dataset_names(self) -> list[str]:
        """The names that every point weights."""
        return list(self.schedule.names)
