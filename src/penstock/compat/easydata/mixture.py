"""Mixing by blocks: `block_mixture_interleave`, and helpers of the other entry points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...dataset import Dataset
from ...engine.mixing import Stop
from ...errors import ConfigError, make_missing_extra_error
from ...inputs import mix
from ...schedule import Schedule
from .inputs import dataset_of
from .weights import check_mapping


def block_mixture_interleave(
    datasets: Mapping[str, Any],
    weights: Mapping[str, float] | None = None,
    block_size: int = 1000,
    seed: int | None = 42,
    stop: Stop = "restart",
    *,
    lanes: int = 1,
) -> Any:
    """Mix datasets by weight into a Hugging Face `IterableDataset` with an exact state.

    Without streams among the inputs the state is a position. Ranks and workers then get disjoint
    shards of one sequence, and a shard reads only its own rows. `penstock.engine.mixing` defines the rules.

    Args:
        datasets: Hugging Face datasets (map-style or streaming), sequences, or re-iterable objects,
            by name.
        weights: relative weights under the same names; equal by default.
        block_size: rows per block; counts are exact in every block.
        seed: seed of the order within blocks.
        stop: "restart", "first_exhausted", "all_exhausted" or "all_exhausted_oversample".
        lanes: with streams, the number of independent parts of the run: a multiple of ranks times
            workers, fixed for a run. With one lane every rank reads everything, and drops the rows
            of others.

    Returns:
        A `datasets.IterableDataset`.

    Raises:
        ConfigError: for datasets that are not a mapping, or fewer than one lane.

    >>> mixed = block_mixture_interleave({"a": [{"x": 1}], "b": [{"x": 2}]}, {"a": 3, "b": 1}, block_size=4)
    >>> sorted(row["x"] for row in mixed.take(4))
    [1, 1, 1, 2]
    """
    if not isinstance(datasets, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"block_mixture_interleave: the datasets are a {type(datasets).__name__}; give {{name: "
            "dataset, ...}"
        )
    if lanes < 1:
        raise ConfigError(f"block_mixture_interleave(lanes={lanes}): give at least 1")
    inputs = {name: dataset_of(dataset, name) for name, dataset in datasets.items()}
    return as_hub(
        mix(inputs, weights, seed=seed or 0, block_size=block_size, stop=stop),
        lanes,
        shared(datasets),
    )


def as_hub(dataset: Dataset, lanes: int = 1, features: Any = None) -> Any:
    """Return a Penstock dataset as a Hugging Face `IterableDataset`."""
    try:
        from .hub import to_hub
    except ModuleNotFoundError as error:
        raise make_missing_extra_error(
            "datasets", "hf", "a Hugging Face IterableDataset"
        ) from error
    return to_hub(dataset, lanes, features)


def shared(datasets: Mapping[str, Any]) -> Any:
    """Return the features of Hugging Face datasets if all are equal, else None."""
    features = [getattr(dataset, "features", None) for dataset in datasets.values()]
    return (
        features[0]
        if features and features[0] is not None and all(other == features[0] for other in features)
        else None
    )


def checked_weights(
    weights: Mapping[str, float] | None,
    schedule: Schedule | None,
    names: Mapping[str, Any],
    location: str,
) -> Mapping[str, float] | Schedule | None:
    """Return the schedule if there is one, else the weights; check both against the names."""
    if weights is not None:
        check_mapping(weights, location)
    if weights is not None and set(weights) != set(names):
        missing, extra = sorted(set(names) - set(weights)), sorted(set(weights) - set(names))
        raise ConfigError(
            f"{location}: Weight keys must match source names: missing {missing}, unknown {extra}"
        )
    if schedule is not None and set(schedule.names) != set(names):
        missing, extra = (
            sorted(set(names) - set(schedule.names)),
            sorted(set(schedule.names) - set(names)),
        )
        raise ConfigError(
            f"{location}: the schedule must name exactly the sources; missing {missing}, unknown "
            f"{extra}"
        )
    return schedule or weights
