"""Grain's shuffle permutation in NumPy: a Feistel cipher with Simon's round function.

An index becomes a block of an even number of bits, two halves of `w` bits. Four rounds change the
halves in turn by `(rotl1(x) & rotl8(x)) ^ rotl2(x)` and a key; the keys come from C++'s
`std::seed_seq`. Outputs outside the range are encrypted again (cycle walking). Verified against the
installed Grain, over all lengths up to some hundreds and around powers of two.

Grain derives the number of bits from the logarithm of the largest index. For lengths `2^k + 1` (k
even, from 16 on) that is one bit too few. The last index then collides with another one, so one
sample is never seen and one is seen twice. This module reproduces that, to keep Grain's order;
Penstock's own order has no such lengths.
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
)  # permutations up to this length are tabulated per seed: their block is 16 bits wide

Words = npt.NDArray[np.uint64]


def shuffled(x: Ints, n: int, seed: int) -> Ints:
    """Return the output of Grain's shuffle of `range(n)` under a 32-bit seed, for each `x`.

    >>> shuffled(np.arange(10), 10, 3329053876).tolist()
    [1, 7, 6, 9, 0, 8, 4, 5, 3, 2]
    """
    if n <= _TABLE:
        return _table(n, seed & _WORD)[x]
    return _encrypt(x, n, seed, inverse=False)


def unshuffled(x: Ints, n: int, seed: int) -> Ints:
    """Invert `shuffled`."""
    if n <= _TABLE:
        return np.argsort(_table(n, seed & _WORD), kind="stable")[x]
    return _encrypt(x, n, seed, inverse=True)


def half_bits(n: int) -> int:
    """Return the width of half a block for the numbers below `n`."""
    bits = max(16, ceil(log2(n - 1))) if n > 2 else 16
    return (bits + bits % 2) // 2


def _encrypt(x: Ints, n: int, seed: int, inverse: bool) -> Ints:
    w, keys = half_bits(n), seed_words(seed, _ROUNDS)
    out = _block(x.astype(np.uint64), w, keys, inverse)
    while (outside := np.flatnonzero(out >= n)).size:
        out[outside] = _block(out[outside], w, keys, inverse)
    return out.astype(np.int64)


@lru_cache(maxsize=64)
def _table(n: int, seed: int) -> Ints:
    """Tabulate the whole permutation, with cycle walking for all numbers at once.

    Pointer doubling: each step doubles the known length of every walk.
    """
    image_once = _block(
        np.arange(_TABLE, dtype=np.uint64), 8, seed_words(seed, _ROUNDS), inverse=False
    ).astype(np.int64)
    image, jump = image_once[:n], image_once
    inside = np.arange(_TABLE) < n
    jump = np.where(inside, np.arange(_TABLE), image_once)
    while (image >= n).any():
        image, jump = jump[image], jump[jump]
    return image


def _block(x: Words, w: int, keys: list[int], inverse: bool) -> Words:
    mask, shift = np.uint64((1 << w) - 1), np.uint64(w)
    left, right = (x >> shift) & mask, x & mask
    for i in range(_ROUNDS - 1, -1, -1) if inverse else range(_ROUNDS):
        key = np.uint64(keys[i]) & mask
        if i % 2 == 0:
            left = left ^ _round_function(right, w, mask) ^ key
        else:
            right = right ^ _round_function(left, w, mask) ^ key
    return (left << shift) | right


def _round_function(x: Words, w: int, mask: np.uint64) -> Words:
    return (_rotate(x, 1, w, mask) & _rotate(x, 8, w, mask)) ^ _rotate(x, 2, w, mask)


def _rotate(x: Words, bits: int, w: int, mask: np.uint64) -> Words:
    bits %= w
    return ((x << np.uint64(bits)) | (x >> np.uint64(w - bits))) & mask


@lru_cache(maxsize=4096)
def seed_words(seed: int, count: int) -> list[int]:
    """Generate `count` 32-bit words as C++'s `std::seed_seq{seed}` does.

    Reference: ISO C++, [rand.util.seedseq].
    """
    n, s = count, 1
    words = [0x8B8B8B8B] * n
    t = (n - 1) // 2 if n < 7 else 3 if n < 39 else 5 if n < 68 else 7 if n < 623 else 11
    p, q = (n - t) // 2, (n - t) // 2 + t
    rounds = max(s + 1, n)
    for k in range(2 * rounds):
        a, b, here = (k + p) % n, (k + q) % n, k % n
        if k < rounds:
            r = 1664525 * _xorshift(words[here] ^ words[a] ^ words[(k - 1) % n]) & _WORD
            r2 = r + (s if k == 0 else here + seed if k <= s else here)
            words[a], words[b], words[here] = (
                (words[a] + r) & _WORD,
                (words[b] + r2) & _WORD,
                r2 & _WORD,
            )
        else:
            r = (
                1566083941 * _xorshift((words[here] + words[a] + words[(k - 1) % n]) & _WORD)
                & _WORD
            )
            r2 = (r - here) & _WORD
            words[a], words[b], words[here] = words[a] ^ r, words[b] ^ r2, r2
    return words


def _xorshift(x: int) -> int:
    return x ^ (x >> 27)
