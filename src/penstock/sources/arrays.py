"""HDF5 files and Zarr folders: arrays of equal length, read along their first axis.

A row is a mapping of one value per array. Decoded chunks and open arrays are cached, because
opening an array costs as much as many reads. The reader rejects data that leads out of a file or
runs code: external and virtual datasets of HDF5, pickles in Zarr.
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
from ..errors import (
    ConfigError,
    DataError,
    PenstockError,
    is_panic,
    make_memory_error,
    make_missing_extra_error,
    make_storage_error,
)
from ..stores.limits import DECODED
from ..stores.storage import Stat
from ..types import Ints
from . import file_versions, folders, meta
from .checksummed import ChecksummedFile, OpenRequest
from .lru import SharedCaches

_UNCHUNKED_READ_BYTES = 64 << 10  # bytes read at once of arrays without chunks
_MAX_BLOCK = 128 << 20  # bytes; larger chunks are read in parts, each decoding the full chunk
_SCALAR_DTYPE_KINDS = "biufcOUST"
UNNAMED_ARRAY_COLUMN = "values"
"""Column name of a single array without a name."""


class Array(NamedTuple):
    """Facts about one array.

    `block` is the number of rows per read; `missing` of its `chunks` do not exist. A row takes at
    least `row_bytes` of memory.
    """

    rows: int
    block: int
    type: str
    row_bytes: int
    missing: int = 0
    chunks: int = 0


OpenArray = Callable[[str], Any]
"""Opens one array by its name."""

CheckUnchanged = Callable[[str, Any, int, int], None]
"""Raises if rows of an array changed since it was opened: name, array, first row, end row."""


class Arrays:
    """One file or folder of arrays."""

    def __init__(
        self,
        path: Path,
        arrays: Mapping[str, Array],
        open_array: OpenArray,
        *,
        columns: Sequence[str] | None,
        shared: SharedCaches,
        check_unchanged: CheckUnchanged | None = None,
    ) -> None:
        self._check_unchanged = check_unchanged
        self._path, self._open_array, self._shared, self._stat = (
            path,
            open_array,
            shared,
            file_versions.stat_file(path),
        )
        if missing := [column for column in columns or () if column not in arrays]:
            known = ", ".join(arrays) or "none"
            raise ConfigError(
                f"{path}: there is no array {missing[0]!r} with rows; there are {known}"
            )
        self.columns = sorted(arrays) if columns is None else list(columns)
        self._blocks = {name: arrays[name].block for name in self.columns}
        self.types = {name: arrays[name].type for name in self.columns}
        rows = {name: arrays[name].rows for name in self.columns}
        if len(set(rows.values())) != 1:
            counts = (
                ", ".join(f"{name} has {count:,}" for name, count in rows.items())
                or "there are none"
            )
            raise ConfigError(
                f"{path}: its arrays must have equal numbers of rows, at least one: {counts}; "
                "choose some with columns="
            )
        for name in self.columns:
            if (size := arrays[name].row_bytes) > DECODED:
                raise DataError(
                    f"a row of the array {name!r} takes {size >> 20:,} MiB of memory, and the limit "
                    f"is {DECODED >> 20:,} MiB: leave it out (columns=), or write shorter rows",
                    where=str(path),
                )
        self._rows = next(iter(rows.values()))
        incomplete = next((name for name in self.columns if arrays[name].missing), None)
        if incomplete is not None and shared.files.is_first("chunks"):
            array = arrays[incomplete]
            warnings.warn(
                f"{path}, {incomplete}: {array.missing:,} of {array.chunks:,} chunks are missing "
                "and read as the fill value: they were never written, contain only that value, or "
                "are lost",
                stacklevel=2,
            )

    def __len__(self) -> int:
        return self._rows

    def read(self, indices: Ints, /) -> list[Any]:
        """Return the rows at `indices`, visiting each chunk once."""
        with file_versions.guard_unchanged(self._path, self._stat, name=str(self._path)):
            columns = [self._column(name, indices) for name in self.columns]
            return [dict(zip(self.columns, row, strict=True)) for row in zip(*columns, strict=True)]

    def _column(self, name: str, indices: Ints) -> list[Any]:
        block = self._blocks[name]
        column: list[Any] = [None] * len(indices)
        order = np.argsort(indices, kind="stable")
        numbers = indices[order] // block
        for positions in (
            np.split(order, np.flatnonzero(np.diff(numbers)) + 1) if len(order) else ()
        ):
            number = int(indices[positions[0]]) // block
            key = ("array", self._path, name, number)
            values = self._shared.decoded.get(key, partial(self._read, name, number * block, block))
            rows = values[indices[positions] - number * block]
            is_plain = rows.ndim == 1 and rows.dtype.kind in _SCALAR_DTYPE_KINDS
            is_ragged = rows.dtype.kind == "O"  # the cached rows are arrays that callers share
            for index, value in zip(
                positions.tolist(), rows.tolist() if is_plain else rows, strict=True
            ):
                column[index] = (
                    value.copy() if is_ragged and isinstance(value, np.ndarray) else value
                )
        return column

    def _read(self, name: str, start: int, rows: int) -> tuple[int, Any]:
        stop = min(start + rows, self._rows)
        # The process is part of the key: a forked child must not use the parent's open arrays.
        key = ("open", self._path, name, machine.get_pid())
        with convert_package_errors(self._path, name):
            node = self._shared.files.get(key, lambda: (1, self._open_array(name)))
            if self._check_unchanged is not None:
                self._check_unchanged(name, node, start, stop)
            values: Any = np.asarray(node[start:stop])
            values = (
                values if values.dtype.isnative else values.astype(values.dtype.newbyteorder("="))
            )
            if len(values) != stop - start:
                raise ValueError(f"{len(values)} rows where {stop - start} were expected")
        return values.nbytes, values


def open_hdf5(request: OpenRequest, /) -> Arrays:
    """Open an HDF5 file; its columns are its arrays, those of groups by their path."""
    path, columns, data = request.path, request.columns, request.data
    _import_format_package("h5py", "hdf5", path)
    with convert_package_errors(path), _open_hdf5_file(data) as file:
        arrays = dict(_iterate_hdf5_datasets(file, "", columns, path))
    return Arrays(
        path, arrays, partial(_open_hdf5_dataset, data), columns=columns, shared=request.shared
    )


def _open_hdf5_file(data: ChecksummedFile) -> Any:
    """Open a file through Python, because HDF5's own lock would prevent rewriting it."""
    return _import_format_package("h5py", "hdf5", data.path).File(
        data.open() if data.known() else _UnlockedFile(data.path), "r"
    )


