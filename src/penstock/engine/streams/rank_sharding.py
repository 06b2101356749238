"""Assignment of the rows of a global step to ranks, by a permutation keyed by the first row of the
step.

An even order, dealt round robin, would alias with the ranks. A mixture of 0.4 and 0.6 over five
ranks would never give one of them a sample of the light source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from ...errors import ConfigError
from ...types import Flags, Ints
from ..base.random import build_permutations, derive_key, derive_tweak_keys, permute
from ..base.rows import ProvenanceRows
from .balance import CostBalance

Remainder: TypeAlias = Literal["drop", "pad", "keep"]

REMAINDERS: tuple[Remainder, ...] = get_args(Remainder)

_KEY = derive_key("deal")
_TABLE = 8192  # steps of up to so many rows are dealt many at a time
_CELLS = 1 << 20  # rows of all ranks that are dealt at a time


def deal_rows(starts: Ints, size: int, slots: range) -> Ints:
    """Return the offsets of the rows in some slots of steps: int64[steps, slots], ascending by
    step. The steps of `size` rows begin at `starts`.
    """
    if len(slots) == size:
        return np.broadcast_to(np.arange(size), (len(starts), size))
    if size <= _TABLE:
        picks = build_permutations(size, derive_tweak_keys(_KEY, starts))[
            :, slots.start : slots.stop
        ]
    else:
        mine = np.arange(slots.start, slots.stop)
        picks = np.stack([permute(mine, size, _KEY, start) for start in starts.tolist()])
    return np.sort(picks, axis=1)


def deal_to_all_ranks(starts: Ints, size: int, group: int) -> tuple[Ints, Ints]:
    """Return the offsets of the rows of steps, rank after rank, and the rank of each column.

    The steps of `size` rows begin at `starts`. Each rank's `group` rows ascend: int64[steps, size].
    """
    ranks = np.arange(size) // group
    if size <= group:
        return np.broadcast_to(np.arange(size), (len(starts), size)), ranks
    if size > _TABLE:
        parts = [
            deal_rows(starts, size, range(low, min(low + group, size)))
            for low in range(0, size, group)
        ]
        return np.concatenate(parts, axis=1), ranks
    picks, whole = build_permutations(size, derive_tweak_keys(_KEY, starts)), size // group * group
    full = np.sort(picks[:, :whole].reshape(len(starts), -1, group), axis=2).reshape(
        len(starts), whole
    )
    return np.concatenate([full, np.sort(picks[:, whole:], axis=1)], axis=1), ranks


@dataclass(frozen=True)
class RankSharding:
    """One rank's share of the positions of a run: `group` rows of every global step.

    Rows at the end of a pass that fill no step are left out ("drop"), filled up from the beginning
    of the pass ("pad"), or dealt so that the first ranks have full groups ("keep"). If `workers`
    share the steps of a rank, the next step of each is that many steps later. `keeps_groups` keeps
    the rows of a group together, as without ranks. `balance` assigns rows by cost. `stop` is the row
    at which a step begins that is of another size.
    """

    rank: int = 0
    world_size: int = 1
    group: int = 1
    remainder: Remainder = "keep"
    workers: int = 1
    keeps_groups: bool = False
    balance: CostBalance | None = None
    stop: int | None = None

    @property
    def size(self) -> int:
        """The rows of a global step."""
        return self.group * self.world_size

    @property
    def stride(self) -> int:
        """The rows from one step of this worker to its next."""
        return self.size * self.workers

    @property
    def takes_all_in_order(self) -> bool:
        """True if this rank takes all positions in order."""
        one = self.world_size == self.workers == 1
        return one and self.remainder != "pad" and self.stop is None

    def count_steps(self, rows: int) -> int:
        """Return the number of global steps in some rows."""
        return rows // self.size if self.remainder == "drop" else -(-rows // self.size)

    def count_items(self, made: Callable[[int], int], rows: int) -> int:
        """Return the number of items of this rank in a pass of so many rows."""
        if self.remainder != "keep":
            return self.count_steps(rows)
        full, left = divmod(rows, self.size)
        return full + made(min(max(left - self.rank * self.group, 0), self.group))

    def next_positions(
        self,
        at: int,
        epoch: int,
        first: int,
        rows: int | None,
        many: int,
        located: Callable[[Ints], ProvenanceRows] | None = None,
    ) -> Ints:
        """Return the next positions of this rank at position `at` of a pass that begins with row
        `first` and has `rows`: about `many`, in whole groups.

        `located` returns the samples at positions of the pass.
        """
        count = max(1, min(-(-many // self.group), _CELLS // self.size))
        if self.keeps_groups:
            places = (
                self.next_groups(at, epoch, rows, count)[:, None] * self.group
                + np.arange(self.group)
            ).ravel()
            return places if rows is None else places[places < rows]
        if rows is not None:
            count = min(count, -(-self.count_steps(rows - at) // self.workers))
            if not count and not at and self.remainder != "keep":
                raise self.make_no_step_error(rows)
        if self.stop is not None:
            count = min(count, max(self.stop - at, 0) // self.size)
        starts = at + np.arange(count) * self.stride
        full = (
            starts
            if rows is None or self.remainder == "pad"
            else starts[starts + self.size <= rows]
        )
        mine = range(self.rank * self.group, (self.rank + 1) * self.group)
        if self.balance is None or located is None or not len(full):
            offsets = deal_rows(full + first, self.size, mine)
        else:
            costs = self.balance.compute_costs(
                located((full[:, None] + np.arange(self.size)).ravel())
            )
            parts = zip(costs.reshape(-1, self.size), (full + first).tolist(), strict=True)
            offsets = np.stack(
                [self.balance.deal_rows(cost, at, self.world_size, self.rank) for cost, at in parts]
            )
        places = (full[:, None] + offsets).ravel()
        if rows is None:
            return places
        if len(full) < count:  # the last step of "keep"
            last, left = int(starts[-1]), rows - int(starts[-1])
            some = range(min(mine.start, left), min(mine.stop, left))
            places = np.append(places, last + deal_rows(starts[-1:] + first, left, some))
        return np.where(places < rows, places, (places - rows) % max(rows, 1))

    def next_groups(self, at: int, epoch: int, rows: int | None, many: int) -> Ints:
        """Return the numbers of the next groups of this rank in a pass at row `at`: about `many` of
        them.
        """
        each = RankSharding(self.rank, self.world_size)
        groups = None if rows is None else -(-rows // self.group)
        return each.next_positions(-(-at // self.group), epoch, epoch * (groups or 0), groups, many)

    def mask_padding(self, at: int, first: int, rows: int | None) -> Flags:
        """Return a mask of our rows of the step at `at` that are no padding, in a pass that begins
        with row `first`."""
        mine = range(self.rank * self.group, (self.rank + 1) * self.group)
        offsets = deal_rows(np.asarray([at + first]), self.size, mine)[0]
        return np.ones(self.group, np.bool_) if rows is None else at + offsets < rows

    def make_no_step_error(self, rows: int) -> ConfigError:
        """Return the error for a pass of so many rows, which makes no step."""
        ranks = (
            f"{self.world_size} ranks with {self.group} each take"
            if self.world_size > 1
            else "one rank takes"
        )
        return ConfigError(
            f"a pass has {rows} rows, and {ranks} {self.size} a step, so no rank would ever make "
            "a step; repeat() before the batches, use a smaller batch or fewer ranks, or keep "
            "the rest with Loader(remainder='pad') or 'keep'"
        )


def make_rank_sharding(
    rank: int, world_size: int, group: int | None, remainder: Remainder, turns: int = 1
) -> RankSharding:
    """Return the share of a rank; everything for lanes, which have no group.

    A single rank keeps the short last batch too.
    """
    if group is None:
        return RankSharding()
    return RankSharding(
        rank,
        world_size,
        group,
        "keep" if world_size == 1 and remainder == "drop" else remainder,
        turns,
    )
