"""Edits of a mixture by hand: weights, caps, stages and the horizon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

from penstock.errors import ConfigError
from penstock.mixture_files import (
    MixtureFile,
    RunPosition,
    Stage,
    check_round_trip,
    convert_model,
    format_problems,
    format_yaml,
)
from penstock.stores import is_remote

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class MixtureEdit:
    """Changes of a mixture.

    Attributes:
        weights: New weights of sources.
        groups: New weights of groups.
        caps: New maximum epochs of sources; None removes a cap.
        stages: For each stage by number, from 0: its new end and weights.
        horizon: The new length of the run, in its unit.
    """

    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    groups: Mapping[str, float] = field(default_factory=dict[str, float])
    caps: Mapping[str, float | None] = field(default_factory=dict[str, float | None])
    stages: Mapping[int, StageEdit] = field(default_factory=dict[int, "StageEdit"])
    horizon: float | None = None


@dataclass(frozen=True)
class StageEdit:
    """Changes of a stage: its end, in its unit, and weights."""

    until: float | None = None
    weights: Mapping[str, float] = field(default_factory=dict[str, float])


def parse_edit(data: Any) -> MixtureEdit:
    """Return the edit of a request.

    Raises:
        ConfigError: The data is no edit.

    >>> parse_edit({"weights": {"code": 2}, "stages": {"0": {"until": 20}}}).stages
    {0: StageEdit(until=20.0, weights={})}
    """
    fields = _require_mapping(data, "the edit")
    stages = {
        int(number): StageEdit(
            _parse_optional(_require_mapping(stage, "a stage").get("until"), "until"),
            _parse_numbers(_require_mapping(stage, "a stage").get("weights", {}), "weights"),
        )
        for number, stage in _require_mapping(fields.get("stages", {}), "stages").items()
        if number.isdecimal()
    }
    caps = {
        name: _parse_optional(cap, f"the cap of {name}")
        for name, cap in _require_mapping(fields.get("caps", {}), "caps").items()
    }
    return MixtureEdit(
        _parse_numbers(fields.get("weights", {}), "weights"),
        _parse_numbers(fields.get("groups", {}), "groups"),
        caps,
        stages,
        _parse_optional(fields.get("horizon"), "horizon"),
    )


def _require_mapping(data: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{name}: expected a JSON object")
    return cast("Mapping[str, Any]", data)


def _parse_numbers(data: Any, name: str) -> dict[str, float]:
    numbers = _require_mapping(data, name)
    return {key: _parse_number(value, f"{name} of {key}") for key, value in numbers.items()}


def _parse_optional(value: Any, name: str) -> float | None:
    return None if value is None else _parse_number(value, name)


def _parse_number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise ConfigError(f"{name:.100}: expected a number of at least 0")
    return float(value)


def describe_settings(model: MixtureFile) -> Json:
    """Return the settings that an edit can change, with reasons for those that it cannot.

    Args:
        model: The description of the mixture.
    """
    reason = _find_reason(model)
    weighs_in_stages = model.weighs_in_stages
    weights = {} if reason else model.own_weights()
    if weighs_in_stages:  # the weights of sources count within their groups
        weights = {name: weights[name] for name in weights if _get_group(model, name)}
    return {
        "reason": reason,
        "weights": weights,
        "groups": {} if reason or weighs_in_stages else dict(model.groups or {}),
        "group_of": {source.name: source.group for source in model.sources if source.group},
        "caps": {source.name: model.cap(source) for source in model.sources},
        "stages": [
            {
                "name": stage.name or f"stage {number}",
                "until": None
                if stage.until is None
                else {"unit": stage.until.unit, "number": stage.until.number},
                "weights": dict(stage.weights),
            }
            for number, stage in enumerate(model.stages, 1)
        ],
        "horizon": None
        if model.horizon is None
        else {"unit": model.horizon[0], "number": model.horizon[1]},
    }


def _get_group(model: MixtureFile, name: str) -> str | None:
    return next(source.group for source in model.sources if source.name == name)


def _find_reason(model: MixtureFile) -> str | None:
    """Return why the weights of a mixture cannot be edited, or None."""
    if model.schedule is not None and model.schedule.points:
        return "the file gives weights by a schedule of points; edit the points in the file"
    if model.temperature is not None:
        return "the file computes weights by a temperature; edit `temperature` in the file"
    if any(source.tokens or source.epochs for source in model.sources):
        return "the file gives amounts (`tokens`, `epochs`) instead of weights; edit them there"
    return None


def apply_edit(model: MixtureFile, edit: MixtureEdit) -> MixtureFile:
    """Return a mixture with changes.

    Args:
        model: The description of the mixture.
        edit: The changes.

    Returns:
        The new description.

    Raises:
        ConfigError: The changes name no source of the mixture.
    """
    if (edit.weights or edit.groups) and (reason := _find_reason(model)):
        raise ConfigError(reason)
    known = {*model.names, *(model.groups or {})}
    stage_names = [name for stage in edit.stages.values() for name in stage.weights]
    for name in (*edit.weights, *edit.groups, *edit.caps, *stage_names):
        if name not in known:
            raise ConfigError(f"the mixture has no source or group {name[:100]!r}")
    own = model.own_weights() if edit.weights else {}
    sources = tuple(
        replace(
            source,
            weight=edit.weights.get(source.name, own[source.name] if own else source.weight),
            max_epochs=edit.caps.get(source.name, source.max_epochs),
        )
        for source in model.sources
    )
    stages = tuple(
        _edit_stage(stage, edit.stages.get(number)) for number, stage in enumerate(model.stages)
    )
    model = replace(model, sources=sources, stages=stages)
    if edit.groups:
        model = replace(model, groups={**(model.groups or {}), **edit.groups})
    if edit.horizon is not None and model.horizon is not None:
        unit = model.horizon[0]
        number = edit.horizon if unit == "epochs" else int(edit.horizon)
        model = replace(model, horizon=(unit, number))
    return model


def _edit_stage(stage: Stage, edit: StageEdit | None) -> Stage:
    if edit is None:
        return stage
    until = stage.until
    if until is not None and edit.until is not None:
        number = edit.until if until.unit == "percent" else int(edit.until)
        until = RunPosition(until.unit, number)
    return replace(stage, until=until, weights={**stage.weights, **edit.weights})


def format_mixture(model: MixtureFile, path: Path) -> str:
    """Return a description as the text of a mixture file beside another one.

    Args:
        model: The description.
        path: The file of the mixture.

    Raises:
        ConfigError: The description is no valid mixture.
    """
    problems = [problem for problem in check_round_trip(model, path) if problem.severity == "error"]
    if problems:
        raise ConfigError(format_problems(problems))
    folder = Path.cwd() if is_remote(path) else path.absolute().parent
    return format_yaml(convert_model(model, folder))