class _UnlockedFile(io.FileIO):
    """A file that closes on garbage collection and raises on a short read, which HDF5 ignores."""

    def readinto(self, buffer: Any, /) -> int:
        count, length = super().readinto(buffer), memoryview(buffer).nbytes
        if count != length:
            raise OSError(f"it ends {length - (count or 0):,} bytes too early")
        return length

    def __del__(self) -> None:
        self.close()


def _iterate_hdf5_datasets(
    group: Any, prefix: str, columns: Sequence[str] | None, path: Path
) -> Generator[tuple[str, Array]]:
    h5py = _import_format_package("h5py", "hdf5", path)
    for key in group:
        name = f"{prefix}{key}"
        if not isinstance(group.get(key, getlink=True), h5py.HardLink):
            continue  # soft links are second names; external links lead to other files
        dataset = group[key]
        if isinstance(dataset, h5py.Group):
            if prefix.count("/") > 32:
                raise ValueError("more than 32 nested groups")
            yield from _iterate_hdf5_datasets(dataset, f"{name}/", columns, path)
        elif (
            isinstance(dataset, h5py.Dataset)
            and dataset.ndim
            and (columns is None or name in columns)
        ):
            if dataset.external or dataset.is_virtual:
                raise ConfigError(
                    f"{path}: the data of {name!r} lies in other files, which Penstock does not "
                    "read: copy the data into this file"
                )
            text, inner = (
                h5py.check_string_dtype(dataset.dtype),
                h5py.check_vlen_dtype(dataset.dtype),
            )
            shape = dataset.shape if text or inner is None else (*dataset.shape, "*")
            kind = _describe_row_type(
                np.dtype("U") if text else dataset.dtype if inner is None else inner, shape
            )
            yield (
                name,
                Array(
                    int(dataset.shape[0]),
                    _choose_read_rows(dataset, dataset.chunks),
                    kind,
                    _measure_row(dataset),
                    *_count_missing_chunks(dataset),
                ),
            )


