"""Digests of files, by which a saved state recognises the data that it belongs to.

Files are identified by their sizes and a few blocks of at most 16 files. If these differ, because
files moved or were re-sharded or compressed again, 64 rows decide. Facts about files are cached, so
that one process of a machine reads the files.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from ..engine.base.progress import Progress
from ..errors import ChangedFileError, StorageError, convert_storage_errors
from ..stores import storage
from ..types import UNKNOWN_DIGEST, Digest, Ints
from . import derived_files
from .canonical_values import Speller
from .digests import HashBuilder, digest_memory, sample_fixed_indices

STARTS, STARTS_OF_PART = 16, 4
"""Starting rows of a source, and of one of many parts of a source, from which rows are hashed."""

_FILES, _PIECE = 16, 64 << 10  # files to hash, and the bytes of each of three blocks
_NEIGHBOURS = 4  # rows to hash from each starting row
_VERSION = 2


def digest_sampled_rows(
    read: Callable[[Ints], list[Any]], n: int, start_count: int = STARTS
) -> str:
    """Return the digest of 64 rows out of `n`, or of four from each of other numbers of starts.

    An unreadable row counts by its error type.

    Raises:
        ChangedFileError: A file changed since it was opened, so that its rows are not those read.
    """
    digest = HashBuilder()
    starts = sample_fixed_indices(max(1, n - _NEIGHBOURS + 1), start_count).tolist()
    with Progress("read rows to know the data by", len(starts)) as progress:
        for start in progress.each(starts):
            for row in range(start, min(n, start + _NEIGHBOURS)):
                try:
                    (value,) = read(np.asarray([row]))
                except (StorageError, OSError, MemoryError, ChangedFileError):
                    raise
                except Exception as error:
                    value = type(error).__name__
                if isinstance(value, dict):
                    value = {
                        name: part
                        for name, part in cast("dict[str, Any]", value).items()
                        if name != "__shard__"
                    }
                digest.add(Speller(digest_memory).spelled([value]))
    return digest.text()


def digest_files(
    paths: Sequence[Path],
    stats: Sequence[storage.Stat],
    read: Callable[[Ints], list[Any]],
    rows: int,
    reading: str,
    cache: str | Path | None,
    companions: Sequence[storage.Stat] = (),
    stored: bool = True,
    start_count: int = STARTS,
) -> Digest:
    """Return digests of files: of their blocks (`files`) and of their rows (`rows`).

    Args:
        paths: The files.
        stats: Their versions.
        read: Reads rows.
        rows: Number of rows.
        reading: Text that identifies how rows are read.
        cache: Cache folder.
        companions: Versions of the files beside them, on which the rows depend too.
        stored: Store the digests; false if more than these files decides about the rows.
        start_count: Starting rows to hash.
    """

    def compute() -> Digest:
        return {
            "files": _hash_file_blocks(paths, stats),
            "rows": digest_sampled_rows(read, rows, start_count),
        }

    name = f"digest {_VERSION} {rows} {reading}"
    try:
        if not stored:
            return compute()
        return derived_files.load_fact(paths, [*stats, *companions], name, compute, cache)
    except ChangedFileError as error:
        logging.getLogger("penstock").warning("%s; states cannot identify its data", error)
        return {"files": UNKNOWN_DIGEST, "rows": UNKNOWN_DIGEST}


def _hash_file_blocks(paths: Sequence[Path], stats: Sequence[storage.Stat]) -> str:
    digest = HashBuilder()
    digest.add(json.dumps([stat.size for stat in stats]).encode())
    for number in map(int, sample_fixed_indices(len(paths), _FILES)):
        for start in _choose_block_offsets(stats[number].size):
            with convert_storage_errors(paths[number]):
                digest.add(storage.world.store.read(str(paths[number]), start, _PIECE))
    return digest.text()


def _choose_block_offsets(size: int) -> Iterator[int]:
    """Yield the offsets of the blocks of a file to hash: at its start, its end, and in between."""
    yield 0
    if size > _PIECE:
        yield from sorted({size - _PIECE, int(sample_fixed_indices(size - _PIECE + 1, 1)[0])})
