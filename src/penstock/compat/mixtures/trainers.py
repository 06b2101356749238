"""What the files of trainers have in common: how long a run is, its steps, and datasets that are put together whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...mixture_files import Batching, SourceEntry
from .parts import Part

Horizon = tuple[str, float] | None


def each(size: int | None, part: Part, **options: Any) -> Batching | None:
    """Batches of which every rank takes one, with those that are accumulated; how many ranks, the caller says."""
    times = part.count("gradient_accumulation_steps") or 1
    return Batching(size * times, ranks=part.left.ranks, **options) if size else None


def shared(size: int | None, part: Part, key: str, **options: Any) -> Batching | None:
    """A batch of all ranks, in so many parts as there are ranks."""
    if not size:
        return None
    ranks = part.left.ranks
    if size % ranks:
        part.leave(key, f"a batch of {size} cannot be shared out evenly to {ranks} ranks")
        return None
    return Batching(size // ranks, ranks=ranks, **options)


def length(part: Part, epochs: str, default: float) -> tuple[Horizon, float]:
    """The horizon, where steps say it, and else the passes that the run makes over all its data."""
    steps, passes = part.get("max_steps"), part.number(epochs)
    if isinstance(steps, int) and steps > 0:
        return ("steps", steps), 0
    return None, default if passes is None else passes


def whole(sources: Sequence[SourceEntry], passes: float) -> tuple[tuple[SourceEntry, ...], dict[str, Any]]:
    """Datasets put together, each sample once a pass: the sources, and what the mixture says.

    With `passes` the run ends after just so many; with 0 it goes on for as long as its horizon says.
    """
    if passes == 1:
        return tuple(sources), {"temperature": 1, "stop": "all_exhausted"}
    if not passes:
        return tuple(sources), {"temperature": 1}
    return tuple(replace(source, epochs=passes, max_epochs=passes) for source in sources), {}
