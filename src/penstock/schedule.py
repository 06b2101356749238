"""Schedules over a run, of mixture weights or of a number: points, and interpolation between them.

Only basic arithmetic and no libm, so that weights are equal on every platform.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from itertools import pairwise
from math import ceil, fsum, isfinite, lcm
from operator import index
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

import numpy as np
import numpy.typing as npt

from .arguments import check_choice, join_first, suggest_names, validate_arguments
from .errors import ConfigError
from .types import MAX_EXACT_FLOAT_INT, MAX_POSITION, Ints, Json

Floats = npt.NDArray[np.float64]

Interpolation: TypeAlias = Literal["step", "linear", "cosine"]
TokenUnit: TypeAlias = Literal["tokens", "loss_tokens"]
CountedUnit: TypeAlias = Literal["samples", TokenUnit]
RunUnit: TypeAlias = Literal[CountedUnit, "steps"]
ScheduleUnit: TypeAlias = Literal[RunUnit, "fraction"]

INTERPOLATIONS: tuple[Interpolation, ...] = get_args(Interpolation)
TOKEN_UNITS: tuple[TokenUnit, ...] = get_args(TokenUnit)
COUNTED_UNITS: tuple[CountedUnit, ...] = get_args(CountedUnit)
RUN_UNITS: tuple[RunUnit, ...] = get_args(RunUnit)
UNITS: tuple[ScheduleUnit, ...] = get_args(ScheduleUnit)

_NUMBER = ""  # the name of the number in the points of a schedule of numbers

_HALF_PI = 1.5707963267948966
_SINE_COEFFICIENTS = [
    1.0
]  # the Taylor series of sin(x)/x in x*x: 12 terms leave less than 1e-19 on [0, pi/2]
for _n in range(1, 12):
    _SINE_COEFFICIENTS.append(-_SINE_COEFFICIENTS[-1] / ((2 * _n) * (2 * _n + 1)))


@validate_arguments
@dataclass(frozen=True)
class Schedule:
    """Mixture weights, or a number, as a function of the step; the last ones apply for ever.

    The weights of every point are normalised before interpolation. A schedule of weights with
    `unit="steps"` counts training steps, and must be converted by `in_samples`; one with
    `unit="fraction"` by `resolve_fractions`. A schedule of numbers, such as row lengths or batch
    sizes, goes to `pack`, `batch` or `Loader`.

    Args:
        points: pairs (step, {name: weight}), in any order, all with the same names; or pairs (step,
            number); or a mapping of step to one of these.
        interpolation: "step" (the weights of the earlier point), "linear" or "cosine"; or a list
            with one of them per interval between neighbouring points.
        unit: unit of steps: "samples" of the mixture, "tokens", "loss_tokens" (those that carry
            loss), training "steps", or "fraction" of a run that ends, from 0 to 1.
        start: name -> step before which the source has weight 0.
        stop: name -> step from which the source has weight 0.

    Raises:
        ConfigError: if points have no weights or different names, or if all weights are 0 at a
            step.

    >>> s = Schedule([(0, {"code": 0.2, "text": 0.8}), (10_000, {"code": 1, "text": 1})], interpolation="linear")
    >>> s.weights(5_000)
    {'code': 0.35, 'text': 0.65}
    >>> Schedule({0: 512, 10_000: 8_192}, unit="steps").numbers
    ((0, 512), (10000, 8192))
    """

    points: Sequence[tuple[int, Mapping[str, float]]]
    interpolation: Interpolation | Sequence[Interpolation] = "step"
    unit: ScheduleUnit = "samples"
    start: Mapping[str, int] | None = None
    stop: Mapping[str, int] | None = None

    if TYPE_CHECKING:

        def __init__(
            self,
            points: Iterable[tuple[float, Mapping[str, float] | float]]
            | Mapping[int, Mapping[str, float]]
            | Mapping[int, int]
            | Mapping[int, float]
            | Mapping[float, Mapping[str, float]]
            | Mapping[float, int],
            interpolation: Interpolation | Sequence[Interpolation] = "step",
            unit: ScheduleUnit = "samples",
            start: Mapping[str, float] | None = None,
            stop: Mapping[str, float] | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        check_choice(self.unit, UNITS, "Schedule(unit={})")
        points = [_parse_point(point, self.unit) for point in _list_points(self.points)]
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
            where = f"the schedule's point at step {step}"
            if (_NUMBER in weights) != (_NUMBER in names):
                raise ConfigError(
                    f"{where} has {'a number' if _NUMBER in weights else 'weights'}, unlike the "
                    "first one; give every point a number, or every point weights"
                )
            if _NUMBER in weights:
                _check_number(weights[_NUMBER], where)
            else:
                check_weights(weights, where)
                check_names(weights, names, where)
        object.__setattr__(self, "points", tuple(points))
        intervals = len(points) - 1
        object.__setattr__(
            self, "interpolation", _check_interpolations(self.interpolation, intervals)
        )
        for field in ("start", "stop"):
            limits = cast("Mapping[str, int]", getattr(self, field) or {})
            for name, step in limits.items():
                if name not in names:
                    hint = suggest_names(name, names) or f": {join_first(sorted(names))}"
                    raise ConfigError(f"{field} names {name!r}, which is not in the schedule{hint}")
                _check_step(step, f"{field} of {name!r}", self.unit)
            object.__setattr__(self, field, sort_by_name(limits))
        self._check_positive_weights()

    @classmethod
    def window(
        cls,
        names: Sequence[str],
        until: int,
        width: float = 0.5,
        *,
        sizes: Sequence[float] | None = None,
        unit: ScheduleUnit = "samples",
    ) -> Schedule:
        """Create a curriculum: a window that moves evenly over sources, from first to last.

        The sources are laid out on a line, each with its size. The weight of a source is the size
        of its part in the window. The window starts at the first sources, and stays at the last
        ones from `until`. If the sources divide a data set by a column (difficulty, pass rate), the
        window moves over that column.

        Args:
            names: the sources, in the order of the curriculum.
            until: step at which the window reaches the end.
            width: width of the window, as a share of all sources.
            sizes: size of each source, in rows. Default: equal sizes.
            unit: unit of `until`: "samples", "tokens", "loss_tokens" or "steps".

        Returns:
            The schedule, with linear interpolation.

        Raises:
            ConfigError: if `width` is not above 0 and at most 1, if a size is not above 0, or if a
                name occurs twice.

        >>> s = Schedule.window(["easy", "medium", "hard"], 100, width=1 / 3)
        >>> [round(s.weights(step)["medium"], 2) for step in (0, 25, 50, 75, 100)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
        """
        widths = [1.0] * len(names) if sizes is None else list(sizes)
        if (
            not 0 < width <= 1
            or len(widths) != len(names)
            or not all(isfinite(size) and size > 0 for size in widths)
        ):
            raise ConfigError(
                f"Schedule.window(width={width}): give a width above 0 and at most 1, and a size "
                f"above 0 for each of {len(names)} names"
            )
        if len(set(names)) != len(names) or not names:
            raise ConfigError("Schedule.window: name at least one source, and each source once")
        _check_step(until, "until")
        total, covered = fsum(widths), width * fsum(widths)
        ends = [fsum(widths[:number]) for number in range(len(widths) + 1)]
        distance = total - covered
        starts = {0.0, distance} | {
            edge for end in ends for edge in (end, end - covered) if 0 < edge < distance
        }
        points = {
            round(until * (start / distance)) if distance else 0: {
                name: max(0.0, min(high, start + covered) - max(low, start))
                for name, (low, high) in zip(names, pairwise(ends), strict=True)
            }
            for start in sorted(starts)
        }
        return cls(tuple(points.items()), "linear", unit)

    @property
    def numbers(self) -> tuple[tuple[int, float], ...] | None:
        """The points of a schedule of numbers; None for one of weights."""
        if self.names != (_NUMBER,):
            return None
        return tuple((step, values[_NUMBER]) for step, values in self.points)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the sources, sorted."""
        return tuple(self.points[0][1])

    def weights(self, step: float) -> dict[str, float]:
        """Return the weights at a step, normalised to sum 1.

        The first point applies before it, and the last one after it.

        Args:
            step: step in the schedule's unit.
        """
        before, after, t = self._around(step)
        (first, first_total), (last, last_total) = self._exact[before], self._exact[after]
        interpolation = self._interpolation_after(before)
        eased = Fraction(0) if interpolation == "step" else t
        if interpolation == "cosine":
            eased = Fraction(float(compute_cosine_ease(np.asarray([float(t)]))[0]))
        active = self._active(step, self.names)
        if not any(a for a, on in zip(first, active, strict=True) if on):
            first, first_total = last, last_total  # all rise from 0: the limit along the ramp
        p, q = eased.as_integer_ratio()
        begin, end = last_total * (q - p), first_total * p
        weights = {
            n: (a * begin + b * end) * on
            for n, a, b, on in zip(self.names, first, last, active, strict=True)
        }
        total = sum(weights.values())
        return {n: w / total for n, w in weights.items()}

    def in_samples(self, samples_per_step: int) -> Schedule:
        """Convert a schedule from training steps to samples.

        Args:
            samples_per_step: samples of all ranks together in a step.

        Raises:
            ConfigError: if `samples_per_step` is below 1.

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

    def resolve_fractions(self, length: int, unit: CountedUnit = "samples") -> Schedule:
        """Convert a schedule from fractions of a run to samples or tokens.

        Args:
            length: samples or tokens of the run.
            unit: what `length` counts.

        Raises:
            ConfigError: if `length` is below 1, or the schedule has another unit.

        >>> Schedule([(0, {"a": 1}), (0.9, {"a": 2})], unit="fraction").resolve_fractions(1_000).points[1][0]
        900
        """
        if self.unit != "fraction" or length < 1:
            raise ConfigError(
                f"resolve_fractions({length}): give the length of a run, at least 1, to a schedule "
                f"with unit='fraction', not {self.unit!r}"
            )
        points = {scale_fraction(at, length): weights for at, weights in self.points}
        start, stop = (
            {name: scale_fraction(at, length) for name, at in (limits or {}).items()}
            for limits in (self.start, self.stop)
        )
        return replace(self, points=tuple(points.items()), unit=unit, start=start, stop=stop)

    def in_tokens(
        self,
        lengths: Mapping[str, float],
        by_tokens: bool,
        drawn: tuple[int, int] | None = None,
        weighed: Mapping[str, float] | None = None,
    ) -> Schedule:
        """Convert a schedule from tokens to samples.

        Between two points, the tokens of a sample are the mean of both ends.

        Args:
            lengths: name -> mean number of tokens of a sample.
            by_tokens: whether the weights are shares of tokens, not of samples.
            drawn: the samples and the tokens that a run drew by other weights, if the schedule
                begins behind them. Its later points lie that many tokens behind.
            weighed: the means in the unit of the weights, if these count other tokens.

        >>> points = [(0, {"a": 1}), (1_000, {"a": 2})]
        >>> Schedule(points, unit="tokens").in_tokens({"a": 10.0}, by_tokens=False).points[1][0]
        100
        """

        samples, ramps = self._place_knots(lengths, by_tokens, weighed, (drawn or ())[1:])
        if drawn is not None:
            return self._continue(drawn, samples, ramps)
        moved = {f: {n: samples[s] for n, s in getattr(self, f).items()} for f in ("start", "stop")}
        if not ramps:
            points = [(samples[step], weights) for step, weights in self.points]
            return replace(self, points=points, unit="samples", **moved)
        plain = replace(self, start=None, stop=None)
        curve, laws = dict[int, dict[str, float]](), dict[int, Interpolation]()
        for step in sorted(samples):
            at = samples[step]
            if at in curve and at - 1 not in curve and at:
                # Keep a jump at the end of a ramp.
                curve[at - 1], laws[at - 1] = curve.pop(at), laws.pop(at)
            curve[at], laws[at] = plain.weights(step), "linear" if step in ramps else "step"
        order = sorted(curve)
        return Schedule(
            [(at, curve[at]) for at in order], [laws[at] for at in order[:-1]], "samples", **moved
        )

    def _place_knots(
        self,
        lengths: Mapping[str, float],
        by_tokens: bool,
        weighed: Mapping[str, float] | None,
        more: Sequence[int] = (),
    ) -> tuple[dict[int, int], set[int]]:
        """Return the samples before each point and limit, and before `more`; and where ramps begin."""
        means = weighed or lengths

        @cache  # each step ends one piece and begins the next
        def tokens_per_sample(step: int) -> float:
            shares = {n: w / means[n] if by_tokens else w for n, w in self.weights(step).items()}
            return fsum(share * lengths[n] for n, share in shares.items()) / fsum(shares.values())

        knots = {
            0,
            *(step for step, _ in self.points),
            *(self.start or {}).values(),
            *(self.stop or {}).values(),
            *more,
        }
        ramps = {
            a
            for a, _ in pairwise(sorted(knots))
            if self._interpolation_after(self._around(a)[0]) != "step"
        }
        for a, b in pairwise(sorted(knots)):
            if a in ramps:  # linear in tokens is a curve in samples: approximated by 64 pieces
                pieces = {a + (b - a) * i // 64 for i in range(64)}
                knots, ramps = knots | pieces, ramps | pieces
        samples, total = {0: 0}, 0.0
        for begin, end in pairwise(sorted(knots)):
            last = end if begin in ramps else end - 1
            total += (end - begin) * 2 / (tokens_per_sample(begin) + tokens_per_sample(last))
            samples[end] = int(total + 0.5)
        return samples, ramps

    def _continue(
        self, drawn: tuple[int, int], samples: Mapping[int, int], ramps: Collection[int]
    ) -> Schedule:
        """Return the schedule behind the samples and tokens drawn, given the samples at its knots."""
        at, tokens = drawn
        plain = replace(self, start=None, stop=None)
        places = {
            step: at + place - samples[tokens] if step > tokens else 0
            for step, place in samples.items()
        } | {tokens: at}
        curve = dict[int, tuple[dict[str, float], Interpolation]]()
        for step in sorted(step for step in samples if step >= tokens):
            place = places[step]
            if place in curve and place - 1 not in curve and place > at:
                curve[place - 1] = curve.pop(place)  # keep a jump at the end of a ramp
            curve[place] = plain.weights(step), "linear" if step in ramps else "step"
        if at:
            curve[0] = plain.weights(tokens), "step"
        start, stop = (
            {name: places[step] if step > tokens else 0 for name, step in (limits or {}).items()}
            for limits in (self.start, self.stop)
        )
        order = sorted(curve)
        points = [(place, curve[place][0]) for place in order]
        return Schedule(points, [curve[place][1] for place in order[:-1]], "samples", start, stop)

    def spans(self, names: Sequence[str]) -> tuple[InterpolationSpan, ...]:
        """Divide the run into spans of constant weights and ramps.

        Args:
            names: the sources, in the order of the columns of the spans.

        Returns:
            Adjacent spans from step 0 on; the last one has no end. Each edge is a point of the
            schedule, or a step at which a source starts or stops. Rows of constant spans have the
            weights as given, rows of ramps normalised ones, as a ramp interpolates shares.
        """
        knots = {0, *(step for step, _ in self.points)}
        for limits in (self.start or {}, self.stop or {}):
            knots.update(limits.values())
        raw = np.asarray([[float(weights[name]) for name in names] for _, weights in self.points])
        unit = raw / np.asarray([[fsum(row)] for row in raw.tolist()])
        edges: list[int | None] = [*sorted(knots), None]
        out: list[InterpolationSpan] = []
        for begin, end in pairwise(edges):
            assert begin is not None
            before, after, _ = self._around(begin)
            interpolation = self._interpolation_after(before)
            on = np.asarray(self._active(begin, names), np.float64)
            if (
                interpolation == "step"
                or before == after
                or bool((unit[before] == unit[after]).all())
            ):
                out.append(
                    InterpolationSpan(
                        begin, end, raw[before] * on, raw[before] * on, begin, begin, "step"
                    )
                )
            else:
                ends = self.points[before][0], self.points[after][0]
                out.append(
                    InterpolationSpan(
                        begin, end, unit[before] * on, unit[after] * on, *ends, interpolation
                    )
                )
        return tuple(out)

    def to_json(self) -> dict[str, Json]:
        """Return the schedule as plain JSON, for `from_json`."""
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
        """Create the schedule from the JSON of `to_json`.

        Args:
            data: the result of `to_json`.

        Raises:
            ConfigError: if the data is not the JSON of a schedule, or the schedule is invalid.
        """
        try:
            place: Callable[[Any], Any] = float if data["unit"] == "fraction" else int
            points = [(place(step), dict(weights)) for step, weights in data["points"]]
            start, stop = dict(data["start"]), dict(data["stop"])
            return cls(points, data["interpolation"], data["unit"], start, stop)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"Schedule.from_json: {type(data).__name__} is not the JSON of a schedule "
                f"({error!r}); give the result of to_json()"
            ) from error

    # ------------------------------------------------------------ inside

    @cached_property
    def _exact(self) -> list[tuple[list[int], int]]:
        """The decimals in `points` as integers in the same proportions, and the sums of these."""
        rows = list[tuple[list[int], int]]()
        for _, weights in self.points:
            row = [Fraction(repr(float(weights[name]))) for name in self.names]
            scale = lcm(*(w.denominator for w in row))
            whole = [w.numerator * (scale // w.denominator) for w in row]
            rows.append((whole, sum(whole)))
        return rows

    def _interpolation_after(self, before: int) -> Interpolation:
        """Return the interpolation between a point and the next one."""
        if isinstance(self.interpolation, str):
            return self.interpolation
        return self.interpolation[before] if before < len(self.interpolation) else "step"

    def _around(self, step: float) -> tuple[int, int, Fraction]:
        """Return the points before and after a step, and its relative distance between them."""
        after = bisect_right(self.points, step, key=lambda point: point[0])
        if after in (0, len(self.points)):
            end = max(after - 1, 0)
            return end, end, Fraction(0)
        begin, end = self.points[after - 1][0], self.points[after][0]
        return after - 1, after, Fraction(step - begin) / Fraction(end - begin)

    def _active(self, step: float, names: Sequence[str]) -> list[bool]:
        start, stop = self.start or {}, self.stop or {}
        return [start.get(n, step) <= step and not stop.get(n, step + 1) <= step for n in names]

    def _check_positive_weights(self) -> None:
        for span in self.spans(self.names):
            if not bool(((span.first > 0) | (span.last > 0)).any()):
                until = "on" if span.end is None else f"to step {span.end}"
                raise ConfigError(
                    f"from step {span.begin} {until} every source has weight 0: move a start or a "
                    "stop"
                )


@dataclass(frozen=True, eq=False)
class InterpolationSpan:
    """Interval `[begin, end)` of one interpolation.

    The weights are constant, or a ramp from `first` at step `origin` to `last` at step `target`.
    """

    begin: int
    end: int | None
    first: Floats
    last: Floats
    origin: float
    target: float
    interpolation: str

    @property
    def constant(self) -> bool:
        """Return whether the weights are constant."""
        return self.interpolation == "step"

    def over(self, active: npt.NDArray[np.bool_]) -> InterpolationSpan:
        """Restrict the span to active sources.

        If all of them begin or end at 0, their shares are constant.

        Args:
            active: mask of the sources.
        """
        first, last = np.where(active, self.first, 0.0), np.where(active, self.last, 0.0)
        if self.constant or (first.any() and last.any()):
            return replace(self, first=first, last=last)
        return replace(self, first=first + last, last=first + last, interpolation="step")

    def means(self, positions: Ints, blocks: Ints, block: int) -> Floats:
        """Return the mean weights of stairs, not normalised: float64[stairs, sources].

        A stair has `blocks` blocks of `block` positions each. The weights of a block are the
        weights at its first position.

        Args:
            positions: first position of each stair.
            blocks: number of blocks of each stair.
            block: positions in a block.
        """
        length = float(self.target - self.origin)
        t = ((positions - self.origin).astype(np.float64) + 0.5 * block * (blocks - 1)) / length
        if self.interpolation == "cosine":
            # The mean of cos over n steps is cos at the middle times sin(n*h)/(n*sin(h)), h half
            # the angle of a step.
            n, h = blocks.astype(np.float64), np.asarray([min(1.0, block / length)])
            shrink = np.where(blocks > 1, _compute_sine(n * h) / (n * _compute_sine(h)), 1.0)
            t = 0.5 + shrink * (compute_cosine_ease(t) - 0.5)
        return self.first + (self.last - self.first) * t[:, None]


def compute_cosine_ease(t: Floats) -> Floats:
    """Compute `(1 - cos(pi t)) / 2` for t in [0, 1] to 1e-15, with + - * only.

    Args:
        t: relative distances between two points.
    """
    late = t > 0.5
    s = _compute_sine(np.where(late, 1.0 - t, t))
    return np.where(late, 1.0 - s * s, s * s)


def _compute_sine(t: Floats) -> Floats:
    """Compute `sin(pi/2 t)` for t in [0, 1], and slightly above, as a stair may exceed 1."""
    x = t * _HALF_PI
    square, out = x * x, np.zeros_like(x)
    for c in reversed(_SINE_COEFFICIENTS):
        out = out * square + c
    return out * x


def _check_interpolations(value: Any, intervals: int) -> Interpolation | tuple[Interpolation, ...]:
    """Check interpolations; return one for all intervals, or a tuple if they differ."""
    laws = list(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else [value]
    for interpolation in laws:
        check_choice(interpolation, INTERPOLATIONS, "Schedule(interpolation={})")
    if isinstance(value, list | tuple) and len(laws) != intervals:
        raise ConfigError(
            f"Schedule(interpolation={laws}): {intervals + 1} points have {intervals} intervals "
            "between them; give one interpolation for each interval"
        )
    return tuple(laws) if len(set(laws)) > 1 else laws[0] if laws else "step"


def _list_points(points: Any) -> list[Any]:
    if isinstance(points, Mapping):
        points = cast("Mapping[Any, Any]", points).items()
    if getattr(points, "ndim", 1) == 0 or not isinstance(points, Iterable):
        raise ConfigError(
            f"Schedule({points!r}): give its points, [(step, {{name: weight, ...}}), ...]"
        )
    return list(cast("Iterable[Any]", points))


def _parse_point(point: Any, unit: ScheduleUnit) -> tuple[int, dict[str, float]]:
    match point:
        case (step, weights) if isinstance(weights, Mapping):
            table = cast("Mapping[str, Any]", weights)
            return _check_step(step, "a point", unit), sort_by_name(table)
        case (step, number) if isinstance(number, int | float | np.number):
            return _check_step(step, "a point", unit), sort_by_name({_NUMBER: number})
        case _:
            raise ConfigError(
                f"the point {point!r} of the schedule is no pair of a step and weights; give "
                "(step, {name: weight, ...})"
            )


def _check_number(value: float, where: str) -> None:
    """Raise `ConfigError` for a number of a schedule of numbers that no length or batch can be."""
    if not isfinite(value) or value <= 0:
        raise ConfigError(
            f"{where} is the number {value}; give row lengths and batch sizes of at least 1"
        )


def scale_fraction(fraction: float, length: int) -> int:
    """Return the first step, row or token of a run at or after a fraction of its length.

    >>> [scale_fraction(fraction, 1_000) for fraction in (0, 0.1, 0.9995, 1)]
    [0, 100, 1000, 1000]
    """
    return ceil(Fraction(repr(float(fraction))) * length)


def _check_step(value: Any, what: str, unit: ScheduleUnit = "samples") -> int:
    if unit == "fraction":
        number = None if isinstance(value, str) else parse_number(value)
        if number is None or not 0 <= number <= 1:
            raise ConfigError(
                f"{what} of the schedule is at {value!r} of the run: a fraction is a number from 0 "
                "to 1"
            )
        return convert_to_json_number(number)
    try:
        step = index(value)
    except TypeError:
        step = -1
    if not 0 <= step < MAX_POSITION:
        raise ConfigError(
            f"{what} of the schedule is at step {value!r}: a step is an integer, 0 or more, below "
            "2^60"
        )
    return step


def place_points(
    schedule: Schedule,
    lengths: Mapping[str, float],
    by_tokens: bool,
    weighed: Mapping[str, float] | None = None,
) -> dict[int, int]:
    """Return the sample at which each point of a schedule begins, as `Schedule.in_tokens` counts.

    >>> place_points(Schedule([(0, {"a": 1}), (95, {"a": 2})], unit="tokens"), {"a": 10.0}, False)
    {0: 0, 95: 10}
    """
    return schedule._place_knots(lengths, by_tokens, weighed)[0]  # pyright: ignore[reportPrivateUsage]


# ---------------------------------------------------------------- weights

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
        f"{repr(group[0]) + ' is' if len(group) == 1 else join_first(group) + ' are'} {word}"
        for word, group in (("missing", missing), ("unknown", unknown))
        if group
    ]
    if unknown == [""]:
        raise ConfigError(f"{where} has numbers; give weights by name, such as {{0: {{'a': 1}}}}")
    if parts:
        if unknown:
            hint = suggest_names(unknown[0], missing or names)
        else:
            hint = "; give each a weight, 0 to leave it out"
        inputs = "the inputs alone" if not missing else "every input"
        raise ConfigError(f"{where} must name {inputs}: {', '.join(parts)}{hint}")


def parse_number(value: Any) -> float | None:
    """Convert a value to a float, or return `None`."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
