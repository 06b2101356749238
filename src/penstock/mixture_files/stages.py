"""Stage after stage: a schedule of plain weights of sources."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from ..errors import ConfigError
from ..schedule import Clock, Interpolation, Schedule
from .model import MixtureFile, Place

Weights = Mapping[str, float]


def by_stage(model: MixtureFile, inner: Weights) -> list[dict[str, float]]:
    """The weights before the first stage, and those of each. What a stage does not name is as in
    the one before."""
    now, groups = dict(inner), dict(model.groups or {})
    out = [model.grouped(now, groups) if any(now.values()) else dict(inner)]
    for stage in model.stages:
        for name, weight in stage.weights.items():
            (groups if name in groups else now)[name] = weight
        out.append(model.grouped(now, groups))
    return out


def staged(model: MixtureFile, inner: Weights, run: tuple[str, int] | None) -> Schedule:
    """The schedule that the stages are. `run` is the horizon, in samples or tokens.

    A stage that ramps begins with the weights before it and has its own at its end; any other has
    them from its beginning.
    """
    weights, (unit, ends) = by_stage(model, inner), stage_ends(model, run)
    points, laws = list[tuple[int, Weights]](), list[Interpolation]()

    def add(place: int, row: Weights, law: Interpolation) -> None:
        if points and points[-1][0] >= place:
            points.pop()
            laws.pop()
        points.append((place, row))
        laws.append(law)

    start = 0
    for number, (stage, end) in enumerate(zip(model.stages, ends, strict=True)):
        before, own = weights[number], weights[number + 1]
        if stage.interpolation == "step":
            add(start, own, "step")
        else:
            if end is None:
                raise ConfigError(
                    f"stage {number + 1} ramps: say until where, or give the run a horizon"
                )
            if not any(before.values()):
                raise ConfigError(
                    f"stage {number + 1} ramps from no weights: give the sources some to begin with"
                )
            add(start, before, stage.interpolation)
            after = model.stages[number + 1 : number + 2]
            jumps = after and after[0].interpolation == "step" and weights[number + 2] != own
            add(end - 1 if jumps else end, own, "step")
        start = end or start
    return Schedule(points, laws[:-1], unit)


def stage_ends(model: MixtureFile, run: tuple[str, int] | None) -> tuple[Clock, list[int | None]]:
    """Where the stages end, in samples or tokens."""
    steps_in, size = model.per_step
    places = [stage.until for stage in model.stages]
    if places[-1] is None and run is not None:
        places[-1] = Place("percent", 100)
    counted = {
        place: _counted(place, (steps_in, size), run) for place in places if place is not None
    }
    units = {unit for unit, _ in counted.values()} or {steps_in}
    if len(units) > 1:
        raise ConfigError(
            "the stages end at numbers of samples and of tokens: count them all in one"
        )
    ends = [None if place is None else counted[place][1] for place in places]
    unit: Clock = "tokens" if units == {"tokens"} else "samples"
    if any(
        a is None or (b is not None and b <= a) for a, b in zip([0, *ends[:-1]], ends, strict=True)
    ):
        raise ConfigError(f"the stages end at {ends} {unit}: each has to end after the one before")
    return unit, ends


def _counted(place: Place, step: tuple[str, int], run: tuple[str, int] | None) -> tuple[str, int]:
    """A place in the run in samples or tokens."""
    if place.unit == "steps":
        return step[0], int(place.number) * step[1]
    if place.unit != "percent":
        return place.unit, int(place.number)
    if run is None:
        raise ConfigError(
            f"a stage ends at {place.number:g}% of a run without a horizon: say how long the run is"
        )
    return run[0], int(Fraction(repr(place.number)) * run[1] / 100)
