"""Scaling laws of losses: a bounded history of a loss, and the power law that fits it."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, log
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from ..types import Json

_MAX_POINTS = 256
"""Points of a history; at this number neighbours are merged."""
_POWERS = np.linspace(0.01, 0.8, 80)
"""Powers that are tried; the paper of ADO allows powers up to 0.8."""
_HUBER = 1e-3
"""Error of the logarithm of a loss from which it counts linearly, so that outliers count less."""

Vector = npt.NDArray[np.float64]


class ScalingLaw(NamedTuple):
    """A loss after `n` rounds: `floor + scale * n ** -power`.

    Args:
        floor: the loss that remains.
        scale: the reducible loss after one round.
        power: how fast it falls.

    >>> ScalingLaw(1.0, 2.0, 0.5).loss(4), ScalingLaw(1.0, 2.0, 0.5).speed(4)
    (2.0, 0.125)
    """

    floor: float
    scale: float
    power: float

    def loss(self, n: float) -> float:
        """Return the loss after `n` rounds.

        Args:
            n: number of rounds, from 1.
        """
        return self.floor + self.scale * n**-self.power

    def speed(self, n: float) -> float:
        """Return the learning speed: the decrease of the loss in a round after `n`.

        Args:
            n: number of rounds, from 1.
        """
        return self.power * self.scale * n ** (-self.power - 1)


class LossCurve:
    """The losses of a source over a run, as at most 256 points.

    A point is the mean of equally many losses, and of the logarithms of their rounds; of twice as
    many once the points are used up. So all losses have the same weight, and a state stays small.

    >>> curve = LossCurve()
    >>> for n in range(100, 3000):
    ...     curve.add(n, 1.5 + 4 * n**-0.3)
    >>> len(curve.points) < 256, [round(value, 2) for value in curve.fit()]
    (True, [1.5, 4.0, 0.3])
    """

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []
        self._each, self._open = 1, (0, 0.0, 0.0)

    def add(self, n: int, loss: float) -> None:
        """Add the loss of round `n`.

        Args:
            n: the round, from 1.
            loss: its loss; one that is not finite counts for nothing.
        """
        if not isfinite(loss):
            return
        count, rounds, losses = self._open
        self._open = count + 1, rounds + log(n), losses + loss
        if count + 1 < self._each:
            return
        count, rounds, losses = self._open
        self._open = 0, 0.0, 0.0
        self.points.append((rounds / count, losses / count))
        if len(self.points) == _MAX_POINTS:
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [((a + c) / 2, (b + d) / 2) for (a, b), (c, d) in pairs]
            self._each *= 2

    def fit(self) -> ScalingLaw | None:
        """Return the law that fits the losses; None for fewer than four points, or losses of 0.

        For a power the best floor and scale follow by least squares. Errors are those of logarithms,
        with the Huber loss of the paper. The same losses give the same law on every rank.
        """
        logs, losses = np.asarray(self.points, np.float64).reshape(-1, 2).T
        if len(losses) < 4 or losses.min() <= 0 or not np.isfinite(losses).all():
            return None
        powers, step = _POWERS, float(_POWERS[1] - _POWERS[0])
        best = (np.inf, ScalingLaw(float(losses.mean()), 0.0, float(powers[0])))
        for _ in range(4):  # a finer grid around the best power
            best = min(best, *(_fit_power(logs, losses, power) for power in powers.tolist()))
            middle = best[1].power
            powers = np.linspace(middle - step, middle + step, 17).clip(_POWERS[0], _POWERS[-1])
            step /= 8
        return best[1]

    def to_json(self) -> dict[str, Json]:
        """Return the points as JSON."""
        return {
            "points": [list(point) for point in self.points],
            "each": self._each,
            "open": list(self._open),
        }

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Self:
        """Return the curve that was saved.

        Args:
            saved: the return value of `to_json()`.
        """
        curve = cls()
        curve.points = [(float(n), float(loss)) for n, loss in saved["points"]]
        count, rounds, losses = saved["open"]
        curve._each, curve._open = int(saved["each"]), (int(count), float(rounds), float(losses))
        return curve


def _fit_power(logs: Vector, losses: Vector, power: float) -> tuple[float, ScalingLaw]:
    """Return the error and the law of a power."""
    x, weight = np.exp(-power * logs), losses**-2.0  # weighted errors are errors of logarithms
    law = ScalingLaw(0.0, 0.0, power)
    for _ in range(3):  # reweighted, so that large errors count linearly
        law = ScalingLaw(*_fit_line(x, losses, weight), power)
        error = np.abs(np.log((law.floor + law.scale * x) / losses))
        weight = losses**-2.0 / np.maximum(error / _HUBER, 1)
    error = np.abs(np.log((law.floor + law.scale * x) / losses))
    huber = np.where(error > _HUBER, _HUBER * (error - _HUBER / 2), error**2 / 2)
    return float(huber.sum()), law


def _fit_line(x: Vector, y: Vector, weight: Vector) -> tuple[float, float]:
    """Return floor and scale, both at least 0, of the line with the least weighted squares."""
    weight = weight / weight.sum()
    mean_x, mean_y = float(weight @ x), float(weight @ y)
    spread = float(weight @ (x - mean_x) ** 2)
    scale = float(weight @ ((x - mean_x) * (y - mean_y))) / spread if spread else 0.0
    if scale <= 0:
        return mean_y, 0.0
    if mean_y - scale * mean_x >= 0:
        return mean_y - scale * mean_x, scale
    return 0.0, float(weight @ (x * y)) / float(weight @ x**2)
