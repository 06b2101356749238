"""Checksums of the blocks of a file, kept in its index: a flipped bit is noticed in formats that
have no checksums.

They are of 4 KiB each: what is read of a file is read in whole blocks, and compared. Line indexes
    and the stamps of
copies have them, any other file where `penstock index --checksum` made them.

A sum is the upper half of a sum of products modulo 2**64, of the 64-bit words of a block and keyed
odd factors (multilinear hashing: Lemire and Kaser, "Strongly universal string hashing is fast",
2014). It takes a quarter of the time of CRC-32. One flipped bit always changes it: the factors are
chosen such that no product of one with a power of 2 has a half of zeros or ones above
(`tests/sources/test_sums.py`). Other damage passes with a chance of 2**-32. Not
against who means harm: factors are no secret.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..engine.base import seams
from ..engine.base.random import hash64
from ..errors import DataError, StorageError

BLOCK = 4 << 10
CHUNK = 1 << 20

_FACTORS = hash64(0, np.arange(BLOCK // 8)) | np.uint64(1)
_LENGTH = hash64(1, np.arange(1)) | np.uint64(1)

Sums: TypeAlias = npt.NDArray[np.integer[Any]]


def of(chunks: Iterable[bytes | memoryview]) -> Sums:
    """The checksums of what these chunks hold, each but the last of them some whole blocks.

    >>> of([b"a" * 4096 + b"b"]).tolist()
    [3945947320, 2042099434]
    """
    return np.concatenate([np.zeros(0, "<u4"), *(_each(memoryview(chunk)) for chunk in chunks)])


def _each(chunk: memoryview) -> npt.NDArray[np.uint32]:
    """The sums of the blocks of a chunk. The last one is taken with its length, as zeros after it
    would not show."""
    whole = len(chunk) // BLOCK * BLOCK
    words = np.frombuffer(chunk[:whole], "<u8").reshape(-1, BLOCK // 8)
    factors = _FACTORS[: BLOCK // 8]
    found = np.einsum("ij,j->i", words, factors) + _LENGTH * np.uint64(BLOCK)
    if rest := len(chunk) - whole:
        last = np.frombuffer(bytes(chunk[whole:]).ljust(BLOCK, b"\0"), "<u8")
        found = np.append(found, (last * factors).sum(dtype=np.uint64) + _LENGTH * np.uint64(rest))
    return (found >> np.uint64(32)).astype("<u4")


def read(path: Path, start: int, length: int, sums: Sums | None, name: str) -> bytes:
    """Bytes of a file, as they were when its checksums were made. Of `name` is said what is wrong
    with them."""
    low = start if sums is None else start // BLOCK * BLOCK
    stop = start + length if sums is None else -(-(start + length) // BLOCK) * BLOCK
    try:
        found = seams.world.store.read(str(path), low, stop - low)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error
    if len(found) < start + length - low:
        raise short(len(found), low, start + length - low, name)
    if sums is None:
        return found
    compare(memoryview(found), low, sums, name)
    return found[start - low : start + length - low]


def short(found: int, at: int, expected: int, name: str) -> DataError:
    """What is raised where a file ends too early."""
    return DataError(
        f"{found} bytes at {at} where {expected} were expected: it was cut", where=name
    )


def compare(found: memoryview, at: int, sums: Sums, name: str) -> None:
    """Refuse whole blocks of a file, from byte `at` on, that are not what they were."""
    first, now = at // BLOCK, _each(found)
    then = sums[first : first + len(now)]
    if not np.array_equal(now, then):
        differ = np.flatnonzero(now[: len(then)] != then)
        bad = BLOCK * (first + (int(differ[0]) if len(differ) else len(then)))
        raise DataError(
            f"bytes {bad:,} to {bad + BLOCK - 1:,} are not what they were when it was indexed: it "
            "is damaged, or was "
            "changed; fetch it anew, or index it again if it is as it should be",
            where=name,
        )
