"""Checksums of the blocks of a file, kept in its index: a flipped bit is noticed in formats that have no checksums.

They are CRC-32, of 4 KiB each: what is read of a file is read in whole blocks, and compared. Line indexes and the
stamps of copies have them, any other file where `penstock index --checksum` made them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..base import seams
from ..errors import DataError, StorageError

BLOCK = 4 << 10
CHUNK = 1 << 20

Sums: TypeAlias = npt.NDArray[np.integer[Any]]


def of(chunks: Iterable[bytes | memoryview]) -> Sums:
    """The checksums of what these chunks hold, each but the last of them some whole blocks.

    >>> of([b"a" * 4096 + b"b"]).tolist()
    [2627329139, 1908338681]
    """
    found: list[int] = []
    for chunk in chunks:
        found += _each(memoryview(chunk))
    return np.asarray(found, "<u4")


def _each(chunk: memoryview) -> list[int]:
    return [zlib.crc32(chunk[at : at + BLOCK]) for at in range(0, len(chunk), BLOCK)]


def read(path: Path, start: int, length: int, sums: Sums | None, name: str) -> bytes:
    """Bytes of a file, as they were when its checksums were made. Of `name` is said what is wrong with them."""
    low = start if sums is None else start // BLOCK * BLOCK
    stop = start + length if sums is None else -(-(start + length) // BLOCK) * BLOCK
    try:
        found = seams.world.store.read(str(path), low, stop - low)
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from error
    if len(found) < start + length - low:
        raise DataError(
            f"{len(found)} bytes at {low} where {start + length - low} were expected: it was cut", where=name
        )
    if sums is None:
        return found
    compare(memoryview(found), low, sums, name)
    return found[start - low : start + length - low]


def compare(found: memoryview, at: int, sums: Sums, name: str) -> None:
    """Refuse whole blocks of a file, from byte `at` on, that are not what they were."""
    first, now = at // BLOCK, _each(found)
    then: list[int] = sums[first : first + len(now)].tolist()
    if now != then:
        same = [one == other for one, other in zip(now, then, strict=False)]
        bad = BLOCK * (first + (same.index(False) if False in same else len(same)))
        raise DataError(
            f"bytes {bad:,} to {bad + BLOCK - 1:,} are not what they were when it was indexed: it is damaged, or was "
            "changed; fetch it anew, or index it again if it is as it should be",
            where=name,
        )
