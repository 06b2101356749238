"""Lazy groups of neighbouring values, and collation of many groups at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ...arrays.dtypes import make_exact_array
from ...arrays.trees import collate

_SHARED_ARRAY_NUMBERS = (
    1 << 12
)  # numbers in a shared array: a batch that is retained retains all of them
_PLAIN_DTYPES = {int: np.int64, float: np.float64}


class NeighbourGroups(Sequence[Any]):
    """The groups `values[bounds[i]:bounds[i + 1]]`.

    >>> list(NeighbourGroups([1, 2, 3], [0, 2, 3]))
    [[1, 2], [3]]
    """

    def __init__(self, values: Sequence[Any], bounds: Sequence[int]) -> None:
        self.values, self.bounds = values, bounds

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __iter__(self) -> Iterator[Any]:
        return iter([self.values[a:b] for a, b in pairwise(self.bounds)])

    def __getitem__(self, index: Any) -> Any:
        return (
            [*self][index]
            if isinstance(index, slice)
            else self.values[self.bounds[index] : self.bounds[index + 1]]
        )


def collate_each(groups: Sequence[Any]) -> list[Any]:
    """Collate every group; small batches of plain numbers are rows of one array, for speed.

    >>> collate_each(NeighbourGroups([1, 2, 3, 4], [0, 2, 4]))
    [array([1, 2]), array([3, 4])]
    """
    if (
        not isinstance(groups, NeighbourGroups)
        or not isinstance(groups.values, list)
        or len(groups) < 2
    ):
        return [*map(collate, groups)]
    out, bounds = list[Any](), groups.bounds
    width = bounds[1] - bounds[0]
    chunk = max(1, _SHARED_ARRAY_NUMBERS // max(width, 1))
    for first in range(0, len(groups), chunk):
        edges = bounds[first : first + chunk + 1]
        rows = (
            _build_rows(groups.values[edges[0] : edges[-1]], width)
            if _are_bounds_even(edges, width)
            else None
        )
        out += [collate(groups.values[a:b]) for a, b in pairwise(edges)] if rows is None else rows
    return out


def _are_bounds_even(bounds: Sequence[int], width: int) -> bool:
    return width > 0 and bounds == [*range(bounds[0], bounds[-1] + 1, width)]


def _build_rows(values: list[Any], width: int) -> list[Any] | None:
    """Return rows of one array, if each equals the array that its numbers alone would give.

    A number of the plain type in each row ensures that.
    """
    kinds = {*map(type, values[::width])}
    plain = _PLAIN_DTYPES.get(kinds.pop()) if len(kinds) == 1 else None
    if plain is None:
        return None
    try:
        numbers = make_exact_array(values)
    except ValueError:  # other values are among the numbers
        return None
    return [*numbers.reshape(-1, width)] if numbers.ndim == 1 and numbers.dtype == plain else None
