"""Checksums of the blocks of a file, which detect bit flips in formats without checksums.

Each covers 4 KiB: reads cover full blocks, which are compared. Line indexes and stamps of copies
contain checksums; for other files `penstock index --checksum` makes them.

A checksum multiplies the 64-bit words of a block by keyed odd factors, and keeps the upper half of
the sum modulo 2**64. This is multilinear hashing (Lemire and Kaser, "Strongly universal string
hashing is fast", 2014). It takes a quarter of the time of CRC-32. A single bit flip always changes
it: no product of a factor and a power of 2 has an upper half of zeros or ones
(`tests/sources/test_sums.py`). Other damage goes undetected with probability 2**-32. The factors
are public, so checksums do not protect against attacks.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..engine.base.random import hash64
from ..errors import DataError, StorageError
from ..stores import storage

BLOCK_BYTES = 4 << 10
CHUNK_BYTES = 1 << 20

_HASH_FACTORS = hash64(0, np.arange(BLOCK_BYTES // 8)) | np.uint64(1)
_LENGTH_FACTOR = hash64(1, np.arange(1)) | np.uint64(1)

BlockChecksums: TypeAlias = npt.NDArray[np.integer[Any]]


def compute_checksums(chunks: Iterable[bytes | memoryview]) -> BlockChecksums:
    """Return the checksums of chunks, each but the last a multiple of the block size.

    >>> compute_checksums([b"a" * 4096 + b"b"]).tolist()
    [3945947320, 2042099434]
    """
    return np.concatenate(
        [np.zeros(0, "<u4"), *(_compute_chunk_checksums(memoryview(chunk)) for chunk in chunks)]
    )


def _compute_chunk_checksums(chunk: memoryview) -> npt.NDArray[np.uint32]:
    """Return the checksums of the blocks of a chunk.

    The sum of the last block includes its length, so that trailing zeros count.
    """
    full_size = len(chunk) // BLOCK_BYTES * BLOCK_BYTES
    words = np.frombuffer(chunk[:full_size], "<u8").reshape(-1, BLOCK_BYTES // 8)
    factors = _HASH_FACTORS[: BLOCK_BYTES // 8]
    products = np.einsum("ij,j->i", words, factors) + _LENGTH_FACTOR * np.uint64(BLOCK_BYTES)
    if remainder := len(chunk) - full_size:
        last = np.frombuffer(bytes(chunk[full_size:]).ljust(BLOCK_BYTES, b"\0"), "<u8")
        products = np.append(
            products, (last * factors).sum(dtype=np.uint64) + _LENGTH_FACTOR * np.uint64(remainder)
        )
    return (products >> np.uint64(32)).astype("<u4")


def read(path: Path, start: int, length: int, sums: BlockChecksums | None, name: str) -> bytes:
    """Read bytes of a file and compare them with its checksums.

    Args:
        path: The file.
        start: First byte.
        length: Number of bytes.
        sums: Checksums of the blocks, if any.
        name: Name of the file in errors.

    Raises:
        DataError: The bytes differ from their checksums, or the file is too short.
    """
    low = start if sums is None else start // BLOCK_BYTES * BLOCK_BYTES
    stop = start + length if sums is None else -(-(start + length) // BLOCK_BYTES) * BLOCK_BYTES
    try:
        data = storage.world.store.read(str(path), low, stop - low)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error
    if len(data) < start + length - low:
        raise make_truncation_error(len(data), low, start + length - low, name)
    if sums is None:
        return data
    require_equal_checksums(memoryview(data), low, sums, name)
    return data[start - low : start + length - low]


def make_truncation_error(count: int, offset: int, expected: int, name: str) -> DataError:
    """Build the error for a file that ends too early."""
    return DataError(
        f"{count} bytes at {offset} where {expected} were expected: the file was cut off",
        where=name,
    )


def require_equal_checksums(data: memoryview, offset: int, sums: BlockChecksums, name: str) -> None:
    """Raise if full blocks of a file, from byte `offset` on, differ from their checksums."""
    first, current = offset // BLOCK_BYTES, _compute_chunk_checksums(data)
    expected = sums[first : first + len(current)]
    if not np.array_equal(current, expected):
        differ = np.flatnonzero(current[: len(expected)] != expected)
        first_bad = BLOCK_BYTES * (first + (int(differ[0]) if len(differ) else len(expected)))
        raise DataError(
            f"bytes {first_bad:,} to {first_bad + BLOCK_BYTES - 1:,} changed since the file was indexed: "
            "it is damaged, or was modified; fetch it again, or index it again if it is correct",
            where=name,
        )
