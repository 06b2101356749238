"""Where the bytes of media are: at hand, or in a file, of which no more is read than a decoder asks
for."""

from __future__ import annotations

import io
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engine.base.seams import world
from ..engine.base.urls import is_url
from ..errors import DataError, PenstockError, StorageError, is_missing_file
from ..stores import is_far, located

_BLOCK = 1 << 18  # bytes read at a time


@dataclass(frozen=True)
class Limits:
    """What is decoded at most, against files that are small and unfold to more than there is
    memory.

    Args:
        pixels: of one picture or page, and of all frames of a clip together.
        seconds: of a sound or a video, as its header tells.
        samples: numbers of a sound that are decoded at once, over all channels.
        pages: of a document.
        bytes: of a file that is read whole.

    >>> Limits(pages=10).pages
    10
    """

    pixels: int = 1 << 28
    seconds: float = 24 * 3600.0
    samples: int = 1 << 28
    pages: int = 10_000
    bytes: int = 1 << 30

    def check(self, what: str, amount: float) -> None:
        """Refuse more than the limit of this name."""
        most = getattr(self, what)
        if not amount <= most:
            raise ValueError(
                f"{amount:,.0f} {what}, more than Limits({what}={most:,.0f}): raise that if you "
                "trust it"
            )


@dataclass(frozen=True)
class Blob:
    """Bytes, or the file that they are: `start` and `size` name a part of it. Small to pickle where
    it is a file.

    >>> Blob(b"abc").read(), len(Blob(b"abc"))
    (b'abc', 3)
    """

    data: bytes | None = None
    path: str = ""
    start: int = 0
    size: int | None = None

    @classmethod
    def of(cls, value: Any, root: str | Path | None = None) -> Blob:
        """The bytes that a field holds or names, as seen from `root`; and what Hugging Face keeps
        of a file."""
        if isinstance(value, Blob):
            return value
        if isinstance(value, dict) and {"bytes", "path"} & value.keys():
            found: Any = value.get("bytes")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            value = found if found is not None else value.get("path")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if isinstance(value, bytes | bytearray | memoryview):
            return cls(bytes(value))  # pyright: ignore[reportUnknownArgumentType]
        if isinstance(value, str | Path):
            return cls(None, _joined(value, root))
        raise DataError(
            f"a {type(value).__name__} is no media: bytes, the path of a file, or a mapping of one"  # pyright: ignore[reportUnknownArgumentType]
        )

    def __len__(self) -> int:
        if self.data is not None:
            return len(self.data)
        if self.size is not None:
            return self.size
        try:
            return world.store.stat(self.path).size - self.start
        except OSError as error:
            raise _failure(self.path, error) from error

    def read(self, at: int = 0, length: int | None = None) -> bytes:
        """So many of them."""
        if self.data is not None:
            return self.data[at:] if length is None else self.data[at : at + length]
        length = max(len(self) - at, 0) if length is None else min(length, max(len(self) - at, 0))
        try:
            found = world.store.read(self.path, self.start + at, length)
        except OSError as error:
            raise _failure(self.path, error) from error
        if len(found) < length:
            raise DataError(
                f"{len(found)} bytes at {self.start + at} where {length} were expected",
                where=self.path,
            )
        return found

    def whole(self, limits: Limits) -> bytes:
        """All of them, if they are not too many."""
        limits.check("bytes", len(self))
        return self.read()

    def file(self, patches: Mapping[int, bytes] | None = None) -> io.BufferedReader | io.BytesIO:
        """A file over them that reads what is asked of it, with other bytes at some offsets."""
        if self.data is not None and not patches:
            return io.BytesIO(self.data)
        return io.BufferedReader(_Ranges(self, patches or {}), _BLOCK)


def _failure(path: str, error: OSError) -> PenstockError:
    """Return the error of a sample whose file is not there, or of storage that failed."""
    if is_missing_file(error):
        return DataError("there is no such file, which the sample names", where=path)
    return StorageError(f"{path}: {error.strerror or error}")


def _joined(path: str | Path, root: str | Path | None) -> str:
    """A path as seen from a folder; `Path` would take a slash out of a URL."""
    if is_far(path) or (root is None and is_url(str(path))):
        return str(located(path))
    if root is not None and is_far(root) and not Path(path).is_absolute():
        return str(located(f"{str(root).rstrip('/')}/{path}"))
    return str(Path(path) if root is None else Path(root) / path)


class _Ranges(io.RawIOBase):
    def __init__(self, blob: Blob, patches: Mapping[int, bytes]) -> None:
        self._blob, self._at, self._size, self._patches = blob, 0, len(blob), patches

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        found = self._blob.read(self._at, len(buffer)) if self._at < self._size else b""
        buffer[: len(found)] = found
        for start, patch in self._patches.items():
            low, high = max(start, self._at), min(start + len(patch), self._at + len(found))
            if low < high:
                buffer[low - self._at : high - self._at] = patch[low - start : high - start]
        self._at += len(found)
        return len(found)


@contextmanager
def named(what: str, key: str) -> Generator[None]:
    """Whatever a decoder raises, as an error that names the sample; storage that fails stays what
    it is."""
    try:
        yield
    except (PenstockError, ImportError, MemoryError):
        raise
    except Exception as error:  # decoders raise what they like
        raise DataError(f"the {what} cannot be decoded: {error}", where=key) from error
