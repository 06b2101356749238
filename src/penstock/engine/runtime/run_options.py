"""Options of a run: rank, lanes, prefetch, errors and the remainder of a pass."""

from __future__ import annotations

from dataclasses import dataclass

from ...arguments import check_choice, check_int
from ...errors import ConfigError
from ...types import MAX_POSITION
from ..base.machine import (
    count_local_ranks,
    detect_installed_memory,
    detect_rank,
    find_rank_in_group,
)
from ..streams.balance import Cost
from ..streams.journal import POLICIES, OnError
from ..streams.rank_sharding import REMAINDERS, Remainder
from .delivery import OutputForm


@dataclass(frozen=True)
class RunOptions:
    """Options of a run. Only `lanes` may change an item or a cursor, and a run keeps its lanes.

    If `workers` share the items of a rank, this one takes item `worker`, and every `workers`-th
    after it.
    """

    rank: int = 0
    world_size: int = 1
    lanes: int | None = None
    on_error: OnError = "raise"
    max_errors: int = 100
    window: int = 0
    max_items: int | None = None
    prefetch_bytes: int | None = None
    remainder: Remainder = "drop"
    form: OutputForm | None = None
    worker: int = 0
    workers: int = 1
    cost: Cost | None = None

    def __post_init__(self) -> None:
        for name, least in (
            ("rank", 0),
            ("world_size", 1),
            ("lanes", 1),
            ("max_errors", 0),
            ("prefetch_bytes", 1),
        ):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_int(value, f"{name}={{}}", least))
        if self.rank >= self.world_size:
            raise ConfigError(
                f"rank {self.rank} of world_size {self.world_size}; give a rank from 0 to "
                "world_size - 1"
            )
        check_choice(self.remainder, REMAINDERS, "remainder={}")
        if (
            self.remainder == "keep"
            and self.world_size > 1
            and self.form is not None
            and self.form.implied_rank is not None
        ):
            raise ConfigError(
                "remainder='keep' ends ranks at different steps, and a global batch needs all "
                "ranks; use remainder='pad' or leave it out"
            )
        if self.cost is not None and self.remainder == "pad":
            raise ConfigError(
                "balance= distributes whole steps, and remainder='pad' completes a short one; "
                "use only one of them"
            )
        check_choice(self.on_error, POLICIES, "on_error={} (.map(fn, may_skip=True) drops samples)")

    @property
    def max_prefetch_bytes(self) -> int:
        """The largest number of bytes to compute in advance: by default an eighth of the memory for
        all ranks of a machine.
        """
        default = max(1 << 28, detect_installed_memory() // 8 // count_local_ranks())
        return min(self.prefetch_bytes or default, MAX_POSITION)


def resolve_rank(
    rank: int | None, world_size: int | None, mesh: object, form: OutputForm | None = None
) -> tuple[int, int]:
    """Return rank and world size: as given, of a data-parallel group, as implied by devices, or
    from the launcher.
    """
    if mesh is not None:
        if rank is not None or world_size is not None:
            raise ConfigError(
                f"rank={rank}, world_size={world_size} and mesh=: the mesh gives both; leave out "
                "rank and world_size"
            )
        rank, world_size = find_rank_in_group(mesh)
    if (rank is None) != (world_size is None):
        raise ConfigError(
            f"rank={rank}, world_size={world_size}: one of them is missing; give both or neither"
        )
    held = None if form is None else form.implied_rank
    if rank is None or world_size is None:
        return held or detect_rank(complete=True)
    if held not in (None, (rank, world_size)):
        raise ConfigError(
            f"the loader is rank {rank} of {world_size}, but the devices of this process hold "
            f"share {held[0]} of {held[1]} of the rows; leave out rank and world_size"
        )
    return rank, world_size
