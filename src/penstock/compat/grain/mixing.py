"""Mixtures of either kind of dataset: inputs by name, weights checked, the rule that the order asks
for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from ...dataset import Dataset
from ...engine.graph.nodes import Mix
from ...engine.mixing.rules import By
from ...errors import ConfigError
from ...inputs import mix
from .lineage import Lineage
from .order import Proportions

D = TypeVar("D")


def named_inputs(
    datasets: Sequence[D] | Mapping[str, D], weights: Sequence[float] | Mapping[str, float] | None
) -> tuple[dict[str, D], dict[str, float]]:
    """Inputs and weights by name: numbers as names for lists, keys in sorted order for dicts."""
    if isinstance(datasets, Mapping):
        names = sorted(datasets)
        named = {name: datasets[name] for name in names}
        if weights is not None and (not isinstance(weights, Mapping) or sorted(weights) != names):
            raise ConfigError(
                f"mix: give a weight for each of {names}, as a dict with the same keys"
            )
        given = (
            {name: weights[name] for name in names}
            if isinstance(weights, Mapping)
            else dict.fromkeys(names, 1.0)
        )
    else:
        named = {str(i): dataset for i, dataset in enumerate(datasets)}
        if weights is not None and (isinstance(weights, Mapping) or len(weights) != len(named)):
            raise ConfigError(f"mix: give {len(named)} weights in a list, one for each dataset")
        values = [1.0] * len(named) if weights is None else list(weights)
        given = dict(zip(named, values, strict=True))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    if not named:
        raise ConfigError("mix: no datasets")
    for name, weight in given.items():
        if not weight > 0:
            raise ConfigError(
                f"mix: the weight of input {name} is {weight}; leave an input out that is not "
                "wanted"
            )
    return named, given


def mixed(inputs: Mapping[str, Dataset], weights: Mapping[str, float], lineage: Lineage) -> Dataset:
    """The mixture: every input in its own order, a pass ends when one has no more."""
    if not lineage.grain:
        return mix(inputs, weights, stop="first_exhausted")
    values = list(weights.values())
    rule = Proportions.of(None if set(values) == {1.0} else values, len(values))
    return Dataset(Mix(tuple(dataset.flow for dataset in inputs.values()), tuple(inputs), By(rule)))
