"""A tree over the sources of a mixture, as arrays: light sources below, heavy ones near the root.

Huffman's tree (1952) keeps the share of an inner node within its parent at 2/3 or less, so rounding
errors of a half at every split add up to less than 2 at any leaf. It is built in rounds: all nodes
lighter than the two lightest together may be paired with each other in any way without losing that.
Each round pairs what was given too much with what was given too little, so that what is owed to a
subtree stays as small as what is owed to a source.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import fsum
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ...types import Ints

Floats = npt.NDArray[np.float64]
_T = TypeVar("_T", bound=np.generic)

WHOLE = 1 << 48
"""The largest sum of integer weights: a product with a position inside a window stays below
2^62."""

_URGENT = 8


@dataclass(frozen=True, eq=False)
class Shape:
    """A binary tree. Leaves are nodes `0..n-1`, inner node `i` is node `n+i`, the root is the last.

    `rounds` cuts the inner nodes into runs whose children all lie in earlier runs or among the
    leaves.
    """

    left: Ints
    right: Ints
    rounds: tuple[tuple[int, int], ...]

    @property
    def leaves(self) -> int:
        return len(self.left) + 1

    @cached_property
    def parent(self) -> Ints:
        """The inner node above each node; -1 above the root."""
        up = np.full(2 * self.leaves - 1, -1, np.int64)
        up[self.left] = up[self.right] = np.arange(len(self.left))
        return up

    def sums(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Values of leaves (the first axis) to values of all nodes, added pair by pair: the same on
        every platform."""
        n = self.leaves
        out = np.empty((2 * n - 1, *values.shape[1:]), values.dtype)
        out[:n] = values
        for a, b in self.rounds:
            np.add(out[self.left[a:b]], out[self.right[a:b]], out=out[n + a : n + b])
        return out

    def least(self, values: Floats) -> Floats:
        """The least leaf below each node."""
        n = self.leaves
        out = np.empty(2 * n - 1)
        out[:n] = values
        for a, b in self.rounds:
            np.minimum(out[self.left[a:b]], out[self.right[a:b]], out=out[n + a : n + b])
        return out


def grow(weights: Ints, residual: Floats) -> Shape:
    """The tree for these weights, all positive; `residual` is what each source was given too much
    so far."""
    n = len(weights)
    weight, owed = np.empty(2 * n - 1, np.int64), np.empty(2 * n - 1)
    # Who waits for more than a whole draw is put nearer to the root, where it is served soon,
    # however light it is.
    weight[:n], owed[:n] = np.where(residual < -1, weights * _URGENT, weights), residual
    left, right = np.empty(n - 1, np.int64), np.empty(n - 1, np.int64)
    rounds = list[tuple[int, int]]()
    waiting, made = np.arange(n), 0
    while len(waiting) > 1:
        waiting = waiting[np.argsort(weight[waiting], kind="stable")]
        light = int(weight[waiting[:2]].sum())
        pairs = max(1, int(np.searchsorted(weight[waiting], light)) // 2)
        batch = waiting[: 2 * pairs]
        batch = batch[np.argsort(owed[batch], kind="stable")]
        here = slice(made, made + pairs)
        left[here], right[here] = batch[:pairs], batch[: pairs - 1 : -1]
        new = np.arange(n + made, n + made + pairs)
        weight[new] = weight[left[here]] + weight[right[here]]
        owed[new] = owed[left[here]] + owed[right[here]]
        rounds.append((made, made + pairs))
        made += pairs
        waiting = np.concatenate([waiting[2 * pairs :], new])
    return Shape(left, right, tuple(rounds))


def whole_weights(weights: Floats) -> Ints:
    """Weights as integers in proportion: exact for numbers of up to 9 decimals, else to 47 bits.
    Zero stays zero.

    >>> whole_weights(np.asarray([0.29, 0.71, 0.0])).tolist()
    [29, 71, 0]
    """
    largest = float(weights.max())
    for digits in range(10):
        scale = 10.0**digits
        if largest * scale * len(weights) >= WHOLE:
            break
        whole = np.rint(weights * scale)
        if bool((whole / scale == weights).all()):
            found = whole.astype(np.int64)
            return found // np.gcd.reduce(found)
    relative = weights / largest
    found = np.rint(relative * (WHOLE / 2 / fsum(relative.tolist()))).astype(np.int64)
    return np.where((found == 0) & (weights > 0), 1, found)
