"""Keyed randomness: permutations are permutations, inverses invert, keys do not collide, nothing looks regular."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.base.random import (
    build_permutations,
    create_sample_generator,
    derive_key,
    derive_tweak_keys,
    draw_integer,
    hash64,
    permute,
    unpermute,
)

EDGES = sorted({max(1, 2**k + d) for k in range(1, 23) for d in (-1, 0, 1)})


@pytest.mark.parametrize("n", [*range(1, 301)])
def test_small_permutations(n):
    places = permute(np.arange(n), n, key=5, tweak=n % 7)
    assert np.array_equal(np.sort(places), np.arange(n))
    assert np.array_equal(unpermute(places, n, key=5, tweak=n % 7), np.arange(n))


@pytest.mark.parametrize("n", EDGES)
def test_permutations_around_powers_of_two(n):
    """A peer loses one element and doubles another for 2^k + 1; none may."""
    places = permute(np.arange(n), n, key=11, tweak=3)
    assert (np.bincount(places, minlength=n) == 1).all()
    some = np.arange(n) if n < 5000 else np.random.default_rng(0).integers(0, n, 5000)
    assert np.array_equal(unpermute(places[some], n, key=11, tweak=3), some)


@given(st.integers(1, 2**60), st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.data())
def test_any_size_inverts(n, key, tweak, data):
    x = np.asarray(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=20)), np.int64)
    y = permute(x, n, key, tweak)
    assert ((y >= 0) & (y < n)).all()
    assert np.array_equal(unpermute(y, n, key, tweak), x)


@given(st.integers(1, 6000), st.lists(st.integers(0, 50), min_size=1, max_size=50), st.data())
def test_many_tweaks_at_once_equal_one_by_one(n, tweaks, data):
    x = np.asarray([data.draw(st.integers(0, n - 1)) for _ in tweaks], np.int64)
    together = permute(x, n, 9, np.asarray(tweaks, np.int64))
    alone = [int(permute(x[i : i + 1], n, 9, t)[0]) for i, t in enumerate(tweaks)]
    assert together.tolist() == alone
    assert np.array_equal(unpermute(together, n, 9, np.asarray(tweaks, np.int64)), x)


def test_seed_and_epoch_do_not_add_up():
    n = 1000
    a = permute(np.arange(n), n, derive_key(42, "shuffle"), 1)
    b = permute(np.arange(n), n, derive_key(43, "shuffle"), 0)
    assert (a == b).mean() < 0.02


@pytest.mark.parametrize("lag", range(-20, 21))
def test_block_permutations_of_neighbouring_seeds_are_unrelated(lag):
    """A peer's seed 43 is its seed 42 one block later."""
    blocks = np.arange(20, 40)
    a = build_permutations(100, derive_tweak_keys(derive_key(42, "mix"), blocks))
    b = build_permutations(100, derive_tweak_keys(derive_key(43, "mix"), blocks + lag))
    assert (a == b).mean() < 0.05


def test_low_bits_are_mixed():
    """With a weak round function the class of the low bits of the output is fixed by that of the input."""
    n = 1 << 20
    places = permute(np.arange(n), n, key=3)
    for i in (0, 1, 9, 10, 11, 19):
        for j in (0, 1, 9, 10, 11, 19):
            agree = float(((places >> i & 1) == (np.arange(n) >> j & 1)).mean())
            assert abs(agree - 0.5) < 5 * 0.5 / n**0.5, (i, j, agree)


@pytest.mark.parametrize("n", [1 << 12, 5000, 1 << 16, 1_000_003, 1 << 20])
def test_strides_look_random(n):
    """Differences of neighbours spread as those of NumPy's permutation do."""

    def spread(places):
        strides = np.diff(places)
        counts = np.histogram(strides, bins=50, range=(-n, n))[0]
        return counts / len(strides), len(np.unique(strides)) / len(strides)

    ours, ours_unique = spread(permute(np.arange(n), n, key=n))
    theirs, theirs_unique = spread(np.random.default_rng(0).permutation(n))
    assert np.abs(ours - theirs).max() < 6 * (0.04 / n) ** 0.5 + 1e-3
    assert abs(ours_unique - theirs_unique) < 0.02


@pytest.mark.parametrize("n", [50, 4096, 4097, 100_000])
def test_epochs_are_unrelated(n):
    same = [
        (permute(np.arange(n), n, 1, e) == permute(np.arange(n), n, 1, e + 1)).sum()
        for e in range(10)
    ]
    assert np.mean(same) < 5  # a random permutation has one fixed point on average


def test_every_place_is_equally_likely():
    counts = np.zeros((6, 6), int)
    table = build_permutations(6, derive_tweak_keys(1, np.arange(36_000)))
    for place in range(6):
        counts[place] = np.bincount(table[:, place], minlength=6)
    assert np.abs(counts - 6000).max() < 6 * 6000**0.5


def test_keys_tell_types_and_groupings_apart():
    keys = {
        derive_key(1, 2),
        derive_key(12),
        derive_key("1", "2"),
        derive_key("12"),
        derive_key(1, "2"),
        derive_key("1", 2),
        derive_key(),
        derive_key(""),
    }
    assert len(keys) == 8


def test_orders_are_the_same_on_every_machine():
    """Golden values: whoever changes them breaks the order of every run in progress (label ORDER)."""
    assert derive_key(42, "code", "shuffle") == GOLDEN["key"]
    assert permute(np.arange(10), 10, 42).tolist() == GOLDEN["small"]
    assert permute(np.arange(6), 1_000_000, 42, 1).tolist() == GOLDEN["large"]
    assert permute(np.arange(3), 10**12, 42, 1).tolist() == GOLDEN["huge"]
    assert hash64(7, np.arange(2)).tolist() == GOLDEN["hash"]
    assert [draw_integer(3, i, 100) for i in range(5)] == GOLDEN["pick"]
    assert create_sample_generator(1, 2, 3).integers(0, 1000, 3).tolist() == GOLDEN["generator"]


GOLDEN = {
    "key": 7023377128747460617,
    "small": [2, 0, 6, 5, 1, 4, 3, 7, 8, 9],
    "large": [892563, 954973, 423793, 443429, 77783, 98875],
    "huge": [249991144482, 633335697992, 953099774537],
    "hash": [8409816773569330625, 13309476754707697221],
    "pick": [8, 6, 81, 96, 1],
    "generator": [303, 100, 191],
}
