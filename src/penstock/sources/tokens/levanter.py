"""Levanter's caches: a ledger, and two zarr arrays per field, data and offsets.

Offset 0 is the number of rows; offset `i + 1` is the end of row `i`. A cache is one folder of
arrays, or one such folder per shard. Tokens are in the field `input_ids`; other fields are not
read.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ...engine.base.progress import Progress
from ...errors import MALFORMED_INPUT_ERRORS, ConfigError, DataError, make_missing_extra_error
from ...stores import is_remote, parse_location, storage
from ...types import Ints, Sizes
from .. import file_versions, meta
from ..cached_integers import VersionedEnds
from ..chain import FilesOutline, IndexedFile, JoinedFiles
from ..lru import LRUCache, SharedCaches
from .file import (
    IndexedEnds,
    compute_document_bounds,
    load_document_ends,
    read_file_lengths,
    require_same_dtype,
)

LEDGER_NAME = "shard_ledger.json"

_TOKEN_FIELD = "input_ids"


class CacheFile:
    """The rows of one folder of arrays; they are decompressed, hence no views."""

    columns = None

    def __init__(
        self, folder: Path, ends: IndexedEnds, shared: SharedCaches, dtype: np.dtype[Any]
    ) -> None:
        self.dtype = dtype
        self._data, self._ends, self._shared = folder / _TOKEN_FIELD / "data", ends, shared

    def __len__(self) -> int:
        return len(self._ends)

    def read(self, indices: Ints, /) -> list[npt.NDArray[Any]]:
        """Return the documents at `indices`; their chunks are read concurrently."""
        joined = self.joined()
        starts, stops = compute_document_bounds(self._ends.get(), indices)
        return joined.many(starts.tolist(), stops.tolist())

    def lengths(self) -> Sizes:
        """Return the number of tokens of every document, computed on access."""
        return VersionedEnds(self._ends.get, len(self), self._ends.version)

    def joined(self) -> StoredArray:
        """Return the tokens of all documents, concatenated."""
        ends = self._ends.get()
        array = self._shared.files.get(self._data, lambda: (1, _open_array(self._data)))
        return StoredArray(self._data, array, int(ends[-1]) if ends.size else 0)


class StoredArray:
    """The first elements of an array on disk; slicing reads them."""

    def __init__(self, path: Path, array: Any, length: int) -> None:
        self._path, self._array, self._length = path, array, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, span: slice) -> npt.NDArray[Any]:
        start, stop, _ = span.indices(self._length)
        return self.many([start], [stop])[0]

    def many(self, starts: Sequence[int], stops: Sequence[int]) -> list[npt.NDArray[Any]]:
        """Read several slices concurrently."""
        try:
            futures = [
                self._array[start:stop].read() for start, stop in zip(starts, stops, strict=True)
            ]
            return [future.result() for future in futures]
        except ValueError as error:
            raise DataError(f"the array cannot be read: {error}", where=str(self._path)) from error


def is_cache(path: str | Path) -> bool:
    """Return whether a folder contains Levanter's ledger."""
    try:
        return (parse_location(path) / LEDGER_NAME).is_file()
    except (OSError, RuntimeError):  # `find` reports what is wrong with the path
        return False


def open_cache(path: str | Path, cache: str | Path | None) -> JoinedFiles:
    """Open the documents of a cache, in the order of its shards."""
    folder = parse_location(path)
    folders, shared = _list_array_folders(folder), SharedCaches(LRUCache(128), LRUCache(0))
    files = list[IndexedFile]()
    with Progress("open shards", len(folders), "files") as progress:
        for shard, rows in progress.each(folders):
            files.append(_open_cache_file(shard, rows, cache, shared))
            require_same_dtype(files[-1], files[0], folders[0][0], shard)
    paths = [Path(entry.path) for shard, _ in folders for entry in _list_chunk_entries(shard)]
    outline = FilesOutline(
        [len(file) for file in files],
        None,
        [file_versions.stat_file(chunk_path) for chunk_path in paths],
    )
    lengths, name = partial(read_file_lengths, files), folder.absolute().name
    return JoinedFiles(
        files, outline, format="levanter", name=name, paths=paths, cache=cache, lengths=lengths
    )


