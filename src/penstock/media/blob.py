"""Bytes of media, in memory or in a file that decoders read in parts."""

from __future__ import annotations

import io
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError, PenstockError, StorageError, is_missing_file
from ..stores import is_remote, parse_location, storage
from ..stores.urls import is_url
from .claims import spell_reason

_READ_BYTES = 1 << 18  # bytes read at a time


@dataclass(frozen=True)
class Limits:
    """Upper bounds for decoding, against small files that decode to more than the memory.

    Args:
        pixels: pixels of one image or page, and of all frames of a clip together.
        seconds: length of a sound or a video, according to its header.
        samples: numbers of a sound decoded at once, over all channels.
        pages: pages of a document.
        bytes: size of a file that is read completely.

    >>> Limits(pages=10).pages
    10
    """

    pixels: int = 1 << 28
    seconds: float = 24 * 3600.0
    samples: int = 1 << 28
    pages: int = 10_000
    bytes: int = 1 << 30

    def check(self, name: str, amount: float) -> None:
        """Compare an amount with one of the limits.

        Args:
            name: a field of this class, such as "pixels".
            amount: the amount, in the unit of the field. NaN exceeds every limit.

        Raises:
            ValueError: if the amount exceeds the limit; the message names the limit to raise.
        """
        limit = getattr(self, name)
        if not amount <= limit:
            raise ValueError(
                f"{amount:,.0f} {name}, more than Limits({name}={limit:,.0f}): raise the limit if you "
                "trust the data"
            )


@dataclass(frozen=True)
class Blob:
    """Bytes in memory, or a part of a file, which is small to pickle.

    Args:
        data: the bytes; `None` for a file.
        path: the path or URL of the file.
        start: the offset of the part in the file.
        size: the size of the part; `None` for the rest of the file.

    >>> Blob(b"abc").read(), len(Blob(b"abc"))
    (b'abc', 3)
    """

    data: bytes | None = None
    path: str = ""
    start: int = 0
    size: int | None = None

    def __repr__(self) -> str:
        # The bytes of a video would fill the terminal of a user who prints a sample.
        content = repr(self.path) if self.data is None else f"<{len(self.data):,} bytes>"
        part = f", start={self.start}, size={self.size}" if self.start or self.size else ""
        return f"Blob({content}{part})"

    @classmethod
    def of(cls, value: Any, root: str | Path | None = None) -> Blob:
        """Return the bytes or the file that a field holds.

        Args:
            value: bytes, a path, or a mapping of `bytes` and `path` as Hugging Face datasets use.
            root: the folder of relative paths.

        Raises:
            DataError: for any other value.
        """
        if isinstance(value, Blob):
            return value
        if isinstance(value, dict) and {"bytes", "path"} & value.keys():
            data: Any = value.get("bytes")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            value = data if data is not None else value.get("path")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if isinstance(value, bytes | bytearray | memoryview):
            return cls(bytes(value))  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(value, str | Path):
            return cls(None, _join_root(value, root))
        raise DataError(
            f"a {type(value).__name__} is no media: give bytes, the path of a file, or a mapping of one"  # pyright: ignore[reportUnknownArgumentType]
        )

    def __len__(self) -> int:
        if self.data is not None:
            return len(self.data)
        if self.size is not None:
            return self.size
        try:
            return storage.world.store.stat(self.path).size - self.start
        except OSError as error:
            raise _read_error(self.path, error) from error

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """Return a range of the bytes.

        Args:
            offset: the first byte, counted from the start of this part.
            length: the number of bytes, clipped at the end of the part; `None` for all the rest.

        Raises:
            DataError: if the file is missing or too short.
            StorageError: if the file cannot be read.
        """
        if self.data is not None:
            return self.data[offset:] if length is None else self.data[offset : offset + length]
        length = (
            max(len(self) - offset, 0)
            if length is None
            else min(length, max(len(self) - offset, 0))
        )
        try:
            data = storage.world.store.read(self.path, self.start + offset, length)
        except OSError as error:
            raise _read_error(self.path, error) from error
        if len(data) < length:
            raise DataError(
                f"{len(data)} bytes at {self.start + offset} where {length} were expected",
                where=self.path,
            )
        return data

    def read_all(self, limits: Limits) -> bytes:
        """Return all bytes.

        Args:
            limits: `limits.bytes` is compared with the size before anything is read.

        Raises:
            ValueError: if there are more bytes than `limits.bytes`.
            DataError: if the file is missing or too short.
            StorageError: if the file cannot be read.
        """
        limits.check("bytes", len(self))
        return self.read()

    def file(self, patches: Mapping[int, bytes] | None = None) -> io.BufferedReader | io.BytesIO:
        """Return a seekable file over the bytes.

        Args:
            patches: bytes to return at some offsets instead of the stored ones.
        """
        if self.data is not None and not patches:
            return io.BytesIO(self.data)
        return io.BufferedReader(_BlobFile(self, patches or {}), _READ_BYTES)


def _read_error(path: str, error: OSError) -> PenstockError:
    """Return the error for a missing file of a sample, or for failing storage."""
    if is_missing_file(error):
        return DataError("there is no such file, although the sample names it", where=path)
    return StorageError(f"{path}: {error.strerror or error}")


def _join_root(path: str | Path, root: str | Path | None) -> str:
    """Join a path or URL with its root; `Path` would drop a slash of a URL."""
    if is_remote(path) or (root is None and is_url(str(path))):
        return str(parse_location(path))
    if root is not None and is_remote(root) and not Path(path).is_absolute():
        return str(parse_location(f"{str(root).rstrip('/')}/{path}"))
    return str(Path(path) if root is None else Path(root) / path)


class _BlobFile(io.RawIOBase):
    def __init__(self, blob: Blob, patches: Mapping[int, bytes]) -> None:
        self._blob, self._offset, self._size, self._patches = blob, 0, len(blob), patches

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._offset = max(0, offset + (0, self._offset, self._size)[whence])
        return self._offset

    def tell(self) -> int:
        return self._offset

    def readinto(self, buffer: Any, /) -> int:
        data = self._blob.read(self._offset, len(buffer)) if self._offset < self._size else b""
        buffer[: len(data)] = data
        for start, patch in self._patches.items():
            low, high = max(start, self._offset), min(start + len(patch), self._offset + len(data))
            if low < high:
                buffer[low - self._offset : high - self._offset] = patch[low - start : high - start]
        self._offset += len(data)
        return len(data)


@contextmanager
def sample_errors(what: str, key: str) -> Generator[None]:
    """Convert any exception of a decoder to a `DataError` that names the sample.

    Storage errors pass unchanged.
    """
    try:
        yield
    except (PenstockError, ImportError, MemoryError):
        raise
    except Exception as error:  # decoders raise any type
        reason = spell_reason(error)
        raise DataError(f"the {what} cannot be decoded: {reason}", where=key) from error
