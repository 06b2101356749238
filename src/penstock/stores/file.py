"""An object of a store as a file that is open for reading."""

from __future__ import annotations

import io
from typing import Any

from ..engine.base import seams


class FarFile(io.RawIOBase):
    """Reads from anywhere in an object; nothing is held between reads.

    >>> FarFile("data:,x").readable()
    True
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._path, self._at = name, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        """The bytes of the object."""
        return seams.world.store.stat(self._path).size

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at}.get(whence)
        self._at = offset + (self.size() if base is None else base)
        return self._at

    def read(self, size: int = -1, /) -> bytes:
        found = seams.world.store.read(
            self._path,
            self._at,
            None if size is None or size < 0 else size,  # pyright: ignore[reportUnnecessaryComparison]
        )
        self._at += len(found)
        return found

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any, /) -> int:
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)
