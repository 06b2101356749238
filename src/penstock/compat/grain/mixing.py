"""Mixtures of either kind of dataset: named inputs, checked weights, mixing rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from ...dataset import Dataset
from ...engine.mixing.rules import By
from ...engine.steps.mix import Mix
from ...errors import ConfigError
from ...inputs import mix
from .lineage import Lineage
from .order import Proportions

D = TypeVar("D")


def named_inputs(
    datasets: Sequence[D] | Mapping[str, D], weights: Sequence[float] | Mapping[str, float] | None
) -> tuple[dict[str, D], dict[str, float]]:
    """Return inputs and weights by name: lists are numbered, dicts are sorted by key.

    Raises:
        ConfigError: for missing or unknown weights, weights of 0 or less, or no datasets.
    """
    if isinstance(datasets, Mapping):
        names = sorted(datasets)
        named = {name: datasets[name] for name in names}
        if weights is not None and (not isinstance(weights, Mapping) or sorted(weights) != names):
            raise ConfigError(
                f"mix: weights do not match: give a dict with one weight for each of {names}"
            )
        named_weights = (
            {name: weights[name] for name in names}
            if isinstance(weights, Mapping)
            else dict.fromkeys(names, 1.0)
        )
    else:
        named = {str(i): dataset for i, dataset in enumerate(datasets)}
        if weights is not None and (isinstance(weights, Mapping) or len(weights) != len(named)):
            raise ConfigError(
                f"mix: weights do not match: give a list of {len(named)} weights, one per dataset"
            )
        values = [1.0] * len(named) if weights is None else list(weights)
        named_weights = dict(zip(named, values, strict=True))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if not named:
        raise ConfigError("mix: no datasets: give at least one")
    for name, weight in named_weights.items():
        if not weight > 0:
            raise ConfigError(
                f"mix: the weight of input {name} is {weight}: give a number above 0, or leave the "
                "input out"
            )
    return named, named_weights


def mixed(inputs: Mapping[str, Dataset], weights: Mapping[str, float], lineage: Lineage) -> Dataset:
    """Mix inputs, each in its own order; a pass ends when one of them ends."""
    if not lineage.grain:
        return mix(inputs, weights, stop="first_exhausted")
    values = list(weights.values())
    rule = Proportions.of(None if set(values) == {1.0} else values, len(values))
    return Dataset(Mix(tuple(dataset.tree for dataset in inputs.values()), tuple(inputs), By(rule)))
