"""Levanter's caches: a ledger, and for every field two arrays of zarr, its data end to end and its
offsets.

Offset 0 is the number of rows, offset `i + 1` the end of row `i`. A cache is one folder of arrays,
or one of such folders a shard. The field of tokens is `input_ids`; others are not read.
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

from ...engine.base import seams
from ...engine.base.progress import Progress
from ...engine.base.sizes import Ends
from ...errors import ConfigError, DataError, missing_extra
from ...stores import is_remote, located
from ...types import Ints, Sizes
from .. import meta, sidecar
from ..chain import Chain, File, Outline
from ..held import Held, Shared
from .file import KeptEnds, bounds, kept_ends, lengths_of_files, of_one_type

LEDGER = "shard_ledger.json"

_FIELD = "input_ids"


class CacheFile:
    """The rows of one folder of arrays. Rows are read from chunks that are compressed, so they are
    no views."""

    columns = None

    def __init__(self, folder: Path, ends: KeptEnds, shared: Shared, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self._data, self._ends, self._shared = folder / _FIELD / "data", ends, shared

    def __len__(self) -> int:
        return len(self._ends)

    def read(self, indices: Ints, /) -> list[npt.NDArray[Any]]:
        """The documents at `indices`, their chunks asked for side by side."""
        joined = self.joined()
        starts, stops = bounds(self._ends.get(), indices)
        return joined.many(starts.tolist(), stops.tolist())

    def lengths(self) -> Sizes:
        """The number of tokens of every document; none is held."""
        return Ends(self._ends.get, len(self))

    def joined(self) -> Stored:
        """The tokens of all documents end to end."""
        ends = self._ends.get()
        array = self._shared.files.get(self._data, lambda: (1, _opened(self._data)))
        return Stored(self._data, array, int(ends[-1]) if ends.size else 0)


class Stored:
    """The first numbers of an array on disk; a slice reads them."""

    def __init__(self, path: Path, array: Any, length: int) -> None:
        self._path, self._array, self._length = path, array, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, wanted: slice) -> npt.NDArray[Any]:
        start, stop, _ = wanted.indices(self._length)
        return self.many([start], [stop])[0]

    def many(self, starts: Sequence[int], stops: Sequence[int]) -> list[npt.NDArray[Any]]:
        """Several slices, asked for at once."""
        try:
            asked = [self._array[a:b].read() for a, b in zip(starts, stops, strict=True)]
            return [one.result() for one in asked]
        except ValueError as error:
            raise DataError(f"it cannot be read: {error}", where=str(self._path)) from error


def is_cache(path: str | Path) -> bool:
    """Whether this is a folder with Levanter's ledger in it."""
    try:
        return (located(path) / LEDGER).is_file()
    except (OSError, RuntimeError):  # what is wrong with the path is said where it is looked for
        return False


def open_cache(path: str | Path, cache: str | Path | None) -> Chain:
    """The documents of a cache, in the order of its shards."""
    folder = located(path)
    folders, shared = _folders(folder), Shared(Held(128), Held(0))
    files = list[File]()
    with Progress("open shards", len(folders), "files") as progress:
        for one, rows in progress.each(folders):
            files.append(_file(one, rows, cache, shared))
            of_one_type(files[-1], files[0], folders[0][0], one)
    paths = [Path(entry.path) for one, _ in folders for entry in _chunks(one)]
    outline = Outline([len(file) for file in files], None, [sidecar.stat(each) for each in paths])
    lengths, name = partial(lengths_of_files, files), folder.absolute().name
    return Chain(
        files, outline, format="levanter", name=name, paths=paths, cache=cache, lengths=lengths
    )


def _folders(folder: Path) -> list[tuple[Path, int]]:
    """The folders of arrays of a cache, and the rows of each."""
    where = folder / LEDGER
    data = meta.read_bytes(where)
    try:
        ledger = cast("dict[str, Any]", json.loads(data))
        finished, total = bool(ledger["is_finished"]), int(ledger["total_num_rows"])
        sharded = ledger.get("layout") == "sharded"
        shards = [
            (folder / name, int(ledger["shard_rows"][name])) for name in ledger["finished_shards"]
        ]
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise DataError(
            f"it is no ledger of Levanter's, or is damaged: {error!r}", where=str(where)
        ) from error
    if not finished:
        raise ConfigError(f"{folder}: Levanter did not write this cache to its end: build it again")
    if not sharded:
        return [(folder, total)]
    for shard, _ in shards:
        if not shard.resolve().is_relative_to(folder.resolve()):
            raise DataError(
                f"the shard {str(shard)!r} does not lie below this folder, and is not read",
                where=str(where),
            )
    if sum(rows for _, rows in shards) != total:
        raise DataError(
            f"its shards do not hold the {total:,} rows that it tells", where=str(where)
        )
    return shards


def _file(folder: Path, rows: int, cache: str | Path | None, shared: Shared) -> CacheFile:
    data = folder / _FIELD / "data"
    find = partial(_ends, folder, rows)
    ends = kept_ends(folder / LEDGER, "documents", find, None, cache, shared, False)
    if len(ends) != rows:
        raise DataError(
            f"it holds {len(ends):,} rows, its ledger tells of {rows:,}", where=str(folder)
        )
    array = shared.files.get(data, lambda: (1, _opened(data)))
    many, chunk = int(ends.get()[-1]) if rows else 0, array.chunk_layout.write_chunk.shape[0]
    for number in range(-(-many // chunk)):  # of a chunk that is not there zarr gives zeros
        if not (data / "c" / str(number)).is_file():
            raise DataError(f"chunk {number} of its tokens is not there", where=str(data))
    return CacheFile(folder, ends, shared, array.dtype.numpy_dtype)


def _ends(folder: Path, rows: int) -> Ints:
    path = folder / _FIELD / "offsets"
    found = Stored(path, _opened(path), rows + 1)[: rows + 1].astype(np.int64)
    if found[0] != rows or (np.diff(found[1:], prepend=0) < 0).any():
        raise DataError(
            f"its offsets are not those of {rows:,} rows: it is damaged", where=str(path)
        )
    return found[1:]


def _chunks(folder: Path) -> list[seams.Entry]:
    return [
        entry
        for name in ("data", "offsets")
        for pattern in ("zarr.json", "c/*")
        for entry in seams.world.store.list(f"{folder.as_posix()}/{_FIELD}/{name}/{pattern}")
    ]


def _opened(path: Path) -> Any:
    if is_remote(path):
        raise ConfigError(
            f"{path}: Levanter's caches are read from folders of this machine: copy it to one"
        )
    try:
        tensorstore: Any = importlib.import_module("tensorstore")
    except ModuleNotFoundError:
        raise missing_extra("tensorstore", "levanter", f"reading {path.parent.parent}") from None
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(path.absolute())}}
    try:
        return tensorstore.open(spec, open=True, read=True).result()
    except ValueError as error:
        raise DataError(
            f"it is no array of zarr that can be read: {error}", where=str(path)
        ) from error
