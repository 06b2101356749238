"""Stages of a mixture file as a schedule of source weights."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import cast

from ..errors import ConfigError
from ..schedule import Interpolation, Schedule, ScheduleUnit
from .model import MixtureFile, RunPosition

Weights = Mapping[str, float]


def compute_stage_weights(model: MixtureFile, inner: Weights) -> list[dict[str, float]]:
    """Return the weights before the first stage and in each stage.

    Names that a stage does not mention keep their weights.
    """
    current, groups = dict(inner), dict(model.groups or {})
    weights = [model.grouped(current, groups) if any(current.values()) else dict(inner)]
    for stage in model.stages:
        for name, weight in stage.weights.items():
            (groups if name in groups else current)[name] = weight
        weights.append(model.grouped(current, groups))
    return weights


def build_stage_schedule(
    model: MixtureFile, inner: Weights, run: tuple[str, int] | None
) -> Schedule:
    """Return the schedule of the stages; `run` is the horizon in samples or tokens.

    A ramping stage begins with the previous weights and reaches its own at its end; a step stage
    has its weights from its beginning.
    """
    weights, (unit, ends) = compute_stage_weights(model, inner), compute_stage_ends(model, run)
    points, interpolations = list[tuple[int, Weights]](), list[Interpolation]()

    def add(position: int, row: Weights, interpolation: Interpolation) -> None:
        if points and points[-1][0] >= position:
            points.pop()
            interpolations.pop()
        points.append((position, row))
        interpolations.append(interpolation)

    start = 0
    for number, (stage, end) in enumerate(zip(model.stages, ends, strict=True)):
        previous, target = weights[number], weights[number + 1]
        if stage.interpolation == "step":
            add(start, target, "step")
        else:
            if end is None:
                raise ConfigError(
                    f"stage {number + 1} ramps without an end: add until, or a horizon"
                )
            if not any(previous.values()):
                raise ConfigError(
                    f"stage {number + 1} ramps from weights that are all 0: give the sources initial weights"
                )
            add(start, previous, stage.interpolation)
            after = model.stages[number + 1 : number + 2]
            jumps = after and after[0].interpolation == "step" and weights[number + 2] != target
            add(end - 1 if jumps else end, target, "step")
        start = end or start
    return Schedule(points, interpolations[:-1], unit)


def compute_stage_ends(
    model: MixtureFile, run: tuple[str, int] | None
) -> tuple[ScheduleUnit, list[int | None]]:
    """Return the unit and the ends of the stages, in samples or tokens."""
    unit = model.unit_of_run
    if model.changes_sizes:
        steps = [step if step is None else model.position_at(step) for step in model.stage_ends]
        if steps[-1] is None and run is not None:
            steps[-1] = run[1]
        return unit, steps
    places = [stage.until for stage in model.stages]
    if places[-1] is None and run is not None:
        places[-1] = RunPosition("percent", 100)
    unit = find_stage_unit(model, None if run is None else run[0])
    ends = [position and _convert_position(position, model, run) for position in places]
    if any(
        start is None or (end is not None and end <= start)
        for start, end in zip([0, *ends[:-1]], ends, strict=True)
    ):
        raise ConfigError(f"the stages end at {ends} {unit}: each must end after the previous one")
    return unit, ends


def find_stage_unit(model: MixtureFile, of_run: str | None) -> ScheduleUnit:
    """Return the unit in which stages end; `of_run` is the unit of the run, if it has an end.

    Raises:
        ConfigError: There are several.
    """
    places = [stage.until for stage in model.stages]
    found = {
        model.unit_of_run if place.unit == "steps" else place.unit
        for place in places
        if place is not None and place.unit != "percent"
    }
    if len(found) > 1:
        raise ConfigError(f"stages end at {' and at '.join(sorted(found))}: use one unit")
    to_the_end = any(place is not None and place.unit == "percent" for place in places)
    unit = next(iter(found), of_run or model.unit_of_run)
    if of_run not in (unit, None) and (to_the_end or places[-1] is None):
        named = model.horizon[0] if model.horizon else of_run
        counted = named if named == of_run else f"{named} (in {of_run})"
        raise ConfigError(f"stages end at {unit} and the horizon counts {counted}: use one unit")
    return cast("ScheduleUnit", unit)


def _convert_position(
    position: RunPosition, model: MixtureFile, run: tuple[str, int] | None
) -> int:
    """Convert a position to samples or tokens."""
    if position.unit == "steps":
        return model.position_at(int(position.number))
    if position.unit != "percent":
        return int(position.number)
    if run is None:
        raise ConfigError(
            f"a stage ends at {position.number:g}% of a run without a horizon: add a horizon"
        )
    return int(Fraction(repr(position.number)) * run[1] / 100)
