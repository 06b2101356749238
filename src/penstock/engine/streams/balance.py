"""Assignment of the rows of a global step to ranks by cost, so that no rank waits for another.

Every rank computes the costs of all rows of the step from their lengths, and assigns them alike,
without communication. Costs are integers, since sums of floats depend on the order of addition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Literal, TypeAlias, get_args

import numpy as np

from ...arguments import check_choice
from ...errors import ConfigError
from ...types import Ints
from ..base.random import derive_key, permute
from ..base.rows import ProvenanceRows

Cost: TypeAlias = Callable[[Ints], Ints]
Balance: TypeAlias = Literal["tokens", "squares"]

_KEY = derive_key("balance")
_SWAPS = 64  # that better what was shared out


def make_cost(balance: Balance | Cost | None) -> Cost | None:
    """Return the cost function of a document by its tokens."""
    if balance is None or callable(balance):
        return balance
    check_choice(balance, get_args(Balance), "balance={}")
    return _tokens if balance == "tokens" else np.square


def _tokens(lengths: Ints) -> Ints:
    return lengths


@dataclass(frozen=True)
class CostBalance:
    """Assignment of rows to ranks by cost. `lengths` returns those of samples that are not packed."""

    cost: Cost
    lengths: Callable[[ProvenanceRows], Ints]

    def compute_costs(self, rows: ProvenanceRows) -> Ints:
        """Return the cost of each item: the sum over its documents, or their parts."""
        packs = [node for node in rows.marks if node > 0 and ~node in rows.marks]
        sizes = rows.marks[~packs[0]] - rows.marks[packs[0]] if packs else self.lengths(rows)
        each = np.asarray(self.cost(sizes))
        if each.dtype.kind not in "iu" or each.shape != sizes.shape:
            raise ConfigError(
                f"balance={self.cost!r} returned {each.dtype}{list(each.shape)} for {len(sizes)} "
                "lengths; return one whole number for each length"
            )
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(each, dtype=np.int64)])
        return np.diff(sums[rows.firsts()])

    def deal_rows(self, costs: Ints, start: int, ranks: int, rank: int) -> Ints:
        """Return the rows of a step that a rank receives, by their costs; every rank receives as
        many.
        """
        bins = balance_costs(costs.tolist(), ranks)
        return np.asarray(
            sorted(bins[int(permute(np.asarray([rank]), ranks, _KEY, start)[0])]), np.int64
        )


def balance_costs(costs: list[int], ranks: int) -> list[list[int]]:
    """Divide rows into lists of one length with nearly equal sums of costs.

    The most expensive row comes first. Each goes to the rank with the smallest sum that has room.
    Then rows of the most expensive rank are swapped with others while that lowers the maximum.
    Longest processing time first, see Graham, "Bounds on multiprocessing timing anomalies" (1969).

    >>> balance_costs([9, 1, 1, 5, 5, 1], 2)
    [[0, 1, 2], [3, 4, 5]]
    """
    each, bins = len(costs) // ranks, [list[int]() for _ in range(ranks)]
    least = [(0, rank) for rank in range(ranks)]
    heapify(least)
    for row in sorted(range(len(costs)), key=lambda row: (-costs[row], row)):
        load, rank = heappop(least)
        bins[rank].append(row)
        if len(bins[rank]) < each:
            heappush(least, (load + costs[row], rank))
    loads = [sum(costs[row] for row in rows) for rows in bins]
    for _ in range(_SWAPS):
        if not _swap_rows(costs, bins, loads):
            break
    return bins


def _swap_rows(costs: list[int], bins: list[list[int]], loads: list[int]) -> bool:
    """Swap a row of the most expensive rank with another, if that lowers its cost and the other
    stays below it.
    """
    most = max(range(len(bins)), key=lambda rank: (loads[rank], -rank))
    for other in sorted(range(len(bins)), key=lambda rank: (loads[rank], rank)):
        gap = loads[most] - loads[other]
        pairs = [
            (abs(gap - 2 * (costs[a] - costs[b])), i, j)
            for i, a in enumerate(bins[most])
            for j, b in enumerate(bins[other])
            if 0 < costs[a] - costs[b] < gap
        ]
        if pairs:
            _, i, j = min(pairs)
            a, b = bins[most][i], bins[other][j]
            bins[most][i], bins[other][j] = b, a
            loads[most] -= costs[a] - costs[b]
            loads[other] += costs[a] - costs[b]
            return True
    return False
