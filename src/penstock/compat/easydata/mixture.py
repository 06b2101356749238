"""Mixing by blocks: `block_mixture_interleave` and what the other entry points share with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...dataset import Dataset
from ...engine.mixing import Stop
from ...errors import ConfigError, missing_extra
from ...inputs import mix
from ...schedule import Schedule
from .inputs import dataset_of


def block_mixture_interleave(
    datasets: Mapping[str, Any],
    weights: Mapping[str, float] | None = None,
    block_size: int = 1000,
    seed: int | None = 42,
    stop: Stop = "restart",
    *,
    lanes: int = 1,
) -> Any:
    """Datasets mixed by weight, as a Hugging Face `IterableDataset` with an exact state.

    `datasets` are Hugging Face datasets (map-style or streaming), sequences, or anything that can
    be iterated over again; `weights` are relative and name the same. The rules are those of
    `penstock.engine.mixing`; `stop` is "restart", "first_exhausted", "all_exhausted" or
    "all_exhausted_oversample". Without streams among the inputs the state is a position, ranks and
    workers get disjoint shares of one sequence, and a share reads nothing but its own rows. With
    streams `lanes` says into how many independent parts the run is dealt: a multiple of ranks times
        workers, fixed for
    a run (with one lane every rank reads all, and keeps its share).

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
        raise ConfigError(f"block_mixture_interleave(lanes={lanes}): at least one lane")
    inputs = {name: dataset_of(dataset, name) for name, dataset in datasets.items()}
    return as_hub(
        mix(inputs, weights, seed=seed or 0, block_size=block_size, stop=stop),
        lanes,
        shared(datasets),
    )


def as_hub(dataset: Dataset, lanes: int = 1, features: Any = None) -> Any:
    """A dataset of the core as a Hugging Face `IterableDataset`."""
    try:
        from .hub import to_hub
    except ModuleNotFoundError as error:
        raise missing_extra("datasets", "hf", "a Hugging Face IterableDataset") from error
    return to_hub(dataset, lanes, features)


def shared(datasets: Mapping[str, Any]) -> Any:
    """The features of Hugging Face datasets, where all have the same; None otherwise."""
    found = [getattr(dataset, "features", None) for dataset in datasets.values()]
    return (
        found[0]
        if found and found[0] is not None and all(each == found[0] for each in found)
        else None
    )


def weighed(
    weights: Mapping[str, float] | None,
    schedule: Schedule | None,
    names: Mapping[str, Any],
    where: str,
) -> Mapping[str, float] | Schedule | None:
    """The weights in force: those of a schedule where there is one. Weights beside it are checked,
    and not used."""
    if weights is not None and set(weights) != set(names):
        missing, extra = sorted(set(names) - set(weights)), sorted(set(weights) - set(names))
        raise ConfigError(
            f"{where}: the weights must name the sources; missing {missing}, unknown {extra}"
        )
    if schedule is not None and set(schedule.names) != set(names):
        missing, extra = (
            sorted(set(names) - set(schedule.names)),
            sorted(set(schedule.names) - set(names)),
        )
        raise ConfigError(
            f"{where}: the schedule must name the sources; missing {missing}, unknown {extra}"
        )
    return schedule or weights
