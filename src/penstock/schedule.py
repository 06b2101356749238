"""Weights over the run: points, and what holds between them. Arithmetic only; no libm, so equal on
every platform."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from math import fsum, isfinite
from operator import index
from typing import Any, Literal, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt

from .engine.base.hints import chosen, few, guided, near
from .engine.base.weights import by_name, check_names, check_weights
from .errors import ConfigError
from .types import Ints, Json

Floats = npt.NDArray[np.float64]

Interpolation: TypeAlias = Literal["step", "linear", "cosine"]
Counted: TypeAlias = Literal["samples", "tokens"]
Clock: TypeAlias = Literal[Counted, "steps"]

INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)
COUNTED: tuple[Counted, ...] = get_args(Counted)
UNITS: tuple[Clock, ...] = get_args(Clock)

_FURTHEST = 1 << 60  # steps are counted up to here

_HALF_PI = 1.5707963267948966
_SINE = [1.0]  # the Taylor series of sin(x)/x in x*x: 12 terms leave less than 1e-19 on [0, pi/2]
for _n in range(1, 12):
    _SINE.append(-_SINE[-1] / ((2 * _n) * (2 * _n + 1)))


@guided
@dataclass(frozen=True)
class Schedule:
    """Weights as a function of the step: points in any order, the last weights hold for ever after.

    Between two points `interpolation` is "step" (the earlier point's weights), "linear" or
    "cosine", or a list of one for each two neighbours; every point's weights are normalised first.
    `start` and `stop` name steps before and from which a source has weight 0. `step` counts samples
    of the mixture, tokens with `unit="tokens"`, or training steps with `unit="steps"`: then
    `in_samples` must convert it.

    Args:
        points: (step, {name: weight}) each, in any order, all with the same names.
        interpolation: "step", "linear" or "cosine"; or one of them for each two neighbours, in
            order.
        unit: what steps count: "samples", "tokens" or "steps".
        start: name -> the step before which it has weight 0.
        stop: name -> the step from which on it has weight 0.

    Raises:
        ConfigError: for points without weights or with different names, and where every weight
            would be 0.

    >>> s = Schedule([(0, {"code": 0.2, "text": 0.8}), (10_000, {"code": 1, "text": 1})], interpolation="linear")
    >>> s.weights(5_000)
    {'code': 0.35, 'text': 0.65}
    """

    points: Sequence[tuple[int, Mapping[str, float]]]
    interpolation: Interpolation | Sequence[Interpolation] = "step"
    unit: Clock = "samples"
    start: Mapping[str, int] | None = None
    stop: Mapping[str, int] | None = None

    def __post_init__(self) -> None:
        chosen(self.unit, UNITS, "Schedule(unit={})")
        points = [_point(point) for point in _points(self.points)]
        if not points:
            raise ConfigError(
                "a schedule needs at least one point: Schedule([(0, {name: weight, ...})])"
            )
        points.sort(key=lambda point: point[0])
        for (a, _), (b, _) in pairwise(points):
            if a == b:
                raise ConfigError(f"two points of the schedule are at step {a}: keep one of them")
        names = set(points[0][1])
        for step, weights in points:
            check_weights(weights, f"the schedule's point at step {step}")
            check_names(weights, names, f"the schedule's point at step {step}")
        object.__setattr__(self, "points", tuple(points))
        object.__setattr__(self, "interpolation", _laws(self.interpolation, len(points) - 1))
        for field in ("start", "stop"):
            given = cast("Mapping[str, int]", getattr(self, field) or {})
            for name, step in given.items():
                if name not in names:
                    hint = near(name, names) or f": {few(sorted(names))}"
                    raise ConfigError(f"{field} names {name!r}, which is not in the schedule{hint}")
                _step(step, f"{field} of {name!r}")
            object.__setattr__(self, field, by_name(given))
        self._check_never_empty()

    @classmethod
    def window(
        cls,
        names: Sequence[str],
        until: int,
        width: float = 0.5,
        *,
        sizes: Sequence[float] | None = None,
        unit: Clock = "samples",
    ) -> Schedule:
        """A curriculum: a window that moves evenly over sources, from the first to the last.

        The sources lie side by side, each as wide as it is large; what is in the window is drawn
        from by how much of it is. It covers the first ones at 0, the last ones from `until` on. Of
        sources that are parts of one by a column (difficulty, pass rate), it is a window over that
        column; finer parts make it finer.

        Args:
            names: the sources, in the order in which the run comes to them.
            until: the step where the window has arrived.
            width: the part of everything that it covers at a time.
            sizes: how large each source is, in rows; all alike without it.
            unit: what `until` counts: "samples", "tokens" or "steps".

        Raises:
            ConfigError: for a width that is not above 0 and at most 1, sizes that are not above 0,
                and names that are named twice.

        >>> s = Schedule.window(["easy", "medium", "hard"], 100, width=1 / 3)
        >>> [round(s.weights(step)["medium"], 2) for step in (0, 25, 50, 75, 100)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
        """
        wide = [1.0] * len(names) if sizes is None else list(sizes)
        if (
            not 0 < width <= 1
            or len(wide) != len(names)
            or not all(isfinite(one) and one > 0 for one in wide)
        ):
            raise ConfigError(
                f"Schedule.window(width={width}): above 0, at most 1; and a size above 0 for each "
                f"of {len(names)} names"
            )
        if len(set(names)) != len(names) or not names:
            raise ConfigError(
                "Schedule.window: every source is named once, and there is at least one"
            )
        _step(until, "until")
        total, covered = fsum(wide), width * fsum(wide)
        ends = [fsum(wide[:number]) for number in range(len(wide) + 1)]
        way = total - covered
        starts = {0.0, way} | {
            edge for end in ends for edge in (end, end - covered) if 0 < edge < way
        }
        points = {
            round(until * (start / way)) if way else 0: {
                name: max(0.0, min(high, start + covered) - max(low, start))
                for name, (low, high) in zip(names, pairwise(ends), strict=True)
            }
            for start in sorted(starts)
        }
        return cls(tuple(points.items()), "linear", unit)

    @property
    def names(self) -> tuple[str, ...]:
        """The sources, sorted."""
        return tuple(self.points[0][1])

    def weights(self, step: int) -> dict[str, float]:
        """The weights at a step, normalised to sum 1; before the first and after the last point the
        end ones.

        Args:
            step: in the schedule's unit.
        """
        before, after, t = self._around(step)
        first, last = self._exact[before], self._exact[after]
        law = self._law(before)
        eased = Fraction(0) if law == "step" else t
        if law == "cosine":
            eased = Fraction(float(ease(np.asarray([float(t)]))[0]))
        active = self._active(step, self.names)
        if not any(a for a, on in zip(first, active, strict=True) if on):
            first = last  # all rise from 0: the limit along the ramp
        at = {
            n: (a + (b - a) * eased) * on
            for n, a, b, on in zip(self.names, first, last, active, strict=True)
        }
        total = sum(at.values())
        return {n: float(w / total) for n, w in at.items()}

    def in_samples(self, samples_per_step: int) -> Schedule:
        """The same schedule in samples, for batches of so many samples: of all ranks together.

        Args:
            samples_per_step: the samples of a step, of all ranks together.

        Raises:
            ConfigError: for a number below 1.

        >>> Schedule([(0, {"a": 1}), (10, {"a": 2})], unit="steps").in_samples(256).points[1][0]
        2560
        """
        if samples_per_step < 1:
            raise ConfigError(f"samples_per_step must be at least 1, not {samples_per_step}")
        scaled = {
            f: {n: s * samples_per_step for n, s in getattr(self, f).items()}
            for f in ("start", "stop")
        }
        points = [(step * samples_per_step, weights) for step, weights in self.points]
        return replace(self, points=points, unit="samples", **scaled)

    def in_tokens(self, lengths: Mapping[str, float], by_tokens: bool) -> Schedule:
        """A schedule whose steps count tokens, in samples; `lengths` are the mean tokens of a
        sample of each source.

        `by_tokens` says that the weights are shares of tokens, not of samples. Between two points
        the mean of both ends counts.

        Args:
            lengths: name -> mean tokens of a sample.
            by_tokens: whether the weights are shares of tokens, not of samples.

        >>> points = [(0, {"a": 1}), (1_000, {"a": 2})]
        >>> Schedule(points, unit="tokens").in_tokens({"a": 10.0}, by_tokens=False).points[1][0]
        100
        """

        def tokens_per_sample(step: int) -> float:
            shares = {n: w / lengths[n] if by_tokens else w for n, w in self.weights(step).items()}
            return fsum(share * lengths[n] for n, share in shares.items()) / fsum(shares.values())

        knots = {
            0,
            *(step for step, _ in self.points),
            *(self.start or {}).values(),
            *(self.stop or {}).values(),
        }
        ramps = {a for a, _ in pairwise(sorted(knots)) if self._law(self._around(a)[0]) != "step"}
        for a, b in pairwise(sorted(knots)):
            if (
                a in ramps
            ):  # what is a straight line in tokens is a bent one in samples: followed in 64 pieces
                pieces = {a + (b - a) * i // 64 for i in range(64)}
                knots, ramps = knots | pieces, ramps | pieces
        samples, total = {0: 0}, 0.0
        for begin, end in pairwise(sorted(knots)):
            last = end if begin in ramps else end - 1
            total += (end - begin) * 2 / (tokens_per_sample(begin) + tokens_per_sample(last))
            samples[end] = int(total + 0.5)
        moved = {f: {n: samples[s] for n, s in getattr(self, f).items()} for f in ("start", "stop")}
        if not ramps:
            points = [(samples[step], weights) for step, weights in self.points]
            return replace(self, points=points, unit="samples", **moved)
        plain = replace(self, start=None, stop=None)
        bent, laws = dict[int, dict[str, float]](), dict[int, Interpolation]()
        for step in sorted(knots):
            if (
                (at := samples[step]) in bent and at - 1 not in bent and at
            ):  # a jump at the end of a ramp stays one
                bent[at - 1], laws[at - 1] = bent.pop(at), laws.pop(at)
            bent[at], laws[at] = plain.weights(step), "linear" if step in ramps else "step"
        order = sorted(bent)
        return Schedule(
            [(at, bent[at]) for at in order], [laws[at] for at in order[:-1]], "samples", **moved
        )

    def spans(self, names: Sequence[str]) -> tuple[Span, ...]:
        """The run cut where weights change their law: constant weights and ramps. Sources as in
        `names`.

        Args:
            names: the sources, in the order of the columns of the answer.
        """
        knots = {0, *(step for step, _ in self.points)}
        for given in (self.start or {}, self.stop or {}):
            knots.update(given.values())
        raw = np.asarray([[float(weights[name]) for name in names] for _, weights in self.points])
        unit = raw / np.asarray([[fsum(row)] for row in raw.tolist()])
        edges: list[int | None] = [*sorted(knots), None]
        out: list[Span] = []
        for begin, end in pairwise(edges):
            assert begin is not None
            before, after, _ = self._around(begin)
            law = self._law(before)
            on = np.asarray(self._active(begin, names), np.float64)
            if law == "step" or before == after or bool((unit[before] == unit[after]).all()):
                out.append(
                    Span(begin, end, raw[before] * on, raw[before] * on, begin, begin, "step")
                )
            else:
                ends = self.points[before][0], self.points[after][0]
                out.append(Span(begin, end, unit[before] * on, unit[after] * on, *ends, law))
        return tuple(out)

    def to_json(self) -> dict[str, Json]:
        """Plain JSON; `from_json` reads it back."""
        return {
            "points": [[step, dict(weights)] for step, weights in self.points],
            "interpolation": self.interpolation
            if isinstance(self.interpolation, str)
            else [*self.interpolation],
            "unit": self.unit,
            "start": dict(self.start or {}),
            "stop": dict(self.stop or {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Schedule:
        """The schedule that `to_json` wrote.

        Args:
            data: the mapping.

        Raises:
            ConfigError: as the schedule itself.
        """
        points = [(int(step), weights) for step, weights in data["points"]]
        return cls(points, data["interpolation"], data["unit"], data["start"], data["stop"])

    # ------------------------------------------------------------ inside

    @cached_property
    def _exact(self) -> list[list[Fraction]]:
        """Every point's weights, normalised, as exact fractions of what was written."""
        rows = [
            [Fraction(repr(float(weights[name]))) for name in self.names]
            for _, weights in self.points
        ]
        return [[w / total for w in row] for row in rows for total in [sum(row)]]

    def _law(self, before: int) -> Interpolation:
        """What holds after a point."""
        if isinstance(self.interpolation, str):
            return self.interpolation
        return self.interpolation[before] if before < len(self.interpolation) else "step"

    def _around(self, step: int) -> tuple[int, int, Fraction]:
        """The points before and after a step, and how far it is between them."""
        after = bisect_right(self.points, step, key=lambda point: point[0])
        if after in (0, len(self.points)):
            end = max(after - 1, 0)
            return end, end, Fraction(0)
        begin, end = self.points[after - 1][0], self.points[after][0]
        return after - 1, after, Fraction(step - begin, end - begin)

    def _active(self, step: int, names: Sequence[str]) -> list[bool]:
        start, stop = self.start or {}, self.stop or {}
        return [start.get(n, step) <= step and not stop.get(n, step + 1) <= step for n in names]

    def _check_never_empty(self) -> None:
        for span in self.spans(self.names):
            if not bool(((span.first > 0) | (span.last > 0)).any()):
                until = "on" if span.end is None else f"to step {span.end}"
                raise ConfigError(
                    f"from step {span.begin} {until} every source has weight 0: move a start or a "
                    "stop"
                )


@dataclass(frozen=True, eq=False)
class Span:
    """An interval `[begin, end)` of one law: constant weights, or a ramp from `first` at `origin`
    to `last` at `target`.
    """

    begin: int
    end: int | None
    first: Floats
    last: Floats
    origin: int
    target: int
    law: str

    @property
    def constant(self) -> bool:
        return self.law == "step"

    def over(self, active: npt.NDArray[np.bool_]) -> Span:
        """The same for some of the sources. Where all of these begin or end at 0 their shares do
        not move."""
        first, last = np.where(active, self.first, 0.0), np.where(active, self.last, 0.0)
        if self.constant or (first.any() and last.any()):
            return replace(self, first=first, last=last)
        return replace(self, first=first + last, last=first + last, law="step")

    def means(self, positions: Ints, blocks: Ints, block: int) -> Floats:
        """The mean weights of stairs: float64[stairs, sources], not normalised.

        A stair is `blocks` blocks of `block` positions from `positions` on; a block's weights are
        those at its first position.
        """
        length = float(self.target - self.origin)
        t = ((positions - self.origin).astype(np.float64) + 0.5 * block * (blocks - 1)) / length
        if self.law == "cosine":
            # The mean of cos over n steps is cos at the middle times sin(n*h)/(n*sin(h)), h half
            # the angle of a step.
            many, one = blocks.astype(np.float64), np.asarray([min(1.0, block / length)])
            shrink = np.where(blocks > 1, _sin(many * one) / (many * _sin(one)), 1.0)
            t = 0.5 + shrink * (ease(t) - 0.5)
        return self.first + (self.last - self.first) * t[:, None]


def ease(t: Floats) -> Floats:
    """`(1 - cos(pi t)) / 2` for t in [0, 1], to 1e-15, with + - * only."""
    late = t > 0.5
    s = _sin(np.where(late, 1.0 - t, t))
    return np.where(late, 1.0 - s * s, s * s)


def _sin(t: Floats) -> Floats:
    """`sin(pi/2 t)` for t in [0, 1]; beyond, for the little that a stair can exceed it."""
    x = t * _HALF_PI
    square, out = x * x, np.zeros_like(x)
    for c in reversed(_SINE):
        out = out * square + c
    return out * x


def _laws(given: Any, gaps: int) -> Interpolation | tuple[Interpolation, ...]:
    """One interpolation for all pairs of neighbours, or one for each, where they differ."""
    laws = list(cast("Sequence[Any]", given)) if isinstance(given, list | tuple) else [given]
    for law in laws:
        chosen(law, INTERPOLATIONS, "Schedule(interpolation={})")
    if isinstance(given, list | tuple) and len(laws) != gaps:
        raise ConfigError(
            f"Schedule(interpolation={laws}): {gaps + 1} points have {gaps} gaps between them; "
            "give one for each"
        )
    return tuple(laws) if len(set(laws)) > 1 else laws[0] if laws else "step"


def _points(points: Any) -> list[Any]:
    if (
        getattr(points, "ndim", 1) == 0
        or isinstance(points, Mapping)
        or not isinstance(points, Iterable)
    ):
        raise ConfigError(
            f"Schedule({points!r}): give its points, [(step, {{name: weight, ...}}), ...]"
        )
    return list(cast("Iterable[Any]", points))


def _point(point: Any) -> tuple[int, dict[str, float]]:
    match point:
        case (step, weights) if isinstance(weights, Mapping):
            return _step(step, "a point"), by_name(cast("Mapping[str, Any]", weights))
        case _:
            raise ConfigError(
                f"the point {point!r} of the schedule is no pair of a step and {{name: weight, "
                f"...}}"
            )


def _step(value: Any, what: str) -> int:
    try:
        step = index(value)
    except TypeError:
        step = -1
    if not 0 <= step < _FURTHEST:
        raise ConfigError(
            f"{what} of the schedule is at step {value!r}: a step is an integer, 0 or more, below "
            "2^60"
        )
    return step
