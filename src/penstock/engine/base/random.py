"""Keyed randomness: every random number is a pure function of a key; there is no state.

A key is 64 bits hashed from names and numbers (`derive_key`). From a key come hashes of integers
(`hash64`), permutations that are computed element by element and can be inverted (`permute`,
`unpermute`), and NumPy generators (`create_sample_generator`). Integer arithmetic only, so that the same key
gives the same order on every platform and with every version of NumPy. `RANDOM_VERSION` names these
algorithms in saved states.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import isqrt
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ...types import Ints

RANDOM_VERSION = 3

Words = npt.NDArray[np.uint64]

_MAX_TABLE_SIZE = (
    8192  # up to here a permutation is a sorted table of hashes; above it is a Feistel network
)
MIN_FEISTEL_SIZE = _MAX_TABLE_SIZE + 1
_ROUND_COUNT = 6
_MAX_TABULATED_SIDE = (
    1 << 11
)  # half-domains up to this size use tables of the round functions, for short calls
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_UINT64_MASK = (1 << 64) - 1


def derive_key(*parts: int | str) -> int:
    """Hash names and numbers to a 64-bit key. Parts of different type or grouping never collide.

    >>> derive_key(42, "code", "shuffle") == derive_key(42, "code", "shuffle")
    True
    >>> derive_key(42, 1) == derive_key(43, 0)
    False
    """
    spelled = list[bytes]()
    for part in parts:
        kind, body = (b"s", part.encode()) if isinstance(part, str) else (b"i", b"%d" % part)
        spelled.append(b"%b%d:%b" % (kind, len(body), body))
    return int.from_bytes(hashlib.blake2b(b"".join(spelled), digest_size=8).digest(), "little")


def derive_pass_key(key: int, epoch: int) -> int:
    """Return the key of a step in a pass: its own key in the first pass, else a derived key."""
    return derive_key(key, epoch) if epoch else key


def hash_names(names: Iterable[str]) -> Words:
    """Return a 64-bit key for each name."""
    digests = (hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names)
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def mix64(x: Words) -> Words:
    """Mix 64-bit words by the finalizer of SplitMix64 (Steele, Lea, Flood 2014), a bijection."""
    out = x >> np.uint64(30)  # in place from here, as this is a hot loop
    out ^= x
    out *= np.uint64(0xBF58476D1CE4E5B9)
    out ^= out >> np.uint64(27)
    out *= np.uint64(0x94D049BB133111EB)
    out ^= out >> np.uint64(31)
    return out


def hash64(key: int, counters: Ints) -> Words:
    """Hash counters under a key: uint64, the same shape."""
    first = mix64(np.asarray([(key + GOLDEN_GAMMA) & _UINT64_MASK], np.uint64))
    return mix64(counters.astype(np.uint64) * np.uint64(GOLDEN_GAMMA) + first)


def draw_integer(key: int, counter: int, n: int) -> int:
    """Return a uniform integer in `[0, n)`, the `counter`-th under a key."""
    return int(derive_key(key, counter) * n >> 64)


def create_sample_generator(key: int, epoch: int, index: int, part: int = 0) -> np.random.Generator:
    """Return the NumPy generator of a sample: keyed Philox, equal on all workers and resumes."""
    first = derive_key(key, epoch, index, part)
    return np.random.Generator(np.random.Philox(key=first))


# ---------------------------------------------------------------- permutations


def permute(x: Ints, n: int, key: int, tweak: Ints | int = 0) -> Ints:
    """Apply a random permutation of `range(n)`; each `tweak`, such as an epoch, has its own.

    Exact for every `n` up to 2^62, O(1) memory, about 30 ns a position. Up to 8,192 the permutation
    sorts 64-bit hashes; above, it is a six-round Feistel network over `Z_a x Z_b` with `a*b` just
    over `n` (Black and Rogaway 2002) and random functions for its rounds.

    >>> sorted(permute(np.arange(10), 10, key=1).tolist()) == list(range(10))
    True
    """
    return _permute_by_tweak(x, n, key, tweak, inverse=False)


def unpermute(x: Ints, n: int, key: int, tweak: Ints | int = 0) -> Ints:
    """Apply the inverse of `permute`."""
    return _permute_by_tweak(x, n, key, tweak, inverse=True)


def build_permutations(n: int, keys: Words) -> npt.NDArray[np.int64]:
    """Return complete permutations of `range(n)`, n <= 8192: int64[len(keys), n]."""
    steps = mix64(np.arange(1, n + 1, dtype=np.uint64) * np.uint64(GOLDEN_GAMMA))
    words = mix64(keys[:, None] + steps[None, :])
    # The low 13 bits store the index, so words are distinct and every sort algorithm agrees.
    words = (words & np.uint64(~0x1FFF & _UINT64_MASK)) | np.arange(n, dtype=np.uint64)
    words.sort(axis=1)
    return (words & np.uint64(0x1FFF)).astype(np.int64)


def derive_tweak_keys(key: int, tweaks: Ints) -> Words:
    """Return a 64-bit key for each tweak."""
    return hash64(key ^ 0x5DEECE66D, tweaks)


def _permute_by_tweak(x: Ints, n: int, key: int, tweak: Ints | int, *, inverse: bool) -> Ints:
    if n <= 1 or x.size == 0:
        return np.zeros_like(x)
    if isinstance(tweak, int):
        return _permute_one_tweak(x, n, key, tweak, inverse)
    first = int(tweak[0])
    if bool((tweak == first).all()):
        return _permute_one_tweak(x, n, key, first, inverse)
    unique, which = cast("tuple[Ints, Ints]", np.unique(tweak, return_inverse=True))
    if n <= _MAX_TABLE_SIZE and len(unique) * n <= 1 << 22:
        table = build_permutations(n, derive_tweak_keys(key, unique))
        if inverse:
            table = np.argsort(table, axis=1, kind="stable")
        return table[which, x]
    out = np.empty_like(x)
    for i, t in enumerate(unique.tolist()):
        rows = np.flatnonzero(which == i)
        out[rows] = _permute_one_tweak(x[rows], n, key, t, inverse)
    return out


def _permute_one_tweak(x: Ints, n: int, key: int, tweak: int, inverse: bool) -> Ints:
    if n <= _MAX_TABLE_SIZE:
        return _tabulate_permutation(n, key, tweak, inverse)[x]
    return _permute_feistel(x, n, key, tweak, inverse)


@lru_cache(maxsize=4096)
def _tabulate_permutation(n: int, key: int, tweak: int, inverse: bool) -> Ints:
    row = build_permutations(n, derive_tweak_keys(key, np.asarray([tweak], np.int64)))[0]
    return np.argsort(row, kind="stable") if inverse else row


def _compute_sides(n: int) -> tuple[int, int]:
    a = isqrt(n - 1) + 1
    return a, -(-n // a)


def _apply_round(x: Ints, word: int, modulus: int) -> Ints:
    """Hash integers to `[0, modulus)`, keyed by a 64-bit word."""
    return _apply_round_each(x, np.uint64(word), np.uint64(modulus))


def _apply_round_each(x: Ints, word: Any, modulus: Any) -> Ints:
    """Hash integers to `[0, modulus)`, with a scalar or a vector of words and moduli."""
    high = mix64(x.astype(np.uint64) * np.uint64(GOLDEN_GAMMA) + word) >> np.uint64(32)
    high *= modulus
    return (high >> np.uint64(32)).view(np.int64)


@lru_cache(maxsize=1024)
def _derive_round_keys(n: int, key: int, tweak: int) -> list[int]:
    return [derive_key(key, tweak, n, r) for r in range(_ROUND_COUNT)]


@lru_cache(maxsize=4096)
def _tabulate_rounds(n: int, key: int, tweak: int) -> list[Ints]:
    """The round functions, tabulated."""
    a, b = _compute_sides(n)
    words = _derive_round_keys(n, key, tweak)
    return [
        _apply_round(np.arange(a if r % 2 else b, dtype=np.int64), word, b if r % 2 else a)
        for r, word in enumerate(words)
    ]


@lru_cache(maxsize=1024)
def _tabulate_modulus(modulus: int) -> Ints:
    """Tabulate `x % modulus` for x below twice the modulus; faster than arithmetic."""
    return np.arange(2 * modulus, dtype=np.int64) % modulus


def _permute_feistel(x: Ints, n: int, key: int, tweak: int, inverse: bool) -> Ints:
    out = _run_feistel_network(x, n, key, tweak, inverse)
    # Cycle walking: a*b exceeds n by less than a, so about one element in sqrt(n) is repeated.
    while (outside := np.flatnonzero(out >= n)).size:
        out[outside] = _run_feistel_network(out[outside], n, key, tweak, inverse)
    return out


def permute_each(
    x: Ints, which: Ints, sizes: Sequence[int], keys: Sequence[int], tweaks: Sequence[int]
) -> Ints:
    """Apply `permute` to positions with different sizes, keys and tweaks, selected by `which`.

    Sizes are `MIN_FEISTEL_SIZE` or more.

    >>> both = permute_each(np.asarray([5, 7]), np.asarray([1, 0]), [9_000, 10_000], [1, 2], [0, 3])
    >>> both.tolist() == [permute(np.asarray([5]), 10_000, 2, 3)[0], permute(np.asarray([7]), 9_000, 1, 0)[0]]
    True
    """
    words = np.asarray(
        [_derive_round_keys(*settings) for settings in zip(sizes, keys, tweaks, strict=True)],
        np.uint64,
    ).reshape(-1, _ROUND_COUNT)
    sides = np.asarray([_compute_sides(n) for n in sizes], np.int64).reshape(-1, 2)
    n = np.asarray(sizes, np.int64)
    out, todo = x.copy(), np.arange(len(x))
    while todo.size:
        rows = which[todo]
        a, b = sides[rows].T
        left = out[todo] // b
        right = out[todo] - left * b
        for r in range(0, _ROUND_COUNT, 2):
            left = left + _apply_round_each(right, words[rows, r], a.view(np.uint64))
            left -= (left >= a) * a
            right = right + _apply_round_each(left, words[rows, r + 1], b.view(np.uint64))
            right -= (right >= b) * b
        out[todo] = permuted = left * b + right
        todo = todo[permuted >= n[rows]]
    return out


def _run_feistel_network(x: Ints, n: int, key: int, tweak: int, inverse: bool) -> Ints:
    a, b = _compute_sides(n)
    tables = _tabulate_rounds(n, key, tweak) if a <= _MAX_TABULATED_SIDE else None
    words = _derive_round_keys(n, key, tweak)
    left = x // b
    right = x - left * b
    for r in range(_ROUND_COUNT - 1, -1, -1) if inverse else range(_ROUND_COUNT):
        source, target, modulus = (left, right, b) if r % 2 else (right, left, a)
        turn = tables[r][source] if tables is not None else _apply_round(source, words[r], modulus)
        target = target - turn + modulus if inverse else target + turn
        target = (
            _tabulate_modulus(modulus)[target]
            if tables is not None
            else target - (target >= modulus) * modulus
        )
        if r % 2:
            right = target
        else:
            left = target
    return left * b + right