def _list_array_folders(folder: Path) -> list[tuple[Path, int]]:
    """Return the array folders of a cache, and the rows of each."""
    ledger_path = folder / LEDGER_NAME
    data = meta.read_bytes(ledger_path)
    try:
        ledger = cast("dict[str, Any]", json.loads(data))
        finished, total = bool(ledger["is_finished"]), int(ledger["total_num_rows"])
        sharded = ledger.get("layout") == "sharded"
        shards = [
            (folder / name, int(ledger["shard_rows"][name])) for name in ledger["finished_shards"]
        ]
    except MALFORMED_INPUT_ERRORS as error:
        raise DataError(
            f"it is no ledger of Levanter's, or is damaged: {error!r}", where=str(ledger_path)
        ) from error
    if not finished:
        raise ConfigError(f"{folder}: this cache of Levanter's is incomplete: build it again")
    if not sharded:
        return [(folder, total)]
    for shard, _ in shards:
        if not shard.resolve().is_relative_to(folder.resolve()):
            raise DataError(
                f"the shard {str(shard)!r} does not lie below this folder: move it there",
                where=str(ledger_path),
            )
    if sum(rows for _, rows in shards) != total:
        raise DataError(
            f"its shards do not add up to its {total:,} rows: it is damaged", where=str(ledger_path)
        )
    return shards


def _open_cache_file(
    folder: Path, rows: int, cache: str | Path | None, shared: SharedCaches
) -> CacheFile:
    data = folder / _TOKEN_FIELD / "data"
    find = partial(_read_document_ends, folder, rows)
    ends = load_document_ends(folder / LEDGER_NAME, "documents", find, None, cache, shared, False)
    if len(ends) != rows:
        raise DataError(
            f"the folder holds {len(ends):,} rows, its ledger lists {rows:,}", where=str(folder)
        )
    array = shared.files.get(data, lambda: (1, _open_array(data)))
    tokens, chunk = int(ends.get()[-1]) if rows else 0, array.chunk_layout.write_chunk.shape[0]
    for number in range(-(-tokens // chunk)):  # zarr reads a missing chunk as zeros
        if not (data / "c" / str(number)).is_file():
            raise DataError(f"chunk {number} of its tokens is missing", where=str(data))
    return CacheFile(folder, ends, shared, array.dtype.numpy_dtype)


def _read_document_ends(folder: Path, rows: int) -> Ints:
    path = folder / _TOKEN_FIELD / "offsets"
    offsets = StoredArray(path, _open_array(path), rows + 1)[: rows + 1].astype(np.int64)
    if offsets[0] != rows or (np.diff(offsets[1:], prepend=0) < 0).any():
        raise DataError(
            f"its offsets do not describe {rows:,} rows: it is damaged", where=str(path)
        )
    return offsets[1:]


def _list_chunk_entries(folder: Path) -> list[storage.FolderEntry]:
    return [
        entry
        for name in ("data", "offsets")
        for pattern in ("zarr.json", "c/*")
        for entry in storage.world.store.list(
            f"{folder.as_posix()}/{_TOKEN_FIELD}/{name}/{pattern}"
        )
    ]


def _open_array(path: Path) -> Any:
    if is_remote(path):
        raise ConfigError(
            f"{path}: Penstock reads Levanter's caches from local folders only: copy it to one"
        )
    try:
        tensorstore: Any = importlib.import_module("tensorstore")
    except ModuleNotFoundError:
        raise make_missing_extra_error(
            "tensorstore", "levanter", f"reading {path.parent.parent}"
        ) from None
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path.absolute())}}
    try:
        return tensorstore.open(spec, open=True, read=True).result()
    except ValueError as error:
        raise DataError(f"it is no readable zarr array: {error}", where=str(path)) from error