def _count_missing_chunks(dataset: Any) -> tuple[int, int]:
    """Return the number of missing chunks of a dataset, and of all its chunks (at least one)."""
    if dataset.chunks is None:
        return int(dataset.size > 0 and dataset.id.get_storage_size() == 0), 1
    chunks = math.prod(
        -(-int(size) // int(chunk))
        for size, chunk in zip(dataset.shape, dataset.chunks, strict=True)
    )
    return chunks - int(dataset.id.get_num_chunks()), chunks


def _open_hdf5_dataset(data: ChecksummedFile, name: str) -> Any:
    dataset = _open_hdf5_file(data)[name]
    return (
        dataset.asstr()
        if _import_format_package("h5py", "hdf5", data.path).check_string_dtype(dataset.dtype)
        else dataset
    )


def open_zarr(request: OpenRequest, /) -> Arrays:
    """Open a Zarr folder by the path of its metadata file.

    The column of a folder that is a single array is `values`.
    """
    path, columns = request.path, request.columns
    zarr = _import_format_package("zarr", "zarr", path)
    for name in ("zarr.json", ".zarray"):
        for metadata in sorted(path.parent.rglob(name)):
            _refuse_pickles(metadata)
    with convert_package_errors(path):
        root: Any = zarr.open(str(path.parent), mode="r")
        if isinstance(root, zarr.Array):
            nodes: dict[str, Any] = {UNNAMED_ARRAY_COLUMN: root}
        else:
            nodes = {
                name: node
                for name, node in root.members(max_depth=None)
                if isinstance(node, zarr.Array)
            }
        arrays = {
            name: Array(
                int(node.shape[0]),
                _choose_read_rows(node, getattr(node, "shards", None) or node.chunks),
                _describe_row_type(node.dtype, node.shape),
                _measure_row(node),
                max(0, int(node.nchunks) - int(node.nchunks_initialized)),
                int(node.nchunks),
            )
            for name, node in nodes.items()
            if node.ndim and (columns is None or name in columns)
        }
    stats = [file_versions.stat_file(file) for file in folders.list_data_files([path])]
    newest = Stat(0, *(max(getattr(stat, field) for stat in stats) for field in Stat._fields[1:]))
    complete = frozenset(name for name, array in arrays.items() if not array.missing)
    check = partial(_require_unchanged_chunks, path, newest, complete)
    return Arrays(
        path,
        arrays,
        partial(_open_zarr_array, path),
        columns=columns,
        shared=request.shared,
        check_unchanged=check,
    )


def _require_unchanged_chunks(
    path: Path, newest: Stat, complete: frozenset[str], name: str, node: Any, start: int, stop: int
) -> None:
    """Raise if a chunk was written or removed since the array was opened."""
    sizes = getattr(node, "shards", None) or node.chunks
    folder = path.parent if name == UNNAMED_ARRAY_COLUMN else path.parent / name
    grid = [
        range(-(-int(size) // int(chunk))) for size, chunk in zip(node.shape, sizes, strict=True)
    ]
    grid[0] = range(start // int(sizes[0]), -(-stop // int(sizes[0])))
    for position in itertools.product(*grid):
        chunk = folder / node.metadata.encode_chunk_key(position)
        if not chunk.exists():
            if name in complete:
                raise DataError(
                    "the chunk is missing, though it existed when the array was opened",
                    where=str(chunk),
                )
            continue
        if (version := file_versions.stat_file(chunk)).mtime > newest.mtime:
            raise DataError(
                "the chunk was written while it was in use: keep data still during a run",
                where=str(chunk),
            )
        if version.ctime > newest.ctime:
            file_versions.require_unchanged(
                chunk, version._replace(ctime=newest.ctime), name=str(chunk)
            )


def _open_zarr_array(path: Path, name: str) -> Any:
    zarr = _import_format_package("zarr", "zarr", path)
    return zarr.open_array(
        str(path.parent), path=None if name == UNNAMED_ARRAY_COLUMN else name, mode="r"
    )


def _refuse_pickles(metadata: Path) -> None:
    """Raise for an array whose values or codecs are pickled: reading it would run code."""
    text = meta.read_bytes(metadata)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"cannot be read: {error}", where=str(metadata)) from error
    if "pickle" in json.dumps(content).lower():
        raise ConfigError(
            f"{metadata}: its values are pickled, which may run any code when they are read: write "
            "them as plain types"
        )


def _measure_row(array: Any) -> int:
    """Return the bytes of a row, without those of texts and lists of any length."""
    return int(array.dtype.itemsize) * math.prod(map(int, array.shape[1:]))


def _choose_read_rows(array: Any, chunks: Any) -> int:
    """Return how many rows of an array to read at once."""
    row = max(1, _measure_row(array))
    return max(
        1, min(int(chunks[0]), _MAX_BLOCK // row) if chunks else _UNCHUNKED_READ_BYTES // row
    )


def _describe_row_type(dtype: Any, shape: Sequence[Any]) -> str:
    """Return the type of the rows of an array, as far as its dtype tells.

    Scalars have the type of Python's scalars.
    """
    if len(shape) == 1 and dtype.kind in "biufcSUT":
        return type(np.zeros(1, dtype).tolist()[0]).__name__
    name = {"S": "bytes", "U": "str", "T": "str"}.get(dtype.kind) or str(dtype.newbyteorder("="))
    return name if len(shape) == 1 else f"{name}[{', '.join(map(str, shape[1:]))}]"


def _import_format_package(name: str, extra: str, path: Path) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise make_missing_extra_error(name, extra, f"reading {path.name}") from None


@contextlib.contextmanager
def convert_package_errors(path: Path, name: str = "") -> Generator[None]:
    """Convert the errors of a format's package to errors that name the file and the array."""
    try:
        yield
    except (PenstockError, ImportError):
        raise
    except MemoryError as error:
        raise make_memory_error(error, path) from error
    except OSError as error:
        if error.errno is not None:
            raise make_storage_error(error, path) from error
        raise DataError(
            f"cannot be read: {error}", where=f"{path}{name and f', {name}'}"
        ) from error
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        reason = str(error).partition("\nBacktrace:")[0]
        raise DataError(
            f"cannot be read: {reason}", where=f"{path}{name and f', {name}'}"
        ) from error
