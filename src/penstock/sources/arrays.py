"""HDF5 files and Zarr folders: arrays of one length, read along their first axis. A row has a value
of each array.

A chunk is decoded once while it is held, and arrays stay open for a while: opening one takes as
    long as many reads.
What would lead out of a file, or run code, is refused: external and virtual data of HDF5, pickles
    in Zarr.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import json
import math
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..engine.base import machine
from ..engine.base.seams import Stat
from ..errors import ConfigError, DataError, PenstockError, StorageError, missing_extra
from ..types import Ints
from . import folders, meta, sidecar
from .checked import Checked, Wanted
from .held import Shared

_BLOCK = 64 << 10  # bytes read at once of arrays without chunks
_MOST = 128 << 20  # bytes of a chunk; larger ones are read in parts, each decoding the whole
_SCALARS = "biufcOUST"
ALONE = "values"
"""The column of an array that stands alone and has no name."""


class Array(NamedTuple):
    """Facts about one array: its rows, how many of them are read at once, what type they are of,
    and how many chunks of it are not there, of how many."""

    rows: int
    block: int
    type: str
    missing: int = 0
    chunks: int = 0


Node = Callable[[str], Any]
"""Opens one array by its name."""

Still = Callable[[str, Any, int, int], None]
"""Refuses rows of an array (its name, itself, from row to row) that were changed since it was
opened."""


class Arrays:
    """One file, or folder, of arrays."""

    def __init__(
        self,
        path: Path,
        found: Mapping[str, Array],
        node: Node,
        *,
        columns: Sequence[str] | None,
        shared: Shared,
        still: Still | None = None,
    ) -> None:
        self._still = still
        self._path, self._node, self._shared, self._stat = path, node, shared, sidecar.stat(path)
        if missing := [column for column in columns or () if column not in found]:
            known = ", ".join(found) or "none"
            raise ConfigError(
                f"{path}: there is no array {missing[0]!r} with rows; there are {known}"
            )
        self.columns = sorted(found) if columns is None else list(columns)
        self._blocks = {name: found[name].block for name in self.columns}
        self.types = {name: found[name].type for name in self.columns}
        rows = {name: found[name].rows for name in self.columns}
        if len(set(rows.values())) != 1:
            said = (
                ", ".join(f"{name} has {count:,}" for name, count in rows.items())
                or "there are none"
            )
            raise ConfigError(
                f"{path}: its arrays must have rows, and all as many: {said}; choose some with "
                "columns="
            )
        self._rows = next(iter(rows.values()))
        lacking = next((name for name in self.columns if found[name].missing), None)
        if lacking is not None and shared.files.once("chunks"):
            array = found[lacking]
            warnings.warn(
                f"{path}, {lacking}: {array.missing:,} of {array.chunks:,} chunks are not there "
                "and read as the fill "
                "value: they were never written, hold nothing else, or are lost",
                stacklevel=2,
            )

    def __len__(self) -> int:
        return self._rows

    def read(self, indices: Ints, /) -> list[Any]:
        """The rows at `indices`, each chunk visited once."""
        with sidecar.still(self._path, self._stat, name=str(self._path)):
            columns = [self._column(name, indices) for name in self.columns]
            return [dict(zip(self.columns, row, strict=True)) for row in zip(*columns, strict=True)]

    def _column(self, name: str, indices: Ints) -> list[Any]:
        block = self._blocks[name]
        out: list[Any] = [None] * len(indices)
        order = np.argsort(indices, kind="stable")
        numbers = indices[order] // block
        for asked in np.split(order, np.flatnonzero(np.diff(numbers)) + 1) if len(order) else ():
            number = int(indices[asked[0]]) // block
            key = ("array", self._path, name, number)
            values = self._shared.decoded.get(key, partial(self._read, name, number * block, block))
            taken = values[indices[asked] - number * block]
            plain = taken.ndim == 1 and taken.dtype.kind in _SCALARS
            ragged = (
                taken.dtype.kind == "O"
            )  # rows that are arrays of their own, which others are given too
            for index, value in zip(
                asked.tolist(), taken.tolist() if plain else taken, strict=True
            ):
                out[index] = value.copy() if ragged and isinstance(value, np.ndarray) else value
        return out

    def _read(self, name: str, start: int, rows: int) -> tuple[int, Any]:
        stop = min(start + rows, self._rows)
        key = (
            "open",
            self._path,
            name,
            machine.process(),
        )  # what was open before a fork is no longer ours
        with named(self._path, name):
            node = self._shared.files.get(key, lambda: (1, self._node(name)))
            if self._still is not None:
                self._still(name, node, start, stop)
            values: Any = np.asarray(node[start:stop])
            values = (
                values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))
            )
            if len(values) != stop - start:
                raise ValueError(f"{len(values)} rows where {stop - start} were expected")
        return values.nbytes, values


def open_hdf5(wanted: Wanted, /) -> Arrays:
    """The arrays of an HDF5 file, those of its groups by their path."""
    path, columns, data = wanted.path, wanted.columns, wanted.data
    _module("h5py", "hdf5", path)
    with named(path), _file(data) as file:
        found = dict(_datasets(file, "", columns, path))
    return Arrays(path, found, partial(_dataset, data), columns=columns, shared=wanted.shared)


def _file(data: Checked) -> Any:
    """An open file. HDF5 gets it from us, since it lets nobody write anew what it has opened
    itself."""
    return _module("h5py", "hdf5", data.path).File(
        data.open() if data.known() else _Quiet(data.path), "r"
    )


class _Quiet(io.FileIO):
    """A file that closes when nobody needs it any more, and gives all that is asked for: HDF5 does
    not look."""

    def readinto(self, buffer: Any, /) -> int:
        found, wanted = super().readinto(buffer), memoryview(buffer).nbytes
        if found != wanted:
            raise OSError(f"it ends {wanted - (found or 0):,} bytes too early")
        return wanted

    def __del__(self) -> None:
        self.close()


def _datasets(
    group: Any, above: str, columns: Sequence[str] | None, path: Path
) -> Generator[tuple[str, Array]]:
    h5py = _module("h5py", "hdf5", path)
    for key in group:
        name = f"{above}{key}"
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            continue  # soft links are second names, external ones lead to other files
        one = group[key]
        if isinstance(one, h5py.Group):
            if above.count("/") > 32:
                raise ValueError("groups in groups, more than 32")
            yield from _datasets(one, f"{name}/", columns, path)
        elif isinstance(one, h5py.Dataset) and one.ndim and (columns is None or name in columns):
            if one.external or one.is_virtual:
                raise ConfigError(
                    f"{path}: the data of {name!r} lies in other files, which are not read"
                )
            text, inner = h5py.check_string_dtype(one.dtype), h5py.check_vlen_dtype(one.dtype)
            shape = one.shape if text or inner is None else (*one.shape, "*")
            kind = _type(np.dtype("U") if text else one.dtype if inner is None else inner, shape)
            yield name, Array(int(one.shape[0]), _block(one, one.chunks), kind, *_lacking(one))


def _lacking(one: Any) -> tuple[int, int]:
    """Return how many chunks of a dataset are missing, and how many there are (at least one)."""
    if one.chunks is None:
        return int(one.size > 0 and one.id.get_storage_size() == 0), 1
    chunks = math.prod(
        -(-int(size) // int(chunk)) for size, chunk in zip(one.shape, one.chunks, strict=True)
    )
    return chunks - int(one.id.get_num_chunks()), chunks


def _dataset(data: Checked, name: str) -> Any:
    one = _file(data)[name]
    return one.asstr() if _module("h5py", "hdf5", data.path).check_string_dtype(one.dtype) else one


def open_zarr(wanted: Wanted, /) -> Arrays:
    """The arrays of a Zarr folder, whose metadata `path` is; one that is an array itself is called
    `values`."""
    path, columns = wanted.path, wanted.columns
    zarr = _module("zarr", "zarr", path)
    for name in ("zarr.json", ".zarray"):
        for one in sorted(path.parent.rglob(name)):
            _refuse_pickles(one)
    with named(path):
        root: Any = zarr.open(str(path.parent), mode="r")
        if isinstance(root, zarr.Array):
            nodes: dict[str, Any] = {ALONE: root}
        else:
            nodes = {
                name: node
                for name, node in root.members(max_depth=None)
                if isinstance(node, zarr.Array)
            }
        found = {
            name: Array(
                int(node.shape[0]),
                _block(node, getattr(node, "shards", None) or node.chunks),
                _type(node.dtype, node.shape),
                max(0, int(node.nchunks) - int(node.nchunks_initialized)),
                int(node.nchunks),
            )
            for name, node in nodes.items()
            if node.ndim and (columns is None or name in columns)
        }
    stats = [sidecar.stat(one) for one in folders.whole([path])]
    newest = Stat(0, *(max(getattr(one, field) for one in stats) for field in Stat._fields[1:]))
    whole = frozenset(name for name, array in found.items() if not array.missing)
    still = partial(_still, path, newest, whole)
    return Arrays(
        path, found, partial(_array, path), columns=columns, shared=wanted.shared, still=still
    )


def _still(
    path: Path, newest: Stat, whole: frozenset[str], name: str, node: Any, start: int, stop: int
) -> None:
    """Refuse chunks that were written after the array was opened, or that are gone: they would read
    as other values."""
    sizes = getattr(node, "shards", None) or node.chunks
    folder = path.parent if name == ALONE else path.parent / name
    grid = [
        range(-(-int(size) // int(chunk))) for size, chunk in zip(node.shape, sizes, strict=True)
    ]
    grid[0] = range(start // int(sizes[0]), -(-stop // int(sizes[0])))
    for place in itertools.product(*grid):
        chunk = folder / node.metadata.encode_chunk_key(place)
        if not chunk.exists():
            if name in whole:
                raise DataError(
                    "it is gone, though it was there when the array was opened", where=str(chunk)
                )
            continue
        if (now := sidecar.stat(chunk)).mtime > newest.mtime:
            raise DataError(
                "it was written while it was in use: keep data still during a run", where=str(chunk)
            )
        if now.ctime > newest.ctime:
            sidecar.unchanged(chunk, now._replace(ctime=newest.ctime), name=str(chunk))


def _array(path: Path, name: str) -> Any:
    zarr = _module("zarr", "zarr", path)
    return zarr.open_array(str(path.parent), path=None if name == ALONE else name, mode="r")


def _refuse_pickles(metadata: Path) -> None:
    """An array whose values or codecs are pickled would run code when it is read."""
    text = meta.read_bytes(metadata)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"cannot be read: {error}", where=str(metadata)) from error
    if "pickle" in json.dumps(found).lower():
        raise ConfigError(
            f"{metadata}: its values are pickled, which may run any code when they are read: write "
            "them as plain types"
        )


def _block(one: Any, chunks: Any) -> int:
    """How many rows of an array are read at once."""
    row = max(1, int(one.dtype.itemsize) * math.prod(map(int, one.shape[1:])))
    return max(1, min(int(chunks[0]), _MOST // row) if chunks else _BLOCK // row)


def _type(dtype: Any, shape: Sequence[Any]) -> str:
    """The type of the rows of an array, as far as their values tell: numbers that stand alone are
    Python's."""
    if len(shape) == 1 and dtype.kind in "biufcSUT":
        return type(np.zeros(1, dtype).tolist()[0]).__name__
    name = {"S": "bytes", "U": "str", "T": "str"}.get(dtype.kind) or str(dtype.newbyteorder("="))
    return name if len(shape) == 1 else f"{name}[{', '.join(map(str, shape[1:]))}]"


def _module(name: str, extra: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise missing_extra(name, extra, f"reading {path.name}") from None


@contextlib.contextmanager
def named(path: Path, name: str = "") -> Generator[None]:
    """Errors of either package, which raise what they like, as errors that name file and array."""
    try:
        yield
    except (PenstockError, ImportError):
        raise
    except OSError as error:
        if error.errno is not None:
            raise StorageError(f"{path}: {error}") from error
        raise DataError(
            f"cannot be read: {error}", where=f"{path}{name and f', {name}'}"
        ) from error
    except BaseException as error:
        if (
            not isinstance(error, Exception) and type(error).__module__ != "pyo3_runtime"
        ):  # where Rust panics
            raise
        reason = str(error).partition("\nBacktrace:")[0]
        raise DataError(
            f"cannot be read: {reason}", where=f"{path}{name and f', {name}'}"
        ) from error
