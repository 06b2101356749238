"""Integers that are derived from lengths: cached in a file, memory-mapped, checked page by page."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from ..engine.base.sizes import (
    ConcatenatedLengths,
    EndOffsetLengths,
    LengthsByIndex,
    OffsetLengths,
)
from ..errors import DataError, PenstockError, convert_storage_errors
from ..types import Ints, Json, Sizes
from . import derived_files, sums
from .derived_files import Kind

_INTEGERS_PER_BLOCK = sums.BLOCK_BYTES // 8


@dataclass(frozen=True)
class VersionedLengths(LengthsByIndex):
    """Lengths by a function; `version` identifies them, and is empty if nothing does."""

    version: str


@dataclass(frozen=True)
class VersionedEnds(EndOffsetLengths):
    """Lengths by end offsets; `version` identifies them."""

    version: str


class _MeasuredSource(Protocol):
    def __len__(self) -> int: ...
    def lengths(self) -> Sizes | None: ...


def load_or_make_integers(
    source: _MeasuredSource, key: Mapping[str, Json], make: Callable[[], Ints], /
) -> CachedIntegers | None:
    """Return cached integers of the lengths of a source, which one process of a machine makes.

    Args:
        source: The source that the integers are derived from.
        key: Identifies them among those of the source.
        make: Makes them.

    Returns:
        The integers; `None` if nothing identifies the lengths, or if they cannot be stored.
    """
    if (version := identify_lengths(source.lengths())) is None:
        return None
    with suppress(PenstockError, OSError):
        return CachedIntegers({"lengths": version, "rows": len(source), **key}, make)
    return None


def read_lengths_version(source: _MeasuredSource, /) -> Json:
    """Return an exact identity of the lengths of a source, or `None` if nothing identifies them."""
    return identify_lengths(source.lengths())


def identify_lengths(lengths: Sizes | None) -> Json:
    """Return an exact identity of lengths, or `None` if nothing identifies them.

    A digest of the source would not do. It covers some blocks and rows, so files whose documents
    end elsewhere can have the same digest, and so have two columns of one file.

    >>> identify_lengths(np.array([1, 2])) == identify_lengths(np.array([1, 3]))
    False
    """
    match lengths:
        case ConcatenatedLengths(parts):
            versions = [identify_lengths(part) for part in parts]
            return None if None in versions else versions
        case VersionedLengths(version=version) | VersionedEnds(version=version):
            return version or None
        case OffsetLengths(offsets):
            return f"offsets {_hash_integers(offsets)}"
        case np.ndarray():
            return _hash_integers(lengths)
        case _:
            return None


def _hash_integers(integers: Ints) -> str:
    data = np.ascontiguousarray(integers, "<i8").data.cast("B")
    chunks = (data[at : at + sums.CHUNK_BYTES] for at in range(0, len(data), sums.CHUNK_BYTES))
    return hashlib.blake2b(sums.compute_checksums(chunks).data, digest_size=16).hexdigest()


class CachedIntegers:
    """Integers in a copy in the cache.

    A slice compares the blocks that it reads with their checksums, each block once. If one is
    damaged, the integers are made again; they stay in memory if they cannot be stored.

    Args:
        key: Everything that the integers follow from.
        make: Makes them.
        cache: Cache folder.
    """

    def __init__(
        self, key: Json, make: Callable[[], Ints], cache: str | Path | None = None
    ) -> None:
        self._fingerprint, self._make = derived_files.hash_key(key), make
        name = hashlib.blake2b(repr(self._fingerprint).encode(), digest_size=12).hexdigest()
        self._data = Path("/sums") / name
        self._path = derived_files.cache_path(self._data, cache, "sums")
        try:
            self._open(False)
        except DataError:
            self._make_again()

    def __len__(self) -> int:
        return len(self._integers)

    def __getitem__(self, span: slice) -> Ints:
        start, stop, _ = span.indices(len(self))
        try:
            self._compare(start, stop)
        except DataError:
            self._make_again()
        return self._integers[span]

    def _open(self, rebuild: bool) -> None:
        path, kind = self._path, Kind.INTEGERS

        def write(file: BinaryIO) -> None:
            integers = self._make()
            for part in np.array_split(integers, 1 + integers.size // (1 << 20)):
                file.write(part.astype("<i8", copy=False).tobytes())

        derived_files.ensure_copy(
            path, kind, self._data, write, fingerprint=self._fingerprint, rebuild=rebuild
        )
        _, checks = derived_files.read_body(derived_files.stamp_path(path), kind, self._data)
        with convert_storage_errors(path), path.open("rb") as file:
            self._bytes = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self._checks = np.frombuffer(checks, "<u4")
        self._compared = np.zeros(len(self._checks), np.bool_)
        self._integers = np.frombuffer(self._bytes[: len(self._bytes) // 8 * 8], "<i8")

    def _make_again(self) -> None:
        derived_files.log_damaged(self._path)
        try:
            self._open(True)
        except PenstockError:
            self._integers = self._make()
            self._compared = np.ones(-(-len(self) // _INTEGERS_PER_BLOCK), np.bool_)

    def _compare(self, start: int, stop: int) -> None:
        """Compare the blocks of some integers with their checksums, each block once."""
        first, last = start // _INTEGERS_PER_BLOCK, -(-stop // _INTEGERS_PER_BLOCK)
        if not self._compared[first:last].all():
            blocks = self._bytes[first * sums.BLOCK_BYTES : last * sums.BLOCK_BYTES]
            name = str(self._path)
            sums.require_equal_checksums(blocks, first * sums.BLOCK_BYTES, self._checks, name)
            self._compared[first:last] = True
