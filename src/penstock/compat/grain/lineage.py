"""Order and seeds of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ...engine.base.random import derive_key
from ...errors import ConfigError
from .order import default_seed

Style = Literal["penstock", "grain"]


@dataclass(frozen=True)
class Lineage:
    """Order of a pipeline, and its seeds with their distance in steps, nearest first.

    `shuffle` is the seed of the last shuffle of all samples, if a slice would repeat its order.
    """

    order: Style = "penstock"
    seeds: tuple[tuple[int, int], ...] = ()
    shuffle: int | None = None

    def __post_init__(self) -> None:
        if self.order not in ("penstock", "grain"):
            raise ConfigError(f"order={self.order!r}: choose 'penstock' or 'grain'")

    @property
    def grain(self) -> bool:
        return self.order == "grain"

    def step(self) -> Lineage:
        """Return the lineage after one more step."""
        return replace(self, seeds=tuple((seed, away + 1) for seed, away in self.seeds))

    def seeded(self, seed: int) -> Lineage:
        """Return the lineage with a new seed."""
        return replace(self, seeds=((seed, 0),))

    def seed(self, step: str, seed: int | None, bits: int = 32) -> int:
        """Return the seed of a random step at this point.

        Raises:
            ConfigError: if there is no seed, or it is out of range.
        """
        if seed is None and not self.seeds:
            raise ConfigError(f"{step} needs a seed: pass seed=, or call .seed(...) before it")
        if seed is None:
            if self.grain:
                return default_seed(self.seeds)
            return (
                self.seeds[0][0]
                if len(self.seeds) == 1
                else derive_key(*(seed for seed, _ in self.seeds))
            )
        if not 0 <= seed < 1 << bits:
            raise ConfigError(f"{step}: the seed {seed} is not between 0 and 2**{bits} - 1")
        return seed


def joined(lineages: Sequence[Lineage]) -> Lineage:
    """Return the lineage of a step over several pipelines, which must have one order."""
    orders = {lineage.order for lineage in lineages}
    if len(orders) > 1:
        raise ConfigError(
            "datasets in Grain's order and in Penstock's cannot be combined: give all the same "
            "order="
        )
    seeds = sorted(
        (seed for lineage in lineages for seed in lineage.seeds), key=lambda seed: seed[1]
    )
    return replace(lineages[0], seeds=tuple(seeds), shuffle=None).step()
