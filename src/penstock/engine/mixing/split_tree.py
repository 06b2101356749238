"""A tree over the sources of a mixture, as arrays: light sources below, heavy ones near the root.

Huffman's tree (1952) keeps the share of an inner node within its parent at 2/3 or less, so rounding
errors of a half at every split add up to less than 2 at any leaf. It is built in rounds: all nodes
lighter than the two lightest together may be paired with each other in any way without losing that.
Each round pairs sources that were drawn too often with sources that were drawn too rarely, so that
a subtree has as small a surplus as a source.
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
class SplitTree:
    """A binary tree. Leaves are nodes `0..n-1`, inner node `i` is node `n+i`, the root is the last.

    `rounds` cuts the inner nodes into runs whose children all lie in earlier runs or among the
    leaves.
    """

    left: Ints
    right: Ints
    rounds: tuple[tuple[int, int], ...]

    @property
    def leaves(self) -> int:
        """The number of leaves."""
        return len(self.left) + 1

    @cached_property
    def parent(self) -> Ints:
        """The inner node above each node; -1 above the root."""
        up = np.full(2 * self.leaves - 1, -1, np.int64)
        up[self.left] = up[self.right] = np.arange(len(self.left))
        return up

    def sums(self, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        """Return the sum over the leaves (the first axis) below each node.

        Values are added pair by pair, so the sums are equal on every platform.
        """
        return self._reduce(np.add, values)

    def minima(self, values: Floats) -> Floats:
        """Return the minimum over the leaves below each node."""
        return self._reduce(np.minimum, values)

    def _reduce(self, function: np.ufunc, values: npt.NDArray[_T]) -> npt.NDArray[_T]:
        n = self.leaves
        out = np.empty((2 * n - 1, *values.shape[1:]), values.dtype)
        out[:n] = values
        for a, b in self.rounds:
            function(out[self.left[a:b]], out[self.right[a:b]], out=out[n + a : n + b])
        return out


def build_split_tree(weights: Ints, surplus: Floats) -> SplitTree:
    """Build the tree for weights, all positive; `surplus` has the excess draws of each source."""
    n = len(weights)
    weight, excess = np.empty(2 * n - 1, np.int64), np.empty(2 * n - 1)
    # A source that waits for more than a draw is put nearer to the root, where its turn is soon.
    weight[:n], excess[:n] = np.where(surplus < -1, weights * _URGENT, weights), surplus
    left, right = np.empty(n - 1, np.int64), np.empty(n - 1, np.int64)
    rounds = list[tuple[int, int]]()
    roots, made = np.arange(n), 0
    while len(roots) > 1:
        roots = roots[np.argsort(weight[roots], kind="stable")]
        limit = int(weight[roots[:2]].sum())
        pairs = max(1, int(np.searchsorted(weight[roots], limit)) // 2)
        batch = roots[: 2 * pairs]
        batch = batch[np.argsort(excess[batch], kind="stable")]
        new = slice(made, made + pairs)
        left[new], right[new] = batch[:pairs], batch[: pairs - 1 : -1]
        parents = np.arange(n + made, n + made + pairs)
        weight[parents] = weight[left[new]] + weight[right[new]]
        excess[parents] = excess[left[new]] + excess[right[new]]
        rounds.append((made, made + pairs))
        made += pairs
        roots = np.concatenate([roots[2 * pairs :], parents])
    return SplitTree(left, right, tuple(rounds))


def convert_to_integer_weights(weights: Floats) -> Ints:
    """Convert weights to integers in proportion: exact up to 9 decimals, else to 47 bits.

    Zero stays zero.

    >>> convert_to_integer_weights(np.asarray([0.29, 0.71, 0.0])).tolist()
    [29, 71, 0]
    """
    largest = float(weights.max())
    for digits in range(10):
        scale = 10.0**digits
        if largest * scale * len(weights) >= WHOLE:
            break
        scaled = np.rint(weights * scale)
        if bool((scaled / scale == weights).all()):
            integers = scaled.astype(np.int64)
            return integers // np.gcd.reduce(integers)
    relative = weights / largest
    integers = np.rint(relative * (WHOLE / 2 / fsum(relative.tolist()))).astype(np.int64)
    return np.where((integers == 0) & (weights > 0), 1, integers)


def convert_to_stair_weights(weights: Floats) -> Ints:
    """Convert mean weights of stairs, float64[sources, stairs], to integers of sum 2^48.

    Any weight above 0 stays above 0.
    """
    total = np.add.accumulate(weights, axis=0)[-1]  # in order: equal on every platform
    out = np.rint(weights / total * WHOLE).astype(np.int64)
    out = np.where((out == 0) & (weights > 0), 1, out)
    heaviest = out.argmax(axis=0)
    out[heaviest, np.arange(out.shape[1])] += WHOLE - out.sum(axis=0)
    return out
