"""The permutation that Grain shuffles with, number by number: a Feistel cipher in the manner of
Simon, in NumPy.

A number is put into a block of an even number of bits, two halves of `w` bits. Four rounds change
the halves in turn by `(rotl1(x) & rotl8(x)) ^ rotl2(x)` and a key; the keys come from C++'s
`std::seed_seq`. What falls outside the range is put through again. Checked against the installed
Grain, over all lengths up to some hundreds and around powers of two.

Grain takes the number of bits from the logarithm of the largest index. For lengths `2^k + 1` (k
even, from 16 on) that
is one bit too few: the last index is folded onto another one, so one sample is never seen and one
    is seen twice.
That is reproduced here, as the order would be another one without it; Penstock's own order has no
such lengths.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, log2

import numpy as np
import numpy.typing as npt

from ...types import Ints

_ROUNDS = 4
_WORD = 0xFFFFFFFF
_TABLE = (
    1 << 16
)  # ranges up to here are worked out whole, once for a seed: the block is then 16 bits wide

Words = npt.NDArray[np.uint64]


def shuffled(x: Ints, n: int, seed: int) -> Ints:
    """Where Grain's shuffle of `range(n)` under a seed of 32 bits puts each `x`.

    >>> shuffled(np.arange(10), 10, 3329053876).tolist()
    [1, 7, 6, 9, 0, 8, 4, 5, 3, 2]
    """
    if n <= _TABLE:
        return _table(n, seed & _WORD)[x]
    return _walk(x, n, seed, inverse=False)


def unshuffled(x: Ints, n: int, seed: int) -> Ints:
    """The inverse of `shuffled`."""
    if n <= _TABLE:
        return np.argsort(_table(n, seed & _WORD), kind="stable")[x]
    return _walk(x, n, seed, inverse=True)


def half_bits(n: int) -> int:
    """The width of half a block for the numbers below `n`."""
    bits = max(16, ceil(log2(n - 1))) if n > 2 else 16
    return (bits + bits % 2) // 2


def _walk(x: Ints, n: int, seed: int, inverse: bool) -> Ints:
    w, keys = half_bits(n), seed_words(seed, _ROUNDS)
    out = _block(x.astype(np.uint64), w, keys, inverse)
    while (outside := np.flatnonzero(out >= n)).size:
        out[outside] = _block(out[outside], w, keys, inverse)
    return out.astype(np.int64)


@lru_cache(maxsize=64)
def _table(n: int, seed: int) -> Ints:
    """The whole permutation. Where a number leaves the range it is followed until it is back, all
    at once: every step doubles the stretch of the way that is known.
    """
    once = _block(
        np.arange(_TABLE, dtype=np.uint64), 8, seed_words(seed, _ROUNDS), inverse=False
    ).astype(np.int64)
    found, far = once[:n], once
    back = np.arange(_TABLE) < n
    far = np.where(back, np.arange(_TABLE), once)
    while (found >= n).any():
        found, far = far[found], far[far]
    return found


def _block(x: Words, w: int, keys: list[int], inverse: bool) -> Words:
    mask, shift = np.uint64((1 << w) - 1), np.uint64(w)
    left, right = (x >> shift) & mask, x & mask
    for i in range(_ROUNDS - 1, -1, -1) if inverse else range(_ROUNDS):
        key = np.uint64(keys[i]) & mask
        if i % 2 == 0:
            left = left ^ _mixed(right, w, mask) ^ key
        else:
            right = right ^ _mixed(left, w, mask) ^ key
    return (left << shift) | right


def _mixed(x: Words, w: int, mask: np.uint64) -> Words:
    return (_turned(x, 1, w, mask) & _turned(x, 8, w, mask)) ^ _turned(x, 2, w, mask)


def _turned(x: Words, by: int, w: int, mask: np.uint64) -> Words:
    by %= w
    return ((x << np.uint64(by)) | (x >> np.uint64(w - by))) & mask


@lru_cache(maxsize=4096)
def seed_words(seed: int, count: int) -> list[int]:
    """What `std::seed_seq{seed}` of C++ generates: `count` words of 32 bits (ISO C++,
    [rand.util.seedseq])."""
    n, s = count, 1
    words = [0x8B8B8B8B] * n
    t = (n - 1) // 2 if n < 7 else 3 if n < 39 else 5 if n < 68 else 7 if n < 623 else 11
    p, q = (n - t) // 2, (n - t) // 2 + t
    turns = max(s + 1, n)
    for k in range(2 * turns):
        a, b, here = (k + p) % n, (k + q) % n, k % n
        if k < turns:
            r = 1664525 * _folded(words[here] ^ words[a] ^ words[(k - 1) % n]) & _WORD
            r2 = r + (s if k == 0 else here + seed if k <= s else here)
            words[a], words[b], words[here] = (
                (words[a] + r) & _WORD,
                (words[b] + r2) & _WORD,
                r2 & _WORD,
            )
        else:
            r = 1566083941 * _folded((words[here] + words[a] + words[(k - 1) % n]) & _WORD) & _WORD
            r2 = (r - here) & _WORD
            words[a], words[b], words[here] = words[a] ^ r, words[b] ^ r2, r2
    return words


def _folded(x: int) -> int:
    return x ^ (x >> 27)
