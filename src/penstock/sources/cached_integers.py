"""Integers that are derived from a source: cached in a file, memory-mapped, checked page by page."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from ..engine.base.canonical_json import encode_canonical_json
from ..engine.base.sizes import (
    ConcatenatedLengths,
    EndOffsetLengths,
    LengthsByIndex,
    OffsetLengths,
)
from ..errors import DataError, PenstockError, convert_storage_errors
from ..stores import storage
from ..types import Ints, Json, Sizes
from . import sidecar, sums

_INTEGERS_PER_BLOCK = sums.BLOCK_BYTES // 8


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
        The integers; `None` if nothing identifies the lengths, or if there is no cache folder.
    """
    if (version := identify_lengths(source.lengths())) is None:
        return None
    text = encode_canonical_json({"lengths": version, "rows": len(source), **key})
    with suppress(PenstockError, OSError):
        return CachedIntegers(_write_key(text), make)
    return None


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
        case LengthsByIndex() | EndOffsetLengths():
            return lengths.version or None
        case OffsetLengths(offsets):
            return _hash_integers(np.diff(offsets))
        case np.ndarray():
            return _hash_integers(lengths)
        case _:
            return None


def _hash_integers(integers: Ints) -> str:
    data = np.ascontiguousarray(integers, "<i8").data
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _write_key(text: bytes) -> Path:
    """Return the path of a file with a key; the integers lie beside it."""
    name = hashlib.blake2b(text, digest_size=12).hexdigest()
    path = sidecar.cache_folder(Path("/sums") / name, None) / "what.json"
    if not path.exists() or path.read_bytes() != text:
        with (
            sidecar.lock_folder(path.parent) as locked,
            storage.world.disk.create(path, locked) as file,
        ):
            file.write(text)
    return path


class CachedIntegers:
    """Integers in a file beside the file of their key.

    A slice compares the blocks that it reads with their checksums, each block once. If one is
    damaged, the integers are made again.
    """

    def __init__(self, key_file: Path, make: Callable[[], Ints]) -> None:
        self._key_file, self._make = key_file, make
        try:
            self._open(False)
        except DataError:
            self._open(True)

    def __len__(self) -> int:
        return len(self._integers)

    def __getitem__(self, span: slice) -> Ints:
        start, stop, _ = span.indices(len(self))
        try:
            self._compare(start, stop)
        except DataError:
            self._open(True)
        return self._integers[span]

    def _open(self, rebuild: bool) -> None:
        key_file = self._key_file
        path = key_file.with_name("sums")

        def write(file: BinaryIO) -> None:
            integers = self._make()
            for part in np.array_split(integers, 1 + integers.size // (1 << 20)):
                file.write(part.astype("<i8", copy=False).tobytes())

        sidecar.ensure_copy(path, sidecar.TOTALS, key_file, write, rebuild=rebuild)
        _, checks = sidecar.read_body(sidecar.stamp_path(path), sidecar.TOTALS, key_file)
        with convert_storage_errors(path), path.open("rb") as file:
            self._bytes = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        self._checks = np.frombuffer(checks, "<u4")
        self._compared = np.zeros(len(self._checks), np.bool_)
        self._integers = np.frombuffer(self._bytes[: len(self._bytes) // 8 * 8], "<i8")

    def _compare(self, start: int, stop: int) -> None:
        """Compare the blocks of some integers with their checksums, each block once."""
        first, last = start // _INTEGERS_PER_BLOCK, -(-stop // _INTEGERS_PER_BLOCK)
        if not self._compared[first:last].all():
            blocks = self._bytes[first * sums.BLOCK_BYTES : last * sums.BLOCK_BYTES]
            sums.require_equal_checksums(
                blocks, first * sums.BLOCK_BYTES, self._checks, str(self._key_file)
            )
            self._compared[first:last] = True
