"""Arrays in shared memory, and the options of workers."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .options import MultiprocessingOptions

__all__ = ["MultiprocessingOptions", "SharedMemoryArray", "SharedMemoryArrayMetadata"]


@dataclass(slots=True, frozen=True)
class SharedMemoryArrayMetadata:
    """Name, shape and dtype of an array in shared memory."""

    name: str
    shape: Iterable[int]
    dtype: npt.DTypeLike

    def close_and_unlink_shm(self) -> None:
        """Remove the shared memory."""
        Path(self.name).unlink()


class SharedMemoryArray(np.ndarray[Any, Any]):
    """An array in shared memory, which other processes of the machine open by its metadata.

    Pickling passes on the metadata instead of the values. Workers of this package are threads and
    need none of it: this class serves processes that a user starts.

    Args:
        shape: shape of the array.
        dtype: dtype of the array.

    >>> array = SharedMemoryArray((2,), np.int64)
    >>> array[:] = 3, 4
    >>> same = SharedMemoryArray.from_metadata(array.metadata)
    >>> array.unlink_on_del()
    >>> same.tolist()
    [3, 4]
    """

    _path: str | None = None

    def __new__(cls, shape: Iterable[int], dtype: npt.DTypeLike = float) -> SharedMemoryArray:
        folder = "/dev/shm" if Path("/dev/shm").is_dir() else None
        with tempfile.NamedTemporaryFile(prefix="penstock-", dir=folder, delete=False) as file:
            path = file.name
        return cls._open(path, "w+", shape, dtype)

    @classmethod
    def _open(
        cls, path: str, mode: Any, shape: Iterable[int], dtype: npt.DTypeLike
    ) -> SharedMemoryArray:
        array = np.memmap(path, np.dtype(dtype), mode, shape=tuple(shape)).view(cls)
        array._path = path
        return array

    @classmethod
    def from_metadata(cls, metadata: SharedMemoryArrayMetadata) -> SharedMemoryArray:
        """Open an array of this or another process.

        Args:
            metadata: the metadata of the array.
        """
        return cls._open(metadata.name, "r+", metadata.shape, metadata.dtype)

    @property
    def metadata(self) -> SharedMemoryArrayMetadata:
        """Name, shape and dtype."""
        assert self._path is not None, "a view or copy has no shared memory of its own"
        return SharedMemoryArrayMetadata(self._path, self.shape, self.dtype)

    def unlink_on_del(self) -> None:
        """Remove the shared memory when this array is deleted."""
        assert self._path is not None, "a view or copy has no shared memory of its own"
        weakref.finalize(self, Path(self._path).unlink, missing_ok=True)

    @classmethod
    def enable_async_del(cls, num_threads: int = 1, max_outstanding_requests: int = 50) -> None:
        """Do nothing: deleting an array closes no file and takes no time.

        Args:
            num_threads: ignored.
            max_outstanding_requests: ignored.
        """

    def __reduce_ex__(self, protocol: Any, /) -> Any:
        if self._path is None:
            return np.asarray(self).__reduce_ex__(protocol)
        return SharedMemoryArray.from_metadata, (self.metadata,)
