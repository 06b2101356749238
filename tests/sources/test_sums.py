"""Checksums of blocks: one flipped bit always shows, and so does every other kind of damage that was thought of."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.errors import DataError
from penstock.sources import sums
from penstock.sources.sums import BLOCK_BYTES, compute_checksums, require_equal_checksums

RNG = np.random.default_rng(0)


def test_no_flipped_bit_can_hide() -> None:
    # A flipped bit k of a word adds or takes factor * 2**k. Above bit 32 nothing is carried, and the factor is odd;
    # below, what it adds to the upper half may be one less or more, so it must be neither 0 nor all ones.
    factors = [int(factor) for factor in sums._HASH_FACTORS]
    assert all(factor & 1 for factor in factors) and len(set(factors)) == BLOCK_BYTES // 8
    for bit in range(64):
        upper = {(sign * factor << bit) % 2**64 >> 32 for factor in factors for sign in (1, -1)}
        assert 0 not in upper
        assert bit >= 32 or 2**32 - 1 not in upper


@pytest.mark.parametrize(
    "size", [1, 7, 8, 100, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES + 9]
)
def test_every_flipped_bit_is_seen(size: int) -> None:
    body = RNG.bytes(size)
    then = compute_checksums([body])
    assert len(then) == -(-size // BLOCK_BYTES)
    for at in {0, size - 1, size // 2, *RNG.integers(0, size, 30).tolist()}:
        for bit in range(8):
            flipped = bytearray(body)
            flipped[at] ^= 1 << bit
            with pytest.raises(
                DataError,
                match=rf"bytes {at // BLOCK_BYTES * BLOCK_BYTES:,} to .* changed since the file was indexed",
            ):
                require_equal_checksums(memoryview(bytes(flipped)), 0, then, "x")


def test_other_damage_is_seen() -> None:
    body = RNG.bytes(2 * BLOCK_BYTES)
    then = compute_checksums([body])
    require_equal_checksums(memoryview(body), 0, then, "x")
    require_equal_checksums(memoryview(body[BLOCK_BYTES:]), BLOCK_BYTES, then, "x")
    swapped = body[8:16] + body[:8] + body[16:]
    for other in (
        body[BLOCK_BYTES:] + body[:BLOCK_BYTES],
        swapped,
        bytes(2 * BLOCK_BYTES),
        body[:-1],
        body + b"\0",
        body[:-8] + bytes(8),
    ):
        with pytest.raises(DataError, match="changed since the file was indexed"):
            require_equal_checksums(memoryview(other), 0, then, "x")
    assert compute_checksums([b"a"]).tolist() != compute_checksums([b"a\0"]).tolist(), (
        "zeros at the end count"
    )


def test_the_sums_stay_what_they_are() -> None:
    assert compute_checksums([b"a" * BLOCK_BYTES + b"b", b"", b"c"]).tolist() == [
        3945947320,
        2042099434,
        3252254993,
    ]
